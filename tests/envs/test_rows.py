"""The rows that envs answer, against Gymnasium's own semantics."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import TransformReward

from equipoise.envs import make
from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.hints import LONGEST
from equipoise.seeds import stream_seeds
from equipoise.types import EnvFactory
from tests.envs.rolling import Recording, Scripted, env_of, rows, two_scripted

HERE = "tests.envs.rolling"


class TwoScripted(VectorEnv[Any, Any, Any]):
    """A native vector env with the same episodes (says nothing of autoreset unless told to)."""

    num_envs = 2
    single_observation_space = Scripted.observation_space
    single_action_space = Scripted.action_space

    def __init__(self, mode: Any = None) -> None:
        self.inner = two_scripted()
        self.metadata = {} if mode is None else {"autoreset_mode": mode}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.inner.reset()

    def step(self, actions: Any) -> Any:
        return self.inner.step(actions)


def loop() -> Any:
    return env_of(f"{HERE}:Scripted", 1)


def sync() -> Any:
    return env_of(f"{HERE}:two_scripted", 2)


def native() -> Any:
    return GymnasiumEnv(TwoScripted(AutoresetMode.NEXT_STEP), streams=np.arange(2), seed=0)


@pytest.mark.parametrize("make", [loop, sync, native])
def test_next_step_truth_table(make):
    """Episodes of 2 (terminated), 1 (truncated), 3 (both): every end is followed by exactly one
    seam.
    """
    env = make()
    got = rows(env, np.zeros((9, len(env.ts.stream)), int))
    column = {name: value[:, 0].tolist() for name, value in got.items()}
    T, F = True, False
    assert column["obs"] == [
        [0, 0],
        [0, 1],
        [0, 2],
        [1, 0],
        [1, 1],
        [2, 0],
        [2, 1],
        [2, 2],
        [2, 3],
        [3, 0],
    ]
    assert column["reward"] == [0, 1, 2, 0, 11, 0, 21, 22, 23, 0]
    assert column["terminated"] == [F, F, T, F, F, F, F, F, T, F]
    assert column["truncated"] == [F, F, F, F, T, F, F, F, T, F]
    assert column["first"] == [T, F, F, T, F, T, F, F, F, T]
    assert column["valid"] == [F, T, T, F, T, F, T, T, T, F]
    assert got["obs"].dtype == got["reward"].dtype == np.float32
    assert env.spec.notes == ()


def test_autoreset_must_be_said():
    with pytest.raises(ValueError, match="does not set metadata"):
        GymnasiumEnv(TwoScripted(), streams=np.arange(2), seed=0)
    for odd in (None, [], "metadata", {"autoreset_mode": []}, {"autoreset_mode": "same"}):
        env = TwoScripted()
        env.metadata = odd
        with pytest.raises(ValueError, match="does not set metadata"):
            GymnasiumEnv(env, streams=np.arange(2), seed=0)
    with pytest.raises(ValueError, match="autoreset disabled"):
        env_of(f"{HERE}:two_scripted", 2, mode="Disabled")
    assert GymnasiumEnv(TwoScripted("NextStep"), streams=np.arange(2), seed=0).same_step is False


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_loop_equals_sync_vector_env(name):
    B, n, seed, limit = 5, 150, 3, 40
    theirs = SyncVectorEnv([lambda: gymnasium.make(name, max_episode_steps=limit)] * B)
    obs, _ = theirs.reset(seed=stream_seeds(seed, range(B)))
    theirs.action_space.seed(0)
    actions = np.stack([theirs.action_space.sample() for _ in range(n)])
    env = env_of(f"python:{name}", B, seed, max_episode_steps=limit)
    got = rows(env, actions)
    np.testing.assert_array_equal(got["obs"][0], obs)
    for t, action in enumerate(actions, 1):
        obs, reward, terminated, truncated, _ = theirs.step(action)
        np.testing.assert_array_equal(got["obs"][t], obs)
        np.testing.assert_array_equal(got["reward"][t], reward.astype(np.float32))
        np.testing.assert_array_equal(got["terminated"][t], terminated)
        np.testing.assert_array_equal(got["truncated"][t], truncated)
    assert got["truncated"].any() and not got["valid"][1:].all()


def test_native_is_used_as_it_is():
    B, n = 6, 120
    env = env_of("CartPole-v1", B, 9)
    theirs = gymnasium.make_vec("CartPole-v1", num_envs=B, vectorization_mode="vector_entry_point")
    assert type(env.env) is type(theirs)
    obs, _ = theirs.reset(seed=stream_seeds(9, [0])[0])
    actions = np.random.default_rng(0).integers(0, 2, (n, B))
    got = rows(env, actions)
    np.testing.assert_array_equal(got["obs"][0], obs)
    for t, action in enumerate(actions, 1):
        obs, reward, terminated, _, _ = theirs.step(action)
        np.testing.assert_array_equal(got["obs"][t], obs)
        np.testing.assert_array_equal(got["reward"][t], reward)
        np.testing.assert_array_equal(got["terminated"][t], terminated)
    assert (got["reward"][1:] == got["valid"][1:]).all() and not got["valid"][1:].all()


def test_a_wrapped_reward_is_still_zero_on_a_seam():
    def plus_one(rewards: Any) -> Any:
        return rewards + 1

    env = GymnasiumEnv(
        TransformReward(TwoScripted("NextStep"), plus_one), streams=np.arange(2), seed=0
    )
    got = rows(env, np.zeros((9, 2), int))
    assert got["reward"][:, 0].tolist() == [0, 2, 3, 0, 12, 0, 22, 23, 24, 0]


def test_recv_reuses_its_arrays():
    env = env_of("CartPole-v1", 3)
    ts = env.recv()
    before = {
        name: id(getattr(ts, name))
        for name in ("obs", "reward", "terminated", "truncated", "first", "valid", "stream")
    }
    env.send(np.ones(3, np.int64), ts.stream.copy())
    after = env.recv()
    assert after is ts and {name: id(getattr(after, name)) for name in before} == before


def test_send_and_recv_take_turns():
    env = env_of(f"{HERE}:Scripted", [4, 5])
    with pytest.raises(RuntimeError, match="has not answered the reset"):
        env.send(np.zeros(2, int), np.array([4, 5]))
    env.recv()
    with pytest.raises(RuntimeError, match="no action was sent"):
        env.recv()
    with pytest.raises(ValueError, match="all streams"):
        env.send(np.zeros(2, int), np.array([5, 4]))
    with pytest.raises(ValueError, match="shape"):
        env.send(np.zeros(3, int), np.array([4, 5]))
    env.send(np.zeros(2, int), np.array([4, 5]))
    with pytest.raises(RuntimeError, match="last action"):
        env.send(np.zeros(2, int), np.array([4, 5]))


def test_box_actions_are_clipped_and_the_env_may_keep_them():
    env = env_of(f"{HERE}:Recording", 2)
    mine = np.array([[-3.0, 1.5], [0.25, 9.0]], np.float32)
    env.recv()
    env.send(mine, np.arange(2))
    mine[:] = 7.0  # the caller's own again
    env.recv()
    env.send(np.zeros((2, 2), np.float32), np.arange(2))
    env.recv()
    kept = [one.got[0] for one in env.envs]
    assert [k.tolist() for k in kept] == [[-1.0, 1.5], [0.25, 2.0]] and kept[0].dtype == np.float64
    assert mine.tolist() == [[7.0, 7.0], [7.0, 7.0]]


def test_discrete_actions_are_the_envs_own():
    env = env_of(f"{HERE}:Recording", 2, space="discrete")
    rows(env, [np.array([5, 7]), np.array([6, 6])])
    assert [one.got for one in env.envs] == [[5, 6], [7, 6]]


def test_the_caller_may_overwrite_what_it_sent():
    one, other = env_of("CartPole-v1", 4), env_of("CartPole-v1", 4)
    mine = np.array([0, 1, 0, 1])
    for env in (one, other):
        env.recv()
        env.send(mine, env.ts.stream)
    right = one.recv().obs.copy()
    mine[:] = 1 - mine
    np.testing.assert_array_equal(other.recv().obs, right)


def test_an_exception_names_the_stream():
    env = env_of(f"{HERE}:Recording", [7, 8, 9])
    env.recv()
    env.envs[1].step = None
    env.send(np.zeros((3, 2), np.float32), env.ts.stream)
    with pytest.raises(TypeError) as error:
        env.recv()
    assert "stream 8" in error.value.__notes__[0]


def test_close_twice():
    env = env_of(f"{HERE}:Recording", 2)
    closed: list[int] = []
    env.envs[0].close = lambda: closed.append(0)
    env.close()
    env.close()
    assert closed == [0]


def test_kept_actions_stay_what_they_were():
    assert Recording().got == []
    env = env_of(f"{HERE}:Recording", 1)
    rows(env, [np.full((1, 2), x, np.float32) for x in (0.1, 0.2, 0.3)])
    np.testing.assert_allclose([kept[0] for kept in env.envs[0].got], [0.1, 0.2, 0.3], rtol=1e-6)


@pytest.mark.parametrize("raises", [False, True])
def test_a_close_that_raises_keeps_no_other_env_open(raises):
    closed: list[int] = []

    def close(i: int) -> None:
        closed.append(i)
        if i == 1:
            raise OSError("the display is gone")

    env = env_of(f"{HERE}:Recording", [7, 8, 9])
    for i, one in enumerate(env.envs):
        one.close = lambda i=i: close(i)
    if raises:
        with pytest.raises(OSError, match="the display is gone"):
            env.close(raises=True)
    else:
        with pytest.warns(
            RuntimeWarning, match=r"stream 8: close\(\) raised OSError.*is gone.*may stay open"
        ):
            env.close()
    env.close()
    assert closed == [0, 1, 2]


class Odd(gymnasium.Env):
    """Answers in another form than Gymnasium's."""

    observation_space, action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)

    def __init__(self, form: str) -> None:
        self.form = form

    def reset(self, *, seed=None, options=None):
        obs = np.zeros(3, np.float32)
        return obs if self.form == "obs" else None if self.form == "none" else (obs, {})

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, {}


class OddVector(VectorEnv):
    num_envs, metadata = 2, {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space, single_action_space = Odd.observation_space, Odd.action_space
    observation_space, action_space = (
        batch_space(Odd.observation_space, 2),
        batch_space(Odd.action_space, 2),
    )

    def __init__(self, form: str, num_envs: int = 2) -> None:
        self.form = form

    def reset(self, *, seed=None, options=None):
        obs = np.zeros((2, 3), np.float32)
        return (obs, obs, obs) if self.form == "obs" else None if self.form == "none" else (obs, {})

    def step(self, actions):
        return np.zeros((2, 3), np.float32), np.zeros(2), np.zeros(2, bool), {}


@pytest.mark.parametrize("target", ["Odd", "OddVector"])
@pytest.mark.parametrize("form", ["obs", "none", "four"])
def test_an_answer_of_another_form_is_told_what_it_should_be(target, form):
    env = make(
        EnvFactory(target=f"{__name__}:{target}", kwargs={"form": form}),
        streams=np.arange(2),
        seed=0,
    )
    with pytest.raises(
        WrongValue,
        match=r"its answer: expected \(obs, info\) of reset\(\) and \(obs, reward, .* got .*unpack",
    ):
        a_step(env)
    env.close()


def a_step(env):
    env.recv()
    env.send(np.zeros(2, np.int64), env.ts.stream)
    env.recv()


class Unsayable(Exception):
    def __str__(self):
        raise OSError("no words")

    __repr__ = __str__


@pytest.mark.parametrize("error", [Unsayable(), SystemExit(3), ValueError("x" * 10**6)])
def test_whatever_a_close_raises_is_one_warning(error):
    def close():
        raise error

    env = env_of(f"{HERE}:Recording", 1)
    env.envs[0].close = close
    with pytest.warns(RuntimeWarning, match=rf"close\(\) raised {type(error).__name__}") as told:
        env.close()
    assert len(str(told[0].message)) < LONGEST + 500
