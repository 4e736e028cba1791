"""Nodes, home and head of a Ray cluster are lost: how long does the learner pause, and what is
lost?

    PYTHONPATH=. python benchmarks/lost.py nodes [--seconds 180]      # a node is killed every 20 s, and back after 5 s
    PYTHONPATH=. python benchmarks/lost.py home [--moments 10]        # everything at home is killed, and begun again elsewhere
    PYTHONPATH=. python benchmarks/lost.py head [--moments 3]         # the whole cluster is killed, and a new one goes on

Ray has to be installed in that environment. All nodes are raylets on this machine.

``nodes``: the run of ``equipoise chaos``, whose rows are proven. Printed are the learner's longest
pause, updates a second before the first kill, and those of the last 5 s before each later one, as a
share of it.

``home`` and ``head``: a run in lockstep that keeps a copy at a URL, with a checkpoint every
``EVERY`` steps. Its processes are killed at a random moment and its directory is removed; the same
command, with ``--or-resume``, goes on from the URL. Printed are the seconds until it trains again,
the steps between which it was killed and went on, and whether the final parameters have the hash of
a run that was left alone. For ``head`` the nodes end as well. The URL is an S3's (moto's server).
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import moto_server
from harness import host
from ray_machines import machines

from equipoise.chaos.attack import Attack, members

KILL_EVERY_S, BACK_S, WINDOW_S = 20.0, 5.0, 5.0
NODES, STEPS, EVERY, LIMIT_S = 4, 61_440, 2_048, 240.0
MOMENT_S = 8.0  # after its first records a run is killed at a moment of so many seconds
SAVED = ["--steps", str(STEPS), "--checkpoint-every", str(EVERY), "--quiet", "--no-tensorboard"]
RUN = (
    "CartPole-v1 --algorithm impala --no-recipe --actors 4 --envs-per-actor 2 --unroll 8 --batch 8 "
    "--max-lag 0 "
    "--evaluate-episodes 0"
)


def lose_nodes(seconds: float) -> int:
    with (
        machines(nodes=NODES) as there,
        tempfile.TemporaryDirectory() as place,
        Attack(Path(place), limit_s=seconds + 240.0, nodes=there) as attack,
    ):
        there.join()
        attack.train(actors=NODES)
        attack.whole()
        before, shares = rate(attack, 20.0), list[float]()
        attack.begin()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            due = time.monotonic() + KILL_EVERY_S
            there.kill(there.used()[0])
            attack.go_on(BACK_S)
            there.restore(NODES)
            attack.go_on(due - WINDOW_S - time.monotonic())
            shares.append(rate(attack, WINDOW_S) / before)
        attack.whole()
        pause = attack.beats.pause_s(attack.began_at)
        attack.end()
        rows = attack.rows()
    print(f"{len(shares)} nodes killed; longest pause {pause:.2f} s; {before:.0f} updates/s before")
    print(f"shares of it: {[round(one, 2) for one in shares]}")
    print(rows)
    return 0


def rate(attack: Attack, seconds: float) -> float:
    """Updates a second, from now on."""
    began, count = time.monotonic(), attack.beats.count
    attack.go_on(seconds)
    return (attack.beats.count - count) / (time.monotonic() - began)


class Life:
    """A process of a run, in a folder of its own: what the next one finds is at the URL. Ends with
    the ``with`` block.
    """

    def __init__(self, folder: Path, words: list[str]) -> None:
        folder.mkdir()
        self._folder = folder
        self.began = time.monotonic()
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "equipoise", "train", *RUN.split(), *words],
                cwd=folder,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what is left, and remove the folder."""
        for pid in members(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self._folder)

    def read(self, name: str) -> str:
        """A file of the run's directory; empty where there is none yet."""
        found = [text for place in self._folder.glob("runs/*/") if (text := _text(place / name))]
        return found[0] if found else ""

    def step(self) -> int:
        """The last that was recorded."""
        lines = self.read("metrics.jsonl").split("\n")[:-1]  # the rest is being written
        return int(json.loads(lines[-1])["env_steps"]) if lines else 0

    def resumed_at(self) -> int | None:
        resumed = json.loads(self.read("run.json") or "{}").get("resumed")
        return int(resumed[-1]["step"]) if resumed else None

    def wait(self, true: Callable[[], object], what: str) -> float:
        """-> the seconds since the process began."""
        while not true():
            if time.monotonic() - self.began > LIMIT_S:
                raise SystemExit(
                    f"waited {LIMIT_S:.0f} s for {what}: {_text(self._folder / 'log')[-2000:]}"
                )
            time.sleep(0.02)
        return time.monotonic() - self.began

    def end(self) -> dict[str, Any]:
        self.wait(lambda: self.process.poll() is not None, "the end")
        summary = self.read("summary.json")
        if self.process.returncode or not summary:
            raise SystemExit(
                f"ended with {self.process.returncode}: {_text(self._folder / 'log')[-2000:]}"
            )
        found: dict[str, Any] = json.loads(summary)
        return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def lose_home(moments: int, *, head: bool) -> int:
    """``head``: the nodes with it."""
    draw, failed = random.Random(0), 0
    with (
        tempfile.TemporaryDirectory() as place,
        moto_server.s3("equipoise") as store,
        ExitStack() as nodes,
    ):
        folder = Path(place)
        with Life(folder / "alone", ["--on", "process", *SAVED]) as alone:
            expected = alone.end()["params_sha256"]
        there = nodes.enter_context(machines(nodes=2))
        for moment in range(moments):
            words = [*SAVED, "--out", f"{store}/run{moment}", "--or-resume"]
            at = begun(
                folder / f"first {moment}", [*words, *there.words], draw.uniform(0.0, MOMENT_S)
            )
            if head:
                nodes.close()
                there = nodes.enter_context(machines(nodes=2))
            failed += not gone_on(folder / f"second {moment}", [*words, *there.words], at, expected)
    return 1 if failed else 0


def begun(folder: Path, words: list[str], seconds: float) -> int:
    """Begin a run and kill it so long after its first checkpoints -> the last step that was
    recorded.
    """
    with Life(folder, words) as life:
        began = life.wait(lambda: life.step() >= EVERY, "the first records")
        life.wait(lambda: time.monotonic() > life.began + began + seconds, "the moment")
        return life.step()


def gone_on(folder: Path, words: list[str], at: int, expected: str) -> bool:
    """Go on elsewhere -> has it the hash of a run that was left alone?"""
    with Life(folder, words) as life:
        life.wait(lambda: life.resumed_at() is not None, "the resume")
        source = life.resumed_at() or 0
        took = life.wait(lambda: life.step() > source, "training")
        same = bool(life.end()["params_sha256"] == expected)
    print(
        f"killed after step {at:,}, went on from {source:,}, trains again after {took:.1f} s, same "
        f"hash: {same}",
        flush=True,
    )
    return same


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["nodes", "home", "head"])
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--moments", type=int, default=10)
    a = parser.parse_args()
    print(host(), flush=True)
    return (
        lose_nodes(a.seconds) if a.what == "nodes" else lose_home(a.moments, head=a.what == "head")
    )


if __name__ == "__main__":
    sys.exit(main())
