"""The governor: small measured steps of what a run may change while it goes on, within the user's limits.

A lever is a number between limits: how many actors act, how many versions old rows may be. A step doubles or halves one of
them, or makes it half as large again or a third smaller once that does not pay. It is measured over several versions and kept
where it pays: one that costs more (actors, lag) where it makes ``GAINS`` times the updates/s, one that costs less where
``KEEPS`` times the best so far are left. Where no step pays, the values stay until the speed leaves the band ``AWAY`` around
what they made, twice in a row; then the search begins anew.

Pure: it is told the time and the newest version, and answers with the values that are to be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

WINDOW_S, SETTLE_S = 2.5, 0.5  # of a measurement, and before it, in which what was under way comes to its end
VERSIONS, FLUSH = 4, 2  # versions of a measurement at least; versions besides the lag before it
GAINS, KEEPS, AWAY = 1.05, 0.97, 0.25
WAITS = 0.1  # share of its time that a learner waits which has too little to learn from


@dataclass(frozen=True, slots=True)
class Lever:
    low: int
    high: int

    def stepped(self, value: int, up: bool, fine: bool) -> int:
        if fine:
            return min(value + max(value // 2, 1), self.high) if up else max(value - max(value // 3, 1), self.low)
        return min(2 * value, self.high) if up else max(value // 2, self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One step: what was tried, why, and what came of it."""

    wall_s: float
    lever: str
    before: int
    after: int
    reason: str
    rate_before: float  # versions a second
    rate_after: float | None = None  # None: it is being measured
    kept: bool | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
    _rate: float | None = None  # versions a second of ``values``, without what is being tried; None: not known
    _best: float = 0.0  # since the search began
    _tried: set[tuple[str, int]] = field(default_factory=set)  # values that did not pay from here
    _holds: bool = False  # is nothing tried any more
    _away: int = 0  # measurements in turn that left the band
    _first: float | None = None  # the speed at the beginning
    _news: str = ""

    def look(self, at: float, version: int, *, waited: float = 0.0, disturbed: bool = False) -> bool:
        """``waited``: the share of the last seconds in which the learners waited for rows. ``disturbed``: what is measured now
        says nothing, for example since an evaluation goes on. -> Were ``values`` changed?
        """
        if self._window is None or disturbed:
            self._window, self._version = _Window(at, version), version
            return False
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
        """What there is to say, once."""
        said, self._news = self._news, ""
        return said

    @property
    def _trying(self) -> bool:
        """Is the last step being measured?"""
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
        self.decisions[-1] = replace(tried, rate_after=rate, kept=kept)
        if not kept:
            self._tried.add((tried.lever, tried.after))
            self.values[tried.lever] = tried.before
            return
        self._rate, self._best = rate, max(self._best, rate)
        if up:  # what did not pay before may pay now
            self._tried.clear()
        self._tried.add((tried.lever, tried.before))

    def _step(self, at: float, waited: float) -> None:
        """Try the next step that was not tried from here; else hold."""
        assert self._rate is not None
        ups = (True, False) if waited >= WAITS else (False, True)
        for fine, up, name in itertools.product((False, True), ups, self.levers):
            before = self.values[name]
            after = self.levers[name].stepped(before, up, fine)
            if after == before or (name, after) in self._tried:
                continue
            reason = f"the learners waited {waited:.0%} of the time: would {'more help' if up else 'less do'}?"
            self.decisions.append(
                Decision(wall_s=at, lever=name, before=before, after=after, reason=reason, rate_before=self._rate)
            )
            self.values[name] = after
            return
        self._holds, self._rate = True, None  # it is measured again: the machine may have changed since

    def _tell(self, rate: float) -> None:
        if self._holds and self._first:
            now = ", ".join(f"{name}={value} of {self.levers[name].high}" for name, value in self.values.items())
            self._news = (
                f"balance: {now} after {len(self.decisions)} steps, {rate / self._first:.2f} times the updates/s of the "
                "beginning; they stay so until the speed changes"
            )
