"""The proxy: home's half of every line. It stands in for the actors of other machines, so that the queue does not know of them.

The proxy is the one process that writes what those actors would write: it reserves a block when an actor asks for a place,
copies the rows that come into it, and commits it. A place is granted with the newest versions of that moment, and an actor does
not begin before its machine has them; so the bound on the lag holds as if the actor were here.

**Fencing.** When a session ends, or an actor is said to be dead, the proxy forgets the blocks of those groups at once and
counts them in ``gone``; whatever comes for them later is refused. The driver then takes the blocks back (``Queue.cancel``), and
says so in ``cancelled``; before that the group gets no place. Each of the two words has one writer.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.unstacked import Crossing
from equipoise.runtime.cluster.frames import (
    Answered,
    Ask,
    Brought,
    Cut,
    Denied,
    Emptied,
    Expelled,
    File,
    Grant,
    Hello,
    Hold,
    Kept,
    Kind,
    Known,
    LetGo,
    Lost,
    Message,
    Restarted,
    Rows,
    Said,
    Statistics,
    Step,
    Stepped,
    Stop,
    Unstepped,
    Want,
    Weights,
    Welcome,
)  # fmt: skip
from equipoise.runtime.cluster.keeping import HomeShards
from equipoise.runtime.cluster.line import SILENT_S, Line, Link
from equipoise.runtime.cluster.parts import Part
from equipoise.runtime.cluster.protocols import Heard, Versions
from equipoise.runtime.cluster.remote import Remote, Site, Traffic
from equipoise.runtime.cluster.stepping import StandIn
from equipoise.runtime.cluster.wire import BOTH, WORDS, Refused, Tally, read, words
from equipoise.tree import ArraySpec
from equipoise.types import Stack, Tick, Tree

AHEAD = 1 << 20  # sessions that a site may have had with an earlier proxy
FILE = 1 << 32  # bytes of a file of a checkpoint


class Proxy:
    """A state machine that is ticked: it waits for nothing, and knows neither sockets nor Ray."""

    def __init__(
        self, plan: Plan, remotes: Sequence[Remote], versions: Sequence[Versions], parts: Sequence[Part],
        fences: Mapping[str, Any], cut: Callable[[], tuple[int, int, bool] | None], heard: Heard, digest: str,
        stacks: Mapping[str, Mapping[str, Stack]], silent_s: float = SILENT_S,
        stand_ins: Mapping[int, StandIn] = MappingProxyType({}), wake: Callable[[int], object] = lambda group: None,
        meeting: Collection[int] = (), met: Callable[[], object] = lambda: None,
        shards: HomeShards | None = None,
    ) -> None:  # fmt: skip
        """``versions``: of each policy. ``parts``: where the statistics of the sites' workers go, by number.

        ``fences``: the words of ``specs``. ``cut``: the number and the step of the cut under way. ``digest``: of
        the Program; a site's must be the same. ``stacks``: of each policy's observations, as in ``EnvSpec``.
        ``silent_s``: after which a site that says nothing counts as gone. ``stand_ins``: by group, of those that are acted for
        at home, and ``wake`` is called where one has an answer. ``meeting``: the numbers of the parts that are what learners
        say to each other. They are passed on to sites with learners; ``met`` is called where a learner of a site said one.
        ``shards``: those that are at sites.
        """
        self._shards = HomeShards() if shards is None else shards
        self._meeting, self._met = frozenset(meeting), met
        self._stand_ins, self._wake = stand_ins, wake
        self._plan, self._versions, self._parts, self._heard, self._digest = plan, versions, parts, heard, digest
        self._silent_s, self._crossing = silent_s, Crossing(plan, stacks)
        self._remotes = {remote.group: remote for remote in remotes}
        self._gone, self._cancelled, self._cut = fences["gone"], fences["cancelled"], cut
        self._fetched: dict[int, tuple[int, bytes]] = {}  # the newest version that was asked for, by policy
        self._sites: dict[str, Site] = {}
        self._earlier: dict[str, Traffic] = {}  # of earlier incarnations of a site
        self._sessions = secrets.randbits(48)  # no session has the number of one of an earlier proxy
        self.refused = Tally(fences["refused"])  # of all sites
        self.most = {
            Kind.HELLO: WORDS, Kind.WANT: 0, Kind.ROWS: self._crossing.most, Kind.ASK: 0, Kind.LOST: 0, Kind.RESTARTED: 0,
            Kind.STATISTICS: max((part.nbytes for part in parts), default=0), Kind.SAID: WORDS, Kind.FILE: FILE,
            Kind.STEPPED: max((one.rows.most for one in stand_ins.values()), default=0), Kind.UNSTEPPED: 0,
            **self._shards.most(plan), **BOTH,
        }  # fmt: skip
        self._names = {kind.name for kind in self.most.keys() - BOTH.keys()}  # what sites alone say

    @staticmethod
    def specs(groups: int) -> Tree:
        """The words of fences, by group: how often the proxy let go of it, and how often the driver took its blocks back.

        ``refused``: what was not taken, by reason; the proxy's.
        """
        return dict.fromkeys(("gone", "cancelled"), ArraySpec((groups,), "int64")) | {"refused": Tally.SPEC}

    def expect(
        self,
        name: str,
        incarnation: int,
        groups: Sequence[int],
        counts: Collection[int],
        link: Link,
        stepped: Sequence[int] = (),
        shards: Sequence[int] = (),
        kept: Collection[int] = (),
    ) -> None:
        """A site was started: its messages come by this link; an older incarnation of it is over.

        ``groups``: whose rows are written there; ``stepped``: those whose envs are only stepped there. ``counts``: the numbers
        of the parts of ``parts`` that its workers write. ``shards``: that keep rows there, and ``kept``: of these groups.
        """
        if (before := self._sites.get(name)) is not None:
            self._fence(before)
            self._earlier[name] = self.traffic(name)
        line = Line(link, self.most, self._silent_s, self.refused)
        self._sites[name] = Site(
            name, incarnation, line, tuple(groups), tuple(stepped), frozenset(counts), tuple(shards), frozenset(kept)
        )  # fmt: skip

    def let_go(self, name: str) -> None:
        """The site's machine will be taken away: its actors are to finish what they have, and get no more."""
        site = self._sites[name]
        site.leaving = True
        site.line.send(LetGo())

    def traffic(self, name: str) -> Traffic:
        """What has gone through the lines of a site so far."""
        before, line = self._earlier.get(name, Traffic(0, 0)), self._sites[name].line
        received = sum(size for kind, size in line.moved.items() if kind in self._names)
        return Traffic(before.received + received, before.sent + sum(line.moved.values()) - received)

    def stop(self) -> None:
        """The run is over: the sites are to end."""
        for site in self._sites.values():
            site.line.send(Stop())

    def tick(self, now: float) -> Tick:
        worked = False
        for site in self._sites.values():
            worked |= self._hear(site, now)
        for site in self._sites.values():
            worked |= self._serve(site)
        return Tick.WORKED if worked else Tick.STARVED

    # --------------------------------------------------------------------------------------------------- what sites say

    def _hear(self, site: Site, now: float) -> bool:
        worked, line = False, site.line
        while (frame := line.receive(now)) is not None:
            worked = True
            try:
                if isinstance(frame.message, Hello):
                    self._hello(site, frame.message, now)
                else:
                    self._take(site, frame.message)
            except Refused as error:
                self.refused.add(error.reason)
                if frame.session:  # a site that says such things is broken, whoever it is
                    line.end()
        for session in line.late:  # the site may not know that they are over
            line.outside(Expelled(session))
        line.late.clear()
        if site.nonce and not line.beat(now):
            self._fence(site, "its connection closed, it said nothing for long, or a message was lost")
        return worked

    def _hello(self, site: Site, hello: Hello, now: float) -> None:
        """Begin a session, unless this site has been replaced, or has another Program."""
        incarnation, nonce = hello.incarnation, hello.nonce
        if incarnation != site.incarnation:
            site.line.outside(Denied(nonce, words(why=f"this site was replaced by incarnation {site.incarnation}")))
            return
        if (said := read(hello).get("plan")) != self._digest:
            site.line.outside(Denied(nonce, words(why=f"expected a site of the run {self._digest}, got {said!r}")))
            return
        first = incarnation << 32  # the site counts from it; far above it nobody has come by asking
        if not first < nonce <= max(site.newest, first) + AHEAD:
            raise Refused("wrong numbers", f"hello: expected a nonce of incarnation {incarnation}, got {nonce:#x}")
        if nonce <= site.newest:
            if nonce != site.nonce:  # else it asked again, before it heard that the session began
                site.line.outside(Expelled(0, site.newest))
            return
        if site.nonce:
            self._fence(site, "it began anew")
        self._sessions += 1
        site.nonce = site.newest = nonce
        site.told = None
        site.known.clear()
        site.line.outside(Welcome(nonce, self._sessions))
        site.line.begin(self._sessions, now)
        if site.leaving:
            site.line.send(LetGo())
        self._heard.joined(site.name)

    def _take(self, site: Site, message: Message) -> None:
        name = message.kind.name
        match message:
            case Want(group=group) | Rows(group=group) | Lost(group=group) | Restarted(group=group):
                if group not in site.groups:
                    raise Refused("wrong numbers", f"{name}: expected a group of {site.groups}, got {group}")
                self._of_group(self._remotes[group], message)
            case Kept(group=group) | Brought(group=group):
                if group not in site.kept:
                    raise Refused("wrong numbers", f"{name}: expected a group of {sorted(site.kept)}, got {group}")
                remote = self._remotes[group]
                if isinstance(message, Kept):
                    self._shards.kept(message, remote.open.pop(message.sequence, None), remote.queue, remote.streams)
                elif self._cut() is not None:  # else it was given up meanwhile
                    self._shards.brought(message, self._plan, remote.queue, remote.streams)
            case Answered(shard=shard) | Emptied(shard=shard):
                if shard not in site.shards:
                    raise Refused("wrong numbers", f"{name}: expected a shard of {site.shards}, got {shard}")
                self._shards.take(message)
            case Stepped(group=group) | Unstepped(group=group):
                if group not in site.stepped:
                    raise Refused("wrong numbers", f"{name}: expected a group of {site.stepped}, got {group}")
                self._of_stepped(self._stand_ins[group], message)
            case Statistics(part=part, body=body):
                if part not in site.counts or self._parts[part].nbytes != len(body):
                    got = f"{part} with {len(body):,} bytes"
                    raise Refused("wrong numbers", f"statistics: expected a part of this site, got {got}")
                self._parts[part].write(body)
                if part in self._meeting:
                    self._met()
            case Ask(policy=policy):
                if not 0 <= policy < len(self._versions):
                    raise Refused("wrong numbers", f"ask: expected one of {len(self._versions)} policies, got {policy}")
                version, data = self._newest(policy)
                if version > message.version:
                    site.line.send(Weights(policy, version, data))
            case File(body=body):
                site.file = bytes(body)
            case Said():
                self._said(site, read(message))

    def _said(self, site: Site, said: Mapping[str, Any]) -> None:
        match said:
            case {"title": str(title), "name": str(name)}:  # the file came before
                data, site.file = site.file, b""
                match said:
                    case {"at": int(at)}:
                        self._heard.rows(site.name, title, name, at, data)
                    case {"step": int(step)}:
                        self._heard.file(site.name, title, name, data, step)
                    case _:
                        self._heard.file(site.name, title, name, data)
            case {"title": str(title), "message": dict(message)}:
                self._heard.said(site.name, title, message)
            case _:
                raise Refused("no JSON", f"said: expected a title and a name or a message, got {sorted(said)}")

    def _newest(self, policy: int) -> tuple[int, bytes]:
        """The newest version and its bytes, which all sites that ask for it share while it is on its way."""
        found = self._versions[policy].fetch_bytes(self._fetched.get(policy, (-1, b""))[0])
        if found is not None:
            self._fetched[policy] = found[0], bytes(found[1])
        return self._fetched[policy]

    def _of_group(self, remote: Remote, message: Want | Rows | Lost | Restarted) -> None:
        if isinstance(message, Want):
            most = 2 * (remote.held + 1)  # those of its slots that are under way, and the next ones
            if message.count < 1 or remote.wanted + len(remote.open) + message.count > most:
                raise Refused("wrong numbers", f"want: expected 1 to {most} places of a group, got {message.count} more")
            remote.wanted += message.count
            remote.life = message.life
        elif isinstance(message, Lost):
            remote.life = message.life
            self._let_go(remote)
        elif isinstance(message, Restarted):
            if not remote.open:
                raise Refused("wrong numbers", f"restarted: expected group {remote.group} with an open block, got none")
            remote.queue.restart(remote.open[min(remote.open)])
        else:
            if (slots := remote.open.pop(message.sequence, None)) is None:
                got = f"group {remote.group} has, got {message.sequence}"
                raise Refused("wrong numbers", f"rows: expected those of a block that {got}")
            if remote.last is None:
                remote.last = self._crossing.last()
            try:
                self._crossing.unpack(message.body, slots, remote.last)
            except ValueError as error:
                raise Refused("wrong numbers", f"rows: {error}") from error
            remote.queue.commit(slots)

    def _of_stepped(self, stand_in: StandIn, message: Stepped | Unstepped) -> None:
        group = message.group
        if isinstance(message, Unstepped):
            if stand_in.waits(message.ask) and self._gone[group] == self._cancelled[group]:
                self._gone[group] += 1  # the driver begins their episodes anew
            return
        try:
            if stand_in.answer(message.ask, bool(message.anew), message.body):
                self._wake(group)
        except ValueError as error:
            raise Refused("wrong numbers", f"stepped: {error}") from error

    # ------------------------------------------------------------------------------------------------ what home answers

    def _serve(self, site: Site) -> bool:
        """Grant what can be granted, and pass on what the site's workers are to save for.

        While there is a cut nothing is granted, and a site is told of it once its groups have no block: an actor that waits
        for its grant and one that rests look alike to their machine.
        """
        if not site.nonce:
            return False
        worked, line, cut = False, site.line, self._cut()
        for group in site.groups:
            remote, sequences = self._remotes[group], list[int]()
            while remote.wanted and cut is None and not site.leaving and self._gone[group] == self._cancelled[group]:
                if (slots := remote.queue.reserve(remote.streams)) is None:
                    break
                sequences.append(int(slots[self._plan.first].keys[0, 1]))
                remote.wanted -= 1
                remote.open[sequences[-1]] = slots
            if sequences:
                # After the blocks were reserved, as an actor here would look.
                versions = [one.version for one in self._versions]
                line.send(Grant(group, remote.life, np.array([*versions, *sequences], np.int64).tobytes()))
                worked = True
        worked |= self._shards.ask(line, site.shards)  # before the cut: a shard first does what was asked before it
        if cut is not None and cut != site.told and not any(self._remotes[group].open for group in site.groups):
            site.told = cut
            line.send(Cut(*cut))
        for number in self._meeting - site.counts if site.counts & self._meeting else ():
            if (said := self._parts[number].read()) != site.known.get(number):
                site.known[number] = said
                line.send(Known(number, said))
                worked = True
        for group in site.stepped:
            stand_in = self._stand_ins[group]
            if (ask := stand_in.asks()) is not None:
                asked, whole, actions = ask
                line.send(Step(group, asked, int(whole), actions))
                worked = True
            if held := stand_in.holds():
                line.send(Hold(group, held))
        return worked

    def _fence(self, site: Site, how: str = "") -> None:
        """The session is over: nothing that comes from it counts from now on. ``how``: to be told to the driver."""
        if not site.nonce:
            return
        site.nonce = 0
        site.line.end()
        site.file = b""
        for group in site.groups:
            self._let_go(self._remotes[group])
            if (last := self._remotes[group].last) is not None:
                last.known = False
        for group in site.stepped:
            self._stand_ins[group].forget()
        self._shards.forget(site.shards)
        if how:
            self._heard.left(site.name, how)

    def _let_go(self, remote: Remote) -> None:
        """Forget the blocks of a group; the driver takes them back."""
        remote.open.clear()
        remote.wanted = 0
        self._gone[remote.group] += 1


def take_back(fences: Mapping[str, Any], cancel: Callable[[int], object]) -> int:
    """The driver's: take back the blocks of the groups that the proxy let go of, by ``cancel(group)`` -> their number."""
    gone = fences["gone"].copy()  # what the proxy lets go of from now on is for the next call
    groups = np.flatnonzero(gone > fences["cancelled"]).tolist()
    for group in groups:
        cancel(group)
        fences["cancelled"][group] = gone[group]
    return len(groups)
