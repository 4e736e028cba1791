"""The memory of a ring: the parts that its workers share, laid out by the driver at once. Every
runtime begins here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from equipoise import tree
from equipoise.actors.episodes import Episodes
from equipoise.actors.forward.rounding import Rounding
from equipoise.actors.inference.exchange import Exchange
from equipoise.errors import CannotResume
from equipoise.experience.queue.outbound import Outbound
from equipoise.experience.queue.queue import Queue
from equipoise.experience.queue.redeal import dealt_anew
from equipoise.experience.queue.tokens import Channel
from equipoise.experience.queue.waiting import Waiting
from equipoise.experience.replay.mailbox import ShardMailbox
from equipoise.files import numbered
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.memory_needed import exchange_sizes, queue_plan
from equipoise.programs.fields import alter
from equipoise.record import statefile
from equipoise.runtime.arena import Arena, M
from equipoise.runtime.board import Board
from equipoise.runtime.ipc import Part
from equipoise.tracing import FOLDER
from equipoise.weights.device import DeviceWeights, Share
from equipoise.weights.store import WeightPlan, Weights
from equipoise.workers.kind import (
    KeepingKind,
    Kind,
    LearningKind,
    Member,
    OwnsMemory,
    Torchless,
    asked_at_once,
    crew,
    held_at_once,
    written,
)
from equipoise.workers.shared import KindMemory, PolicyMemory, Shared


def lay_out(
    blue: Blueprint,
    kinds: Sequence[Kind],
    memory: Callable[[str, int], M],
    channel: Callable[[], Channel],
    share: Share | None = None,
    note: Callable[[str], object] = lambda text: None,
    site: Sequence[Member] | None = None,
    rows: Callable[[int], Tensor] | None = None,
) -> tuple[Shared, Board, M]:
    """Allocate everything at once, deal all places and publish version 0 -> the parts, and the
    memory that holds them.

    ``share``: how workers that act reach memory of the learner's device; None: weights go through
    the memory of the host. ``note`` hears of facts that the user needs. ``site``: the workers of a
    machine that is not home. It has queues for the learners there alone; without any it has no
    weights yet. It has mailboxes if it has shards. ``rows`` allocates a device's memory [bytes]
    uint8 for the rows of a queue; None: they lie next to all other memory.
    """
    program, plan = blue.program, queue_plan(blue)
    measured = {
        member.title: member.measured for member in (crew(blue, kinds) if site is None else site)
    }
    if program.placement.nvtx and site is None:
        hidden = {one.title for one in crew(blue, kinds) if isinstance(one.kind, Torchless)}
        measured = {name: replace(row, nvtx=name not in hidden) for name, row in measured.items()}
    ranks = list(range(blue.learners))
    if site is not None:
        ranks = [one.index for one in site if isinstance(one.kind, LearningKind)]
    groups = written(blue, site or ()).difference(*(blue.groups_of(rank) for rank in ranks))
    outgoing = [
        sorted(groups.intersection(blue.groups_of(learner)))
        for learner in range(blue.learners)
        if site is not None
    ]
    initial = {name: tree.named_tensors(net) for name, net in blue.first_networks().items()}
    arena, traces = Arena(), "" if site is not None else _traces(blue)
    board = arena.reserve(
        Board.specs(measured), lambda part: Board(measured, part, traces, program.placement.trace_s)
    )

    def queue(part: Part) -> Queue:
        place = None if rows is None else rows(plan.rows_nbytes)
        return Queue(
            plan, part, free=[channel() for _ in range(plan.channels)], full=channel(), rows=place
        )

    queues = {rank: arena.reserve(plan.specs, queue) for rank in ranks}
    held, asked = held_at_once(blue, site or ()), asked_at_once(blue, site or ())
    outbound = [
        arena.reserve(
            Outbound.specs(plan, mine, held), partial(Outbound, plan, mine, held=held, asked=asked)
        )
        for mine in outgoing
    ]
    plans = {
        name: WeightPlan(params, **program.source.stored()) for name, params in initial.items()
    }
    policies = {name: _policy(arena, blue, name, plans[name], share) for name in blue.roles}
    keeps = site is not None and any(isinstance(one.kind, KeepingKind) for one in site)
    sharded = dict.fromkeys(name for name, _ in blue.shards if keeps or site is None)
    mailboxes = {name: _mailboxes(arena, blue, name) for name in sharded}
    waiting = arena.reserve(Waiting.specs(plan), partial(Waiting, plan)) if keeps else None
    exchange = None
    if blue.inferences:
        sizes = exchange_sizes(blue)
        exchange = arena.reserve(
            Exchange.specs(policies=sizes, groups=program.groups),
            partial(Exchange, policies=sizes, groups=program.groups),
        )
    owned = {
        kind.name: arena.reserve(specs, partial(KindMemory, specs))
        for kind in kinds
        if isinstance(kind, OwnsMemory)
        and kind.count(blue)
        and tree.leaves(specs := kind.memory(blue))
    }
    whole = arena.allocate(memory)
    shared = Shared(
        queues={rank: one() for rank, one in queues.items()},
        policies={name: made() for name, made in policies.items()},
        mailboxes={name: [one() for one in boxes] for name, boxes in mailboxes.items()},
        exchange=None if exchange is None else exchange(),
        outbound=[one() for one in outbound],
        waiting=None if waiting is None else waiting(),
        own={name: one() for name, one in owned.items()},
    )
    if ranks:
        _fill(blue, shared, initial, note)
    return shared, board(), whole


def _policy(
    arena: Arena, blue: Blueprint, name: str, plan: WeightPlan, share: Share | None
) -> Callable[[], PolicyMemory]:
    """Reserve the memory of a policy -> what it is made by, once the arena is allocated."""
    program, role = blue.program, blue.roles[name]
    columns, metrics = program.placement.group_envs * len(role.places), program.source.reported
    rounds = role.frozen is None and program.placement.acting_precision != "fp32"
    weights = arena.reserve(plan.specs, partial(Weights, plan))
    episodes = [
        arena.reserve(Episodes.layout(metrics), lambda part: Episodes(columns, part, metrics))
        for _ in range(program.groups)
    ]
    rounding = [
        arena.reserve(Rounding.specs, Rounding) for _ in range(program.groups if rounds else 0)
    ]
    device = None
    if share is not None:
        device = arena.reserve(
            DeviceWeights.specs(plan), lambda part: DeviceWeights(plan, part, weights(), share)
        )
    return lambda: PolicyMemory(
        weights=weights(),
        episodes=[one() for one in episodes],
        learns=role.frozen is None,
        rounding=[one() for one in rounding],
        device=None if device is None else device(),
    )


def _mailboxes(arena: Arena, blue: Blueprint, name: str) -> list[Callable[[], ShardMailbox]]:
    """Reserve a mailbox of each learner for the shards of a policy's replay."""
    plans = [blue.replay(name, learner) for learner in range(blue.learners)]
    batch = blue.batch(name)
    return [
        arena.reserve(ShardMailbox.specs(plan, batch), partial(ShardMailbox, plan, batch))
        for plan in plans
    ]


def _traces(blue: Blueprint) -> str:
    """The folder for the workers' last acts, emptied of an earlier start's, whose clock may have
    been another.
    """
    if not (blue.program.placement.trace_s and blue.directory):
        return ""
    folder = Path(blue.directory).parent / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    return str(folder)


def _fill(
    blue: Blueprint,
    shared: Shared,
    initial: Mapping[str, Mapping[str, Tensor]],
    note: Callable[[str], object],
) -> None:
    """The queue and every weight store, as the run begins or goes on."""
    if blue.resume is None:
        for queue in shared.queues.values():
            queue.fill()
        for name, policy in shared.policies.items():
            policy.weights.publish(0, initial[name])
        return
    source, files = blue.resume, list[str]()
    while source.has(file := f"{numbered('experience', len(files))}.safetensors") or not files:
        files.append(file)
    states = [statefile.parse(source.read(file), source.path / file) for file in files]
    file = files[0]
    try:
        if len(states) != blue.learners:
            before = replace(blue, program=alter(blue.program, learners=len(states)))
            states, dropped = dealt_anew(
                states, queue_plan(before), queue_plan(blue), blue.learners
            )
            rows = dropped * blue.unroll * queue_plan(blue).block * queue_plan(blue).columns
            note(
                f"the queue of {before.learners} learners is dealt to {blue.learners}: {rows:,} "
                "rows were dropped"
            )
            # the dealt rows are of all files: an error names the first
            files = files[:1] * blue.learners
        for at, queue in shared.queues.items():
            file = files[at]
            queue.load(states[at])
    except (KeyError, ValueError, TypeError) as error:
        raise CannotResume.of(source.path / file, error) from error
    for name, mine in tree.parted(source.params(), shared.policies).items():
        shared.policies[name].weights.publish(source.version, mine)
