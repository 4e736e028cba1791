"""Several policies under central inference: every row proves itself, and the bits are those of
local inference.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.plans.beginning import Fresh
from equipoise.programs.fields import alter
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from equipoise.types import Frozen, Program
from tests.envs import herd
from tests.runtime import herding
from tests.runtime.herding import against_its_past, program
from tests.runtime.test_central import central, pid_of
from tests.runtime.test_policies import run

pytestmark = pytest.mark.few(2)  # all cases: make test-all

ROUTE = {"speaker": "speaker", "listener": "listener"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("max_lag", "workers", "most"), [(0, 1, 0), (1, 2, 0), (4, 2, 4), (None, 1, 0)]
)
def test_rows_prove_themselves_in_serial(
    max_lag: int | None, workers: int, most: int, tmp_path: Path
) -> None:
    """Actors have two groups of two envs; some acts are for one group at a time."""
    made = central(
        program(envs=4, max_lag=max_lag), inference_workers=workers, inference_batch=most
    )
    summary = run(made, "serial", tmp_path / "run")
    assert summary["env_steps"] >= 1500 and (max_lag is None or summary["lag"]["max"] <= max_lag)
    rows = summary["rows"]
    assert (
        rows["sampled"] == 3 * summary["env_steps"]
        and rows["inserted"] == rows["sampled"] + rows["held"]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [0, None])
def test_rows_prove_themselves_in_processes(max_lag: int | None, tmp_path: Path) -> None:
    summary = run(
        central(program(envs=4, max_lag=max_lag, steps=3000), inference_workers=2),
        "process",
        tmp_path / "run",
    )
    assert summary["env_steps"] >= 3000 and summary["rows"]["dropped"] == 0
    assert summary["balance"].keys() == {
        "learner",
        "actor 0",
        "actor 1",
        "inference 0",
        "inference 1",
    }


@pytest.mark.parametrize("fault", ["version", "action", "obs"])
def test_a_planted_off_by_one_is_caught(fault: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="do not prove themselves"):
        run(central(program(envs=4, fault=fault)), "serial", tmp_path / "run")


@pytest.mark.thorough
def test_an_opponent_is_a_past_version(tmp_path: Path) -> None:
    summary = run(central(against_its_past(envs=4, steps=2000)), "serial", tmp_path / "run")
    seen = {r.metrics["old/version"] for r in summary["reports"] if "old/version" in r.metrics}
    assert len(seen) > 2 and all(old % 7 == 0 for old in seen)


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_resumed_run_goes_on_with_every_row(on: Any, tmp_path: Path) -> None:
    run(central(program(envs=4, steps=800)), on, tmp_path / "run")
    herding.AT.update(dict.fromkeys(range(2 * 4 * len(herd.AGENTS)), (100, -1)))
    with api.start(resume=tmp_path / "run", steps=1600, on="serial") as going:
        list(going)
    assert going.summary is not None and going.summary["env_steps"] == 1600


def signalling(*, actors: int = 2, envs: int = 4, frozen: bool = False, **options: Any) -> Program:
    policies: Any = {"speaker": "ppo", "listener": "ppo"}
    env, route = "tests.envs.games:Signal", ROUTE
    if frozen:
        env, policies, route = (
            "tests.envs.games:Duel",
            {"main": "ppo", "old": Frozen(of="main", every=3)},
            {"right": "old"},
        )
    given: dict[str, Any] = {
        "unroll": 8,
        "steps": 1280,
        "seed": 1,
        "evaluate_episodes": 0,
        "max_lag": 0,
    }
    return api.program(
        env,
        policies=policies,
        route=route,
        actors=actors,
        envs_per_actor=envs,
        settings=[
            "algorithm.core=gru",
            "algorithm.epochs=2",
            "algorithm.minibatches=2",
            "algorithm.hidden=16",
        ],
        **given | options,
    )


def bits(made: Program, on: Any, out: Path) -> str:
    with Run(made, Fresh(out=out), Services(on=on)) as going:
        list(going)
    assert going.summary is not None
    return str(going.summary["params_sha256"])


@pytest.mark.thorough
@pytest.mark.parametrize("frozen", [False, True])
def test_in_lockstep_it_is_local_inference_of_half_the_envs_to_the_bit(
    frozen: bool, tmp_path: Path
) -> None:
    made = central(signalling(frozen=frozen))
    found = {bits(signalling(actors=4, envs=2, frozen=frozen), "serial", tmp_path / "local")}
    found |= {bits(made, on, tmp_path / on) for on in ("serial", "process")}
    assert len(found) == 1


@pytest.mark.thorough
def test_a_run_in_two_parts_equals_the_whole(tmp_path: Path) -> None:
    whole = bits(central(signalling(schedule_steps=1280)), "serial", tmp_path / "whole")
    bits(central(signalling(schedule_steps=1280, steps=640)), "process", tmp_path / "parts")
    with api.start(resume=tmp_path / "parts", steps=1280) as going:
        list(going)
    assert going.summary is not None and going.summary["params_sha256"] == whole


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [0, None])
def test_killed_workers_are_replaced_with_all_policies(max_lag: int | None, tmp_path: Path) -> None:
    """A killed env worker, then a killed inference worker: the rows of an unroll are lost of all
    policies, or of none.
    """
    made = central(alter(signalling(), max_lag=max_lag, steps=10_000_000), inference_workers=2)
    names, replaced, until = ("actor 0", "inference 1"), 0, 500
    killed: list[str] = []
    with Run(made, Fresh(out=tmp_path / "run"), Services(on="process")) as going:
        for report in going:
            replaced += sum("replaced" in note for note in report.notes)
            if report.env_steps > until and replaced == len(killed):
                if len(killed) == len(names):
                    break
                if (pid := pid_of(names[len(killed)])) is not None:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(names[len(killed)])
                    until = report.env_steps + 2000
    assert going.summary is not None and going.summary["status"] == "interrupted"
    for name in names:
        assert any(
            f"{name} was killed by SIGKILL; replaced, for the 1st time" in note
            for note in going.summary["notes"]
        )
    rows = going.summary["rows"]
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]


@pytest.mark.slow
def test_two_policies_learn_to_understand_each_other(tmp_path: Path) -> None:
    """As in ``test_policies``, acted for by an inference worker; by chance a third of the last
    seven steps is right.
    """
    made = api.program(
        "tests.envs.games:Signal",
        policies={"speaker": "ppo", "listener": "ppo"},
        route=ROUTE,
        actors=2,
        envs_per_actor=8,
        unroll=32,
        steps=16_000,
        seed=0,
        inference="central",
        settings=["optimizer.learning_rate=3e-3", "algorithm.entropy=0.02"],
    )
    with api.start(made, on="process", out=tmp_path / "run") as going:
        reports = [report for report in going if report.recorded]
    assert going.summary is not None
    assert reports[0].return_mean is not None and reports[0].return_mean < 3.5
    assert going.summary["evaluation"]["mean"] > 6.5
    assert api.evaluate(tmp_path / "run", episodes=10).mean > 6.5
