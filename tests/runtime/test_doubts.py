"""What a run says at its start of what it does not quite do as it was told."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise import api
from equipoise.plans.plan import plan_run
from equipoise.run.saving import doubts


@pytest.mark.parametrize(
    ("steps", "done"), [(512, 512), (513, 1024), (1, 512), (1024, 1024), (3000, 3072)]
)
def test_steps_that_are_no_whole_batches_are_said(steps: int, done: int, tmp_path: Path) -> None:
    made = api.program(
        "CartPole-v1",
        "ppo",
        actors=1,
        envs_per_actor=8,
        batch=8,
        unroll=64,
        steps=steps,
        evaluate_episodes=0,
    )
    said = doubts(plan_run(made), -1)
    assert said == (
        []
        if done == steps
        else [f"{done:,} steps are done in place of {steps:,}: whole batches of 512"]
    )
    if steps == 513:
        run = api.start(made, on="serial", out=tmp_path / "run")
        for _ in run:
            pass
        assert (
            run.summary is not None
            and run.summary["env_steps"] == done
            and said[0] in run.summary["notes"]
        )
