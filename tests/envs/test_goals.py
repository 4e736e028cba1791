"""What is asked of a goal env: its rules, and what is said where they are missing or wrong."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformReward

from equipoise.envs import BitFlip
from equipoise.envs.goals import Goals
from tests.envs.rolling import env_of

HERE = "tests.envs.test_goals"


class Reach(gymnasium.Env[Any, Any]):
    """A point on a line, as Gymnasium-Robotics has it: float64 goals, ``compute_terminated`` of one
    row only.
    """

    action_space = spaces.Box(-1, 1, (1,), np.float32)
    names: tuple[str, ...] = ("observation", "achieved_goal", "desired_goal")

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {name: spaces.Box(-9, 9, (1,), np.float64) for name in self.names}
        )
        self.x, self.goal = np.zeros(1), np.zeros(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.x, self.goal = np.zeros(1), self.np_random.uniform(-1, 1, 1)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.x = self.x + action
        return self._seen(), float(self.compute_reward(self.x, self.goal, {})), False, False, {}

    def _seen(self) -> Any:
        return dict.fromkeys(self.names, self.x) | {"desired_goal": self.goal}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -np.linalg.norm(achieved_goal - desired_goal, axis=-1)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
        # over all rows, if given many
        return bool(np.linalg.norm(achieved_goal - desired_goal) < 0.5)


class Keyless(Reach):
    names = ("observation", "desired_goal")


class Mute(Reach):
    compute_reward: Any = property()  # as if there were none

    def step(self, action: Any) -> Any:
        return self._seen(), 0.0, False, False, {}


class OneRow(Reach):
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -np.linalg.norm(achieved_goal - desired_goal)


class Informed(Reach):
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return info["p"]

    def step(self, action: Any) -> Any:
        return self._seen(), 0.0, False, False, {}


class Late(Reach):
    """From its fourth step on its reward has what ``compute_reward`` does not know of; it shows one
    array all along.
    """

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.shown = np.zeros(1)

    def reset(self, **given: Any) -> Any:
        self.steps = 0
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs, reward, *rest = super().step(action)
        self.shown[:] = obs["achieved_goal"]
        return obs | {"achieved_goal": self.shown}, reward + (self.steps > 3), *rest


class Breaking(Reach):
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        if np.max(desired_goal) > 5:
            raise ZeroDivisionError("far away")
        return super().compute_reward(achieved_goal, desired_goal, info)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
        if np.max(desired_goal) > 5:
            raise ZeroDivisionError("far away")
        return False


def doubled() -> Any:
    return TransformReward(Reach(), lambda reward: 2 * float(reward))


def same_step(num_envs: int) -> Any:
    return SyncVectorEnv([BitFlip] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def vector(num_envs: int) -> Any:
    return SyncVectorEnv([BitFlip] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def test_a_termination_that_is_asked_row_by_row() -> None:
    goals = Goals(env_of(f"{HERE}:Reach", 1))
    achieved, desired = np.array([[0.0], [1.0], [5.0]]), np.array([[0.2], [3.0], [5.0]])
    np.testing.assert_allclose(goals.reward(achieved, desired), [-0.2, -2.0, 0.0])
    ended = goals.terminated(achieved, desired)
    assert ended is not None and ended.tolist() == [True, False, True]
    goals.close()


@pytest.mark.parametrize("target", ["equipoise/BitFlip-v0", "python:equipoise/BitFlip-v0"])
def test_bits(target: str) -> None:
    goals = Goals(env_of(target, 1, bits=3))
    achieved, desired = np.array([[0, 1, 1], [1, 1, 1]]), np.array([[0, 1, 1], [1, 0, 1]])
    assert goals.reward(achieved, desired).tolist() == [0.0, -1.0]
    ended = goals.terminated(achieved, desired)
    assert ended is not None and ended.tolist() == [True, False]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "CartPole-v1",
            "expected an env whose observation is a Dict with observation, achieved_goal, "
            "desired_goal, got Box",
        ),
        (f"{HERE}:Keyless", "a Dict with observation, achieved_goal, desired_goal, got Dict"),
        (f"{HERE}:Mute", "expected an env with compute_reward, got <Mute"),
        (f"{HERE}:vector", "expected an env with compute_reward, got SyncVectorEnv"),
        (
            f"{HERE}:OneRow",
            r"expected rewards of shape \[200\] for as many goals at once, got shape \[\]",
        ),
        (f"{HERE}:Informed", "KeyError: 'p'"),
        (
            f"{HERE}:doubled",
            "at step 1 of an episode, .* a wrapper that changes rewards needs a compute_reward "
            "that does the same",
        ),
        (
            f"{HERE}:Late",
            r"<Late.*>: expected compute_reward .* at step 4 of an episode, got .*a compute_reward "
            r"that does the same",
        ),
        (
            f"{HERE}:same_step",
            "expected an env that shows the last observation of an episode, got SyncVectorEnv",
        ),
    ],
)
def test_what_is_no_goal_env_is_refused(target: str, said: str) -> None:
    env = env_of(target, 1)
    with pytest.raises(ValueError, match=said):
        Goals(env)
    env.close()


def test_what_raises_amid_a_run_is_said_with_the_env_and_what_was_asked() -> None:
    goals, near, far = Goals(env_of(f"{HERE}:Breaking", 1)), np.zeros((3, 1)), np.full((3, 1), 8.0)
    assert goals.reward(near, near).shape == (3,)
    for name, asked, shape in (
        ("compute_reward", goals.reward, "3, 1"),
        ("compute_terminated", goals.terminated, "1"),
    ):
        said = (
            rf"replay\.relabel: <Breaking.*>: {name} of goals of shape "
            rf"\[{shape}\].*ZeroDivisionError: far away"
        )
        with pytest.raises(RuntimeError, match=said):
            asked(near, far)
    goals.close()


def test_rewards_that_are_no_numbers_are_refused() -> None:
    goals = Goals(env_of(f"{HERE}:Reach", 1))
    with pytest.raises(ValueError, match="expected finite rewards, got nan"):
        goals.reward(np.array([[np.nan]]), np.zeros((1, 1)))
