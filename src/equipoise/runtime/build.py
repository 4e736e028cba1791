"""The memory of a ring: what its workers share, laid out by the driver at once. Every runtime begins here."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
from equipoise.programs.fields import alter
from equipoise.programs.memory_needed import exchange_sizes, queue_plan
from equipoise.record import statefile
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.board import Board
from equipoise.runtime.ipc import Part
from equipoise.tracing import FOLDER
from equipoise.weights.device import DeviceWeights, Share
from equipoise.weights.store import WeightPlan, Weights
from equipoise.workers.kind import Kind, Member, crew, held_at_once, written
from equipoise.workers.shared import Own, PolicyMemory, Shared


def lay_out(
    blue: Blueprint, kinds: Sequence[Kind], memory: Callable[[str, int], Any], channel: Callable[[], Channel],
    share: Share | None = None, note: Callable[[str], object] = lambda text: None, site: Sequence[Member] | None = None,
    rows: Callable[[int], Tensor] | None = None,
) -> tuple[Shared, Board, Any]:  # fmt: skip
    """Allocate everything at once, deal all places and publish version 0 -> the parts, and the memory that holds them.

    ``share``: how workers that act reach memory of the learner's device; None: weights go through the memory of the host.
    ``note`` is told what a person has to know. ``site``: the workers of a machine that is not home. It has queues for the
    learners there alone; without any it has no weights yet. It has mailboxes if it has shards. ``rows`` allocates a device's
    memory [bytes] uint8 for the rows of a queue; None: they lie beside all else.
    """
    program, plan = blue.program, queue_plan(blue)
    measured = {member.title: member.kind.measured for member in (crew(blue, kinds) if site is None else site)}
    if program.placement.nvtx and site is None:
        shown = {member.title for member in crew(blue, kinds) if member.kind.torch}
        measured = {title: replace(row, nvtx=title in shown) for title, row in measured.items()}
    ranks = list(range(blue.learners)) if site is None else [one.index for one in site if one.kind.side == "learning"]
    groups = written(blue, site or ()).difference(*(blue.groups_of(rank) for rank in ranks))
    outgoing = [sorted(groups.intersection(blue.groups_of(learner))) for learner in range(blue.learners) if site is not None]
    held = held_at_once(blue, site or ())
    lanes = [plan.nbytes for _ in ranks] + [tree.nbytes(Outbound.specs(plan, mine, held)) for mine in outgoing]
    rounds = [name for name, role in blue.roles.items() if program.placement.acting_precision != "fp32" and role.frozen is None]
    initial = {name: tree.named_tensors(net) for name, net in blue.first_networks().items()}
    weight_plans = {name: WeightPlan(params, **program.source.stored()) for name, params in initial.items()}
    sizes = [tree.nbytes(Board.specs(measured)), *lanes]
    for name, weight_plan in weight_plans.items():
        sizes += [weight_plan.nbytes, *[tree.nbytes(Episodes.layout(program.source.metrics))] * program.groups]
        sizes += [tree.nbytes(Rounding.specs)] * program.groups * (name in rounds)
        sizes += [tree.nbytes(DeviceWeights.specs(weight_plan))] * (share is not None)
    keeps = site is not None and any(one.kind.side == "keeping" for one in site)
    sharded = {name: blue.replays[name] for name, _ in blue.shards} if keeps or site is None else {}
    for name, replay in sharded.items():
        sizes += [tree.nbytes(ShardMailbox.specs(replay, blue.batch(name)))] * blue.learners
    sizes += [tree.nbytes(Waiting.specs(plan))] * keeps
    exchanged = exchange_sizes(blue) if blue.inferences else {}
    if exchanged:
        sizes.append(tree.nbytes(Exchange.specs(**exchanged)))
    own = {kind.name: specs for kind in kinds if kind.count(blue) and tree.leaves(specs := kind.memory(blue))}
    sizes += [tree.nbytes(specs) for specs in own.values()]
    whole = memory("run", sum(sizes))
    offsets = np.cumsum([0, *sizes])
    parts = iter([Part(whole, int(o), s) for o, s in zip(offsets, sizes, strict=False)])
    board = Board(measured, next(parts), "" if site is not None else _traces(blue), program.placement.trace_s)
    queues = {}
    for rank in ranks:
        place = None if rows is None else rows(plan.rows_nbytes)
        queues[rank] = Queue(plan, next(parts), free=[channel() for _ in range(plan.channels)], full=channel(), rows=place)
    outbound = [Outbound(plan, mine, next(parts), held) for mine in outgoing]
    policies = {}
    for name, role in blue.roles.items():
        weights = Weights(weight_plans[name], next(parts))
        columns = program.placement.group_envs * len(role.places)
        episodes = [Episodes(columns, next(parts), program.source.metrics) for _ in range(program.groups)]
        rounding = [Rounding(next(parts)) for _ in range(program.groups if name in rounds else 0)]
        device = None if share is None else DeviceWeights(weight_plans[name], next(parts), weights, share)
        policies[name] = PolicyMemory(
            weights=weights, episodes=episodes, learns=role.frozen is None, rounding=rounding, device=device
        )  # fmt: skip
    posts = {
        name: [ShardMailbox(blue.replay(name, learner), blue.batch(name), next(parts)) for learner in range(blue.learners)]
        for name in sharded
    }
    waiting = Waiting(plan, next(parts)) if keeps else None
    exchange = Exchange(next(parts), **exchanged) if exchanged else None
    owned = {name: Own(specs, next(parts)) for name, specs in own.items()}
    shared = Shared(
        queues=queues, policies=policies, posts=posts, exchange=exchange, outbound=outbound, waiting=waiting, own=owned
    )  # fmt: skip
    if ranks:
        _fill(blue, shared, initial, note)
    return shared, board, whole


def _traces(blue: Blueprint) -> str:
    """The folder for what workers last did, emptied of what those of another start did, whose clock may have been another."""
    if not (blue.program.placement.trace_s and blue.directory):
        return ""
    folder = Path(blue.directory).parent / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    return str(folder)


def _fill(blue: Blueprint, shared: Shared, initial: Mapping[str, Mapping[str, Tensor]], note: Callable[[str], object]) -> None:
    """The queue and every weight store, as the run begins or goes on."""
    if blue.resume is None:
        for queue in shared.queues.values():
            queue.fill()
        for name, policy in shared.policies.items():
            policy.weights.publish(0, initial[name])
        return
    source, files = blue.resume, list[str]()
    while (file := f"{numbered('experience', len(files))}.safetensors") in source.files or not files:
        files.append(file)
    states: list[Any] = [statefile.parse(source.read(file), source.path / file) for file in files]
    file = files[0]
    try:
        if len(states) != blue.learners:
            before = replace(blue, program=alter(blue.program, learners=len(states)))
            states, dropped = dealt_anew(states, queue_plan(before), queue_plan(blue), blue.learners)
            rows = dropped * blue.unroll * queue_plan(blue).block * queue_plan(blue).columns
            note(f"the queue of {before.learners} learners is dealt to {blue.learners}: {rows:,} rows were dropped")
            files = files[:1] * blue.learners  # what is dealt is of all files: an error names the first
        for at, queue in shared.queues.items():
            file = files[at]
            queue.load(states[at])
    except (KeyError, ValueError, TypeError) as error:
        raise CannotResume.of(source.path / file, error) from error
    for name, mine in tree.parted(source.params(), shared.policies).items():
        shared.policies[name].weights.publish(source.version, mine)
