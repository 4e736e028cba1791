"""What metering costs an actor: its ticks with meters and without, in turns within one process.

    .venv/bin/python benchmarks/metering.py [--cases cartpole pong] [--windows 480] [--seconds 0.25]
    [--envs N] [--null] .venv/bin/python benchmarks/metering.py --rows

An actor as a run builds it, in this process, whose unrolls are taken from the queue and dropped at
once: its ticks are the shortest of all workers', so this bounds what others pay. Windows of
``--seconds`` alternate. With meters: its parts are marked and its state is counted after each tick,
as in a worker's process. Without: the same work with neither, by a ``tick`` that has no marks. Each
pair of windows gives one ratio of ticks per second of core time, of which other processes take
nothing; printed are the mean slowdown and the upper end of its one-sided 95 % interval.

``--rows``: how long a lap takes on each kind of row that two processes can share.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import statistics
import sys
import timeit
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch
from harness import host

from equipoise import api
from equipoise.actors.agent import LocalAgent
from equipoise.actors.worker import ActorWorker
from equipoise.clock import Clock
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.plans.plan import plan_run
from equipoise.runtime import build
from equipoise.runtime.ipc import Heap
from equipoise.runtime.site import LocalSite
from equipoise.tuning import forward
from equipoise.types import Tick
from equipoise.workers.actor import ActorKind
from equipoise.workers.kind import Job, Member

MOST = 0.015  # the slowdown that the upper end must stay below
CASES = {"cartpole": ("CartPole-v1", 64), "pong": ("ALE/Pong-v5", 16)}  # env, envs of the actor


class Unmetered(Clock):
    """A clock whose marks an agent may still make, once an unroll."""

    def lap(self, part: str, then: str = "") -> None: ...
    def add(self, part: str, seconds: float) -> None: ...


class Bare(ActorWorker):
    """The actor without marks: ``ActorWorker.tick`` but for these."""

    def tick(self) -> Tick:
        if self._sent:
            if (parts := self.env.recv()) is None:
                return Tick.STARVED
            self.agent.observe(parts)
            self._sent = False
        if isinstance(actions := self.agent.action(), Tick):
            return actions
        self.env.send(actions)
        self._sent = True
        return Tick.WORKED


def _unused(said: Any) -> Any: ...


class Actor:
    """One actor over memory of its own, with somebody who takes what it makes."""

    def __init__(self, env: str, envs: int) -> None:
        made = api.program(
            env, "impala", actors=1, envs_per_actor=envs, max_lag=1, evaluate_episodes=0
        )
        blue = plan_run(made)
        # the faster one, as in a run
        blue = replace(blue, forward=forward.forward_of(blue, forward.forwards(blue)))
        kind = ActorKind()
        self.shared, board, _ = build.lay_out(blue, [kind], Heap, LocalChannel)
        self.queue, title = self.shared.queues[0], Member(kind, 0).title
        site = LocalSite(
            Member(kind, 0),
            board,
            _unused,
            queues=self.shared.queues,
            source=None,
            join=_unused,
        )
        self.metered = kind.build(Job(blueprint=blue, shared=self.shared, index=0, life=0), site)
        self.bare = Bare(self.metered.env, self.metered.agent, Unmetered(()))
        self.agents: list[LocalAgent] = list(self.metered.agent.agents.values())
        self.clock, self.none, self.meter = site.clock, Unmetered(()), board.meter(title)

    def window(self, on: bool, seconds: float) -> float:
        """Ticks per second of core time in a window, with meters or without."""
        one, other = (self.metered, self.bare) if on else (self.bare, self.metered)
        one._sent = other._sent  # both drive one env
        for agent in self.agents:
            agent._clock = self.clock if on else self.none
        ticks, began, core = 0, perf_counter(), thread_time()
        run: Callable[[], int] = self._metered if on else self._bare
        while perf_counter() - began < seconds:
            ticks += run()
        took = thread_time() - core
        other._sent = one._sent
        return ticks / took

    def _metered(self) -> int:
        tick, add = self.metered.tick, self.meter.add
        for _ in range(20):
            state = tick()
            add(state)
            if state is not Tick.WORKED:
                self._take()
        return 20

    def _bare(self) -> int:
        tick = self.bare.tick
        for _ in range(20):
            state = tick()
            if state is not Tick.WORKED:
                self._take()
        return 20

    def _take(self) -> None:
        while (keys := self.queue.take()) is not None:
            self.queue.finish(keys)


def measure(
    case: str, envs: int | None, windows: int, seconds: float, *, null: bool
) -> dict[str, Any]:
    env, usual = CASES[case]
    actor = Actor(env, envs or usual)
    for on in (True, False):
        actor.window(on, 4 * seconds)  # warm
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(windows):
        # The order within a pair alternates as well, so that a drift of the machine cancels out.
        on = (number % 2 == 0) != (number // 2 % 2 == 0)
        rates[on].append(actor.window(on and not null, seconds))
    slower = [
        math.log(bare / metered) for bare, metered in zip(rates[False], rates[True], strict=True)
    ]
    mean, error = statistics.fmean(slower), statistics.stdev(slower) / math.sqrt(len(slower))
    actor.metered.close()
    return {
        "case": case,
        "tick_us": 1e6 / statistics.median(rates[False]),
        "slowdown": mean,
        "upper": mean + 1.645 * error,
        "windows": windows,
        "seconds": seconds,
    }


def rows() -> None:
    """Print the nanoseconds of a lap by kind of row, and those of a ``with`` block."""
    memory = bytearray(128)
    kinds: dict[str, Any] = {
        "memoryview": memoryview(memory).cast("d"),
        "numpy": np.frombuffer(memory),
        "ctypes": (ctypes.c_double * 16).from_buffer(memory),
        "list, not shared": [0.0] * 16,
    }
    for name, row in kinds.items():
        clock = Clock(("env", "act"))
        clock._seconds, clock._counts = (
            row[:8] if name != "ctypes" else row,
            row[8:] if name != "ctypes" else row,
        )
        took = (
            min(timeit.repeat("lap('act')", globals={"lap": clock.lap}, number=100_000, repeat=9))
            / 1e5
        )
        print(f"{name:18} {took * 1e9:.0f} ns")
    clock = Clock(("env", "act"))

    @contextlib.contextmanager
    def part(name: str) -> Any:
        clock.begin()
        yield
        clock.lap(name)

    took = (
        min(
            timeit.repeat(
                "with part('act'): pass", globals={"part": part}, number=100_000, repeat=9
            )
        )
        / 1e5
    )
    print(f"{'with, memoryview':18} {took * 1e9:.0f} ns")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE"
    )
    parser.add_argument("--windows", type=int, default=480)
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--envs", type=int)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument(
        "--null",
        action="store_true",
        help="without meters in all windows: what the machine alone makes of it",
    )
    a = parser.parse_args()
    if a.rows:
        rows()
        return 0
    print(host(), flush=True)
    torch.set_num_threads(1)
    found = [measure(case, a.envs, a.windows, a.seconds, null=a.null) for case in a.cases]
    for one in found:
        verdict = "ok" if one["upper"] <= MOST else f"above {MOST:.1%}"
        slower = f"slower by {one['slowdown']:.2%}, at most {one['upper']:.2%}"
        print(f"{one['case']}: ticks of {one['tick_us']:.0f} us; {slower}: {verdict}")
    print(json.dumps(found))
    return int(any(one["upper"] > MOST for one in found))


if __name__ == "__main__":
    sys.exit(main())
