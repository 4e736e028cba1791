"""The governor: small measured steps of what a run may change while it goes on, within the user's
limits.

A lever is a number between limits: how many actors act, how many versions old rows may be. A step
doubles or halves one of them, or makes it half as large again or a third smaller once that does not
pay. It is measured over several versions and kept if it pays: a step that costs more (actors, lag)
if it makes ``GAINS`` times the updates/s, a step that costs less if ``KEEPS`` times the best so far
are left. If no step pays, the values stay until the speed leaves the band ``AWAY`` around what they
made, twice in a row; then the search begins again.

Pure: its inputs are the time and the newest version, and it answers with the values to set.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# seconds of a measurement, and before it until older work has passed
WINDOW_S, SETTLE_S = 2.5, 0.5
VERSIONS, FLUSH = 4, 2  # versions of a measurement at least; versions besides the lag before it
GAINS, KEEPS, AWAY = 1.05, 0.97, 0.25
DISTURBED_S = 30.0  # a step whose measurement is disturbed for so long is undone
WAITS = 0.1  # share of its time that a learner waits which has too little to learn from


@dataclass(frozen=True, slots=True)
class Lever:
    low: int
    high: int
    unit: int = 1  # of which all values are multiples

    def stepped(self, value: int, up: bool, fine: bool) -> int:
        units, low, high = value // self.unit, -(-self.low // self.unit), self.high // self.unit
        if fine:
            after = units + max(units // 2, 1) if up else units - max(units // 3, 1)
        else:
            after = 2 * units if up else units // 2
        return min(max(after, low), high) * self.unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One step: the tried values, the reason and the result."""

    wall_s: float
    lever: str
    before: int
    after: int
    reason: str
    rate_before: float  # versions a second
    rate_after: float | None = None  # None: it is being measured
    kept: bool | None = None


@dataclass(slots=True)
class _Window:
    """The speed between two versions, from when the ring has settled on."""

    since: float
    from_version: int
    first: tuple[float, int] | None = None

    def rate(self, at: float, version: int, lag: int) -> float | None:
        """Versions a second; None: not yet. To be called when the version has just changed."""
        if self.first is None:
            if at - self.since >= SETTLE_S and version >= self.from_version + lag + FLUSH:
                self.first = at, version
            return None
        began, first = self.first
        if at - began < WINDOW_S or version - first < VERSIONS:
            return None
        return (version - first) / (at - began)


@dataclass(slots=True)
class Governor:
    """``look`` often; ``values`` are what is to be."""

    levers: Mapping[str, Lever]
    values: dict[str, int]
    decisions: list[Decision] = field(default_factory=list)
    _window: _Window | None = None
    _version: int = -1
    # versions a second of ``values``, without what is being tried; None: not known
    _rate: float | None = None
    _best: float = 0.0  # since the search began
    _tried: set[tuple[str, int]] = field(default_factory=set)  # values that did not pay from here
    _holds: bool = False  # is nothing tried any more
    _away: int = 0  # measurements in turn that left the band
    _first: float | None = None  # the speed at the beginning
    _told: dict[str, int] | None = None
    _disturbed_at: float | None = None
    _news: str = ""

    def look(
        self, at: float, version: int, *, waited: float = 0.0, disturbed: bool = False
    ) -> bool:
        """``waited``: share of recent seconds in which the learners waited for rows. ``disturbed``:
        the present measurement is void, such as during an evaluation. -> Were ``values`` changed?
        """
        if self._window is None or disturbed:
            self._window, self._version = _Window(at, version), version
            self._disturbed_at = self._disturbed_at or at
            if self._trying and at - self._disturbed_at >= DISTURBED_S:
                self._undo()
                return True
            return False
        self._disturbed_at = None
        if version == self._version:
            return False
        self._version = version
        rate = self._window.rate(at, version, self.values.get("max_lag", 0))
        if rate is None:
            return False
        self._window, before = _Window(at, version), dict(self.values)
        if self._trying:
            self._judge(rate)
        elif self._rate is None:
            self._rate, self._best, self._first = rate, max(self._best, rate), self._first or rate
            self._tell(rate)
        elif self._left(rate):
            self._rate = self._best = rate
            self._tried.clear()
            self._holds = False
        if not self._holds:
            self._step(at, waited)
        return self.values != before

    def told(self) -> str:
        """The text to report, once."""
        said, self._news = self._news, ""
        return said

    @property
    def kept(self) -> dict[str, int]:
        """The values without what is being tried."""
        return self.values | (
            {self.decisions[-1].lever: self.decisions[-1].before} if self._trying else {}
        )

    @property
    def _trying(self) -> bool:
        return bool(self.decisions) and self.decisions[-1].kept is None

    def _left(self, rate: float) -> bool:
        """Has the speed left the band around what it was, twice in a row?"""
        assert self._rate is not None
        self._away = self._away + 1 if abs(math.log(rate / self._rate)) > math.log(1 + AWAY) else 0
        if self._away < 2:
            return False
        self._away = 0
        return True

    def _judge(self, rate: float) -> None:
        """Keep what was tried, or go back."""
        tried = self.decisions[-1]
        up = tried.after > tried.before
        kept = rate >= (GAINS * tried.rate_before if up else KEEPS * self._best)
        if not kept:
            self._undo(rate)
            return
        self.decisions[-1] = replace(tried, rate_after=rate, kept=True)
        self._rate, self._best = rate, max(self._best, rate)
        if up:  # a step that did not pay before may pay now
            self._tried.clear()
        self._tried.add((tried.lever, tried.before))

    def _undo(self, rate: float | None = None) -> None:
        tried = self.decisions[-1]
        self.decisions[-1] = replace(tried, rate_after=rate, kept=False)
        self._tried.add((tried.lever, tried.after))
        self.values[tried.lever] = tried.before

    def _step(self, at: float, waited: float) -> None:
        """Try the next step that was not tried from here; else hold."""
        assert self._rate is not None
        ups = (True, False) if waited >= WAITS else (False, True)
        for fine, up, name in itertools.product((False, True), ups, self.levers):
            before = self.values[name]
            after = self.levers[name].stepped(before, up, fine)
            if after == before or (name, after) in self._tried:
                continue
            reason = (
                f"the learners waited {waited:.0%} of the time: would "
                f"{'more help' if up else 'less do'}?"
            )
            self.decisions.append(
                Decision(
                    wall_s=at,
                    lever=name,
                    before=before,
                    after=after,
                    reason=reason,
                    rate_before=self._rate,
                )
            )
            self.values[name] = after
            return
        # measure the speed again, since the machine may have changed
        self._holds, self._rate = True, None

    def _tell(self, rate: float) -> None:
        # once for each result: a run of days may come to it hundreds of times
        if self._holds and self._first and self.values != self._told:
            self._told = dict(self.values)
            now = ", ".join(
                f"{name}={value} of {self.levers[name].high}" for name, value in self.values.items()
            )
            self._news = (
                f"balance: {now} after {len(self.decisions)} steps, {rate / self._first:.2f} times "
                "the updates/s of the beginning; they stay so until the speed changes"
            )
