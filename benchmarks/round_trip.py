"""The way of central inference: from rows in an env worker to actions there, beside the env's step
and the network's act.

    .venv/bin/python benchmarks/round_trip.py [--streams 64] [--workers 1] [--seconds 5]
    .venv/bin/python benchmarks/round_trip.py --streams 1 --workers 64 --sleep-ms 5 --net mlp

Real env workers' processes with an env that costs nothing, and an inference worker in this process
with a policy that computes nothing, which wait at their doorbells as they do in a run; rows are
written where nobody reads them. Prints the percentiles of what passes from one act to the next act
for the same envs, the env's adapter and the agent's bookkeeping included; steps/s; and the share of
a core that they take while nobody asks for anything. With ``--sleep-ms`` steps/s are compared with
what the sleeps allow: it is the env workers that sleep, so their number over that time.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from idle import Empty

from equipoise.algorithms.impala import IMPALA
from equipoise.experience.discard import Discard
from equipoise.plans.plan import plan_run
from equipoise.runtime import build
from equipoise.runtime.ipc import Bell, Lifeline, Outbox, Pipe, PipeChannel, Segment
from equipoise.runtime.process import forkserver, worker
from equipoise.runtime.process.loop import RECHECK_S, Spin
from equipoise.runtime.session import Closes
from equipoise.runtime.site import LocalSite
from equipoise.types import (
    Algorithm,
    EnvFactory,
    EnvSource,
    EvaluationSettings,
    Placement,
    Policy,
    Program,
    Slot,
    Tick,
)
from equipoise.workers.kind import ServingKind, Torchless, crew
from equipoise.workers.kinds import KINDS


def program(given: argparse.Namespace) -> Program:
    algorithm: Algorithm = IMPALA() if given.net == "mlp" else Empty()
    policy = Policy(algorithm=algorithm, unroll=32, batch=given.streams * given.workers)
    return Program(
        source=EnvSource(
            env=EnvFactory(target="idle:Idle", kwargs={"sleep_s": given.sleep_ms / 1000})
        ),
        policies={"main": policy},
        placement=Placement(
            actors=given.workers, envs_per_actor=given.streams, max_lag=None, inference="central"
        ),
        evaluation=EvaluationSettings(episodes=0),
    )


class Room:
    """``Blocks`` of one policy."""

    def __init__(self, places: Discard) -> None:
        self._places = places

    def reserve(self, streams: Any) -> dict[str, Slot]:
        return {"main": self._places.reserve(streams)}

    def commit(self, slots: Any) -> None: ...

    def restart(self, slots: Any) -> None: ...


class Ring:
    """An inference worker here, and env workers in processes of their own."""

    def __init__(self, made: Program) -> None:
        forkserver.prepare(central=True)
        blue = plan_run(made)
        self.channels: list[PipeChannel] = []
        self.shared, self.board, self.segment = build.lay_out(blue, KINDS, Segment, self._channel)
        board, members = self.board, crew(blue, KINDS)
        self.bells = {
            member.title: Bell(board.memory, board.flag_offset(member.title)) for member in members
        }
        mine = next(member for member in members if isinstance(member.kind, ServingKind))
        self.mine = self.bells[mine.title]
        role, self.width, self.halves = (
            blue.roles["main"],
            made.placement.group_envs,
            made.placement.halves,
        )
        nowhere = Discard(role.row, blue.unroll, made.placement.group_envs)  # always room
        site = LocalSite(
            mine,
            board,
            _ignored,
            queues=[Room(nowhere)],
            source=None,
            join=_ignored,
            bells={key: self.bells[one.title] for key, one in mine.wakes(blue, members).items()},
        )
        self.worker: Any = mine.kind.build(mine.job(blue, self.shared), site)
        self.lifeline, self.spin = Lifeline(), Spin(blue.acting_workers)
        self.processes = []
        self.envs = [member for member in members if isinstance(member.kind, Torchless)]
        for env in self.envs:
            job = worker.Assignment(
                name=env.title,
                board=board,
                bell=self.bells[env.title],
                outbox=Outbox(),
                stack=Pipe(),
                lifeline=self.lifeline,
                member=env,
                job=env.job(blue, self.shared),
                queues=None,
                bells=dict.fromkeys(env.wakes(blue, members), self.mine),
                resume=None,
                directory="",
                saved=0,
                threads=1,
                spins=blue.acting_workers,
                compiles=False,
                logs=None,
            )
            process: Any = forkserver.EnvProcess(target=worker.main, args=(job,))
            process.start()
            self.processes.append(process)

    def _channel(self) -> PipeChannel:
        self.channels.append(PipeChannel())
        return self.channels[-1]

    def tick(self) -> bool:
        """As in ``runtime/process/loop.py``."""
        if self.worker.tick() is Tick.WORKED or self.spin(
            self.worker.tick, lambda tick: time.perf_counter()
        ):
            return True
        self.mine.arm()
        if self.worker.tick() is Tick.WORKED:
            self.mine.disarm()
            return True
        slept_at = time.perf_counter()
        self.mine.wait(RECHECK_S)
        self.spin.slept(time.perf_counter() - slept_at)
        return False

    def close(self) -> None:
        self.board.stop[0] = 1
        for env, process in zip(self.envs, self.processes, strict=True):
            self.bells[env.title].ring(always=True)
            process.join()
        self.lifeline.close()
        resources: list[Closes] = [*self.bells.values(), *self.channels, self.segment]
        for one in resources:
            one.close()


def _ignored(message: Any) -> Any: ...


def cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sleep-ms", type=float, default=0.0)
    parser.add_argument("--net", choices=["none", "mlp"], default="none")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ring = Ring(program(given))
    try:
        assert ring.shared.exchange is not None
        asked, pids = (
            ring.shared.exchange.words["asked"],
            [process.pid for process in ring.processes],
        )
        while asked.min() < 10:
            ring.tick()
        last, cycles, before = asked.copy(), [], asked.sum()
        at = np.full(len(asked), time.perf_counter())
        began, theirs, mine = time.perf_counter(), cpu_s(pids), time.process_time()
        while (now := time.perf_counter()) < began + given.seconds:
            if ring.tick():
                acted = (asked != last).nonzero()[0]
                cycles += (now - at[acted]).tolist()
                at[acted], last = now, asked.copy()
        acts = float(asked.sum() - before)
        rate, theirs, mine = (
            acts * ring.width / (now - began),
            cpu_s(pids) - theirs,
            time.process_time() - mine,
        )
        p10, p50, p90, p99 = np.percentile(np.array(cycles) * 1e6, [10, 50, 90, 99])
        print(
            f"{given.workers} env workers of {given.streams} streams: {rate:,.0f} steps/s; from "
            "act to act of the same envs"
        )
        print(
            f"p10 {p10:.0f} us, p50 {p50:.0f} us, p90 {p90:.0f} us, p99 {p99:.0f} us; an act takes "
            "of a core"
        )
        print(
            f"{theirs / acts * 1e6:.0f} us in an env worker, {mine / acts * 1e6:.0f} us in the "
            "inference worker"
        )
        if given.sleep_ms:
            allowed = given.workers * given.streams / ring.halves / (given.sleep_ms / 1000)
            print(f"the sleeps allow {allowed:,.0f} steps/s: {rate / allowed:.2f} of it")
        spent, mine, began = cpu_s(pids), time.process_time(), time.monotonic()
        while time.monotonic() < began + given.seconds:  # nobody is asked for anything
            ring.mine.arm()
            ring.mine.wait(RECHECK_S)
        took = time.monotonic() - began
        theirs = (cpu_s(pids) - spent) / took
        print(
            f"idle: {theirs:.1%} of a core in env workers, "
            f"{(time.process_time() - mine) / took:.1%} in the inference worker"
        )
    finally:
        ring.close()


if __name__ == "__main__":
    main()
