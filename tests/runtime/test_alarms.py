"""Alarms of real runs: a planted fault is named with its owner within a minute, healthy runs of
every algorithm raise none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.balance.alarms import Alarm
from equipoise.errors import WorkerFailed
from equipoise.learners.steps import NonFiniteUpdate
from equipoise.runtime.usage import usage

HERE = "tests.runtime.planted_faults"
MOST_S = 60.0  # from the run's begin to its alarm
QUICK: dict[str, Any] = {
    "evaluate_episodes": 0,
    "tensorboard": False,
    "steps": 100_000_000,
    "recipe": False,
}


def alarms_of(run: Any, name: str) -> list[Alarm]:
    """Iterate until the run has raised this alarm, or a minute has passed."""
    found: tuple[Alarm, ...] = ()
    with run:
        for report in run:
            found = report.alarms
            if any(one.name == name for one in found) or report.wall_s > MOST_S:
                break
    return list(found)


FAULTS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    # name: (alarm, owner, env, options)
    "old weights": (
        "old weights",
        "actor 1",
        f"{HERE}:freezing",
        {
            "algorithm": "impala",
            "actors": 2,
            "envs_per_actor": 8,
            "max_lag": None,
            "unroll": 16,
            "batch": 8,
        },
    ),
    "leak": (
        "memory grows",
        "actor 1",
        f"{HERE}:leaking",
        {"algorithm": "impala", "actors": 2, "envs_per_actor": 1, "max_lag": 1},
    ),
    "learning rate too large": (
        "entropy collapsed",
        "policy main",
        "CartPole-v1",
        {
            "algorithm": "ppo",
            "steps": 200_000,
            "settings": ["optimizer.learning_rate=0.3", "optimizer.max_grad_norm=0"],
        },
    ),
    "wrong sign": (
        "below random play",
        "policy main",
        "CartPole-v1",
        {"algorithm": f"{HERE}:Contrary", "steps": 100_000},
    ),
    "wrong sign, another env": (
        "below random play",
        "policy main",
        "Pendulum-v1",
        {
            "algorithm": f"{HERE}:Contrary",
            "steps": 150_000,
            "settings": ["algorithm.gamma=0.9", "optimizer.learning_rate=1e-3"],
        },
    ),
    "lag bound too large": (
        "lag too large",
        "policy main",
        "CartPole-v1",
        {"algorithm": "ppo", "actors": 2, "max_lag": 64, "unroll": 16},
    ),
    "updates 1000 times": (
        "replay ratio out of range",
        "replay",
        "CartPole-v1",
        {"algorithm": "dqn", "recipe": True, "settings": ["replay.updates=32000"]},
    ),
    "exploding loss": (
        "loss exploding",
        "policy main",
        "CartPole-v1",
        {
            "algorithm": "dqn",
            "settings": ["optimizer.learning_rate=1.0", "algorithm.target_every=1"],
        },
    ),
    "wrong probabilities": (
        "weights collapsed",
        "policy main",
        "CartPole-v1",
        {"algorithm": f"{HERE}:Forgetful", "actors": 1, "max_lag": 1},
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_with_its_owner_within_a_minute(name: str, tmp_path: Path) -> None:
    alarm, owner, env, options = FAULTS[name]
    began = time.monotonic()
    found = alarms_of(api.start(env, out=tmp_path / "run", **QUICK | options), alarm)
    print(name, f"{time.monotonic() - began:.1f} s", *(one.text for one in found), sep="\n")
    assert [one.owner for one in found if one.name == alarm] == [owner]
    assert all(one.wall_s <= MOST_S for one in found)


@pytest.mark.few(1)
@pytest.mark.parametrize("on", ["process", "serial"])
@pytest.mark.thorough
def test_a_loss_that_is_not_finite_is_an_alarm_of_the_run_that_it_ends(
    on: Any, tmp_path: Path
) -> None:
    run = api.start(
        "CartPole-v1",
        f"{HERE}:Nan",
        on=on,
        out=tmp_path / "run",
        **QUICK | {"steps": 8_000, "actors": 1},
    )
    with pytest.raises((WorkerFailed, NonFiniteUpdate)):
        for _ in run:
            pass
    assert run.summary is not None and run.summary["status"] == "failed"
    (alarm,) = run.summary["alarms"]
    assert (alarm["name"], alarm["owner"]) == (
        "loss not finite",
        "learner",
    ) and "got loss nan" in alarm["evidence"]
    assert any(
        note.startswith("warning: alarm: loss not finite (learner)")
        for note in run.summary["notes"]
    )


LATE = [
    "--no-recipe",
    "--actors",
    "2",
    "--max-lag",
    "64",
    "--unroll",
    "16",
    "--no-tensorboard",
    "--evaluate-episodes",
    "0",
]


def command(*words: str, at: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "equipoise", *words],
        cwd=at,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.thorough
def test_a_run_that_is_to_stop_on_an_alarm_ends_cleanly_and_can_go_on(tmp_path: Path) -> None:
    did = command(
        "train",
        "CartPole-v1",
        *LATE,
        "--steps",
        "10M",
        "--on-alarm",
        "stop",
        "--out",
        "run",
        at=tmp_path,
    )
    assert did.returncode == 4, did
    assert "equipoise train: ended by --on-alarm stop: lag too large" in did.stderr
    assert "alarm: lag too large (policy main): experience is" in " ".join(did.stdout.split())
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], [one["name"] for one in summary["alarms"]]) == (
        "alarmed",
        ["lag too large"],
    )
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [one["owner"] for one in lines[-1]["alarms"]] == ["policy main"]
    steps = str(summary["env_steps"] + 2_000)
    did = command("resume", "run", "--on-alarm", "warn", "--steps", steps, at=tmp_path)
    assert did.returncode == 0, did
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["status"] == "completed" and "lag too large" in [
        one["name"] for one in summary["alarms"]
    ]


@pytest.mark.thorough
def test_a_run_goes_on_after_an_alarm_unless_told_otherwise(tmp_path: Path) -> None:
    options = QUICK | {
        "steps": 1_040,
        "settings": ["replay.updates=800", "replay.starts_at=1000", "policy.batch=4"],
    }
    run = api.start("CartPole-v1", "dqn", on="serial", out=tmp_path / "run", **options)
    for _ in run:
        pass
    assert run.summary is not None and run.summary["status"] == "completed"
    assert [one["name"] for one in run.summary["alarms"]] == ["replay ratio out of range"]


def test_memory_of_a_process_is_its_own(tmp_path: Path) -> None:
    code = "x = b'1' * 50_000_000; print('there', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        found = usage(process.pid)
        assert (
            found is None
            if sys.platform != "linux"
            else found is not None and 50e6 < found.own < 100e6
        )
        process.stdin.close()
        process.wait()
        assert usage(process.pid) is None


HEALTHY = {
    "ppo": ("CartPole-v1", 150_000),
    "impala": ("CartPole-v1", 200_000),
    "appo": ("CartPole-v1", 200_000),
    "a3c": ("CartPole-v1", 200_000),
    "a2c": ("CartPole-v1", 150_000),
    "dqn": ("CartPole-v1", 40_000),
    "qr_dqn": ("CartPole-v1", 30_000),
    "apex_dqn": ("CartPole-v1", 40_000),
    "r2d2": ("equipoise/TMaze-v0", 12_000),
    "sac": ("Pendulum-v1", 6_000),
    "td3": ("Pendulum-v1", 6_000),
    "tqc": ("Pendulum-v1", 2_500),
    "crossq": ("Pendulum-v1", 3_000),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", HEALTHY)
def test_a_healthy_run_raises_no_alarm(algorithm: str, tmp_path: Path) -> None:
    env, steps = HEALTHY[algorithm]
    run = api.start(
        env, algorithm, out=tmp_path / "run", steps=steps, evaluate_episodes=0, tensorboard=False
    )
    for _ in run:
        pass
    assert run.summary is not None
    print(
        algorithm,
        env,
        {name: run.summary[name] for name in ("env_steps", "wall_s", "return_mean", "lag")},
    )
    assert run.summary["status"] == "completed" and run.summary["alarms"] == []


@pytest.mark.slow
def test_a_healthy_clone_raises_no_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    first = api.start(
        "CartPole-v1",
        "ppo",
        out=tmp_path / "first",
        steps=60_000,
        evaluate_episodes=0,
        tensorboard=False,
    )
    for _ in first:
        pass
    api.collect(tmp_path / "first", "cartpole/some-v0", episodes=50)
    run = api.start(
        api.program("CartPole-v1", "bc", dataset="cartpole/some-v0", steps=4_000),
        out=tmp_path / "run",
    )
    for _ in run:
        pass
    assert (
        run.summary is not None
        and run.summary["status"] == "completed"
        and run.summary["alarms"] == []
    )
