"""Runs that learn from a replay: every window proves itself on every runtime, and in lockstep they
agree to the bit.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from equipoise import api
from equipoise.algorithms.dqn import DQN
from equipoise.errors import WorkerFailed
from equipoise.plans.beginning import Fresh
from equipoise.programs.program import from_json, to_json
from equipoise.programs.refusals import check
from equipoise.programs.settings import apply_settings
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from equipoise.types import (
    EnvFactory,
    EnvSource,
    EvaluationSettings,
    Placement,
    Policy,
    Program,
    ReplaySettings,
    Schedule,
    learning,
)
from tests.runtime.ruling import Remembering, program

pytestmark = pytest.mark.few(2)  # all cases: make test-all


def run(made: Program, on: Any, path: Any) -> dict[str, Any]:
    with Run(made, Fresh(out=path), Services(on=on)) as going:
        for _ in going:
            pass
    assert going.summary is not None
    return going.summary


def remembering(
    *, rows: int = 1, steps: int = 4000, fault: Any = "none", **options: Any
) -> Program:
    given = {"capacity": 1000, "starts_at": 300, "updates": 3} | options.pop("replay", {})
    return program(
        algorithm=Remembering(rows=rows, fault=fault),
        replay=ReplaySettings(**given),
        steps=steps,
        batch=32,
        **options,
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_windows_prove_themselves_in_serial(
    rows: int, selector: str, max_lag: int | None, tmp_path: Any
) -> None:
    summary = run(
        remembering(rows=rows, max_lag=max_lag, replay={"selector": selector}),
        "serial",
        tmp_path / "run",
    )
    assert summary["env_steps"] == 4000 and summary["updates"] == 3 * (4000 - 240) // 80


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rows", "selector", "max_lag"),
    [(1, "prioritized", 0), (3, "uniform", 1), (7, "prioritized", None)],
)
def test_windows_prove_themselves_in_processes(
    rows: int, selector: str, max_lag: int | None, tmp_path: Any
) -> None:
    made = remembering(
        rows=rows,
        max_lag=max_lag,
        steps=20_000,
        replay={"selector": selector, "file": str(tmp_path)},
    )
    summary = run(made, "process", tmp_path / "run")
    assert summary["env_steps"] == 20_000
    assert summary["rows"]["inserted"] == sum(
        summary["rows"][name] for name in ("sampled", "dropped", "held")
    )


@pytest.mark.parametrize("fault", ["version", "reward", "mask", "obs", "action", "first"])
def test_a_planted_off_by_one_is_caught(fault: Any, tmp_path: Any) -> None:
    with pytest.raises((AssertionError, WorkerFailed), match="do not prove themselves"):
        run(remembering(rows=3, fault=fault), "serial", tmp_path / "run")


@pytest.mark.thorough
@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
def test_serial_and_process_agree_to_the_bit(selector: str, tmp_path: Any) -> None:
    found = [
        run(remembering(replay={"selector": selector}, max_lag=0), on, tmp_path / f"{on}{i}")[
            "params_sha256"
        ]
        for on in ("serial", "process")
        for i in range(2)
    ]
    assert len(set(found)) == 1


@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_a_window_that_is_longer_than_many_unrolls_is_waited_for(
    max_lag: int | None, tmp_path: Any
) -> None:
    given = {"starts_at": 0, "updates": 1}
    summary = run(
        remembering(rows=23, max_lag=max_lag, steps=1600, replay=given), "serial", tmp_path / "run"
    )
    assert summary["env_steps"] == 1600 and summary["updates"] == 1600 // 80 - (-(-23 // 5) - 1)


def test_settings_of_a_replay_are_settings_like_others() -> None:
    made = api.program(
        "CartPole-v1", "dqn", settings=["replay.memory=64MiB", "replay.selector=prioritized"]
    )
    policy = made.policies["main"]
    assert isinstance(policy, Policy) and policy.replay is not None
    assert policy.replay.memory == 2**26 and policy.replay.selector == "prioritized"
    assert from_json(to_json(made)) == made
    with pytest.raises(
        ValueError, match=r"unknown setting 'replay.capacty'; did you mean 'replay.capacity'"
    ):
        api.program("CartPole-v1", "dqn", settings=["replay.capacty=5"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["replay.capacity=100"], r"replay\.capacity: expected at least [\d,]+ rows"),
        (["replay.memory=1k"], r"replay\.memory: expected at least [\d,]+ bytes"),
        (["schedule.steps=500"], r"steps: expected at least [\d,]+"),
        (
            ["algorithm.n_step=60k", "replay.capacity=1M"],
            r"steps: expected at least [\d,]+, so that .* and a window's rows",
        ),
        (
            ["algorithm.n_step=200k", "schedule.steps=2M"],
            r"replay\.capacity: expected at least [\d,]+ rows, room for .*, windows of 200000",
        ),
        (
            ["replay.selector=fifo", "replay.updates=500"],
            r"replay\.updates: expected at most \d+ of batch 64",
        ),
        (
            ["replay.memory=900TB"],
            r"replay\.memory: expected .* this machine's memory, .*, got 900,000,000,000,000, "
            r"which takes at least [\d.]+ TiB "
            r"\(replay .*\); the nearest that fits is [\d,]+; or replay\.file=DIR",
        ),
        (["replay.capacity=1e12"], r"replay\.capacity: expected .* memory, .*replay\.file=DIR"),
        (
            ["replay.capacity=1e12", "replay.file=rows"],
            r"replay\.file: expected room for [\d,]+ bytes in rows, got [\d,]+",
        ),
        (
            ["replay.capacity=2048", "batch=5000"],
            r"batch: expected at most 2,\d+ live items, .*capacity=2048, got 5,000",
        ),
        (
            ["replay.memory=100kB", "batch=50k"],
            r"batch: expected at most [\d,]+ live items, .*memory=100000, got 50,000",
        ),
        (
            ["replay.memory=1k", "schedule.steps=500"],
            r"2 settings cannot work:\n  steps: expected .*\n  replay\.memory: expected",
        ),
        (["replay.alpha=2"], r"replay\.alpha: expected 0 to 1, got 2"),
        (["algorithm.epochs=2"], r"algorithm\.epochs"),
    ],
)
def test_a_replay_that_cannot_work_is_refused_before_the_run(
    settings: list[str], said: str, tmp_path: Any
) -> None:
    with pytest.raises(ValueError, match=said):
        api.start(
            api.program("CartPole-v1", "dqn", settings=settings), on="serial", out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "setting", ["replay.memory=2GiB", "replay.dataset=d-v0", "policies.main.replay.updates=2"]
)
def test_a_setting_of_a_replay_names_the_algorithms_that_have_one(setting: str) -> None:
    key = setting.partition("=")[0]
    those = "apex_dqn, bc, crossq, dqn, qr_dqn, r2d2, sac, td3, tqc"
    said = (
        f"{key}: expected an algorithm with a replay ({those}), got ppo, whose rows are learned "
        "from once"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        api.program("CartPole-v1", "ppo", settings=[setting])


def test_a_capacity_takes_the_place_of_a_budget_that_a_program_had() -> None:
    budget = api.program("CartPole-v1", "dqn", settings=["replay.memory=64MiB"])
    replay = learning(apply_settings(budget, ["replay.capacity=50k"]))["main"].replay
    assert replay is not None and (replay.capacity, replay.memory) == (50_000, 0)
    with pytest.raises(
        ValueError, match=r"replay\.capacity, since as many rows are kept as fit \(replay\.memory"
    ):
        api.program("CartPole-v1", "dqn", settings=["replay.capacity=50k", "replay.memory=64MiB"])


def test_an_algorithm_says_that_it_needs_a_replay_or_has_no_use_for_one() -> None:
    def refused(algorithm: str, replay: ReplaySettings | None) -> str:
        made = api.program("CartPole-v1", algorithm)
        policy = made.policies["main"]
        assert isinstance(policy, Policy)
        policy = dataclasses.replace(policy, replay=replay)
        with pytest.raises(ValueError) as error:
            check(dataclasses.replace(made, policies={"main": policy}))
        return str(error.value)

    assert "expected a replay, which DQN learns from, got none" in refused("dqn", None)
    assert "cannot be set, since PPO learns from the newest" in refused("ppo", ReplaySettings())


SEQUENCES = ["algorithm.burn_in=4", "algorithm.length=8", "algorithm.core_size=16"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case", ["dqn", "sac", "td3", "apex_dqn", "r2d2", "qr_dqn", "tqc", "crossq", "sac sde"]
)
def test_lockstep_is_the_same_everywhere(case: str, tmp_path: Any) -> None:
    env, algorithm = (
        "Pendulum-v1" if case in ("td3", "tqc", "crossq", "sac sde") else "CartPole-v1",
        case.partition(" ")[0],
    )
    sizes = {
        "r2d2": ["algorithm.hidden=16", *SEQUENCES],
        "crossq": ["algorithm.hidden=32", "algorithm.critic_hidden=32"],
        "sac sde": ["algorithm.hidden=16,8", "algorithm.sde_every=3", "algorithm.random_steps=50"],
    }
    made = api.program(
        env,
        algorithm,
        recipe=False,
        actors=2,
        envs_per_actor=2,
        unroll=4,
        batch=16,
        max_lag=0,
        steps=800,
        evaluate_episodes=0,
        settings=[
            "replay.selector=prioritized",
            "replay.starts_at=64",
            "algorithm.n_step=2",
            *sizes.get(case, ["algorithm.hidden=32,32"]),
        ],
    )
    found = [
        run(made, on, tmp_path / f"{on}{i}")["params_sha256"]
        for i, on in enumerate(("serial", "process", "process"))
    ]
    assert len(set(found)) == 1


def test_the_agents_of_an_env_take_its_steps_together(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is 4 steps of 2 envs of 2 agents: 8 env steps, 16 rows, of which the seventh makes
    100.
    """
    explored, explore = set[int](), DQN.explore

    def noted(self: DQN, stream: Any, streams: int, step: int) -> Any:
        explored.add(step)
        return explore(self, stream, streams, step)

    monkeypatch.setattr(DQN, "explore", noted)
    replay = ReplaySettings(capacity=10_000, starts_at=100, updates=3)
    made = Program(
        source=EnvSource(env=EnvFactory(target="tests.envs.games:Duel")),
        policies={"main": Policy(algorithm=DQN(hidden=(8,)), unroll=4, batch=8, replay=replay)},
        placement=Placement(actors=1, envs_per_actor=2),
        schedule=Schedule(steps=400),
        evaluation=EvaluationSettings(episodes=0),
    )
    summary = run(made, "serial", tmp_path / "run")
    assert (
        summary["env_steps"] == 400 and summary["rows"]["inserted"] - summary["rows"]["held"] == 800
    )
    assert summary["updates"] == 3 * (50 - 7 + 1)
    assert 400 - 8 <= max(explored) <= 400  # the actor may have begun what nobody learned from
