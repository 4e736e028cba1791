"""How long from the start of a process until an actor acts and a learner has learned: medians of
fresh runs, in turn.

    .venv/bin/python benchmarks/start.py [--rounds 5] [--source OLD NEW] [--json FILE]

Each run is a script that trains IMPALA on a small env with one actor. ``first act`` is when the
env's first step begins, ``first update`` when the second batch comes to the learner. ``--source``
names source trees (the folder that holds ``equipoise``), which take turns: before and after a
change, on one machine in the same minutes.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from equipoise.algorithms.impala import IMPALA

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
MARKS = ("first act", "first update")
SCRIPT = """
import sys
from equipoise import api
path = sys.argv[1]
with api.start(
    "start:Marking", "start:MarkingIMPALA", env_kwargs={"path": path}, settings=[f"algorithm.path={path}"], out=path + "/run",
    actors=1, envs_per_actor=4, unroll=16, max_lag=1, steps=4000, evaluate_episodes=0, recipe=False,
) as run:
    for report in run:
        pass
"""  # noqa: E501


def mark(path: str, name: str) -> None:
    """Write the time of a moment, the first time that it comes."""
    if not (file := Path(path) / name).exists():
        file.write_text(repr(time.perf_counter()))  # one clock for all processes


class Marking(gymnasium.Env[Any, Any]):
    """Ten steps an episode; marks its first step."""

    def __init__(self, path: str) -> None:
        self.observation_space, self.action_space = (
            spaces.Box(-1, 1, (4,), np.float32),
            spaces.Discrete(2),
        )
        self._path, self._steps = path, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        # not the look before a run
        if not self._steps and "equipoise actor" in Path("/proc/self/cmdline").read_text():
            mark(self._path, "first act")
        self._steps += 1
        return np.zeros(4, np.float32), 1.0, False, self._steps % 10 == 0, {}


@dataclass(frozen=True, kw_only=True)
class MarkingIMPALA(IMPALA):
    """Marks its second batch."""

    path: str = ""

    def targets(self, net: Any, *args: Any, **kwargs: Any) -> Any:
        net.batches = getattr(net, "batches", 0) + 1
        if net.batches == 2:
            mark(self.path, "first update")
        return super().targets(net, *args, **kwargs)


def once(source: Path) -> dict[str, float]:
    """Seconds from the start of the process to each mark, of one run."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPATH": f"{source}:{HERE}"}
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", SCRIPT, folder], env=env, check=True, stdout=subprocess.DEVNULL
        )
        ended = time.perf_counter()
        return {name: float((Path(folder) / name).read_text()) - began for name in MARKS} | {
            "end": ended - began
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--source", type=Path, nargs="+", default=[SOURCE])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    took: dict[str, list[dict[str, float]]] = {str(source): [] for source in given.source}
    for n in range(given.rounds + 1):  # the first round fills the caches of files
        for source in given.source:
            found = once(source.resolve())
            if n:
                took[str(source)].append(found)
    medians = {
        s: {name: statistics.median(r[name] for r in runs) for name in runs[0]}
        for s, runs in took.items()
    }
    for source, found in medians.items():
        print(
            f"{source:<40}"
            + "   ".join(f"{name} {seconds:6.2f} s" for name, seconds in found.items())
        )
    if given.json:
        given.json.write_text(
            json.dumps({"rounds": given.rounds, "medians": medians}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
