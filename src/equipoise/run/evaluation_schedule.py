"""Deciding whether a run has reached its goal: when to evaluate, and what counts as solved."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from equipoise import tree
from equipoise.actors.evaluator import LONGEST, PATIENCE, Evaluator, load_params
from equipoise.actors.examiner import Examiner, spread
from equipoise.actors.playing import FixedPolicy
from equipoise.actors.recorder import Recorder
from equipoise.envs.failures.capsule import Failures
from equipoise.record.report import Evaluating, Evaluation
from equipoise.runtime import blueprint
from equipoise.runtime.blueprint import Blueprint
from equipoise.schema import Number, Schema
from equipoise.seeds import derive_seed
from equipoise.types import Program, TaskSource, WeightStore, learning
from equipoise.workers import texts

STREAMS = 100  # envs of an evaluation, at most
CONFIRM_EPISODES = 100
EVERY_PROMPT = 1 << 30  # more than any task holds out
NEAR = 0.2  # of the goal: training returns this close make an evaluation worth its time
ATTEMPTS = 1000  # to take the weights of all policies at one version
SPACING = 0.1  # of the run's steps, at most, between two evaluations


@dataclass(frozen=True, slots=True)
class Writer:
    """A policy that writes, with a network of its own."""

    net: Any


Exam = Evaluator | Examiner


def examiner(program: Program, nets: Mapping[str, Any], *, episodes: int) -> Examiner:
    """Held-out prompts of the program's task, answered greedily; those that are learned from where none is held out."""
    source: Any = program.source
    text = texts.read(source, program.schedule.seed)
    prompts = text.held_out if len(text.held_out) else text.train
    numbers = spread(episodes, len(prompts)).tolist()
    (name, policy), *_ = learning(program).items()
    engine = texts.engine(program, text, policy.algorithm, nets[name], greedy=True, rows=min(len(numbers), STREAMS))
    judge = texts.judge(program, text, prompts, None)
    return Examiner(engine, prompts, numbers, judge, policy=name, limit=text.spec.completion, full=texts.full(program))


def fixed_policies(blue: Blueprint) -> dict[str, Any]:
    """The policies of a run with networks of their own, whose weights ``EvaluationSchedule`` and others copy into them."""
    if isinstance(blue.program.source, TaskSource):
        return {name: Writer(blue.network(name)) for name in blue.roles}
    return {
        name: FixedPolicy(
            algorithm=role.algorithm, net=blue.network(name), noise=role.noise,
            precision=blue.program.placement.precision,
        )
        for name, role in blue.roles.items()
    }  # fmt: skip


def evaluator(
    program: Program, policies: Mapping[str, FixedPolicy], *, episodes: int, seed: int, failures: Failures | None = None,
    deterministic: bool = True, step: int = 0, recorder: Recorder | None = None,
) -> Evaluator:  # fmt: skip
    """Fresh envs that share no seed with training nor with another ``seed``; all policies play together.

    ``step`` of training: how much is explored where the policies are not deterministic. ``failures``: what an env's failure
    costs; None: as the program says, and no capsule is written.
    """
    envs = 1 if program.outside else min(episodes, STREAMS)  # one world more than training has
    costs = Failures(on_nonfinite=program.source.on_nonfinite) if failures is None else failures
    metrics = program.source.metrics
    env = blueprint.making(program)(streams=np.arange(envs), seed=seed, failures=costs, metrics=metrics)
    return Evaluator(
        policies, env, envs=envs, episodes=episodes, seed=seed, deterministic=deterministic, step=step, recorder=recorder,
        metrics=metrics,
    )  # fmt: skip


def result(exam: Exam, *, learns: Collection[str], env_steps: int, version: int) -> Evaluation:
    """The returns of the policies that learn, together, and of each policy where there are several."""
    returns = np.array([x for name in learns for x in exam.returns[name]] or [np.nan])  # all were aborted
    several = exam.returns if len(exam.returns) > 1 else {}
    return Evaluation(
        mean=float(returns.mean()), std=float(returns.std()), episodes=sum(len(exam.returns[name]) for name in learns),
        env_steps=env_steps, version=version, info=exam.info,
        policies={name: float(np.mean(of or [np.nan])) for name, of in several.items()},
    )  # fmt: skip


def evaluating(exam: Exam) -> Evaluating:
    """How far it is."""
    episodes, of, steps = exam.progress
    return Evaluating(episodes=episodes, of=of, steps=steps, most=LONGEST)


def gave_up(episodes: int) -> str:
    """What to say of an evaluation without a return."""
    wanted = "the return of 1 episode" if episodes == 1 else f"returns of {episodes} episodes"
    return f"expected {wanted}, got none: the env failed in each of them {PATIENCE} times in a row, so all were given up"


class EvaluationSchedule:
    """Evaluates snapshots of the weights while training goes on.

    Solved means: the mean of ``evaluate_episodes`` episodes of the deterministic policy reaches ``stop_at``, and so does the
    mean of 100 fresh ones of the same weights.
    """

    def __init__(self, blue: Blueprint, weights: Callable[[str], WeightStore]) -> None:
        """``weights`` of a policy: where its versions are fetched."""
        self._blue, self._weights = blue, {name: weights(name) for name in blue.roles}
        self._policies = fixed_policies(blue)
        self._current: Exam | None = None
        self._confirming = False
        self._version = self._taken = self._examined = 0
        self._last_steps = 0
        self.solved = False
        self.last: Evaluation | None = None  # of this process

    @property
    def running(self) -> bool:
        return self._current is not None

    @property
    def waits(self) -> bool:
        """May an evaluation begin?"""
        program = self._blue.program
        asked = program.evaluation.stop_at is not None or program.evaluation.every is not None
        return asked and not self.running and not self.solved

    @property
    def progress(self) -> Evaluating | None:
        """The progress of the evaluation under way."""
        return None if self._current is None else evaluating(self._current)

    def consider(self, step: int, return_mean: float | None) -> None:
        """Begin an evaluation of the newest weights if the training returns are near the goal, or it is time."""
        if self.waits and self._due(step - self._last_steps, return_mean):
            self._last_steps = step
            self.snapshot()
            if self._version > self._examined:  # the same weights are not asked until they pass
                self._examined = self._version
                self._begin(self._blue.program.evaluation.episodes)

    def _due(self, since: int, return_mean: float | None) -> bool:
        """``since``: steps since the last evaluation."""
        program = self._blue.program
        if program.evaluation.every is not None and since >= program.evaluation.every:
            return True
        if (goal := program.evaluation.stop_at) is None:
            return False
        if return_mean is None:  # without actors there never is one
            return not program.actors and since >= SPACING * program.schedule.steps
        return return_mean >= goal - NEAR * abs(goal) or since >= SPACING * program.schedule.steps

    def snapshot(self) -> None:
        """Take the newest weights."""
        for _ in range(ATTEMPTS):  # until no version was published between two policies
            versions = {name: self._take(name) for name in self._weights}
            learned = {versions[name] for name in self._blue.learns}
            self._version = max(learned)
            if len(learned) == 1:
                return

    def _take(self, name: str) -> int:
        fetched = self._weights[name].fetch()
        assert fetched is not None, "version 0 is published before anything runs"
        load_params(self._policies[name].net, fetched[1])
        return fetched[0]

    def params(self) -> Mapping[str, torch.Tensor]:
        """The weights of the last snapshot."""
        return tree.joined({name: tree.named_tensors(policy.net) for name, policy in self._policies.items()})

    @property
    def version(self) -> int:
        return self._version

    def _begin(self, episodes: int) -> None:
        self._taken += 1
        if isinstance(self._blue.program.source, TaskSource):
            nets = {name: policy.net for name, policy in self._policies.items()}
            every = EVERY_PROMPT if self._confirming else episodes  # greedy answers do not change: others are asked for
            self._current = examiner(self._blue.program, nets, episodes=every)
            return
        seed = derive_seed(self._blue.program.schedule.seed, f"evaluation {self._taken}")
        self._current = evaluator(
            self._blue.program, self._policies, episodes=episodes, seed=seed, failures=self._blue.failures()
        )

    def advance(self, until: float) -> Evaluation | None:
        """Play on until this moment of ``time.monotonic`` -> the evaluation, if one ended."""
        current = self._current
        while current is not None and not current.done and time.monotonic() < until:
            current.tick()
        if current is None or not current.done:
            return None
        current.close()
        self._current = None
        evaluation = self.last = result(
            current, learns=self._blue.learns, env_steps=self._blue.pace.env_steps(self._version), version=self._version
        )
        goal = self._blue.program.evaluation.stop_at
        passed = goal is not None and evaluation.mean >= goal
        self.solved = passed and self._confirming
        self._confirming = passed and not self.solved
        if self._confirming:
            self._begin(CONFIRM_EPISODES)
        return evaluation

    def state(self) -> dict[str, int]:
        """An evaluation under way is not part of it: a resumed run begins it again."""
        return {"taken": self._taken, "examined": self._examined, "last_steps": self._last_steps}

    def schema(self, version: int) -> Schema:
        """What ``load`` takes, from a checkpoint of this version."""
        return {
            "taken": Number(0, 1 << 53, whole=True), "examined": Number(0, version, whole=True),
            "last_steps": Number(0, self._blue.pace.steps(version), whole=True),
        }  # fmt: skip

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
