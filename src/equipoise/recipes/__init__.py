"""Tuned runs: tables of settings by env and algorithm, each with its source and its deviations.

A recipe is what ``--set`` would say: settings by their keys, laid over the defaults of the algorithm. What a recipe leaves out
stays as the algorithm has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.nets.precision import native_bf16
from equipoise.recipes import atari, box2d, classic, goals, memory, minigrid, mujoco

__all__ = ["RECIPES", "find"]

RECIPES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    recipe: settings
    for room in (classic, box2d, mujoco, atari, minigrid, goals, memory)
    for recipe, settings in room.RECIPES.items()
}


def find(env: str, algorithm: str) -> Mapping[str, Any] | None:
    """The settings for an env and an algorithm, if there is a recipe; fp32 where the processor has no bf16 instructions."""
    found = RECIPES.get((env, algorithm))
    return found if found is None or not falls_back(env, algorithm) else {**found, "placement.precision": "fp32"}


def falls_back(env: str, algorithm: str) -> str:
    """Why a recipe is not taken as it stands, in a sentence; "" where it is."""
    if RECIPES.get((env, algorithm), {}).get("placement.precision") != "bf16" or native_bf16():
        return ""
    return "precision: fp32 instead of the recipe's bf16, since this processor has no bf16 instructions"
