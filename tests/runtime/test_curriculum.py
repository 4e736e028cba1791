"""Prompts chosen by pass rate on the ring: the same bits wherever it runs, whoever dies, and after
a resume; fewer groups that teach nothing.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from tests.runtime.machines import ONE_MACHINE, blue_of, finish, on_machines
from tests.runtime.test_cluster import pids
from tests.runtime.test_text import finished, shown
from tests.runtime.test_text_on_machines import AWAY, TEXT

STEPS = 32 * 60
BY_RATE = ["source.curriculum=pass_rate"]
RATE = ["optimizer.learning_rate=3e-3", "source.samples_at_once=64"]
MIXED: dict[str, Any] = {
    "algorithm": "grpo",
    "batch": 32,
    "envs_per_actor": 4,
    "steps": STEPS,
    "max_lag": 0,
    "evaluate_episodes": 0,
    "tensorboard": False,
    "model": "llama:hidden_size=32,num_hidden_layers=1",
}


def started(out: Path, settings: list[str] = BY_RATE, **options: Any) -> Any:
    given = MIXED | options
    given["settings"] = [*RATE, "algorithm.num_generations=4", *settings]
    return api.start("tests.runtime.mixed:rows", out=out, **given)


def trained(out: Path, settings: list[str] = BY_RATE, **options: Any) -> dict[str, Any]:
    return finished(started(out, settings, **options))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("alone") / "run"
    return trained(place, on="serial") | {"place": place}


def test_prompts_that_nobody_solves_are_drawn_less_often(alone: Any, tmp_path: Path) -> None:
    trained(tmp_path / "plain", [], on="serial")
    settled = shown(alone["place"], "curriculum/settled")
    assert 0.1 < settled < 0.6 and shown(alone["place"], "curriculum/skipped") > 0.2
    equal = [shown(one, "frac_reward_zero_std") for one in (alone["place"], tmp_path / "plain")]
    assert equal[0] < equal[1] - 0.1, equal


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{}, {"placement": "together"}, {"actors": 3}], ids=["apart", "together", "three"]
)
def test_the_same_bits_wherever_it_runs(
    options: dict[str, Any], alone: Any, tmp_path: Path
) -> None:
    wanted = alone
    if "actors" in options:
        wanted = trained(tmp_path / "serial", on="serial", **options)
    found = trained(tmp_path / "run", on="process", **options)
    assert found["params_sha256"] == wanted["params_sha256"]


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [["source.lora=2"], ["algorithm.refills=2"]])
def test_adapters_and_refills_have_the_same_bits(settings: list[str], tmp_path: Path) -> None:
    found = {
        on: trained(tmp_path / on, [*BY_RATE, *settings], on=on)["params_sha256"]
        for on in ("serial", "process")
    }
    assert found["serial"] == found["process"]
    assert shown(tmp_path / "serial", "curriculum/settled") > 0


@pytest.mark.thorough
@pytest.mark.parametrize("learners", [1, 2])
def test_a_run_that_goes_on_ends_in_the_same_bits(learners: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"learners": learners, "actors": 2}
    whole = trained(tmp_path / "whole", on="process", **options)
    settings = [*BY_RATE, f"schedule.schedule_steps={STEPS}"]
    trained(tmp_path / "run", settings, on="serial", **options | {"steps": STEPS // 2})
    again = finished(api.start(resume=tmp_path / "run", on="process", steps=STEPS))
    assert again["params_sha256"] == whole["params_sha256"]


@pytest.mark.thorough
def test_a_run_goes_on_with_another_number_of_learners(tmp_path: Path) -> None:
    trained(tmp_path / "run", on="serial", steps=STEPS // 2, learners=2, actors=2, max_lag=2)
    finished(api.start(resume=tmp_path / "run", on="serial", steps=STEPS, learners=1))
    assert 0.05 < shown(tmp_path / "run", "curriculum/settled") < 0.6


@pytest.mark.thorough
@pytest.mark.parametrize("who", ["generator 1", "learner 1"])
def test_a_worker_that_is_killed_changes_no_bit(who: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"actors": 2, "learners": 2, "steps": 4 * STEPS}
    whole = trained(tmp_path / "whole", on="serial", **options)
    run, killed = started(tmp_path / "run", on="process", **options), list[int]()
    with run:
        for report in run:
            found = pids(who)
            if not killed and found and report.env_steps >= STEPS:
                os.kill(found[0], signal.SIGKILL)
                killed += found
    assert run.summary is not None and killed and run.summary["status"] == "completed"
    assert run.summary["params_sha256"] == whole["params_sha256"]
    rows = run.summary["rows"]
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]


@pytest.mark.thorough
def test_prompts_are_issued_to_other_machines(tmp_path: Path) -> None:
    found = list[Any]()
    for where, start in (
        ("there", lambda one: on_machines(one, AWAY)),
        ("alone", ONE_MACHINE["process"]),
        ("plain", ONE_MACHINE["serial"]),
    ):
        settings = [*RATE, *(BY_RATE if where != "plain" else ())]
        given = TEXT | {"steps": 64 * 30, "settings": settings, "model": MIXED["model"]}
        made = blue_of(tmp_path / where, "tests.runtime.mixed:rows", "grpo", **given)
        params, stats = finish(start(made))
        assert stats.rows["inserted"] == stats.rows["sampled"] + stats.rows["held"]
        found.append(params)
    assert found[0] == found[1] != found[2]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": "sft"}, r"source\.curriculum: must be none with SFT, which learns from given"),
    (
        {"settings": ["source.curriculum_floor=0.001"]},
        r"curriculum_floor: expected 0\.01 to 1, got",
    ),
    ({"settings": ["source.curriculum_floor=1.5"]}, r"floor: expected 0\.01 to 1, got"),
    ({"settings": ["source.curriculum_decay=1"]}, r"curriculum_decay: expected .*0 to 0\.999"),
    ({"settings": ["source.curriculum=hard"]}, r"source\.curriculum: expected .*pass_rate"),
    ({"settings": ["source.pass_reward=0"]}, r"pass_reward: expected 1e-09 to 1e\+09, got"),
    ({"settings": ["source.pass_reward=inf"]}, r"pass_reward: expected 1e-09 to 1e\+09, got"),
    ({"settings": ["source.curriculum=none", "source.curriculum_floor=0.5"]}, "curriculum_floor"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_what_cannot_work_is_one_sentence(
    given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"algorithm": "grpo", "evaluate_episodes": 0, "batch": 64} | given
    options["settings"] = [*BY_RATE, *given.get("settings", ())]
    with pytest.raises(ValueError, match=words) as caught:
        api.start("sort", out=tmp_path / "run", **options)
    assert "\n" not in str(caught.value)
