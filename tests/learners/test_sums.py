"""Sums of metrics and of the lag: they are those of all learners, and a learner's own grow on their
own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equipoise.learners.sums import Sums
from tests.learners.several import together

CPU = torch.device("cpu")


def pair(total: float, count: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(total), torch.tensor(count)


def of(*updates: tuple[dict[str, tuple[float, float]], int, list[int]]) -> Sums:
    """The sums of updates: (metrics, the version that learned, the versions that acted)."""
    sums = Sums()
    for metrics, version, acted in updates:
        sums.note_lag(version, torch.tensor(acted))
        sums.add({name: pair(*values) for name, values in metrics.items()})
    return sums


ONE = of(({"loss": (6.0, 2.0), "kl": (1.0, 4.0)}, 5, [5, 3]), ({"loss": (2.0, 2.0)}, 6, [6, 6]))
OTHER = of(({"loss": (40.0, 10.0), "kl": (0.0, 0.0)}, 5, [1, 5]), ({"loss": (0.0, 0.0)}, 6, [5, 4]))


def test_a_record_has_the_means_of_what_came_together() -> None:
    assert ONE.record(None) == {"metrics": {"loss": 2.0, "kl": 0.25}, "lag_mean": 0.5, "lag_max": 2}
    assert OTHER.record(None) == {"metrics": {"loss": 4.0}, "lag_mean": 1.75, "lag_max": 4}


def test_a_record_of_several_is_of_all_their_items() -> None:
    """A mean weighs every item alike, not every learner."""
    for record in together(2, lambda rank, pool: (ONE, OTHER)[rank].record(pool)):
        assert record == {"metrics": {"loss": 48 / 14, "kl": 0.25}, "lag_mean": 1.125, "lag_max": 4}


def test_a_copy_grows_on_its_own() -> None:
    copy = ONE.copy()
    copy.add({"loss": pair(100.0, 1.0), "new": pair(1.0, 1.0)})
    copy.note_lag(50, torch.tensor([0]))
    assert (
        ONE.record(None)["metrics"] == {"loss": 2.0, "kl": 0.25}
        and ONE.lag_max == 2
        and ONE.updates == 2
    )
    assert copy.record(None) == {
        "metrics": {"loss": 21.6, "kl": 0.25, "new": 1.0},
        "lag_mean": 17.0,
        "lag_max": 50,
    }


def test_rows_that_no_policy_of_this_run_acted_in_have_no_lag() -> None:
    sums = Sums()
    sums.note_lag(4, torch.tensor([-1, 2, 4]))
    assert (sums.lag_sum, sums.lag_max, sums.updates) == (1.0, 2, 1)
    sums.note_lag(4, torch.tensor([-1, -1]))
    assert (sums.lag_sum, sums.lag_max, sums.updates) == (1.0, 2, 2)


def test_the_shares_of_several_learners_add_up_in_one() -> None:
    """A run that was saved with two learners goes on with one: nothing of the interval is lost."""
    kept: Any = Sums()
    for one in (OTHER, ONE):
        kept.absorb({**one.state(), "learners": {}}, CPU)
    assert kept.record(None) == {
        "metrics": {"loss": 48 / 14, "kl": 0.25},
        "lag_mean": 1.125,
        "lag_max": 4,
    }
    assert ONE.record(None)["lag_max"] == 2


@pytest.mark.parametrize("wrong", [{"sum": -1.0}, {"max": -1}, {"updates": 0.5}])
def test_a_saved_lag_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    state: Any = ONE.state()
    with pytest.raises(ValueError, match=rf"^lag\.{next(iter(wrong))}: expected"):
        Sums().absorb(state | {"lag": state["lag"] | wrong}, CPU)


def test_a_learner_that_has_not_met_a_metric_yet_adds_nothing_to_it() -> None:
    """As the successor of one that died, or where more learners go on than there were."""
    whole, part = (
        of(({"loss": (6.0, 2.0), "actor": (1.0, 4.0)}, 5, [5, 3])),
        of(({"loss": (2.0, 2.0)}, 5, [5, 3])),
    )
    for record in together(3, lambda rank, pool: (whole, part, Sums())[rank].record(pool)):
        assert record["metrics"] == {"actor": 0.25, "loss": 2.0}
