"""A replay of latents beside one of images: returns after the same steps, and the bytes of a row.

    .venv/bin/python benchmarks/latents.py [--seeds 3] [--torsos vae nature] [--steps 20000]
    [--threads 1] [--json FILE]

DQN sees the whole grid of MiniGrid-Empty-Random-6x6-v0 as an image of 96 x 96 (its direction beside
it). ``vae``: the encoder learns from the first 6,000 rows, which are not kept; ``nature``: all rows
are kept as images, and the CNN learns with Q. Shown are the evaluations of fresh episodes by env
steps: the first of at least 0.9, the worst from there on, and the last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import evaluations, host, table

from equipoise import api
from equipoise.plans.plan import plan_run

ENV, SOLVED = "MiniGrid-Empty-Random-6x6-v0", 0.9
SETTINGS = (
    "env.codes=map",
    "env.tile=16",
    "algorithm.n_step=3",
    "algorithm.gamma=0.9",
    "algorithm.epsilon_steps=12000",
    "optimizer.learning_rate=5e-4",
    "policy.unroll=4",
    "placement.actors=1",
    "placement.envs_per_actor=8",
    "replay.updates=16",
    "replay.starts_at=1000",
    "replay.capacity=20000",
)
TORSOS = {
    "vae": ("algorithm.torso=vae", "algorithm.encoder_rows=6000"),
    "nature": ("algorithm.torso=nature",),
}


def nbytes(torso: str) -> float:
    """Bytes of a row in the replay."""
    made = api.program(ENV, "dqn", recipe=False, steps=20_000, settings=[*SETTINGS, *TORSOS[torso]])
    plan = plan_run(made).replays["main"]
    return plan.nbytes(plan.slots) / (plan.slots * plan.streams)


def trained(torso: str, seed: int, a: argparse.Namespace, out: Path) -> dict[str, Any]:
    settings = [
        *SETTINGS,
        *TORSOS[torso],
        f"placement.threads={a.threads}",
        "evaluation.every=1000",
    ]
    command = [
        sys.executable,
        "-m",
        "equipoise",
        "train",
        ENV,
        "--algorithm",
        "dqn",
        "--no-recipe",
        "--on",
        "serial",
        "--seed",
        str(seed),
        "--steps",
        str(a.steps),
        "--quiet",
        "--no-tensorboard",
        "--out",
        str(out),
        *(word for one in settings for word in ("--set", one)),
    ]
    began = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    found = evaluations(out)
    solved = next((step for step, mean in found.items() if mean >= SOLVED), None)
    worst = None if solved is None else min(mean for step, mean in found.items() if step >= solved)
    return {
        "torso": torso,
        "seed": seed,
        "solved": solved,
        "worst": worst,
        "last": list(found.values())[-1],
        "seconds": time.perf_counter() - began,
        "evaluations": found,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--torsos", nargs="+", choices=list(TORSOS), default=list(TORSOS))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    size = {torso: nbytes(torso) for torso in TORSOS}
    print(
        f"bytes of a row: {size['vae']:,.0f} with latents, {size['nature']:,.0f} with images, "
        f"1/{size['nature'] / size['vae']:.0f}"
    )
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(a.seeds):
            for torso in a.torsos:
                one = trained(torso, seed, a, Path(folder) / f"{torso}{seed}")
                print({key: one[key] for key in one if key != "evaluations"}, flush=True)
                runs.append(one)
    rows = [
        [
            one["torso"],
            one["seed"],
            one["solved"] or "-",
            "-" if one["worst"] is None else f"{one['worst']:.2f}",
            f"{one['last']:.2f}",
            f"{one['seconds']:.0f}",
        ]
        for one in sorted(runs, key=lambda one: one["torso"])
    ]
    print(table(["torso", "seed", "first >= 0.9", "worst after it", "last", "seconds"], rows))
    if a.json:
        a.json.write_text(
            json.dumps({"host": host(), "bytes": size, "runs": runs}, indent=1), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
