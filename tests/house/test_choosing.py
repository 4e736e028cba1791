"""The table of ``docs/guides/choosing-an-algorithm.md`` is that of the algorithms: each cell is
asked of the class, its fields and the network that it makes.
"""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from equipoise import algorithms
from equipoise.facts import facts
from equipoise.types import Algorithm
from equipoise.types.rows import EnvSpec

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "choosing-an-algorithm.md"
OBSERVATION = Box(-1.0, 1.0, (4,), np.float32)
MASKED = gymnasium.spaces.Dict(obs=OBSERVATION, action_mask=MultiBinary(3))
BOX = Box(-1.0, 1.0, (2,), np.float32)
DICT = gymnasium.spaces.Dict(a=Discrete(2), b=BOX)


def takes(algorithm: Algorithm, *actions: gymnasium.Space[object], masked: bool = False) -> str:
    """ "yes" if the algorithm has a network for each of these action spaces."""
    for action in actions:
        observation = MASKED if masked else OBSERVATION
        mask = ("action_mask",) if masked else ()
        try:
            algorithm.network(EnvSpec(observation=observation, action=action, mask=mask))
        except ValueError:
            return "–"
    return "yes"


def row(name: str) -> str:
    kind: type[Algorithm] = getattr(algorithms, name)
    one = kind()
    page = next(file for file, known in PAGES.items() if known == name)
    data = "replay" if kind.needs_replay else "on policy, or nearly"
    if kind.needs_dataset:
        data = "a data set"
    cells = [
        f"[{name}](../reference/algorithms/{page}.md)",
        takes(one, Discrete(3)),
        takes(one, MultiDiscrete([3, 2]), MultiBinary(3)),
        takes(one, BOX),
        takes(one, DICT),
        takes(one, Discrete(3), masked=True),
        "yes" if "core" in facts(kind) else "–",
        data,
    ]
    return "| " + " | ".join(cells) + " |"


PAGES = {
    "ppo": "PPO",
    "a2c": "A2C",
    "a3c": "A3C",
    "appo": "APPO",
    "impala": "IMPALA",
    "dqn": "DQN",
    "qr_dqn": "QRDQN",
    "apex_dqn": "ApexDQN",
    "r2d2": "R2D2",
    "sac": "SAC",
    "tqc": "TQC",
    "crossq": "CrossQ",
    "td3": "TD3",
    "bc": "BC",
}


def table() -> list[str]:
    text = PAGE.read_text()
    begin, end = "<!-- algorithms -->\n", "<!-- end of algorithms -->"
    return text[text.index(begin) + len(begin) : text.index(end)].splitlines()[2:]


def test_the_table_has_every_algorithm_that_plays_an_env() -> None:
    kinds = {name: getattr(algorithms, name) for name in algorithms.__all__}
    assert {*PAGES.values()} == {name for name, kind in kinds.items() if not kind.needs_task}


@pytest.mark.parametrize("number", range(len(PAGES)), ids=list(PAGES))
def test_a_row_is_true(number: int) -> None:
    assert table()[number] == row(list(PAGES.values())[number])
