"""What ``state`` and ``load`` promise of vector envs: exact for those that say so, anew for the
others.
"""

import json

import numpy as np
import pytest

from equipoise import tree
from equipoise.envs.restore import snapshot
from tests.envs.rolling import env_of, rows

EXACT: list[tuple[str, int, dict[str, int]]] = [
    ("CartPole-v1", 2, {"max_episode_steps": 23}),  # so that the clock matters, too
    ("equipoise/Ruler-v0", 8, {}),
    ("equipoise/Catch-v0", 3, {}),
    ("equipoise/BitFlip-v0", 5, {"bits": 5}),
    ("equipoise/TMaze-v0", 4, {"length": 3}),
    ("equipoise/RepeatFirst-v0", 4, {"delay": 4}),
]


def play(env, actions):
    """Rows of an env that has already answered."""
    seen = []
    for action in actions:
        env.send(action, env.ts.stream)
        ts = env.recv()
        obs = [leaf.reshape(len(action), -1) for leaf in tree.leaves(ts.obs)]
        seen.append(
            np.concatenate(
                [*obs, np.stack([ts.reward, ts.terminated, ts.truncated, ts.first, ts.valid], 1)], 1
            )
        )
    return np.stack(seen)


@pytest.mark.parametrize(("target", "choices", "kwargs"), EXACT)
@pytest.mark.parametrize("warm", [0, 1, 77, 500])
def test_exact_resume(target, choices, kwargs, warm):
    """A fresh env with another seed, some rows of its own behind it, goes on bit for bit for 1000
    rows.
    """
    rng = np.random.default_rng(warm)
    env, other = env_of(target, 7, 1, **kwargs), env_of(target, 7, 2, **kwargs)
    assert env.spec.resume == "exact"
    rows(env, rng.integers(0, choices, (warm, 7)))
    state = env.state()
    assert all(isinstance(leaf, np.ndarray) and leaf.dtype != object for leaf in tree.leaves(state))
    frozen = tree.map(np.array, state)
    actions = rng.integers(0, choices, (1000, 7))
    expected = play(env, actions)
    tree.map(np.testing.assert_array_equal, state, frozen)  # a state is a copy
    other.recv()
    play(other, rng.integers(0, choices, (1 + warm % 5, 7)))
    other.load(state)
    np.testing.assert_array_equal(play(other, actions), expected)
    # and is not written to by the env that loaded it
    tree.map(np.testing.assert_array_equal, state, frozen)
    assert expected[:, :, -4:-2].any()  # with ends in between


def test_exact_resume_between_send_and_recv():
    env, other = env_of("CartPole-v1", 3, 1), env_of("CartPole-v1", 3, 2)
    env.recv()
    env.send(np.array([0, 1, 1]), env.ts.stream)
    other.load(env.state())
    np.testing.assert_array_equal(env.recv().obs, other.recv().obs)


def test_a_restored_row_is_the_last_one():
    env, other = env_of("CartPole-v1", 3, 1), env_of("CartPole-v1", 3, 2)
    rows(env, np.ones((12, 3), int))
    other.load(env.state())
    assert other.resumed == {"exact": 3, "replay": 0, "restart": 0} and not other.restarted.any()
    for name in ("obs", "reward", "terminated", "first", "valid"):
        np.testing.assert_array_equal(getattr(other.ts, name), getattr(env.ts, name))


@pytest.mark.parametrize("target", ["tests.envs.test_seeds:cartpoles"])
def test_restart(target):
    env = env_of(target, 3, 1)
    begun = rows(env, np.ones((5, 3), int))["obs"]
    assert env.spec.resume == "restart" and env.state() == {}
    env.load({})
    assert env.resumed == {"exact": 0, "replay": 0, "restart": 3} and env.restarted.all()
    ts = env.recv()
    assert ts.first.all() and not ts.valid.any() and not (ts.obs == begun[0]).any()
    fresh = env_of(target, 3, 1)
    fresh.load(env.state())
    np.testing.assert_array_equal(fresh.recv().obs, begun[0])


def test_before_the_first_row_there_is_nothing_to_keep():
    env, other = env_of("CartPole-v1", 3, 1), env_of("CartPole-v1", 3, 1)
    other.load(env.state())
    np.testing.assert_array_equal(other.recv().obs, env.recv().obs)


def test_a_state_of_other_streams_is_refused():
    env, other = env_of("CartPole-v1", 3), env_of("CartPole-v1", 1)
    env.recv(), other.recv()
    with pytest.raises(
        ValueError, match=r"state of obs: expected float32 \[3, 4\], got an array float32 \[1, 4\]"
    ):
        env.load(other.state())


def test_generators_as_arrays():
    rng = np.random.default_rng(5)
    rng.integers(10, size=3)  # leaves half a word behind
    kept = snapshot.generator_state(rng)
    assert kept.dtype == np.uint8 and json.loads(kept.tobytes())["has_uint32"] == 1
    expected = rng.integers(10, size=50)
    np.testing.assert_array_equal(snapshot.generator(kept).integers(10, size=50), expected)
    with pytest.raises(ValueError, match="PCG64"):
        snapshot.generator(snapshot.generator_state(np.random.Generator(np.random.MT19937(0))))
