"""A forecast of a run on machines that are not rented yet: the model of the ring, with nodes and
links between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from equipoise.balance.model import HOME, Node, Outcome, Ring, Work, predict
from equipoise.schema import Either, Items, Number, Schema, Text, check

EVENTS = 400_000  # of a forecast: some seconds
BUSY = 0.9  # a part that works so much of the time is what the run is bound by
POSITIVE, SHARE = Number(1e-9, 1e12), Number(0, 1e12)
COUNT = Number(1, 100_000, whole=True)
LEARNERS: Schema = {
    "cores": COUNT,
    "speed?": POSITIVE,
    "learner_speed?": POSITIVE,
    "mbit?": POSITIVE,
    "dollars_per_hour?": SHARE,
}
NODES: Schema = {
    "count?": COUNT,
    "actors": COUNT,
    "cores": COUNT,
    "speed?": POSITIVE,
    "mbit?": POSITIVE,
    "latency_ms?": SHARE,
    "dollars_per_hour?": SHARE,
    "lost_per_hour?": SHARE,
    "back_s?": SHARE,
}
WORK: Schema = {
    "unroll": COUNT,
    "envs": COUNT,
    "blocks": COUNT,
    "max_lag": Either((Number(0, 1000, whole=True), Text(among=("none",)))),
    "step_us": POSITIVE,
    "sleep_us?": SHARE,
    "learn_ms": POSITIVE,
    "bytes_per_step": SHARE,
    "version_bytes": SHARE,
}
CLUSTER: Schema = {"home": LEARNERS, "nodes?": Items(NODES, 1000), "work?": WORK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The learners' machine. Speeds are relative to the machine on which the costs were
    measured.
    """

    cores: int
    speed: float = 1.0  # of a core
    learner_speed: float = 1.0  # of the device that learns
    mbit: float = 10_000.0  # of its link, each way
    dollars_per_hour: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Machines of one kind, each with the same number of actors."""

    count: int = 1
    actors: int
    cores: int
    speed: float = 1.0
    mbit: float = 10_000.0
    latency_ms: float = 0.1
    dollars_per_hour: float = 0.0
    lost_per_hour: float = 0.0  # of one machine
    back_s: float = 60.0  # until another one is in its place


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    home: Home
    nodes: tuple[Machines, ...] = ()

    @property
    def dollars_per_hour(self) -> float:
        return self.home.dollars_per_hour + sum(
            one.count * one.dollars_per_hour for one in self.nodes
        )

    def times(self, factor: float) -> Cluster:
        """``factor`` times the machines for actors, at least one of each kind."""
        return replace(
            self,
            nodes=tuple(
                replace(one, count=max(round(one.count * factor), 1)) for one in self.nodes
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """The bytes that cross the network."""

    step: float  # of an env step, to home
    version: float  # of the weights, to each node that uses a version


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    actors: int
    steps_per_s: float
    lag: float  # versions, mean over rows
    learner: float  # share of its time in which it works
    acting: float  # the same of the actors, their mean
    home_mbit: float  # into home, and out of it: the larger one
    bound: str  # the bottleneck
    dollars_per_million: float | None  # env steps; None if no price is known


def read(data: Mapping[str, Any], where: str) -> tuple[Cluster, Ring | None, Bytes | None]:
    """Read a cluster file -> the cluster, and of a ``[work]`` one actor's ring and bytes."""
    check(data, CLUSTER, where)
    cluster = Cluster(
        home=Home(**data["home"]), nodes=tuple(Machines(**one) for one in data.get("nodes", ()))
    )
    if (work := data.get("work")) is None:
        return cluster, None, None
    steps = work["unroll"] * work["envs"]
    ring = Ring(
        steps=steps,
        per_batch=work["blocks"],
        max_lag=None if work["max_lag"] == "none" else work["max_lag"],
        actors=(
            Work(
                cpu_s=steps * work["step_us"] / 1e6,
                sleep_s=work["unroll"] * work.get("sleep_us", 0.0) / 1e6,
            ),
        ),
        learn=(Work(cpu_s=0.0, sleep_s=work["learn_ms"] / 1e3),),
        cores=1,
    )
    return cluster, ring, Bytes(step=work["bytes_per_step"], version=work["version_bytes"])


def forecast(ring: Ring, cluster: Cluster, sizes: Bytes, *, at_home: int = 0) -> Forecast:
    """Forecast the ring's usual actor on a cluster; ``at_home``: actors on home's cores."""
    if ring.servers and cluster.nodes:
        raise ValueError(
            "nodes: expected a run whose actors act themselves, got one with central inference; "
            "train with local"
        )
    usual, home, block = ring.usual, cluster.home, ring.steps * sizes.step
    nodes, actors, at = list[Node](), list[Work](), list[int]()
    for one in cluster.nodes:
        node = Node(
            cores=one.cores,
            block_s=block * 8e-6 / one.mbit,
            version_s=sizes.version * 8e-6 / one.mbit,
            latency_s=one.latency_ms / 1e3,
            lost_s=3600 / one.lost_per_hour if one.lost_per_hour else 0.0,
            back_s=one.back_s,
        )
        at += [len(nodes) + number for number in range(one.count) for _ in range(one.actors)]
        nodes += [node] * one.count
        actors += [replace(usual, cpu_s=usual.cpu_s / one.speed)] * (one.actors * one.count)
    actors += [replace(usual, cpu_s=usual.cpu_s / home.speed)] * at_home
    at += [HOME] * at_home
    learn = tuple(
        replace(work.times(1 / home.learner_speed), threads=work.threads) for work in ring.learn
    )
    made = replace(
        ring,
        actors=tuple(actors),
        learn=learn,
        cores=home.cores,
        nodes=tuple(nodes),
        at=tuple(at),
        # between machines it is the links' time, which the cluster gives
        handover_s=0.0 if ring.nodes else ring.handover_s,
        home_block_s=block * 8e-6 / home.mbit,
        home_version_s=sizes.version * 8e-6 / home.mbit,
    )
    return _told(predict(made, events=EVENTS), made, cluster, sizes)


def _told(outcome: Outcome, ring: Ring, cluster: Cluster, sizes: Bytes) -> Forecast:
    acting = [one.worked for one in outcome.workers.values() if one.steps]
    learner = outcome.workers["learner"].worked
    rate = outcome.steps_per_s
    into, out = (
        rate * sizes.step * 8e-6 * bool(ring.nodes),
        outcome.fetches_per_s * sizes.version * 8e-6,
    )
    mbit, mean = max(into, out), sum(acting) / len(acting)
    shares = {"the learner": learner, "the actors": mean, "home's link": mbit / cluster.home.mbit}
    bound = max(shares, key=lambda name: shares[name])
    return Forecast(
        actors=len(ring.actors),
        steps_per_s=rate,
        lag=outcome.lag,
        learner=learner,
        acting=mean,
        home_mbit=mbit,
        bound=bound if shares[bound] >= BUSY else "the lag bound or latency",
        dollars_per_million=cluster.dollars_per_hour / 3600 / rate * 1e6
        if cluster.dollars_per_hour and rate
        else None,
    )
