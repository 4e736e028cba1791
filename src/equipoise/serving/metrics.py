"""Metrics of the server: plain counters, which cost an answer next to nothing, read by
prometheus-client when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
Gauges = Callable[[], Mapping[str, tuple[str, float]]]  # by name: a description, and the value now


class Histogram:
    """Counts of values by the upper ends of their bins."""

    def __init__(self, ends: Sequence[float]) -> None:
        self._ends, self._counts, self._sum = ends, [0] * (len(ends) + 1), 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._ends, value)] += 1
        self._sum += value

    def family(self, name: str, help_: str) -> HistogramMetricFamily:
        buckets, total = self.totals()
        return HistogramMetricFamily(name, help_, buckets=buckets, sum_value=total)

    def totals(self) -> tuple[list[tuple[str, float]], float]:
        """How many values were at most each end, and their sum."""
        total, buckets = 0, []
        for end, n in zip([*map(str, self._ends), "+Inf"], self._counts):
            total += n
            buckets.append((end, float(total)))
        return buckets, self._sum


class Metrics:
    """The counters, and the page that Prometheus reads."""

    def __init__(self) -> None:
        # (version, "policy" or the shield's reason)
        self.decisions: Counter[tuple[str, str]] = Counter()
        self.requests: Counter[tuple[str, int]] = Counter()  # (path, HTTP status)
        # (version, "same", "other" or "dropped")
        self.shadows: Counter[tuple[str, str]] = Counter()
        self.seconds, self.rows = Histogram(SECONDS), Histogram(ROWS)
        self.paths: dict[str, Histogram] = {}  # seconds of requests
        self.gauges: Gauges = dict
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count an answer over HTTP; ``path`` is one of a few."""
        self.requests[path, status] += 1
        try:
            self.paths[path].add(seconds)
        except KeyError:
            self.paths[path] = Histogram(SECONDS)
            self.paths[path].add(seconds)

    def page(self) -> bytes:
        return bytes(generate_latest(self._registry))

    def collect(self) -> Iterator[Any]:
        """As prometheus-client asks for it."""
        for counted, name, help_, labels in (
            (
                self.decisions,
                "equipoise_decisions",
                "Decisions by the policy, or by the shield.",
                ("version", "by"),
            ),
            (
                self.requests,
                "equipoise_requests",
                "Requests by path and status.",
                ("path", "status"),
            ),
            (
                self.shadows,
                "equipoise_shadow_answers",
                "Answers of the shadow: same, other, dropped.",
                ("version", "action"),
            ),
        ):
            family = CounterMetricFamily(name, help_, labels=labels)
            for values, n in list(counted.items()):
                family.add_metric([str(value) for value in values], n)
            yield family
        yield self.seconds.family(
            "equipoise_decision_seconds",
            "From a request's arrival to its answer, without the transport.",
        )
        paths = HistogramMetricFamily(
            "equipoise_request_seconds",
            "Requests over HTTP, from their headers to their answers.",
            labels=("path",),
        )
        for path, histogram in list(self.paths.items()):
            paths.add_metric((path,), *histogram.totals())
        yield paths
        yield self.rows.family("equipoise_batch_rows", "Rows of a batch.")
        for name, (help_, value) in self.gauges().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(name, help_, value=value)
