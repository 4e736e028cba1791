"""A discrete-event simulation of the devices of a text run: the judge of ``balance/placement``.

It shares no formula with the forecasts. It knows every sample by its length, every device by the
samples on it, and passes from event to event: a sample ends, a group is judged, a batch is learned
from. A device that draws does one step after the other, of a length that depends on the samples on
it; new groups and new weights come between two steps. The rows of a batch are dealt to learners the
longest first.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from equipoise.balance.placement.costs import Costs, Plan
from equipoise.balance.placement.lending import Lender, gains, lender

Lengths = Callable[[int, np.random.Generator], NDArray[np.int64]]  # of a batch [samples]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The truth about the devices, of which forecasts only see what was measured."""

    step_s: float = 0.020  # of a decode step, whatever is drawn
    sample_s: float = 0.00005  # more for each sample on the device
    reward_s: float = 0.0  # of a group, mean
    knee: int = 192  # samples beyond which each costs four times as much

    def step(self, live: int) -> float:
        return self.step_s + self.sample_s * (live + 3 * max(live - self.knee, 0))

    def decode(self, at: tuple[int, ...] = (1, 8, 32, 64, 128, 192, 256)) -> dict[int, float]:
        """Tokens/s by the number of samples, as a run would measure them."""
        return {one: one / self.step(one) for one in at}


@dataclass(slots=True)
class _Sample:
    batch: int
    group: int
    length: int
    drawn: int = 0  # when it was last looked at


@dataclass(slots=True)
class _Device:
    """A device that draws."""

    at: float = 0.0  # its state is that of this moment
    steps: int = 0
    live: dict[int, tuple[int, _Sample]] = field(default_factory=dict)  # (began at step, sample)
    ends: list[tuple[int, int]] = field(default_factory=list)  # (step, key)
    stamp: int = 0  # of the scheduled end that counts
    drawing_s: float = 0.0


@dataclass(slots=True)
class _Pool:
    """Devices that score groups."""

    devices: int
    waiting: list[tuple[int, float]] = field(default_factory=list)  # (batch, seconds)
    free: int = field(init=False)

    def __post_init__(self) -> None:
        self.free = self.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came of it, after the first updates."""

    seconds: float  # of an update
    generators_idle: float
    learners_idle: float
    lag: float
    reward_s: float  # from the last sample of a batch to its last reward
    updates_s: tuple[float, ...]  # of every update
    switches: tuple[int, ...]  # devices that were lent or taken back, by update


class Devices:
    """One run."""

    def __init__(
        self,
        costs: Costs,
        plan: Plan,
        lengths: Lengths,
        *,
        machine: Machine,
        seed: int,
        lent: int = 0,
    ) -> None:
        """``costs``: speeds and times; its lengths and its decode speeds are only for forecasts."""
        self._costs, self._plan, self._machine = costs, plan, machine
        self._lengths, self._random = lengths, np.random.default_rng(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.now = 0.0
        self._devices = [_Device() for _ in range(plan.generate + lent)]
        self._learners = plan.learn - lent
        self._waiting: deque[list[_Sample]] = deque()  # groups, or samples that moved
        self._left: dict[int, int] = {}  # of a group: samples that are being drawn
        self._unjudged: dict[int, int] = {}  # of a batch: groups
        self._tokens: dict[int, list[int]] = {}  # of a batch: lengths
        self._pools = [_Pool(plan.score), _Pool(plan.reference)]
        self._version = 0
        self._learning = False
        self._ready: set[int] = set()
        self._free_at = self._idle_s = 0.0
        self._lags = self._drawn = 0  # versions summed over tokens, and tokens
        self._last: dict[int, float] = {}  # of a batch: when its last sample ended
        self._reward_s = 0.0
        self._gone_s = 0.0  # in which devices drew that learn now
        self._ends: list[float] = []
        self._marks: list[tuple[float, float, float, int, int]] = []
        self._switches: list[int] = []
        self._lender: Lender | None = lender(costs, plan, lent) if plan.kind == "elastic" else None
        self._groups, self._mean = 0, 0.0

    def run(self, updates: int, warm: int = 5) -> Simulated:
        for _ in range(self._plan.max_lag + 1):
            self._deal()
        self._dispatch()
        while len(self._ends) < updates:
            self.now, _, act = heapq.heappop(self._events)
            act()
        first, last = self._marks[warm - 1], self._marks[-1]
        count, seconds = updates - warm, last[0] - first[0]
        learners_idle = (last[2] - first[2]) / seconds
        idle = 1 - (last[1] - first[1]) / seconds / len(self._devices)
        if self._plan.kind == "together":  # the same devices
            idle = learners_idle = learners_idle + idle - 1
        return Simulated(
            seconds=seconds / count,
            generators_idle=idle,
            learners_idle=learners_idle,
            lag=(last[3] - first[3]) / (last[4] - first[4]),
            reward_s=self._reward_s / updates,
            updates_s=tuple(np.diff([0.0, *self._ends]).tolist()),
            switches=tuple(self._switches),
        )

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act))

    # ------------------------------------------------------------------------------------- drawing

    def _deal(self) -> None:
        """The places of a batch are free: its groups may begin."""
        batch = len(self._tokens)
        lengths = self._lengths(batch, self._random).tolist()
        self._tokens[batch] = lengths
        self._mean = sum(lengths) / len(lengths)
        self._unjudged[batch] = len(lengths) // self._costs.group
        for first in range(0, len(lengths), self._costs.group):
            some = lengths[first : first + self._costs.group]
            self._left[self._groups] = len(some)
            self._waiting.append([_Sample(batch, self._groups, one) for one in some])
            self._groups += 1

    def _dispatch(self) -> None:
        """Begin groups where there is room for all of their samples, on the emptiest device."""
        touched: dict[int, float] = {}  # seconds of prefill
        while self._waiting:
            group = self._waiting[0]
            fits = [at for at, one in enumerate(self._devices) if self._fits(one, group)]
            if not fits:
                break
            place = min(fits, key=lambda at: len(self._devices[at].live))
            device = self._devices[place]
            self._waiting.popleft()
            if place not in touched:
                self._pass(device)
                touched[place] = 0.0
            moved = sum(one.drawn + self._costs.prompt for one in group if one.drawn)
            touched[place] += (moved or self._costs.prompt) / self._costs.prefill
            for one in group:
                key = next(self._numbers)
                device.live[key] = device.steps - one.drawn, one
                heapq.heappush(device.ends, (device.steps - one.drawn + one.length, key))
        for place, seconds in touched.items():
            device = self._devices[place]
            device.at += seconds
            device.drawing_s += seconds
            self._schedule(device)

    def _fits(self, device: _Device, group: list[_Sample]) -> bool:
        """Is there room for the samples of the group, and for their keys and values at the mean
        length seen?
        """
        if not device.live:
            return True
        if len(device.live) + len(group) > self._costs.at_once:
            return False
        if self._costs.room == math.inf:
            return True
        each = self._costs.prompt + self._mean
        drawn = sum(device.steps - began for began, _ in device.live.values())
        held = drawn + self._costs.prompt * len(device.live)
        return held + len(group) * each <= self._costs.room

    def _pass(self, device: _Device) -> None:
        """Bring a device to the end of the step that is under way."""
        live = len(device.live)
        if not live or device.at >= self.now:
            device.at = max(device.at, self.now)
            return
        step = self._machine.step(live)
        most = device.ends[0][0] - device.steps
        steps = min(-int(-(self.now - device.at) // step), most)
        device.steps += steps
        device.at += steps * step
        device.drawing_s += steps * step

    def _schedule(self, device: _Device) -> None:
        """Expect the next sample to end."""
        device.stamp += 1
        if device.live:
            stamp, steps = device.stamp, device.ends[0][0] - device.steps
            when = device.at + steps * self._machine.step(len(device.live))

            def act() -> None:
                if device.stamp == stamp:
                    device.drawing_s += when - device.at
                    device.steps, device.at = device.ends[0][0], when
                    self._end(device)

            self._at(when, act)

    def _end(self, device: _Device) -> None:
        while device.ends and device.ends[0][0] <= device.steps:
            _, key = heapq.heappop(device.ends)
            began, sample = device.live.pop(key)
            self._note(sample, device.steps - began)
            self._left[sample.group] -= 1
            if not self._left[sample.group]:
                seconds = self._random.gamma(4.0, self._machine.reward_s / 4.0)
                self._last[sample.batch] = self.now
                self._at(self.now + seconds, partial(self._score, sample.batch, 0))
        self._schedule(device)
        self._dispatch()

    def _note(self, sample: _Sample, drawn: int) -> None:
        """Count the lag of the tokens that were drawn since the last version."""
        self._lags += (drawn - sample.drawn) * (sample.batch - self._version)
        self._drawn += drawn - sample.drawn
        sample.drawn = drawn

    # ------------------------------------------------------------------------- judging and learning

    def _score(self, batch: int, stage: int) -> None:
        """Take a group through the pools that score it."""
        rates = self._costs.score, self._costs.reference
        while stage < 2 and not (self._pools[stage].devices and rates[stage]):
            stage += 1
        if stage == 2:
            self._unjudged[batch] -= 1
            if not self._unjudged[batch]:
                self._ready.add(batch)
                self._reward_s += self.now - self._last[batch]
                self._learn()
            return
        tokens = sum(self._tokens[batch]) / len(self._tokens[batch]) + self._costs.prompt
        pool = self._pools[stage]
        heapq.heappush(pool.waiting, (batch, tokens * self._costs.group / rates[stage]))
        self._work(stage)

    def _work(self, stage: int) -> None:
        """Score the groups of the oldest batch first, as devices are free."""
        pool = self._pools[stage]
        while pool.free and pool.waiting:
            batch, seconds = heapq.heappop(pool.waiting)
            pool.free -= 1

            def act(batch: int = batch) -> None:
                pool.free += 1
                self._score(batch, stage + 1)
                self._work(stage)

            self._at(self.now + seconds, act)

    def _learn(self) -> None:
        if self._learning or self._version not in self._ready:
            return
        self._learning = True
        costs, plan = self._costs, self._plan
        self._idle_s += self.now - self._free_at
        together = plan.kind == "together"
        learners = len(self._devices) if together else self._learners
        loads = [0.0] * learners
        for length in sorted(self._tokens[self._version], reverse=True):
            heapq.heapreplace(loads, loads[0] + length + costs.prompt)
        seconds = max(loads) / costs.train
        for rate, pool in zip((costs.score, costs.reference), self._pools, strict=True):
            seconds += max(loads) / rate if rate and not pool.devices else 0.0
        seconds += costs.publish_s + (2 * costs.switch_s if together else 0.0)
        self._at(self.now + seconds, self._learned)

    def _learned(self) -> None:
        """A version is there, and the places of its batch are free."""
        for device in self._devices:
            self._pass(device)
            for began, sample in device.live.values():
                self._note(sample, device.steps - began)
            if device.live:
                device.at += self._costs.take_s
                device.drawing_s += self._costs.take_s
                self._schedule(device)
        self._version += 1
        self._learning, self._free_at = False, self.now
        self._ends.append(self.now)
        drawing = self._gone_s + sum(one.drawing_s for one in self._devices)
        self._marks.append((self.now, drawing, self._idle_s, self._lags, self._drawn))
        self._deal()
        if self._lender is not None:
            self._switch(self._lender)
        self._dispatch()
        self._learn()

    def _switch(self, decides: Lender) -> None:
        """Lend a device or take one back, if the lender says so."""
        seen = replace(self._costs, lengths=self._tokens[self._version - 1])
        found = gains(seen, self._plan, decides.lent)
        move = decides.look(found)
        self._switches.append(abs(move))
        if not move:
            return
        self._learners -= move
        # learners meet again without the device, or with it
        self._learning = True
        self._free_at = self.now + self._costs.switch_s

        def again() -> None:
            self._learning = False
            self._learn()

        self._at(self._free_at, again)
        if move > 0:
            self._devices.append(_Device(at=self.now + self._costs.switch_s))
            return
        device = self._devices.pop()
        device.stamp += 1  # nothing ends there any more
        self._gone_s += device.drawing_s
        for _, sample in device.live.values():  # they go on elsewhere
            self._waiting.appendleft([sample])


def lognormal(
    samples: int, median: float, limit: int, grows: Callable[[int], float] = lambda _: 1.0
) -> Lengths:
    """Lengths of a lognormal distribution of sigma 1, cut at a limit of tokens; ``grows``: the
    factor on both, by batch.
    """

    def lengths(batch: int, random: np.random.Generator) -> NDArray[np.int64]:
        drawn = random.lognormal(np.log(median * grows(batch)), 1.0, samples)
        return np.clip(drawn, 1, limit * grows(batch)).astype(np.int64)

    return lengths


@lru_cache(maxsize=64)
def _rewards_s(machine: Machine, samples: int, group: int, limit: int) -> float:
    """Seconds from the last sample of a batch to its last reward, over some batches."""
    random = np.random.default_rng(3)
    found = []
    for _ in range(200):
        lengths = np.clip(random.lognormal(np.log(limit / 10), 1.0, samples), 1, limit)
        ends = np.sort(lengths.reshape(-1, group).max(1) * machine.step(1))
        rewards = random.gamma(4.0, machine.reward_s / 4.0, len(ends))
        found.append((ends + rewards).max() - ends[-1])
    return float(np.mean(found))


def measured(costs: Costs, lengths: Lengths, machine: Machine) -> Costs:
    """The costs with what a run would have seen: some thousand lengths, and the time of rewards."""
    random = np.random.default_rng(99)
    batches = max(1, 8192 // costs.samples)
    seen = np.concatenate([lengths(0, random) for _ in range(batches)])
    reward_s = _rewards_s(machine, costs.samples, costs.group, int(seen.max()))
    return replace(costs, lengths=seen.tolist(), reward_s=reward_s)
