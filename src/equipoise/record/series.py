"""Series: every number of a report once, with its unit, its words, and its name in each place that
shows it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from equipoise.balance.shares import STATES
from equipoise.histograms import EDGES
from equipoise.record.report import Report
from equipoise.types import Program, learning

Labels = tuple[str, ...]
Numbers = Mapping[Labels, float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """One number of a report. A name of a place is empty if that place does not show it."""

    name: str  # the field of a report, and the key in metrics.jsonl
    unit: str
    words: str  # one sentence
    _: KW_ONLY
    scalar: str = ""  # in TensorBoard and W&B
    metric: str = ""  # in Prometheus, after "equipoise_"
    rises: bool = False  # a counter there, else a gauge
    live: str = ""  # the key in live.json; "lag.mean" is a key in a key
    summary: bool = False  # summary.json has it by its name
    curve: str = ""  # for `plot` and `watch`
    axis: bool = False  # the curve is an axis
    label: str = ""  # of the curve in a figure

    def read(self, report: Report) -> float | None:
        """The number, or None if the report lacks it."""
        field, _, key = self.name.partition(".")
        found = getattr(report, field)
        number: float | None = getattr(found, key) if key and found is not None else found
        return number


@dataclass(frozen=True, slots=True)
class Family:
    """Numbers of a report that differ in labels."""

    metric: str  # in Prometheus, after "equipoise_"
    words: str
    labels: Labels
    read: Callable[[Report], Numbers]
    _: KW_ONLY
    rises: bool = False
    # numbers cover the time since the last recorded report: a reader adds them up
    since: bool = False
    edges: Sequence[float] = ()  # of a histogram, whose label is the upper end of a bin


SERIES = (
    Series(
        "env_steps",
        "env steps",
        "Env steps that were learned from.",
        metric="env_steps",
        rises=True,
        summary=True,
        curve="steps",
        axis=True,
        label="env steps",
    ),
    Series(
        "taken",
        "env steps",
        "Env steps that were taken.",
        metric="taken",
        rises=True,
        live="taken",
        summary=True,
    ),
    Series("frames", "frames", "Frames of the env: env steps times the frame skip.", summary=True),
    Series(
        "updates",
        "updates",
        "Updates of the learner.",
        metric="updates",
        rises=True,
        live="version",
        summary=True,
        curve="updates",
        axis=True,
        label="updates",
    ),
    Series(
        "wall_s",
        "s",
        "Seconds since the run began.",
        metric="wall_seconds",
        live="wall_s",
        summary=True,
        curve="wall",
        axis=True,
        label="seconds",
    ),
    Series(
        "steps_per_s",
        "env steps/s",
        "Env steps learned from in a second.",
        scalar="speed/steps_per_s",
        metric="steps_per_second",
        live="steps_per_s",
        summary=True,
        curve="steps_per_s",
        label="steps/s",
    ),
    Series(
        "updates_per_s",
        "updates/s",
        "Updates in a second.",
        scalar="speed/updates_per_s",
        metric="updates_per_second",
        live="updates_per_s",
        summary=True,
        curve="updates_per_s",
        label="updates/s",
    ),
    Series(
        "tokens_per_s",
        "tokens/s",
        "Tokens of text learned from in a second.",
        scalar="speed/tokens_per_s",
        metric="tokens_per_second",
        live="tokens_per_s",
    ),
    Series(
        "episodes",
        "episodes",
        "Episodes that ended.",
        metric="episodes",
        rises=True,
        live="episodes",
        summary=True,
    ),
    Series(
        "aborted",
        "episodes",
        "Episodes that a failure of an env ended.",
        metric="aborted",
        rises=True,
    ),
    Series(
        "return_mean",
        "reward",
        "Mean return of the last 100 episodes.",
        scalar="episodes/return_mean",
        metric="return_mean",
        live="return_mean",
        summary=True,
        curve="return",
        label="return, last 100 episodes",
    ),
    Series(
        "length_mean",
        "env steps",
        "Mean length of the last 100 episodes.",
        scalar="episodes/length_mean",
        metric="length_mean",
        live="length_mean",
        curve="length",
        label="steps of an episode",
    ),
    Series(
        "lag_mean",
        "versions",
        "Mean lag in versions.",
        scalar="lag/mean",
        metric="lag_versions_mean",
        live="lag.mean",
        curve="lag",
        label="lag",
    ),
    Series("lag_max", "versions", "Largest lag in versions.", scalar="lag/max", live="lag.max"),
    Series(
        "evaluation.mean",
        "reward",
        "Mean evaluated return.",
        scalar="evaluation/mean",
        curve="evaluation",
    ),
    Series("remaining_s", "s", "Seconds until the end at this speed.", live="remaining_s"),
    Series(
        "solved_at_s",
        "s",
        "Seconds after which an evaluation reached --stop-at.",
        live="solved_at_s",
        summary=True,
    ),
)
AXES = {one.curve: one for one in SERIES if one.axis}
# evaluations have points of their own
CURVES = {one.curve: one for one in SERIES if one.label and not one.axis}
# the beginning of names such as learner/entropy, and the field of a report that has them
ROOMS = {"learner": "metrics", "info": "info"}


def lag_name(program: Program) -> str:
    """The name of a report's lag: versions of the acting weights, or the age of a replay's rows."""
    return (
        "lag"
        if all(policy.replay is None for policy in learning(program).values())
        else "age of rows"
    )


def _of_parts(report: Report, counted: bool) -> Numbers:
    return {
        (worker, shares.kind, part): shares.counts.get(part, 0.0) if counted else seconds
        for worker, shares in report.balance.items()
        for part, seconds in shares.parts.items()
    }


def _of_states(report: Report) -> Numbers:
    return {
        (worker, shares.kind, state): max(shares.seconds[state], 0.0)
        for worker, shares in report.balance.items()
        for state in STATES
    }


def _by_name(field: str, key: str = "") -> Callable[[Report], Numbers]:
    """Read a mapping of a report by its names; ``key``: this key of each value that has it."""

    def read(report: Report) -> Numbers:
        found = getattr(report, field).items()
        return {(name,): one[key] if key else one for name, one in found if not key or key in one}

    return read


def _bins(kind: str) -> Callable[[Report], Numbers]:
    return lambda report: {(end,): count for end, count in report.lags.get(kind, {}).items()}


WORKER = ("worker", "kind")
FAMILIES = (
    Family("learner", "A metric of the algorithm.", ("name",), _by_name("metrics")),
    Family(
        "verdict",
        "1, with what holds the run back as a label.",
        ("sentence",),
        lambda report: {(report.verdict,): 1.0},
    ),
    Family(
        "worker_seconds",
        "Seconds of a worker by state.",
        (*WORKER, "state"),
        _of_states,
        rises=True,
        since=True,
    ),
    Family(
        "part_seconds",
        "Seconds of a part of a worker's work.",
        (*WORKER, "part"),
        lambda report: _of_parts(report, counted=False),
        rises=True,
        since=True,
    ),
    Family(
        "part_times",
        "How often a part of a worker's work came.",
        (*WORKER, "part"),
        lambda report: _of_parts(report, counted=True),
        rises=True,
        since=True,
    ),
    Family(
        "process_cpu_seconds",
        "CPU seconds of a process.",
        ("process",),
        _by_name("usage", "cpu_s"),
        rises=True,
    ),
    Family(
        "process_resident_bytes", "Memory of a process.", ("process",), _by_name("usage", "rss")
    ),
    Family(
        "gpu_busy", "Share of time that a GPU works, 0 to 1.", ("gpu",), _by_name("gpus", "busy")
    ),
    Family(
        "gpu_memory_bytes", "Bytes of memory that a GPU uses.", ("gpu",), _by_name("gpus", "used")
    ),
    Family("gpu_power_watts", "Watts that a GPU draws.", ("gpu",), _by_name("gpus", "power_w")),
    Family("occupancy", "How full a store of rows is, 0 to 1.", ("store",), _by_name("occupancy")),
    Family(
        "moved_bytes", "Bytes that a channel moved.", ("channel",), _by_name("moved"), rises=True
    ),
    Family(
        "lag_versions",
        "Windows that were learned from, by the lag in versions.",
        ("le",),
        _bins("versions"),
        since=True,
        edges=EDGES["versions"],
    ),
    Family(
        "lag_seconds",
        "Windows that were learned from, by the seconds since the version that acted came out.",
        ("le",),
        _bins("seconds"),
        since=True,
        edges=EDGES["seconds"],
    ),
    Family(
        "loop_seconds",
        "Blocks of rows, by the seconds from their env steps to the end of their updates.",
        ("le",),
        _bins("loop"),
        since=True,
        edges=EDGES["loop"],
    ),
)
