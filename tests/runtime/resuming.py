"""Runs that are killed and go on, and what they must agree in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from equipoise.record.directory import RunDirectory
from equipoise.record.report import repeatable

N = 8192  # env steps to the checkpoint, as many again to the end
SIZES = "--actors 2 --envs-per-actor 8 --unroll 16 --max-lag 0 --evaluate-episodes 0 --no-recipe"


def arguments(
    algorithm: str,
    core: str,
    env: str = "CartPole-v1",
    n: int = N,
    sizes: str = SIZES,
    *,
    steps: str = "",
    every: str = "",
) -> list[str]:
    """``core``: that of the network; "normalised" is none, with running statistics of observations
    and returns.
    """
    settings = (
        ["algorithm.normalize_obs=true", "rewards.normalize=true"] if core == "normalised" else []
    )
    core = "none" if core == "normalised" else core
    settings += ["optimizer.schedule=linear", f"algorithm.core={core}"]
    if algorithm == "ppo":
        settings += ["algorithm.epochs=3", "algorithm.minibatches=2", "algorithm.anneal_clip=true"]
    # the checkpoint, at update 32, lies between two copies of the target network
    if algorithm == "appo":
        settings += ["algorithm.target_every=5", "algorithm.kl=0.1"]
    words = [
        env,
        "--algorithm",
        algorithm,
        *sizes.split(),
        "--steps",
        steps or str(2 * n),
        "--checkpoint-every",
        every or str(n),
    ]
    return [*words, *(word for s in settings for word in ("--set", s))]


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from equipoise.cli import main; main()", *words]


def finish(words: Sequence[str], *, code: int = 0) -> str:
    """Run the command line to its end."""
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, (
        f"exit code {done.returncode}: {' '.join(words)}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


def kill_after(
    words: Sequence[str], ready: Callable[[], object], deadline: Callable[..., None], wait_s: float
) -> None:
    """Start the command in a group of its own,
    SIGKILL the whole group some time after ``ready``.
    """
    process = subprocess.Popen(
        command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        deadline(lambda: ready() or process.poll() is not None, 120.0, "the checkpoint")
        assert ready(), process.communicate()[0]
        time.sleep(wait_s)  # the moment of the kill
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def told(path: Path) -> dict[str, Any]:
    """What must be the same to the bit: the parameters, and the deterministic part of every
    recorded report.
    """
    run = RunDirectory.open(path)
    summary = run.summary()
    assert summary is not None and summary["status"] == "completed", summary
    reports = repeatable(run.metrics())
    return {
        "params_sha256": summary["params_sha256"],
        "env_steps": summary["env_steps"],
        "reports": reports,
    }
