"""The forecast of a plan without switches: a mean-field recursion over the batches of a run.

A step of the recursion passes one bin of tokens. Samples that began together have drawn equally
many tokens, so the observed lengths give the number of them that are still being drawn; no sample
is simulated. A batch is complete when its longest sample is. This moment is taken from its exact
distribution, at evenly spread quantiles. So a forecast costs the same for 8 devices and for 64.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from equipoise.balance.placement.costs import PARTS, Costs, Forecast, Part, Plan

BINS = 96  # of tokens, up to the longest sample
KEPT = 4096  # at most this number of lengths is used, evenly spread over the given ones
WARM, MEASURED = 4, 24  # batches before the measurement, and in it
CROWDED = 8  # measured batches if samples wait for room, since such batches differ less
TAIL = 0.1  # share of a batch's samples, below which those being drawn are its long tail
NEVER = -1e9  # in place of log(0)
# columns of ``_Lengths.table``
DRAWN, LOG_ENDED, GROUP_ENDS, LIVE, HELD = range(5)


def flow(costs: Costs, plan: Plan) -> Forecast:
    """Forecast a plan of the kind together or apart."""
    return _Run(costs, plan).forecast()


def device_seconds(costs: Costs, plan: Plan) -> tuple[float, float]:
    """Return the work of an update in seconds of one device: to draw its samples at the best number
    at once, and to learn from them.
    """
    step_s = step_seconds(costs)
    numbers = [one for one in (*costs.decode, costs.at_once) if one <= costs.at_once]
    drawn = costs.samples * costs.mean * min(step_s(one) / one for one in numbers)
    return drawn, learn_s(costs, plan, costs.samples * costs.mean) * plan.learn


def learn_s(costs: Costs, plan: Plan, tokens: float) -> float:
    """Return the learners' seconds on a batch of ``tokens`` drawn tokens, without publishing."""
    whole = tokens + costs.samples * costs.prompt
    found = whole / (plan.learn * costs.train)
    for rate, own in ((costs.score, plan.score), (costs.reference, plan.reference)):
        if rate and not own:
            found += whole / (plan.learn * rate)
    return found


class _Lengths:
    """The observed lengths, by bins of tokens."""

    def __init__(self, costs: Costs) -> None:
        tokens = np.sort(np.asarray(costs.lengths, np.float64))
        self.mean, self.deviation = float(tokens.mean()), float(tokens.std())
        if len(tokens) > KEPT:
            tokens = tokens[np.linspace(0, len(tokens) - 1, KEPT).astype(np.int64)]
        self.bin = float(tokens[-1]) / BINS  # tokens
        edges = np.linspace(0.0, tokens[-1], BINS + 1)
        ended = np.searchsorted(tokens, edges[1:], side="right") / len(tokens)
        # a row for each age of a sample in bins
        self.table = table = np.zeros((BINS, 5))
        # the mean share of the bin that the sample draws
        table[:, DRAWN] = np.clip(tokens[:, None] - edges[:-1], 0, self.bin).mean(0) / self.bin
        table[:, LOG_ENDED] = np.log(np.maximum(ended, 1e-300))
        table[ended == 0, LOG_ENDED] = NEVER
        # chance that it ends in the bin as the last of its group
        table[:, GROUP_ENDS] = np.diff(ended**costs.group, prepend=0.0) / costs.group
        # chance that it is being drawn when the bin begins, and its expected tokens by then
        table[1:, LIVE] = 1 - ended[:-1]
        table[1:, HELD] = table[1:, LIVE] * (costs.prompt + edges[1:-1])


@dataclass(slots=True)
class _Batch:
    """A batch that is not learned from yet."""

    number: int
    left: float  # samples that have not begun
    quantile: float  # in the distribution of the moment at which the batch is complete
    tokens: float
    ages: NDArray[np.float64] = field(default_factory=lambda: np.zeros(BINS))  # samples, by bins
    sums: list[float] = field(default_factory=list)  # over its samples, of the table's columns
    chance: float = 0.0  # that the batch is complete by now
    tail_s: float = math.inf  # when its long tail began
    at: float | None = None  # when it was complete

    def age(self, table: NDArray[np.float64]) -> None:
        """Let all samples pass to the next bin."""
        self.ages[1:] = self.ages[:-1]
        self.ages[0] = 0.0
        self.sums = (self.ages @ table).tolist()

    def begin(self, count: float, table: NDArray[np.float64]) -> None:
        self.ages[0] += count
        self.left = self.left - count if self.left - count > 1e-6 else 0.0
        self.sums = (self.ages @ table).tolist()

    @property
    def live(self) -> float:
        """Samples that are being drawn; at least one if the batch is not complete."""
        mean = self.sums[DRAWN]
        return mean / -math.expm1(-mean) if 0 < mean < 8 and not self.left else mean

    def look(self, before: float, after: float) -> None:
        """Note the moment if the longest sample ended between these two."""
        if self.left or self.at is not None:
            return
        chance = math.exp(self.sums[LOG_ENDED])
        if chance >= self.quantile:
            part = (self.quantile - self.chance) / (chance - self.chance)
            self.at = before + part * (after - before)
        self.chance = chance


def _spread(count: int, seed: int) -> list[float]:
    """Return evenly spread numbers in (0, 1) in a random order."""
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return [(place + 0.5) / count for place in places]


class _Pool:
    """Devices that score groups of finished samples, the oldest batch first."""

    def __init__(self, group_s: float, devices: int) -> None:
        """``group_s``: seconds in which a device scores a group."""
        self._group_s, self._devices = group_s, devices
        self._left: dict[int, float] = {}  # groups that wait, by batch
        self._busy_until = 0.0

    def pass_time(self, before: float, after: float, ended: Mapping[int, float]) -> None:
        """Score between two moments; ``ended``: new groups by batch, the oldest batch first."""
        room = max(after - max(before, self._busy_until), 0.0) * self._devices / self._group_s
        for batch, groups in ended.items():
            waits = self._left.get(batch, 0.0) + groups
            self._left[batch] = max(waits - room, 0.0)
            room = max(room - waits, 0.0)

    def finish(self, batch: int, at: float) -> float:
        """Return when a batch is scored whose last group came at ``at``."""
        waits = self._left.pop(batch, 0.0) * self._group_s / self._devices
        self._busy_until = max(at, self._busy_until) + waits
        return self._busy_until + self._group_s


class _Run:
    """The recursion, one bin of tokens after the other."""

    def __init__(self, costs: Costs, plan: Plan) -> None:
        self._costs, self._plan = costs, plan
        self._lengths = _Lengths(costs)
        self._step_s = step_seconds(costs)
        self._prefill_s = costs.prompt / costs.prefill / costs.group / plan.generate  # of a sample
        self._open: deque[_Batch] = deque()  # batches that are not complete
        self._learned: deque[float] = deque()  # moments at which places become free
        self._t, self._dealt, self._published = 0.0, 0, 0
        self._free = 0.0  # moment at which the learners become free
        tokens = (self._lengths.mean + costs.prompt) * costs.group
        self._pools = [
            _Pool(tokens / rate, own)
            for rate, own in ((costs.score, plan.score), (costs.reference, plan.reference))
            if rate and own
        ]
        rows = min(costs.at_once, costs.room / (costs.prompt + self._lengths.mean))
        self._measured = MEASURED if rows * plan.generate >= costs.samples else CROWDED
        count = WARM + 2 * plan.max_lag + self._measured + 1
        self._quantiles, self._noises = _spread(count, 1), _spread(count, 2)
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._busy_s = self._lags = self._tokens = 0.0
        for _ in range(plan.max_lag + 1):
            self._deal()

    def forecast(self) -> Forecast:
        measured = self._measured
        self._until(WARM + self._plan.max_lag)
        began, spent = self._free, dict(self._spent)
        busy_s, lags, tokens = self._busy_s, self._lags, self._tokens
        self._until(WARM + self._plan.max_lag + measured)
        whole = self._free - began
        parts = {part: (self._spent[part] - spent[part]) / measured for part in PARTS}
        waits = parts["generation"] + parts["long tail"] + parts["reward"]
        idle, drawing = waits * measured / whole, (self._busy_s - busy_s) / whole
        if self._plan.kind == "together":
            idle = drawing = max(idle - drawing, 0.0)
        else:
            drawing = max(1 - drawing, 0.0)
        return Forecast(
            plan=self._plan,
            seconds=whole / measured,
            generators_idle=drawing,
            learners_idle=idle,
            lag=(self._lags - lags) / max(self._tokens - tokens, 1.0),
            spent=parts,
            devices=(self._plan.generate, self._plan.learn),
        )

    def _until(self, batches: int) -> None:
        """Go on until the learners have learned from this number of batches."""
        while self._published + len(self._learned) < batches:
            self._step()

    def _deal(self) -> None:
        """Let the next batch begin."""
        number, samples = self._dealt, self._costs.samples
        noise = NormalDist().inv_cdf(self._noises[number]) * math.sqrt(samples)
        tokens = max(samples * self._lengths.mean + noise * self._lengths.deviation, 1.0)
        self._open.append(_Batch(number, samples, self._quantiles[number], tokens))
        self._dealt += 1

    def _step(self) -> None:
        """Pass the time of one bin of tokens."""
        while self._learned and self._learned[0] <= self._t:
            self._learned.popleft()
            self._published += 1
            self._t += self._costs.take_s if self._open else 0.0
            self._deal()
        for batch in self._open:
            batch.age(self._lengths.table)
        fresh = self._begin()
        live = [one.live for one in self._open]
        if not (number := sum(live)):
            self._t = max(self._t, self._learned[0])
            return
        devices, of, before = self._plan.generate, self._lengths.bin, self._t
        passed = self._step_s(number / devices) * of + fresh * self._prefill_s
        self._t += passed
        # a device draws nothing if all samples are on other devices
        self._busy_s += passed * (1 - (1 - 1 / devices) ** number)
        self._tokens += number * of
        for batch, some in zip(self._open, live, strict=True):
            self._lags += some * of * (batch.number - self._published)
            if not batch.left and some < TAIL * self._costs.samples:
                batch.tail_s = min(batch.tail_s, before)
            batch.look(before, self._t)
        for pool in self._pools:
            ended = {one.number: one.sums[GROUP_ENDS] for one in self._open}
            pool.pass_time(before, self._t, ended)
        while self._open and (at := self._open[0].at) is not None:
            self._learn(self._open.popleft(), at)

    def _begin(self) -> float:
        """Begin the samples that there is room for; return their number."""
        costs, devices, group = self._costs, self._plan.generate, self._costs.group
        taken = sum(one.sums[LIVE] for one in self._open)
        # a group begins when all of its samples fit on a device
        groups = (costs.at_once - taken / devices + 0.5) // group
        if costs.room < math.inf:
            held = sum(one.sums[HELD] for one in self._open)
            fits = (costs.room - held / devices) / (costs.prompt + self._lengths.mean)
            # room is freed a whole sample at a time, so a group fits somewhat earlier than by the
            # mean; a device that draws nothing takes a group of any size
            groups = min(groups, (fits + 1.5) // group if taken > 0.5 else max(fits // group, 1.0))
        room = max(groups, 0.0) * group * devices
        fresh = 0.0
        for batch in self._open:
            count = min(room - fresh, batch.left)
            if count > 1e-6:
                batch.begin(count, self._lengths.table)
                fresh += count
        return fresh

    def _learn(self, batch: _Batch, at: float) -> None:
        """Score a complete batch, and learn from it."""
        costs, plan, free = self._costs, self._plan, self._free
        scored = at + costs.reward_s
        for pool in self._pools:
            scored = pool.finish(batch.number, scored)
        began = max(scored, free)

        def waited(since: float, until: float) -> float:
            return max(min(until, began) - max(since, free), 0.0)

        tail_s = min(batch.tail_s, at)
        spent: dict[Part, float] = {
            "generation": waited(free, tail_s),
            "long tail": waited(tail_s, at),
            "reward": waited(at, scored),
            "learning": learn_s(costs, plan, batch.tokens),
            "publishing": costs.publish_s,
            "switching": 2 * costs.switch_s if plan.kind == "together" else 0.0,
        }
        for part, seconds in spent.items():
            self._spent[part] += seconds
        self._free = free + sum(spent.values())
        self._learned.append(self._free)


def step_seconds(costs: Costs) -> Callable[[float], float]:
    """Return a function from the number of samples to the seconds of a decode step.

    It interpolates between the measured numbers, and extrapolates from the last two.
    """
    at = sorted(costs.decode)
    step = [one / costs.decode[one] for one in at]
    if len(at) > 1 and at[-1] < costs.at_once:
        slope = max((step[-1] - step[-2]) / (at[-1] - at[-2]), 0.0)
        step.append(step[-1] + slope * (costs.at_once - at[-1]))
        at.append(costs.at_once)
    table: list[float] = np.interp(np.arange(1, costs.at_once + 2), at, step).tolist()

    def step_s(samples: float) -> float:
        one = min(max(samples, 1.0), costs.at_once)
        low = int(one)
        return table[low - 1] + (one - low) * (table[low] - table[low - 1])

    return step_s
