"""A model of the ring: from what a piece of work takes to steps/s, the shares of the time, and the
lag.

The laws are the laws of the queue (``experience/queue/queue.py``): a block is one unroll of one
group of envs, and the place of a block is dealt again when the batch that was there has been
learned from. So a bound on the lag holds workers back here as it does in a run. All workers of a
machine share its cores. The model leaves out caches and memory bandwidth, and the difference
between one unroll and the next.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from equipoise.balance.simulation import Cores, Gate, Process, Simulation, Use

# pieces of a block: each takes the newest weights, and cores and servers are shared between them
CHUNKS = 4
EVENTS = 60_000  # most of a prediction: about a quarter of a second
WARM, MOST_WARM = 3, 60  # batches in each place before anything is measured, and the most batches
MEASURED = 12  # the fewest measured batches, and blocks of each actor:
BLOCKS = 3
LEAST_S = 1e-6  # of a piece of work
HOME = -1  # in place of a node's number: the learners' machine
LOSSES = 5  # mean times between the losses of a node that are measured at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A piece of work: seconds of computing with a core for each thread, and seconds elsewhere."""

    cpu_s: float
    sleep_s: float = 0.0
    threads: int = 1

    @property
    def seconds(self) -> float:
        return self.cpu_s + self.sleep_s

    def times(self, factor: float) -> Work:
        return replace(self, cpu_s=self.cpu_s * factor, sleep_s=self.sleep_s * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine other than the learners'."""

    cores: float
    block_s: float = 0.0  # that a block needs on its link to home, if nothing else is on it
    version_s: float = 0.0  # a version on the way back
    latency_s: float = 0.0  # of a message
    # mean time until it is lost, with the blocks that are begun there; 0: never
    lost_s: float = 0.0
    back_s: float = 0.0  # until there is another one


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A run in the terms of the model."""

    steps: int  # env steps of a block
    per_batch: int  # blocks of a batch, of all learners together
    max_lag: int | None
    # each one's part of a block: its envs, and without ``servers`` its acting
    actors: tuple[Work, ...]
    # groups of envs of an actor, of which one is stepped while actions for the other are chosen
    halves: int = 1
    servers: tuple[Work, ...] = ()  # the inference workers' part of a block
    # work on a batch of each learner, then of each shard of a replay, side by side
    learn: tuple[Work, ...]
    learners: int = 1  # the first of ``learn``
    # of a batch that the learner waits for: the time that passes besides work
    handover_s: float = 0.0
    cores: float
    nodes: tuple[Node, ...] = ()
    # the node of each actor, or HOME; empty: all actors are at home
    at: tuple[int, ...] = ()
    home_block_s: float = 0.0  # that a block needs on home's link
    home_version_s: float = 0.0  # and a version to one node

    @property
    def usual(self) -> Work:
        """The time that most actors take for their part of a block."""
        return sorted(self.actors, key=lambda work: work.seconds)[(len(self.actors) - 1) // 2]

    def node_of_server(self, server: int) -> int:
        """The node of this inference worker: with the first of the actors that it acts for."""
        return (
            self.at[-(-(server * len(self.actors) + 1) // len(self.servers)) - 1]
            if self.at
            else HOME
        )

    @property
    def places(self) -> int:
        groups = len(self.actors) * self.halves
        return (
            2 * max(groups, self.per_batch)
            if self.max_lag is None
            else self.per_batch * (self.max_lag + 1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Shares of a worker's time, 0..1."""

    worked: float = 0.0
    preempted: float = 0.0
    starved: float = 0.0
    blocked: float = 0.0
    steps: bool = False  # it steps envs


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The model's answer for a ring."""

    steps_per_s: float
    lag: float  # versions, mean over rows
    fetches_per_s: float = 0.0  # versions that went to a node
    workers: Mapping[str, Spent] = field(default_factory=dict)


def predict(ring: Ring, *, events: int = EVENTS) -> Outcome:
    """Simulate the ring until it runs evenly, and measure it then, for at most ``events``."""
    return _Run(ring).outcome(events)


class _Clock:
    """Seconds of one worker by state; ``groups`` of envs that it steps."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.worked = self.preempted = self.starved = self.blocked = 0.0

    def values(self) -> tuple[float, float, float, float]:
        return self.worked, self.preempted, self.starved, self.blocked


class _Node:
    """The state of a node during the simulation."""

    def __init__(self, simulation: Simulation, of: Node) -> None:
        self.of, self.cores = of, Cores(simulation, of.cores)
        self.up, self.down = Cores(simulation, 1.0), Cores(simulation, 1.0)
        self.gate = Gate(simulation)  # it has a version, or is back
        self.version, self.lives = -1, 0
        self.fetching = self.gone = False


class _Run:
    def __init__(self, ring: Ring) -> None:
        self._ring, self._simulation = ring, Simulation()
        self._cores = Cores(self._simulation, ring.cores)
        self._groups = len(ring.actors) * ring.halves
        self._tokens: list[deque[int]] = [
            deque() for _ in range(self._groups if ring.max_lag == 0 else 1)
        ]
        self._lags: dict[int, float] = {}  # by block that is complete: the mean version of its rows
        self._order: deque[int] = deque()  # in which blocks came to be complete
        self._next = self._version = self._fetched = 0
        self._lag_sum = self._published = 0.0  # when the newest version was
        self._dealt, self._complete, self._busy = (
            Gate(self._simulation),
            Gate(self._simulation),
            Gate(self._simulation),
        )
        self._taken = [False] * len(ring.actors)  # an actor steps one of its groups at a time
        self._serving = [False] * len(ring.servers)
        self._blocks = [0] * len(ring.actors)
        self._clocks: dict[str, _Clock] = {}
        self._part = Gate(self._simulation)
        self._begun = 0  # batches that were begun to be learned from
        self._learned = [0] * len(ring.learn)
        # home's link, each way
        self._up, self._down = Cores(self._simulation, 1.0), Cores(self._simulation, 1.0)
        self._nodes = [_Node(self._simulation, node) for node in ring.nodes]
        self._node = [
            None if at == HOME else self._nodes[at] for at in ring.at or (HOME,) * len(ring.actors)
        ]
        servers = [ring.node_of_server(server) for server in range(len(ring.servers))]
        self._serves_on = [self._cores if at == HOME else self._nodes[at].cores for at in servers]
        for number, node in enumerate(self._nodes):
            if node.of.lost_s > 0.0:
                self._simulation.start(self._loses(node, random.Random(number)))
        self._deal(range(ring.places))
        for actor in range(len(ring.actors)):
            clock = self._clock(f"actor {actor}", ring.halves)
            for half in range(ring.halves):
                self._simulation.start(self._acts(actor, actor * ring.halves + half, clock))
        for k, work in enumerate(ring.learn):
            title = f"learner {k}" if k < ring.learners else f"shard {k - ring.learners}"
            self._simulation.start(
                self._learns(k, work, self._clock("learner" if title == "learner 0" else title))
            )

    def _clock(self, title: str, groups: int = 0) -> _Clock:
        return self._clocks.setdefault(title, _Clock(groups))

    def outcome(self, events: int) -> Outcome:
        ring, simulation = self._ring, self._simulation
        warm = min(max(WARM * -(-ring.places // ring.per_batch), 2), MOST_WARM)
        last = warm + MEASURED
        # with a bound all places may be learned from and written again together: count whole rounds
        together = 1 if ring.max_lag is None else ring.max_lag + 1
        went = self._until(warm, events)
        blocks = list(self._blocks)
        before, lag_before = (
            {title: clock.values() for title, clock in self._clocks.items()},
            self._lag_sum,
        )
        at = self._published
        version, fetched = self._version, self._fetched
        enough = False
        while went and not enough:
            went = self._until(self._version + together, simulation.events + events)
            each = min(b - a for a, b in zip(blocks, self._blocks, strict=True))
            long = simulation.now - at >= LOSSES * max(
                (node.lost_s + node.back_s for node in ring.nodes if node.lost_s), default=0
            )
            enough = simulation.events > events or (
                self._version >= last and each >= BLOCKS and long
            )
        span, batches = self._published - at, self._version - version
        if not went or span <= 0.0:
            return Outcome(steps_per_s=0.0, lag=0.0)
        workers = {}
        for title, clock in self._clocks.items():
            spent = [
                (b - a) / (simulation.now - at)
                for a, b in zip(before[title], clock.values(), strict=True)
            ]
            waits = max(clock.groups, 1)  # each of them waits, and one at a time works
            workers[title] = Spent(
                worked=spent[0],
                preempted=max(spent[1], 0.0),
                starved=spent[2] / waits,
                blocked=spent[3] / waits,
                steps=clock.groups > 0,
            )
        rate = batches * ring.per_batch * ring.steps / span
        return Outcome(
            steps_per_s=rate,
            lag=(self._lag_sum - lag_before) / max(batches * ring.per_batch, 1),
            workers=workers,
            fetches_per_s=(self._fetched - fetched) / span,
        )

    def _until(self, version: int, events: int) -> bool:
        """Simulate until this version, or for this number of events -> can it go on?"""
        while self._version < version and self._simulation.events <= events:
            if not self._simulation.step():
                return False
        return True

    def _deal(self, sequences: Sequence[int] | range) -> None:
        for sequence in sequences:
            self._tokens[sequence % len(self._tokens)].append(sequence)
        self._dealt.open(None if len(self._tokens) > 1 else len(sequences))

    def _works(
        self, work: Work, share: float, clock: _Clock, cores: Cores | None = None
    ) -> Process:
        """Do a share of this work, on the cores of home or of another machine, and elsewhere."""
        began = self._simulation.now
        # all work takes time: without that a process could run for ever at one moment
        yield Use(cores or self._cores, max(work.cpu_s * share, LEAST_S), work.threads)
        clock.preempted += self._simulation.now - began - work.cpu_s * share
        if work.sleep_s > 0.0:
            yield work.sleep_s * share
        clock.worked += work.seconds * share

    def _acts(self, actor: int, group: int, clock: _Clock) -> Process:
        ring, simulation = self._ring, self._simulation
        node = self._node[actor]
        mine = self._tokens[group % len(self._tokens)]
        # each acts for actors that follow each other
        server = ((actor + 1) * len(ring.servers) - 1) // len(ring.actors)
        serves = self._clock(f"inference {server}") if ring.servers else clock
        for _ in itertools.count():
            began = simulation.now
            while not mine:
                yield self._dealt
            sequence, versions = mine.popleft(), 0.0
            if node is not None:
                yield 2 * node.of.latency_s
                while node.gone:
                    yield node.gate
                yield from self._fetches(node)
            clock.blocked += simulation.now - began
            life = 0 if node is None else node.lives
            for _ in range(CHUNKS):
                versions += (self._version if node is None else node.version) / CHUNKS
                while self._taken[actor]:
                    yield self._busy
                self._taken[actor] = True
                yield from self._works(
                    ring.actors[actor], 1 / CHUNKS, clock, None if node is None else node.cores
                )
                self._taken[actor] = False
                self._busy.open()
                if ring.servers:
                    began = simulation.now
                    while self._serving[server]:
                        yield self._busy
                    self._serving[server] = True
                    yield from self._works(
                        ring.servers[server], 1 / CHUNKS, serves, self._serves_on[server]
                    )
                    self._serving[server] = False
                    self._busy.open()
                    clock.starved += simulation.now - began
            if node is None:
                self._arrives(actor, sequence, versions)
            elif node.lives == life:
                simulation.start(self._sends(actor, node, sequence, versions))
            else:
                mine.appendleft(sequence)
                self._dealt.open(1)

    def _arrives(self, actor: int, sequence: int, versions: float) -> None:
        self._blocks[actor] += 1
        self._lags[sequence] = versions
        self._order.append(sequence)
        self._complete.open()

    def _sends(self, actor: int, node: _Node, sequence: int, versions: float) -> Process:
        """Carry a block home, while its actor goes on."""
        yield Use(self._up, self._ring.home_block_s)
        # both links carry it at once, the slower one longer
        yield Use(node.up, max(node.of.block_s - self._ring.home_block_s, 0.0))
        yield node.of.latency_s
        self._arrives(actor, sequence, versions)

    def _fetches(self, node: _Node) -> Process:
        """Wait until the node has today's version; one of its actors fetches it for all actors."""
        wanted = self._version
        while node.version < wanted:
            if node.fetching:
                yield node.gate
                continue
            node.fetching, fetched = True, self._version
            yield Use(self._down, self._ring.home_version_s)
            yield Use(node.down, max(node.of.version_s - self._ring.home_version_s, 0.0))
            yield node.of.latency_s
            node.fetching, node.version = False, fetched
            self._fetched += 1
            node.gate.open()

    def _loses(self, node: _Node, draw: random.Random) -> Process:
        """Lose the node now and then, with the blocks that are begun there."""
        while True:
            yield draw.expovariate(1 / node.of.lost_s)
            node.lives, node.gone = node.lives + 1, True
            yield node.of.back_s
            node.gone, node.version = False, -1  # it is another one
            node.gate.open()

    def _batch(self) -> list[int] | None:
        """The next batch's blocks in the order of dealing, or without a bound of completion."""
        ring = self._ring
        if ring.max_lag is None:
            found = list(itertools.islice(self._order, ring.per_batch))
        else:
            found = [s for s in range(self._next, self._next + ring.per_batch) if s in self._lags]
        if len(found) < ring.per_batch:
            return None
        for sequence in found:
            self._order.remove(sequence)
        self._next += ring.per_batch
        return found

    def _learns(self, rank: int, work: Work, clock: _Clock) -> Process:
        """Take part in each batch, from when the first begins it until the last is done."""
        simulation = self._simulation
        for number in itertools.count():
            began = simulation.now
            waits = False
            while self._begun <= number:
                if rank == 0 and (batch := self._batch()) is not None:
                    if waits and self._ring.handover_s:
                        yield self._ring.handover_s
                    self._current = batch
                    self._begun += 1
                    self._part.open()
                    break
                waits = True
                yield self._complete if rank == 0 else self._part
            clock.starved += simulation.now - began
            yield from self._works(work, 1.0, clock)
            self._learned[rank] += 1
            began = simulation.now
            if min(self._learned) > number:
                self._publish()
                self._part.open()
            while min(self._learned) <= number:
                yield self._part
            clock.blocked += simulation.now - began

    def _publish(self) -> None:
        for sequence in self._current:
            self._lag_sum += self._version - self._lags.pop(sequence)
        self._version, self._published = self._version + 1, self._simulation.now
        self._deal([sequence + self._ring.places for sequence in self._current])
