"""The way of central inference: from rows in an env worker to actions there, beside the env's step and the network's act.

    .venv/bin/python benchmarks/round_trip.py [--streams 64] [--workers 1] [--steps 20000] [--idle 5]

A real env worker's process with an env that costs nothing, and an inference worker in this process with a policy that computes
nothing, which wait at their doorbells as they do in a run. Prints the percentiles of a whole cycle, the env's adapter and the
agent's bookkeeping included; and, with ``--idle`` seconds of nobody asking, the share of a core that both take then.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from idle import Empty

from equipoise.actors.central import InferenceWorker
from equipoise.experience.nowhere import Nowhere
from equipoise.runtime import blueprint, build, forkserver, stepping
from equipoise.runtime.ipc import Bell, Lifeline, Outbox, Pipe, PipeChannel, Segment
from equipoise.runtime.loop import RECHECK_S, Spin
from equipoise.types import EnvFactory, Policy, Program, Tick


def program(streams: int, workers: int) -> Program:
    policy = Policy(algorithm=Empty(), unroll=32, batch=streams * workers)
    return Program(
        env=EnvFactory(target="idle:Idle"), policies={"main": policy}, actors=workers, envs_per_actor=streams, max_lag=None,
        inference="central", evaluate_episodes=0,
    )  # fmt: skip


class Ring:
    """An inference worker here, and env workers in processes of their own."""

    def __init__(self, made: Program) -> None:
        forkserver.prepare(central=True)
        blue = blueprint.blueprint(made)
        self.channels: list[PipeChannel] = []
        self.shared, self.segment = build.lay_out(blue, Segment, self._channel)
        board = self.shared.board
        self.bells = [Bell(board.memory, board.flag_offset(name)) for name in blue.workers]
        self.mine = self.bells[1 + made.actors]
        envs = [self.bells[1 + group // made.halves] for group in range(made.groups)]
        role = blue.roles["main"]
        nowhere: Any = Nowhere(role.row, blue.policy.unroll, made.group_envs)  # always room
        self.worker: InferenceWorker = build.inference(blue, 0, self.shared, nowhere, ring=lambda group: envs[group].ring())
        self.lifeline, self.spin = Lifeline(), Spin()
        self.processes = []
        for i in range(made.actors):
            job = stepping.EnvAssignment(
                name=f"actor {i}", board=board, bell=self.bells[1 + i], outbox=Outbox(), stack=Pipe(), lifeline=self.lifeline,
                saved=0, resume=None, directory="", stepping=build.stepping(blue, i, self.shared), server=self.mine,
            )  # fmt: skip
            process: Any = forkserver.EnvProcess(target=stepping.main, args=(job,))
            process.start()
            self.processes.append(process)

    def _channel(self) -> PipeChannel:
        self.channels.append(PipeChannel())
        return self.channels[-1]

    def tick(self) -> bool:
        """As in ``runtime/loop.py``."""
        if self.worker.tick() is Tick.WORKED or self.spin(self.worker.tick, lambda tick: time.perf_counter()):
            return True
        self.mine.arm()
        if self.worker.tick() is Tick.WORKED:
            self.mine.disarm()
            return True
        self.spin.sleeps()
        self.mine.wait(RECHECK_S)
        self.spin.wakes()
        return False

    def close(self) -> None:
        self.shared.board.stop[0] = 1
        for bell, process in zip(self.bells[1:], self.processes, strict=False):
            bell.ring(always=True)
            process.join()
        self.lifeline.close()
        for one in (*self.bells, *self.channels, self.segment):
            one.close()


def cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--idle", type=float, default=5.0)
    given = parser.parse_args()
    ring = Ring(program(given.streams, given.workers))
    try:
        for _ in range(2000):
            ring.tick()
        stamps: list[float] = []
        while len(stamps) < given.steps:
            if ring.tick():
                stamps.append(time.perf_counter())
        cycle = np.diff(stamps) * 1e6
        p10, p50, p90, p99 = np.percentile(cycle, [10, 50, 90, 99])
        acts = f"{given.workers} env workers of {given.streams} streams: from act to act"
        print(f"{acts} p10 {p10:.0f} us, p50 {p50:.0f} us, p90 {p90:.0f} us, p99 {p99:.0f} us")
        pids = [process.pid for process in ring.processes]
        before, mine, began = cpu_s(pids), time.process_time(), time.monotonic()
        while time.monotonic() < began + given.idle:  # nobody is asked for anything
            ring.mine.arm()
            ring.mine.wait(RECHECK_S)
        took = time.monotonic() - began
        theirs = (cpu_s(pids) - before) / took
        print(f"idle: {theirs:.1%} of a core in env workers, {(time.process_time() - mine) / took:.1%} in the inference worker")
    finally:
        ring.close()


if __name__ == "__main__":
    main()
