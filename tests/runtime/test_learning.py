"""It learns: published thresholds, within published budgets, on every runtime."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from equipoise import api
from tests.envs.doors import BEST, LENGTH, RANDOM

GOALS = {"CartPole-v1": (475.0, 500_000), "Acrobot-v1": (-95.0, 1_000_000)}


def train(
    env: str, algorithm: str, on: Any, seed: int, path: Any, **options: Any
) -> dict[str, Any]:
    run = api.start(env, algorithm, on=on, seed=seed, out=path / "run", **options)
    for _ in run:
        pass
    assert run.summary is not None
    print(
        env,
        algorithm,
        on,
        seed,
        {k: run.summary[k] for k in ("status", "env_steps", "wall_s", "evaluation")},
    )
    return run.summary


def two_actors(algorithm: str, env: str) -> dict[str, Any]:
    """The recipe's streams, dealt to two actors where they were one's."""
    made = api.program(env, algorithm)
    return (
        {"actors": 2, "envs_per_actor": made.placement.envs_per_actor // 2}
        if made.actors == 1
        else {}
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(("algorithm", "on"), [("ppo", "process"), ("impala", "serial")])
def test_cartpole_is_solved(algorithm: str, on: str, tmp_path: Any) -> None:
    """The other two pairs, and more seeds, are slow tests."""
    goal, steps = GOALS["CartPole-v1"]
    summary = train("CartPole-v1", algorithm, on, 0, tmp_path, stop_at=goal, steps=steps)
    assert (
        summary["status"] == "solved"
        and summary["evaluation"]["mean"] >= goal
        and summary["evaluation"]["episodes"] == 100
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("algorithm", "epochs"), [("ppo", 3), ("impala", 1)])
def test_a_masked_policy_learns_which_of_the_open_doors_is_best(
    algorithm: str, epochs: int, tmp_path: Any
) -> None:
    """No closed door is ever tried, so that no episode ends early; without the mask one cannot know
    which are open.
    """
    options: dict[str, Any] = {
        "actors": 1,
        "envs_per_actor": 16,
        "unroll": 16,
        "max_lag": 0,
        "steps": 30_000,
        "evaluate_episodes": 50,
        "recipe": False,
        "settings": [
            "optimizer.learning_rate=3e-3",
            "algorithm.gamma=0.5",
            f"algorithm.epochs={epochs}",
        ],
    }
    masked = train(
        "tests.envs.doors:Doors",
        algorithm,
        "serial",
        0,
        tmp_path / "a",
        action_mask="info",
        **options,
    )
    rows = [
        json.loads(line) for line in (tmp_path / "a/run/metrics.jsonl").read_text().splitlines()
    ]
    assert {row["length_mean"] for row in rows if row["length_mean"] is not None} == {LENGTH}
    assert masked["evaluation"]["mean"] > RANDOM + 0.8 * (BEST - RANDOM), masked["evaluation"]
    blind = train(
        "tests.envs.doors:Doors",
        algorithm,
        "serial",
        0,
        tmp_path / "b",
        **options | {"steps": 10_000},
    )
    assert blind["evaluation"]["mean"] < 0.5 * RANDOM


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("on", ["serial", "process"])
@pytest.mark.parametrize("algorithm", ["ppo", "impala", "appo", "a3c"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1"])
def test_classic_control_is_solved(
    env: str, algorithm: str, on: str, seed: int, tmp_path: Any
) -> None:
    goal, steps = GOALS[env]
    summary = train(
        env, algorithm, on, seed, tmp_path, stop_at=goal, steps=steps, **two_actors(algorithm, env)
    )
    assert summary["status"] == "solved", summary


def after_success(
    path: Any, goal: float, of: Any = lambda evaluation: evaluation["mean"]
) -> tuple[int, float]:
    """Env steps of the first evaluation that reached the goal, and the worst one from there on."""
    lines = (path / "run/metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["evaluation"] is not None]
    means = [of(row["evaluation"]) for row in rows]
    first = next(i for i, mean in enumerate(means) if mean >= goal)
    return rows[first]["env_steps"], min(means[first:])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("env", "algorithm", "steps", "goal", "floor"),
    [
        ("CartPole-v1", "a2c", 500_000, 475.0, 300.0),
        ("CartPole-v1", "qr_dqn", 50_000, 475.0, 300.0),
        ("Pendulum-v1", "tqc", 10_000, -200.0, -300.0),
        ("Pendulum-v1", "crossq", 10_000, -200.0, -300.0),
    ],
)
def test_three_seeds_reach_the_goal_and_keep_it(
    env: str, algorithm: str, steps: int, goal: float, floor: float, tmp_path: Any
) -> None:
    """docs/results/new-algorithms.md has the figures.
    On serial a seed is the same run each time.
    """
    last, worst = [], []
    for seed in range(3):
        out = tmp_path / str(seed)
        settings = [f"evaluation.every={max(steps // 25, 1_000)}", "evaluation.episodes=50"]
        summary = train(env, algorithm, "serial", seed, out, steps=steps, settings=settings)
        last.append(summary["evaluation"]["mean"])
        first, low = after_success(out, goal)
        worst.append(low)
        print(f"| {env} | {algorithm} | {seed} | {first:,} | {low:.0f} | {last[-1]:.1f} |")
    assert (
        statistics.median(last) >= goal and min(last) >= floor and statistics.median(worst) >= floor
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_arm_reaches_with_hindsight(seed: int, tmp_path: Any) -> None:
    """Nine of ten episodes end at the goal, from the first such evaluation to the last one:
    docs/results/recipes.md.
    """
    pytest.importorskip("gymnasium_robotics")
    settings = ["evaluation.every=4000", "evaluation.episodes=50"]
    env = "gymnasium_robotics:FetchReach-v4"
    summary = train(env, "sac", "serial", seed, tmp_path, settings=settings)
    assert (
        summary["env_steps"] <= 20_000 and summary["evaluation"]["info"]["is_success/last"] >= 0.9
    )
    assert (
        after_success(tmp_path, 0.9, lambda evaluation: evaluation["info"]["is_success/last"])[1]
        >= 0.9
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("on", "max_lag"), [("serial", 0), ("process", 1)])
def test_impala_keeps_what_it_has_learned(on: Any, max_lag: int, tmp_path: Any) -> None:
    """Five seeds, each trained to twice the steps that solve CartPole: the last evaluation, and the
    worst after a success.
    """
    last, worst = [], []
    for seed in range(5):
        options = {"max_lag": max_lag, "steps": 400_000, "settings": ["evaluation.every=16k"]}
        summary = train("CartPole-v1", "impala", on, seed, tmp_path / str(seed), **options)
        last.append(summary["evaluation"]["mean"])
        worst.append(after_success(tmp_path / str(seed), 475.0)[1])
    print("last", last, "worst after success", worst)
    assert min(last) >= 475.0 and statistics.median(worst) >= 300.0  # docs/results/forgetting.md


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("env", "algorithm", "threshold"),
    [
        ("CartPole-v1", "ppo", 475.0),
        ("CartPole-v1", "impala", 475.0),
        ("equipoise/TMaze-v0", "r2d2", 3.8),
        ("equipoise/RepeatFirst-v0", "r2d2", 0.95),
    ],
)
def test_central_inference_learns_what_local_does(
    env: str, algorithm: str, threshold: float, tmp_path: Any
) -> None:
    """The thresholds and budgets are those of the tests beside it."""
    summary = train(env, algorithm, "process", 0, tmp_path, stop_at=threshold, inference="central")
    assert summary["status"] == "solved" and summary["evaluation"]["mean"] >= threshold, summary


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("env", "algorithm", "threshold"),
    [
        ("CartPole-v1", "ppo", 475.0),
        ("Acrobot-v1", "ppo", -95.0),
        ("Pendulum-v1", "sac", -200.0),
        ("equipoise/TMaze-v0", "r2d2", 3.8),
    ],
)
def test_two_learners_learn_what_one_does(
    env: str, algorithm: str, threshold: float, seed: int, tmp_path: Any
) -> None:
    """The thresholds and budgets are those of the tests beside it. docs/guides/learners.md has the
    figures.
    """
    options: dict[str, Any] = {"learners": 2, "evaluate_episodes": 50} | two_actors(algorithm, env)
    summary = train(env, algorithm, "process", seed, tmp_path, **options)
    first, worst = after_success(tmp_path, threshold)
    print(
        f"| {env} | {algorithm} | {seed} | {first:,} | {worst:.1f} | "
        f"{summary['evaluation']['mean']:.1f} |"
    )
    assert summary["evaluation"]["mean"] >= threshold, summary


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("algorithm", ["dqn", "sac", "apex_dqn"])
def test_a_replay_solves_cartpole(algorithm: str, seed: int, tmp_path: Any) -> None:
    summary = train("CartPole-v1", algorithm, "process", seed, tmp_path, stop_at=475.0)
    assert summary["status"] == "solved", summary


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_pendulum_is_swung_up(algorithm: str, seed: int, tmp_path: Any) -> None:
    summary = train("Pendulum-v1", algorithm, "process", seed, tmp_path, evaluate_episodes=50)
    assert summary["env_steps"] <= 20_000 and summary["evaluation"]["mean"] >= -200.0, summary


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_sac_runs_the_halfcheetah(tmp_path: Any) -> None:
    pytest.importorskip("mujoco")
    summary = train("HalfCheetah-v5", "sac", "process", 0, tmp_path, steps=200_000)
    assert summary["evaluation"]["mean"] >= 4000.0, summary


@pytest.mark.slow
@pytest.mark.parametrize("max_lag", [0, 1, 4, None])
@pytest.mark.parametrize("algorithm", ["ppo", "impala", "appo"])
def test_cartpole_is_solved_at_any_lag(algorithm: str, max_lag: int | None, tmp_path: Any) -> None:
    options = {
        "stop_at": 475.0,
        "steps": 500_000,
        "max_lag": max_lag,
        **two_actors(algorithm, "CartPole-v1"),
    }
    summary = train("CartPole-v1", algorithm, "process", 0, tmp_path, **options)
    assert summary["status"] == "solved", summary
    assert max_lag is None or summary["lag"]["max"] <= max_lag


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_halfcheetah_runs(tmp_path: Any) -> None:
    """CleanRL's figure for PPO, within its million steps."""
    pytest.importorskip("mujoco")
    runs = [
        train("HalfCheetah-v5", "ppo", "process", seed, tmp_path / str(seed)) for seed in range(3)
    ]
    assert all(run["env_steps"] <= 1_001_000 for run in runs)
    assert statistics.median(run["evaluation"]["mean"] for run in runs) >= 1400.0, runs


@pytest.mark.slow
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_recurrent_policy_remembers_velocities(on: str, tmp_path: Any) -> None:
    settings = [
        "algorithm.core=lstm",
        "algorithm.gamma=0.98",
        "algorithm.lambda_=0.9",
        "optimizer.learning_rate=1e-3",
        "algorithm.epochs=8",
        "algorithm.minibatches=2",
        "algorithm.entropy=0.001",
    ]
    summary = train(
        "tests.runtime.masked:masked_cartpole",
        "ppo",
        on,
        0,
        tmp_path,
        settings=settings,
        actors=2,
        envs_per_actor=8,
        unroll=64,
        stop_at=400.0,
        steps=1_000_000,
    )
    assert summary["status"] == "solved", summary


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("torso", ["resnet", "vit"])
def test_doorkey_is_learned_from_pixels(torso: str, tmp_path: Any) -> None:
    pytest.importorskip("minigrid")
    settings = [
        "env.codes=pixels",
        f"algorithm.torso={torso}",
        "optimizer.learning_rate=3e-4",
        "algorithm.epochs=2",
    ]
    summary = train(
        "MiniGrid-DoorKey-5x5-v0",
        "ppo",
        "process",
        0,
        tmp_path,
        settings=settings,
        steps=600_000,
        stop_at=0.9,
    )
    assert summary["status"] == "solved" and summary["evaluation"]["mean"] >= 0.9, summary


# env, algorithm, 95 % of right answers, settings over the recipe
LONG_MEMORY: dict[str, tuple[str, str, float, list[str]]] = {
    "maze, mingru": ("equipoise/TMaze100-v0", "r2d2", 3.8, []),
    "maze, gtrxl": (
        "equipoise/TMaze100-v0",
        "r2d2",
        3.8,
        [
            "algorithm.core=gtrxl",
            "algorithm.core_layers=1",
            "algorithm.core_size=32",
            "algorithm.core_window=128",
            "algorithm.core_heads=2",
            "algorithm.length=40",
            "optimizer.learning_rate=0.001",
        ],
    ),
    "repeat, gtrxl": ("equipoise/RepeatFirst-v0", "ppo", 0.95, []),
    "repeat, mingru": (
        "equipoise/RepeatFirst-v0",
        "ppo",
        0.95,
        [
            "algorithm.core=mingru",
            "algorithm.core_layers=2",
            "algorithm.core_size=64",
            "algorithm.core_span=60",
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", LONG_MEMORY)
def test_a_linear_time_core_and_a_transformer_remember(name: str, seed: int, tmp_path: Any) -> None:
    env, algorithm, threshold, settings = LONG_MEMORY[name]
    summary = train(env, algorithm, "serial", seed, tmp_path, settings=settings, stop_at=threshold)
    assert summary["status"] == "solved" and summary["evaluation"]["mean"] >= threshold, summary


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("env", "threshold", "chance"),
    [("equipoise/TMaze-v0", 3.8, 2.5), ("equipoise/RepeatFirst-v0", 0.95, 0.45)],
)
def test_r2d2_remembers_and_nobody_does_without_a_core(
    env: str, threshold: float, chance: float, seed: int, tmp_path: Any
) -> None:
    """The threshold is 95 % of right answers; in the T-maze with a wrong turn at -0.1, and with
    next to no bumps on the way.
    """
    summary = train(env, "r2d2", "process", seed, tmp_path, stop_at=threshold)
    assert summary["status"] == "solved" and summary["evaluation"]["mean"] >= threshold, summary
    blind = train(
        env,
        "r2d2",
        "process",
        seed,
        tmp_path / "blind",
        settings=["algorithm.core=none"],
        steps=60_000,
        evaluate_episodes=100,
    )
    assert blind["evaluation"]["mean"] <= chance, blind
