"""Parts of reports and summaries: each from one of the things that a run has counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from equipoise.envs.failures.capsule import COUNTED
from equipoise.histograms import EDGES, filled
from equipoise.record.report import Evaluation
from equipoise.runtime.messages import Record
from equipoise.runtime.stats import RunStats


def lags_of(
    now: Mapping[str, Sequence[float]], then: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, int]]:
    """The histograms of the time between two moments, by what is counted: the bins that are not
    empty.
    """
    return {
        name: filled(
            [x - y for x, y in zip(counts, then.get(name, [0.0] * len(counts)), strict=True)],
            EDGES[name],
        )
        for name, counts in now.items()
    }


def more(evaluation: Evaluation) -> dict[str, object]:
    """The parts that only some evaluations have."""
    found = {"policies": evaluation.policies, "info": evaluation.info}
    return {name: dict(values) for name, values in found.items() if values}


def tokens(metrics: Mapping[str, float], samples_per_s: float) -> float | None:
    length = metrics.get("completions/mean_length")
    return None if length is None else length * samples_per_s


def aborted(stats: RunStats) -> int:
    return sum(counts[COUNTED[0]] for counts in stats.failures.values())


def without_time(record: Record) -> dict[str, object]:
    return {name: value for name, value in asdict(record).items() if name not in ("at", "partial")}
