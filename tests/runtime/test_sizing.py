"""Sizes for slow envs: what is measured, what follows from it, and when nothing does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.algorithms.ppo import PPO
from equipoise.api import training
from equipoise.tuning import sizing
from equipoise.tuning.sizing import Pace, fitted, measured
from equipoise.types import Policy, Program

ENV = "tests.envs.starting:Waiting"
SLOW = Pace(step_s=0.1, reset_s=0.02, computes=0.1)


def sizes(program: Program) -> tuple[int, int, int, int]:
    (policy,) = program.policies.values()
    assert isinstance(policy, Policy)
    return program.placement.actors, program.placement.envs_per_actor, policy.unroll, policy.batch


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    return lambda pace: monkeypatch.setattr(sizing, "measured", lambda program: pace)


@pytest.mark.parametrize(
    ("pace", "wanted"),
    [
        (SLOW, (4, 1, 50, 4)),  # waits: more actors than cores; 5 s of steps
        (Pace(0.1, 0.02, 0.95), (2, 1, 50, 2)),  # computes: one a core
        (Pace(0.01, 0.02, 0.95), (2, 4, 64, 8)),  # the unroll is not longer than the default
        (Pace(0.01, 2.0, 0.1), (4, 1, 64, 4)),  # resets of one actor follow each other
        (Pace(1.0, 4.0, 0.1), (4, 1, 16, 4)),  # never shorter than that
    ],
)
def test_sizes_follow_from_the_pace_of_an_env(
    pace: Pace, wanted: tuple[int, ...], paced: Any
) -> None:
    paced(pace)
    made, said = fitted(api.program(ENV), (), recipe=True)
    assert sizes(made) == wanted
    assert (
        f"--actors {wanted[0]} --envs-per-actor {wanted[1]} --unroll {wanted[2]} --batch "
        f"{wanted[3]}" in said
    )


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"actors": 8}, (8, 1, 50, 8)),  # as a verdict may advise
        ({"envs_per_actor": 2}, (4, 2, 25, 8)),
        ({"unroll": 8}, (4, 1, 8, 4)),
        ({"batch": 32}, (4, 1, 50, 32)),
    ],
)
def test_what_is_named_stays_and_the_others_follow(
    given: dict[str, Any], wanted: tuple[int, ...], paced: Any
) -> None:
    paced(SLOW)
    made, said = fitted(api.program(ENV, **given), given, recipe=True)
    assert sizes(made) == wanted
    (name,) = given
    assert f"--{name.replace('_', '-')} " not in said and said.count("--") == 3


@pytest.mark.parametrize(("agents", "envs"), [(2, 8), (3, 5), (12, 1), (40, 1)])
def test_agents_are_streams(agents: int, envs: int, paced: Any) -> None:
    paced(Pace(0.0001, 0.0001, 1.0, agents))
    program = api.program(ENV, actors=3)
    made, said = fitted(program, ["actors"], recipe=True)
    assert sizes(made) == (3, envs, 64, 3 * envs)
    assert (
        f"has {agents} agents, so the defaults are --envs-per-actor {envs} --unroll 64 --batch "
        f"{3 * envs}" in said
    )
    assert fitted(api.program(ENV, "dqn"), (), recipe=True)[1] == "", "a replay keeps its rounds"


def test_the_agents_of_an_env_are_counted() -> None:
    pace = measured(api.program("tests.envs.herd:Herd"))
    assert pace is not None and pace.agents == 3


@pytest.mark.parametrize("how", ["exits", "leaves"])
def test_an_env_that_ends_its_process_is_the_runs_to_name(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert measured(api.program("tests.envs.printing:Loud", env_kwargs={how: 3})) is None
    assert "my last words" in capfd.readouterr().err


def test_an_env_that_waits_in_its_resets_does_not_compute() -> None:
    pace = measured(api.program(ENV, env_kwargs={"reset_s": 0.3}))
    assert pace is not None and pace.computes < sizing.WAITS


def test_a_replay_learns_once_for_each_row(paced: Any) -> None:
    paced(SLOW)
    made, _ = fitted(api.program(ENV, "dqn"), (), recipe=True)
    (policy,) = made.policies.values()
    assert isinstance(policy, Policy) and policy.replay is not None
    assert sizes(made) == (4, 1, 4, 32) and policy.replay.updates == 16


def test_an_algorithm_that_was_made_keeps_its_minibatches(paced: Any) -> None:
    paced(SLOW)
    policies = {"main": PPO(minibatches=2)}
    made, _ = fitted(
        api.program(ENV, policies=policies, unroll=512), ["policies", "unroll"], recipe=True
    )
    (policy,) = made.policies.values()
    assert (
        isinstance(policy, Policy)
        and sizes(made) == (4, 1, 512, 4)
        and policy.algorithm.minibatches == 2
    )


@pytest.mark.parametrize(
    ("env", "options", "given"),
    [
        (ENV, {"actors": 2, "envs_per_actor": 2}, ["actors", "placement.envs_per_actor"]),
        (ENV, {"max_lag": 0}, ["max_lag"]),
        (ENV, {"inference": "local"}, ["inference"]),
        ("CartPole-v1", {}, []),
    ],
)
def test_what_the_user_or_a_recipe_said_stays(
    env: str, options: dict[str, Any], given: list[str], paced: Any
) -> None:
    paced(SLOW)
    program = api.program(env, "ppo", **options)
    assert fitted(program, given, recipe=True) == (program, "")


@pytest.mark.parametrize("address", ["remote:tcp://127.0.0.1:0", "remote:unix:world.sock"])
def test_worlds_that_are_still_to_connect_are_not_measured(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sizing, "measured", lambda program: pytest.fail("it would wait for a world")
    )
    program = api.program(address, "ppo", envs_per_actor=2)
    assert fitted(program, ["envs_per_actor"], recipe=True) == (program, "")


def test_a_fast_env_keeps_the_defaults_and_one_that_cannot_be_made_is_the_runs_to_refuse() -> None:
    program = api.program("Acrobot-v1", recipe=False)
    pace = measured(program)
    assert pace is not None and not pace.slow
    assert fitted(program, (), recipe=False) == (program, "")
    assert measured(api.program("NoSuchEnv-v1")) is None
    assert measured(api.program("tests.envs.deadly:Quits")) is None, (
        "its sys.exit() would end the command without a word"
    )


def test_a_slow_env_is_measured_and_its_run_has_the_sizes(tmp_path: Path) -> None:
    told: list[str] = []
    options: Any = {
        "env_kwargs": {"reset_s": 0.6},
        "out": tmp_path / "run",
        "steps": 64,
        "evaluate_episodes": 0,
        "on": "serial",
    }
    run = training.begun(ENV, None, options, tell=told.append)
    run.close()
    (said,) = told
    assert f"{run.program.name} takes 0 ms a step and 6" in said and "--envs-per-actor 1" in said
    assert (
        json.loads((tmp_path / "run" / "run.json").read_text())["program"]["placement"][
            "envs_per_actor"
        ]
        == 1
    )


@pytest.mark.parametrize(
    ("options", "minibatches"),
    [
        ({"recipe": False}, 32),  # 2,048 rows
        ({"recipe": False, "unroll": 8}, 4),  # 256 rows: 64 in each, as they are
        ({"recipe": False, "unroll": 33}, 16),  # 1,056 rows, which 32 do not leave 64 each
        # 4,096 rows of 8 windows
        ({"recipe": False, "actors": 1, "envs_per_actor": 8, "unroll": 512}, 8),
        ({"recipe": False, "settings": ["algorithm.minibatches=2"]}, 2),
        ({"recipe": False, "algorithm": "appo"}, 4),
        ({}, 2),  # CartPole's recipe
    ],
)
def test_a_large_batch_without_a_recipe_has_more_minibatches(
    options: dict[str, Any], minibatches: int
) -> None:
    (policy,) = api.program("CartPole-v1", **{"algorithm": "ppo", **options}).policies.values()
    assert isinstance(policy, Policy)
    assert policy.algorithm.minibatches == minibatches
