"""EnvPool through the adapter: its documented autoreset, by experiment."""

import numpy as np
import pytest

from tests.envs.rolling import env_of, rows

pytest.importorskip("envpool", reason="EnvPool is not installed (extra envpool)")


@pytest.mark.parametrize("target", ["envpool:CartPole-v1", "envpool:Pendulum-v1"])
def test_the_seam_ignores_the_action_and_gives_no_reward(target):
    """Two envs with the same streams, whose actions differ on seams only, answer the same rows."""
    one, other = (env_of(target, 8, 1, max_episode_steps=25) for _ in range(2))
    ts, again = one.recv(), other.recv()
    shape = one.action.shape
    rng = np.random.default_rng(0)
    seams = 0
    for _ in range(120):
        action = rng.integers(0, 2, shape)
        ended = (ts.terminated | ts.truncated).reshape(-1, *[1] * (len(shape) - 1))
        one.send(action.astype(one.action.dtype), ts.stream)
        other.send(np.where(ended, 1 - action, action).astype(one.action.dtype), ts.stream)
        was = ended.reshape(-1).copy()
        ts, again = one.recv(), other.recv()
        np.testing.assert_array_equal(ts.obs, again.obs)
        np.testing.assert_array_equal(ts.reward, again.reward)
        assert (ts.first == was).all() and (ts.valid == ~was).all()
        assert (ts.reward[was] == 0).all() and not (ts.terminated | ts.truncated)[was].any()
        assert (ts.reward[~was] != 0).all()
        seams += was.sum()
    assert seams > 20


def test_an_end_on_the_step_of_the_limit_is_told_as_truncation():
    """What EnvSpec.notes says; if EnvPool changes it, the note must go."""
    free = rows(env_of("envpool:CartPole-v1", 1, 1), np.ones((30, 1), int))
    length = int(free["terminated"][:, 0].argmax())
    env = env_of("envpool:CartPole-v1", 1, 1, max_episode_steps=length)
    cut = rows(env, np.ones((length, 1), int))
    np.testing.assert_array_equal(cut["obs"], free["obs"][: length + 1])
    assert cut["truncated"][-1, 0] and not cut["terminated"][-1, 0]
    assert env.spec.notes and "truncation" in env.spec.notes[0]


def test_restart_drains_what_was_sent():
    """The answer that nobody read must not be taken for the reset: all of it lies within 0.05 of
    the middle.
    """
    env = env_of("envpool:CartPole-v1", 4, 1)
    rows(env, np.ones((5, 4), int))
    assert env.state() == {} and env.spec.resume == "restart"
    env.send(np.ones(4, int), env.ts.stream)
    env.load({})
    ts = env.recv()
    assert ts.first.all() and not ts.valid.any() and (np.abs(ts.obs) <= 0.05).all()
    env.send(np.ones(4, int), env.ts.stream)
    ts = env.recv()
    assert ts.valid.all() and (ts.obs[:, 1] > 0.1).all()


@pytest.mark.parametrize(
    ("target", "kwargs", "said"),
    [
        (
            "envpool:Cartpole-v1",
            {},
            "unknown env id 'Cartpole-v1' in EnvPool; did you mean 'CartPole-v1'",
        ),
        ("envpool:CartPole-v1", {"num_thread": 2}, "did you mean 'num_threads'"),
        ("envpool:CartPole-v1", {"batch_size": 2}, "leave them out"),
        ("python:envpool:CartPole-v1", {}, "EnvPool's envs are native"),
    ],
)
def test_what_is_said(target, kwargs, said):
    with pytest.raises(ValueError) as error:
        env_of(target, **kwargs)
    assert said in str(error.value)
