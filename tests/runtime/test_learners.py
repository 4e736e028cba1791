"""Several learners: one computation on serial and process, which goes on from a checkpoint, also
with others.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.record.directory import RunDirectory
from tests.runtime.killing import killing_some
from tests.runtime.resuming import finish, kill_after, told

CASES: dict[str, tuple[str, list[str]]] = {
    "ppo": (
        "ppo",
        [
            "algorithm.normalize_obs=true",
            "rewards.normalize=true",
            "algorithm.epochs=2",
            "algorithm.minibatches=2",
        ],
    ),
    "impala": ("impala", ["algorithm.core=lstm", "algorithm.core_size=16"]),
    "dqn": ("dqn", ["replay.starts_at=256", "replay.selector=prioritized"]),
    "shards": ("dqn", ["replay.starts_at=256", "replay.selector=prioritized", "replay.shards=4"]),
}
STEPS = 2048


def program(case: str, learners: int = 2, **options: Any) -> Any:
    algorithm, settings = CASES[case]
    given: dict[str, Any] = {
        "actors": 4,
        "envs_per_actor": 2,
        "unroll": 8,
        "steps": STEPS,
        "evaluate_episodes": 0,
        "max_lag": 0,
        "learners": learners,
    } | ({"batch": 32} if algorithm == "dqn" else {})
    return api.program(
        "CartPole-v1", algorithm, recipe=False, settings=settings, **{**given, **options}
    )


def end(run: Any) -> Any:
    reports = list(run)
    assert run.summary is not None and run.summary["status"] == "completed"
    return run.summary | {"reports": reports}


def train(made: Any, out: Path, on: Any = "serial") -> Any:
    return end(api.start(made, on=on, out=out))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
@pytest.mark.parametrize("case", CASES)
def test_both_runtimes_compute_the_same(case: str, seed: int, tmp_path: Path) -> None:
    made = program(case, seed=seed)
    serial, process = (train(made, tmp_path / on, on) for on in ("serial", "process"))
    assert serial["params_sha256"] == process["params_sha256"]
    assert told(tmp_path / "serial") == told(tmp_path / "process")
    one, two = (
        train(program(case, learners, seed=seed), tmp_path / f"{learners}") for learners in (1, 2)
    )
    assert two["params_sha256"] == serial["params_sha256"] != one["params_sha256"], (
        "the second learner was not there"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_to_the_same_bits(case: str, tmp_path: Path) -> None:
    train(program(case, checkpoint_every=STEPS // 2), tmp_path / "whole")
    train(program(case, steps=STEPS // 2, schedule_steps=STEPS), tmp_path / "half")
    end(api.start(resume=tmp_path / "half", steps=STEPS, on="process"))
    assert told(tmp_path / "half")["params_sha256"] == told(tmp_path / "whole")["params_sha256"]


@pytest.mark.parametrize("case", [pytest.param("ppo", marks=pytest.mark.slow), "shards"])
@pytest.mark.thorough
def test_a_killed_run_goes_on_to_the_same_bits(case: str, tmp_path: Path, deadline: Any) -> None:
    algorithm, settings = CASES[case]
    words = (
        "CartPole-v1 --no-recipe --actors 4 --envs-per-actor 2 --unroll 8 --max-lag 0 "
        "--evaluate-episodes 0 --learners 2"
    )
    sizes = [
        "--steps",
        "8192",
        "--checkpoint-every",
        "4096",
        *(["--batch", "32"] if algorithm == "dqn" else []),
    ]
    command = [
        "train",
        *words.split(),
        *sizes,
        "--algorithm",
        algorithm,
        *(w for s in settings for w in ("--set", s)),
    ]
    finish([*command, "--quiet", "--out", str(tmp_path / "whole")])
    # a replay's first one comes a little after step 4096
    saved = tmp_path / "killed" / "checkpoints"
    kill_after(
        [*command, "--out", str(tmp_path / "killed")],
        lambda: any(saved.glob("step_4*/manifest.json")),
        deadline,
        0.05,
    )
    finish(["resume", str(tmp_path / "killed")])
    assert told(tmp_path / "killed") == told(tmp_path / "whole")


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize("max_lag", [0, 2, None])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 4), (1, 2), (4, 2)])
def test_a_run_goes_on_with_other_learners(
    before: int, after: int, max_lag: int | None, tmp_path: Path
) -> None:
    """Parameters, optimiser and statistics are exact; every row of the queues is accounted for."""
    train(program("ppo", before, max_lag=max_lag, steps=STEPS // 2), tmp_path / "run", "process")
    source = RunDirectory.open(tmp_path / "run").whole_checkpoint()
    run = api.start(resume=tmp_path / "run", steps=STEPS, learners=after)
    going = iter(run)
    first = next(going)
    assert any("dealt to" in note for note in first.notes), first.notes
    summary = end(run)
    assert summary["env_steps"] == STEPS and summary["lag"]["max"] <= (
        STEPS if max_lag is None else max_lag
    )
    rows = summary["rows"]
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"], rows
    assert source.version == STEPS // 2 // 64


@pytest.mark.thorough
def test_shards_are_dealt_anew_whole(tmp_path: Path) -> None:
    train(program("shards", steps=STEPS // 2), tmp_path / "two")
    for learners in (1, 4):
        shutil.copytree(tmp_path / "two", tmp_path / f"{learners}")
        summary = end(api.start(resume=tmp_path / f"{learners}", steps=STEPS, learners=learners))
        kept = summary["rows"]
        assert kept["kept"] == kept["sampled"] == STEPS, kept


@pytest.mark.thorough
def test_a_replay_in_the_learners_own_processes_keeps_its_learners(tmp_path: Path) -> None:
    train(program("dqn", steps=STEPS // 2), tmp_path / "run")
    with pytest.raises(
        ValueError,
        match=r"placement.learners: expected 2 as before, .* got 1; .* more replay.shards",
    ):
        api.start(resume=tmp_path / "run", steps=STEPS, learners=1)


# ----------------------------------------------------------------------------------- a lost learner


def survive(case: str, learners: int, kills: int, path: Path, seed: int) -> None:
    """A run whose learners are killed at random moments, a few seconds long, ends with the bits of
    one that nobody touched.
    """
    made = program(case, learners, steps=20 * STEPS if case == "impala" else 5 * STEPS)
    whole = train(made, path / "whole")
    run = api.start(made, on="process", out=path / "killed")
    killed, notes, names = (
        list[str](),
        list[str](),
        ["learner", *(f"learner {k}" for k in range(1, learners))],
    )
    first = next(iter(run))  # from then on every learner knows a version
    with killing_some(names, killed, times=kills, draw=random.Random(seed), most_s=0.8):
        for report in run:
            notes += report.notes
    assert run.summary is not None and killed, first
    assert run.summary["params_sha256"] == whole["params_sha256"], (killed, notes)
    rows = run.summary["rows"]
    assert rows["sampled"] == made.schedule.steps and not rows["dropped"], rows
    # one that is lost after the end lets actors go on
    assert rows["inserted"] == rows["sampled"] + rows["held"], rows
    assert not any(note.startswith("warning: actor") for note in notes), notes
    assert any("replaced" in note or "the run goes on" in note for note in notes), notes


@pytest.mark.parametrize(
    ("case", "learners"),
    [("impala", 2), ("ppo", 2), pytest.param("impala", 4, marks=pytest.mark.slow)],
)
@pytest.mark.thorough
def test_a_lost_learner_changes_nothing(
    case: str, learners: int, tmp_path: Path, seed: int
) -> None:
    survive(case, learners, 3, tmp_path, seed)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", range(20))
def test_a_learner_that_is_killed_at_a_random_moment(
    moment: int, tmp_path: Path, seed: int
) -> None:
    survive("impala", 2, 1, tmp_path, seed + moment)
