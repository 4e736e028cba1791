"""Candidates: rows become segments that cross no end of an episode, each row once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from equipoise import schema
from equipoise.rewards.preferences.candidates import MOST_BYTES, Candidates
from equipoise.rewards.preferences.clips import row_spec
from equipoise.types import Trajectory

SPECS = {"obs": row_spec(spaces.Box(-9, 9, (1,))), "action": row_spec(spaces.Discrete(3))}


def streams(lengths: list[list[int]], rows: int, seams: bool = True) -> Trajectory:
    """Streams of episodes of these lengths, each with a seam after it; the observation of a row is
    its place in its stream.
    """
    shape = (rows + 1, len(lengths))
    first, mask = np.zeros(shape, np.bool_), np.ones(shape, np.bool_)
    for b, several in enumerate(lengths):
        row = 0
        for length in several:
            if row < len(first):
                first[row, b] = True
            row += length
            if seams and row < len(mask):
                mask[row, b] = False
                row += 1
    place = np.broadcast_to(np.arange(rows + 1)[:, None], shape)
    return Trajectory(
        obs=place[..., None].astype(np.float32),
        first=first,
        action=(place[:-1] % 3).astype(np.int64),
        behaviour={},
        reward=place[:-1].astype(np.float32),
        mask=mask[:-1],
        bootstrap=mask[:-1],
        version=np.zeros((rows, len(lengths)), np.int64),
        state={},
        context={
            "stream": np.arange(len(lengths)),
            "start": np.zeros(len(lengths), np.int64),
        },
    )


def part(data: Trajectory, low: int, high: int) -> Trajectory:
    more = {name: getattr(data, name)[low:high] for name in ("action", "reward", "mask")}
    more |= {name: getattr(data, name)[low:high] for name in ("bootstrap", "version")}
    edges = {name: getattr(data, name)[low : high + 1] for name in ("obs", "first")}
    context = {"stream": data.context["stream"], "start": data.context["start"] + low}
    return Trajectory(**more, **edges, behaviour={}, state={}, context=context)


def collected(data: Trajectory, *cuts: int, most: int = 50) -> Candidates:
    made = Candidates(SPECS, rows=4, most=most, seed=1)
    for low, high in zip((0, *cuts), (*cuts, len(data.mask)), strict=True):
        made.collect(part(data, low, high), 0)
    return made


def places(made: Candidates) -> list[list[int]]:
    rows = made.segments()
    return sorted(
        [int(x) for x in obs[:size, 0]] for obs, size in zip(rows.obs, rows.size, strict=True)
    )


def test_no_segment_crosses_an_end_and_short_rests_are_left_out() -> None:
    data = streams([[9, 6, 3, 20]], 26)
    # of 9 rows 1 is left over, of 6 a rest of 2 is half a segment, and 3 are a whole episode
    assert places(collected(data)) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [10, 11, 12, 13],
        [14, 15],
        [17, 18, 19],
        [21, 22, 23, 24],
    ]


@pytest.mark.parametrize("seams", [True, False])
def test_it_does_not_matter_how_rows_arrive(seams: bool) -> None:
    data = streams([[5, 9, 30], [11, 2, 30]], 24, seams)
    whole, cut = collected(data), collected(data, *range(1, 24))
    assert places(whole) == places(cut)
    assert sorted(whole.segments().episode) == sorted(cut.segments().episode)
    rows = whole.segments()
    assert all((r[:n] == o[:n, 0]).all() for r, o, n in zip(rows.reward, rows.obs, rows.size))


def test_two_windows_of_a_stream_in_one_batch_are_taken_in_their_order() -> None:
    data = streams([[40]], 8)
    both: dict[str, Any] = {}
    for name, leaf in data.fields().items():
        if isinstance(leaf, np.ndarray):
            a, b = getattr(part(data, 4, 8), name), getattr(part(data, 0, 4), name)
            both[name] = np.concatenate([a, b], 1)
    context = {"stream": np.array([0, 0]), "start": np.array([4, 0])}
    made = Candidates(SPECS, rows=4, most=50, seed=1)
    made.collect(Trajectory(**both, behaviour={}, state={}, context=context), 0)
    assert places(made) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_lost_rows_end_a_piece() -> None:
    data = streams([[40]], 12)
    made = Candidates(SPECS, rows=4, most=50, seed=1)
    for low, high in ((0, 3), (6, 12)):
        made.collect(part(data, low, high), 0)
    assert places(made) == [[6, 7, 8, 9]]


def test_the_newest_are_kept_and_a_state_goes_on() -> None:
    data = streams([[40], [7, 40]], 30)
    whole = collected(data, most=3)
    half = Candidates(SPECS, rows=4, most=3, seed=1)
    half.collect(part(data, 0, 14), 0)
    other = Candidates(SPECS, rows=4, most=3, seed=1)
    schema.check(half.state(), other.schema(), "")
    other.load(half.state())
    other.collect(part(data, 14, 30), 0)
    assert places(other) == places(whole)
    assert len(whole) == 3


def test_segments_that_are_too_large_are_refused() -> None:
    with pytest.raises(ValueError, match="segment: must have at most .* rows"):
        Candidates(SPECS, rows=MOST_BYTES // 8, most=2, seed=1)


def test_a_row_without_a_step_within_an_episode_ends_a_segment() -> None:
    data = streams([[40]], 12)
    data.mask[6, 0] = False
    assert places(collected(data)) == [[0, 1, 2, 3], [4, 5], [7, 8, 9, 10]]
