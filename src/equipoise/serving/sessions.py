"""Sessions: episodes by the caller's names, each with its version."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from equipoise.serving.messages import Refused
from equipoise.serving.version import Version


class Track:
    """The part of an episode that a version keeps: its slot, and the number of its waiting rows.
    The slot is given back after the last.

    ``gap``: a row was dropped, so the state is no longer that of the episode.
    """

    __slots__ = ("ended", "gap", "slot", "version", "waiting")

    def __init__(self, version: Version) -> None:
        self.version, self.slot, self.waiting = version, version.states.take(), 0
        self.ended = self.gap = False
        version.episodes += 1

    def end(self) -> None:
        self.ended = True
        self.settle()

    def drop(self) -> None:
        """A row that waited is given up."""
        self.gap = True
        self.waiting -= 1
        self.settle()

    def settle(self) -> None:
        """Give the slot back if the episode is over and no row of it waits."""
        if self.ended and not self.waiting:
            self.version.states.give(self.slot)
            self.version.episodes -= 1
            self.slot, self.ended = -1, False


class Episode:
    """One episode of a session. ``stream`` and ``step`` number its rows,
    by which noise is drawn.
    """

    __slots__ = ("last", "main", "name", "shadow", "step", "stream")

    def __init__(
        self, name: str, version: Version, shadow: Version | None, stream: int, now: float
    ) -> None:
        self.name, self.stream, self.step, self.last = name, stream, 0, now
        self.main = Track(version)
        self.shadow = Track(shadow) if shadow is not None and shadow is not version else None

    def end(self) -> None:
        self.main.end()
        if self.shadow is not None:
            self.shadow.end()


# seconds that an episode keeps its place without a second request while all places are taken
FRESH_S = 10.0


class Sessions:
    """The open episodes, at most ``cap`` of them; one without a request for ``timeout_s`` seconds
    is ended.

    If all places are taken, a new episode takes the place of the oldest episode that had only one
    request, if that was ``FRESH_S`` ago. So a caller that begins thousands and leaves them keeps
    the others out for seconds, and an episode that goes on never loses its place.
    """

    def __init__(
        self, timeout_s: float, cap: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeout_s, self.cap, self._clock = timeout_s, cap, clock
        self._open: dict[str, Episode] = {}  # by name, the least recently used first
        # the episodes among them that had one request, the oldest first
        self._fresh: dict[str, None] = {}
        self.streams = count()
        self.expired = 0

    def __len__(self) -> int:
        return len(self._open)

    def find(self, name: str) -> Episode:
        """The open episode of a session; Refused (404) if there is none."""
        self.sweep()
        episode = self._open.pop(name, None)
        if episode is None:
            raise Refused(
                404,
                f"session: expected an open episode, got {name!r}, which never began, is done, or "
                "had no request for "
                f"{self.timeout_s:g} s; begin one with first: true",
            )
        episode.last = self._clock()
        self._open[name] = episode
        self._fresh.pop(name, None)
        return episode

    def begin(self, name: str, version: Version, shadow: Version | None) -> Episode:
        """A new episode; the session's earlier one is over. Refused (429) if all places are
        taken.
        """
        self.sweep()
        if name not in self._open and len(self._open) >= self.cap and not self._evict():
            raise Refused(
                429,
                f"session: expected at most {self.cap:,} open episodes, got one more; end those "
                "that are over with "
                "done: true, or raise --max-sessions",
            )
        self.end(name)
        episode = Episode(name, version, shadow, next(self.streams), self._clock())
        self._open[name] = episode
        self._fresh[name] = None
        return episode

    def _evict(self) -> bool:
        """End the oldest episode that never went on; False if it is too young, or there is none."""
        oldest = next(iter(self._fresh), None)
        if oldest is None or self._open[oldest].last > self._clock() - FRESH_S:
            return False
        self.expired += 1
        return self.end(oldest)

    def end(self, name: str) -> bool:
        """End a session's episode; False if no episode was open."""
        episode = self._open.pop(name, None)
        self._fresh.pop(name, None)
        if episode is not None:
            episode.end()
        return episode is not None

    def sweep(self) -> None:
        """End the episodes whose time is over."""
        oldest = self._clock() - self.timeout_s
        while self._open:
            name, episode = next(iter(self._open.items()))
            if episode.last > oldest:
                return
            self.expired += 1
            self.end(name)
