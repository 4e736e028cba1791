"""The lending of learners' devices to generation, while that saves time.

In a run a lent device goes on learning, and draws while its learner waits (``idle_time.py``). In
the forecasts of plans and in the simulation a lent device does not learn (``gains``).

``Lender`` decides once an update, by the gain of a switch: the forecast seconds of an update with
the present devices, less the seconds with one more device lent, or one taken back. It takes the
mean gain of the last three updates, so that one odd batch decides nothing. A switch must gain
``MARGIN`` of an update, and its own cost within ``PAYS_WITHIN`` updates. Since this holds in both
directions, the number of lent devices does not swing. A switch forgets the gains, so at least three
updates lie between two switches.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Literal

from equipoise.balance.placement.costs import Costs, Forecast, Plan
from equipoise.balance.placement.recursion import device_seconds, flow

SEEN = 3  # updates whose mean decides
MARGIN = 0.015  # share of an update that a switch must gain
PAYS_WITHIN = 10  # updates in which a switch must gain its cost

Move = Literal[-1, 0, 1]  # a device is taken back, none changes, a device is lent


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """Seconds that a switch would save in each update; negative if updates would take longer."""

    update_s: float  # seconds of an update with the present devices
    lend: float = 0.0  # if one more device were lent
    back: float = 0.0  # if one were taken back


@dataclass(slots=True)
class Lender:
    """Decides after each update whether to lend a device or to take one back."""

    most: int  # devices that may be lent
    switch_s: float = 0.0  # seconds that a switch takes
    lent: int = 0
    _seen: deque[Gains] = field(default_factory=lambda: deque(maxlen=SEEN))

    def look(self, gains: Gains) -> Move:
        """Take the gains after an update; return the switch to make before the next one."""
        self._seen.append(gains)
        if len(self._seen) < SEEN:
            return 0
        update_s = sum(one.update_s for one in self._seen) / SEEN
        lend = sum(one.lend for one in self._seen) / SEEN
        back = sum(one.back for one in self._seen) / SEEN
        least = max(MARGIN * update_s, self.switch_s / PAYS_WITHIN)
        if lend >= max(least, back) and self.lent < self.most:
            return self._switch(1)
        if back >= least and self.lent > 0:
            return self._switch(-1)
        return 0

    def state(self) -> list[list[float]]:
        """Return the gains of the last updates, for a checkpoint."""
        return [[one.update_s, one.lend, one.back] for one in self._seen]

    def load(self, lent: int, seen: list[list[float]]) -> None:
        """Go on from a ``state``, with this number of lent devices."""
        self.lent = lent
        self._seen.clear()
        for update_s, lend, back in seen:
            self._seen.append(Gains(update_s=update_s, lend=lend, back=back))

    def _switch(self, move: Move) -> Move:
        self.lent += move
        self._seen.clear()
        return move


def lender(costs: Costs, plan: Plan, lent: int) -> Lender:
    """Return the lender of an elastic plan; ``lent``: devices that are lent at the start."""
    return Lender(most=plan.learn - 1, switch_s=costs.switch_s, lent=lent)


def gains(costs: Costs, plan: Plan, lent: int) -> Gains:
    """Return the gains of a switch, by forecasts with one device more, fewer and as many lent."""
    return Splits(costs, plan).gains(lent)


class Splits:
    """Forecasts of an elastic plan by the number of lent devices, each made once."""

    def __init__(self, costs: Costs, plan: Plan) -> None:
        self._costs, self._plan = costs, plan
        self._found: dict[int, Forecast] = {}

    def __getitem__(self, lent: int) -> Forecast:
        if lent not in self._found:
            plan = self._plan
            split = replace(
                plan, kind="apart", generate=plan.generate + lent, learn=plan.learn - lent
            )
            self._found[lent] = flow(self._costs, split)
        return self._found[lent]

    def gains(self, lent: int) -> Gains:
        now = self[lent].seconds
        return Gains(
            update_s=now,
            lend=now - self[lent + 1].seconds if lent + 1 < self._plan.learn else 0.0,
            back=now - self[lent - 1].seconds if lent else 0.0,
        )


def settled(costs: Costs, plan: Plan) -> Forecast:
    """Forecast an elastic run after its last switch, if costs stay the same.

    The run begins with the split that divides the work evenly.
    """
    splits, whole = Splits(costs, plan), plan.generate + plan.learn
    drawn, learned = device_seconds(costs, plan)
    even = round(whole * drawn / (drawn + learned)) - plan.generate
    decides = lender(costs, plan, min(max(even, 0), plan.learn - 1))
    quiet = 0
    while quiet < SEEN:
        quiet = 0 if decides.look(splits.gains(decides.lent)) else quiet + 1
    return splits[decides.lent]
