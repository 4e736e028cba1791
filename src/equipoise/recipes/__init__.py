"""Named runs: functions that return a ``Program``, each with its source and its deviations."""

from __future__ import annotations

from collections.abc import Callable

from equipoise.recipes import classic, mujoco
from equipoise.types import Program

__all__ = ["RECIPES", "find"]

RECIPES: dict[tuple[str, str], Callable[[], Program]] = {
    ("CartPole-v1", "ppo"): classic.cartpole_ppo,
    ("CartPole-v1", "impala"): classic.cartpole_impala,
    ("Acrobot-v1", "ppo"): classic.acrobot_ppo,
    ("Acrobot-v1", "impala"): classic.acrobot_impala,
    ("HalfCheetah-v5", "ppo"): mujoco.halfcheetah_ppo,
    ("Hopper-v5", "ppo"): mujoco.hopper_ppo,
    ("Walker2d-v5", "ppo"): mujoco.walker2d_ppo,
}


def find(env: str, algorithm: str) -> Callable[[], Program] | None:
    """The recipe for an env and an algorithm, if there is one."""
    return RECIPES.get((env, algorithm))
