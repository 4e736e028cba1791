"""The workers of a run on several machines: home's workers, next to the driver, and a site on each
other machine.
"""

from __future__ import annotations

import hashlib
import json
import socket
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from equipoise.curve import Keys
from equipoise.deaths import Death, Streak
from equipoise.errors import WorkerFailed
from equipoise.plans.blueprint import Blueprint
from equipoise.programs.program import to_json
from equipoise.record import checkpoint
from equipoise.record.checkpoint import Source, SourceInHand
from equipoise.record.report import SiteStats
from equipoise.runtime.board import Board
from equipoise.runtime.cluster.host import SiteJob
from equipoise.runtime.cluster.parts import parts
from equipoise.runtime.cluster.placing import groups_of_shard
from equipoise.runtime.cluster.proxy import take_back
from equipoise.runtime.cluster.proxy_worker import Expected, Home, ProxyKind, begin_anew
from equipoise.runtime.cluster.wire import Tally
from equipoise.runtime.cut import CutCoordinator
from equipoise.runtime.ipc import Outbox
from equipoise.runtime.messages import (
    Failed,
    HandedOver,
    Linked,
    Lost,
    Message,
    Note,
    Relayed,
    from_json,
)
from equipoise.runtime.process.crew import Crew, Died
from equipoise.runtime.process.handles import Queues
from equipoise.runtime.stats import RunStats
from equipoise.workers.kind import (
    KeepingKind,
    Kind,
    LearningKind,
    Member,
    ServingKind,
    crew,
    stepped,
    written,
)
from equipoise.workers.kinds import KINDS
from equipoise.workers.shared import Shared

# the remains of a lost connection
EXPECTED = ("another session", "out of order", "no site of this run")


class Nodes(Protocol):
    """The other machines: they run sites, and report which have ended."""

    @property
    def address(self) -> str: ...  # of this machine, for the others
    # seconds after which a silent machine counts as gone
    @property
    def silent_s(self) -> float: ...
    def start(self, job: SiteJob) -> None: ...  # of a site; its earlier place is over
    # sites that have ended since the last call, and how
    def ended(self) -> Mapping[str, str]: ...
    # sites that no machine has room for, and the cores that each needs
    def waits(self) -> Mapping[str, int]: ...
    # the machine of a site, in short; empty while it has no machine
    def where(self, name: str) -> str: ...
    def leaving(self) -> Collection[str]: ...  # sites whose machine will be taken away
    def home_leaves(self) -> bool: ...  # will this machine be taken away?
    def close(self) -> None: ...  # end all sites


@dataclass(slots=True, kw_only=True)
class _Site:
    """The workers of another machine, and their fate."""

    members: tuple[Member, ...]
    expected: Expected  # by the proxy
    vital: str  # the parts that no other machine can take over; empty if there are no such parts
    down: bool = True  # without a link now
    reached: bool = False  # has it had a link in its present incarnation?
    warned: bool = False  # that it will be taken away, if it is vital
    machine: str = ""  # once the run is over: the machine that it had
    moved: int = 0  # how often it was handed over
    lost: int = 0
    streak: Streak = field(default_factory=Streak)
    progress: float = 0  # when it was started
    handed: SourceInHand | None = None  # the states of its moving workers, until they are there


class RemoteCrew:
    """Starts, watches, moves and ends sites, next to the crew of home: ``RemoteWorkers``.

    Home's crew has a worker more, the proxy, which links the sites. To queues, cuts and learners
    the workers of sites are like home's workers.
    """

    def __init__(
        self,
        blue: Blueprint,
        nodes: Nodes,
        sites: Mapping[str, Sequence[str]],
        kinds: Sequence[Kind] = KINDS,
    ) -> None:
        """``sites``: the titles of the workers of each.
        Workers that are named nowhere work at home.
        """
        self._members, self._nodes, self._kinds = crew(blue, kinds), nodes, tuple(kinds)
        self._sites = {name: self._site(blue, name, titles) for name, titles in sites.items()}
        self.away = {title for titles in sites.values() for title in titles}
        apart = any(_of(LearningKind, site.members) for site in self._sites.values())
        self.blue = replace(blue, apart=apart, address=nodes.address)
        self._lives: dict[str, int] = {}  # by worker: the machines that it was lost with
        # why connections and messages were refused, as far as reported
        self._refusals: set[str] = set()
        self._warned = False  # that home's machine will be taken away
        self._told: set[str] = set()  # sites that wait for a machine, as reported
        # how and in which life: the last messages of such a site come first
        self._ended: dict[str, tuple[str, int]] = {}
        self._notes: list[str] = []  # for the person
        self._handed = tempfile.TemporaryDirectory(prefix="equipoise-handed-")
        self.home = Home(
            address=nodes.address,
            port=_free_port(nodes.address),
            keys=Keys.made(),
            sites=Keys.made(),
            digest=digest(blue),
            handed=self._handed.name,
            silent_s=nodes.silent_s,
        )
        self._orders = Outbox()
        self._proxy = ProxyKind(self.home, self._members, self._orders)
        for site in self._sites.values():
            self._expect(site)
        # kinds of home: with sites, the proxy is one of them
        self.kinds = (*kinds, self._proxy) if self._sites else self._kinds

    def start(
        self, local: Crew, shared: Shared, board: Board, queues: Queues, cuts: CutCoordinator
    ) -> None:
        """Start every site. ``local``: the crew of home, which has begun."""
        self._local, self._shared, self._board = local, shared, board
        self._queues, self._cuts = queues, cuts
        rows = {member.title: board.row(member.title) for member in self._members}
        self._places = parts(self.blue, shared, rows, self._members)
        own = shared.own[ProxyKind.name].views if self._sites else {"fences": {}, "traffic": {}}
        self._fences, self._traffic = own["fences"], own["traffic"]
        for site in self._sites.values():
            self._start(site)

    def _site(self, blue: Blueprint, name: str, titles: Sequence[str]) -> _Site:
        mine = tuple(member for member in self._members if member.title in titles)
        learners, there = _of(LearningKind, mine), written(blue, mine)
        groups = there.difference(*(blue.groups_of(one.index) for one in learners))
        shards = tuple(one.index for one in _of(KeepingKind, mine))
        kept = {group for index in shards for group in groups_of_shard(blue, index)}
        expected = Expected(
            name,
            incarnation=0,
            groups=tuple(sorted(groups)),
            stepped=tuple(sorted(stepped(blue, mine) - there)),
            titles=tuple(titles),
            shards=shards,
            kept=tuple(sorted(kept & groups)),
        )
        vital = "a learner" if learners else "a shard" if shards else ""
        return _Site(members=mine, expected=expected, vital=vital)

    def _expect(self, site: _Site) -> None:
        """Let the proxy expect the next incarnation of a site, and no earlier one."""
        site.down, site.reached = True, False
        number = site.expected.incarnation + 1
        site.expected = replace(site.expected, incarnation=number, leaving=False)
        self._proxy.expected[site.expected.name] = site.expected

    def _start(self, site: _Site) -> None:
        """Start a site, with home's copies of its workers' parts, and their states on another
        machine, or in the checkpoint that the run goes on from.
        """
        blue, source, titles = self.blue, site.handed, site.expected.titles
        if source is None and blue.resume is not None:
            with_learners = bool(_of(LearningKind, site.members))
            members = self._members if with_learners else site.members
            names = [file for one in members for file in one.files]
            more = blue.resume.kept if with_learners else ()
            source = _in_hand(blue.resume, [*names, *more], site.members)
        site.progress = self._done(site)
        for title in titles:
            self._board.say(title, "its machine begins")  # until the worker itself reports more
        self._nodes.start(
            SiteJob(
                name=site.expected.name,
                incarnation=site.expected.incarnation,
                blueprint=replace(blue, resume=source),
                kinds=self._kinds,
                members=self._members,
                titles=titles,
                home=self.home,
                counted={
                    number: place.part.read()
                    for number, place in self._places.items()
                    if place.of(titles)
                },
                segments=self._rows_of(site.members),
                lives={title: self._lives.get(title, 0) for title in titles if site.handed is None},
            )
        )

    def _rows_of(self, members: Sequence[Member]) -> dict[str, bytes]:
        """The segments of the shards among these workers: the segments of the checkpoint to go on
        from, and the names of other segments.
        """
        found, source = dict[str, bytes](), self.blue.resume
        for one in _of(KeepingKind, members):
            there = (Path(self.blue.segments) / one.folder).glob("*.rows")
            found |= {
                name: b""
                for file in there
                if checkpoint.SEGMENT.fullmatch(name := one.folder + file.name)
            }
            if source is not None:
                found |= {
                    name: source.read_segment(name)
                    for name in source.segments
                    if name.startswith(one.folder)
                }
        return found

    def _done(self, site: _Site) -> float:
        """A count that rises as the workers of a site get on."""
        return sum(one.kind.progress(self.blue, self._shared, one.index) for one in site.members)

    # ----------------------------------------------------------------------------------- as it runs

    def poll(self, timeout_s: float) -> Iterator[tuple[str, Message | Died]]:
        """As ``Crew.poll``, from all machines; a machine that is lost is replaced."""
        self._look()
        yield from self._noted()
        for title, message in self._local.poll(timeout_s):
            yield from self._take(title, message)
            yield from self._noted()

    def _noted(self) -> Iterator[tuple[str, Note]]:
        notes, self._notes = self._notes, []
        for text in notes:
            yield ProxyKind.name, Note(text=text)

    def _look(self) -> None:
        """Look after the machines."""
        ended, self._ended = self._ended, {}
        for name, (how, incarnation) in ended.items():
            # else its workers have moved
            if incarnation == (site := self._sites[name]).expected.incarnation:
                self._replace(site, how)
        self._ended = {
            name: (how, self._sites[name].expected.incarnation)
            for name, how in self._nodes.ended().items()
        }
        self._tell_of_waiting()
        self._tell_of_refusals()
        if not self._warned and self._nodes.home_leaves():
            self._warned = True
            self._notes.append(
                "warning: the learner's machine will be taken away: a checkpoint is made now"
            )
            self._cuts.hold()
        if not self._cuts.under_way:
            for site in map(self._sites.__getitem__, self._nodes.leaving()):
                if not site.expected.leaving:
                    self._let_go(site)
        if self._fences and take_back(self._fences, self._cancel):
            self._queues.certain = False

    def _tell_of_waiting(self) -> None:
        """Report once which sites have no machine, and that they have one."""
        waits = self._nodes.waits()
        for name in waits.keys() - self._told:
            self._notes.append(f"warning: {name} waits for a machine with {waits[name]} free cores")
        for name in self._told - waits.keys():
            self._notes.append(f"{name} has a machine")
        self._told = set(waits)

    def _tell_of_refusals(self) -> None:
        """Report once each reason for which home refuses connections or messages. How many they
        were is in the summary.
        """
        for reason in self._refused().keys() - self._refusals:
            self._refusals.add(reason)
            if reason not in EXPECTED:
                self._notes.append(
                    f"warning: the link to other machines refuses what it gets: {reason}"
                )

    def _refused(self) -> Mapping[str, int]:
        return Tally(self._fences["refused"]).by_reason() if self._fences else {}

    def _cancel(self, group: int) -> None:
        if any(group in site.expected.stepped for site in self._sites.values()):
            begin_anew(self._shared, group)
            for one in self._members:
                if isinstance(one.kind, ServingKind) and group in one.groups(self.blue):
                    self._local.bells[one.title].ring(always=True)
        else:
            learner = self.blue.learner_of(group)
            self._queues.by_learner[learner].cancel(self.blue.streams(group))

    def _let_go(self, site: _Site) -> None:
        """Ask a site for its actors, before its machine is taken away; if it is vital, make a
        checkpoint.
        """
        name = site.expected.name
        if not site.vital:
            site.expected = replace(site.expected, leaving=True)
            self._proxy.expected[name] = site.expected
            self._order(site)
            self._notes.append(f"the machine of {name} will be taken away: its workers move")
        elif not site.warned:
            site.warned = True
            self._notes.append(
                f"warning: {name} has {site.vital}, and will be taken away: a checkpoint is made "
                "now"
            )
            self._cuts.hold()

    def _move(self, site: _Site) -> None:
        """All workers of a site have handed over what they are: they go on elsewhere, and nothing
        is lost.

        If a file of theirs could not be written they begin again.
        """
        kept, folder = dict[str, bytes](), Path(self._handed.name)
        for one in site.members:
            file = f"{one.file}.safetensors"
            if not (folder / file).is_file():
                self._replace(site, f"could not hand over what {one.title} was")
                return
            kept[file] = (folder / file).read_bytes()
        site.handed = SourceInHand(
            path=Path(site.expected.name),
            files={},
            segments={},
            meta={"version": self._shared.version},
            kept=kept,
        )
        site.moved += 1
        self._start_next(site)

    def _start_next(self, site: _Site) -> None:
        """Start the next incarnation of a site, which the proxy that lives takes from now on."""
        self._expect(site)
        self._order(site)
        self._start(site)

    def _order(self, site: _Site) -> None:
        """Send the living proxy the workers that it may expect of a site."""
        self._orders.send(asdict(site.expected))
        self._local.bells[ProxyKind.name].ring(always=True)

    def _replace(self, site: _Site, how: str) -> None:
        """A site is verified dead: its workers begin again, at once, on whatever machine there is.

        A site that never connected did no work, so its workers start elsewhere as if for the first
        time.
        """
        name, death = site.expected.name, Death(how, how, outside=True)
        site.lost += site.reached
        if site.vital:
            raise WorkerFailed(name, f"{how}, and {site.vital} with it", death=death, vital=True)
        site.streak.add(death, progress=self._done(site) > site.progress)
        if why := site.streak.hopeless(
            death,
            learned_at=self._local.learned_at,
            give_up_s=self.blue.program.placement.give_up_s,
        ):
            raise WorkerFailed(name, f"{how}, {why}", death=death)
        begin = "anew" if site.reached else "on another machine"
        if site.reached:
            for one in site.members:
                if (
                    self.blue.resume is None
                    or one.kind.progress(self.blue, self._shared, one.index) > 0
                ):
                    self._lives[one.title] = self._lives.get(one.title, 0) + 1
                self._cuts.lost(one.title, f"was lost with {name}")
            for group in site.expected.stepped:
                self._cancel(group)
        self._notes.append(f"warning: {name} {how}; its workers begin {begin}")
        self._start_next(site)

    def _take(self, title: str, message: Message | Died) -> Iterator[tuple[str, Message | Died]]:
        """Pass on a message of a worker of home, or a message that the proxy relays from
        elsewhere.
        """
        if isinstance(message, Linked):
            self._linked(message.site, message.how)
        elif not isinstance(message, Relayed):
            yield title, message
        else:
            title, said = message.title, from_json(message.said)
            if isinstance(said, Failed):
                raise self._failed(title, said)
            if isinstance(said, Lost):
                self._cuts.lost(title, said.how)
            elif isinstance(said, HandedOver):
                # else it was replaced meanwhile
                expected = (site := self._sites[said.site]).expected
                if expected.leaving and title in expected.titles:
                    self._move(site)
            else:
                yield title, said

    def _failed(self, title: str, said: Failed) -> WorkerFailed:
        """A worker on another machine cannot be replaced."""
        name = next(name for name, site in self._sites.items() if title in site.expected.titles)
        reason = f"on machine {self._nodes.where(name)} {said.said}"
        if "ModuleNotFoundError: " in said.text or "ImportError: " in said.text:
            reason += f" ({said.error.partition(';')[0]}); install there what this machine has"
        vital = any(
            one.vital(self.blue, self._shared) for one in self._members if one.title == title
        )
        return WorkerFailed(
            title,
            reason,
            said.text,
            death=Death(reason, said.said),
            final=said.final,
            vital=vital,
            cause=said.error,
        )

    def _linked(self, name: str, how: str) -> None:
        site = self._sites[name]
        site.down = bool(how)
        if not how:
            site.reached, site.handed = True, None
            return
        for title in site.expected.titles:
            self._cuts.lost(title, f"was out of reach with {name}")
        self._notes.append(f"warning: {name} is out of reach: {how}")

    # -------------------------------------------------------------------------- as the runtime sees

    @property
    def moving(self) -> bool:
        """Return True while sites move, if all of them have a machine to go to."""
        moving = {
            name
            for name, site in self._sites.items()
            if site.expected.leaving or site.handed is not None
        }
        return bool(moving) and not moving & self._nodes.waits().keys()

    def obstacle(self) -> str | None:
        if leaving := [name for name, site in self._sites.items() if site.expected.leaving]:
            return f"{min(leaving)} moves to another machine"
        down = sorted(name for name, site in self._sites.items() if site.down)
        if down or (self._fences and (self._fences["gone"] > self._fences["cancelled"]).any()):
            return f"{down[0] if down else 'a machine'} is out of reach"
        beginning = sorted(title for title in self._board.phases() if title in self.away)
        return f"{beginning[0]} is still beginning" if beginning else self._local.obstacle()

    def measured(self, now: RunStats) -> RunStats:
        """Add a line for each site, and home's refusals, to the lines of home's crew."""
        found = {
            name: SiteStats(
                machine=self._nodes.where(name) or site.machine,
                workers=site.expected.titles,
                lost=site.lost,
                moved=site.moved,
                reached=not site.down,
                **{key: int(array[at]) for key, array in self._traffic.items()},
            )
            for at, (name, site) in enumerate(self._sites.items())
        }
        return replace(self._local.measured(now), sites=found, refused=self._refused())

    def stop(self) -> None:
        """End every worker on every machine: the proxy's last word ends the sites."""
        for name, site in self._sites.items():
            site.machine = self._nodes.where(name)
        self._local.stop()
        self._nodes.close()
        self._orders.close()
        self._handed.cleanup()


def digest(blue: Blueprint) -> str:
    """A short hash of the Program: a site's must be home's."""
    return hashlib.sha256(json.dumps(to_json(blue.program), sort_keys=True).encode()).hexdigest()[
        :16
    ]


def _of(trait: type[object], members: Sequence[Member]) -> list[Member]:
    """The members whose kind has this trait."""
    return [one for one in members if isinstance(one.kind, trait)]


def _in_hand(source: Source, names: Sequence[str], members: Sequence[Member] = ()) -> SourceInHand:
    """``members``: the workers whose rows come along."""
    kept = {name: source.read(name) for name in names if name in source.files}
    folders = tuple(one.folder for one in _of(KeepingKind, members))
    rows = {
        name: entry
        for name, entry in source.segments.items()
        if folders and name.startswith(folders)
    }
    return SourceInHand(
        path=Path(source.path), files={}, segments=rows, meta=source.meta, kept=kept
    )


def _free_port(address: str) -> int:
    """A port that is free now. It stays that of the run, so that sites find a proxy that was
    replaced.
    """
    with socket.socket() as made:
        made.bind((address, 0))
        return int(made.getsockname()[1])
