"""From what workers measured to the model's ring, and from a ring to that of a changed Program."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace

from equipoise.balance.model import HOME, Node, Outcome, Ring, Work, predict
from equipoise.balance.shares import Shares, add
from equipoise.facts import values_of
from equipoise.types import Policy, Program, first_learning

# nothing is predicted if other processes had the cores for this share of the time
MISSING = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A ring with measured costs; ``fit`` and ``unexplained`` measure how well it fits."""

    ring: Ring
    program: Program
    measured: float  # env steps a second
    outcome: Outcome  # the model's answer for the ring as it is
    writes: float = 0.0  # share of the learners' computing that goes into writing a replay's rows
    sums: float = 0.0  # seconds of a batch in which learners wait for nothing but sums
    # share of the time that passed while workers waited for cores which other processes had
    missing: float = 0.0
    # the most that overlapping both sides can gain, by their waits for each other
    overlap: float = float("inf")

    @property
    def fit(self) -> float:
        """Measured over predicted."""
        return self.measured / self.outcome.steps_per_s

    @property
    def doubt(self) -> str:
        """The reason why nothing can be predicted from this; "" if something can."""
        if self.missing < MISSING:
            return ""
        return (
            f"other processes had the cores for {self.missing:.0%} of the time, so its workers' "
            "times do not show the gain of a change; run it while the machine is idle"
        )

    @property
    def unexplained(self) -> float:
        """The share of a round in which no worker works, in lockstep."""
        return self.ring.handover_s * self.measured / (self.ring.per_batch * self.ring.steps)


def calibrate(
    program: Program,
    balance: Mapping[str, Shares],
    *,
    cores: float,
    machines: Mapping[str, str] | None = None,
) -> Calibrated | None:
    """A ring from what workers measured; None if that is too little or ``beyond`` the model.

    ``machines``: the machine of each worker that is not at home, by its title.
    """
    away = machines or {}
    actors = {
        title: one for title, one in balance.items() if one.side == "sampling" and not one.serves
    }
    servers = [one for one in balance.values() if one.serves]
    learners = [one for one in balance.values() if one.side == "learning"]
    shards = [one for one in balance.values() if one.side == "keeping"]
    if (
        not actors
        or not learners
        or min(one.done for one in (*actors.values(), *servers, *learners)) < 1.0
    ):
        return None
    if beyond(balance, away):
        return None
    # the first actors may have waited for the last one to begin
    seconds = max(one.total for one in actors.values())
    sums = min(one.spent("all-reduce") / one.done for one in learners)
    rounds = learners[0].done
    names = sorted(set(away.values()))
    at = [names.index(away[title]) if title in away else HOME for title in actors]
    ring = Ring(
        steps=steps_of_block(program),
        per_batch=blocks_of_batch(program),
        max_lag=program.placement.max_lag,
        actors=tuple(
            _work(one, one.done, waits=0.0 if servers else one.starved) for one in actors.values()
        ),
        halves=program.placement.halves,
        servers=tuple(_work(one, one.done) for one in servers),
        learn=(
            *(_learn(one, sums, program.placement.threads) for one in learners),
            *(_work(one, rounds) for one in shards),
        ),
        learners=len(learners),
        cores=cores,
        at=tuple(at),
    )
    ring = replace(ring, nodes=_nodes(ring))
    outcome = predict(ring)
    measured = rounds * ring.per_batch * ring.steps / seconds
    if outcome.steps_per_s <= 0.0:
        return None
    groups = ("learning", False), ("sampling", True), ("sampling", False)
    lost = [
        _lost(outcome, alike)
        for who in groups
        if (alike := {t: one for t, one in balance.items() if (one.side, one.serves) == who})
    ]
    # in lockstep one side's waiting is also the other's
    missing = min(sum(lost) if ring.max_lag == 0 else max(lost), 1.0)
    # if sides take turns, time that no work explains is the handover
    if ring.max_lag == 0 and measured < outcome.steps_per_s:
        # as if the run had all cores
        batch_s = ring.per_batch * ring.steps / measured * (1 - missing)
        ring = replace(
            ring, handover_s=max(batch_s - ring.per_batch * ring.steps / outcome.steps_per_s, 0.0)
        )
        outcome = predict(ring)
    busy = max(
        1 - add(learners).share("starved"), 1 - add(servers or actors.values()).share("blocked")
    )
    writes = sum(one.spent("insert") for one in learners) / max(
        sum(one.worked - one.asleep for one in learners), 1e-9
    )
    return Calibrated(
        ring=ring,
        program=program,
        measured=measured,
        outcome=outcome,
        writes=min(max(writes, 0.0), 1.0),
        sums=sums,
        missing=missing,
        overlap=1 / max(busy, 1e-9),
    )


def _lost(outcome: Outcome, alike: Mapping[str, Shares]) -> float:
    """The share of time that workers waited for a core beyond what the ring explains."""
    known = [outcome.workers[title].preempted for title in alike if title in outcome.workers]
    return max(
        add(alike.values()).share("preempted") - (statistics.fmean(known) if known else 0.0), 0.0
    )


def beyond(balance: Mapping[str, Shares], machines: Mapping[str, str]) -> str:
    """The parts of workers on several machines that the model lacks; "" if it has all.

    It has learners and shards at home, and inference workers on their actors' machines.
    """
    if learning := [
        title
        for title in machines
        if title in balance and balance[title].side in ("learning", "keeping")
    ]:
        return f"{learning[0]} on another machine than the first learner"
    inside = {machines.get(title) for title, one in balance.items() if one.serves}
    if inside and not inside >= {
        machines.get(title) for title, one in balance.items() if one.side == "sampling"
    }:
        return "central inference on another machine than its actors"
    return ""


def _nodes(ring: Ring) -> tuple[Node, ...]:
    """The actors' machines, which reserve a core for each actor and inference worker."""
    there = [*ring.at, *(ring.node_of_server(server) for server in range(len(ring.servers)))]
    return tuple(
        Node(cores=max(there.count(node), 1)) for node in range(max(ring.at, default=HOME) + 1)
    )


def _spread(at: Sequence[int], actors: int) -> tuple[int, ...]:
    """Where ``actors`` are: further ones go to the nodes with the fewest."""
    found = list(at[:actors])
    nodes = range(max(at, default=HOME) + 1)
    while len(found) < actors:
        found.append(min(nodes, key=found.count, default=HOME))
    return tuple(found)


def steps_of_block(program: Program) -> int:
    """Env steps of a block: an unroll of one group of envs."""
    return first_learning(program).unroll * program.placement.group_envs


def blocks_of_batch(program: Program) -> int:
    """Blocks of a batch; with a replay of a round, which has one of each group."""
    policy = first_learning(program)
    return (
        program.groups
        if policy.replay is not None
        else policy.batch // program.placement.group_envs
    )


def _work(one: Shares, pieces: float, *, waits: float = 0.0) -> Work:
    """A worker's seconds a piece of work. ``waits``: for an env that steps meanwhile."""
    asleep = min(max(one.asleep, 0.0), one.worked)
    return Work(
        cpu_s=max(one.worked - asleep, 0.0) / pieces, sleep_s=max(asleep + waits, 0.0) / pieces
    )


def _learn(one: Shares, sums: float, threads: int) -> Work:
    """A learner's part of a batch; of waiting for other learners only the ``sums``."""
    asleep = max(one.asleep - one.spent("all-reduce"), 0.0)
    works = max(one.worked - max(one.asleep, one.spent("all-reduce")), 0.0)
    return Work(cpu_s=works / one.done, sleep_s=asleep / one.done + max(sums, 0.0), threads=threads)


def changed(known: Calibrated, program: Program) -> Ring:
    """The ring of a changed Program: the work of each part grows with its rows, streams and passes.

    ValueError for a change that is not in the model.
    """
    before, ring = known.program, known.ring
    if unknown := unpredictable(before, program):
        raise ValueError(
            f"{unknown[0]}: the model does not cover a change of it; change it in a short run"
        )
    old, new = first_learning(before), first_learning(program)
    place, was = program.placement, before.placement
    envs = place.group_envs * new.unroll / (was.group_envs * old.unroll)
    actors = [work.times(envs) for work in ring.actors]
    usual = ring.usual.times(envs)
    passes = new.algorithm.epochs / old.algorithm.epochs
    rows = blocks_of_batch(program) * envs / ring.per_batch
    computes = sum(work.cpu_s for work in ring.learn[: ring.learners])
    sleeps = sum(work.sleep_s - known.sums for work in ring.learn[: ring.learners])
    part = passes * rows
    writes = 0.0
    if old.replay is not None and new.replay is not None:
        part = new.replay.updates / old.replay.updates * (new.batch / old.batch)
        writes = known.writes * computes
    each = _share(place.learners) / _share(was.learners) / was.learners
    computes = (writes * rows + (computes - writes) * part) * each
    sums = 0.0
    if place.learners > 1:
        sums = known.sums / _steps(old) * _steps(new) if was.learners > 1 else SUM_S * _steps(new)
    sleeps = sleeps * part / place.learners + sums
    shards = ring.learn[ring.learners :]
    count = new.replay.shards if new.replay is not None and shards else 0
    servers = _mean(ring.servers).times(envs) if ring.servers else None
    made = replace(
        ring,
        steps=steps_of_block(program),
        per_batch=blocks_of_batch(program),
        max_lag=place.max_lag,
        actors=(*actors[: place.actors], *(usual,) * (place.actors - len(actors))),
        halves=place.halves,
        servers=(servers,) * place.inference_workers if servers is not None else (),
        learn=(
            *(Work(cpu_s=computes, sleep_s=sleeps, threads=place.threads),) * place.learners,
            *((_mean(shards).times(len(shards) / count * part),) * count if count else ()),
        ),
        learners=place.learners,
        at=_spread(ring.at, place.actors),
    )
    return replace(made, nodes=_nodes(made))


# The costs of several learners (benchmarks/learners.py, two cores): a share of a learner's
# computing does not shrink with its part of the batch, and a step waits for the sums.
FIXED, SUM_S = 0.5, 0.004
PREDICTED = frozenset(
    {
        "placement.actors",
        "placement.envs_per_actor",
        "placement.max_lag",
        "placement.learners",
        "placement.inference_workers",
        "policy.unroll",
        "policy.batch",
        "algorithm.epochs",
        "replay.updates",
        "replay.shards",
    }
)


def _share(learners: int) -> float:
    """The computing of each of ``learners``, over that of one alone."""
    return FIXED + (1 - FIXED) / learners


def _steps(policy: Policy) -> int:
    """Optimiser steps of a batch, or of a round."""
    if policy.replay is not None:
        return policy.replay.updates
    return policy.algorithm.epochs * policy.algorithm.minibatches


def unpredictable(before: Program, after: Program) -> list[str]:
    """The settings that differ and whose effect on steps/s is not in the model."""
    found = _differences(("source", "placement", "route"), before, after)
    if before.policies.keys() != after.policies.keys():
        found.append("policies")
    for name, one in before.policies.items():
        if isinstance(one, Policy) and isinstance(other := after.policies.get(name), Policy):
            room = "" if len(before.policies) == 1 else f"policies.{name}."
            found += [f"{room}{key}" for key in _differences_of_policies(one, other)]
        elif one != after.policies.get(name):
            found.append(f"policies.{name}")
    return [key for key in found if key not in PREDICTED]


def _differences_of_policies(one: Policy, other: Policy) -> list[str]:
    found = _differences(("algorithm", "optimizer", "rewards", "replay"), one, other)
    found += [
        f"policy.{key}" for key in _differences(("unroll", "batch", "publish_every"), one, other)
    ]
    if (
        one.replay is not None
        and other.replay is not None
        and (one.replay.shards > 1) != (other.replay.shards > 1)
    ):
        # with one shard the learner keeps the rows itself, whose cost was not measured
        found.append("replay.shards, from one or to one")
    return found


def _differences(rooms: Sequence[str], before: object, after: object) -> list[str]:
    """The fields in which these parts of two dataclasses differ, or a part if its types do."""
    one, other = values_of(before), values_of(after)
    found: list[str] = []
    for room in rooms:
        if is_dataclass(one[room]) and type(one[room]) is type(other[room]):
            mine, theirs = values_of(one[room]), values_of(other[room])
            found += [f"{room}.{name}" for name in mine if mine[name] != theirs[name]]
        elif one[room] != other[room]:
            found.append(room)
    return found


def _mean(works: Collection[Work]) -> Work:
    return Work(
        cpu_s=statistics.fmean(work.cpu_s for work in works),
        sleep_s=statistics.fmean(work.sleep_s for work in works),
    )
