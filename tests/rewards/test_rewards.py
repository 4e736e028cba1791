"""Rewards are a step of their own: the same for every algorithm,
between the data and the learner.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from equipoise import api
from equipoise.programs.program import algorithm_names, from_json, text_algorithm_names, to_json
from equipoise.rewards.step import RewardStep, scaled
from equipoise.types import Rewards, learning

SMALL: dict[str, Any] = {
    "actors": 1,
    "envs_per_actor": 4,
    "max_lag": 0,
    "evaluate_episodes": 0,
    "recipe": False,
    "steps": 240,
}
REPLAYED = ["replay.starts_at=100"]
OPTIONS: dict[str, dict[str, Any]] = {
    "r2d2": {
        "unroll": 10,
        "batch": 8,
        "settings": [
            *REPLAYED,
            "algorithm.burn_in=4",
            "algorithm.length=10",
            "algorithm.n_step=2",
            "algorithm.core_size=8",
        ],
    },
    "apex_dqn": {"unroll": 8, "batch": 16, "settings": REPLAYED},
    "dqn": {"unroll": 8, "batch": 16, "settings": REPLAYED},
    **{
        name: {"unroll": 8, "batch": 16, "settings": REPLAYED}
        for name in ("sac", "td3", "tqc", "qr_dqn")
    },
    "crossq": {"unroll": 8, "batch": 16, "settings": [*REPLAYED, "algorithm.critic_hidden=32"]},
}


def halved(**kwargs: Any) -> Any:
    return gymnasium.wrappers.TransformReward(
        gymnasium.make(**kwargs), lambda reward: 0.5 * float(reward)
    )


def bounded(**kwargs: Any) -> Any:
    return gymnasium.wrappers.TransformReward(
        gymnasium.make(**kwargs), lambda reward: min(max(float(reward), -0.25), 0.25)
    )


def trained(name: str, target: str, out: Path, *settings: str) -> Any:
    """The summary of a small run."""
    env_id = "Pendulum-v1" if name in ("sac", "td3", "tqc", "crossq") else "Acrobot-v1"
    options = {"unroll": 16, **SMALL, **OPTIONS.get(name, {})}
    options["settings"] = [*options.get("settings", ()), *settings]
    run = api.start(
        api.program(target, name, env_kwargs={"id": env_id}, **options), on="serial", out=out
    )
    for _ in run:
        pass
    return run.summary


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", [name for name in algorithm_names() if name not in ("bc", *text_algorithm_names())]
)
@pytest.mark.parametrize(
    ("env", "setting"), [("halved", "rewards.scale=0.5"), ("bounded", "rewards.clip=0.25")]
)
def test_a_setting_is_as_good_as_a_wrapper(
    name: str, env: str, setting: str, tmp_path: Path
) -> None:
    """Learned, first priorities included, is what an env with such rewards teaches; only the
    reported returns are the env's.
    """
    here = "tests.rewards.test_rewards"
    wrapped = trained(name, f"{here}:{env}", tmp_path / "wrapped")
    plain = trained(name, "gymnasium:make", tmp_path / "plain")
    mine = trained(name, "gymnasium:make", tmp_path / "mine", setting)
    assert mine["params_sha256"] == wrapped["params_sha256"] != plain["params_sha256"]


@pytest.mark.thorough
def test_reports_have_the_returns_of_the_env(tmp_path: Path) -> None:
    """A row of CartPole pays 1: returns are lengths, whatever is learned from."""
    options = SMALL | {"evaluate_episodes": 3, "steps": 640}
    made = api.program(
        "CartPole-v1",
        "ppo",
        unroll=16,
        settings=["rewards.scale=0.5", "rewards.clip=0.1"],
        **options,
    )
    run = api.start(made, on="serial", out=tmp_path)
    for _ in run:
        pass
    assert run.summary is not None and run.summary["episodes"] > 0
    assert run.summary["return_mean"] >= 8 <= run.summary["evaluation"]["mean"], (
        "no episode of CartPole is shorter"
    )


def test_rewards_are_scaled_and_then_clipped() -> None:
    reward = torch.tensor([[-7.0, 0.5], [0.0, 200.0]])
    assert scaled(Rewards(), reward) is reward
    assert scaled(Rewards(scale=0.5), reward).tolist() == [[-3.5, 0.25], [0.0, 100.0]]
    assert scaled(Rewards(scale=0.5, clip=1.0), reward).tolist() == [[-1.0, 0.25], [0.0, 1.0]]
    assert reward[1, 1] == 200, "the data keeps the env's own"


def test_a_state_of_other_settings_is_refused() -> None:
    with pytest.raises(ValueError, match=r"saved with rewards\.normalize=false, got statistics"):
        RewardStep(Rewards(), 0.9).load(RewardStep(Rewards(normalize=True), 0.9).state())
    with pytest.raises(ValueError, match=r"saved with rewards\.normalize=true, got none"):
        RewardStep(Rewards(normalize=True), 0.9).load({})


@pytest.mark.parametrize(
    ("name", "setting", "said"),
    [
        (
            "sac",
            "rewards.normalize=true",
            r"rewards\.normalize: expected false with SAC.*rewards\.scale",
        ),
        ("ppo", "rewards.scale=0", r"rewards\.scale: expected more than 0, got 0"),
        ("ppo", "rewards.clip=-1", r"rewards\.clip: expected at least 0, got -1"),
        ("ppo", "rewards.clipp=1", r"unknown setting 'rewards\.clipp'.*rewards\.clip"),
        (
            "dqn",
            "algorithm.normalize_reward=true",
            r"unknown setting 'algorithm\.normalize_reward'.*rewards\.normalize",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, setting: str, said: str) -> None:
    env = "Pendulum-v1" if name == "sac" else "CartPole-v1"
    with pytest.raises(ValueError, match=said):
        api.start(api.program(env, name, settings=[setting], **SMALL), on="serial")


def test_a_scale_beside_normalised_rewards_changes_nothing_and_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rewards\.scale, since rewards are normalised"):
        api.program(
            "CartPole-v1", "ppo", settings=["rewards.normalize=true", "rewards.scale=2"], **SMALL
        )


def test_a_policy_has_rewards_of_its_own() -> None:
    settings = ["policies.tell.rewards.scale=0.5", "rewards.clip=2"]
    made = api.program(
        "tests.envs.games:Signal",
        policies={"tell": "ppo", "hear": "ppo"},
        route={"speaker": "tell", "listener": "hear"},
        settings=settings,
        **SMALL,
    )
    assert {
        name: (one.rewards.scale, one.rewards.clip) for name, one in learning(made).items()
    } == {
        "tell": (0.5, 2.0),
        "hear": (1.0, 2.0),
    }
    assert from_json(to_json(made)) == made
