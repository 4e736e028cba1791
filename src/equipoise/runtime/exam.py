"""Deciding whether a run has reached its goal: when to evaluate, and what counts as solved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from equipoise import tree
from equipoise.actors.evaluator import Evaluator, load_params
from equipoise.envs import make
from equipoise.runtime import build
from equipoise.runtime.build import Blueprint
from equipoise.runtime.report import Evaluation
from equipoise.types import unroll_rows
from equipoise.weights.store import Weights

STREAMS = 100  # envs of an evaluation, at most
CONFIRM_EPISODES = 100
NEAR = 0.2  # of the goal: training returns this close make an evaluation worth its time
SPACING = 0.1  # of the run's steps, at most, between two evaluations


def evaluator(blue: Blueprint, net: Any, *, episodes: int, seed: int, deterministic: bool = True) -> Evaluator:
    """Fresh envs that share no seed with training nor with another ``seed``."""
    streams = min(episodes, STREAMS)
    env = make(blue.program.env, streams=np.arange(streams), seed=seed, failures=blue.failures())
    return Evaluator(
        blue.policy.algorithm, net, env, streams=streams, episodes=episodes, noise_columns=blue.noise_columns, seed=seed,
        deterministic=deterministic,
    )  # fmt: skip


class Exam:
    """Evaluates snapshots of the weights while training goes on.

    Solved means: the mean of ``evaluate_episodes`` episodes of the deterministic policy reaches ``stop_at``, and so does the
    mean of 100 fresh ones of the same weights.
    """

    def __init__(self, blue: Blueprint, weights: Weights) -> None:
        self._blue, self._weights = blue, weights.handle()
        self._net: Any = build.network(blue.program, blue.spec)
        self._current: Evaluator | None = None
        self._confirming = False
        self._version = self._taken = self._examined = 0
        self._last_steps = 0
        self.solved = False
        self.last: Evaluation | None = None  # of this process

    @property
    def running(self) -> bool:
        return self._current is not None

    def consider(self, env_steps: int, return_mean: float | None) -> None:
        """Begin an evaluation of the newest weights if the training returns are near the goal, or it is time."""
        if not self.running and not self.solved and self._due(env_steps - self._last_steps, return_mean):
            self._last_steps = env_steps
            self.snapshot()
            if self._version > self._examined:  # the same weights are not asked until they pass
                self._examined = self._version
                self._begin(self._blue.program.evaluate_episodes)

    def _due(self, since: int, return_mean: float | None) -> bool:
        """``since``: steps since the last evaluation."""
        program = self._blue.program
        if program.evaluate_every is not None and since >= program.evaluate_every:
            return True
        if (goal := program.stop_at) is None or return_mean is None:
            return False
        return return_mean >= goal - NEAR * abs(goal) or since >= SPACING * program.steps

    def snapshot(self) -> None:
        """Take the newest weights."""
        fetched = self._weights.fetch()
        assert fetched is not None, "version 0 is published before anything runs"
        self._version = fetched[0]
        load_params(self._net, fetched[1])

    def params(self) -> Mapping[str, torch.Tensor]:
        """The weights of the last snapshot."""
        return tree.named_tensors(self._net)

    @property
    def version(self) -> int:
        return self._version

    def _begin(self, episodes: int) -> None:
        self._taken += 1
        seed = build.derive_seed(self._blue.program.seed, f"evaluation {self._taken}")
        self._current = evaluator(self._blue, self._net, episodes=episodes, seed=seed)

    def advance(self, until: float) -> Evaluation | None:
        """Play on until this moment of ``time.monotonic`` -> the evaluation, if one ended."""
        current = self._current
        while current is not None and not current.done and time.monotonic() < until:
            current.tick()
        if current is None or not current.done:
            return None
        current.close()
        self._current = None
        result = self.last = self._result(current)
        goal = self._blue.program.stop_at
        passed = goal is not None and result.mean >= goal
        self.solved = passed and self._confirming
        self._confirming = passed and not self.solved
        if self._confirming:
            self._begin(CONFIRM_EPISODES)
        return result

    def state(self) -> dict[str, int]:
        """An evaluation under way is not part of it: a resumed run begins it again."""
        return {"taken": self._taken, "examined": self._examined, "last_steps": self._last_steps}

    def load(self, state: Mapping[str, int]) -> None:
        self._taken, self._examined, self._last_steps = state["taken"], state["examined"], state["last_steps"]

    def close(self) -> None:
        """Give up what is under way."""
        if self._current is not None:
            self._current.close()
            self._current = None

    def begin_final(self, episodes: int) -> None:
        """Begin the last evaluation, of the last snapshot."""
        self.close()
        self._confirming = False
        self._begin(episodes)

    def _result(self, current: Evaluator) -> Evaluation:
        returns = np.array(current.returns or [np.nan])  # every episode of it was aborted
        return Evaluation(
            mean=float(returns.mean()), std=float(returns.std()), episodes=len(current.returns),
            env_steps=self._version * unroll_rows(self._blue.policy), version=self._version,
        )  # fmt: skip
