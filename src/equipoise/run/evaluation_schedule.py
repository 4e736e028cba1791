"""Deciding whether a run has reached its goal: when to evaluate, and when it is solved."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from equipoise import tree
from equipoise.actors.evaluator import LONGEST, PATIENCE, load_params
from equipoise.actors.examiner import Answer, Examiner
from equipoise.plans.blueprint import Blueprint
from equipoise.record.report import Evaluating, Evaluation
from equipoise.schema import Number, Schema
from equipoise.sources.source import Acting, Exam, source_of
from equipoise.types import WeightStore

CONFIRM_EPISODES = 100
NEAR = 0.2  # of the goal: training returns this close make an evaluation worth its time
ATTEMPTS = 1000  # to take the weights of all policies at one version
SPACING = 0.1  # greatest share of the run's steps between two evaluations that look for the goal
# most snapshots that wait to be evaluated; a single snapshot may be larger
QUEUED, QUEUED_BYTES = 16, 1 << 28


def fixed_policies(blue: Blueprint) -> dict[str, Acting]:
    """The policies of a run with networks of their own, whose weights ``EvaluationSchedule`` and
    others copy into them.
    """
    source = source_of(blue.program)
    return {
        name: source.acting(role.algorithm, blue.network(name), role.noise)
        for name, role in blue.roles.items()
    }


def result(exam: Exam, *, learns: Collection[str], env_steps: int, version: int) -> Evaluation:
    """The returns of all policies that learn, and of each policy if there are several."""
    # all were aborted
    returns = np.array([x for name in learns for x in exam.returns[name]] or [np.nan])
    several = exam.returns if len(exam.returns) > 1 else {}
    return Evaluation(
        mean=float(returns.mean()),
        std=float(returns.std()),
        episodes=sum(len(exam.returns[name]) for name in learns),
        env_steps=env_steps,
        version=version,
        info=exam.info,
        policies={name: float(np.mean(of or [np.nan])) for name, of in several.items()},
    )


def evaluating(exam: Exam) -> Evaluating:
    """How far it is."""
    episodes, of, steps = exam.progress
    return Evaluating(episodes=episodes, of=of, steps=steps, most=LONGEST)


def gave_up(episodes: int) -> str:
    """What to say of an evaluation without a return."""
    wanted = "the return of 1 episode" if episodes == 1 else f"returns of {episodes} episodes"
    return (
        f"expected {wanted}, got none: the env failed in each of them {PATIENCE} times in a "
        "row, so all were given up"
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights of one version that are to be evaluated: of all policies, by name."""

    version: int
    params: Mapping[str, torch.Tensor]


class EvaluationSchedule:
    """Evaluates snapshots of the weights while training goes on.

    Every version that ``Blueprint.examines`` is evaluated. The learner holds still at it until its
    weights are taken, which are queued while an earlier evaluation goes on; if the queue is full,
    training waits. So which evaluations there are, and of which weights, is the same in every
    runtime.

    Solved means: the mean of ``evaluate_episodes`` episodes of the deterministic policy reaches
    ``stop_at``, and so does the mean of 100 fresh ones of the same weights.
    """

    def __init__(self, blue: Blueprint, weights: Callable[[str], WeightStore]) -> None:
        """``weights`` of a policy: where its versions are fetched."""
        self._blue, self._weights = blue, {name: weights(name) for name in blue.roles}
        self._policies = fixed_policies(blue)
        self._current: Exam | None = None
        # the second evaluation of a version; an evaluation that ``examines`` asks for
        self._confirming = self._asked_for = False
        self._queue: deque[Snapshot] = deque()
        self._offered: int | None = None  # the version at which the learner holds still
        # the last weights of the run, while earlier ones are evaluated
        self._kept: Snapshot | None = None
        self._version = self._examined = self._last_steps = 0
        # the evaluations that ``evaluation.every`` asks for, and the evaluations with a return
        self.asked = self.made = 0
        self.solved = False
        self.last: Evaluation | None = None  # of this process
        self.answers: list[Answer] = []  # of the last evaluation, if policies write text

    @property
    def running(self) -> bool:
        return self._current is not None or bool(self._queue)

    @property
    def waits(self) -> bool:
        """May an evaluation begin because the goal may be near?"""
        return (
            self._blue.program.evaluation.stop_at is not None
            and not self.running
            and not self.solved
        )

    @property
    def progress(self) -> Evaluating | None:
        """The progress of the evaluation under way."""
        return None if self._current is None else evaluating(self._current)

    def offer(self, version: int) -> None:
        """The learner holds still at this version until ``take`` returns it."""
        self._offered = version

    def take(self, *, ends: bool = False) -> int | None:
        """Take the weights that are offered, if there is room -> their version: the learner may go
        on. None: it waits.

        ``ends``: the run ends early, and does not wait for room.
        """
        version = self._offered
        if version is None:
            return None
        # else a learner that took the place of another offers it again
        if version > self._examined:
            size = sum(tensor.nbytes for tensor in self.params().values())
            if (
                not ends
                and self._queue
                and (len(self._queue) >= QUEUED or (len(self._queue) + 1) * size > QUEUED_BYTES)
            ):
                return None
            if any(self._weights[name].version < version for name in self._blue.learns):
                return None  # it holds still, and is about to publish them
            fetched = {name: store.fetch() for name, store in self._weights.items()}
            taken = {name: found[1] for name, found in fetched.items() if found is not None}
            self._queue.append(
                Snapshot(version, {name: x.clone() for name, x in tree.joined(taken).items()})
            )
            self._examined, self._last_steps = version, self._blue.pace.steps(version)
            self.asked += 1
        self._offered = None
        return version

    def consider(self, step: int, return_mean: float | None) -> None:
        """Begin an evaluation of the newest weights if the training returns are near the goal."""
        if self.waits and self._near(step - self._last_steps, return_mean):
            self._last_steps = step
            self.snapshot()
            if self._version > self._examined:  # the same weights are not asked until they pass
                self._examined = self._version
                self._begin(self._blue.program.evaluation.episodes)

    def _near(self, since: int, return_mean: float | None) -> bool:
        """``since``: steps since the last evaluation."""
        program = self._blue.program
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

    def _load(self, snapshot: Snapshot) -> None:
        for name, params in tree.parted(snapshot.params, self._policies).items():
            load_params(self._policies[name].net, params)
        self._version = snapshot.version

    def params(self) -> Mapping[str, torch.Tensor]:
        """The weights of the last snapshot."""
        return tree.joined(
            {name: tree.named_tensors(policy.net) for name, policy in self._policies.items()}
        )

    def _copy(self) -> Snapshot:
        return Snapshot(self._version, {name: x.clone() for name, x in self.params().items()})

    @property
    def version(self) -> int:
        return self._version

    def _begin(self, episodes: int, *, asked_for: bool = False) -> None:
        self._asked_for = asked_for
        self._current = source_of(self._blue.program).exam(
            self._policies,
            episodes=episodes,
            version=self._version,
            again=self._confirming,
            failures=self._blue.failures(),
        )

    def advance(self, until: float) -> Evaluation | None:
        """Play on until this moment of ``time.monotonic`` -> the evaluation, if one ended."""
        if self._current is None and self._queue:
            self._load(self._queue.popleft())
            self._begin(self._blue.program.evaluation.episodes, asked_for=True)
        current = self._current
        while current is not None and not current.done and time.monotonic() < until:
            current.tick()
        if current is None or not current.done:
            return None
        current.close()
        self._current = None
        self.answers = current.answers if isinstance(current, Examiner) else []
        evaluation = self.last = result(
            current,
            learns=self._blue.learns,
            env_steps=self._blue.pace.env_steps(self._version),
            version=self._version,
        )
        self.made += self._asked_for and evaluation.episodes > 0
        goal = self._blue.program.evaluation.stop_at
        passed = goal is not None and evaluation.mean >= goal
        self.solved = passed and self._confirming
        self._confirming = passed and not self.solved
        if self._confirming:
            self._begin(CONFIRM_EPISODES)
        elif self.solved:  # later evaluations are not asked for any more
            self.asked -= len(self._queue)
            self._queue.clear()
        return evaluation

    def waiting(self) -> dict[str, torch.Tensor]:
        """Weights that are still to be evaluated, the one under way included: by "VERSION/NAME"."""
        waits = list(self._queue)
        if self._current is not None and self._asked_for:
            waits.insert(0, Snapshot(self._version, self.params()))
        return {f"{one.version}/{name}": x for one in waits for name, x in one.params.items()}

    def missing(self) -> str:
        """A warning about evaluations that were asked for and not made; "" if all were made."""
        if self.made >= self.asked:
            return ""
        steps = sorted(
            {self._blue.pace.steps(int(name.partition("/")[0])) for name in self.waiting()}
        )
        said = f"warning: evaluations: {self.made} of {self.asked} were made"
        if steps:
            said += f"; resume makes those of step {', '.join(f'{step:,}' for step in steps[:5])}"
        return said + (", ..." if len(steps) > 5 else "")

    def state(self) -> dict[str, int]:
        """Counters that a resumed run needs, next to the weights that are ``waiting``."""
        return {
            "examined": self._examined,
            "last_steps": self._last_steps,
            "asked": self.asked,
            "made": self.made,
        }

    def schema(self, version: int) -> Schema:
        """The schema of ``load``'s argument, from a checkpoint of this version."""
        return {
            "examined": Number(0, version, whole=True),
            "last_steps": Number(0, self._blue.pace.steps(version), whole=True),
            "asked": Number(0, version, whole=True),
            "made": Number(0, version, whole=True),
        }

    def load(
        self, state: Mapping[str, int], waiting: Mapping[str, torch.Tensor], told: Collection[int]
    ) -> None:
        """Go on from a state; ``told``: versions whose evaluation was recorded after it. ValueError
        for other weights.
        """
        self._examined, self._last_steps, self.asked, self.made = (
            state[name] for name in ("examined", "last_steps", "asked", "made")
        )
        found: dict[int, dict[str, torch.Tensor]] = {}
        for path, x in waiting.items():
            version, _, name = path.partition("/")
            found.setdefault(int(version), {})[name] = x
        wanted = {name: x.shape for name, x in self.params().items()}
        for number, params in sorted(found.items()):
            if {name: x.shape for name, x in params.items()} != wanted or number > self._examined:
                raise ValueError(
                    f"expected weights of this run to be evaluated, got others, of version {number}"
                )
            if number in told:
                self.made += 1
            else:
                self._queue.append(Snapshot(number, params))

    def close(self) -> None:
        """Give up the evaluation under way; if ``examines`` asked for it, it is queued again."""
        if self._current is not None:
            self._current.close()
            self._current = None
            if self._asked_for:
                self._queue.appendleft(self._copy())
        self._confirming = self._asked_for = False

    def begin_rest(self) -> None:
        """After the run: begin the evaluations that wait; ``begin_final`` takes its last weights
        again.
        """
        if self._queue:
            self._kept = self._copy()

    def end_rest(self) -> None:
        """Take the last weights of the run again."""
        self.close()
        if self._kept is not None:
            self._load(self._kept)

    def begin_final(self, episodes: int) -> None:
        """Begin the last evaluation, of the last snapshot."""
        asked_for = self._blue.program.evaluation.every is not None
        self.asked += asked_for
        self._begin(episodes, asked_for=asked_for)
