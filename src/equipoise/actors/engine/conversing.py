"""Conversations on an engine: it draws the policy's turns, and a partner answers them.

A conversation is one sample. The engine draws it turn by turn: after each turn its row is free for
others, until the partner has answered. The policy's own tokens are never made again from their
text.

With ``history`` (``source.history=render``) the chat template writes the whole conversation again
before each turn. If that changes what stood there, a new *part* begins, as the policy read it: the
prompt, the rest as given tokens, and the turn. All parts are of one sample, one behind the other.

Partners with few ``seats`` are given to conversations in the order of their first turns; a
conversation that waits for a partner has no row of the engine.

At ``max_lag`` 0 (``lockstep``) answers that take time are taken only when no sample is drawn, all
of them together, so that the samples that are drawn side by side do not depend on timing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from equipoise.actors.engine.engine import Continuation, Continuing, Conversation, Sampled
from equipoise.hints import raised, shortened
from equipoise.language.turns import partner
from equipoise.language.turns.partner import Dialogue, Partner, WrongAnswer
from equipoise.language.turns.steps import Call, Failure, PartnersFailed, Steps
from equipoise.types.packed import Example, Prompt, Stop, Tokenizer, begun

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
    seats: int = 0  # most conversations with a partner; 0: no limit
    # the tokens of a group's samples before their first turn, if the history is rendered; None: a
    # conversation is appended to
    history: Callable[[int], Sequence[int]] | None = None
    # keeps a conversation whose partner failed: its example, the turns and the error
    keep: Callable[[Example, Sequence[str], str], object] | None = None


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
    seated: bool = False
    cut: Stop | None = None  # it has ended, and waits for its partner's last reward
    part: list[int] = field(default_factory=list)
    parts: int = 1
    begins: int = 0  # the present part's first token in ``token``
    given_back: int = 0  # of all turns, as in ``Sampled``
    kv_load: float = math.nan  # as the last turn ended

    def give(self, tokens: Sequence[int], *, part: bool = False) -> None:
        """Add tokens that the policy reads; ``part``: they begin a new part."""
        if part:
            self.begins = len(self.token)
            self.parts += 1
        self._add(tokens, [0.0] * len(tokens), [-1] * len(tokens))
        self.chosen += [False] * len(tokens)

    def draw(self, turn: Sampled) -> None:
        """Add the tokens of a drawn turn."""
        self._add(turn.token.tolist(), turn.logp.tolist(), turn.version.tolist())
        self.chosen += [True] * len(turn.token)
        self.turns += 1
        self.stop = turn.stop
        self.given_back += turn.given_back
        self.kv_load = turn.kv_load

    def _add(self, token: Sequence[int], logp: list[float], version: list[int]) -> None:
        self.part += [self.parts - 1] * len(token)
        self.token += token
        self.logp += logp
        self.version += version

    def text(self) -> list[int]:
        """Return the tokens of the present part, the prompt's before them."""
        return [*self.prompt, *self.token[self.begins :]]


class Conversing:
    """An ``Engine`` of conversations on an engine of turns."""

    def __init__(self, engine: Continuing, settings: ConversationSettings) -> None:
        self._engine, self._settings, self._bounds = engine, settings, settings.bounds
        self._steps = None if settings.quick else Steps(settings.bounds.step_s)
        self._open: dict[tuple[int, int], _Open] = {}
        self._away: dict[int, _Open] = {}  # by the number of the step
        self._results: dict[int, object] = {}  # answers that lockstep holds back
        self._asked = self._failed = self._seated = 0
        self._queue: deque[tuple[_Open, str]] = deque()  # first turns that wait for a partner

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def live(self) -> int:
        return self._engine.live + self.away

    @property
    def waiting(self) -> int:
        return self._engine.waiting

    @property
    def away(self) -> int:
        return len(self._away) + len(self._queue)

    def fds(self) -> tuple[int, ...]:
        """Descriptors that become readable with an answer."""
        return () if self._steps is None else self._steps.fds()

    def submit(self, group: int, prompt: Sequence[int], samples: int, *, limit: int) -> None:
        example, history = self._settings.row(group), self._settings.history
        given = [] if history is None else [*history(group)]
        most = min(limit - len(given), self._bounds.turn_tokens)
        self._engine.submit(group, [*prompt, *given], samples, limit=most)
        for index in range(samples):
            dialogue = Dialogue(self._settings.make, example.columns, example.prompt)
            one = _Open(group, index, prompt, example, dialogue, limit)
            one.give(given)
            self._open[group, index] = one

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
        one, tokens = self._open[turn.group, turn.index], turn.token.tolist()
        one.draw(turn)
        text = self._settings.tokenizer.decode(tokens)
        one.retokenized += not self._same(text, tokens)
        one.messages.append({"role": "assistant", "content": text})
        if self._steps is None:
            try:
                answer: object = one.dialogue.step(text, lambda value: value)
            except Exception as error:  # caught like the errors of a user's partner
                answer = Failure(raised(error))
            return self._answered(one, answer)
        if one.seated or not self._settings.seats or self._seated < self._settings.seats:
            self._ask(one, text)
        else:
            self._queue.append((one, text))
        return []

    def _ask(self, one: _Open, text: str) -> None:
        """Have the partner answer a turn in a thread."""
        self._seated += not one.seated
        one.seated = True
        self._send(one, lambda settle: one.dialogue.step(text, settle))

    def _send(self, one: _Open, call: Call) -> None:
        assert self._steps is not None
        self._asked += 1
        self._away[self._asked] = one
        self._steps.submit(self._asked, call)

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
            self._keep(one, result.error)
            return [self._ended(one, Stop.FAILED, result.error)]
        try:
            answer = partner.answer(result, chat=chat, most=bounds.answer_bytes)
            one.reward += answer.reward
            if not abs(one.reward) <= partner.LARGEST:
                raise WrongAnswer(f"step: the rewards must have a finite sum, got {one.reward:.3g}")
            if answer.messages is None:
                cut = one.stop == Stop.LENGTH and len(one.token) >= one.limit
                return [self._ended(one, one.cut or (Stop.LENGTH if cut else Stop.EOS))]
            if one.turns >= bounds.turns:
                return self._cut(one)
            given, part = self._following(one, answer.messages)
        except (WrongAnswer, ValueError) as error:
            if isinstance(error, WrongAnswer):
                self._keep(one, str(error))
            return [self._ended(one, Stop.FAILED, str(error))]
        left = one.limit - len(one.token) - len(given)
        if left < 1:
            return self._cut(one)
        one.give(given, part=part)
        one.messages += (
            [{"role": "user", "content": answer.messages}]
            if isinstance(answer.messages, str)
            else answer.messages
        )
        text, limit = one.text(), min(left, bounds.turn_tokens)
        # draws are counted over all parts, so that no two tokens share a random number
        place = len(text) - len(one.token)
        self._engine.go_on(Continuation(one.group, one.index, text, place, limit))
        return []

    def _following(self, one: _Open, answer: Prompt) -> tuple[list[int], bool]:
        """Return the tokens to give before the next turn, and whether they begin a new part."""
        template = {**self._settings.template, **one.example.template}
        tokenizer, prompt = self._settings.tokenizer, one.example.prompt
        if self._settings.history is None or isinstance(prompt, str) or isinstance(answer, str):
            ended = one.stop == Stop.EOS
            return tokenizer.between(prompt, answer, ended=ended, template=template), False
        asked, beginning = begun(prompt)
        first, *others = one.messages
        first = {**first, "content": f"{beginning}{first['content']}"}
        text = tokenizer.prompt([*asked, first, *others, *answer], template)
        so_far, kept = one.text(), len(one.prompt)
        if text[: len(so_far)] == so_far:
            return text[len(so_far) :], False
        if text[:kept] != [*one.prompt]:
            raise ValueError(
                "the chat template: must write the prompt again as it was, got another one after "
                f"{one.turns} turns"
            )
        return text[kept:], True

    def _keep(self, one: _Open, error: str) -> None:
        """Keep a conversation whose partner failed, for ``equipoise reproduce``."""
        if self._settings.keep is not None and one.cut is None:
            said = [str(turn["content"]) for turn in one.messages if turn["role"] == "assistant"]
            self._settings.keep(one.example, said, error)

    def _cut(self, one: _Open) -> list[Sampled]:
        """End a conversation at a limit, after its partner has given the reward still due."""
        one.cut = Stop.LENGTH
        if self._steps is None or not one.dialogue.ends:
            return [self._ended(one, one.cut)]
        self._send(one, one.dialogue.end)
        return []

    def _ended(self, one: _Open, stop: Stop, failure: str = "") -> Sampled:
        del self._open[one.group, one.index]
        if self._steps is not None and one.seated:
            if one.cut is None and one.dialogue.ends:
                self._steps.release(one.dialogue.end)
            self._seated -= 1
            if self._queue:
                self._ask(*self._queue.popleft())
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
            part=None if self._settings.history is None else np.array(one.part, np.int64),
        )
        return Sampled(
            one.group,
            one.index,
            np.array(one.token, np.int64),
            np.array(one.logp, np.float32),
            np.array(one.version, np.int64),
            stop,
            conversation,
            one.given_back,
            one.kv_load,
        )
