"""Learners whose devices are lent to generation: every sample is learned from once or counted, and
no token is older than the bound, whenever the devices are lent and whoever dies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.plans.beginning import Fresh, Resumed
from equipoise.record.directory import RunDirectory
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from tests.runtime import switching

GROUP = 8
UPDATES = 250  # in which there are 50 switches
SMALL: dict[str, Any] = {
    "algorithm": "grpo",
    "batch": 16,
    "max_lag": 1,
    "evaluate_episodes": 0,
    "placement": "elastic",
    "settings": ["optimizer.learning_rate=1e-3"],
}


def program(env: str = "sort", **given: Any) -> Any:
    return api.program(env, **SMALL | given)


def started(out: Path, on: Any = "process", kinds: Any = switching.WITH, **given: Any) -> Run:
    return Run(program(**given), Fresh(out=out), Services(on=on, kinds=kinds))


def checked(run: Run, **given: Any) -> dict[str, Any]:
    """The summary of a run that is over, whose ledger is exact."""
    assert run.summary is not None and run.summary["status"] == "completed", run.summary
    rows, place = run.summary["rows"], run.program.placement
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    assert rows["sampled"] == run.summary["updates"] * run.program.policies["main"].batch
    found = switching.complaints(
        run.directory, group=GROUP, max_lag=place.max_lag, learners=place.learners
    )
    assert not found, found
    return dict(run.summary)


def finished(run: Run) -> dict[str, Any]:
    for _ in run:
        pass
    return checked(run)


def test_every_sample_is_learned_from_once_however_devices_are_lent(tmp_path: Path) -> None:
    run = started(tmp_path / "run", "serial", switching.OFTEN, steps=256)
    summary = finished(run)
    assert summary["lending"]["switches"] >= 8 and summary["lending"]["handed_over"] > 8
    assert summary["balance"]["learner"]["parts"]["decode"] > 0, "the learner drew some of them"


def test_a_run_that_goes_on_is_the_same_to_the_bit_and_its_devices_stay_lent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # seconds decide nothing here, and these neither
    monkeypatch.setattr("equipoise.actors.generator.HELD_S", 1e9)
    given: dict[str, Any] = {"settings": [*SMALL["settings"], "schedule.schedule_steps=192"]}

    def one(name: str, **more: Any) -> Run:
        return started(tmp_path / name, "serial", switching.OFTEN, checkpoint_every=96, **more)

    whole = finished(one("whole", steps=192, **given))
    half = one("half", steps=96, **given)
    before = finished(half)["lending"]
    directory = RunDirectory.open(half.directory)
    again = Run(
        program(steps=192, checkpoint_every=96, **given),
        Resumed(directory=directory, source=directory.whole_checkpoint()),
        Services(on="serial", kinds=switching.OFTEN),
    )
    summary = finished(again)
    assert before["switches"] >= 3 and summary["lending"] == whole["lending"]
    assert summary["params_sha256"] == whole["params_sha256"]


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("env", "more"),
    [
        ("sort", {}),
        ("sort", {"actors": 2, "max_lag": 4}),
        ("sort", {"learners": 2, "actors": 2, "batch": 32}),
        ("guess", {}),
        ("reverse_add", {"settings": [*SMALL["settings"], "source.lora=2"]}),
    ],
    ids=["one", "two generators", "two learners", "conversations", "adapters"],
)
def test_fifty_switches_at_random_moments_leave_no_sample_out(
    env: str, more: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    given = {"batch": 16} | more
    settings = [*given.pop("settings", SMALL["settings"]), f"schedule.seed={seed % 1000}"]
    steps = UPDATES * given["batch"]
    summary = finished(started(tmp_path / "run", env=env, steps=steps, settings=settings, **given))
    assert summary["lending"]["switches"] >= 50, summary["lending"]
    assert env == "guess" or summary["lending"]["handed_over"] > 50, summary["lending"]
