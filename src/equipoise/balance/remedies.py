"""The changes that a user can make, the gain of each and its cost, as the model predicts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from equipoise.balance.calibrate import Calibrated, changed
from equipoise.balance.model import Outcome, Ring, predict
from equipoise.balance.shares import BEHIND
from equipoise.types import Placement, Policy, Program, first_learning, learning

HELPS = 1.05  # a smaller gain is not worth a word
NEARLY = 0.97  # of two changes the cheaper is named first if it gains so much of the other's
# error of a prediction, besides half of the model's error and unexplained time for the run as it is
MARGIN = 0.12
NAMED = 1.1  # a part whose relief gains less does not hold a run back


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    change: str  # what to do, as a user types it
    costs: str  # further costs
    steps_per_s: float
    gain: float  # steps/s with it over steps/s now
    low: float
    high: float  # the interval of the gain

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The model's answer for a run, and for the requested changes."""

    measured: float  # the run's steps/s
    now: Outcome  # the run as the model sees it
    asked: Outcome | None  # with the changes; None: nothing was changed
    change: Remedy | None  # the same with the run's steps/s and an interval
    changes: Mapping[str, tuple[object, object]]  # by key: the old value and the new one
    remedies: Sequence[Remedy]  # the best suggestions; empty if nothing was changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A remedy that was tried."""

    change: str
    predicted: float  # steps/s relative to the run as it is
    low: float
    high: float
    gain: float | None  # measured; None: it failed, or there was no time for it
    least: float | None  # of the turns, each over the turn of the run as it is before it
    most: float | None
    said: str  # the result in words, if it is no number


def remedies(
    known: Calibrated, *, allowed: Callable[[Program], object] = lambda program: None
) -> list[Remedy]:
    """The changes that help: actors to mend, settings, then the machine, each the best first.

    ``allowed`` raises ValueError for a Program that cannot be.
    """
    settings, machine = [], []
    for change, costs, program in changes(known.program):
        try:
            allowed(program)
            ring = changed(known, program)
        except ValueError:
            continue
        settings.append(remedy(known, change, costs, predict(ring), most=bound(known, program)))
    mended = []
    if behind := _behind(known.ring):
        who = (
            "actor "
            + " and ".join(map(str, behind[:3]))
            + ("" if len(behind) <= 3 else f" and {len(behind) - 3} more")
        )
        mended.append(
            remedy(known, f"{who} as fast as the others", "", predict(_mended(known.ring, behind)))
        )
    for change, costs, ring in machines(known.ring):
        machine.append(remedy(known, change, costs, predict(ring)))
    return [*_ranked(mended), *_ranked(settings), *_ranked(machine)]


def _ranked(found: Sequence[Remedy]) -> list[Remedy]:
    """The remedies that help, the cheapest first: a dearer one goes ahead only if it gains more."""
    found = [one for one in found if one.gain >= HELPS]
    ranked: list[Remedy] = []
    while found:
        best = max(one.gain for one in found)
        first = next(one for one in found if one.gain >= NEARLY * best)
        found.remove(first)
        ranked.append(first)
    return ranked


def sure(found: Sequence[Remedy]) -> list[Remedy]:
    """Return the remedies whose whole interval is a gain."""
    return [one for one in found if one.low > 1.0]


def advice(found: Sequence[Remedy]) -> str:
    """Return the first sure remedy as the end of a sentence."""
    if not (good := sure(found)):
        return "no change of one setting is sure to make it faster"
    best = good[0]
    return f"{best.change} would make about {best.gain:.1f} times the steps/s" + (
        f" ({best.costs})" if best.costs else ""
    )


def bound(known: Calibrated, program: Program) -> float:
    """The most that a change can gain: without lockstep, the time that the sides wait."""
    alone = _place(program, max_lag=known.program.placement.max_lag) == known.program
    return known.overlap if alone and known.ring.max_lag == 0 else float("inf")


def remedy(
    known: Calibrated, change: str, costs: str, outcome: Outcome, *, most: float = float("inf")
) -> Remedy:
    """The remedy of a change with this predicted outcome; its gain is at most ``most``."""
    gain = min(outcome.steps_per_s / known.outcome.steps_per_s, most)
    off = min(MARGIN + abs(1.0 - known.fit) / 2 + known.unexplained / 2, 1.0)
    return Remedy(
        change=change,
        costs=costs,
        steps_per_s=gain * known.measured,
        gain=gain,
        low=gain * (1 - off),
        high=gain * (1 + off),
    )


def cause(known: Calibrated) -> str:
    """The part of the ring whose relief would gain most: "straggler", "lag", "servers", "learners",
    "shards" or "actors"; "" if no relief would gain much.
    """
    ring = known.ring
    relieved = {
        "learners": _faster(ring, learners=0.5),
        "actors": replace(ring, actors=tuple(work.times(0.5) for work in ring.actors)),
    }
    if ring.servers:
        relieved["servers"] = replace(ring, servers=tuple(work.times(0.5) for work in ring.servers))
    if len(ring.learn) > ring.learners:
        relieved["shards"] = _faster(ring, shards=0.5)
    if ring.max_lag is not None:
        relieved["lag"] = replace(ring, max_lag=max(2 * ring.max_lag, 2))
        if behind := _behind(ring):
            relieved["straggler"] = _mended(ring, behind)
    gains = {
        name: predict(other).steps_per_s / known.outcome.steps_per_s
        for name, other in relieved.items()
    }
    most = max(gains, key=lambda name: gains[name])
    return most if gains[most] >= NAMED else ""


def _behind(ring: Ring) -> list[int]:
    """The actors that take much longer for a block than the usual one."""
    return [k for k, work in enumerate(ring.actors) if work.seconds >= BEHIND * ring.usual.seconds]


def _mended(ring: Ring, behind: Sequence[int]) -> Ring:
    """The ring with these actors as fast as the other actors."""
    return replace(
        ring,
        actors=tuple(ring.usual if k in behind else work for k, work in enumerate(ring.actors)),
    )


def changes(program: Program) -> Iterator[tuple[str, str, Program]]:
    """Changes of settings: what to type, its cost, and the Program with it; cheapest first."""
    place = program.placement
    policy = first_learning(program)
    if policy.replay is None:
        lags = (
            (1, 2)
            if place.max_lag == 0
            else (place.max_lag + 1, 2 * place.max_lag + 1)
            if place.max_lag
            else ()
        )
        for lag in dict.fromkeys(lags):
            yield (
                f"--max-lag {lag}",
                f"rows up to {lag} version{'s' * (lag > 1)} old",
                _place(program, max_lag=lag),
            )
        if place.max_lag:
            yield (
                "--max-lag none",
                "rows as old as the slowest actor makes them",
                _place(program, max_lag=None),
            )
    elif place.max_lag == 0:
        yield "--max-lag 1", "acting is up to one version behind", _place(program, max_lag=1)
    if place.inference == "central":
        count = 2 * place.inference_workers
        if count <= place.actors:
            costs = f"{count} processes that act"
            yield (
                f"--set placement.inference_workers={count}",
                costs,
                _place(program, inference_workers=count),
            )
    if policy.replay is not None:
        if (count := 2 * policy.replay.shards) > 2:
            shards = replace(policy, replay=replace(policy.replay, shards=count))
            yield (
                f"--set replay.shards={count}",
                f"{count} processes that keep rows",
                _policy(program, shards),
            )
        if (updates := policy.replay.updates // 2) >= 1:
            fewer = replace(policy, replay=replace(policy.replay, updates=updates))
            yield (
                f"--set replay.updates={updates}",
                "half the updates for each row",
                _policy(program, fewer),
            )
    for count in (2 * place.actors, 4 * place.actors)[: 1 if policy.replay is not None else 2]:
        costs = f"{count} processes that step envs"
        if policy.replay is not None:
            costs += ", and twice the rows for each update"
        yield f"--actors {count}", costs, _place(program, actors=count)
    yield (
        f"--learners {2 * place.learners}",
        f"{2 * place.learners} processes that learn",
        _place(program, learners=2 * place.learners),
    )
    if place.learners > 1 and place.learners % 2 == 0:
        count = place.learners // 2
        yield f"--learners {count}", "", _place(program, learners=count)
    if (epochs := policy.algorithm.epochs // 2) >= 1:
        fewer = replace(policy, algorithm=replace(policy.algorithm, epochs=epochs))
        yield (
            f"--set algorithm.epochs={epochs}",
            "fewer passes over each batch",
            _policy(program, fewer),
        )


def machines(ring: Ring) -> Iterator[tuple[str, str, Ring]]:
    """The parts that no setting changes."""
    yield f"{2 * ring.cores:g} cores", "a larger machine", replace(ring, cores=2 * ring.cores)
    envs = "an env twice as fast" if ring.servers else "envs and acting twice as fast"
    yield envs, "", replace(ring, actors=tuple(work.times(0.5) for work in ring.actors))
    yield "a learner twice as fast", "a faster device or a smaller net", _faster(ring, learners=0.5)


def _faster(ring: Ring, *, learners: float = 1.0, shards: float = 1.0) -> Ring:
    """The ring whose learners, or shards, take this factor of their time."""
    count = ring.learners
    learn = (
        *(work.times(learners) for work in ring.learn[:count]),
        *(work.times(shards) for work in ring.learn[count:]),
    )
    return replace(ring, learn=learn)


def _place(program: Program, **settings: Any) -> Program:
    place: Placement = replace(program.placement, **settings)
    return replace(program, placement=place)


def _policy(program: Program, policy: Policy) -> Program:
    name = next(iter(learning(program)))
    return replace(program, policies={**program.policies, name: policy})
