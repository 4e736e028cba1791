"""The agents of actors and of inference workers, built from a Blueprint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from equipoise import tree
from equipoise.actors.agent import ActingParts, LocalAgent, StreamNumbers
from equipoise.actors.forward.forward import FORWARDS, Forward
from equipoise.actors.partial import PartialAgent
from equipoise.actors.routed import PolicySlot, RoutedAgent, SharedBlock
from equipoise.clock import Clock
from equipoise.experience.discard import Discard
from equipoise.nets import compiled
from equipoise.seeds import derive_seed
from equipoise.types import Blocks, Places, WeightStore, stream_ids
from equipoise.workers.shared import Shared

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint


F = TypeVar("F")


def build_forward(made: Callable[..., F], blue: Blueprint, name: str) -> F:
    """A policy's forward of this class; under central inference it is on the learner's device."""
    program = blue.program
    return made(
        algorithm=blue.roles[name].algorithm,
        net=blue.network(name),
        precision=program.placement.precision,
        acting=program.placement.acting_precision,
        device=blue.acting_device,
    )


def agents(
    blue: Blueprint,
    group: int,
    shared: Shared,
    queues: Sequence[Blocks],
    clock: Clock,
    forwards: Mapping[str, Forward] = MappingProxyType({}),
    weights: Mapping[str, WeightStore] = MappingProxyType({}),
) -> RoutedAgent:
    """The policies of a group of envs. ``queues``: of each learner.

    ``forwards``, ``weights``: shared by several groups; empty: the group has its own.
    """
    block = SharedBlock(queues[blue.learner_of(group)], len(blue.learns))
    places = {name: PolicySlot(block, name) for name in blue.learns}
    made = {
        name: _agent(
            blue,
            name,
            group,
            shared,
            places.get(name),
            clock,
            forwards.get(name),
            weights.get(name),
        )
        for name in blue.roles
    }
    return RoutedAgent(made)


def _agent(
    blue: Blueprint,
    name: str,
    group: int,
    shared: Shared,
    places: Places | None,
    clock: Clock,
    forward: Forward | None = None,
    weights: WeightStore | None = None,
) -> LocalAgent:
    """The agent of one policy for one group of envs.

    ``places``: the experience for its rows; None: rows are discarded. ``forward``, ``weights``:
    shared ones; None: its own.
    """
    program, role, memory = blue.program, blue.roles[name], shared.policies[name]
    streams = role.streams(stream_ids(group, program.placement.group_envs))
    answers = program.placement.partial_streams
    row = {"action": role.row.action, "behaviour": role.row.behaviour}
    kind: Callable[..., LocalAgent] = (
        partial(PartialAgent, answers=answers, row=row) if answers else LocalAgent
    )
    make_forward = FORWARDS[blue.forward.get(name, "torch")]
    envs = program.actors * program.placement.envs_per_actor
    return kind(
        acting=ActingParts(
            forward=forward or build_forward(make_forward, blue, name),
            weights=weights or memory.actor_weights.handle(),
            noise=role.noise,
            seed=derive_seed(program.schedule.seed, "actions"),
            rounding=memory.rounding[group] if memory.rounding else None,
        ),
        experience=Discard(role.row, blue.unroll, len(streams)) if places is None else places,
        episodes=memory.episodes[group],
        streams=StreamNumbers(numbers=streams, total=envs * len(blue.spec.env.agents), envs=envs),
        unroll=blue.unroll,
        clock=clock,
    )


def compile_torso(blue: Blueprint, name: str, net: nn.Module, rows: int) -> str | None:
    """Compile a policy's torso of images for ``rows`` rows, if the program demands it; a note if
    that is impossible.
    """
    if not blue.program.placement.compile:
        return None
    obs = tree.torch_views(tree.zeros(tree.prepend(blue.roles[name].row.obs, rows)))
    return compiled.compile_torso(net, obs, precision=blue.program.placement.precision)
