"""Every row that reaches the learner proves itself, whatever the runtime, the lag and the
vectorisation.
"""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.errors import WorkerFailed
from equipoise.plans.beginning import Fresh
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from tests.runtime import ruling
from tests.runtime.ruling import Ruling, program

pytestmark = pytest.mark.few(2)  # all cases: make test-all

VECTORISATIONS = [
    "equipoise/Ruler-v0",
    "python:equipoise/Ruler-v0",
    "tests.runtime.vectors:sync_ruler",
]


def run(made: Any, on: Any, path: Any) -> dict[str, Any]:
    ruling.LEDGER.at.clear()  # the serial learner is this process
    with Run(made, Fresh(out=path / "run"), Services(on=on)) as going:
        for _ in going:
            pass
    assert going.summary is not None
    return going.summary


@pytest.mark.parametrize("target", VECTORISATIONS)
@pytest.mark.parametrize("max_lag", [0, 1, 4, None])
def test_rows_prove_themselves_in_serial(target: str, max_lag: int | None, tmp_path: Any) -> None:
    summary = run(program(target=target, max_lag=max_lag), "serial", tmp_path)
    assert summary["env_steps"] == 4000
    assert max_lag is None or summary["lag"]["max"] <= max_lag


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "max_lag"),
    [(VECTORISATIONS[0], 0), (VECTORISATIONS[1], 4), (VECTORISATIONS[2], None)],
)
def test_rows_prove_themselves_in_processes(
    target: str, max_lag: int | None, tmp_path: Any
) -> None:
    summary = run(program(target=target, max_lag=max_lag, steps=20_000), "process", tmp_path)
    assert summary["env_steps"] == 20_000


@pytest.mark.parametrize(
    ("on", "max_lag"),
    [("serial", 0), ("serial", 1), ("serial", None), ("process", 0), ("process", 4)],
)
@pytest.mark.parametrize(
    "target", ["tests.runtime.vectors:same_step_ruler", "tests.envs.same:SameRuler"]
)
def test_rows_of_same_step_prove_themselves(
    target: str, on: Any, max_lag: int | None, tmp_path: Any
) -> None:
    steps = 4000 if on == "serial" else 20_000
    made = program(target=target, max_lag=max_lag, steps=steps, algorithm=Ruling(same_step=8))
    assert run(made, on, tmp_path)["env_steps"] == steps


@pytest.mark.parametrize("fault", ["state", "version", "reward", "mask", "obs", "action", "first"])
def test_a_planted_off_by_one_in_same_step_is_caught(fault: Any, tmp_path: Any) -> None:
    target = "tests.envs.same:SameRuler"
    with pytest.raises(AssertionError, match="do not prove themselves"):
        run(program(target=target, algorithm=Ruling(fault=fault, same_step=8)), "serial", tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_batch_of_part_of_the_actors(on: str, tmp_path: Any) -> None:
    """More actors than blocks of a batch, and a batch of more blocks than actors."""
    run(program(actors=4, batch=16, max_lag=1, algorithm=Ruling()), on, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(("on", "max_lag"), [("serial", None), ("process", 1)])
def test_rows_around_aborted_episodes_prove_themselves(
    on: Any, max_lag: int | None, tmp_path: Any
) -> None:
    made = program(
        target="tests.envs.faulty:FaultyRuler",
        max_lag=max_lag,
        steps=4000,
        algorithm=Ruling(faulty=True),
    )
    summary = run(made, on, tmp_path)
    assert (
        summary["env_steps"] == 4000
        and sum(one["aborted"] for one in summary["failures"].values()) > 50
    )


def test_a_planted_fault_around_aborted_episodes_is_caught(tmp_path: Any) -> None:
    with pytest.raises(AssertionError, match="do not prove themselves"):
        # which are no faults by the plain law
        run(program(target="tests.envs.faulty:FaultyRuler"), "serial", tmp_path)


def test_a_batch_of_several_unrolls_of_an_actor(tmp_path: Any) -> None:
    run(program(actors=2, batch=64, max_lag=0), "serial", tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_the_lag_is_bounded_with_a_straggler(max_lag: int, tmp_path: Any) -> None:
    """One of three actors is about 20 times slower than the others."""
    made = program(actors=3, envs=4, max_lag=max_lag, steps=6000, stragglers=[0], sleep_s=0.004)
    summary = run(made, "process", tmp_path)
    assert summary["lag"]["max"] <= max_lag
    assert max_lag == 0 or summary["lag"]["max"] > 0


@pytest.mark.thorough
def test_without_a_bound_a_straggler_lags(tmp_path: Any) -> None:
    made = program(
        actors=3, envs=4, batch=4, max_lag=None, steps=6000, stragglers=[0], sleep_s=0.004
    )
    assert run(made, "process", tmp_path)["lag"]["max"] > 4


@pytest.mark.parametrize("fault", ["state", "version", "reward", "mask", "obs", "action", "first"])
def test_a_planted_off_by_one_is_caught(fault: Any, tmp_path: Any) -> None:
    with pytest.raises(AssertionError, match="do not prove themselves"):
        run(program(algorithm=Ruling(fault=fault)), "serial", tmp_path)


def test_a_planted_off_by_one_is_caught_in_processes(tmp_path: Any) -> None:
    with pytest.raises(WorkerFailed, match="do not prove themselves"):
        run(program(algorithm=Ruling(fault="reward")), "process", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("max_lag", [0, 1, None])
@pytest.mark.parametrize("target", VECTORISATIONS[:2])
def test_a_million_rows(target: str, max_lag: int | None, tmp_path: Any) -> None:
    summary = run(
        program(target=target, envs=64, unroll=20, max_lag=max_lag, steps=1_000_000),
        "process",
        tmp_path,
    )
    assert summary["env_steps"] >= 1_000_000
