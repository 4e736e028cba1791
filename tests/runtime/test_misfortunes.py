"""Envs that fail as rarely as real ones do: each costs what it may cost, its capsules replay, and
no run goes on for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.envs.failures.capsule import read
from equipoise.envs.failures.reproduce import reproduce
from equipoise.types import OnNonfinite

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


def train(
    path: Path, env: str = "Faulty", *, steps: int, policy: OnNonfinite = "drop", **kwargs: Any
) -> dict[str, Any]:
    """32 envs in two actors -> the summary of a run that came to its end."""
    run = api.start(
        f"tests.envs.faulty:{env}",
        "impala",
        on="process",
        out=path,
        env_kwargs=kwargs,
        actors=2,
        envs_per_actor=16,
        unroll=16,
        max_lag=1,
        steps=steps,
        evaluate_episodes=0,
        on_nonfinite=policy,
        settings=["placement.deadline_s=3"],
    )
    for _ in run:
        pass
    assert (
        run.summary is not None
        and run.summary["status"] == "completed"
        and run.summary["env_steps"] >= steps
    )
    return run.summary


def counted(summary: dict[str, Any], name: str) -> int:
    return sum(one[name] for one in summary["failures"].values())


def capsules(path: Path) -> list[Path]:
    return sorted((path / "capsules").iterdir()) if (path / "capsules").exists() else []


def test_one_step_in_5000_raises(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", steps=300_000, how="raise", every=5_000)
    assert 30 <= counted(summary, "aborted") <= 90
    assert len(capsules(tmp_path / "run")) == 20, "the most that are kept of one cause"
    assert all(reproduce(read(path)).same for path in capsules(tmp_path / "run"))


def test_one_step_in_50000_hangs(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", steps=300_000, how="hang", every=50_000)
    hung = [note for note in summary["notes"] if "did nothing for 3 s; replaced" in note]
    assert 2 <= len(hung) <= 20 and all("faulty.py" in note for note in hung), summary["notes"]


def test_one_step_in_100000_gives_nan(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", steps=600_000, how="nan", every=100_000)
    assert 1 <= counted(summary, "aborted") <= 20
    assert len(capsules(tmp_path / "run")) == counted(summary, "aborted")
    assert all(reproduce(read(path)).same for path in capsules(tmp_path / "run"))


def test_a_nan_ends_the_run_where_nobody_said_otherwise(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"obs: expected a finite number, got nan"):
        train(tmp_path / "run", steps=10**9, policy="stop", how="nan", every=100_000)
    assert capsules(tmp_path / "run") and all(
        reproduce(read(path)).same for path in capsules(tmp_path / "run")
    )


def test_the_1000th_reset_gives_lists(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", steps=200_000, how="list", on_reset=1000, length=4)
    assert counted(summary, "outside") == 32 and counted(summary, "aborted") == 0
    (one, *others) = capsules(tmp_path / "run")
    assert len(others) <= 1, "each actor tells it once"
    capsule = read(one)
    assert (
        capsule.kind == "cast"
        and "obs: expected float32 [2], got a list of float64" in capsule.message
    )
    assert reproduce(capsule).same


def test_files_that_leak_cost_a_process_each_time(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", "Leaky", steps=20_000)
    replaced = [note for note in summary["notes"] if "raised an exception; replaced" in note]
    said = "has run out of files or memory: [Errno 24] Too many"
    assert len(replaced) > 5 and all(said in note for note in replaced), summary["notes"]
    assert not capsules(tmp_path / "run"), "there was no file left to write one into"


def test_files_that_leak_faster_than_a_run_gets_on_end_it(tmp_path: Path) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"(?s)actor \d raised an exception, 3 times in a row.*Too many open files",
    ):
        train(tmp_path / "run", "Leaky", steps=20_000, most=30)
