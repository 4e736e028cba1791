"""The proxy: home's half of every line. It stands in for the workers of other machines, so that no
queue depends on them.

The proxy is the one process that writes what those workers would write. ``Carried`` ends carry the
shared memory, and the proxy does not look into them: it begins and ends sessions, and passes
messages to the end that takes them.

**Fencing.** When a session ends, or an actor is reported dead, an end forgets the blocks of those
groups at once and counts them in ``gone``; later messages for them are refused. The driver then
takes the blocks back (``Queue.cancel``) and counts them in ``cancelled``; before that the group
gets no place. Each of the two words has one writer.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.runtime.cluster.carried import Carried, by_kind, most_bytes
from equipoise.runtime.cluster.frames import (
    FROM_SITES,
    Cut,
    Denied,
    Expelled,
    File,
    Hello,
    Kind,
    LetGo,
    Message,
    Probe,
    Said,
    Stop,
    Welcome,
)
from equipoise.runtime.cluster.line import SILENT_S, Line, Link
from equipoise.runtime.cluster.protocols import Heard
from equipoise.runtime.cluster.wire import BOTH, WORDS, Refused, Tally, read, words
from equipoise.tree import ArraySpec
from equipoise.types import Array, Tick, Tree

AHEAD = 1 << 20  # sessions that a site may have had with an earlier proxy
FILE = 1 << 32  # bytes of a file of a checkpoint
# bytes of what comes besides what is carried
MOST = {Kind.HELLO: WORDS, Kind.SAID: WORDS, Kind.FILE: FILE, **BOTH}


@dataclass(slots=True)
class Site:
    """One machine with workers, as home sees it."""

    name: str
    incarnation: int  # the newest that was started; messages of an older one are refused
    line: Line
    # home's ends of what it shares with that machine, in the order in which they are served
    carried: Sequence[Carried]
    by_kind: Mapping[Kind, Carried]
    nonce: int = 0  # that of the session; 0 without a session
    newest: int = 0  # the newest nonce so far: a request with an older one is late
    # its last message: the cut, its step, and whether its learners may save
    told: tuple[int, int, bool] | None = None
    leaving: bool = False  # its workers are to move
    file: bytes = b""  # a received file; its name comes in the next message


@dataclass(frozen=True, slots=True)
class Traffic:
    """The lines of one site: bytes from it and to it."""

    received: int
    sent: int


class Proxy:
    """A state machine that is ticked: it waits for nothing, and uses neither sockets nor Ray."""

    def __init__(
        self,
        refused: Tally,
        cut: Callable[[], tuple[int, int, bool] | None],
        heard: Heard,
        digest: str,
        silent_s: float = SILENT_S,
    ) -> None:
        """``refused``: of all sites. ``cut``: the number and the step of the cut under way, and
        whether learners save.

        ``digest``: of the Program; a site's must be the same. ``silent_s``: after which a silent
        site counts as gone.
        """
        self.refused, self._cut, self._heard = refused, cut, heard
        self._digest, self._silent_s = digest, silent_s
        self._sites: dict[str, Site] = {}
        self._earlier: dict[str, Traffic] = {}  # of earlier incarnations of a site
        # no session has the number of one of an earlier proxy
        self._sessions = secrets.randbits(48)

    @staticmethod
    def specs(groups: int) -> Tree:
        """The words of fences, by group: how often the proxy let go of it, and how often the driver
        took its blocks back.

        ``refused``: the refused messages, by reason; the proxy's.
        """
        return dict.fromkeys(("gone", "cancelled"), ArraySpec((groups,), "int64")) | {
            "refused": Tally.SPEC
        }

    def expect(self, name: str, incarnation: int, link: Link, carried: Sequence[Carried]) -> None:
        """A site was started: its messages come by this link; an older incarnation of it is over.

        ``carried``: home's ends of what it shares with the site, in the order in which they are to
        be served.
        """
        if (before := self._sites.get(name)) is not None:
            self._fence(before)
            self._earlier[name] = self.traffic(name)
        line = Line(link, MOST | most_bytes(carried), self._silent_s, self.refused)
        self._sites[name] = Site(name, incarnation, line, carried, by_kind(carried))

    def let_go(self, name: str) -> None:
        """The site's machine will be taken away: its workers are to finish what they have, and
        begin nothing.
        """
        site = self._sites[name]
        site.leaving = True
        for one in site.carried:
            one.leave()
        site.line.send(LetGo())

    def traffic(self, name: str) -> Traffic:
        """The bytes that have gone through the lines of a site so far."""
        before, line = self._earlier.get(name, Traffic(0, 0)), self._sites[name].line
        received = sum(size for kind, size in line.moved.items() if kind in FROM_SITES)
        return Traffic(
            before.received + received, before.sent + sum(line.moved.values()) - received
        )

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

    # ---------------------------------------------------------------------------- messages of sites

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
                if frame.session:  # a site that sends such messages is broken, whatever site it is
                    line.end()
        for session in line.late:  # the site may not have heard that they are over
            line.outside(Expelled(session))
        line.late.clear()
        if site.nonce and not line.beat(now):
            self._fence(
                site, "its connection closed, it was silent for long, or a message was lost"
            )
        return worked

    def _hello(self, site: Site, hello: Hello, now: float) -> None:
        """Begin a session, unless this site has been replaced, or has another Program."""
        incarnation, nonce = hello.incarnation, hello.nonce
        if incarnation != site.incarnation:
            site.line.outside(
                Denied(
                    nonce, words(why=f"this site was replaced by incarnation {site.incarnation}")
                )
            )
            return
        if (said := read(hello).get("plan")) != self._digest:
            site.line.outside(
                Denied(nonce, words(why=f"expected a site of the run {self._digest}, got {said!r}"))
            )
            return
        # the site counts from it; requests never reach a number far above it
        first = incarnation << 32
        if not first < nonce <= max(site.newest, first) + AHEAD:
            raise Refused(f"hello: expected a nonce of incarnation {incarnation}, got {nonce:#x}")
        if nonce <= site.newest:
            if nonce != site.nonce:  # else it asked again, before it heard that the session began
                site.line.outside(Expelled(0, site.newest))
            return
        if site.nonce:
            self._fence(site, "it started again")
        self._sessions += 1
        site.nonce = site.newest = nonce
        site.told = None
        site.line.outside(Welcome(nonce, self._sessions))
        site.line.begin(self._sessions, now)
        if site.leaving:
            site.line.send(LetGo())
        self._heard.joined(site.name)

    def _take(self, site: Site, message: Message) -> None:
        match message:
            case File(body=body):
                site.file = bytes(body)
            case Said():
                self._said(site, read(message))
            case Probe():
                pass
            case _:
                site.by_kind[message.kind].take(message)

    def _said(self, site: Site, said: Mapping[str, object]) -> None:
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
                raise Refused(
                    f"said: expected a title and a name or a message, got {sorted(said)}", "no JSON"
                )

    # ------------------------------------------------------------------------------ answers of home

    def _serve(self, site: Site) -> bool:
        """Send what is ready, and then the cut that the site's workers are to save for, once
        nothing is under way.
        """
        if not site.nonce:
            return False
        worked = False
        for one in site.carried:
            for message in one.ready():
                site.line.send(message)
                worked = True
        if (
            (cut := self._cut()) is not None
            and cut != site.told
            and all(one.quiet for one in site.carried)
        ):
            site.told = cut
            site.line.send(Cut(*cut))
        return worked

    def _fence(self, site: Site, how: str = "") -> None:
        """The session is over: nothing that comes from it counts from now on. ``how``: the reason
        for the driver.
        """
        if not site.nonce:
            return
        site.nonce = 0
        site.line.end()
        site.file = b""
        for one in site.carried:
            one.forget()
        if how:
            self._heard.left(site.name, how)


def take_back(fences: Mapping[str, Array], cancel: Callable[[int], object]) -> int:
    """The driver's: take back the blocks of the groups that the proxy let go of, by
    ``cancel(group)`` -> their number.
    """
    gone = fences["gone"].copy()  # fences of the proxy from now on are for the next call
    groups = np.flatnonzero(gone > fences["cancelled"]).tolist()
    for group in groups:
        cancel(group)
        fences["cancelled"][group] = gone[group]
    return len(groups)
