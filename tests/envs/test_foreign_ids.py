"""Ids of other packages and other times get the hint that brings their user on."""

from __future__ import annotations

import gymnasium
import pytest

from equipoise.envs.foreign_ids import meant_by
from equipoise.envs.making import resolve


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("Pong-v5", "'ALE/Pong-v5'"), ("PongNoFrameskip-v4", "'ALE/Pong-v5'"), ("pong-v0", "'ALE/Pong-v5'"),
        ("BreakoutDeterministic-v4", "repeat_action_probability=0"), ("Breakout-ram-v4", "It shows pixels"),
        ("FetchReach-v4", "'gymnasium_robotics:FetchReach-v4'"), ("AntMaze_UMaze-v5", "'gymnasium_robotics:AntMaze_UMaze-v5'"),
        ("highway-fast-v0", "'highway_env:highway-fast-v0'"),
        ("popgym-RepeatFirstEasy-v0", "'popgym:popgym-RepeatFirstEasy-v0'"),
        ("PandaReach-v3", "pip install 'panda-gym'"), ("stocks-v0", "'gym_anytrading:stocks-v0'"),
        ("dm_control/cheetah-run-v0", "'shimmy:dm_control/cheetah-run-v0'"), ("bsuite/catch-v0", "'shimmy:bsuite/catch-v0'"),
        ("CrafterReward-v1", "old gym's interface"), ("AntBulletEnv-v0", "Ant-v5"),
        ("LunarLanderContinuous-v2", "LunarLander-v3 with --set env.continuous=true"),
        ("CartPoal-v1", "did you mean 'CartPole-v1'?"),
    ],
)  # fmt: skip
def test_an_unknown_id_is_answered_with_what_it_means(typed: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gymnasium.registry, typed, raising=False)  # another test may have imported its package
    with pytest.raises(ValueError) as caught:
        resolve(typed)
    assert str(caught.value).startswith(f"unknown env id {typed!r}") and said in str(caught.value)


@pytest.mark.parametrize("env_id", ["Mine-v0", "CartPole-v9", "merge_sort-v0", "Hero2-v0"])
def test_what_looks_like_no_known_package_gets_no_such_hint(env_id: str) -> None:
    assert meant_by(env_id) == ""
