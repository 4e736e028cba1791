"""Statistics of scores equal those of rliable, for the same resampled runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from equipoise.studies import statistics
from equipoise.studies.statistics import (
    interval,
    iqm,
    mean,
    probability_of_improvement,
    profile,
    resamples,
)

GOLDEN = json.loads(Path(__file__).with_name("rliable.json").read_text())  # tools/rliable_golden.py
CLOSE = dict(rtol=0, atol=1e-6)
MATRICES = {name: np.array(one["scores"]) for name, one in GOLDEN["matrices"].items()}


def same(measure, scores, golden):
    """Our value and interval are rliable's."""
    indices = [np.array(one) for one in golden["indices"]]
    np.testing.assert_allclose(measure(*scores), np.squeeze(golden["value"]), **CLOSE)
    ends = interval(measure, scores, indices)
    np.testing.assert_allclose(ends, np.squeeze(golden["interval"]), **CLOSE)


def aggregates(scores):
    return np.stack([getattr(statistics, name)(scores) for name in GOLDEN["aggregates"]], axis=-1)


@pytest.mark.few(9)
@pytest.mark.parametrize("name", MATRICES)
def test_aggregates_and_their_intervals_are_those_of_rliable(name):
    same(aggregates, [MATRICES[name]], GOLDEN["matrices"][name]["aggregates"])


@pytest.mark.few(9)
@pytest.mark.parametrize("name", MATRICES)
def test_profiles_and_their_bands_are_those_of_rliable(name):
    same(
        lambda scores: profile(scores, GOLDEN["thresholds"]),
        [MATRICES[name]],
        GOLDEN["matrices"][name]["profile"],
    )


@pytest.mark.few(9)
@pytest.mark.parametrize("one", GOLDEN["improvement"], ids=lambda one: f"{one['x']} {one['y']}")
def test_the_probability_of_improvement_is_that_of_rliable(one):
    same(probability_of_improvement, [MATRICES[one["x"]], MATRICES[one["y"]]], one)


def test_the_golden_file_has_arrays_of_unequal_sizes_and_intervals_with_a_width():
    assert len({x.shape for x in MATRICES.values()}) > 4
    assert any(len(MATRICES[one["x"]]) != len(MATRICES[one["y"]]) for one in GOLDEN["improvement"])
    low, high = np.array(GOLDEN["matrices"]["5x3"]["aggregates"]["interval"])
    assert (low < high).all()


def test_the_probabilities_of_a_pair_add_up_to_one():
    x, y = MATRICES["5x3"], MATRICES["ties"]
    assert probability_of_improvement(x, y) + probability_of_improvement(y, x) == pytest.approx(1)
    assert probability_of_improvement(x, x) == 0.5
    assert probability_of_improvement(x + 100, y) == 1


def test_resamples_have_the_runs_of_each_task_on_its_own_and_the_same_seed_draws_the_same():
    scores = np.arange(12.0).reshape(4, 3)
    drawn = resamples(scores, count=50, seed=3)
    assert drawn.shape == (50, 4, 3) and set(drawn.ravel()) == {0, 1, 2, 3}
    assert (drawn != drawn[:, :, :1]).any(), "the tasks have draws of their own"
    np.testing.assert_array_equal(drawn, resamples(scores, count=50, seed=3))
    assert (drawn != resamples(scores, count=50, seed=4)).any()


def test_an_interval_does_not_depend_on_the_size_of_a_block(monkeypatch):
    scores = [MATRICES["5x3"], MATRICES["ties"]]
    drawn = [resamples(one, count=101, seed=i) for i, one in enumerate(scores)]
    whole = interval(probability_of_improvement, scores, drawn)
    monkeypatch.setattr(statistics, "BLOCK", 400)
    np.testing.assert_array_equal(whole, interval(probability_of_improvement, scores, drawn))


def test_a_single_run_has_an_interval_without_a_width():
    scores = np.array([[0.25, 0.75]])
    low, high = interval(iqm, [scores], [resamples(scores, count=20, seed=0)])
    assert low == high == mean(scores) == 0.5
