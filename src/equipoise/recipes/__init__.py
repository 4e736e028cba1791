"""Tuned runs: tables of settings by env and algorithm, each with its source and its deviations.

A recipe is a list of ``--set`` settings: values by their keys, laid over the defaults of the
algorithm. Settings that a recipe leaves out stay as the algorithm has them.
"""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.recipes import (
    atari,
    box2d,
    classic,
    goals,
    jax_envs,
    memory,
    minigrid,
    mujoco,
    texts,
)

__all__ = ["RECIPES", "find"]

RECIPES: Mapping[tuple[str, str], Mapping[str, object]] = {
    recipe: settings
    for room in (classic, box2d, mujoco, atari, minigrid, goals, memory, texts, jax_envs)
    for recipe, settings in room.RECIPES.items()
}


def find(env: str, algorithm: str) -> Mapping[str, object] | None:
    """The settings for an env and an algorithm, if there is a recipe."""
    return RECIPES.get((env, algorithm))
