"""A blueprint: everything that follows from a Program and a look at its env (roles, networks,
seeds, numbers of updates).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from equipoise.actors.episodes import Episodes
from equipoise.envs import scales
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.goals import Goals
from equipoise.envs.maker import EnvMaker
from equipoise.experience.recorded.dataset import Dataset
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.facts import values_of
from equipoise.learners.learner import Learner
from equipoise.learners.pool import ALONE, Learners
from equipoise.nets.block import recompute
from equipoise.plans import begin
from equipoise.plans.replays import common
from equipoise.plans.roles import Pace, Role, network
from equipoise.record import checkpoint
from equipoise.record.checkpoint import Source
from equipoise.seeds import policy_seed
from equipoise.sources.envs import env_maker, goals
from equipoise.types import (
    Array,
    DealtEnv,
    Policy,
    Program,
    RunSpec,
    agent_streams,
    learning,
    stream_ids,
)

if TYPE_CHECKING:
    from equipoise.language.scoring.server import Scoring


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """A Program with everything that follows from it and from a look at its env; it travels to
    every worker.
    """

    program: Program
    spec: RunSpec
    roles: Mapping[str, Role]  # by policy; learning policies come first
    pace: Pace
    # by policy, for policies that keep live rows: the share of the first learner
    replays: Mapping[str, ReplayPlan]
    updates: int
    schedule_updates: int
    record_every: int  # updates
    checkpoint_every: int  # updates; 0: when the driver asks
    directory: str  # where checkpoints are written
    weights: str | None  # the checkpoint with the first weights
    before: int | None  # updates of the learner that is taken over with them; None: weights alone
    resume: Source | None  # the checkpoint that every worker goes on from
    capsules: str | None = None  # where env failures are written
    logs: str | None = None  # where the processes of workers print; None: where the driver does
    dataset: Dataset | None = None  # a data set to learn from, with live rows or alone
    forward: Mapping[str, str] = field(
        default_factory=dict
    )  # how actors act by policy (actors/forward/forward.py); torch by default
    apart: bool = False  # are there learners on several machines?
    address: str = "127.0.0.1"  # of this machine, for learners on others
    scoring: Scoring | None = None  # by workers of their own; None: by each generator

    def failures(
        self, counted: Episodes | None = None, resetting: Callable[[float], object] | None = None
    ) -> Failures:
        """The rule for env failures in this run; ``counted``: where failures and their causes are
        counted.

        ``resetting`` is called after each reset of an env, with the seconds that it took.
        """
        made = Failures(
            on_nonfinite=self.program.source.on_nonfinite,
            capsules=Path(self.capsules) if self.capsules else None,
        )
        if resetting is not None:
            made = replace(made, resetting=resetting)
        if counted is None:
            return made
        return replace(made, counts=counted.failures, causes=counted.causes)

    @property
    def env_maker(self) -> EnvMaker:
        """The maker of the run's envs."""
        return env_maker(self.program)

    def make_env(self, **given: Any) -> DealtEnv:
        """Make the envs of an actor, with agents dealt to policies; ``given``: as ``EnvMaker``
        takes it.
        """
        return self.env_maker(**given, answers=self.program.placement.partial_streams)

    def network(self, name: str) -> nn.Module:
        """The initial network of a policy: the same bits wherever it is built."""
        return network(self.program, self.spec, name)

    def first_networks(self) -> dict[str, nn.Module]:
        """Build the networks that the run begins with."""
        nets = {name: self.network(name) for name in self.roles}
        if self.weights is not None:
            begin.fill(self.program, nets, Path(self.weights))
        return nets

    def learner(self, name: str, net: nn.Module, pool: Learners = ALONE) -> Learner:
        """The learner of a policy as the run begins, which a resume loads after; ``pool``: the
        learners that it learns with.
        """
        windows = learning(self.program)[name].batch * len(self.roles[name].places) // pool.size
        if self.program.placement.gradient_checkpointing:
            recompute(net)
        made = begin.new_learner(
            self.program,
            self.spec,
            name,
            net,
            schedule_updates=self.schedule_updates,
            seed=policy_seed(self.program.schedule.seed, "learner", name),
            batch=windows,
            pool=pool,
        )
        if self.before is not None and self.weights is not None and self.resume is None:
            begin.begin_from(made, Path(self.weights), name)
        return made

    def goals(self, name: str) -> Goals | None:
        """The goals that a policy's store with hindsight asks for, with an env of its own."""
        replay = self.policies[name].replay
        return goals(self.program) if replay is not None and replay.relabel else None

    @property
    def segments(self) -> str:
        """The directory for the rows of a replay."""
        return str(Path(self.directory) / checkpoint.SEGMENTS)

    @property
    def policies(self) -> dict[str, Policy]:
        """The policies that learn."""
        return learning(self.program)

    @property
    def unroll(self) -> int:
        """Rows of an unroll: the same for all policies, which act in the same envs."""
        return common(self.program).unroll

    @property
    def round(self) -> int:
        """Envs whose unrolls make a round: the envs of a batch; with replays all of them."""
        # without any there is room for one
        policy, groups = common(self.program), max(self.program.groups, 1)
        return policy.batch if policy.replay is None else groups * self.program.placement.group_envs

    def examines(self, version: int) -> bool:
        """Is a version due to be evaluated: the first one that actors get at or after each multiple
        of ``evaluation.every``?

        The last version is always evaluated, after the run.
        """
        wanted = self.program.evaluation
        published = math.lcm(*(one.publish_every for one in self.policies.values()))
        unit = published * self.pace.updates
        if (
            wanted.every is None
            or not wanted.episodes
            or version % unit
            or not 0 < version < self.updates
        ):
            return False
        return (
            self.pace.steps(version) // wanted.every
            > self.pace.steps(version - unit) // wanted.every
        )

    @property
    def learners(self) -> int:
        """The number of learners, which share every batch."""
        return self.program.placement.learners

    @property
    def replaceable(self) -> bool:
        """Can a learner that is lost be replaced? Not if rows of a replay are lost with it, or a
        policy's past, or weights on a device, or its part of the parameters, or if learners are on
        several machines.
        """
        frozen = any(role.frozen is not None for role in self.roles.values())
        whole = self.program.placement.shard == "none"
        return (
            self.learners > 1
            and whole
            and not (self.apart or self.replays or frozen or self.acting_device != "cpu")
        )

    def learner_of(self, group: int) -> int:
        """The learner that a group of envs writes its rows for."""
        return group % self.learners

    def groups_of(self, learner: int) -> range:
        """The groups of envs that write their rows for a learner."""
        return range(learner, self.program.groups, self.learners)

    @property
    def learns(self) -> dict[str, Role]:
        return {name: role for name, role in self.roles.items() if role.frozen is None}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the env for a person."""
        env = self.spec.env
        raw = [
            name
            for name, one in self.policies.items()
            if not values_of(one.algorithm).get("normalize_obs")
        ]
        odd = {
            scales.said(scales.large(self.spec.policies[name].observation))
            for name in raw
            if env.observation is not None
        }
        return (*((env.settings,) if env.settings else ()), *env.notes, *sorted(odd - {""}))

    def batch(self, name: str) -> int:
        """A learner's items of a batch of a policy: windows of its streams; of rows where there is
        a replay.
        """
        policy = self.policies[name]
        agents = len(self.roles[name].places) if policy.replay is None else 1
        return policy.batch * agents // self.learners

    def streams(self, group: int) -> Array:
        """The streams [B] int64 of all agents of a group of envs."""
        count = len(self.spec.env.agents)
        return agent_streams(
            stream_ids(group, self.program.placement.group_envs), count, range(count)
        )

    @property
    def inferences(self) -> int:
        """The number of inference workers; 0: inference is local."""
        place = self.program.placement
        return place.inference_workers if place.inference == "central" else 0

    @property
    def rolls_out(self) -> bool:
        """Are envs stepped with their policy, on its device?"""
        env = self.program.source.played
        return env is not None and env.on_device and not self.inferences

    @property
    def acting_device(self) -> str:
        """The device of the networks that act."""
        return self.program.placement.device if self.inferences or self.rolls_out else "cpu"

    @property
    def rows_device(self) -> str:
        """The device that rows may lie on if all workers are in one process, so that a learner
        reads them without a copy.
        """
        return self.acting_device if self.rolls_out and not self.replays else "cpu"

    @property
    def acting_workers(self) -> int:
        """The number of workers that step envs or act for them."""
        return self.program.actors + self.inferences

    def groups(self, actor: int) -> range:
        """The groups of an actor's envs."""
        halves = self.program.placement.halves
        return range(actor * halves, (actor + 1) * halves)

    def served(self, inference: int) -> range:
        """The groups that an inference worker acts for: the groups of whole actors."""
        actors, halves = self.program.actors, self.program.placement.halves
        first, last = (actors * i // self.inferences for i in (inference, inference + 1))
        return range(first * halves, last * halves)

    def server(self, group: int) -> int:
        """The inference worker of a group."""
        return next(i for i in range(self.inferences) if group in self.served(i))

    def replay(self, name: str, learner: int) -> ReplayPlan:
        """A learner's share of the replay of a policy."""
        return replace(self.replays[name], learner=learner)

    @property
    def shards(self) -> list[tuple[str, int]]:
        """(policy, number) of each worker that keeps rows of a replay; none if the learners'
        processes keep them.

        Shard k is learner k % learners'.
        """
        kept = {
            name: replay.shards
            for name in self.replays
            if (replay := self.policies[name].replay) is not None
        }
        several = {name: shards for name, shards in kept.items() if shards > 1}
        return [(name, number) for name, shards in several.items() for number in range(shards)]
