"""A site: the half of every line where the workers of another machine are.

They work as home's workers do, over the memory of their machine. ``Carried`` ends carry the memory
that they share with home, and this file does not look into them: it asks for sessions, and passes
messages to the end that takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from equipoise.runtime.cluster.carried import Carried, by_kind, most_bytes
from equipoise.runtime.cluster.frames import (
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
from equipoise.runtime.cluster.wire import BOTH, WORDS, Refused, read, words
from equipoise.types import Tick

AGAIN_S = 1.0  # after which home is asked again to begin a session
AHEAD = 1 << 20  # sessions that home may have begun and this site has not heard of
CHUNK = 1 << 22  # bytes of new rows of a segment that home writes at once
MOST = {
    Kind.WELCOME: 0,
    Kind.EXPELLED: 0,
    Kind.REFUSED: WORDS,
    Kind.CUT: 0,
    Kind.LET_GO: 0,
    Kind.STOP: 0,
    **BOTH,
}  # bytes of what comes besides what is carried


class SiteEnd:
    """A state machine that is ticked: it waits for nothing, and uses no processes, sockets or
    Ray.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        link: Link,
        carried: Sequence[Carried],
        *,
        digest: str,
        cut: Callable[[int, int, bool], object],
        ended: Callable[[str], object],
        silent_s: float = SILENT_S,
    ) -> None:
        """``carried``: the site's ends of what it shares with home, in the order in which they are
        served.

        ``digest``: of the Program. ``cut`` is called with the number and the step of a cut that
        workers are to save for, and whether it is the learners' turn; ``ended`` with the reason why
        this site is of no more use.
        """
        self._name, self._incarnation, self._digest = name, incarnation, digest
        self._cut, self._ended = cut, ended
        self._carried, self._by_kind = carried, by_kind(carried)
        # files and rows for home, each with its message
        self._late: deque[tuple[Message, ...]] = deque()
        self.line = Line(link, MOST | most_bytes(carried), silent_s)
        self._nonce = incarnation << 32  # no other process of this site has it
        self._asked_at: float | None = None  # when home was asked to begin a session
        self.sessions = 0  # that have begun
        self.leaving = False  # does home ask for the workers, to give them to another machine?

    @property
    def joined(self) -> bool:
        return bool(self.line.session)

    def tick(self, now: float) -> Tick:
        worked = self._hear(now)
        if not self.joined:
            self._ask(now)
        for one in self._carried if self.joined else ():
            worked |= self.send(one.ready())
        while self._late and self.joined and not self.line.full:
            worked |= self.send(self._late.popleft())
        return Tick.WORKED if worked else Tick.STARVED

    @property
    def idle(self) -> bool:
        """Return True if nothing is under way that the workers here finish before they move."""
        return all(one.quiet for one in self._carried)

    def send(self, messages: Iterable[Message]) -> bool:
        """Send messages in the session, if there is one. Returns False if there are none."""
        worked = False
        for message in messages:
            self.line.send(message)
            worked = True
        return worked

    def say(self, title: str, message: Mapping[str, object]) -> None:
        """Pass on a worker's message to its driver."""
        self.line.send(Said(words(title=title, message=message)))

    def files(
        self, title: str, files: Mapping[str, bytes], then: Mapping[str, object] | None = None
    ) -> None:
        """Send a worker's files of a checkpoint, and after them its message to the driver."""
        for name, data in files.items():
            self.line.send(File(data))
            self.line.send(Said(words(title=title, name=name)))
        if then is not None:
            self.say(title, then)

    def late(
        self,
        title: str,
        step: int,
        files: Mapping[str, bytes],
        rows: Iterable[tuple[str, int, memoryview]],
        then: Mapping[str, object],
    ) -> None:
        """Send what a worker has written since the cut of that step: its ``files``, and new
        ``rows``; then its message.

        The rows: (segment, its first new byte, bytes). They are read from the disk as the line has
        room for them.
        """
        for name, data in files.items():
            self._late.append((File(data), Said(words(title=title, name=name, step=step))))
        for name, first, fresh in rows:
            for at in range(0, len(fresh), CHUNK):
                part = fresh[at : at + CHUNK]
                self._late.append((File(part), Said(words(title=title, name=name, at=first + at))))
        self._late.append((Said(words(title=title, message=dict(then))),))

    # ---------------------------------------------------------------------------------- the session

    def _ask(self, now: float) -> None:
        """Ask home to begin a session, and ask again: the request may not have come."""
        if self._asked_at is None:  # a session has ended, or this is the first
            self._nonce += 1
            self._late.clear()
            for one in self._carried:
                one.forget()
        elif now - self._asked_at < AGAIN_S:
            return
        self._asked_at = now
        self.line.outside(
            Hello(self._incarnation, self._nonce, words(site=self._name, plan=self._digest))
        )

    def _hear(self, now: float) -> bool:
        worked, line = False, self.line
        while (frame := line.receive(now)) is not None:
            worked = True
            try:
                self._take(frame.message, now)
            except Refused as error:
                line.refused.add(error.reason)
                line.end()
        line.late.clear()
        if self._asked_at is None and not line.beat(now):
            worked = True  # the session is over: ``_ask`` is next
        return worked

    def _take(self, message: Message, now: float) -> None:
        match message:
            case Welcome(nonce, session):
                if nonce == self._nonce and not self.joined:
                    self.line.begin(session, now)
                    self._asked_at = None
                    self.sessions += 1
            case Expelled(session, nonce):
                if not self.joined:
                    # home's word that a session began was lost on its way
                    if self._nonce <= nonce < self._nonce + AHEAD:
                        self._nonce, self._asked_at = nonce, None
                elif session == self.line.session:
                    self.line.end()
            case Denied(nonce):
                if nonce in (self._nonce, -1):
                    self._ended(str(read(message).get("why", "home refused it")))
            case Cut(cut, step, last):
                self._cut(cut, step, bool(last))
            case LetGo():
                self.leaving = True
                for one in self._carried:
                    one.leave()
            case Stop():
                self._ended("")
            case Probe():
                pass
            case _:
                self._by_kind[message.kind].take(message)
