"""A runtime's report of a run, so that no caller reads its memory: numbers of the moment, and the
actors' part of a record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from equipoise.actors.calls import ledger
from equipoise.actors.episodes import first_returns, recent, recent_info
from equipoise.actors.forward.rounding import kind_of, rounding_metrics
from equipoise.balance.shares import Shares
from equipoise.envs.failures.capsule import COUNTED
from equipoise.envs.failures.causes import most_frequent
from equipoise.plans.blueprint import Blueprint
from equipoise.record.report import Measured
from equipoise.runtime import flow
from equipoise.runtime.board import Board
from equipoise.runtime.messages import Record
from equipoise.runtime.usage import Usage
from equipoise.workers.kind import (
    KeepingKind,
    LearningKind,
    Member,
    SamplingKind,
    SteppingKind,
    WritingKind,
)
from equipoise.workers.lending import lending
from equipoise.workers.shared import Shared

PROMISING_EPISODES = 20
# of the queue: the first is the sum of the others
ROWS = ("inserted", "sampled", "dropped", "held")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStats(Measured):
    """A run at one moment, as plain data."""

    version: int  # the newest
    workers: Mapping[str, Shares]  # seconds by state since the run began, by the workers' titles
    recent_return: float | None  # mean of the last ``PROMISING_EPISODES`` episodes
    episodes: int  # ended so far; the next three are of the last 100 of them, as in a ``Record``
    return_mean: float | None
    length_mean: float | None
    info: Mapping[str, float | None]
    ticks: tuple[int, ...]  # how often each group of envs was stepped
    rows: Mapping[str, int]  # the fate of the rows of the queue, and of the rows that shards took
    failures: Mapping[str, Mapping[str, int]]  # of envs, by the title of the worker that steps them
    aborted: Mapping[str, int]  # episodes by the text of what aborted them, the most frequent first
    lags: Mapping[str, Sequence[float]] = field(default_factory=dict)  # histograms: see ``flow.py``
    # CPU and memory of the processes of this machine, by title
    usage: Mapping[str, Usage] = field(default_factory=dict)
    # connections and messages of other machines, by the reason
    refused: Mapping[str, int] = field(default_factory=dict)
    # number, mean and deviation of the first returns of every stream
    first: tuple[int, float, float] | None = None
    acting: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # by acting worker: version of the open unroll, and its end row

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def stats(
    blue: Blueprint, members: Sequence[Member], board: Board, shared: Shared, *, alone: bool
) -> RunStats:
    """Read the memory of a run. ``alone``: each worker has a process of its own."""
    # before what acts: no version there is older than it seems
    seconds, version = board.shares(alone=alone), shared.version
    ticks = tuple(episodes.ticks for episodes in shared.actors)
    count, mean, length = recent(shared.episodes)
    rows, lent = _rows_of_queues(shared), _lending(blue, shared)
    return RunStats(
        version=version,
        workers={
            member.title: replace(
                member.shares(seconds[member.title]), done=_done(blue, member, ticks, version)
            )
            for member in members
        },
        recent_return=recent(shared.episodes, PROMISING_EPISODES)[1],
        episodes=count,
        return_mean=mean,
        length_mean=length,
        info=recent_info(shared.episodes),
        ticks=ticks,
        taken=sum(ticks) * blue.program.placement.group_envs,
        rows=rows | _rows_of_shards(shared),
        lags=flow.lags(board, shared),
        occupancy=flow.occupancy(blue, shared, members),
        lent=lent.get("lent", 0),
        switches=lent.get("switches", 0),
        handed_over=lent.get("handed_over", 0),
        moved=flow.moved(blue, shared, rows, shared.version),
        failures={
            member.title: dict(
                zip(COUNTED, sum(shared.actors[g].failures for g in groups).tolist(), strict=True)
            )
            for member in members
            if isinstance(member.kind, SteppingKind) and (groups := member.groups(blue))
        },
        aborted=most_frequent([episodes.causes for episodes in shared.actors]),
        phases=board.phases(),
        first=first_returns(shared.episodes),
        acting=_acting(blue, members, shared),
    )


def _done(blue: Blueprint, member: Member, ticks: Sequence[int], version: int) -> float:
    """The work that a worker has done: blocks of rows, or batches that were learned from."""
    kind = member.kind
    if isinstance(kind, SamplingKind) and kind.in_blocks and (groups := member.groups(blue)):
        return sum(ticks[group] for group in groups) / blue.unroll
    if isinstance(member.kind, LearningKind | KeepingKind):
        return blue.pace.steps(version) / blue.pace.rows
    return 0.0


def _lending(blue: Blueprint, shared: Shared) -> dict[str, int]:
    """Numbers of an elastic run; {} for a run of another kind."""
    if (words := lending(shared)) is None:
        return {}
    return {
        "lent": blue.learners if words.lent else 0,
        "switches": words.switches,
        "handed_over": int(words.handed.sum()),
    }


def _acting(
    blue: Blueprint, members: Sequence[Member], shared: Shared
) -> dict[str, tuple[int, int]]:
    """The version and the end row of the open unroll of each group of envs, by the title of the
    worker that acts for it.
    """
    found = {}
    for member in (one for one in members if isinstance(one.kind, WritingKind)):
        groups = member.groups(blue)
        for group in groups:
            found[member.title if len(groups) == 1 else f"{member.title}, envs {group}"] = (
                shared.actors[group].acting
            )
    return found


def _rows_of_queues(shared: Shared) -> dict[str, int]:
    """The fate of the rows of the queues of all learners."""
    found = [queue.stats() for queue in shared.queues.values()]
    return {name: sum(int(one[name]) for one in found) for name in ROWS}


def _rows_of_shards(shared: Shared) -> dict[str, int]:
    """The fate of the rows that shards took, of all policies."""
    found: dict[str, int] = {}
    for post in (post for mailboxes in shared.mailboxes.values() for post in mailboxes):
        found = {name: found.get(name, 0) + rows for name, rows in post.stats().items()}
    return found


def joiner(blue: Blueprint, shared: Shared) -> Callable[[Mapping[str, Any]], Record]:
    """The function that makes a learner's record whole: it adds the episodes of all actors, at the
    moment of the call.

    The learner records before it frees a batch. In lockstep every actor waits at that moment, so a
    record holds the same numbers in every runtime.
    """
    several = len(blue.roles) > 1
    kinds = {
        name: kind_of(blue.network(name), blue.roles[name].row.action)
        for name, policy in shared.policies.items()
        if policy.rounding
    }

    def join(record: Mapping[str, Any]) -> Record:
        count, mean, length = recent(shared.episodes)
        metrics = dict(record["metrics"])
        for name, policy in shared.policies.items() if several else ():
            _, of_policy, its_length = recent(policy.episodes)
            if of_policy is not None:
                metrics |= {f"{name}/return_mean": of_policy, f"{name}/length_mean": its_length}
        for name, kind in kinds.items():
            said = rounding_metrics(shared.policies[name].rounding, kind, record["version"])
            metrics |= {f"{name}/{key}": x for key, x in said.items()} if several else said
        metrics |= {f"lending/{name}": float(x) for name, x in _lending(blue, shared).items()}
        if (calls := shared.own.get("caller")) is not None:
            metrics |= ledger.metrics(calls.views)
        return Record(
            version=record["version"],
            at=time.monotonic(),
            lag_mean=record["lag_mean"],
            lag_max=record["lag_max"],
            metrics=metrics,
            episodes=count,
            return_mean=mean,
            length_mean=length,
            aborted=sum(int(one.failures[0]) for one in shared.actors),
            info=recent_info(shared.episodes),
            partial=record["partial"],
        )

    return join
