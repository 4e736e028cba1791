"""Observations that a caller brings: those outside of a space of whole numbers are refused, as
training refuses them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from equipoise.actors.playing import read_rows
from equipoise.types import EnvSpec

SPACES: dict[str, tuple[Any, Any, list[tuple[Any, str]]]] = {
    "discrete": (
        spaces.Discrete(3, start=4),
        5,
        [(3, "obs: expected 4 to 6, got 3"), (7, "obs: expected 4 to 6, got 7")],
    ),
    "counts": (
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [0, -3]])),
        [[1, 3], [0, -3]],
        [
            ([[1, 3], [0, 2]], r"obs: expected -3 to 1 at \[1, 1\], got 2"),
            ([[1, 0], [0, 0]], r"obs: expected 1 to 3 at"),
        ],
    ),
    "binary": (
        spaces.MultiBinary(3),
        [0, 1, 1],
        [([0, 2, 1], r"obs: expected 0 to 1 at \[1\], got 2")],
    ),
    "wide": (
        spaces.Discrete(3, start=2**40),
        2**40 + 2,
        [(0, f"obs: expected {2**40} to {2**40 + 2}, got 0")],
    ),
    "nested": (
        spaces.Dict(
            {"a/b": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)])}
        ),
        {"a/b": (1, [5.0, 5.0])},
        [({"a/b": (2, [0.0, 0.0])}, "obs/a~1b/0: expected 0 to 1, got 2")],
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_a_number_outside_of_its_space_is_refused(name: str) -> None:
    space, fine, wrong = SPACES[name]
    spec = EnvSpec(observation=space, action=spaces.Discrete(2))
    assert read_rows(spec, fine)[1]
    for value, sentence in wrong:
        with pytest.raises(ValueError, match=sentence):
            read_rows(spec, value)


def test_the_row_of_a_batch_is_named() -> None:
    spec = EnvSpec(observation=spaces.Discrete(3), action=spaces.Discrete(2))
    rows, single = read_rows(spec, [0, 2, 1])
    first: Any = next(iter(rows.values())) if isinstance(rows, dict) else rows
    assert not single and first.tolist() == [0, 2, 1]
    with pytest.raises(ValueError, match="obs: expected 0 to 2, got 9 in row 1"):
        read_rows(spec, [0, 9, 1])
