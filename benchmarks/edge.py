"""A policy on a device: memory and time of ``edge.py`` beside ``eq.load`` and beside bare ONNX
Runtime.

    .venv/bin/python benchmarks/edge.py [--kinds mlp lstm] [--calls 5000] [--rounds 5] [--json FILE]

- memory: resident bytes of a process that has loaded an artifact by ``edge.py`` and acted, and of
  one that has loaded the same artifact by ``eq.load`` and acted. Each is a process of its own; the
  ratio counts.
- time: median of ``EdgePolicy.act``, and of ``InferenceSession.run`` with the same graph and the
  same arrays, ready-made. Both are called in turn, in one process with one thread; the ratio of the
  medians counts.

Policies are untrained: an MLP 64-64 and the same with an LSTM of 64 units, 8 numbers in, one of 4
actions out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise.edge import EdgePolicy
from equipoise.exporting import artifact as artifacts
from equipoise.exporting.observations import sampled
from equipoise.programs.program import algorithm_from_json
from equipoise.record.playable import Playable
from equipoise.types import EnvSpec

NUMBERS, ACTIONS = 8, 4
KINDS: dict[str, dict[str, Any]] = {"mlp": {}, "lstm": {"core": "lstm", "core_size": 64}}
WANTED = {"memory": 0.4, "time": 4.0}  # ratios at most
ACT = "[policy.act([0.0] * {numbers}) for _ in range(100)]"
PROCESSES = {
    "edge": "import sys; sys.path.insert(0, {place!r}); from edge import EdgePolicy; policy = "
    "EdgePolicy({place!r}); " + ACT,
    "load": "import equipoise as eq; policy = eq.load({place!r}); " + ACT,
}
RESIDENT = "; print(open('/proc/self/status').read().partition('VmRSS:')[2].split()[0])"


def make(kind: str, folder: Path) -> Path:
    """An artifact of a kind of policy."""
    spec = EnvSpec(
        observation=spaces.Box(-1.0, 1.0, (NUMBERS,), np.float32), action=spaces.Discrete(ACTIONS)
    )
    algorithm = algorithm_from_json({"name": "ppo", "fields": KINDS[kind]}, "algorithm")
    one = Playable(algorithm=algorithm, spec=spec, learns=True, precision="fp32")
    policy = one.policy()
    artifacts.write(
        folder / kind,
        "main",
        one,
        policy,
        lineage={"step": 0},
        seen=sampled(spec, policy.net, rows=100),
        rows=100,
    )
    return folder / kind


def memory(place: Path) -> dict[str, float]:
    """Resident MiB of both processes."""
    found = {}
    for name, code in PROCESSES.items():
        code = code.format(place=str(place), numbers=NUMBERS) + RESIDENT
        ran = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        found[name] = int(ran.stdout) / 1024
    return found


def times(place: Path, calls: int, rounds: int) -> dict[str, float]:
    """Median us of a call of each, over all rounds."""
    policy = EdgePolicy(place)
    obs, artifact = np.zeros(NUMBERS, np.float32), policy.artifact
    given = {
        **artifact.constants(1),
        **artifact.read(obs)[0],
        **artifact.initial(1),
        "first": np.array([False]),
        "deterministic": np.array([True]),
    }
    ways: dict[str, Callable[[], Any]] = {
        "edge": lambda: policy.act(obs),
        "bare": lambda: artifact._session.run(None, given),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            for _ in range(calls // rounds):
                began = time.perf_counter()
                call()
                took[name].append(time.perf_counter() - began)
    return {name: statistics.median(mine) * 1e6 for name, mine in took.items()}


def measure(kind: str, calls: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        place = make(kind, Path(folder))
        used, took = memory(place), times(place, calls, rounds)
    return {
        "kind": kind,
        "edge_mib": used["edge"],
        "load_mib": used["load"],
        "memory": used["edge"] / used["load"],
        "edge_us": took["edge"],
        "bare_us": took["bare"],
        "time": took["edge"] / took["bare"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--calls", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    rows = [measure(kind, a.calls, a.rounds) for kind in a.kinds]
    print(
        "| policy | edge MiB | eq.load MiB | ratio (<= 0.4) | act us | bare us | ratio (<= 4) "
        "|\n|---|---|---|---|---|---|---|"
    )
    for one in rows:
        print(
            f"| {one['kind']} | {one['edge_mib']:.0f} | {one['load_mib']:.0f} | "
            f"{one['memory']:.2f} | {one['edge_us']:.1f} "
            f"| {one['bare_us']:.1f} | {one['time']:.2f} |"
        )
    if a.json is not None:
        a.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
