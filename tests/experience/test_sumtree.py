"""The sum tree against a running sum over all masses, at its edges, and after a million updates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.experience.replay import sumtree
from equipoise.experience.replay.sumtree import SumTree


@pytest.fixture(autouse=True, scope="module")
def levels():
    """Few roots, so that small trees have several levels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sumtree, "ROOTS", 3)
        yield


def naive(mass, value):
    """The first place at which the running sum exceeds the value."""
    return [next(i for i, total in enumerate(np.cumsum(mass)) if total > v) for v in value]


@given(st.data(), st.integers(1, 40))
def test_it_finds_what_a_running_sum_finds(data, places):
    tree, mass = SumTree(places), np.zeros(places)
    for _ in range(data.draw(st.integers(1, 6))):
        # Whole numbers: their sums are exact in any order.
        moves = data.draw(
            st.lists(st.tuples(st.integers(0, places - 1), st.integers(0, 5)), max_size=2 * places)
        )
        for place, new in moves:
            mass[place] = new  # the last of equal places holds
        tree.set(
            np.array([p for p, _ in moves], np.int64), np.array([m for _, m in moves], np.float64)
        )
        for _ in range(data.draw(st.integers(0, 3))):
            begin = data.draw(st.integers(0, places))
            end = data.draw(st.integers(begin, places))
            tree.mass[begin:end] = mass[begin:end] = data.draw(st.integers(0, 5))
            tree.changed(begin, end)
        assert tree.mass.tolist() == mass.tolist() and tree.total == mass.sum()
        if tree.total:
            value = np.arange(0, tree.total, 0.5)
            assert tree.find(value).tolist() == naive(mass, value)


@given(st.integers(0, 2**32 - 1), st.integers(1, 200))
def test_it_never_finds_a_mass_of_zero(seed, places):
    rng = np.random.default_rng(seed)
    mass = 10 ** rng.uniform(-12, 12, places) * (rng.random(places) < 0.5)
    mass[rng.integers(places)] = 1e-12
    tree = SumTree(places)
    tree.set(np.arange(places), mass)
    edges = np.cumsum(mass)
    value = np.concatenate(
        [
            rng.random(100) * tree.total,
            edges,
            np.nextafter(edges, 0),
            [0.0, tree.total, 2 * tree.total],
        ]
    )
    found = tree.find(value)
    assert found.min() >= 0 and found.max() < places and (mass[found] > 0).all()


def test_a_value_that_rounds_to_the_end_of_its_node_stays_in_front_of_the_zeros(monkeypatch):
    monkeypatch.setattr(sumtree, "ROOTS", 1)
    tree = SumTree(4)
    tree.set(np.arange(4), np.array([3 * 2.0**-54, 0, 1 - 2.0**-52, 0]))
    # Less the left sum it is 1 - 5 * 2**-54, half-way between two numbers, and the even one is the
    # whole right sum.
    assert tree.find(np.array([1 - 2.0**-53])).tolist() == [2]


def test_only_one_mass_is_found_wherever_it_is():
    for places in (1, 2, 3, 7, 100):
        for only in range(places):
            tree = SumTree(places)
            tree.set(np.array([only]), np.array([5e-324]))
            assert tree.find(np.array([0.0, 5e-324, 1.0])).tolist() == [only] * 3


@pytest.mark.parametrize("places", [7, 1_000, 65_537])
def test_sums_do_not_drift(places):
    rng, tree, batch = np.random.default_rng(places), SumTree(places), 500
    for _ in range(1_000_000 // batch):
        tree.set(rng.integers(0, places, batch), 10 ** rng.uniform(-12, 12, batch))
    # what differences would have left of 10^12 is more than all this
    tree.set(np.arange(places), np.full(places, 1e-12))
    assert abs(tree.total / math.fsum(tree.mass) - 1) < 1e-6
    np.testing.assert_array_equal(tree.find(np.arange(0.5, places) * 1e-12), np.arange(places))


def test_a_loaded_tree_is_the_same_to_the_last_bit():
    rng, tree, loaded = np.random.default_rng(0), SumTree(1_000), SumTree(1_000)
    for _ in range(200):
        tree.set(rng.integers(0, 1_000, 50), 10 ** rng.uniform(-12, 12, 50))
    loaded.set(rng.integers(0, 1_000, 50), np.ones(50))
    loaded.load(tree.mass)
    np.testing.assert_array_equal(loaded._nodes, tree._nodes)
    assert loaded.total == tree.total


def test_refusals():
    with pytest.raises(ValueError, match="at least 1 place, got 0"):
        SumTree(0)
    with pytest.raises(ValueError, match="there is nothing to find"):
        SumTree(3).find(np.zeros(1))
    with pytest.raises(ValueError, match=r"shape \(3,\), got \(4,\)"):
        SumTree(3).load(np.zeros(4))
