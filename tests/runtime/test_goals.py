"""Runs that learn from hindsight: the same on every runtime, through a resume, and where nothing
else would do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.api.playing import read_policies
from equipoise.plans.beginning import Fresh
from equipoise.programs.settings import apply_settings
from equipoise.record.directory import RunDirectory
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from equipoise.sources.envs import evaluator
from tests.runtime.resuming import finish, told

SMALL = [
    "env.bits=6",
    "algorithm.hidden=16",
    "batch=16",
    "replay.capacity=2000",
    "replay.starts_at=200",
    "replay.updates=4",
    "placement.envs_per_actor=4",
    "placement.actors=2",
    "placement.max_lag=0",
    "evaluation.episodes=0",
]


def program(*settings: str, steps: int = 1200) -> Any:
    return api.program("equipoise/BitFlip-v0", "dqn", settings=[*SMALL, *settings], steps=steps)


def parameters(made: Any, on: Any, path: Path) -> str:
    with Run(made, Fresh(out=path), Services(on=on)) as going:
        for _ in going:
            pass
    assert going.summary is not None
    return str(going.summary["params_sha256"])


@pytest.mark.thorough
def test_serial_and_process_agree_to_the_bit(tmp_path: Path) -> None:
    made = program("algorithm.n_step=3")
    found = [parameters(made, on, tmp_path / str(on)) for on in ("serial", "process")]
    assert len(set(found)) == 1


@pytest.mark.thorough
def test_a_share_of_zero_is_a_run_without_goals(tmp_path: Path) -> None:
    """Of the same run, whatever the strategy; and another than with."""
    off = ["replay.relabel=0"]
    made = [program(*off), apply_settings(program("replay.strategy=final"), off), program()]
    found = [parameters(one, "serial", tmp_path / str(i)) for i, one in enumerate(made)]
    assert found[0] == found[1] != found[2]


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["future", "episode"])
def test_a_resumed_run_relabels_as_the_other_would_have(strategy: str, tmp_path: Path) -> None:
    words = [
        "equipoise/BitFlip-v0",
        "--algorithm",
        "dqn",
        "--on",
        "serial",
        "--checkpoint-every",
        "600",
        "--quiet",
    ]
    words += [
        word for setting in (*SMALL, f"replay.strategy={strategy}") for word in ("--set", setting)
    ]
    finish(["train", *words, "--steps", "1200", "--out", str(tmp_path / "whole")])
    finish(
        [
            "train",
            *words,
            "--steps",
            "600",
            "--set",
            "schedule.schedule_steps=1200",
            "--out",
            str(tmp_path / "half"),
        ]
    )
    finish(["resume", str(tmp_path / "half"), "--steps", "1200"])
    assert told(tmp_path / "half")["params_sha256"] == told(tmp_path / "whole")["params_sha256"]


def test_an_env_without_goals_is_refused_before_there_is_a_directory(tmp_path: Path) -> None:
    made = api.program("CartPole-v1", "dqn", settings=["replay.relabel=0.8"])
    with pytest.raises(
        ValueError, match=r"replay\.relabel: expected an env whose observation is a Dict"
    ):
        Run(made, Fresh(out=tmp_path / "run"), Services(on="serial")).__enter__()
    assert not (tmp_path / "run").exists()


BITS, STEPS = 15, 40_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("relabel", "low", "high"), [(0.8, 0.9, 1.0), (0.0, 0.0, 0.1)])
def test_bit_flip_is_solved_with_hindsight_and_not_without(
    relabel: float, low: float, high: float, seed: int, tmp_path: Path
) -> None:
    run = api.start(
        "equipoise/BitFlip-v0",
        "dqn",
        seed=seed,
        out=tmp_path / "run",
        steps=STEPS,
        settings=[f"env.bits={BITS}", f"replay.relabel={relabel}"],
    )
    for _ in run:
        pass
    share = success(tmp_path / "run")
    print(f"relabel={relabel} seed={seed}: {share:.2f} of episodes succeed")
    assert low <= share <= high


def success(path: Path, episodes: int = 200) -> float:
    """The share of fresh episodes, played greedily, that reach their goal:
    all others return -bits.
    """
    exam = evaluator(
        RunDirectory.open(path).program, read_policies(path).policies, episodes=episodes, seed=1
    )
    while not exam.done:
        exam.tick()
    exam.close()
    returns = exam.returns["main"]
    return sum(value > -BITS for value in returns) / len(returns)
