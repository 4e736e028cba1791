"""Several policies with a replay each: every row that is drawn proves itself, and all of them learn
from the same rounds.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.plans.beginning import Fresh
from equipoise.record.directory import RunDirectory
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from tests.runtime.herding import replaying
from tests.runtime.test_central import central, pid_of
from tests.runtime.test_policies import run

SHARDED = {"shards": 2, "selector": "prioritized"}


@pytest.mark.parametrize("max_lag", [0, 1, None])
@pytest.mark.parametrize("dog", [{}, {"selector": "prioritized"}, SHARDED])
def test_rows_prove_themselves_in_serial(max_lag: int | None, dog: Any, tmp_path: Path) -> None:
    """Windows of one row and of three, batches of two sizes; the goats' replay is the learner's,
    the dog's may have shards.
    """
    summary = run(replaying(max_lag=max_lag, dog=dog), "serial", tmp_path / "run")
    assert summary["env_steps"] == 900 and summary["rows"]["sampled"] == 3 * 900
    # A round is 5 rows of 6 envs, of which the dog has one agent: 60 rows are there after the
    # second round.
    assert summary["updates"] == 2 * (900 // 30 - 1)


@pytest.mark.thorough
@pytest.mark.parametrize("dog", [{}, SHARDED])
def test_rows_prove_themselves_in_processes(dog: Any, tmp_path: Path) -> None:
    summary = run(replaying(max_lag=1, dog=dog, steps=1500), "process", tmp_path / "run")
    assert summary["env_steps"] == 1500


def test_rows_prove_themselves_under_central_inference(tmp_path: Path) -> None:
    assert run(central(replaying(envs=4)), "serial", tmp_path / "run")["env_steps"] >= 900


@pytest.mark.parametrize("fault", ["version", "reward", "obs", "action", "first"])
def test_a_planted_off_by_one_is_caught(fault: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="do not prove themselves"):
        run(replaying(rows=(3, 1), fault=fault), "serial", tmp_path / "run")


@pytest.mark.parametrize("starts_at", [(0, 300), (300, 0)])
def test_the_first_updates_wait_for_the_rows_of_each_policy(
    starts_at: tuple[int, int], tmp_path: Path
) -> None:
    goats, dog = ({"starts_at": rows} for rows in starts_at)
    summary = run(replaying(goats=goats, dog=dog), "serial", tmp_path / "run")
    rounds = -(-300 // (60 if starts_at[0] else 30))
    assert summary["updates"] == 2 * (30 - rounds + 1)


# -------------------------------------------------------------------------------- resumes and kills


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("on", "goats", "dog"),
    [("serial", {}, {}), ("process", {}, SHARDED), ("process", {"selector": "prioritized"}, {})],
)
def test_a_resumed_run_goes_on_with_the_rows_of_each_policy(
    on: Any, goats: Any, dog: Any, tmp_path: Path
) -> None:
    run(replaying(goats=goats, dog=dog, steps=600), on, tmp_path / "run")
    newest = RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True)
    assert newest is not None
    files = {file.name for file in newest.iterdir()}
    assert {"replay_goats.safetensors", "replay_dog.safetensors"} <= files
    assert ({"shard_0.safetensors", "shard_1.safetensors"} <= files) == bool(dog)
    with api.start(resume=tmp_path / "run", steps=1200, on="serial") as going:
        list(going)
    assert going.summary is not None and going.summary["env_steps"] == 1200


def dqns(
    *, on: Any, out: Path, steps: int = 512, settings: tuple[str, ...] = (), **options: Any
) -> str:
    made = api.program(
        "tests.envs.games:Signal",
        policies={"speaker": "dqn", "listener": "dqn"},
        actors=2,
        envs_per_actor=2,
        steps=steps,
        route={"speaker": "speaker", "listener": "listener"},
        unroll=4,
        seed=1,
        max_lag=0,
        evaluate_episodes=0,
        schedule_steps=512,
        settings=[
            "replay.starts_at=100",
            "replay.capacity=300",
            "algorithm.hidden=16",
            "batch=16",
            *settings,
        ],
        **options,
    )
    with Run(made, Fresh(out=out), Services(on=on)) as going:
        list(going)
    assert going.summary is not None
    return str(going.summary["params_sha256"])


MIXED = ("policies.listener.replay.selector=prioritized", "policies.listener.replay.shards=2")


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [(), MIXED])
def test_a_run_in_two_parts_equals_the_whole(settings: tuple[str, ...], tmp_path: Path) -> None:
    """The replays' rows, their priorities and what is drawn next go on, of each policy; serial and
    processes agree.
    """
    whole = dqns(on="serial", out=tmp_path / "whole", settings=settings)
    dqns(on="process", out=tmp_path / "parts", steps=256, settings=settings)
    with api.start(resume=tmp_path / "parts", steps=512) as going:
        list(going)
    assert going.summary is not None and going.summary["params_sha256"] == whole


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["actor 0", "shard 1"])
def test_a_killed_worker_is_replaced(name: str, tmp_path: Path) -> None:
    """The rows of an actor are lost of both policies or of none; those of a shard are of one
    policy, and the run goes on.
    """
    killed, until = False, 600
    made = replaying(
        target="tests.envs.herd:ExactHerd", dog=SHARDED, max_lag=None, steps=10_000_000
    )
    if name.startswith("actor"):  # the herd would begin anew, and its law does not know that
        settings = [*MIXED, "replay.starts_at=100", "replay.capacity=300", "batch=16"]
        made = api.program(
            "tests.envs.games:Signal",
            policies={"speaker": "dqn", "listener": "dqn"},
            max_lag=None,
            unroll=4,
            actors=2,
            route={"speaker": "speaker", "listener": "listener"},
            envs_per_actor=2,
            evaluate_episodes=0,
            steps=10_000_000,
            settings=settings,
        )
    with Run(made, Fresh(out=tmp_path / "run"), Services(on="process")) as going:
        for report in going:
            if report.env_steps <= until:
                continue
            if killed:
                break
            if (pid := pid_of(name)) is not None:
                os.kill(pid, signal.SIGKILL)
                killed, until = True, report.env_steps + 1500
    assert going.summary is not None and going.summary["status"] == "interrupted"
    assert any(
        f"{name} was killed by SIGKILL" in note and "replaced, for the 1st time" in note
        for note in going.summary["notes"]
    )


# ----------------------------------------------------------------------------------------- refusals


def test_policies_whose_rounds_differ_are_refused() -> None:
    made: Any = replaying()
    said = (
        r"policies.dog.replay.updates: expected 2, that of 'goats'.*got 3; batch=16 learns from "
        r"as many items a round"
    )
    with pytest.raises(ValueError, match=said):
        api.start(replaying(dog={"updates": 3}))
    with pytest.raises(
        ValueError, match=r"policies.dog.replay: expected one, as 'goats' has, .*, got none"
    ):
        api.start(
            replace(
                made, policies={**made.policies, "dog": replace(made.policies["dog"], replay=None)}
            )
        )
    with pytest.raises(
        ValueError, match=r"policies.dog.replay.capacity: expected at least .* rows"
    ):
        api.start(replaying(dog={"capacity": 50}), on="serial")
    with pytest.raises(
        ValueError,
        match=r"policies.dog.replay.relabel: expected one policy that learns, since it takes an "
        r"env",
    ):
        api.start(replaying(dog={"relabel": 0.5}))


# ----------------------------------------------------------------------------------------- learning


@pytest.mark.slow
def test_two_dqn_policies_learn_to_understand_each_other(tmp_path: Path) -> None:
    """A speaker that sees the goal and a listener that hears it; by chance a third of the last
    seven steps is right.
    """
    made = api.program(
        "tests.envs.games:Signal",
        policies={"speaker": "dqn", "listener": "dqn"},
        actors=1,
        envs_per_actor=8,
        unroll=1,
        route={"speaker": "speaker", "listener": "listener"},
        steps=16_000,
        seed=0,
        settings=[
            "replay.starts_at=1000",
            "replay.capacity=2000",
            "replay.updates=2",
            "batch=64",
            "algorithm.gamma=0.5",
            "algorithm.hidden=64",
            "algorithm.target_every=50",
            "algorithm.epsilon_steps=6000",
            "optimizer.learning_rate=1e-3",
        ],
    )
    with api.start(made, on="process", out=tmp_path / "run") as going:
        list(going)
    assert going.summary is not None
    assert going.summary["evaluation"]["mean"] > 6.5
    assert api.evaluate(tmp_path / "run", episodes=10).mean > 6.5
