"""The ruler measures right, and ``verify`` finds every planted fault."""

import dataclasses

import numpy as np
import pytest

from equipoise.envs.toys.ruler import Ledger, Ruler, episode, reward, row_number, verify
from tests.envs.rolling import env_of, unrolls

TARGETS = [
    "equipoise/Ruler-v0",
    "python:equipoise/Ruler-v0",
    "equipoise.envs:Ruler",
    "tests.envs.test_ruler:in_sync",
]


def in_sync(streams, longest=20):
    from gymnasium.vector import SyncVectorEnv

    return SyncVectorEnv([lambda s=s: Ruler(int(s), longest) for s in streams])


@pytest.fixture(scope="module")
def right():
    """Two trajectories of 60 streams, 40 rows each: every kind of end, episodes of one step, seams
    at all edges.
    """
    first, second = unrolls(env_of("equipoise/Ruler-v0", np.arange(60) + 30), 40, 2)
    for trajectory in (first, second):
        seams = ~trajectory.mask
        assert seams.any() and seams[-1].any() and (seams[2:] & seams[:-2]).any()
        assert (~trajectory.bootstrap).any() and (~second.mask[0]).any()
    return first, second


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("steps", [1, 7, 32])
def test_true_trajectories_prove_themselves(target, steps):
    ledger = Ledger()
    for trajectory in unrolls(env_of(target, [5, 3, 900]), steps, 20):
        assert verify(trajectory, ledger) == []
    assert ledger.rows == 20 * steps * 3


def test_all_ways_give_the_same_rows():
    ways = [list(unrolls(env_of(target, [5, 3]), 50, 2)) for target in TARGETS]
    for way in ways[1:]:
        for one, other in zip(ways[0], way, strict=True):
            for field in ("obs", "first", "action", "reward", "mask", "bootstrap"):
                np.testing.assert_array_equal(
                    getattr(one, field), getattr(other, field), err_msg=field
                )


def test_torch_trajectories_too(right):
    from equipoise import tree

    fields = {
        f.name: tree.torch_views(getattr(right[0], f.name)) for f in dataclasses.fields(right[0])
    }
    assert verify(type(right[0])(**fields)) == []


def shifted(field, rows):
    def plant(trajectory):
        return {field: np.roll(getattr(trajectory, field), rows, axis=0)}

    return plant


def streams_swapped(field):
    def plant(trajectory):
        value = getattr(trajectory, field).copy()
        value[:, [0, 1]] = value[:, [1, 0]]
        return {field: value}

    return plant


def one_cell(field, change):
    def plant(trajectory):
        value = getattr(trajectory, field).copy()
        value[17, 5] = change(value[17, 5])
        return {field: value}

    return plant


def bootstrap_at_truncations_too(trajectory):
    """The classic: a truncation taken for the end."""
    done = np.roll(~trajectory.mask, -1, axis=0)
    done[-1] = False
    return {"bootstrap": trajectory.bootstrap & ~done}


def context(**changes):
    return lambda trajectory: {
        "context": {key: value + changes.get(key, 0) for key, value in trajectory.context.items()}
    }


FIELDS = ("obs", "first", "reward", "mask", "bootstrap", "action")
FAULTS = {
    **{
        f"{field} {rows:+d} row": (field, shifted(field, rows))
        for field in FIELDS
        for rows in (1, -1)
    },
    **{f"{field} of another stream": (field, streams_swapped(field)) for field in FIELDS},
    "one observation a step late": (
        "obs",
        one_cell("obs", lambda x: x + np.array([0, 0, 1], np.float32)),
    ),
    "one observation of another episode": (
        "obs",
        one_cell("obs", lambda x: x + np.array([0, 1, 0], np.float32)),
    ),
    "one first": ("first", one_cell("first", np.logical_not)),
    "one mask": ("mask", one_cell("mask", np.logical_not)),
    "one bootstrap": ("bootstrap", one_cell("bootstrap", np.logical_not)),
    "one reward": ("reward", one_cell("reward", lambda x: x + np.float32(1 / 8))),
    "one action": ("reward", one_cell("action", lambda x: (x + 1) % 8)),
    "bootstrap at truncations": ("bootstrap", bootstrap_at_truncations_too),
    "start of the next row": ("context start", context(start=1)),
    "another stream's name": ("stream", context(stream=1)),
    "a version that goes back": (
        "version",
        lambda trajectory: {"version": trajectory.version - np.arange(40)[:, None]},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(right, fault):
    field, plant = FAULTS[fault]
    found = verify(dataclasses.replace(right[0], **plant(right[0])))
    word = "reward" if field == "action" else field  # an action is proven by the reward that it got
    assert any(line.startswith(word) or word in line.split("[")[0] for line in found), found[:5]


def test_a_single_wrong_cell_is_the_only_complaint(right):
    assert (
        len(
            verify(dataclasses.replace(right[0], **one_cell("bootstrap", np.logical_not)(right[0])))
        )
        == 1
    )
    assert (
        len(verify(dataclasses.replace(right[0], **one_cell("reward", lambda x: x + 1)(right[0]))))
        == 1
    )


def test_the_ledger_follows_streams(right):
    first, second = right
    lost = Ledger()
    assert verify(first, lost) == verify(second, lost) == []
    assert len([line for line in verify(second, lost) if "start" in line]) == 60  # twice
    # the first one is missing
    assert any("expected 0, got 40" in line for line in verify(second, Ledger()))
    assert verify(second, Ledger(), gaps=True) == []
    skipped = dataclasses.replace(
        second, obs=np.roll(second.obs, 1, axis=1), context={**second.context}
    )
    ledger = Ledger()
    verify(first, ledger)
    assert any(line.startswith("obs[0] of stream") for line in verify(skipped, ledger))
    ledger = Ledger()
    verify(second, ledger, gaps=True)
    assert any("went back" in line for line in verify(first, ledger, gaps=True))


def test_a_known_law():
    """Frozen numbers: whoever reads old trajectories recomputes the same episodes."""
    length, terminated, truncated = episode(np.array([0, 0, 1, 7]), np.array([0, 1, 0, 1234]))
    assert length.tolist() == [9, 6, 13, 2]
    assert terminated.tolist() == [True, True, True, False]
    assert truncated.tolist() == [False, False, True, True]
    assert reward(5, 3, 7) == 1024 + 4 + 7 / 8


def test_the_law_is_spread_out():
    length, terminated, truncated = episode(np.arange(100)[:, None], np.arange(100))
    counts = np.bincount(length.ravel(), minlength=21)
    assert (
        counts[0] == 0
        and (abs(counts[2:] - 437) < 110).all()
        and abs(counts[1] - 1687) < 150
        and (terminated | truncated).all()
    )
    assert abs((terminated & truncated).mean() - 0.2) < 0.02 and abs(terminated.mean() - 0.6) < 0.02
    for axis in (0, 1):
        assert abs(np.corrcoef(length.ravel(), np.roll(length, 1, axis).ravel())[0, 1]) < 0.05


def test_row_number_counts_rows():
    env = env_of("python:equipoise/Ruler-v0", [42])
    row = 0
    for trajectory in unrolls(env, 200, 1):
        for row, (stream, number, t) in enumerate(trajectory.obs[:, 0].astype(int).tolist()):
            assert row_number(stream, number, t) == row
    assert row == 200


@pytest.mark.parametrize("target", ["equipoise/Ruler-v0", "python:equipoise/Ruler-v0"])
def test_a_straggler_sleeps(target, monkeypatch):
    slept = []
    monkeypatch.setattr("equipoise.envs.toys.ruler.time.sleep", slept.append)
    for streams in ([0, 1], [2, 3]):
        env = env_of(target, streams, stragglers=[3], sleep_s=0.25, dtype="int64")
        trajectory = next(unrolls(env, 10, 1))
        assert trajectory.obs.dtype == np.int64 and verify(trajectory) == []
        assert set(slept) <= {0.25} and bool(slept) == (3 in streams)
