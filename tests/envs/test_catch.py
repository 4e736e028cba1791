"""Catch: the rules, and the vector env against the single one."""

import numpy as np
import pytest

from equipoise.envs import Catch
from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.loop import LoopEnv
from tests.envs.rolling import env_of, rows


@pytest.mark.parametrize(
    ("target", "kind"),
    [("equipoise/Catch-v0", GymnasiumEnv), ("python:equipoise/Catch-v0", LoopEnv)],
)
def test_a_follower_always_catches(target, kind):
    env = env_of(target, 8, 2)
    assert isinstance(env, kind)
    ts = env.recv()
    for t in range(1, 101):
        board = ts.obs.reshape(8, 10, 5)
        paddle = board[:, -1].argmax(1)
        ball = board[:, :-1].sum(1).argmax(1)
        env.send(1 + np.sign(ball - paddle), ts.stream)
        ts = env.recv()
        assert (ts.terminated == (t % 10 == 9)).all() and not ts.truncated.any()
        assert (ts.reward == ts.terminated).all() and (ts.first == (t % 10 == 0)).all()


def test_random_play_misses_as_often_as_it_should():
    """The paddle's walk is symmetric and the ball uniform: P(catch) = 1 / 5."""
    env = env_of("equipoise/Catch-v0", 500, 0)
    got = rows(env, np.random.default_rng(0).integers(0, 3, (99, 500)))
    ends = got["reward"][got["terminated"]]
    assert len(ends) == 5000 and set(ends) == {1.0, -1.0}
    assert abs((ends == 1).mean() - 0.2) < 0.02


def test_both_follow_the_same_rules():
    """Same ball column, same actions: the same boards."""
    vector, single = env_of("equipoise.envs:CatchVector", 1), Catch()
    vector.recv()
    obs, _ = single.reset(seed=0)
    single.column = int(vector.env.column[0])
    for action in (0, 0, 0, 0, 2, 2, 1, 2, 2):
        obs, reward, terminated, _, _ = single.step(action)
        vector.send(np.array([action]), np.arange(1))
        ts = vector.recv()
        np.testing.assert_array_equal(ts.obs[0], obs)
        assert (ts.reward[0], ts.terminated[0]) == (reward, terminated)
    assert terminated
