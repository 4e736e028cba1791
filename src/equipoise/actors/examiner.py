"""Evaluation of a language model: its greedy answers to held-out prompts, one token of each answer
a tick.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from equipoise.actors.engine.engine import Engine, Sampled
from equipoise.actors.generator import Grader, Prompts
from equipoise.types import Array, Tick

WAIT_S = 0.01  # for a reward, before a caller has its turn again
MOST_ANSWERS = 8  # that are kept as texts
LONGEST_ANSWER = 2_000  # characters of a prompt or completion that is kept
Terms = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a held-out prompt, for a person to read."""

    prompt: str
    completion: str
    reward: float | None  # the weighted sum; None: the reward failed, or there was none
    rewards: Terms = field(default_factory=dict)  # of each reward function, unweighted


class Examiner:
    """Has each of some prompts answered once. It has those members of ``Evaluator`` that a run
    reads.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        numbers: Sequence[int],
        graders: Sequence[Grader],
        *,
        policy: str,
        limit: int,
        full: float = 1.0,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """``numbers``: the prompts' numbers; ``graders``: of the returns, and of the reward that is
        learned from if that is another; ``limit``: the most tokens of an answer; ``full``: the
        reward of a right answer; ``decode``: tokens to text.
        """
        self._prompts, self._decode = prompts, decode
        self._shown = dict.fromkeys(list(numbers)[:MOST_ANSWERS], "")
        # by prompt: the terms of its reward, by all graders
        self._terms: dict[int, dict[str, float | None]] = {one: {} for one in self._shown}
        self._answered = list[int]()  # of these prompts, in the order in which they were graded
        self._engine, self._policy, self._full = engine, policy, full
        self._graders = graders
        self._all, self._ended, self._steps = len(numbers), 0, 0
        self._learned = list[float | None]()  # rewards by the second grader
        # by the prompt's number; none if the reward failed, or was None
        self.rewards: dict[int, float] = {}
        self.lengths: list[int] = []
        self.turns: list[int] = []  # of conversations
        self.failed = 0  # conversations whose partner failed
        for number in numbers:
            engine.submit(number, prompts.token(number), 1, limit=limit)

    @property
    def answers(self) -> list[Answer]:
        """Return some answers as texts, each with the terms of its reward."""
        return [
            Answer(
                prompt=_last(self._decode(self._prompts.token(number))),
                completion=self._shown[number],
                reward=self.rewards.get(number),
                rewards=self._terms[number],
            )
            for number in self._answered
        ]

    def _keep_terms(self, grader: Grader) -> None:
        for number, terms in grader.terms().items():
            if number in self._terms:
                self._terms[number] |= {name: values[0] for name, values in terms.items()}

    @property
    def returns(self) -> dict[str, list[float]]:
        return {self._policy: list(self.rewards.values())}

    @property
    def info(self) -> dict[str, float | None]:
        """Return pass@1, the share of answers with the full reward; completions/mean_length in
        tokens; and with two graders the means of ``gold``, the true reward, and ``proxy``, the
        learned one.
        """
        rewards = np.array(list(self.rewards.values()))
        share = float(np.mean(rewards >= self._full)) if len(rewards) else None
        found: dict[str, float | None] = {
            "pass@1": share,
            "completions/mean_length": float(np.mean(self.lengths)) if self.lengths else None,
        }
        if self.turns:
            found |= {
                "completions/turns": float(np.mean(self.turns)),
                "completions/failed_ratio": self.failed / len(self.turns),
            }
        learned = [one for one in self._learned if one is not None]
        if learned and len(rewards):
            found |= {"gold": float(rewards.mean()), "proxy": float(np.mean(learned))}
        return found

    @property
    def done(self) -> bool:
        return self._ended == self._all and self._second_graded == self._all

    @property
    def _second_graded(self) -> int:
        """The number of answers that the second grader has graded; all if there is none."""
        return len(self._learned) if len(self._graders) > 1 else self._all

    @property
    def progress(self) -> tuple[int, int, int]:
        """The number of graded answers, of all of them, and the tokens that were drawn for the
        longest.
        """
        return self._ended, self._all, self._steps

    def tick(self) -> Tick:
        graded = self._graders[0].poll()
        for number, rewards in graded.items():
            self._ended += 1
            if not isinstance(rewards, str) and rewards[0] is not None:
                self.rewards[number] = float(rewards[0])
            if number in self._shown:
                self._answered.append(number)
        self._keep_terms(self._graders[0])
        for grader in self._graders[1:]:
            others = grader.poll().values()
            self._learned += [None if isinstance(one, str) else one[0] for one in others]
            self._keep_terms(grader)
        samples = self._engine.step() if self._engine.live or self._engine.waiting else []
        if self._engine.live == self._engine.away and not (self._engine.waiting or samples):
            if not graded:
                # its caller would ask again at once
                select.select([fd for one in self._graders for fd in one.fds()], [], [], WAIT_S)
            return Tick.WORKED if graded else Tick.STARVED
        for sample in samples:
            self.lengths.append(sample.drawn)
            if sample.conversation is not None:
                self.turns.append(sample.conversation.turns)
                self.failed += sample.conversation.reward is None
            if sample.group in self._shown:
                self._shown[sample.group] = _first(self._text(sample))
            for grader in self._graders:
                grader.submit(sample.group, sample.group, [sample])
        self._steps += 1
        return Tick.WORKED

    def _text(self, sample: Sampled) -> str:
        if sample.conversation is None:
            return self._decode(sample.token.tolist())
        return "\n".join(f"{one['role']}: {one['content']}" for one in sample.conversation.messages)

    def close(self) -> None:
        for grader in self._graders:
            grader.close()


def _first(text: str) -> str:
    """Return the beginning of a long text, and how much is left out."""
    more = len(text) - LONGEST_ANSWER
    return text if more <= 0 else f"{text[:LONGEST_ANSWER]} ... ({more:,} more characters)"


def _last(text: str) -> str:
    """Return the end of a long text, and how much is left out."""
    more = len(text) - LONGEST_ANSWER
    return text if more <= 0 else f"({more:,} characters before) ... {text[-LONGEST_ANSWER:]}"


def spread(count: int, of: int) -> Array:
    """``count`` of the numbers 0 to ``of`` - 1, evenly spread; all if there are not as many."""
    return np.unique(np.linspace(0, of - 1, min(count, of)).round().astype(np.int64))
