"""How a run's actors act: chosen once, written down, kept by a resume; what rounded weights change
is reported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.programs.fields import alter
from equipoise.programs.refusals import check
from equipoise.tuning import forward as acting
from equipoise.tuning.choice import Choice
from equipoise.types import Program


def made(**fields: Any) -> Program:
    known = {
        "steps": 4096,
        "envs_per_actor": 4,
        "evaluate_episodes": 0,
        "unroll": 32,
        "batch": 4,
    } | fields
    return api.program("CartPole-v1", "ppo", **known)


def ran(
    program: Program, out: Path, **fields: Any
) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    with api.start(program, on="serial", out=out, **fields) as run:
        reports = [report for report in run if report.recorded]
    return (
        json.loads((out / "run.json").read_text()),
        reports,
        json.loads((out / "summary.json").read_text()),
    )


@pytest.mark.thorough
def test_in_lockstep_nothing_is_chosen(tmp_path: Path) -> None:
    run, _, summary = ran(made(), tmp_path / "run")
    assert (
        run["choices"]["forward"]["value"] == "torch"
        and "max_lag=0" in run["choices"]["forward"]["why"]
    )
    assert summary["acting"] == {"weights": "fp32", "forward": {"main": "torch"}, "error": {}}


@pytest.mark.thorough
def test_a_resume_acts_as_the_run_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        acting,
        "choose",
        lambda *_, **__: Choice(value="lean", why="told so", measured={"torch": 2.0, "lean": 1.0}),
    )
    run, _, summary = ran(made(max_lag=1, checkpoint_every=2048), tmp_path / "run")
    told = run["choices"]["forward"]
    assert (told["value"], told["why"], told["measured"]) == (
        "lean",
        "told so",
        {"torch": 2.0, "lean": 1.0},
    )
    assert summary["acting"]["forward"] == {"main": "lean"}
    monkeypatch.setattr(acting, "choose", lambda *_, **__: Choice(value="torch", why="asked again"))
    with api.start(resume=tmp_path / "run", on="serial", steps=6144) as going:
        list(going)
    assert json.loads((tmp_path / "run/run.json").read_text())["choices"] == run["choices"]
    assert json.loads((tmp_path / "run/summary.json").read_text())["acting"]["forward"] == {
        "main": "lean"
    }
    with api.start(
        resume=tmp_path / "run",
        on="serial",
        steps=8192,
        settings=["placement.acting_precision=int8"],
    ) as going:  # others may be faster now
        list(going)
    assert (
        json.loads((tmp_path / "run/run.json").read_text())["choices"]["forward"]["why"]
        == "asked again"
    )
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (
        summary["acting"]["weights"] == "int8"
        and summary["acting"]["error"]["acting/p_error_max"] > 0
    )


@pytest.mark.thorough
def test_what_rounding_changes_is_reported_and_the_same_after_a_resume(tmp_path: Path) -> None:
    """In lockstep a report of a run that was resumed is that of a run that was not, its error
    included.
    """
    program = made(acting_precision="bf16", checkpoint_every=1024)
    _, whole, summary = ran(program, tmp_path / "whole")
    assert {"acting/p_error_mean", "acting/p_error_max"} <= set(whole[-1].metrics)
    assert (
        0
        < whole[-1].metrics["acting/p_error_mean"]
        <= whole[-1].metrics["acting/p_error_max"]
        < 0.1
    )
    assert (
        summary["acting"]["weights"] == "bf16"
        and summary["acting"]["error"]["acting/p_error_max"] > 0
    )
    # after 24 versions: not due
    ran(alter(program, steps=3072, schedule_steps=4096), tmp_path / "part")
    with api.start(resume=tmp_path / "part", on="serial", steps=4096) as going:
        again = [report for report in going if report.recorded]
    assert again[-1].metrics == whole[-1].metrics


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"acting_precision": "fp16"},
            "placement.acting_precision: expected one of fp32, bf16, int8, got 'fp16'",
        ),
        (
            {"acting_precision": "int8", "precision": "bf16"},
            "placement.acting_precision: expected fp32 with precision=bf16",
        ),
        (
            {"acting_precision": "bf16", "precision": "medium"},
            "placement.acting_precision: expected fp32 with precision=medium",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check(alter(made(), **fields))
