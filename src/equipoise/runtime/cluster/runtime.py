"""A run whose actors are on several machines: the process runtime at home, a proxy, and a site on
each other machine.
"""

from __future__ import annotations

import hashlib
import json
import socket
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from equipoise.deaths import Death, Streak
from equipoise.errors import WorkerFailed
from equipoise.plans.blueprint import Blueprint
from equipoise.programs.program import to_json
from equipoise.record import checkpoint
from equipoise.record.checkpoint import Source, SourceInHand
from equipoise.record.report import SiteStats
from equipoise.runtime.cluster.host import SiteJob
from equipoise.runtime.cluster.parts import parts
from equipoise.runtime.cluster.placing import groups_of_shard
from equipoise.runtime.cluster.proxy import take_back
from equipoise.runtime.cluster.proxy_worker import Expected, Home, ProxyKind, begin_anew
from equipoise.runtime.cluster.sockets import Keys
from equipoise.runtime.cluster.wire import Tally
from equipoise.runtime.ipc import Outbox
from equipoise.runtime.messages import (
    CutBegun,
    Failed,
    HandedOver,
    Linked,
    Lost,
    Message,
    Note,
    Relayed,
    from_json,
)
from equipoise.runtime.process.crew import Died
from equipoise.runtime.process.process import WAIT_S, ProcessRuntime
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

# what a lost connection leaves behind
EXPECTED = ("another session", "out of order", "no site of this run")


class Nodes(Protocol):
    """The other machines: they run sites, and say which have ended."""

    @property
    def address(self) -> str: ...  # of this machine, for the others
    @property
    def silent_s(self) -> float: ...  # after which a machine that says nothing counts as gone
    def start(self, job: SiteJob) -> None: ...  # of a site; where it ran before, that is over
    def ended(self) -> Mapping[str, str]: ...  # sites that have ended since the last call, and how
    # sites that no machine has room for, and the cores that each needs
    def waits(self) -> Mapping[str, int]: ...
    # the machine of a site, in short; empty while it has none
    def where(self, name: str) -> str: ...
    def leaving(self) -> Collection[str]: ...  # sites whose machine will be taken away
    def home_leaves(self) -> bool: ...  # will this machine be taken away?
    def close(self) -> None: ...  # end all sites


class ClusterRuntime(ProcessRuntime):
    """``ProcessRuntime`` at home, to which the actors of other machines are workers like those
    here.
    """

    def __init__(
        self,
        blue: Blueprint,
        nodes: Nodes,
        sites: Mapping[str, Sequence[str]],
        kinds: Sequence[Kind] = KINDS,
    ) -> None:
        """``sites``: the titles of the workers of each.
        Workers that are named nowhere work here.
        """
        away = [title for titles in sites.values() for title in titles]
        self._all = crew(blue, kinds)
        self._sites = {name: tuple(titles) for name, titles in sites.items()}
        self._with_learners = {name for name in sites if _of(LearningKind, self._members_of(name))}
        self._with_shards = {name for name in sites if _of(KeepingKind, self._members_of(name))}
        blue = replace(blue, apart=bool(self._with_learners), address=nodes.address)
        self._nodes, self._kinds = nodes, tuple(kinds)
        self._incarnations = dict.fromkeys(self._sites, 0)
        self._lives: dict[str, int] = {}  # by worker: the machines that it was lost with
        self._streaks = {name: Streak() for name in self._sites}
        self._progress = dict.fromkeys(self._sites, 0.0)  # when a site was started
        self._down = set(self._sites)  # without a link now
        self._reached: set[str] = set()  # sites that have had one in their present incarnation
        self.moved = dict.fromkeys(self._sites, 0)  # how often each site was handed over
        self._lost = dict.fromkeys(self._sites, 0)  # and lost
        # why connections and messages were refused, as far as it was said
        self._refusals: set[str] = set()
        self._warned = False  # that home's machine will be taken away
        self._warned_of: set[str] = set()  # and sites with learners or shards
        self._were_at: dict[str, str] = {}  # once it is over: the machine that each site had
        self._told: set[str] = set()  # sites that wait for a machine, as was said
        self._leaving: set[str] = set()  # sites that were asked for their actors
        # how and in which life: what such a site still said comes first
        self._ended: dict[str, tuple[str, int]] = {}
        # what the workers of a site are that moves, until it is there
        self._carried: dict[str, SourceInHand] = {}
        self._handed = tempfile.TemporaryDirectory(prefix="equipoise-handed-")
        self._home = Home(
            address=nodes.address,
            port=_free_port(nodes.address),
            keys=Keys.made(),
            sites=Keys.made(),
            digest=digest(blue),
            handed=self._handed.name,
            silent_s=nodes.silent_s,
        )
        self._orders = Outbox()
        self._proxy = ProxyKind(self._home, self._all, self._orders)
        for name in self._sites:
            self._expect(blue, name)
        beside = [self._proxy] if self._sites else []
        super().__init__(blue, (*kinds, *beside), away)
        rows = {member.title: self._board.row(member.title) for member in self._all}
        self._places = parts(blue, self._shared, rows, self._all)
        self._away = set(away)
        self._stepped = {group for name in self._sites for group in self._groups_of(blue, name)[1]}
        own = (
            self._shared.own[ProxyKind.name].views if self._sites else {"fences": {}, "traffic": {}}
        )
        self._fences, self._traffic = own["fences"], own["traffic"]
        try:
            for name in self._sites:
                self._start(name)
        except BaseException:
            self.stop()
            raise

    def _members_of(self, name: str) -> list[Member]:
        return [member for member in self._all if member.title in self._sites[name]]

    def _groups_of(self, blue: Blueprint, name: str) -> tuple[list[int], list[int]]:
        """The groups whose rows a site writes for home, and those that it only steps, since home
        acts for them.
        """
        mine = self._members_of(name)
        there = written(blue, mine)
        kept = {group for one in _of(LearningKind, mine) for group in blue.groups_of(one.index)}
        return sorted(there - kept), sorted(stepped(blue, mine) - there)

    def _expect(self, blue: Blueprint, name: str) -> None:
        """Let the proxy take the next incarnation of a site, and no earlier one."""
        self._incarnations[name] += 1
        self._down.add(name)
        self._reached.discard(name)
        groups, only = self._groups_of(blue, name)
        shards = tuple(one.index for one in _of(KeepingKind, self._members_of(name)))
        kept = sorted(
            {group for index in shards for group in groups_of_shard(blue, index)}.intersection(
                groups
            )
        )
        self._proxy.expected[name] = Expected(
            name,
            self._incarnations[name],
            tuple(groups),
            tuple(only),
            self._sites[name],
            shards,
            tuple(kept),
        )

    def _start(self, name: str, handed: SourceInHand | None = None) -> None:
        """Start a site, with what home knows of its workers, and what they were in the checkpoint
        that the run goes on from.

        ``handed``: what they were on another machine, instead.
        """
        blue, mine = self._blue, self._members_of(name)
        titles = self._sites[name]
        counted = {
            number: place.part.read() for number, place in self._places.items() if place.of(titles)
        }
        source = handed
        if handed is None and blue.resume is not None:
            names = [
                file
                for one in (self._all if name in self._with_learners else mine)
                for file in one.files
            ]
            source = _in_hand(
                blue.resume,
                [*names, *blue.resume.kept] if name in self._with_learners else names,
                mine,
            )
        self._progress[name] = self._done(name)
        for title in titles:
            self._board.say(title, "its machine begins")  # until the worker itself says more
        self._nodes.start(
            SiteJob(
                name=name,
                incarnation=self._incarnations[name],
                blueprint=replace(blue, resume=source),
                kinds=self._kinds,
                members=self._all,
                titles=titles,
                home=self._home,
                counted=counted,
                segments=self._rows_of(mine),
                lives={}
                if handed is not None
                else {title: self._lives[title] for title in titles if title in self._lives},
            )
        )

    def _rows_of(self, members: Sequence[Member]) -> dict[str, bytes]:
        """The segments of the shards among these workers: those of the checkpoint to go on from,
        and the names of others.
        """
        found, source = dict[str, bytes](), self._blue.resume
        for one in _of(KeepingKind, members):
            there = (Path(self._blue.segments) / one.folder).glob("*.rows")
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

    def _done(self, name: str) -> float:
        """A count that rises as the workers of a site get on."""
        return sum(
            one.kind.progress(self._blue, self._shared, one.index) for one in self._members_of(name)
        )

    def poll(self, timeout_s: float) -> list[Message]:
        """As ``ProcessRuntime.poll``; a machine that is lost is replaced."""
        ended, self._ended = self._ended, {}
        for name, (how, incarnation) in ended.items():
            if incarnation == self._incarnations[name]:  # else its workers have moved
                self._replace(name, how)
        self._ended = {
            name: (how, self._incarnations[name]) for name, how in self._nodes.ended().items()
        }
        self._tell_of_waiting()
        self._tell_of_refusals()
        if not self._warned and self._nodes.home_leaves():
            self._warned = True
            self._out.append(
                Note(
                    text="warning: the learner's machine will be taken away: a checkpoint is made "
                    "now"
                )
            )
            self.hold()
        if not self._cuts.under_way:
            for name in set(self._nodes.leaving()) - self._leaving:
                self._let_go(name)
        if self._fences and take_back(self._fences, self._cancel):
            self._reconciling = True
        return super().poll(timeout_s)

    def _tell_of_waiting(self) -> None:
        """Say once which sites have no machine, and that they have one."""
        waits = self._nodes.waits()
        for name in waits.keys() - self._told:
            self._out.append(
                Note(text=f"warning: {name} waits for a machine with {waits[name]} free cores")
            )
        for name in self._told - waits.keys():
            self._out.append(Note(text=f"{name} has a machine"))
        self._told = set(waits)

    def _tell_of_refusals(self) -> None:
        """Say once for each reason that home refuses connections or messages. How many they were is
        in the summary.
        """
        if self._fences and self._fences["refused"].any():
            for reason in Tally(self._fences["refused"]).by_reason().keys() - self._refusals:
                self._refusals.add(reason)
                if reason not in EXPECTED:
                    self._out.append(
                        Note(
                            text="warning: the link to other machines refuses what it gets: "
                            f"{reason}"
                        )
                    )

    def _cancel(self, group: int) -> None:
        if group in self._stepped:
            begin_anew(self._shared, group)
            for one in self._all:
                if isinstance(one.kind, ServingKind) and group in one.groups(self._blue):
                    self._crew.bells[one.title].ring(always=True)
        else:
            self._queues[self._blue.learner_of(group)].cancel(self._blue.streams(group))

    def _vital(self, name: str) -> str:
        """What a site has that no other machine can take over; empty where there is nothing of that
        kind.
        """
        return (
            "a learner"
            if name in self._with_learners
            else "a shard"
            if name in self._with_shards
            else ""
        )

    def _let_go(self, name: str) -> None:
        """Ask a site for its actors, before its machine is taken away; where it is vital, make a
        checkpoint.
        """
        if vital := self._vital(name):
            if name not in self._warned_of:
                self._warned_of.add(name)
                self._out.append(
                    Note(
                        text=f"warning: {name} has {vital}, and will be taken away: a checkpoint "
                        "is made now"
                    )
                )
                self.hold()
            return
        self._leaving.add(name)
        self._proxy.expected[name] = replace(self._proxy.expected[name], leaving=True)
        self._order({"let_go": name})
        self._out.append(Note(text=f"the machine of {name} will be taken away: its workers move"))

    def _move(self, name: str) -> None:
        """All workers of a site have handed over what they are: they go on elsewhere, and nothing
        is lost.

        Where a file of theirs could not be written they begin anew.
        """
        kept, folder = dict[str, bytes](), Path(self._handed.name)
        for one in self._members_of(name):
            file = f"{one.file}.safetensors"
            if not (folder / file).is_file():
                self._replace(name, f"could not hand over what {one.title} was")
                return
            kept[file] = (folder / file).read_bytes()
        source = SourceInHand(
            path=Path(name),
            files={},
            segments={},
            meta={"version": self._shared.version},
            kept=kept,
        )
        self._expect(self._blue, name)
        self._order_expected(name)
        self.moved[name] += 1
        self._carried[name] = source
        self._start(name, source)

    def _waits(self, begun: CutBegun, since: float) -> bool:
        """As ``ProcessRuntime._waits``; each cut waits for sites that move, which they do while the
        learners hold still.
        """
        moving = self._leaving | self._carried.keys()
        may = (
            bool(moving)
            and not moving & self._nodes.waits().keys()
            and time.monotonic() - since < WAIT_S
        )
        return may or super()._waits(begun, since)

    def _order(self, order: dict[str, Any]) -> None:
        """Tell the proxy."""
        self._orders.send(order)
        self._crew.bells[ProxyKind.name].ring(always=True)

    def _order_expected(self, name: str) -> None:
        """Let the proxy that lives take the new incarnation of a site."""
        self._leaving.discard(name)
        self._order(asdict(self._proxy.expected[name]))

    def _replace(self, name: str, how: str) -> None:
        """A site is verified dead: its workers begin anew, at once, on whatever machine there is.

        A site that never connected did no work, so its workers start elsewhere as if for the first
        time.
        """
        unborn = name not in self._reached
        self._lost[name] += not unborn
        if vital := self._vital(name):
            raise WorkerFailed(
                name, f"{how}, and {vital} with it", death=Death(how, how, outside=True), vital=True
            )
        death, streak = Death(how, how, outside=True), self._streaks[name]
        streak.add(death, progress=self._done(name) > self._progress[name])
        if why := streak.hopeless(
            death,
            learned_at=self._crew.learned_at,
            give_up_s=self._blue.program.placement.give_up_s,
        ):
            raise WorkerFailed(name, f"{how}, {why}", death=death)
        for one in self._members_of(name) if not unborn else ():
            if (
                self._blue.resume is None
                or one.kind.progress(self._blue, self._shared, one.index) > 0
            ):
                self._lives[one.title] = self._lives.get(one.title, 0) + 1
            self._cuts.lost(one.title, f"was lost with {name}")
        for group in self._groups_of(self._blue, name)[1] if not unborn else ():
            self._cancel(group)
        self._expect(self._blue, name)
        self._order_expected(name)
        self._out.append(
            Note(
                text=f"warning: {name} {how}; its workers begin "
                f"{'on another machine' if unborn else 'anew'}"
            )
        )
        self._start(name, self._carried.get(name))

    def _take(self, title: str, message: Message | Died) -> None:
        if isinstance(message, Relayed):
            said = from_json(message.said)
            if isinstance(said, Failed):
                raise self._failed(message.title, said)
            if isinstance(said, Lost):
                self._cuts.lost(message.title, said.how)
            elif isinstance(said, HandedOver):
                # else it was replaced meanwhile
                if said.site in self._leaving and message.title in self._sites[said.site]:
                    self._move(said.site)
            else:
                super()._take(message.title, said)
        elif isinstance(message, Linked):
            self._linked(message.site, message.how)
        else:
            super()._take(title, message)

    def _failed(self, title: str, said: Failed) -> WorkerFailed:
        """A worker on another machine cannot be replaced."""
        name = next(name for name, titles in self._sites.items() if title in titles)
        reason = f"on machine {self._nodes.where(name)} {said.said}"
        if "ModuleNotFoundError: " in said.text or "ImportError: " in said.text:
            reason += f" ({said.error.partition(';')[0]}); install there what this machine has"
        vital = any(one.vital(self._blue, self._shared) for one in self._all if one.title == title)
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
        if not how:
            self._down.discard(name)
            self._reached.add(name)
            self._carried.pop(name, None)
            return
        self._down.add(name)
        for title in self._sites[name]:
            self._cuts.lost(title, f"was out of reach with {name}")
        self._out.append(Note(text=f"warning: {name} is out of reach: {how}"))

    def _obstacle(self) -> str | None:
        down = sorted(self._down)
        fenced = bool(self._fences) and bool(
            (self._fences["gone"] > self._fences["cancelled"]).any()
        )
        if self._leaving:
            return f"{min(self._leaving)} moves to another machine"
        if down or fenced:
            return f"{down[0] if down else 'a machine'} is out of reach"
        beginning = sorted(title for title in self._board.phases() if title in self._away)
        return f"{beginning[0]} is still beginning" if beginning else super()._obstacle()

    def stats(self) -> RunStats:
        """As ``ProcessRuntime.stats``, with a line for each site, and with what home refused."""
        found = {}
        for at, (name, titles) in enumerate(self._sites.items()):
            found[name] = SiteStats(
                machine=self._nodes.where(name) or self._were_at.get(name, ""),
                workers=titles,
                lost=self._lost[name],
                moved=self.moved[name],
                reached=name not in self._down,
                **{key: int(array[at]) for key, array in self._traffic.items()},
            )
        refused = Tally(self._fences["refused"]).by_reason() if self._fences else {}
        return replace(super().stats(), sites=found, refused=refused)

    def stop(self) -> None:
        """End every worker on every machine: the proxy's last word ends the sites."""
        self._were_at = {name: self._nodes.where(name) for name in self._sites}
        super().stop()
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
    """``members``: those whose rows come along."""
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
    """A port that nobody has now. It stays that of the run, so that sites find a proxy that was
    replaced.
    """
    with socket.socket() as made:
        made.bind((address, 0))
        return int(made.getsockname()[1])
