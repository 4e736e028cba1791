"""Device envs beside native ones: env steps a second of whole training runs, and of acting alone.

    .venv/bin/python benchmarks/device_envs.py [--streams 4096] [--rounds 3] [--device cpu]
    [--epochs 1] [--steps 4M]

Both learn CartPole by PPO with the same network, epochs and rows of a minibatch.
``device:cartpole`` has ``--streams`` streams on one rollout. ``CartPole-v1``, Gymnasium's native
vector env, is run at each setting of ``NATIVE`` first, and its fastest one is its entry. Then both
are run in turns, ``--rounds`` times each; the ratio is that of the medians.

Where learning takes most of the time of both, no env can make the ratio large. So there is a second
ratio, of env steps by the time for which the sampling workers of the same runs worked (waiting left
out).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import host, table

from equipoise import api
from equipoise.programs.settings import convert

UNROLL, MINIBATCH = 32, 16_384  # rows: of an unroll, of a minibatch at most
NATIVE = (  # (actors, envs of each, max_lag, on)
    (1, 64, 0, "process"),
    (1, 256, 0, "process"),
    (1, 1024, 0, "process"),
    (1, 4096, 0, "process"),
    (2, 2048, 0, "process"),
    (1, 4096, 1, "process"),
    (1, 4096, 0, "serial"),
    (2, 512, 1, "process"),
)


def run(
    env: str,
    actors: int,
    envs: int,
    max_lag: int,
    on: Any,
    *,
    epochs: int,
    steps: int,
    device: str,
    threads: int,
) -> Any:
    """Train -> {"steps_per_s", "acting_per_s"}."""
    rows = actors * envs * UNROLL
    made = api.program(
        env,
        "ppo",
        actors=actors,
        envs_per_actor=envs,
        unroll=UNROLL,
        max_lag=max_lag,
        steps=max(steps // rows, 4) * rows,
        recipe=False,
        evaluate_episodes=0,
        device=device,
        threads=threads,
        checkpoint_every=0,
        settings=[
            f"algorithm.epochs={epochs}",
            f"algorithm.minibatches={max(rows // MINIBATCH, 1)}",
        ],
    )
    with tempfile.TemporaryDirectory() as out:
        with api.start(made, on=on, out=Path(out) / "run", tensorboard=False) as going:
            for _ in going:
                pass
        assert going.summary is not None
        summary = going.summary
    sampling = sum(
        one["worked"] for one in summary["balance"].values() if one["side"] == "sampling"
    )
    return {"steps_per_s": summary["steps_per_s"], "acting_per_s": summary["env_steps"] / sampling}


def said(actors: int, envs: int, max_lag: int, on: str) -> str:
    return f"{actors} x {envs}, max_lag {max_lag}, {on}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="device envs beside native ones")
    parser.add_argument("--streams", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument(
        "--steps", type=lambda text: convert(text, int, "--steps"), default=4_000_000
    )
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    options: dict[str, Any] = {
        "epochs": args.epochs,
        "steps": args.steps,
        "device": args.device,
        "threads": args.threads,
    }
    print(json.dumps(host()))
    tried = {setting: run("CartPole-v1", *setting, **options) for setting in NATIVE}
    print(
        table(
            ["native: actors x envs", "steps/s", "acting/s"],
            [_row(said(*at), [found]) for at, found in tried.items()],
        )
    )
    native = max(tried, key=lambda at: float(tried[at]["steps_per_s"]))
    ours = (
        (1, args.streams, 0, "serial") if args.device != "cpu" else _fastest(args.streams, options)
    )
    found: dict[str, list[Any]] = {"CartPole-v1": [], "device:cartpole": []}
    for _ in range(args.rounds):
        found["CartPole-v1"].append(run("CartPole-v1", *native, **options))
        found["device:cartpole"].append(run("device:cartpole", *ours, **options))
    settings = {"CartPole-v1": said(*native), "device:cartpole": said(*ours)}
    print(
        table(
            ["env", "steps/s", "acting/s"],
            [_row(f"{env}: {settings[env]}", runs) for env, runs in found.items()],
        )
    )
    for what in ("steps_per_s", "acting_per_s"):
        theirs, mine = (statistics.median(one[what] for one in found[env]) for env in found)
        print(f"{what}: device / native = {mine / theirs:.2f}")


def _fastest(streams: int, options: dict[str, Any]) -> tuple[int, int, int, str]:
    """The faster of the two runtimes for the device env."""
    ways = [(1, streams, 0, "serial"), (1, streams, 1, "process")]
    return max(ways, key=lambda at: float(run("device:cartpole", *at, **options)["steps_per_s"]))


def _row(name: str, runs: Sequence[Any]) -> list[str]:
    return [
        name,
        *(
            " ".join(f"{one[what]:,.0f}" for one in runs)
            for what in ("steps_per_s", "acting_per_s")
        ),
    ]


if __name__ == "__main__":
    main()
