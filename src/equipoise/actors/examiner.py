"""Evaluation of a language model: its greedy answers to held-out prompts, one token of each answer
a tick.
"""

from __future__ import annotations

import select
from collections.abc import Sequence

import numpy as np

from equipoise.actors.engine.engine import Engine
from equipoise.actors.generator import Judge, Prompts
from equipoise.types import Array, Tick

WAIT_S = 0.01  # for a reward, before a caller has its turn again


class Examiner:
    """Has each of some prompts answered once. It has those members of ``Evaluator`` that a run
    reads.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        numbers: Sequence[int],
        judge: Judge,
        *,
        policy: str,
        limit: int,
        full: float = 1.0,
    ) -> None:
        """``numbers``: the prompts' numbers; ``limit``: the most tokens of an answer; ``full``: the
        reward of a right answer.
        """
        self._engine, self._judge, self._policy, self._full = engine, judge, policy, full
        self._all, self._ended, self._steps = len(numbers), 0, 0
        # by the prompt's number; none if the reward failed, or was None
        self.rewards: dict[int, float] = {}
        self.lengths: list[int] = []
        for number in numbers:
            engine.submit(number, prompts.token(number), 1, limit=limit)

    @property
    def returns(self) -> dict[str, list[float]]:
        return {self._policy: list(self.rewards.values())}

    @property
    def info(self) -> dict[str, float | None]:
        """pass@1: the share of answers with the full reward; completions/mean_length in tokens."""
        rewards = np.array(list(self.rewards.values()))
        share = float(np.mean(rewards >= self._full)) if len(rewards) else None
        return {
            "pass@1": share,
            "completions/mean_length": float(np.mean(self.lengths)) if self.lengths else None,
        }

    @property
    def done(self) -> bool:
        return self._ended == self._all

    @property
    def progress(self) -> tuple[int, int, int]:
        """The number of judged answers, of all of them, and the tokens that were drawn for the
        longest.
        """
        return self._ended, self._all, self._steps

    def tick(self) -> Tick:
        judged = self._judge.poll()
        for number, rewards in judged.items():
            self._ended += 1
            if not isinstance(rewards, str) and rewards[0] is not None:
                self.rewards[number] = float(rewards[0])
        if not (self._engine.live or self._engine.waiting):
            if not judged:
                # its caller would ask again at once
                select.select(self._judge.fds(), [], [], WAIT_S)
            return Tick.WORKED if judged else Tick.STARVED
        for sample in self._engine.step():
            self.lengths.append(len(sample.token))
            self._judge.submit(sample.group, sample.group, [sample])
        self._steps += 1
        return Tick.WORKED

    def close(self) -> None:
        self._judge.close()


def spread(count: int, of: int) -> Array:
    """``count`` of the numbers 0 to ``of`` - 1, evenly spread; all if there are not as many."""
    return np.unique(np.linspace(0, of - 1, min(count, of)).round().astype(np.int64))
