"""How long a resume takes until its first update, beside another source tree: ``python
benchmarks/resume.py --mib 2048``.

A run of DQN with random images fills a replay of the given size and saves it. Then copies of the
run are resumed in turn, by this tree and by ``--before SRC``, each in a process of its own; the
page cache is warm for both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

SIDE = 84  # pixels; a row is SIDE * SIDE bytes


class Noise(gymnasium.Env[Any, Any]):
    """Random images that nothing compresses: rows as large as Atari's, at no cost."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIDE * SIDE,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, object]]:
        super().reset(seed=seed)
        self._at = 0
        return self._image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, object]]:
        self._at += 1
        return self._image(), 0.0, False, self._at >= 200, {}

    def _image(self) -> Any:
        return np.frombuffer(self.np_random.bytes(SIDE * SIDE), np.uint8)


def train(out: Path, rows: int) -> None:
    """Fill a replay of so many rows and save the run."""
    import equipoise as eq

    settings = {
        "replay.capacity": rows,
        "replay.starts_at": rows - 256,
        "replay.updates": 1,
        "algorithm.hidden": "32",
    }
    run = eq.start(
        f"{__name__ if __name__ != '__main__' else 'resume'}:Noise",
        "dqn",
        out=out,
        on="serial",
        steps=rows,
        settings=settings,
        recipe=False,
        actors=1,
        envs_per_actor=8,
        unroll=8,
        evaluate_episodes=0,
        checkpoint_every=0,
        tensorboard=False,
    )
    for _ in run:
        pass


def resumed(out: Path, steps: int) -> float:
    """Seconds from the call to the first update after it."""
    import equipoise as eq

    began = time.perf_counter()
    options: Any = {"trust": ["resume"]} if "trust" in eq.resume.__annotations__ else {}
    run = eq.start(resume=out, steps=steps, on="process", checkpoint_every=0, **options)
    at = next(report.updates for report in run)
    next(report for report in run if report.updates > at)
    seconds = time.perf_counter() - began
    run.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="bytes of the replay's rows, in MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="the src of another tree, timed in turn")
    parser.add_argument("--one", nargs=2, metavar=("RUN", "STEPS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(resumed(Path(given.one[0]), int(given.one[1]))))
        return
    here = Path(__file__).parent
    trees = {"now": here.parent / "src"} | ({"before": given.before} if given.before else {})
    rows = (given.mib << 20) // (SIDE * SIDE) // 64 * 64
    with tempfile.TemporaryDirectory(prefix="resume-") as place:
        made = {}
        for name, tree in trees.items():  # each reads what it wrote itself
            made[name] = Path(place) / f"run-{name}"
            command = [
                sys.executable,
                "-c",
                f"import resume, pathlib; resume.train(pathlib.Path({str(made[name])!r}), {rows})",
            ]
            subprocess.run(command, env=environment(tree, here), check=True)
        seconds: dict[str, list[float]] = {name: [] for name in trees}
        for _ in range(given.rounds):
            for name, tree in trees.items():
                copy = Path(place) / "copy"
                shutil.copytree(made[name], copy)
                command = [
                    sys.executable,
                    "-c",
                    "import resume; resume.main()",
                    "--one",
                    str(copy),
                    str(rows + 6400),
                ]
                done = subprocess.run(
                    command, env=environment(tree, here), check=True, capture_output=True, text=True
                )
                seconds[name].append(float(done.stdout))
                shutil.rmtree(copy)
    for name, times in seconds.items():
        print(
            f"{name:<8} {given.mib} MiB: median {statistics.median(times):.2f} s of "
            f"{[round(x, 2) for x in times]}"
        )
    if given.before:
        print(
            "ratio    "
            f"{statistics.median(seconds['now']) / statistics.median(seconds['before']):.2f}"
        )


def environment(tree: Path, here: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{tree.resolve()}{os.pathsep}{here.resolve()}"}


if __name__ == "__main__":
    main()
