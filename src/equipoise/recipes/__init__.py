"""Named runs: functions that return a ``Program``, each with its source and its deviations."""

from __future__ import annotations

from collections.abc import Callable

from equipoise.recipes import atari, classic, goals, memory, minigrid, mujoco
from equipoise.types import Program

__all__ = ["RECIPES", "find"]

RECIPES: dict[tuple[str, str], Callable[[], Program]] = {
    ("CartPole-v1", "ppo"): classic.cartpole_ppo,
    ("CartPole-v1", "impala"): classic.cartpole_impala,
    ("CartPole-v1", "appo"): classic.cartpole_appo,
    ("CartPole-v1", "a3c"): classic.cartpole_a3c,
    ("Acrobot-v1", "ppo"): classic.acrobot_ppo,
    ("Acrobot-v1", "impala"): classic.acrobot_impala,
    ("Acrobot-v1", "appo"): classic.acrobot_appo,
    ("Acrobot-v1", "a3c"): classic.acrobot_a3c,
    ("CartPole-v1", "dqn"): classic.cartpole_dqn,
    ("CartPole-v1", "sac"): classic.cartpole_sac,
    ("Pendulum-v1", "sac"): classic.pendulum_sac,
    ("Pendulum-v1", "td3"): classic.pendulum_td3,
    ("HalfCheetah-v5", "ppo"): mujoco.halfcheetah_ppo,
    ("HalfCheetah-v5", "sac"): mujoco.halfcheetah_sac,
    ("HalfCheetah-v5", "td3"): mujoco.halfcheetah_td3,
    ("Hopper-v5", "ppo"): mujoco.hopper_ppo,
    ("Walker2d-v5", "ppo"): mujoco.walker2d_ppo,
    ("ALE/Pong-v5", "impala"): atari.pong_impala,
    ("ALE/Pong-v5", "ppo"): atari.pong_ppo,
    ("ALE/Pong-v5", "dqn"): atari.pong_dqn,
    ("ALE/Pong-v5", "apex_dqn"): atari.pong_apex,
    ("MiniGrid-DoorKey-5x5-v0", "ppo"): minigrid.doorkey_ppo,
    ("equipoise/BitFlip-v0", "dqn"): goals.bitflip_dqn,
    ("CartPole-v1", "apex_dqn"): classic.cartpole_apex,
    ("equipoise/TMaze-v0", "r2d2"): memory.tmaze_r2d2,
    ("equipoise/RepeatFirst-v0", "r2d2"): memory.repeat_r2d2,
}


def find(env: str, algorithm: str) -> Callable[[], Program] | None:
    """The recipe for an env and an algorithm, if there is one."""
    return RECIPES.get((env, algorithm))
