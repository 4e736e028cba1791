"""The age of experience, in versions and in seconds, against a twin that remembers everything."""

import numpy as np
import pytest

from equipoise.histograms import EDGES, SECONDS, VERSIONS, filled, tally
from equipoise.learners import lags as module
from equipoise.learners.lags import Lags, distinct


def test_a_bin_has_its_upper_end_and_one_more_has_the_rest():
    counts = np.zeros(len(VERSIONS) + 1)
    tally(counts, VERSIONS, np.array([0, 1, 4, 5, 6, 7, 10**9]))
    assert filled(counts, VERSIONS) == {"0": 1, "1": 1, "4": 1, "6": 2, "8": 1, "inf": 1}
    assert list(VERSIONS) == sorted(set(VERSIONS)) and list(SECONDS) == sorted(set(SECONDS))


@pytest.mark.parametrize("most", [2, 63, 64, 5000])
def test_distinct_lags_are_those_of_numpy(most):
    lag = np.random.default_rng(0).integers(0, most + 1, 300)
    for mine, numpys in zip(distinct(lag), np.unique(lag, return_counts=True), strict=True):
        assert mine.tolist() == numpys.tolist()


class Twin:
    """Remembers every version, and every age."""

    def __init__(self):
        self.at, self.ages = {}, []

    def used(self, now, version, lag):
        for acted in (version - lag).tolist():
            before = [v for v in self.at if v <= acted]
            if before:
                self.ages.append(now - self.at[max(before)])


@pytest.mark.parametrize("every", [1, 3])
def test_ages_in_seconds_are_those_of_the_versions_that_acted(every, monkeypatch):
    now, rng = [0.0], np.random.default_rng(1)
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    counts = {name: np.zeros(len(EDGES[name]) + 1) for name in ("versions", "seconds")}
    lags, twin = Lags(counts), Twin()
    for version in range(40, 100):  # a run that was resumed at 40: nothing is known of before
        if version % every == 0:
            lags.published(version)
            twin.at[version] = now[0]
        now[0] += rng.exponential(0.5)
        lag = np.sort(rng.integers(0, 60, 7))
        lags.used(version, *distinct(lag))
        twin.used(now[0], version, lag)
    wanted = np.zeros(len(SECONDS) + 1)
    tally(wanted, SECONDS, np.array(twin.ages))
    assert (
        counts["seconds"].tolist() == wanted.tolist()
        and 0 < wanted.sum() < counts["versions"].sum() == 60 * 7
    )


def test_what_acted_before_all_that_is_kept_is_as_old_as_the_oldest(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module, "KNOWN", 4)
    counts = {name: np.zeros(len(EDGES[name]) + 1) for name in ("versions", "seconds")}
    lags = Lags(counts)
    for version in range(9):  # the ninth moves the last four to the front
        lags.published(version)
        now[0] += 1.0
    lags.used(9, np.array([0, 1, 6, 9]), np.array([1, 1, 1, 1]))
    assert filled(counts["seconds"], SECONDS) == {"1": 2, "6.3": 2}
