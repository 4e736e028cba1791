"""The page of lags says the limits that the algorithms say."""

from __future__ import annotations

import re
from pathlib import Path

from equipoise.programs.program import algorithm_class, algorithm_names

PAGE = Path(__file__).parents[2] / "docs/inside/lag.md"
NAMES = {
    "Ape-X": "apex_dqn",
    "REINFORCE++": "reinforce_pp",
    "PPO by tokens": "token_ppo",
    "reward model": "reward_model",
}


def limits() -> dict[str, float | None]:
    """The limit of the mean lag by algorithm, as the page's table has it."""
    rows = re.findall(r"^\| ([\w, +-]+) \| [^|]+ \| (\d*) ?\|", PAGE.read_text(), re.MULTILINE)
    names = {
        NAMES.get(name, name.lower().replace("-", "_")): limit
        for row, limit in rows
        for name in row.split(", ")
    }
    return {name: float(limit) if limit else None for name, limit in names.items()}


def test_the_page_of_lags_says_what_each_algorithm_bears() -> None:
    assert {name: limits().get(name, "missing") for name in algorithm_names()} == {
        name: algorithm_class(name).max_sensible_lag for name in algorithm_names()
    }
