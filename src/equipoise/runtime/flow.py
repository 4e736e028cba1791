"""The flow through the channels of a run: how full they are, the age of the rows used from them,
and the bytes they moved.

All of it is computed from counts that are there, when somebody asks; nothing is counted for each
step but these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from equipoise import tree
from equipoise.experience.layout import trajectory_specs
from equipoise.histograms import EDGES
from equipoise.plans.blueprint import Blueprint
from equipoise.runtime.board import Board
from equipoise.types import learning
from equipoise.workers.kind import KeepingKind, Member
from equipoise.workers.shared import Shared


def limit(blue: Blueprint, shared: Shared, actors: int, max_lag: int | None) -> None:
    """Let ``actors`` actors begin unrolls from now on, the first of each learner's, and rows grow
    no older than ``max_lag``.
    """
    groups = actors * blue.program.placement.halves
    for queue in shared.queues.values():
        queue.limit(-(-groups // blue.learners), max_lag)


def lags(board: Board, shared: Shared) -> dict[str, list[float]]:
    """Histograms since the run began or was resumed, with the bins of ``EDGES``; {} before a
    learner has used anything.

    "versions" and "seconds": windows that were learned from, by the versions since their first
    action and the seconds since the version that acted came out. "loop": blocks of rows by the
    seconds from their env steps to the end of the updates of them.
    """
    found = {name: np.zeros(len(ends) + 1) for name, ends in EDGES.items()}
    for title in board.rows:
        for name, counts in board.lags(title).items():
            found[name] += counts
    for queue in shared.queues.values():
        found["loop"] += queue.loop
    if not found["versions"].any():
        return {}
    return {name: counts.tolist() for name, counts in found.items()}


def occupancy(blue: Blueprint, shared: Shared, members: Sequence[Member]) -> dict[str, float]:
    """How full every store of rows is, 0..1, by its name: the queues, a policy's replay, each shard
    of one.
    """
    rows = [queue.stats() for queue in shared.queues.values()]
    found, several = {}, len(blue.replays) > 1
    if capacity := sum(one["capacity"] for one in rows):
        found["queue"] = sum(one["held"] for one in rows) / capacity
    for name in blue.replays:
        plan, title = blue.replay(name, 0), f"replay {name}" if several else "replay"
        if name in shared.mailboxes:
            for member in (one for one in members if isinstance(one.kind, KeepingKind)):
                policy, index = blue.shards[member.index]
                if policy == name:
                    mine = shared.mailboxes[name][index % blue.learners].shards[
                        index // blue.learners
                    ]
                    places = plan.slots * plan.block * plan.of_shard(index // blue.learners)
                    found[member.title] = int(mine["items"][0]) / places
        elif rows:
            taken = rows[0]["sampled"] * plan.row.columns / shared.queues[0].plan.columns
            found[title] = min(taken / (plan.slots * plan.streams), 1.0)
    return found


def moved(blue: Blueprint, shared: Shared, rows: Mapping[str, int], version: int) -> dict[str, int]:
    """Bytes so far: "written" by actors into queues, "read" from there, "batches" that learners
    were given from replays, and "weights" that were published.
    """
    row = shared.queues[0].plan.row_nbytes
    found = {
        "written": round(rows["inserted"] * row),
        "read": round(rows["sampled"] * row),
        "batches": 0,
        "weights": 0,
    }
    for name, policy in learning(blue.program).items():
        if policy.replay is not None:
            window, one = policy.algorithm.item_rows or policy.unroll, blue.roles[name].row
            size = tree.nbytes(trajectory_specs(one, window, policy.batch))
            found["batches"] += version * size
        published = max(version, 0) // (policy.publish_every * blue.pace.updates)
        found["weights"] += published * shared.policies[name].weights.nbytes
    return found
