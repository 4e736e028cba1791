"""A guard against reward hacking: a policy that wins by the model and loses by its teacher.

``assess`` looks at the numbers of one moment and of a few before it, and returns a verdict:

=============  ===================================================================================
``ok``         no number contradicts the model
``ask``        the policy is where the model knows little: ask about segments of the newest version
``pull back``  the teacher disagrees, or no answers come: go on from the best version, with the
               model fitted to the new answers
``stop``       the teacher disagrees again and again, without a better version in between: stay at
               the best version, for good
=============  ===================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from equipoise.facts import Help, NonNegativeFloat, PositiveFloat, PositiveInt

Kind = Literal["ok", "ask", "pull back", "stop"]


def paid(mean: Tensor, deviation: Tensor, caution: float) -> Tensor:
    """Return the rewards to learn from, ``mean - caution * deviation``: rows that the members
    disagree about are worth less, so that errors of a single member do not attract the policy.
    """
    return mean - caution * deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings of the guard."""

    sure: Annotated[
        PositiveFloat,
        Help("Standard errors that count as a contradiction", "2.6: one look in 200 by chance."),
    ] = 2.6
    wary: Annotated[
        PositiveFloat, Help("Standard errors that are a reason to ask", "1.5: one in 15 by chance.")
    ] = 1.5
    looks: Annotated[PositiveInt, Help("Looks whose new answers are counted together")] = 3
    answers: Annotated[PositiveInt, Help("Fewest new answers that a verdict is drawn from")] = 8
    deviation: Annotated[
        PositiveFloat, Help("Most deviation on the policy's segments, over labelled ones")
    ] = 2.0
    kl: Annotated[
        NonNegativeFloat, Help("Most KL to the policies of the answers; 0 turns it off")
    ] = 0.0
    patience: Annotated[PositiveInt, Help("Unanswered looks in a row before a pull back")] = 3
    pulls: Annotated[PositiveInt, Help("Pull backs within `memory` looks, before a stop")] = 3
    memory: Annotated[PositiveInt, Help("Looks after which a pull back is forgotten")] = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """The numbers of one look, of the answers since the look before it.

    The model predicts new answers before it learns from them. ``compared``: the number of them that
    compare the newest version with the best one.
    """

    answers: int = 0  # new answers that prefer a side
    accuracy: float = math.nan  # share of them that the model predicted
    expected: float = math.nan  # the accuracy that the model itself expected (``expected_by``)
    compared: int = 0
    win_answers: float = math.nan  # share of them that the newest version won, a tie is half
    win_model: float = math.nan  # the same share by the chances of the model
    deviation: float = 0.0  # mean deviation of the members on the policy's segments
    deviation_labelled: float = 1.0  # the same on the labelled segments
    kl: float = 0.0  # of the policy to the policies that the answers are about, in nats


@dataclass(frozen=True, slots=True)
class State:
    """The memory of the guard between two looks."""

    look: int = 0  # the number of looks so far
    recent: tuple[Signs, ...] = ()  # the last ones since the last pull back
    unanswered: int = 0  # looks in a row that asked and got no answer
    pulled: tuple[int, ...] = ()  # looks of the pull backs since a version was surely the best
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict and its reason, one sentence."""

    kind: Kind
    reason: str
    best: bool = False  # the answers show that the newest version is better than the best one


def expected_by(chance: Tensor) -> float:
    """Return the accuracy that a calibrated model expects of its own chances [Q]."""
    return float((chance - 0.5).abs().mean() + 0.5)


def assess(
    state: State, signs: Signs, limits: Limits | None = None, *, last: bool = False
) -> tuple[State, Verdict]:
    """Return the next state and the verdict on one look.

    ``last``: no look follows, so a version that seems to lose to the best one is pulled back.
    """
    limits = limits or Limits()
    if state.stopped:
        return state, Verdict("stop", "the guard has stopped before")
    recent = (*state.recent, signs)[-limits.looks :]
    look, far = state.look + 1, _far(signs, limits)
    unanswered = state.unanswered + 1 if far and not signs.answers else 0
    pulled = tuple(one for one in state.pulled if look - one < limits.memory)
    if wrong := _contradicted(recent, limits, limits.sure):
        if len(pulled) >= limits.pulls:
            why = f"{wrong}, after {len(pulled)} pull backs in {look - pulled[0]} looks"
            return State(look, pulled=pulled, stopped=True), Verdict("stop", why)
        return State(look, pulled=(*pulled, look)), Verdict("pull back", wrong)
    if last and _wins(recent[-1:], limits) < -1:
        why = f"the last version wins {signs.win_answers:.0%} of {signs.compared} comparisons"
        return State(look, pulled=(*pulled, look)), Verdict("pull back", why)
    if unanswered >= limits.patience:
        why = f"{far}, and {unanswered} looks in a row brought no answer"
        return State(look, pulled=pulled), Verdict("pull back", why)
    won = _wins(recent, limits)
    # answers that compare with the former best version count no more
    kept = () if won > 1 else recent
    state = State(look, kept, unanswered, () if won > limits.sure else pulled)
    if why := _contradicted(kept, limits, limits.wary) or _surprised(kept, limits) or far:
        return state, Verdict("ask", why, won > 1)
    why = "the new answers and the members' agreement support the model"
    return state, Verdict("ok", why, won > 1)


def _contradicted(recent: Sequence[Signs], limits: Limits, errors: float) -> str:
    """Return why the teacher and the model disagree about the newest version, or "".

    The policy may change fast, so the newest looks also count without the looks before them.
    """
    for first in range(len(recent)):
        part = recent[first:]
        count, won = _pooled([(one.compared, one.win_answers) for one in part])
        _, predicted = _pooled([(one.compared, one.win_model) for one in part])
        if _wins(part, limits) < -1 and _errors(predicted - won, predicted, count) > errors:
            return (
                f"the newest version wins {predicted:.0%} of {count} comparisons with the best one "
                f"by the model, and {won:.0%} by the answers"
            )
    return ""


def _surprised(recent: Sequence[Signs], limits: Limits) -> str:
    """Return why the new answers speak against the model, or ""."""
    count, right = _pooled([(one.answers, one.accuracy) for one in recent])
    _, expected = _pooled([(one.answers, one.expected) for one in recent])
    if count >= limits.answers and _errors(expected - right, expected, count) > limits.wary:
        share = f"{right:.0%} of {count} new answers"
        return f"the model predicted {share}, and expected {expected:.0%}"
    return ""


def _far(signs: Signs, limits: Limits) -> str:
    """Return why the policy is beyond the labelled segments, or ""."""
    ratio = signs.deviation / max(signs.deviation_labelled, 1e-9)
    if ratio > limits.deviation:
        return f"the members disagree {ratio:.1f} times as much as on labelled segments"
    if 0 < limits.kl < signs.kl:
        return (
            f"the policy is {signs.kl:.3g} nats from the answers' policies ({limits.kl:g} allowed)"
        )
    return ""


def _wins(recent: Sequence[Signs], limits: Limits) -> float:
    """Return by how many standard errors the newest version beats the best one in the answers."""
    count, won = _pooled([(one.compared, one.win_answers) for one in recent])
    return _errors(won - 0.5, 0.5, count) if count >= limits.answers else 0.0


def _pooled(parts: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """Return the count of all, and the mean of shares by their counts."""
    count = sum(n for n, _ in parts)
    return count, sum(n * share for n, share in parts if n) / count if count else math.nan


def _errors(gap: float, expected: float, count: int) -> float:
    """Return a gap between two shares in standard errors of ``count`` answers."""
    return gap / math.sqrt(max(expected * (1 - expected), 0.01) / count)
