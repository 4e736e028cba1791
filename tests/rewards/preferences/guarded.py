"""Preferences whose guard has planted verdicts, by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from equipoise.rewards.preferences.guard import Kind, Verdict
from equipoise.rewards.preferences.term import Preferences


@dataclass(kw_only=True, eq=False)
class Guarded(Preferences):
    kinds: ClassVar[dict[int, Kind]] = {}
    better: ClassVar[int] = 1  # the round at which a version is better than the best one

    def _assess(self, *given: Any, **named: Any) -> Verdict:
        super()._assess(*given, **named)
        self._versions.verdict = kind = self.kinds.get(self._rounds, "ok")
        return Verdict(kind, "planted", best=self._rounds == self.better)


@dataclass(kw_only=True, eq=False)
class PullsBack(Guarded):
    """A better version at round 1; back to it at round 3."""

    kinds: ClassVar[dict[int, Kind]] = {3: "pull back"}


@dataclass(kw_only=True, eq=False)
class Stops(Guarded):
    """A better version at round 2; a stop at round 4."""

    kinds: ClassVar[dict[int, Kind]] = dict.fromkeys(range(4, 100), "stop")
    better: ClassVar[int] = 2
