"""Evaluation of a language model: its greedy answers to held-out prompts, one token of each answer
a tick.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.actors.engine.engine import Engine, Sampled
from equipoise.actors.generator import Grader, Prompts
from equipoise.types import Array, Tick

WAIT_S = 0.01  # for a reward, before a caller has its turn again
MOST_ANSWERS = 8  # that are kept as texts
LONGEST_ANSWER = 2_000  # characters of a prompt or completion that is kept


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a held-out prompt, for a person to read."""

    prompt: str
    completion: str
    reward: float | None  # None: the reward failed, or there was none


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
        self.answers: list[Answer] = []
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
                self.answers.append(
                    Answer(
                        prompt=self._decode(self._prompts.token(number))[-LONGEST_ANSWER:],
                        completion=self._shown[number],
                        reward=self.rewards.get(number),
                    )
                )
        for grader in self._graders[1:]:
            others = grader.poll().values()
            self._learned += [None if isinstance(one, str) else one[0] for one in others]
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
                self._shown[sample.group] = self._text(sample)[:LONGEST_ANSWER]
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


def spread(count: int, of: int) -> Array:
    """``count`` of the numbers 0 to ``of`` - 1, evenly spread; all if there are not as many."""
    return np.unique(np.linspace(0, of - 1, min(count, of)).round().astype(np.int64))
