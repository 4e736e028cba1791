"""Roles and pace: each policy's part in a run, and how steps and versions relate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from equipoise import tree
from equipoise.actors.forward.noise import Noise
from equipoise.experience.layout import RowSpec
from equipoise.hints import hint
from equipoise.learners.optimizers import unknown_group
from equipoise.nets.threads import one_thread
from equipoise.nets.vision import encoders
from equipoise.seeds import policy_seed
from equipoise.sources.source import source_of
from equipoise.tree import ArraySpec
from equipoise.types import (
    Algorithm,
    Array,
    Frozen,
    Policy,
    Program,
    RunSpec,
    Stack,
    agent_streams,
    learning,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The relation of steps and versions: ``rows`` env steps a round, and ``updates`` versions
    after each round from ``begins`` on.

    One step of an env counts once, however many agents it has.

    ``offline``: there are no env steps, and a step is an update.
    """

    rows: int
    updates: int = 1
    begins: int = 1
    offline: bool = False

    def env_steps(self, version: int) -> int:
        """The env steps that ``version`` was made from."""
        return 0 if self.offline else self.steps(version)

    def steps(self, version: int) -> int:
        """The same in what ``Program.schedule.steps`` counts."""
        return (self.begins - 1 - -version // self.updates) * self.rows if version else 0

    def versions(self, steps: int) -> int:
        """The last version of ``steps`` env steps, rounded up to whole rounds."""
        return max(-(-steps // self.rows) - self.begins + 1, 0) * self.updates

    def between(self, steps: int) -> int:
        """Versions between two events that are ``steps`` apart: whole rounds, rounded up."""
        return -(-steps // self.rows) * self.updates


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The role of a policy in this run: how it acts, for which agents, and the row of one agent."""

    algorithm: Algorithm  # Learns, and Acts if it acts in an env
    spec: Any  # EnvSpec or TextSpec
    row: RowSpec
    noise: Noise
    frozen: Frozen | None  # set for a policy that does not learn
    # of each image that a replay keeps so, by its path
    latents: Mapping[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> RowSpec:
        """The row as a replay keeps it."""
        if not self.latents:
            return self.row
        small = {path: ArraySpec((n,), "float16") for path, n in self.latents.items()}
        return replace(
            self.row, obs=tree.like(self.row.obs, dict(tree.items(self.row.obs)) | small)
        )

    @property
    def stacks(self) -> Mapping[str, Stack]:
        """The stacks of frames in that row."""
        return {path: stack for path, stack in self.spec.stacks.items() if path not in self.latents}

    @property
    def places(self) -> tuple[int, ...]:
        """The places of its agents among an env's agents."""
        places: tuple[int, ...] = self.spec.places
        return places

    def streams(self, envs: Array) -> Array:
        """The streams [B] int64 of this policy in these envs."""
        return agent_streams(envs, len(self.spec.agents), self.places)


def learns_first(program: Program) -> list[str]:
    """The names of the policies. Learning ones come first, since they may have to wait
    (``RoutedAgent``).
    """
    return sorted(program.policies, key=lambda name: isinstance(program.policies[name], Frozen))


def network(program: Program, spec: RunSpec, name: str) -> nn.Module:
    """The initial network of a policy: the same bits wherever it is built. A frozen one has that
    whose past it plays.

    One thread builds it, since orthogonal initialisation (a QR) rounds by the number of threads.
    """
    policy = program.policies[name]
    if isinstance(policy, Frozen):
        return network(program, spec, policy.of)
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(policy_seed(program.schedule.seed, "network", name))
        return policy.algorithm.network(spec.policies[name])


def role_of(program: Program, whole: RunSpec, name: str, net: nn.Module) -> Role:
    policy, spec = program.policies[name], whole.policies[name]
    if isinstance(policy, Frozen):
        other = whole.policies[policy.of]
        spaces = {
            "observation": (spec.observation, other.observation),
            "action": (spec.action, other.action),
        }
        for what, (mine, its) in spaces.items():
            if mine != its:
                raise ValueError(
                    f"policies.{name}: expected the {what} space of {policy.of!r}, {its}, got "
                    f"{mine}"
                )
    learns = teacher(program, name)
    algorithm, groups = learns.algorithm, learns.algorithm.groups(net)
    if (unknown := unknown_group(learns.optimizer, groups)) is not None:
        where = f"policies.{name}." if len(program.policies) > 1 else ""
        raise ValueError(
            f"{where}optimizer.rates.{unknown}: expected a group of the "
            f"algorithm{hint(unknown, groups)}"
        )
    row, noise = source_of(program).row(learns, net, spec)
    frozen = policy if isinstance(policy, Frozen) else None
    latents = {path: encoder.size_out for path, encoder in encoders(net).items()}
    return Role(
        algorithm=algorithm, spec=spec, row=row, noise=noise, frozen=frozen, latents=latents
    )


def teacher(program: Program, name: str) -> Policy:
    """The policy itself, or the policy whose past it plays."""
    policy = program.policies[name]
    return learning(program)[policy.of] if isinstance(policy, Frozen) else policy
