"""The queries of a round: pairs of a run's newest segments, put into a store."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from equipoise import tree
from equipoise.feedback import Ask, Choice, Purpose, Query, Store
from equipoise.feedback.items import digest, segment_bytes
from equipoise.hints import raised
from equipoise.rewards.preferences.candidates import Rows
from equipoise.rewards.preferences.clips import Clips
from equipoise.rewards.preferences.model import RewardModel
from equipoise.rewards.preferences.queries import chosen_pairs, disagreement, random_pairs
from equipoise.rewards.preferences.segments import Segments, held_out
from equipoise.rewards.preferences.teacher import Teacher
from equipoise.rewards.term import Refused
from equipoise.schema import described
from equipoise.seeds import derive_seed
from equipoise.types import Tree

URGENT = 0.5  # share of queries about the newest segments after the verdict "ask" or worse
SPREAD = 0.8  # share of the schedule in which the other queries are asked
FALLING = 0.5  # (progress / SPREAD) ** FALLING of them are asked by then: more come early
HASTE = 0.1  # share of the schedule by which such queries may come early
LAST = 2  # looks whose queries are kept for the last round
SPLIT = 0  # seed of the split by episode, the same for all runs that share a store
HELD_OUT = 0.15  # share of the episodes that no member learns from
LARGEST = 1e300  # of a score: sums of larger ones are no numbers
Score = Callable[[Tree, Tree], float]  # a segment's observations and actions [T, ...] to a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How many queries of which kind a round has."""

    count: int
    choose: Literal["disagreement", "random"]
    newest: int  # queries among them that compare segments of the newest round with the best ones
    best: int  # the round of the best segments
    teacher: Teacher | None  # None: people answer
    score: Score | None = None  # of segments, for the teacher; None: by the env's rewards


def asks(
    store: Store,
    clips: Clips,
    rows: Rows,
    model: RewardModel | None,
    how: Asking,
    *,
    seed: int,
) -> list[Ask]:
    """Choose pairs that were not asked before, and add their segments to the store.

    ``model``: None before the first fit, when pairs are chosen at random. In a query of purpose
    "newest" the newest segment is the left one.
    """
    if how.count <= 0:
        return []
    segments, side = of_rows(rows), held_out(rows.episode, share=HELD_OUT, seed=SPLIT)
    arrays = [
        clips.arrays(
            tree.index(rows.obs, i), tree.index(rows.action, i), int(rows.episode[i]), int(size)
        )
        for i, size in enumerate(rows.size)
    ]
    hashes = [digest(segment_bytes(one)) for one in arrays]
    asked = _asked(store.queries(), hashes)
    purposes, parts = list[Purpose](), list[np.ndarray]()
    new = rows.round == rows.round.max()
    best = (rows.round == how.best) & ~new
    if model is not None and how.newest > 0:
        right = best if best.any() else ~new
        pairs = random_pairs(
            how.newest, side, seed=derive_seed(seed, "newest"), asked=asked, left=new, right=right
        )
        pairs[~new[pairs[:, 0]]] = pairs[~new[pairs[:, 0]], ::-1]
        parts, purposes = [pairs], ["newest"] * len(pairs)
    asked, rest = np.concatenate([asked, *parts]), how.count - len(purposes)
    if model is None or how.choose == "random":
        parts.append(random_pairs(rest, side, seed=seed, asked=asked))
        purposes += ["random"] * len(parts[-1])
    else:
        returns = model.all_returns(segments.to(model.temperature.device)).cpu()

        def score(pairs: np.ndarray) -> Tensor:
            left, right = torch.from_numpy(pairs).unbind(1)
            if len(pairs) == 0:
                return torch.zeros(0)
            return disagreement(model.chance(returns[:, left] - returns[:, right]))

        parts.append(chosen_pairs(rest, side, score, seed=seed, asked=asked))
        purposes += ["disagreement"] * len(parts[-1])
    pairs = np.concatenate(parts)
    choices = _answers(how, rows, pairs, derive_seed(seed, "teacher"))
    for i in np.unique(pairs):
        store.add_segment(arrays[i])
    return [
        Ask(left=hashes[left], right=hashes[right], purpose=purpose, choice=choice)
        for (left, right), purpose, choice in zip(pairs, purposes, choices, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The queries of a whole run. A share of them is kept for the guard, which compares the newest
    segments with the best ones until the end of the schedule. The others are asked at a falling
    rate over the first ``SPREAD`` of it (Christiano et al. 2017, section 2.2.4), so that the
    answers are also about what the policy learned to do.
    """

    labels: int  # queries in all
    round: int  # queries of a round
    newest: float  # share for the guard
    spread: bool  # spread the queries over the schedule; else each round asks all it can
    at_end: bool = False  # keep queries of that share for the last round, to check its version

    def counts(
        self, newest: int, others: int, *, progress: float, urgent: bool, last: bool = False
    ) -> tuple[int, int]:
        """Return the next round's queries, and how many of them are about the newest segments.

        ``newest`` and ``others``: asked so far; ``progress``: share of the schedule that is done;
        ``urgent``: ask more about the newest segments, also by ``HASTE`` of the schedule ahead;
        ``last``: it is the last round of the schedule.
        """
        usual, most = self._of_round(self.newest), self._of_round(max(self.newest, URGENT))
        wanted = most if urgent else usual
        kept = round(self.labels * self.newest)
        at_end = min(LAST * usual, self.round, kept) if self.at_end and self.spread else 0
        left = max(self.labels - newest - others - at_end * (not last), 0)
        if not self.spread:
            count = min(self.round, left)
            return count, min(wanted, count)
        usual = min(usual, kept)  # a round may have more queries than the run
        due = math.ceil(kept * min(progress + HASTE * urgent, 1.0))
        due = max(min(due, kept - at_end) - newest, at_end * last)
        free = max(self.labels - kept - others, 0)  # not kept for the guard
        wanted = min(max(wanted, at_end * last), due + free * urgent)
        if wanted < usual:  # too few for a verdict: wait until more are due
            wanted = 0
        asked = min(progress / SPREAD, 1.0) ** FALLING  # share of the others by now
        rest = math.ceil((self.labels - kept) * asked) - others
        if rest < min(self.round - usual, free):  # wait for a whole round
            rest = 0
        rest = min(rest, self.round - wanted, free - max(wanted - due, 0))
        count = min(wanted + rest, left)
        return count, min(wanted, count)

    def _of_round(self, share: float) -> int:
        return max(round(self.round * share), 1) if share else 0


def is_last(progress: float, rounds: int) -> bool:
    """Return whether this round is the last one of the schedule.

    ``progress``: share of the schedule that is done; ``rounds``: rounds before this one.
    """
    return progress + progress / (rounds + 1) > 1 + 1e-6


def of_rows(rows: Rows) -> Segments:
    """Return candidates as segments, without a copy."""
    mask = torch.arange(rows.reward.shape[1]) < torch.from_numpy(rows.size)[:, None]
    return Segments(
        tree.torch_views(rows.obs),
        tree.torch_views(rows.action),
        mask,
        torch.from_numpy(rows.episode),
    )


def unanswered(store: Store, upto: int, step: int) -> set[Purpose]:
    """Return the purposes of queries about clips, asked until a step of the run, that have no
    answer in rows up to ``upto``.
    """
    answered = {one.query for one in store.answers(upto=upto)}
    return {
        one.purpose
        for one in store.queries()
        if one.kind == "clip"
        and one.step is not None
        and one.step <= step
        and one.id not in answered
    }


def _asked(queries: list[Query], hashes: list[str]) -> np.ndarray:
    """Return the pairs of candidates [K, 2] that the store has a query about."""
    place = {one: i for i, one in enumerate(hashes)}
    found = [
        (place[one.left], place[one.right])
        for one in queries
        if one.left in place and one.right in place
    ]
    return np.array(found, np.int64).reshape(-1, 2)


def _answers(how: Asking, rows: Rows, pairs: np.ndarray, seed: int) -> list[Choice | None]:
    """Return the teacher's answers; None each if people answer.

    The unit of a return is its deviation over all candidates.
    """
    if (teacher := how.teacher) is None:
        return [None] * len(pairs)
    if how.score is None:
        returns = teacher.returns(rows.reward, np.arange(rows.reward.shape[1]) < rows.size[:, None])
    else:
        returns = np.array([_scored(how.score, rows, i) for i in range(len(rows.size))])
    left, right = (returns / max(float(returns.std()), 1e-9))[pairs].T
    share, given = teacher.answer(left, right, seed=seed)
    names: dict[float, Choice] = {1.0: "left", 0.0: "right", 0.5: "equal"}
    return [
        names[float(one)] if there else "cannot_tell"
        for one, there in zip(share, given, strict=True)
    ]


def _scored(score: Score, rows: Rows, at: int) -> float:
    """Return the score of a segment, by a user's function."""
    place = (at, slice(rows.size[at]))
    # copies, since the function may change what it gets
    obs, action = (tree.map(np.copy, tree.index(one, place)) for one in (rows.obs, rows.action))
    try:
        found: object = score(obs, action)
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise Refused(f"reward.preferences.score failed: {raised(error)}") from error
    if not isinstance(found, int | float | np.integer | np.floating):
        got = f"a {type(found).__name__}"
        raise Refused(f"reward.preferences.score: must return a finite number, got {got}")
    value: int | float = int(found) if isinstance(found, int | np.integer) else float(found)
    if not -LARGEST <= value <= LARGEST:
        got = described(value)
        raise Refused(f"reward.preferences.score: must return a finite number, got {got}")
    return float(value)
