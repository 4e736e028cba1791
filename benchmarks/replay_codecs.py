"""What a replay's codecs save and cost: 10^5 frames of a Pong run under random actions, in batches
of 256 transitions.

    .venv/bin/python benchmarks/replay_codecs.py [--rounds 9] [--unroll 4] [--threads 2] [--page
    FILE.md]

Memory is what a process grew by when it had filled one replay, each in a process of its own
(anonymous memory: the frames come from a mapped file). Rates are taken in turn in one process that
has them all, a ratio within each round, and the table shows medians. ``CPU`` is the processor time
of all threads for an item: on a machine that others use it says more than rates do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import host, table

from equipoise.envs import make
from equipoise.experience.layout import RowSpec
from equipoise.experience.replay.feed import ReplayFeed
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.experience.replay.replay import Replay
from equipoise.tree import ArraySpec
from equipoise.types import EnvFactory, Stack, Trajectory
from equipoise.types import ReplaySettings as Settings

ROWS, STREAMS, BATCH, FRAMES, SIDE = 100_000, 16, 256, 4, 84
CODECS = ("none", "lz4", "zstd", "delta")


def record(file: Path, steps: int) -> None:
    """The newest frame of every stream and step, [steps, STREAMS, SIDE, SIDE]."""
    frames = np.lib.format.open_memmap(file, "w+", np.uint8, (steps, STREAMS, SIDE, SIDE))
    env, rng = (
        make(EnvFactory(target="ALE/Pong-v5"), streams=np.arange(STREAMS), seed=0),
        np.random.default_rng(0),
    )
    for frame in frames:
        seen = env.recv()
        assert seen is not None
        frame[:] = seen.obs[:, -1]
        env.send(rng.integers(0, 6, STREAMS), np.arange(STREAMS))
    env.close()


def replay(codec: str, a: argparse.Namespace) -> tuple[Replay, Callable[[int], None]]:
    """A replay without an inbox, and what inserts a block of its streams."""
    obs, action = ArraySpec((FRAMES, SIDE, SIDE), "uint8"), ArraySpec((), "int64")
    context = {"stream": ArraySpec((), "int64"), "start": ArraySpec((), "int64")}
    plan = ReplayPlan(
        settings=Settings(capacity=ROWS, starts_at=0, codec=codec, decode_threads=a.threads),
        row=RowSpec(obs=obs, action=action, behaviour={}, state={}, context=context),
        unroll=a.unroll,
        window=1,
        block=STREAMS,
        actors=1,
        span=STREAMS,
        rounds=100,
        stacks={"": Stack(frames=FRAMES, padding="zero")},
    )
    nowhere: Any = None
    made = Replay(plan, ReplayFeed(nowhere), "main", seed=0)
    made._rounds.owed = 1 << 60  # no limiter: the calls are timed apart
    frames: Any = np.load(a.frames, mmap_mode="r")
    shape = (a.unroll, STREAMS)

    def insert(block: int) -> None:
        at = block * a.unroll % (len(frames) - a.unroll)
        newest = np.asarray(frames[at : at + a.unroll + 1])[:, :, None]
        made.insert(
            Trajectory(
                # of a stack the newest frame is kept
                obs=np.broadcast_to(newest, (a.unroll + 1, STREAMS, FRAMES, SIDE, SIDE)),
                first=np.zeros((a.unroll + 1, STREAMS), bool),
                action=np.zeros(shape, np.int64),
                behaviour={},
                state={},
                reward=np.zeros(shape, np.float32),
                mask=np.ones(shape, bool),
                bootstrap=np.ones(shape, bool),
                version=np.zeros(shape, np.int64),
                context={"stream": np.arange(STREAMS), "start": np.full(STREAMS, block * a.unroll)},
            )
        )

    return made, insert


def filled(codec: str, a: argparse.Namespace) -> Replay:
    made, insert = replay(codec, a)
    for block in range(made.ring.slots // a.unroll):
        insert(block)
    return made


def anonymous_mib() -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon"))


def alone(codec: str, a: argparse.Namespace) -> dict[str, Any]:
    """Memory and what inserting costs."""
    small = argparse.Namespace(**vars(a))
    replay(codec, small)[0].close()  # libraries are no part of a replay
    before, began = anonymous_mib(), time.process_time()
    made = filled(codec, a)
    took = time.process_time() - began
    for _ in range(5):
        made.sample(BATCH)
    made.close()
    return {"mib": anonymous_mib() - before, "insert_us": 1e6 * took / ROWS}


def rates(a: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Of each codec, round by round: items/s, the ratio to those of none,
    CPU microseconds an item.
    """
    made = {codec: filled(codec, a) for codec in CODECS}
    found: dict[str, dict[str, list[float]]] = {
        codec: {"rate": [], "ratio": [], "cpu_us": []} for codec in CODECS
    }
    for _ in range(a.rounds):
        for codec, one in made.items():
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(a.batches):
                one.sample(BATCH)
            items, mine = a.batches * BATCH, found[codec]
            mine["rate"].append(items / (time.perf_counter() - began))
            mine["cpu_us"].append(1e6 * (time.process_time() - cpu) / items)
            mine["ratio"].append(mine["rate"][-1] / found["none"]["rate"][-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=40, help="of a codec and round")
    parser.add_argument("--unroll", type=int, default=4, help="rows of a block: 4 are DQN's")
    parser.add_argument("--threads", type=int, default=2, help="replay.decode_threads")
    parser.add_argument(
        "--frames", type=Path, help="a file to record the run in, or to read it from"
    )
    parser.add_argument("--page", type=Path)
    parser.add_argument("--one", choices=CODECS, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one:
        print(json.dumps(alone(a.one, a)))
        return
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        a.frames = a.frames or Path(folder) / "pong.npy"
        if not a.frames.exists():
            record(a.frames, ROWS // STREAMS + 2 * a.unroll)
        command = [
            sys.executable,
            __file__,
            "--frames",
            str(a.frames),
            "--unroll",
            str(a.unroll),
            "--threads",
            str(a.threads),
        ]
        one = {
            codec: json.loads(
                subprocess.run(
                    [*command, "--one", codec], check=True, capture_output=True, text=True
                ).stdout
            )
            for codec in CODECS
        }
        found = rates(a)
    head = [
        "codec",
        "MiB",
        "insert, CPU us a row",
        "sample/s",
        "to none",
        "lowest",
        "highest",
        "CPU us an item",
    ]
    lines = [
        [
            codec,
            f"{one[codec]['mib']:,.0f}",
            f"{one[codec]['insert_us']:.1f}",
            f"{statistics.median(of['rate']):,.0f}",
        ]
        + [f"{x:.2f}" for x in (statistics.median(of["ratio"]), min(of["ratio"]), max(of["ratio"]))]
        + [f"{statistics.median(of['cpu_us']):.1f}"]
        for codec, of in found.items()
    ]
    print(table(head, lines))
    print(json.dumps({"host": host(), "load": os.getloadavg(), "one": one, "rates": found}))
    if a.page:
        rows = "\n".join(
            "| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines)
        )
        a.page.write_text(f"{rows}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
