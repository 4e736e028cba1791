"""The worker at home that stands in for the actors of all other machines (``proxy.py``), and has their links."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.files import write_synced
from equipoise.programs.memory_needed import queue_plan
from equipoise.record import checkpoint
from equipoise.runtime.cluster.parts import parts
from equipoise.runtime.cluster.proxy import Proxy, Remote, Traffic
from equipoise.runtime.cluster.sockets import Keys, Listener
from equipoise.runtime.cluster.stepping import StandIn
from equipoise.runtime.cluster.wire import Refused
from equipoise.runtime.ipc import Outbox
from equipoise.runtime.messages import from_json
from equipoise.tree import ArraySpec
from equipoise.types import Stack, StateReader, StateWriter, Tick, Tree
from equipoise.workers.kind import Kind, Member, Queue, Site
from equipoise.workers.shared import Shared

if TYPE_CHECKING:
    from equipoise.runtime.blueprint import Blueprint

PATIENCE_S = 0.25  # a beat is due twice a second


@dataclass(frozen=True, slots=True)
class Expected:
    """A site that was started, and may connect."""

    name: str
    incarnation: int
    groups: tuple[int, ...]  # whose rows are written there
    stepped: tuple[int, ...]  # whose envs are only stepped there
    titles: tuple[str, ...]  # of its workers
    leaving: bool = False  # it was asked for its actors

    @classmethod
    def read(cls, order: Mapping[str, Any]) -> Expected:
        """The fields from JSON, which has lists for tuples."""
        given: dict[str, Any] = {name: tuple(got) if isinstance(got, list) else got for name, got in order.items()}
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where sites find the proxy, and how they prove that they belong to the run."""

    address: str  # of home's machine
    port: int
    keys: Keys
    sites: Keys
    digest: str  # of the Program
    handed: str  # a folder of home's machine, for the files of workers that are handed over
    silent_s: float  # after which the other end of a line counts as gone


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyJob:
    blueprint: Blueprint
    shared: Shared
    home: Home
    orders: Outbox  # of the driver: sites to expect from now on
    expected: tuple[Expected, ...]  # and those that there are already
    members: tuple[Member, ...]


class ProxyKind(Kind):
    """Stands in for the actors of other machines. Killed, it is to the queue what all of them are."""

    name = "proxy"
    numbered = False
    side = "beside"
    stands_in = True
    writes = True

    def __init__(self, home: Home, members: Sequence[Member], orders: Outbox) -> None:
        """``members``: of the run; the parts of what they count have the same numbers everywhere."""
        self._home, self._members, self._orders = home, tuple(members), orders
        self.expected: dict[str, Expected] = {}  # the driver's

    def count(self, blue: Blueprint) -> int:
        return 1

    def memory(self, blue: Blueprint) -> Tree:
        sites = {one.name: ArraySpec((len(self.expected),), "int64") for one in fields(Traffic)}
        return {"fences": Proxy.specs(blue.program.groups), "traffic": sites}

    def job(self, blue: Blueprint, shared: Shared, index: int, life: int) -> ProxyJob:
        while self._orders.receive():  # of a predecessor; they are among those that are expected
            pass
        return ProxyJob(
            blueprint=blue, shared=shared, home=self._home, orders=self._orders, expected=tuple(self.expected.values()),
            members=self._members,
        )  # fmt: skip

    def build(self, job: ProxyJob, site: Site) -> ProxyWorker:
        return ProxyWorker(job, site)

    def lost(self, blue: Blueprint, shared: Shared, queues: Sequence[Queue], index: int) -> str:
        fences = shared.own[self.name].views["fences"]
        for group in (group for expected in self.expected.values() for group in expected.stepped):
            if fences["gone"][group] > fences["cancelled"][group]:  # else their envs go on: the successor asks once more
                begin_anew(shared, group)
        for expected in self.expected.values():
            for group in expected.groups:
                queues[blue.learner_of(group)].cancel(blue.streams(group))
        fences["cancelled"][:] = fences["gone"]
        return ""

    def wakes(self, blue: Blueprint, index: int) -> tuple[str, ...]:
        return tuple(f"inference {number}" for number in range(blue.inferences))

    def listens(self, worker: ProxyWorker) -> tuple[int, ...]:
        return (worker.listener.fd,)

    def patience(self, worker: ProxyWorker) -> float | None:
        return PATIENCE_S


def begin_anew(shared: Shared, group: int) -> None:
    """The driver's: a group's envs were lost on the machine that stepped them, so their episodes begin anew."""
    assert shared.exchange is not None
    shared.exchange.lost(range(group, group + 1))


def all_stacks_of(blue: Blueprint) -> dict[str, Mapping[str, Stack]]:
    """The stacks in the observations of all policies."""
    return {name: role.spec.stacks for name, role in blue.roles.items()}


def stacks_of(blue: Blueprint) -> dict[str, Mapping[str, Stack]]:
    """The stacks in the observations of the policies that learn."""
    return {name: role.spec.stacks for name, role in blue.learns.items()}


class ProxyWorker:
    """Ticks the proxy, and does what concerns files and the driver."""

    ready = Tick.STARVED

    def __init__(self, job: ProxyJob, site: Site) -> None:
        blue, shared, home = job.blueprint, job.shared, job.home
        own = shared.own[ProxyKind.name].views
        self._site, self._orders, self._directory = site, job.orders, Path(blue.directory)
        self._handed, self._leaving = Path(home.handed), set[str]()
        self._files = {member.title: f"{member.file}.safetensors" for member in job.members}
        self._entries: dict[str, dict[str, Any]] = {}  # of files that have come, by their workers' titles
        rows = {member.title: site.board(member.title) for member in job.members}
        self._places = parts(blue, shared, rows, job.members)
        self._titles: dict[str, tuple[str, ...]] = {}  # of the workers of each site
        counted = [place.part for place in self._places.values()]
        groups = range(blue.program.groups)
        remotes = [Remote(group, site.queues[blue.learner_of(group)], blue.streams(group)) for group in groups]
        stepped = range(blue.program.groups if shared.exchange is not None else 0)
        stand_ins = {
            group: StandIn(shared.exchange, group, all_stacks_of(blue)) for group in stepped if shared.exchange is not None
        }
        bells = {group: site.bell(f"inference {blue.server(group)}") for group in stepped}
        versions = [policy.weights.handle() for policy in shared.policies.values()]
        self.proxy = Proxy(
            queue_plan(blue), remotes, versions, counted, own["fences"], lambda: (site.cut(), site.cut_step()), self,
            home.digest, stacks_of(blue), home.silent_s, stand_ins, lambda group: bells[group](),
        )  # fmt: skip
        self._traffic = own["traffic"]
        self._before = {name: array.copy() for name, array in self._traffic.items()}  # what a predecessor counted
        self._names = [one.name for one in job.expected]
        self._counted_at = 0.0
        self.listener = Listener(
            home.address, home.keys, home.sites.public, self.proxy.most, self.proxy.refused,
            groups=blue.program.groups, port=home.port, silent_s=home.silent_s,
        )  # fmt: skip
        for expected in job.expected:
            self._expect(expected)

    def _expect(self, site: Expected) -> None:
        self._leaving.discard(site.name)
        self._titles[site.name] = site.titles
        counts = [n for n, one in self._places.items() if one.of(site.titles)]
        link = self.listener.end(site.name, site.incarnation)
        self.proxy.expect(site.name, site.incarnation, site.groups, counts, link, site.stepped)
        if site.leaving:
            self._let_go(site.name)

    def _let_go(self, name: str) -> None:
        self._leaving.add(name)
        self.proxy.let_go(name)

    def tick(self) -> Tick:
        for order in self._orders.receive():
            if "let_go" in order:
                self._let_go(order["let_go"])
            else:
                self._expect(Expected.read(order))
        more = self.listener.collect()
        now = time.monotonic()
        if now - self._counted_at >= PATIENCE_S:
            self._counted_at = now
            self._count()
        worked = self.proxy.tick(now)
        return Tick.WORKED if more else worked

    def _count(self) -> None:
        for at, name in enumerate(self._names):
            for key, number in asdict(self.proxy.traffic(name)).items():
                self._traffic[key][at] = self._before[key][at] + number

    def said(self, site: str, title: str, message: Mapping[str, Any]) -> None:
        """A worker said this to its driver. The worker sent the files of its share before."""
        try:
            from_json(message)
        except ValueError as error:
            raise Refused("no JSON", f"said: {error}") from error
        if title not in self._titles[site]:
            raise Refused("wrong numbers", f"said: expected a worker of {site}, got {title!r}")
        if message.get("message") == "Saved" and title in self._entries:
            message = {**message, "files": self._entries.pop(title)}
        self._site.relay(title, message)

    def file(self, site: str, title: str, name: str, data: bytes) -> None:
        """Write a worker's file into the checkpoint that is aside."""
        if title not in self._titles[site] or name != self._files[title]:
            self._site.note(f"warning: {site} sent a file {name!r} of {title!r}, which has none of that name; it is left out")
            return
        if site in self._leaving:
            (self._handed / name).unlink(missing_ok=True)  # of a session that ended before all was here
            write_synced(self._handed / name, data)
            return
        place = checkpoint.aside(self._directory, self._site.cut_step())
        if place.is_dir():  # else the cut was given up meanwhile
            self._entries.setdefault(title, {}).update(checkpoint.add(place, name, data))

    def joined(self, site: str) -> None:
        self._site.linked(site, "")

    def left(self, site: str, how: str) -> None:
        self._site.linked(site, how)

    def save(self, to: StateWriter) -> None:
        """Nothing: what stands in for others has no state of its own."""

    def load(self, source: StateReader) -> None: ...

    def close(self) -> None:
        self._count()
        self.proxy.stop()
        self.listener.close()
