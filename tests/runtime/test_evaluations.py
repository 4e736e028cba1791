"""Evaluations while a run trains: every one that was asked for is made, at its step, in every
runtime and through a resume.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import api
from equipoise.plans.plan import plan_run
from equipoise.record.directory import RunDirectory
from equipoise.run import evaluation_schedule
from equipoise.run.evaluation_schedule import EvaluationSchedule
from equipoise.runtime.cut import Gate

STEPS = [512 * n for n in range(1, 9)]  # a batch is 512 rows; the last one is of the end


def program(**options: Any) -> Any:
    given: dict[str, Any] = {
        "actors": 2,
        "envs_per_actor": 4,
        "batch": 8,
        "unroll": 64,
        "steps": 4096,
        "evaluate_every": 500,
        "evaluate_episodes": 5,
        "max_lag": 0,
        "settings": ["algorithm.epochs=1"],
    }
    return api.program("CartPole-v1", **{**given, **options})


def finish(run: Any) -> list[tuple[int, int, float]]:
    """(step, version, mean) of each evaluation that the files tell of, in their order."""
    for _ in run:
        pass
    lines = RunDirectory.open(run.directory).metrics()
    found = [line["evaluation"] for line in lines if line["evaluation"] is not None]
    return [(one["env_steps"], one["version"], one["mean"]) for one in found]


def test_a_gate_holds_the_learner_at_a_version_that_is_due_until_the_driver_has_its_weights() -> (
    None
):
    words = {
        name: np.zeros(1, np.int64) for name in ("asked", "begun", "released", "closed", "examined")
    }
    offered, cuts = list[int](), list[int]()
    gate = Gate(
        words, every=4, last=9, announce=cuts.append, due=lambda v: v % 2 == 0, offer=offered.append
    )
    assert not gate(1)
    assert gate(2) and gate(2) and offered == [2], "told once"
    words["examined"][0] = 2
    assert not gate(2) and not gate(3)
    assert gate(4) and cuts == [], "a checkpoint of a version knows that it was taken"
    words["examined"][0] = 4
    assert gate(4) and cuts == [4]


@pytest.mark.parametrize(
    ("every", "updates", "publish_every", "due"),
    [
        (512, 8, 1, [1, 2, 3, 4, 5, 6, 7]),
        (500, 8, 1, [1, 2, 3, 4, 5, 6, 7]),
        (1000, 9, 1, [2, 4, 6, 8]),
        (1, 4, 1, [1, 2, 3]),
        (700, 9, 2, [2, 4, 6, 8]),
        (10_000, 9, 1, []),
        (None, 9, 1, []),
    ],
)
def test_which_versions_are_due(
    every: int | None, updates: int, publish_every: int, due: list[int]
) -> None:
    lag = {"max_lag": None, "publish_every": publish_every} if publish_every > 1 else {}
    options: dict[str, Any] = {"steps": 512 * updates, "evaluate_every": every, **lag}
    blue = plan_run(program(**options, algorithm="impala" if lag else "ppo", settings=[]))
    assert [v for v in range(-1, 50) if blue.examines(v)] == due


@pytest.fixture
def serial(tmp_path: Path) -> list[tuple[int, int, float]]:
    return finish(api.start(program(), on="serial", out=tmp_path / "serial"))


@pytest.mark.few(1)
@pytest.mark.parametrize("queued", [1, 16])
@pytest.mark.thorough
def test_processes_make_the_same_evaluations_as_one_thread(
    tmp_path: Path, serial: list[Any], queued: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_schedule, "QUEUED", queued)
    assert [step for step, _, _ in serial] == STEPS
    run = api.start(program(), out=tmp_path / "process")
    assert finish(run) == serial
    assert run.summary is not None and run.summary["evaluations"] == {"asked": 8, "made": 8}
    best = RunDirectory.open(run.directory).best_evaluation()
    assert best is not None and best.mean == max(mean for _, _, mean in serial)


@pytest.mark.thorough
def test_evaluations_that_wait_when_a_run_ends_early_are_made_by_its_resume(
    tmp_path: Path, serial: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    advance: Callable[..., Any] = EvaluationSchedule.advance

    def two_alone(self: EvaluationSchedule, until: float) -> Any:  # as if evaluations were slow
        return advance(self, until) if self.made < 2 else None

    monkeypatch.setattr(EvaluationSchedule, "advance", two_alone)
    monkeypatch.setattr(evaluation_schedule, "QUEUED", 3)
    run, made = api.start(program(), out=tmp_path / "process"), 0
    for report in run:
        made += report.recorded and report.evaluation is not None
        if made == 2 and report.step >= 3072:  # the learner waits, since the queue is full
            break
    run.close()
    summary = run.summary
    assert summary is not None and summary["evaluations"] == {"asked": 6, "made": 2}
    assert any(
        "2 of" in note and "1,536" in note and "resume" in note for note in summary["notes"]
    ), summary["notes"]
    monkeypatch.setattr(EvaluationSchedule, "advance", advance)
    again = api.start(resume=run.directory)
    assert finish(again) == serial
    assert again.summary is not None and again.summary["evaluations"] == {"asked": 8, "made": 8}


def test_an_evaluation_that_could_not_be_made_is_told_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result: Callable[..., Any] = evaluation_schedule.result

    def third_fails(exam: Any, **given: Any) -> Any:
        found = result(exam, **given)
        return replace(found, episodes=0) if given["version"] == 3 else found

    monkeypatch.setattr(evaluation_schedule, "result", third_fails)
    run = api.start(program(), on="serial", out=tmp_path / "run")
    assert [step for step, _, _ in finish(run)] == [step for step in STEPS if step != 1536]
    assert run.summary is not None and run.summary["evaluations"] == {"asked": 8, "made": 7}
    assert "warning: evaluations: 7 of 8 were made" in run.summary["notes"]
