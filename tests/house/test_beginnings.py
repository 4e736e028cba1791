"""The table of what a run begins with is what programs begin with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise import api
from equipoise.programs.program import algorithm_class, algorithm_names
from equipoise.types import Policy

PAGE = Path(__file__).parents[2] / "docs/reference/settings.md"
BOX = ("crossq", "sac", "td3", "tqc")  # of Box actions


def beginning(name: str) -> str:
    """The row of an algorithm: what its program has, with nothing named and without a recipe."""
    cls = algorithm_class(name)
    env = "sort" if cls.needs_task else "Pendulum-v1" if name in BOX else "CartPole-v1"
    told = ["source.dataset=data/rows-v0"] if cls.needs_dataset else []
    program = api.program(env, name, recipe=False, settings=told)
    policy, placement = program.policies["main"], program.placement
    assert isinstance(policy, Policy)
    cells = [
        policy.unroll,
        policy.batch,
        placement.actors,
        placement.envs_per_actor,
        "none" if placement.max_lag is None else placement.max_lag,
        getattr(getattr(policy, "replay", None), "updates", ""),
        f"{policy.optimizer.learning_rate:g}",
        policy.optimizer.schedule,
    ]
    return " | ".join(["", f"`{name}`", *map(str, cells), ""]).strip()


@pytest.mark.parametrize("name", algorithm_names())
def test_the_table_has_what_a_program_begins_with(name: str) -> None:
    rows = re.findall(rf"^\| `{name}` \|.*$", PAGE.read_text(), re.MULTILINE)
    assert rows == [beginning(name)]
