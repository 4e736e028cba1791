"""The worker at home that stands in for the actors of all other machines (``proxy.py``), and has
their links.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.curve import Keys
from equipoise.experience.queue.unstacked import BlockPacker
from equipoise.files import sync_directory, write_synced
from equipoise.plans.memory_needed import queue_plan
from equipoise.record import checkpoint
from equipoise.record.checkpoint import Entry
from equipoise.runtime.cluster.blocks import HomeBlocks, Remote
from equipoise.runtime.cluster.carried import Carried, most_bytes
from equipoise.runtime.cluster.home_site import HomeSite
from equipoise.runtime.cluster.keeping import HomeShards, RemoteShard
from equipoise.runtime.cluster.parts import HomeParts, parts
from equipoise.runtime.cluster.proxy import MOST, Proxy, Traffic
from equipoise.runtime.cluster.sockets import Listener
from equipoise.runtime.cluster.stepping import HomeSteps, RemoteEnvs
from equipoise.runtime.cluster.weights import HomeWeights, Newest
from equipoise.runtime.cluster.wire import Refused, Tally
from equipoise.runtime.ipc import Outbox
from equipoise.runtime.messages import (
    Failed,
    HandedOver,
    Lost,
    Note,
    Saved,
    Written,
    from_json,
    to_json,
)
from equipoise.runtime.site import LocalSite
from equipoise.tree import ArraySpec
from equipoise.types import Stack, StateReader, StateWriter, Tick, Tree
from equipoise.workers.kind import (
    Kind,
    LearningKind,
    Member,
    OwnsMemory,
    Prepares,
    Queue,
    ServingKind,
    Site,
    StandsIn,
    Unnumbered,
    Waits,
    Wakes,
    Woken,
    held_at_once,
)
from equipoise.workers.shared import Shared

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint

PATIENCE_S = 0.25  # a beat is due twice a second
# messages of workers of sites, and of their sites, to the driver
SAID = (Note, Failed, Saved, Written, HandedOver, Lost)


@dataclass(frozen=True, slots=True)
class Expected:
    """A site that was started, and may connect."""

    name: str
    incarnation: int
    groups: tuple[int, ...]  # whose rows are written there
    stepped: tuple[int, ...]  # whose envs are only stepped there
    titles: tuple[str, ...]  # of its workers
    shards: tuple[int, ...] = ()  # that keep rows there
    kept: tuple[int, ...] = ()  # the groups whose rows they keep
    leaving: bool = False  # it was asked for its actors

    @classmethod
    def read(cls, order: Mapping[str, object]) -> Expected:
        """The fields from JSON, which has lists for tuples."""
        given: dict[str, Any] = {
            name: tuple(got) if isinstance(got, list) else got for name, got in order.items()
        }
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The address of the proxy, and the proof by which sites belong to the run."""

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
    orders: Outbox  # of the driver: sites to expect from now on, or to let go of
    expected: tuple[Expected, ...]  # and the sites that there already are
    members: tuple[Member, ...]


class ProxyKind(Kind, Unnumbered, Prepares, OwnsMemory, Wakes, Waits["ProxyWorker"], StandsIn):
    """Stands in for the actors of other machines. If it is killed, the queue loses all of them."""

    name = "proxy"

    def __init__(self, home: Home, members: Sequence[Member], orders: Outbox) -> None:
        """``members``: of the run; their parts have the same numbers on all machines."""
        self._home, self._members, self._orders = home, tuple(members), orders
        self.expected: dict[str, Expected] = {}  # the driver's

    def count(self, blue: Blueprint) -> int:
        return 1

    def memory(self, blue: Blueprint) -> Tree:
        sites = {one.name: ArraySpec((len(self.expected),), "int64") for one in fields(Traffic)}
        return {"fences": Proxy.specs(blue.program.groups), "traffic": sites}

    def job(self, blue: Blueprint, shared: Shared, index: int, life: int) -> ProxyJob:
        while self._orders.receive():  # a predecessor's; they are among the expected sites
            pass
        return ProxyJob(
            blueprint=blue,
            shared=shared,
            home=self._home,
            orders=self._orders,
            expected=tuple(self.expected.values()),
            members=self._members,
        )

    def build(self, job: ProxyJob, site: Site) -> ProxyWorker:
        assert isinstance(site, LocalSite)
        return ProxyWorker(job, HomeSite(site))

    def lost(self, blue: Blueprint, shared: Shared, queues: Sequence[Queue], index: int) -> str:
        fences = shared.own[self.name].views["fences"]
        for group in (group for expected in self.expected.values() for group in expected.stepped):
            # else their envs go on: the successor asks once more
            if fences["gone"][group] > fences["cancelled"][group]:
                begin_anew(shared, group)
        for expected in self.expected.values():
            for group in expected.groups:
                queues[blue.learner_of(group)].cancel(blue.streams(group))
        fences["cancelled"][:] = fences["gone"]
        return ""

    def wakes(self, blue: Blueprint, index: int, members: Sequence[Member]) -> Woken:
        """Servers and learners at home, by their titles."""
        away = {title for expected in self.expected.values() for title in expected.titles}
        waits = blue.apart or any(expected.shards for expected in self.expected.values())
        woken = (ServingKind, LearningKind) if waits else ServingKind
        return {
            one.title: one
            for one in members
            if isinstance(one.kind, woken) and one.title not in away
        }

    def listens(self, worker: ProxyWorker) -> tuple[int, ...]:
        return (worker.listener.fd,)

    def patience(self, worker: ProxyWorker) -> float | None:
        return PATIENCE_S


def begin_anew(shared: Shared, group: int) -> None:
    """The driver's: a group's envs were lost on the machine that stepped them, so their episodes
    begin again.
    """
    assert shared.exchange is not None
    shared.exchange.lost(range(group, group + 1))


def stacks_of(blue: Blueprint) -> dict[str, Mapping[str, Stack]]:
    """The stacks in the observations of all policies."""
    return {name: role.spec.stacks for name, role in blue.roles.items()}


class _Carriers:
    """Makes home's ends of what is shared with a site."""

    def __init__(self, job: ProxyJob, site: HomeSite) -> None:
        self._blue, self._shared = job.blueprint, job.shared
        self._site, self._members = site, job.members
        self._fences = job.shared.own[ProxyKind.name].views["fences"]
        rows = {member.title: site.row(member.title) for member in job.members}
        self._places = parts(self._blue, self._shared, rows, job.members)
        self._held, self._stacks = held_at_once(self._blue, job.members), stacks_of(self._blue)
        self._plan = queue_plan(self._blue)
        self._crossing = BlockPacker(self._plan, self._stacks)
        self._newest = Newest(
            [policy.weights.handle() for policy in self._shared.policies.values()]
        )
        self._away = {title for expected in job.expected for title in expected.titles}

    def of(self, site: Expected) -> list[Carried]:
        """In the order in which they are served: a shard first does what was asked before a cut."""
        counts = [number for number, place in self._places.items() if place.of(site.titles)]
        said = [number for number in counts if self._places[number].heard]
        heard = [n for n, place in self._places.items() if place.reaches(site.titles)]
        counted = {number: place.part for number, place in self._places.items()}
        found: list[Carried] = [
            HomeWeights(self._newest),
            HomeBlocks(
                self._plan,
                self._crossing,
                map(self._remote, site.groups),
                self._newest,
                self._fences,
                self._site.cutting,
                site.kept,
            ),
        ]
        if site.shards:
            found.append(
                HomeShards(
                    {index: self._shard(index) for index in site.shards},
                    self._learners(always=True),
                )
            )
        ring = self._learners(always=self._blue.apart)
        found.append(HomeParts(counted, counts, said, heard, ring))
        if site.stepped:
            assert self._shared.exchange is not None
            envs = {
                group: RemoteEnvs(self._shared.exchange, group, self._stacks)
                for group in site.stepped
            }
            found.append(HomeSteps(envs, self._fences, self._servers(site.stepped)))
        return found

    def _remote(self, group: int) -> Remote:
        rank = self._blue.learner_of(group)
        return Remote(group, self._site.queues[rank], self._blue.streams(group), self._held)

    def _shard(self, index: int) -> RemoteShard:
        policy, number = self._blue.shards[index]
        return RemoteShard(
            self._plan, self._shared.mailboxes[policy][0], number, self._site.queues[0].block
        )

    def _servers(self, groups: Sequence[int]) -> Callable[[int], object]:
        """Ring the inference worker of a group."""
        servers = [one.title for one in self._members if isinstance(one.kind, ServingKind)]
        bells = {group: self._site.bell(servers[self._blue.server(group)]) for group in groups}
        return lambda group: bells[group]()

    def _learners(self, *, always: bool) -> Callable[[], object]:
        """Ring the learners at home, if they wait for what sites do."""
        here = [
            one.title
            for one in self._members
            if isinstance(one.kind, LearningKind) and one.title not in self._away
        ]
        bells = [self._site.bell(title) for title in here if always]

        def ring() -> None:
            for bell in bells:
                bell()

        return ring


class ProxyWorker:
    """Ticks the proxy, and does what concerns files and the driver."""

    ready = Tick.STARVED

    def __init__(self, job: ProxyJob, site: HomeSite) -> None:
        blue, shared, home = job.blueprint, job.shared, job.home
        own = shared.own[ProxyKind.name].views
        self._site, self._orders, self._directory = site, job.orders, Path(blue.directory)
        self._handed, self._leaving = Path(home.handed), set[str]()
        self._segments = Path(blue.segments)
        self._folders = {member.title: member.folder for member in job.members}
        # the segments that have grown since the last checkpoint, by title
        self._grown: dict[str, set[str]] = {}
        self._files = {member.title: member.files for member in job.members}
        # of the files that have come from a worker, by title
        self._entries: dict[str, dict[str, Entry]] = {}
        self._errors: dict[str, str] = {}  # why it could not be written
        self._titles: dict[str, tuple[str, ...]] = {}  # of the workers of each site
        self._carriers = _Carriers(job, site)
        most = MOST | most_bytes(
            carried for expected in job.expected for carried in self._carriers.of(expected)
        )
        self.proxy = Proxy(
            Tally(own["fences"]["refused"]), site.cutting, self, home.digest, home.silent_s
        )
        self._traffic = own["traffic"]
        # a predecessor's counts
        self._before = {name: array.copy() for name, array in self._traffic.items()}
        self._names = [one.name for one in job.expected]
        self._counted_at = 0.0
        self.listener = Listener(
            home.address,
            home.keys,
            home.sites.public,
            most,
            self.proxy.refused,
            groups=blue.program.groups,
            port=home.port,
            silent_s=home.silent_s,
        )
        for expected in job.expected:
            self._expect(expected)

    def _expect(self, site: Expected) -> None:
        self._leaving.discard(site.name)
        self._titles[site.name] = site.titles
        link = self.listener.end(site.name, site.incarnation)
        self.proxy.expect(site.name, site.incarnation, link, self._carriers.of(site))
        if site.leaving:
            self._let_go(site.name)

    def _let_go(self, name: str) -> None:
        self._leaving.add(name)
        self.proxy.let_go(name)

    def tick(self) -> Tick:
        for order in self._orders.receive():
            if (site := Expected.read(order)).leaving:  # it is there
                self._let_go(site.name)
            else:
                self._expect(site)
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

    def said(self, site: str, title: str, message: Mapping[str, object]) -> None:
        """A worker sent this message to its driver. The worker sent the files of its share
        before.
        """
        try:
            said = from_json(message)
        except ValueError as error:
            raise Refused(f"said: {error}", "no JSON") from error
        if title not in self._titles[site]:
            raise Refused(f"said: expected a worker of {site}, got {title!r}")
        if not isinstance(said, SAID):
            expected = ", ".join(one.__name__ for one in SAID)
            raise Refused(f"said: expected one of {expected}, got {message['message']!r}")
        if isinstance(said, Written):
            self._sync(site, title, dict(said.segments))
        if isinstance(said, Saved | Written):
            # the message that has come, not the site's words
            why = self._errors.pop(title) if title in self._errors else said.error
            said = replace(said, files=self._entries.pop(title, {}), error=why)
        self._site.relay(title, to_json(said))

    def rows(self, site: str, title: str, name: str, at: int, data: bytes) -> None:
        """Write new rows of a segment of a replay, from byte ``at`` on."""
        if not self._own(site, title, name) or at < 0:
            raise Refused(
                f"said: expected a segment of a shard of {site}, got {name!r} of {title!r}"
            )
        file = self._segments / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                if at > (there := os.fstat(handle).st_size):
                    raise OSError(f"{file}: expected {at:,} bytes or more, got {there:,}")
                view = memoryview(data)
                while view:
                    written = os.pwrite(handle, view, at)
                    at, view = at + written, view[written:]
            finally:
                os.close(handle)
        except OSError as error:
            self._errors[title] = f"{type(error).__name__}: {error}"
        self._grown.setdefault(title, set()).add(name)

    def _own(self, site: str, title: str, name: str) -> bool:
        folder = self._folders[title] if title in self._titles[site] else ""
        return (
            bool(folder)
            and name.startswith(folder)
            and checkpoint.SEGMENT.fullmatch(name) is not None
        )

    def _sync(self, site: str, title: str, named: Mapping[str, Entry]) -> None:
        """Let the rows of a shard outlive a power cut, once all of them have come."""
        try:
            for name in self._grown.pop(title, set()):
                with (self._segments / name).open("rb") as opened:
                    os.fsync(opened.fileno())
                sync_directory((self._segments / name).parent)
            for name, entry in named.items():
                if not self._own(site, title, name):
                    raise OSError(f"{name}: expected a segment of {title}")
                if (size := (self._segments / name).stat().st_size) < entry["size"]:
                    raise OSError(f"{name}: expected {entry['size']} bytes of rows, got {size}")
        except (OSError, TypeError, KeyError) as error:
            self._errors.setdefault(title, f"{type(error).__name__}: {error}")

    def file(self, site: str, title: str, name: str, data: bytes, step: int | None = None) -> None:
        """Write a worker's file into the checkpoint that is aside. ``step``: of a cut after which
        the run has gone on.
        """
        if title not in self._titles[site] or name not in self._files[title]:
            self._site.note(
                f"warning: {site} sent a file {name!r} of {title!r}, which has no file of that "
                "name; it is left out"
            )
            return
        entries = self._entries.setdefault(title, {})
        entries.pop(name, None)  # of a cut that was given up, or of a session that ended
        if name == self._files[title][0]:  # the first of them
            self._errors.pop(title, None)
        try:
            if site in self._leaving:
                # of a session that ended before all was here
                (self._handed / name).unlink(missing_ok=True)
                write_synced(self._handed / name, data)
            else:
                cut = self._site.cutting()
                at = step if step is not None or cut is None else cut[1]
                place = None if at is None else checkpoint.aside(self._directory, at)
                if place is not None and place.is_dir():  # else it was given up meanwhile
                    entries |= checkpoint.add(place, name, data)
        # a full disk costs a checkpoint, or the states of moving workers, and not the run
        except OSError as error:
            if site in self._leaving:
                (self._handed / name).unlink(missing_ok=True)
                self._site.note(
                    f"warning: what {title} was could not be kept for another machine: {error}"
                )
            else:
                self._errors[title] = f"{type(error).__name__}: {error}"

    def joined(self, site: str) -> None:
        self._site.linked(site, "")

    def left(self, site: str, how: str) -> None:
        self._site.linked(site, how)

    def save(self, to: StateWriter) -> None:
        """Nothing: a stand-in has no state of its own."""

    def load(self, source: StateReader) -> None: ...

    def close(self) -> None:
        self._count()
        self.proxy.stop()
        self.listener.close()
