"""The ring as data: the stations that rows pass, the flow from each to the next, and which workers
wait there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from equipoise.balance.shares import Shares, add
from equipoise.record.report import Report
from equipoise.types import Program, learning

RATE_S = 5.0  # that a rate is of
LEAST = 0.005  # share of the time that is worth a word
THICKER = (1e5, 1e7, 1e9)  # bytes a second from which an arrow is drawn thicker


@dataclass(slots=True)
class Rates:
    """How fast numbers of a run rise, by its reports of the last ``RATE_S``."""

    recent: deque[Report] = field(default_factory=deque)

    def add(self, report: Report) -> None:
        self.recent.append(report)
        while len(self.recent) > 2 and self.recent[1].wall_s <= report.wall_s - RATE_S:
            self.recent.popleft()

    def rate(self, number: Callable[[Report], float]) -> float:
        """How fast a number of the reports rises, a second; 0 before there are two reports."""
        if not self.recent or (seconds := self.recent[-1].wall_s - self.recent[0].wall_s) <= 0:
            return 0.0
        return max(number(self.recent[-1]) - number(self.recent[0]), 0.0) / seconds

    def cores(self, process: str) -> float:
        """How many cores a process keeps busy."""
        return self.rate(lambda report: report.usage.get(process, {}).get("cpu_s") or 0.0)

    def bytes_per_s(self, channel: str) -> float:
        """How fast a channel moves bytes."""
        return self.rate(lambda report: report.moved.get(channel, 0))


# places of workers, in the order in which rows pass them
STEPPING, SERVING, KEEPING, LEARNING, BESIDE = range(5)
PLACES = {"sampling": STEPPING, "keeping": KEEPING, "learning": LEARNING}  # by side


def place_of(side: str, serves: bool) -> int:
    """The place of a worker in the ring."""
    return SERVING if serves else PLACES.get(side, BESIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """Workers of one sort, or a store of rows."""

    name: str
    noun: str = ""
    place: int | None = None  # of its workers
    shares: Shares | None = None  # of workers
    full: float | None = None  # of a store, 0..1


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """The flow from a station to the next. A rate is 0 if nothing flows, or the rate is unknown."""

    name: str = ""  # of what flows, if the stations do not show it
    steps_per_s: float = 0.0  # env steps that were taken
    updates_per_s: float | None = None
    bytes_per_s: float = 0.0
    queue: float | None = None  # how full the queue before a replay is, 0..1
    waits: tuple[tuple[str, str, float], ...] = ()  # (workers, state, share of their time)

    @property
    def level(self) -> int:
        """How thick the arrow is drawn: 0 if nothing flows, 1 and more by the bytes a second."""
        return (
            1 + sum(self.bytes_per_s >= least for least in THICKER)
            if self.bytes_per_s or self.steps_per_s
            else 0
        )

    def said(self) -> list[tuple[str, str]]:
        """The words next to the arrow, each with its kind: "flow", or a state of waiting
        workers.
        """
        from rich.filesize import decimal  # here, so that "import equipoise" loads no rich

        flows = [self.name] if self.name else []
        flows += [] if self.updates_per_s is None else [f"{self.updates_per_s:,.1f} updates/s"]
        flows += [f"{short(round(self.steps_per_s))} steps/s"] if self.steps_per_s else []
        flows += [f"{decimal(round(self.bytes_per_s))}/s"] if self.bytes_per_s else []
        flows += [] if self.queue is None else [f"queue {self.queue * 100:.0f} % full"]
        return [(one, "flow") for one in flows] + [
            (f"{'▲ ' * (state == 'blocked')}{workers} {state} {share * 100:.0f} %", state)
            for workers, state, share in self.waits
        ]


def count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def short(count: int) -> str:
    """12,288 as 12.3k, three figures of any number."""
    for scale, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        share = count / scale
        if share >= 0.9995:  # a share that rounds to 1
            return f"{share:.3g}{suffix}" if share < 999.5 else f"{share:,.0f}{suffix}"
    return str(count)


def ring(report: Report, program: Program, rates: Rates) -> tuple[list[Station], list[Arrow]]:
    """The stations in the order in which rows pass them, and the arrow from each to the next."""
    stations = _stations(report, program)
    central = program.placement.inference == "central"
    flows = _flows(report, program, rates)
    waits = [_waits(*pair, both=central and not i) for i, pair in enumerate(pairwise(stations))]
    return stations, [replace(one, waits=wait) for one, wait in zip(flows, waits, strict=True)]


def way_back(report: Report, program: Program, rates: Rates) -> Arrow | None:
    """The arrow of the weights back to the workers that act; None for a run without actors."""
    if not program.actors:
        return None
    most, governed = program.placement.max_lag, (report.governor or {}).get("max_lag")
    bound = "none" if most is None else str(most)
    name = f"weights (max lag {bound if governed is None else f'{governed} of {bound}'})"
    return Arrow(name=name, bytes_per_s=rates.bytes_per_s("weights"))


def _stations(report: Report, program: Program) -> list[Station]:
    place, stores = program.placement, report.occupancy
    shares = [
        add(one for one in report.balance.values() if place_of(one.side, one.serves) == at)
        for at in range(BESIDE)
    ]
    acting = "" if report.governor is None else f"{report.governor['actors']} of "
    named = f"{acting}{count(program.actors, 'actor')} × {count(place.envs_per_actor, 'env')}"
    found = [
        Station(name=named, noun="actors", place=STEPPING, shares=shares[STEPPING])
        if program.actors
        else Station(name="data set")
    ]
    if place.inference == "central":
        name = count(place.inference_workers, "inference worker")
        found.append(Station(name=name, noun="inference", place=SERVING, shares=shares[SERVING]))
    replays = [one.replay for one in learning(program).values() if one.replay is not None]
    shards = sum(replay.shards for replay in replays if replay.shards > 1)
    kept = [share for name, share in stores.items() if name != "queue"]
    full = sum(kept) / len(kept) if kept else None
    if shards:
        name = count(shards, "shard")
        found.append(
            Station(name=name, noun="shards", place=KEEPING, shares=shares[KEEPING], full=full)
        )
    elif program.actors:
        name = ("replay", "replays")[len(replays) > 1] if replays else "queue"
        found.append(Station(name=name, full=full if replays else stores.get("queue")))
    name = "learner" if place.learners == 1 else count(place.learners, "learner")
    noun = "learners" if place.learners > 1 else "learner"
    return [*found, Station(name=name, noun=noun, place=LEARNING, shares=shares[LEARNING])]


def _flows(report: Report, program: Program, rates: Rates) -> list[Arrow]:
    """The arrows between the stations, without the workers that wait at them."""
    replay = any(one.replay is not None for one in learning(program).values())
    last = Arrow(
        updates_per_s=report.updates_per_s,
        bytes_per_s=rates.bytes_per_s("batches" if replay else "read"),
    )
    if not program.actors:
        return [last]
    stepped = rates.rate(lambda report: report.taken)
    stored = Arrow(
        bytes_per_s=rates.bytes_per_s("written"),
        queue=report.occupancy.get("queue") if replay else None,
    )
    if program.placement.inference == "central":
        return [Arrow(steps_per_s=stepped), stored, last]
    return [replace(stored, steps_per_s=stepped), last]


def _waits(above: Station, below: Station, *, both: bool) -> tuple[tuple[str, str, float], ...]:
    """Workers that wait at an arrow; ``both``: the upper ones wait for answers also."""
    waits = [(above, "blocked"), *([(above, "starved")] if both else []), (below, "starved")]
    return tuple(
        (one.noun, state, share)
        for one, state in waits
        if one.shares is not None and (share := one.shares.share(state)) >= LEAST
    )
