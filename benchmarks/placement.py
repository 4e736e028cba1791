"""Forecasts of where text is generated and learned from, beside a discrete-event simulation of 8
devices with lognormal lengths.

    PYTHONPATH=src python benchmarks/placement.py plans [--case "a long tail"]
    PYTHONPATH=src python benchmarks/placement.py asynchronous
    PYTHONPATH=src python benchmarks/placement.py elastic
    PYTHONPATH=src python benchmarks/placement.py cost
    PYTHONPATH=src python benchmarks/placement.py devices

``plans``: seconds an update of every plan, forecast and simulated. ``asynchronous``: samples of
``max_lag`` 1 beside all devices together. ``elastic``: devices that are lent beside the best fixed
split, while lengths grow fourfold and while they stay. ``cost``: CPU seconds of forecasts.
``devices``: cores that a real run with 8, 16, 32 and 64 simulated devices takes, learner included.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from text_devices import Devices, Lengths, Machine, Simulated, lognormal, measured

import equipoise
from equipoise.balance.placement.choice import best, forecast, plans
from equipoise.balance.placement.costs import Costs, Forecast, Plan
from equipoise.balance.placement.lending import gains

TOGETHER = Plan(kind="together", generate=8, learn=8)


USUAL = Machine(reward_s=1.0)


def apart(generate: int, max_lag: int = 1, **own: int) -> Plan:
    learn = 8 - generate - sum(own.values())
    return Plan(kind="apart", generate=generate, learn=learn, max_lag=max_lag, **own)


@dataclass(frozen=True)
class Case:
    """A text run on 8 devices: lengths are lognormal of sigma 1, cut at ``limit`` tokens."""

    machine: Machine = USUAL
    median: float = 400
    limit: int = 4000
    samples: int = 512
    train: float = 2000
    at_once: int = 256
    prompt: float = 200
    room: float = math.inf
    score: float = 0.0
    switch_s: float = 3.0

    def run(self, grows: Callable[[int], float] = lambda _: 1.0) -> tuple[Costs, Lengths]:
        """What was measured, and the true lengths."""
        costs = Costs(
            samples=self.samples,
            group=8,
            prompt=self.prompt,
            lengths=[1],
            decode=self.machine.decode(),
            prefill=20_000,
            train=self.train,
            at_once=self.at_once,
            room=self.room,
            publish_s=0.5,
            take_s=0.3,
            switch_s=self.switch_s,
            score=self.score,
            reference=self.score,
        )
        stays = lognormal(self.samples, self.median, self.limit)
        costs = measured(costs, stays, self.machine)
        return costs, lognormal(self.samples, self.median, self.limit, grows)

    def simulated(self, plan: Plan, updates: int = 45) -> tuple[Forecast, Simulated]:
        """The forecast of a plan, and what came of it."""
        costs, lengths = self.run()
        told = forecast(costs, plan)
        lent = told.devices[0] - plan.generate  # of an elastic plan, which begins so
        run = Devices(costs, plan, lengths, machine=self.machine, seed=1, lent=lent)
        return told, run.run(updates)


CASES = {
    "a long tail": Case(),
    "a lot to learn": Case(train=1000),
    "short samples": Case(median=100, limit=600, train=5000),
    "few at once": Case(at_once=64, train=3000),
    "little memory": Case(room=24_000, train=1000),
    "scored elsewhere": Case(score=8000, train=4000),
}
# one generator has too little to do to hide that its learners wait, and little else
REFERENCE = Case(machine=Machine(reward_s=1.0, sample_s=2e-5), samples=256, train=450)


def all_plans(case: Case) -> list[Plan]:
    scoring = ((0, 0), (1, 1)) if case.score else ((0, 0),)
    found = plans(8, max_lag=3, scoring=scoring)
    # an elastic plan is forecast after each update, so one is enough
    fixed = [one for one in found if one.kind != "elastic"]
    return [*fixed, next(one for one in found if one.kind == "elastic")]


GROWING = Case(
    machine=Machine(reward_s=0.5),
    median=100,
    limit=400,
    prompt=300,
    train=3000,
    at_once=512,
    room=20_000,
    switch_s=1.0,
)


STAYING = ("a long tail", "a lot to learn", "few at once")


def fourfold(batch: int) -> float:
    """The factor on lengths in a run of 90 updates."""
    return math.pow(4.0, min(batch / 90, 1.0))


def wall(
    case: Case, plan: Plan, updates: int, grows: Callable[[int], float], lent: int = 0
) -> float:
    costs, lengths = case.run(grows)
    run = Devices(costs, plan, lengths, machine=case.machine, seed=1, lent=lent).run(updates)
    assert max(run.switches, default=0) <= 1
    return sum(run.updates_s)


def elastic_beside_fixed(case: Case, updates: int, grows: Callable[[int], float]) -> float:
    """The time of the best fixed split over that of an elastic run."""
    costs, _ = case.run()
    plan = Plan(kind="elastic", generate=1, learn=7, max_lag=2)
    begins = forecast(costs, plan).devices[0] - plan.generate
    fixed = min(wall(case, apart(one, 2), updates, grows) for one in range(2, 7))
    return fixed / wall(case, plan, updates, grows, begins)


def show_plans(case: Case) -> None:
    print("plan | forecast s | simulated s | error | learners idle, forecast and simulated")
    for plan in all_plans(case):
        told, true = case.simulated(plan)
        idle = f"{told.learners_idle:.0%}, {true.learners_idle:.0%}"
        error = told.seconds / true.seconds - 1
        print(f"{plan.name} | {told.seconds:.1f} | {true.seconds:.1f} | {error:+.1%} | {idle}")


def show_asynchronous() -> None:
    _, together = REFERENCE.simulated(TOGETHER)
    for generate in (1, 2, 3):
        _, other = REFERENCE.simulated(apart(generate))
        times = together.seconds / other.seconds
        print(f"{apart(generate).name}: {times:.2f} x, learners idle {other.learners_idle:.0%}")


def show_elastic() -> None:
    times = elastic_beside_fixed(GROWING, 90, fourfold)
    print(f"lengths grow fourfold: {times:.3f} x the best fixed split", flush=True)
    for name in STAYING:
        times = elastic_beside_fixed(CASES[name], 40, lambda _: 1.0)
        print(f"lengths stay, {name}: {times:.3f} x", flush=True)


def show_cost() -> None:
    costs, _ = REFERENCE.run()
    for devices in (8, 64):
        began = time.process_time()
        forecast(costs, Plan(kind="apart", generate=1, learn=devices - 1, max_lag=1))
        one = time.process_time()
        gains(costs, Plan(kind="elastic", generate=1, learn=devices - 1, max_lag=1), 1)
        switch = time.process_time()
        chosen = best(costs, plans(devices, max_lag=2))
        print(
            f"{devices} devices: a forecast {(one - began) * 1e3:.0f} ms, gains of a switch "
            f"{(switch - one) * 1e3:.0f} ms, the best of all plans "
            f"{time.process_time() - switch:.2f} s of a core ({chosen.why})"
        )


def show_devices() -> None:
    settings = ["source.engine=sim:step_s=0.2,median=4,waits=false"]
    for devices in (8, 16, 32, 64):
        with tempfile.TemporaryDirectory() as place:
            began, cores = time.perf_counter(), time.process_time()
            run = equipoise.start(
                "sort",
                algorithm="grpo",
                on="serial",
                out=Path(place) / "run",
                max_lag=1,
                actors=devices,
                batch=512,
                steps=4096,
                evaluate_episodes=0,
                tensorboard=False,
                settings=settings,
            )
            with run:
                for _ in run:
                    pass
            assert run.summary is not None
            rows, wall = run.summary["rows"], time.perf_counter() - began
            lost = rows["inserted"] - rows["sampled"] - rows["dropped"] - rows["held"]
            print(
                f"{devices} devices: {(time.process_time() - cores) / wall:.2f} cores for "
                f"{wall:.1f} s, {rows['sampled']:,} samples learned from, {lost} unaccounted for",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("plans", "asynchronous", "elastic", "cost", "devices"))
    parser.add_argument("--case", choices=CASES, default="a long tail")
    given = parser.parse_args()
    shows: dict[str, Callable[[], None]] = {
        "plans": lambda: show_plans(CASES[given.case]),
        "asynchronous": show_asynchronous,
        "elastic": show_elastic,
        "cost": show_cost,
        "devices": show_devices,
    }
    shows[given.what]()


if __name__ == "__main__":
    main()
