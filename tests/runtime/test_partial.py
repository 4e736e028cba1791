"""Runs with partial streams: rows prove themselves, and a slow stream holds nobody up."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.api import training
from equipoise.envs.toys import ruler
from equipoise.errors import WorkerFailed
from equipoise.learners import worker
from equipoise.plans.beginning import Fresh
from equipoise.programs.refusals import check
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from equipoise.types import ReplaySettings
from tests.conftest import descendants
from tests.runtime import ruling
from tests.runtime.ruling import Remembering, Ruling, program

pytestmark = pytest.mark.few(2)  # all cases: make test-all

SLOW: dict[str, Any] = {
    "actors": 1,
    "envs": 8,
    "stragglers": [3],
    "sleep_s": 0.02,
    "partial_streams": 4,
}
UNBOUNDED = 1 << 30


def run(made: Any, on: Any, path: Path) -> dict[str, Any]:
    ruling.LEDGER.at.clear()
    with Run(made, Fresh(out=path), Services(on=on)) as going:
        for _ in going:
            pass
    assert going.summary is not None
    return going.summary


def ruled(max_lag: int | None, **given: Any) -> Any:
    algorithm = Ruling(
        partial=UNBOUNDED if max_lag is None else max_lag, **given.pop("algorithm", {})
    )
    return program(algorithm=algorithm, max_lag=max_lag, **SLOW | {"steps": 2000} | given)


@pytest.mark.parametrize("max_lag", [1, None, 4])
@pytest.mark.parametrize("on", ["serial", "process"])
def test_rows_prove_themselves_and_the_lag_is_bounded(
    on: str, max_lag: int | None, tmp_path: Path
) -> None:
    summary = run(ruled(max_lag), on, tmp_path / "run")
    assert summary["env_steps"] == 2000
    assert max_lag is None or summary["lag"]["max"] <= max_lag


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [1, None])
def test_the_others_go_on_while_a_stream_is_in_its_step(
    max_lag: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of the slow stream ends only after 35 steps of the others."""
    step, stepped, steps, alone = ruler.Ruler.step, threading.Condition(), [0], [0]

    def waits(env: ruler.Ruler, action: int) -> Any:
        with stepped:
            if env.stream != 3:
                steps[0] += 1
                stepped.notify_all()
            else:
                end = steps[0] + 35
                alone[0] += not stepped.wait_for(lambda: steps[0] >= end, timeout=3.0)
                assert alone[0] <= 2, "nobody went on"  # at the start and at the end
        return step(env, action)

    monkeypatch.setattr(ruler.Ruler, "step", waits)
    summary = run(ruled(max_lag, sleep_s=0.0), "serial", tmp_path / "run")
    assert summary["env_steps"] == 2000


@pytest.mark.thorough
@pytest.mark.parametrize(("actors", "batch"), [(2, 16), (2, 8), (1, 24)])
def test_batches_of_some_actors_or_of_several_unrolls(
    actors: int, batch: int, tmp_path: Path
) -> None:
    summary = run(
        ruled(2, actors=actors, batch=batch, steps=6000, algorithm={}), "process", tmp_path / "run"
    )
    assert summary["lag"]["max"] <= 2


@pytest.mark.thorough
def test_rows_around_aborted_episodes_prove_themselves(tmp_path: Path) -> None:
    made = ruled(
        None,
        target="tests.envs.faulty:FaultyRuler",
        algorithm={"faulty": True},
        stragglers=[],
        sleep_s=0.0,
    )
    assert (
        sum(one["aborted"] for one in run(made, "serial", tmp_path / "run")["failures"].values())
        > 20
    )


@pytest.mark.parametrize("fault", ["state", "version", "reward", "mask", "obs", "action", "first"])
def test_a_planted_off_by_one_is_caught(fault: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="do not prove themselves"):
        run(ruled(None, algorithm={"fault": fault}), "serial", tmp_path / "run")


def test_a_row_that_is_too_old_would_be_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "mask_stale", lambda data, version, max_lag: data.version[0])
    with pytest.raises(AssertionError, match="do not prove themselves.*mask"):
        run(ruled(1), "serial", tmp_path / "run")


@pytest.mark.few(1)
@pytest.mark.parametrize(("rows", "on"), [(3, "serial"), (1, "process")])
def test_windows_of_a_replay_prove_themselves(rows: int, on: str, tmp_path: Path) -> None:
    made = program(
        algorithm=Remembering(rows=rows, partial=0),
        max_lag=1,
        batch=32,
        steps=2000,
        replay=ReplaySettings(capacity=1000, starts_at=300, updates=3),
        **SLOW,
    )
    assert run(made, on, tmp_path / "run")["env_steps"] == 2000


def test_a_resume_goes_on_with_every_stream(tmp_path: Path) -> None:
    """In this process the ledger follows each stream across the resume, and the actions that were
    under way then.
    """
    run(ruled(4, steps=1000), "serial", tmp_path / "run")
    told = list[str]()
    asked: Any = {"steps": 2000, "on": "serial", "trust": ["tests"]}
    with training.resumed(tmp_path / "run", asked, tell=told.append) as going:
        for _ in going:
            pass
    assert going.summary is not None and going.summary["env_steps"] == 2000
    assert min(start for start, _, _ in ruling.LEDGER.at.values()) == 2000 // 8


def test_an_evaluation_waits_for_all_of_its_streams(tmp_path: Path) -> None:
    made = api.program(
        "CartPole-v1",
        "impala",
        envs_per_actor=4,
        unroll=8,
        partial_streams=2,
        max_lag=1,
        steps=500,
        recipe=False,
        evaluate_episodes=4,
    )
    assert run(made, "serial", tmp_path / "run")["evaluation"]["episodes"] == 4


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "CartPole-v1",
        "impala",
        {"partial_streams": 8},
        "partial_streams: expected 0 to 7, fewer than envs_per_actor, got 8",
    ),
    (
        "CartPole-v1",
        "impala",
        {"partial_streams": 4, "max_lag": 0},
        "partial_streams: expected 0 in lockstep",
    ),
    (
        "CartPole-v1",
        "impala",
        {"partial_streams": 4, "inference": "central"},
        "expected 0 with inference=central",
    ),
    (
        "device:cartpole",
        "impala",
        {"partial_streams": 4},
        "expected 0 with device:cartpole, whose streams are stepped together",
    ),
    (
        "CartPole-v1",
        "impala",
        {"partial_streams": 4, "settings": ["placement.compile=true"]},
        "expected 0 with compile",
    ),
    (
        "envpool:CartPole-v1",
        "impala",
        {"partial_streams": 3},
        r"expected a divisor of the 8 envs .*\(1, 2, 4\), got 3",
    ),
]


@pytest.mark.few(5)
@pytest.mark.parametrize(("env", "algorithm", "given", "said"), REFUSED)
def test_what_does_not_go_with_it(
    env: str, algorithm: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        check(api.program(env, algorithm, envs_per_actor=8, recipe=False, **{"max_lag": 1} | given))


def test_a_core_that_learns_from_several_unrolls_at_once_is_refused(tmp_path: Path) -> None:
    made = api.program(
        "CartPole-v1",
        "r2d2",
        envs_per_actor=8,
        recipe=False,
        max_lag=1,
        partial_streams=4,
        steps=20_000,
    )
    with pytest.raises(
        ValueError,
        match="partial_streams: expected 0 with a recurrent network that learns from windows of",
    ):
        Run(made, Fresh(out=tmp_path / "run"), Services(on="serial"))


@pytest.mark.thorough
def test_a_killed_actor_is_replaced(tmp_path: Path) -> None:
    made, killed = (
        ruled(4, steps=40_000, actors=2, algorithm={"gaps": True}, sleep_s=0.01),
        list[int](),
    )
    with Run(made, Fresh(out=tmp_path / "run"), Services(on="process")) as going:
        for _ in going:
            if len(killed) < 2:
                (pid,) = [
                    int(one.split()[0])
                    for one in descendants()
                    if one.endswith("equipoise actor 0")
                ] or [0]
                if pid and pid not in killed:
                    killed.append(pid)
                    os.kill(pid, signal.SIGKILL)
    assert len(killed) == 2 and going.summary is not None and going.summary["env_steps"] == 40_000
    assert going.summary["lag"]["max"] <= 4


@pytest.mark.thorough
def test_envpool_in_a_run(tmp_path: Path) -> None:
    pytest.importorskip("envpool", reason="EnvPool is not installed (extra envpool)")
    made = api.program(
        "envpool:CartPole-v1",
        "impala",
        actors=2,
        envs_per_actor=16,
        partial_streams=4,
        max_lag=2,
        steps=30_000,
        recipe=False,
        evaluate_episodes=0,
    )
    summary = run(made, "process", tmp_path / "run")
    assert summary["env_steps"] >= 30_000 and summary["lag"]["max"] <= 2


@pytest.mark.thorough
def test_a_failing_proof_in_a_process_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="do not prove themselves"):
        run(ruled(None, algorithm={"fault": "reward"}), "process", tmp_path / "run")
