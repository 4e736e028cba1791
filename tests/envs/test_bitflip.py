"""Bit flip: the rules, the vector env against the single one, and the goals' rules against the
steps' rewards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.envs import BitFlip, BitFlipVector
from tests.envs.rolling import env_of, rows

BOTH = ("equipoise/BitFlip-v0", "python:equipoise/BitFlip-v0")


@pytest.mark.parametrize("target", BOTH)
def test_whoever_flips_what_differs_arrives(target: str) -> None:
    env = env_of(target, 8, 2, bits=6)
    ts = env.recv()
    ends = 0
    for _ in range(60):
        differs = ts.obs["observation"] != ts.obs["desired_goal"]
        np.testing.assert_array_equal(ts.obs["observation"], ts.obs["achieved_goal"])
        left, before = differs.sum(1), ts.terminated.copy()
        env.send(differs.argmax(1), ts.stream)
        ts = env.recv()
        assert not ts.truncated.any() and (ts.first == before).all() and (ts.valid != before).all()
        assert (ts.terminated == ((left == 1) & ~before)).all()
        np.testing.assert_array_equal(ts.reward, np.where(before | ts.terminated, 0.0, -1.0))
        assert (ts.obs["observation"] != ts.obs["desired_goal"])[before].any(1).all(), (
            "no episode begins at its goal"
        )
        ends += int(before.sum())
    assert ends > 60


@pytest.mark.parametrize("target", BOTH)
def test_a_clock_cuts_it_after_as_many_steps_as_bits(target: str) -> None:
    env = env_of(target, 4, 3, bits=5)
    got = rows(env, np.zeros((600, 4), int))  # one bit to and fro
    begins = np.flatnonzero(got["first"][:, 0])
    lengths = np.diff(begins) - 1
    assert set(lengths) <= {1, 5} and (lengths == 5).mean() > 0.9
    cut = got["truncated"][:, 0]
    assert (got["reward"][cut, 0] == -1).all() and not (cut & got["terminated"][:, 0]).any()
    assert set(np.flatnonzero(cut) + 1) <= set(begins) | {len(cut)}


def test_both_follow_the_same_rules() -> None:
    vector, single = env_of("equipoise.envs:BitFlipVector", 1, bits=7), BitFlip(7)
    vector.recv()
    single.reset(seed=0)
    single.bits, single.goal = vector.env.bits[0].copy(), vector.env.goal[0].copy()
    terminated = truncated = False
    for action in (0, 3, 3, 6, 1, 2, 5):
        obs, reward, terminated, truncated, _ = single.step(action)
        vector.send(np.array([action]), np.arange(1))
        ts = vector.recv()
        for name, value in obs.items():
            np.testing.assert_array_equal(ts.obs[name][0], value)
        assert (ts.reward[0], ts.terminated[0], ts.truncated[0]) == (reward, terminated, truncated)
    assert terminated or truncated


@pytest.mark.parametrize("made", [BitFlip(4), BitFlipVector(3, 4)])
def test_rewards_of_many_goals_at_once_are_those_of_the_steps(made: Any) -> None:
    env = env_of("equipoise/BitFlip-v0", 16, 5, bits=4)
    got = rows(env, np.random.default_rng(0).integers(0, 4, (200, 16)))
    valid, obs = got["valid"], {name: leaf[got["valid"]] for name, leaf in got["obs"].items()}
    reward = made.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})
    np.testing.assert_array_equal(reward, got["reward"][valid])
    np.testing.assert_array_equal(
        made.compute_terminated(obs["achieved_goal"], obs["desired_goal"], {}),
        got["terminated"][valid],
    )
    assert 0.05 < (reward == 0).mean() < 0.3 and reward.dtype == np.float32


@pytest.mark.parametrize("bits", [0, 63])
def test_so_many_bits_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits: expected 1 to 62, got {bits}"):
        env_of("equipoise/BitFlip-v0", 2, bits=bits)
