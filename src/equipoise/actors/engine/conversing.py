"""Conversations on an engine: it draws the policy's turns, and a partner answers them.

A conversation is one sample. The engine draws it turn by turn: after each turn its row is free for
others, until the partner has answered. The policy's own tokens are never made again from their
text.

At ``max_lag`` 0 (``lockstep``) answers that take time are taken only when no sample is drawn, all
of them together, so that the samples that are drawn side by side do not depend on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from equipoise.actors.engine.engine import Continuation, Continuing, Conversation, Sampled
from equipoise.hints import raised, shortened
from equipoise.language.turns import partner
from equipoise.language.turns.partner import Dialogue, Partner, WrongAnswer
from equipoise.language.turns.steps import Failure, PartnersFailed, Steps
from equipoise.types.packed import Example, Stop, Tokenizer

FAILED_IN_A_ROW = 64  # conversations that end the run
LONGEST = 300  # most characters of a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of conversations."""

    turns: int
    turn_tokens: int  # most drawn tokens of a turn
    answer_bytes: int
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSettings:
    """The partner of a task's conversations, their tokens and their limits."""

    make: Callable[[], Partner]
    tokenizer: Tokenizer
    template: Mapping[str, object]  # arguments of the chat template
    bounds: Bounds
    row: Callable[[int], Example]  # of a group
    quick: bool = False  # a built-in partner, which answers in microseconds, in this thread
    lockstep: bool = False


@dataclass(slots=True)
class _Open:
    """A conversation under way."""

    group: int
    index: int
    prompt: Sequence[int]
    example: Example
    dialogue: Dialogue
    limit: int  # tokens
    token: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    chosen: list[bool] = field(default_factory=list)
    messages: list[Mapping[str, object]] = field(default_factory=list)
    stop: Stop = Stop.OPEN  # of its last turn
    turns: int = 0
    reward: float = 0.0
    retokenized: int = 0


class Conversing:
    """An ``Engine`` of conversations on an engine of turns."""

    def __init__(self, engine: Continuing, settings: ConversationSettings) -> None:
        self._engine, self._settings, self._bounds = engine, settings, settings.bounds
        self._steps = None if settings.quick else Steps(settings.bounds.step_s)
        self._open: dict[tuple[int, int], _Open] = {}
        self._away: dict[int, _Open] = {}  # by the number of the step
        self._results: dict[int, object] = {}  # answers that lockstep holds back
        self._asked = self._failed = 0

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def live(self) -> int:
        return self._engine.live + len(self._away)

    @property
    def waiting(self) -> int:
        return self._engine.waiting

    @property
    def away(self) -> int:
        return len(self._away)

    def fds(self) -> tuple[int, ...]:
        """Descriptors that become readable with an answer."""
        return () if self._steps is None else self._steps.fds()

    def submit(self, group: int, prompt: Sequence[int], samples: int, *, limit: int) -> None:
        example = self._settings.row(group)
        self._engine.submit(group, prompt, samples, limit=min(limit, self._bounds.turn_tokens))
        for index in range(samples):
            dialogue = Dialogue(self._settings.make, example.columns, example.prompt)
            self._open[group, index] = _Open(group, index, prompt, example, dialogue, limit)

    def step(self) -> list[Sampled]:
        """Take the answers, and draw one token of every sample that does not wait for one."""
        done = []
        for one, result in self._answers():
            done += self._answered(one, result)
        if self._engine.live or self._engine.waiting:
            for turn in self._engine.step():
                done += self._turn_drawn(turn)
        return done

    def take(
        self, version: int, params: Mapping[str, Tensor], whole: Callable[[], bool]
    ) -> Iterator[None]:
        return self._engine.take(version, params, whole)

    def close(self) -> None:
        self._engine.close()
        if self._steps is not None:
            self._steps.close()

    # ------------------------------------------------------------------------------- the two sides

    def _turn_drawn(self, turn: Sampled) -> list[Sampled]:
        """Pass a drawn turn to the partner; return the conversation if it has ended."""
        one = self._open[turn.group, turn.index]
        tokens = turn.token.tolist()
        one.token += tokens
        one.logp += turn.logp.tolist()
        one.version += turn.version.tolist()
        one.chosen += [True] * len(tokens)
        one.turns += 1
        one.stop = turn.stop
        text = self._settings.tokenizer.decode(tokens)
        one.retokenized += not self._same(text, tokens)
        one.messages.append({"role": "assistant", "content": text})
        if self._steps is None:
            try:
                answer: object = one.dialogue.step(text, lambda value: value)
            except Exception as error:  # caught like the errors of a user's partner
                answer = Failure(raised(error))
            return self._answered(one, answer)
        self._asked += 1
        self._away[self._asked] = one
        self._steps.submit(self._asked, lambda settle: one.dialogue.step(text, settle))
        return []

    def _same(self, text: str, tokens: list[int]) -> bool:
        """Return whether the text of a turn is encoded to its own tokens."""
        try:
            again = self._settings.tokenizer.encode(text)
        except ValueError:  # the text has a character without a token
            return False
        return again == tokens or [*again, tokens[-1]] == tokens

    def _answers(self) -> list[tuple[_Open, object]]:
        if self._steps is None:
            return []
        self._results |= dict(self._steps.poll())
        drawing = self._engine.live or self._engine.waiting
        if self._settings.lockstep and (drawing or len(self._results) < len(self._away)):
            return []
        results, self._results = self._results, {}
        found = [(self._away.pop(key), result) for key, result in results.items()]
        return sorted(found, key=lambda pair: (pair[0].group, pair[0].index))

    def _answered(self, one: _Open, result: object) -> list[Sampled]:
        """Continue after the partner's answer; return the conversation if it has ended."""
        bounds, chat = self._bounds, not isinstance(one.example.prompt, str)
        if isinstance(result, Failure):
            return [self._ended(one, Stop.FAILED, result.error)]
        try:
            answer = partner.answer(result, chat=chat, most=bounds.answer_bytes)
            one.reward += answer.reward
            if not abs(one.reward) <= partner.LARGEST:
                raise WrongAnswer(f"step: the rewards must have a finite sum, got {one.reward:.3g}")
            if answer.messages is None:
                cut = one.stop == Stop.LENGTH and len(one.token) >= one.limit
                return [self._ended(one, Stop.LENGTH if cut else Stop.EOS)]
            given = self._settings.tokenizer.between(
                one.example.prompt,
                answer.messages,
                ended=one.stop == Stop.EOS,
                template={**self._settings.template, **one.example.template},
            )
        except (WrongAnswer, ValueError) as error:
            return [self._ended(one, Stop.FAILED, str(error))]
        left = one.limit - len(one.token) - len(given)
        if one.turns >= bounds.turns or left < 1:
            return [self._ended(one, Stop.LENGTH)]
        one.token += given
        one.logp += [0.0] * len(given)
        one.version += [-1] * len(given)
        one.chosen += [False] * len(given)
        one.messages += (
            [{"role": "user", "content": answer.messages}]
            if isinstance(answer.messages, str)
            else answer.messages
        )
        text, limit = [*one.prompt, *one.token], min(left, bounds.turn_tokens)
        self._engine.go_on(Continuation(one.group, one.index, text, len(one.prompt), limit))
        return []

    def _ended(self, one: _Open, stop: Stop, failure: str = "") -> Sampled:
        del self._open[one.group, one.index]
        self._failed = self._failed + 1 if failure else 0
        failure = shortened(" ".join(failure.split()), LONGEST)
        if self._failed >= FAILED_IN_A_ROW:
            raise PartnersFailed(
                f"source.task: its partner failed in {self._failed} conversations without a "
                f"success between them, the last time with: {failure}"
            )
        conversation = Conversation(
            chosen=np.array(one.chosen, bool),
            reward=None if failure else one.reward,
            messages=one.messages,
            turns=one.turns,
            retokenized=one.retokenized,
            failure=failure,
        )
        return Sampled(
            one.group,
            one.index,
            np.array(one.token, np.int64),
            np.array(one.logp, np.float32),
            np.array(one.version, np.int64),
            stop,
            conversation,
        )
