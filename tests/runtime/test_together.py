"""Learners that generate the samples that they learn from: the bits of workers of their own, and
memory that is given back.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.nets.decoding import Decoding
from tests.runtime.test_cluster import pids
from tests.runtime.test_text import SMALL, STEPS, finished, trained

TINY = SMALL | {"batch": 16, "steps": 64}


def test_generators_together_with_the_learner_make_the_same_bits(tmp_path: Path) -> None:
    found = {
        placement: finished(
            api.start("sort", out=tmp_path / placement, on="serial", placement=placement, **TINY)
        )["params_sha256"]
        for placement in ("apart", "together")
    }
    assert found["apart"] == found["together"]


def test_the_memory_of_keys_and_values_is_given_back_while_the_learner_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise.learners.learner import Learner

    rooms: list[Decoding] = []
    held: list[int] = []
    make, step = Decoding.__init__, Learner.step

    def made(self: Decoding, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        rooms.append(self)

    def stepped(self: Learner, batch: Any) -> Any:
        held.append(sum(one._store.untyped_storage().nbytes() for one in rooms))
        return step(self, batch)

    monkeypatch.setattr(Decoding, "__init__", made)
    monkeypatch.setattr(Learner, "step", stepped)
    finished(api.start("sort", out=tmp_path / "run", on="serial", placement="together", **TINY))
    assert held == [0] * 4 and rooms


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [[], ["source.lora=2"]], ids=["whole", "adapters"])
def test_the_same_bits_in_processes(settings: list[str], tmp_path: Path) -> None:
    given: dict[str, Any] = {"steps": 256, "settings": [*SMALL["settings"], *settings]}
    found = {
        (on, placement): trained(
            tmp_path / f"{on}-{placement}", on=on, placement=placement, **given
        )["params_sha256"]
        for on, placement in (("serial", "apart"), ("serial", "together"), ("process", "together"))
    }
    assert len(set(found.values())) == 1, found


@pytest.mark.thorough
def test_the_same_bits_where_two_learners_generate(tmp_path: Path) -> None:
    apart = trained(tmp_path / "apart", on="serial", learners=2, actors=2)
    together = trained(tmp_path / "together", on="process", learners=2, placement="together")
    assert together["params_sha256"] == apart["params_sha256"]


@pytest.mark.thorough
def test_a_conversation_is_the_same_to_the_bit(tmp_path: Path) -> None:
    small = SMALL | {"batch": 32, "steps": 128}
    found = {
        placement: finished(
            api.start("guess", out=tmp_path / placement, on="serial", placement=placement, **small)
        )["params_sha256"]
        for placement in ("apart", "together")
    }
    assert found["apart"] == found["together"]


@pytest.mark.thorough
def test_a_run_that_goes_on_ends_in_the_same_bits(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", on="serial", placement="together")
    half = [*SMALL["settings"], f"schedule.schedule_steps={STEPS}"]
    trained(tmp_path / "run", on="serial", placement="together", steps=STEPS // 2, settings=half)
    again = finished(api.start(resume=tmp_path / "run", on="process", steps=STEPS))
    assert again["params_sha256"] == whole["params_sha256"]


@pytest.mark.chaos
@pytest.mark.parametrize(("victim", "learners"), [("learner", 1), ("learner 1", 2), ("learner", 2)])
def test_a_learner_that_is_killed_while_it_generates_or_learns_costs_no_bit(
    victim: str, learners: int, tmp_path: Path, seed: int
) -> None:
    given: dict[str, Any] = {"placement": "together", "learners": learners, **SMALL}
    whole = finished(api.start("sort", out=tmp_path / "whole", on="process", **given))
    draw = random.Random(seed)
    for moment in range(3):
        out, at = tmp_path / f"killed {moment}", draw.randrange(64, 900)
        run = api.start("sort", out=out, on="process", checkpoint_every=256, **given)
        killed: list[int] = []
        with run:
            for report in run:
                if report.env_steps >= at and not killed:
                    killed = pids(victim)[:1]
                    os.kill(killed[0], signal.SIGKILL)
        assert run.summary is not None and run.summary["status"] == "completed"
        rows = run.summary["rows"]
        assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
        assert run.summary["params_sha256"] == whole["params_sha256"], f"killed at about {at}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"placement": "together", "max_lag": 1}, "must have max_lag=0, .* got 1; try --max-lag 0"),
        (
            {"placement": "together", "settings": ["source.weights=bf16"]},
            "must have source.weights=fp32, .* got bf16",
        ),
        (
            {"placement": "together", "settings": ["source.engine=sim:waits=false"]},
            "must have source.engine=torch, .* got sim:waits=false",
        ),
        ({"placement": "togther"}, "placement: expected .*'togther'.*did you mean 'together'"),
        (
            {"placement": "together", "actors": 2},
            "actors: must be left out with placement=together, .* got 2",
        ),
        ({"placement": "auto", "actors": 2}, "must be left out with placement=auto, .* got 2"),
        ({"placement": "together", "algorithm": "sft"}, "must be apart with an algorithm that"),
        ({"placement": "together", "on": "ray"}, "on: must be process or serial with placement"),
        ({"settings": ["placement.auto=threads"]}, "expected text alone with a task.*got threads"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_sentence(
    given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said) as error:
        api.start("sort", out=tmp_path / "run", **{**SMALL, **given})
    assert "\n" not in str(error.value)


def test_a_learner_that_generates_has_no_lag_unless_it_is_asked_for() -> None:
    made = api.program("sort", algorithm="grpo", placement="together")
    assert made.placement.max_lag == 0
    assert api.program("sort", algorithm="grpo").placement.max_lag == 1


@pytest.mark.parametrize("plan", ["together", "auto"])
def test_an_env_has_no_generators_to_place(plan: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"placement.*generators of (a task|text)"):
        api.start("CartPole-v1", out=tmp_path / "run", placement=plan)
