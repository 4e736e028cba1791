"""Replays in shards, in runs: the same everywhere, gone on from, and one that is killed costs its
rows.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise import api
from equipoise.errors import WorkerFailed
from equipoise.programs.fields import alter
from equipoise.record import checkpoint
from equipoise.types import Batch, LossOutput, Program, ReplaySettings
from tests.conftest import descendants
from tests.runtime.ruling import Remembering
from tests.runtime.ruling import program as ruled
from tests.runtime.test_resume import go_on, train

SIZES = {
    "dqn": ["algorithm.hidden=[16]", "algorithm.n_step=2"],
    "apex_dqn": ["algorithm.hidden=[16]", "algorithm.n_step=2", "replay.updates=2"],
    "r2d2": [
        "algorithm.hidden=[8]",
        "algorithm.core_size=8",
        "algorithm.burn_in=4",
        "algorithm.length=8",
        "algorithm.n_step=2",
    ],
}


def program(algorithm: str, **options: Any) -> Program:
    """Three actors and two shards, whose rings have come round after 300 rows."""
    settings = [
        "replay.selector=prioritized",
        "replay.capacity=300",
        "replay.starts_at=100",
        "replay.shards=2",
    ]
    given: dict[str, Any] = {
        "actors": 3,
        "envs_per_actor": 2,
        "unroll": 4,
        "batch": 16,
        "max_lag": 0,
        "steps": 960,
        "evaluate_episodes": 0,
    }
    return api.program(
        "CartPole-v1",
        algorithm,
        recipe=False,
        settings=[*settings, *SIZES[algorithm]],
        **given | options,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["dqn", "apex_dqn", "r2d2"])
def test_a_run_is_the_same_everywhere_and_goes_on_to_the_same_bits(
    algorithm: str, tmp_path: Path
) -> None:
    whole = train(program(algorithm, checkpoint_every=0), tmp_path / "whole", "serial")
    assert whole["rows"]["overwritten"] > 0 and whole["balance"].keys() >= {"shard 0", "shard 1"}
    for on in ("process", "serial") if algorithm != "dqn" else ("process",):
        train(
            program(algorithm, steps=480, schedule_steps=960, checkpoint_every=96),
            tmp_path / on,
            on,
        )
        checkpoints = tmp_path / on / "checkpoints"
        named = {name for path in checkpoints.glob("step_*") for name in checkpoint.segments(path)}
        there = {
            path.relative_to(checkpoints / "replay").as_posix()
            for path in (checkpoints / "replay").rglob("*.rows")
        }
        assert there == named and {name.split("/")[0] for name in named} == {"shard_0", "shard_1"}
        gone_on = go_on(tmp_path / on, steps=960)
        assert gone_on["params_sha256"] == whole["params_sha256"], on
        assert gone_on["rows"] | {"held": 0, "inserted": 0} == whole["rows"] | {
            "held": 0,
            "inserted": 0,
        }


@dataclass(frozen=True, kw_only=True)
class Weighing(Remembering):
    """It also looks at the weights, and fails where an item enters, if it is asked to."""

    raises: bool = False

    def priority(self, data: Any) -> Any:
        if self.raises:
            raise ArithmeticError("no priority, ever")

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput:
        assert float(batch.weight.max()) == 1.0 and float(batch.weight.min()) > 0, (
            "they are normalised over all shards"
        )
        assert torch.isfinite(batch.weight).all()
        return super().loss(net, target_net, batch, group=group, step=step, rng=rng)


def weighing(steps: int, **options: Any) -> Program:
    replay = ReplaySettings(
        capacity=2000, starts_at=300, updates=3, selector="prioritized", shards=2
    )
    return ruled(
        algorithm=Weighing(rows=3, **options), replay=replay, steps=steps, batch=32, max_lag=1
    )


@pytest.mark.thorough
def test_a_killed_shard_costs_its_rows_and_the_run_goes_on(tmp_path: Path) -> None:
    """The batches prove themselves all the while; every row is accounted for."""
    run, killed = api.start(alter(weighing(30_000), checkpoint_every=4000), out=tmp_path / "run"), 0
    for report in run:
        if killed < 2 and report.env_steps > 2000 * (1 + 4 * killed):
            shard = next((d for d in descendants() if f"equipoise shard {killed}" in d), None)
            if shard is not None:
                os.kill(int(shard.split()[0]), signal.SIGKILL)
                killed += 1
    assert run.summary is not None and killed == 2
    rows, notes = run.summary["rows"], run.summary["notes"]
    assert (run.summary["status"], run.summary["env_steps"]) == ("completed", 30_000)
    for number in range(2):
        said = (
            f"shard {number} was killed by SIGKILL; its rows are lost; replaced, for the 1st time"
        )
        assert [note for note in notes if said in note], notes
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    assert rows["sampled"] == rows["kept"] + rows["overwritten"] + rows["lost"] and rows["lost"] > 0
    assert run.summary["updates"] == 3 * (30_000 - 240) // 80


@pytest.mark.thorough
def test_a_shard_that_fails_again_and_again_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        WorkerFailed,
        match=r"(?s)shard \d raised an exception, 3 times in a row.*no priority, "
        r"ever",
    ) as caught:
        for _ in api.start(weighing(4000, raises=True), out=tmp_path / "run"):
            pass
    assert caught.value.worker.startswith("shard")


@pytest.mark.thorough
def test_a_learner_that_is_killed_goes_on_with_the_rows_of_the_newest_checkpoint(
    tmp_path: Path,
) -> None:
    """In lockstep, to the bit."""
    whole = train(program("dqn", steps=4800, checkpoint_every=0), tmp_path / "whole", "serial")
    run, killed = (
        api.start(program("dqn", steps=4800, checkpoint_every=96), out=tmp_path / "run"),
        False,
    )
    for report in run:
        if not killed and report.env_steps > 1000:
            learner = next(d for d in descendants() if "equipoise learner" in d)
            os.kill(int(learner.split()[0]), signal.SIGKILL)
            killed = True
    assert run.summary is not None and killed
    assert [
        note
        for note in run.summary["notes"]
        if "learner was killed by SIGKILL; the run goes on from step" in note
    ]
    assert run.summary["params_sha256"] == whole["params_sha256"]


def test_hindsight_in_shards(tmp_path: Path) -> None:
    settings = [
        "replay.shards=2",
        "replay.starts_at=100",
        "replay.relabel=0.8",
        "algorithm.hidden=[16]",
    ]
    made = api.program(
        "equipoise/BitFlip-v0",
        "dqn",
        recipe=False,
        actors=2,
        envs_per_actor=2,
        unroll=8,
        batch=16,
        steps=1000,
        evaluate_episodes=0,
        env_kwargs={"bits": 3},
        settings=settings,
    )
    assert train(made, tmp_path / "run")["status"] == "completed"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["replay.shards=4"], "replay.shards: expected at most 3, as many as actors"),
        (
            ["replay.shards=2", "replay.selector=fifo"],
            "replay.selector: expected uniform or prioritized with shards",
        ),
        (["replay.shards=2", "replay.dataset=d-v0"], "replay.shards: expected 1 with a data set"),
        (["replay.shards=0"], "replay.shards: expected at least 1, got 0"),
    ],
)
def test_what_cannot_work_is_refused(settings: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        api.program("CartPole-v1", "dqn", recipe=False, actors=3, settings=settings)


def test_a_resume_with_another_number_of_shards_is_refused_by_name(tmp_path: Path) -> None:
    train(program("dqn", steps=240), tmp_path / "run")
    with pytest.raises(ValueError, match=r"cannot change replay\.shards \(2 -> 3\)"):
        go_on(tmp_path / "run", steps=480, settings=["replay.shards=3"])
    assert go_on(tmp_path / "run", steps=480)["status"] == "completed"
