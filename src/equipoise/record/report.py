"""Reports of a run: one ``Report`` a line of ``metrics.jsonl``, and a picture of the live view."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from equipoise.balance.alarms import Alarm
from equipoise.balance.remedies import Remedy
from equipoise.balance.shares import Shares
from equipoise.files import open_plain, parse_json, plain
from equipoise.schema import Anything, Each, Flag, Maybe, Number, Schema, check

__all__ = ["METRICS", "Evaluating", "Evaluation", "Report", "Shares", "read_reports"]

METRICS = "metrics.jsonl"
LONGEST_LINE = 16 << 20  # bytes of a report
TAIL = 32 << 20  # bytes at the end of a file in which its last report is looked for
LARGEST = 1e100  # number that a list of runs or a curve takes
MOST_DAMAGED = 1000  # lines that are named; a file with more of them is no report's


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Evaluation:
    """Returns of fresh episodes, unclipped."""

    mean: float
    std: float
    episodes: int
    env_steps: int  # env steps of training when its weights were published
    version: int
    # mean returns by policy, if there are several
    policies: Mapping[str, float] = field(default_factory=dict)
    # means of Program.source.metrics, as in a report
    info: Mapping[str, float | None] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"<Evaluation {self.mean:.1f} ± {self.std:.1f} over {self.episodes} "
            f"{'episode' if self.episodes == 1 else 'episodes'}, "
            f"step {self.step:,}>"
        )

    @property
    def step(self) -> int:
        """The step, as in a report."""
        return self.env_steps or self.version


def is_number(value: object) -> bool:
    """Is it a number that a curve takes? A file that somebody edited may have anything."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def all_made(summary: Mapping[str, object]) -> bool:
    """Were all evaluations made that a run was asked for, by its summary?"""
    counts = summary.get("evaluations")
    asked, made = (
        (counts.get(name) for name in ("asked", "made")) if isinstance(counts, Mapping) else (0, 0)
    )
    return not (isinstance(asked, int) and isinstance(made, int) and made < asked)


def repeated(info: Mapping[str, float | None]) -> str:
    """A sentence for several agents if they repeated games; "" if all games differ."""
    games, different = int(info.get("games") or 0), int(info.get("different_games") or 0)
    if different == games:
        return ""
    return (
        f"{games} games, {different} different {'one' if different == 1 else 'ones'}: these "
        "players and this env repeat them"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluating:
    """The progress of an evaluation."""

    episodes: int  # ended episodes
    of: int
    steps: int  # steps of the longest running episode
    most: int  # steps after which an endless episode is cut


def step_of(said: Mapping[str, Any]) -> int:
    """``Report.step`` of a line of ``metrics.jsonl``, or of a checkpoint's meta."""
    return int(said["env_steps"] or said.get("updates", said.get("version")))


def kept_lines(told: Sequence[Mapping[str, Any]], step: int) -> bytes:
    """The content of ``metrics.jsonl`` for a run that goes on from ``step``: the reports up to it,
    without the last one of a run.
    """
    kept = [line for line in told if step_of(line) <= step and not line["final"]]
    return b"".join(json.dumps(line).encode() + b"\n" for line in kept)


NATURAL = Number(0, (1 << 63) - 1, whole=True)
REAL = Number(-sys.float_info.max, sys.float_info.max)
SCHEMA: Schema = {
    "env_steps": NATURAL,
    "updates": NATURAL,
    "final": Flag(),
    "return_mean?": Maybe(REAL),
    "metrics?": Each(Anything()),
    "info?": Each(Anything()),
    "evaluation?": Maybe({"mean": REAL, "*": Anything()}),
    "*": Anything(),
}  # the schema of the fields that a resume or a table of the run reads


def read_reports(
    path: Path, *, damaged: list[str] | None = None, last: bool = False
) -> list[dict[str, Any]]:
    """The reports of a ``metrics.jsonl``; a last line that a crash cut short is left out.

    ``last``: only the reports in the last ``TAIL`` bytes. A damaged line is a ValueError, or a text
    in ``damaged`` if given: at most ``MOST_DAMAGED``, and nothing after a line too long for a
    report.
    """
    found: list[dict[str, Any]] = []
    if not path.exists():
        return found
    with open_plain(path) as file:
        skipped = max(os.fstat(file.fileno()).st_size - TAIL, 0) if last else 0
        file.seek(skipped)
        if skipped:
            file.readline(TAIL)  # the rest of a line
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
            where = f"{path}, line {number}"
            try:
                if len(line) == LONGEST_LINE:
                    raise ValueError(f"{where}: expected at most {LONGEST_LINE:,} bytes, got more")
                if line.endswith(b"\n") and line != b"\n":  # every whole line ends so
                    found.append(check(parse_json(line[:-1], path, number), SCHEMA, where))
            except ValueError as error:
                if damaged is None:
                    raise
                damaged.append(str(error))
                if len(line) == LONGEST_LINE or len(damaged) >= MOST_DAMAGED:
                    break
    return found


def left_out(damaged: Sequence[str]) -> str:
    """A sentence on damaged lines that were not read, of which there is at least one."""
    more = f", and {len(damaged) - 1} lines more" if len(damaged) > 1 else ""
    return f"{damaged[0]}{more}; the damaged part is left out"


# Fields that a resumed run repeats to the bit with ``max_lag=0``. All other fields, and all fields
# of a ``timed`` report, depend on time.
DETERMINISTIC = (
    "env_steps",
    "frames",
    "updates",
    "episodes",
    "return_mean",
    "length_mean",
    "lag_mean",
    "lag_max",
    "metrics",
    "info",
)


def repeatable(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The parts of a ``metrics.jsonl`` that do not depend on time."""
    return [{key: line[key] for key in DETERMINISTIC} for line in lines if not line.get("timed")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStats:
    """Some workers of a run on another machine than the learner's."""

    machine: str  # in short; empty without a machine of their own
    workers: tuple[str, ...]  # their titles
    reached: bool  # is there a connection to them now?
    received: int  # bytes from there
    sent: int  # bytes to there
    lost: int  # how often they were lost, and began again
    moved: int  # how often they were handed over to another machine


@dataclass(frozen=True, kw_only=True)  # no slots: two bases with slots cannot be joined
class Learned:
    """Numbers of a learner's record that a report repeats."""

    episodes: int  # ended so far
    return_mean: float | None  # last 100 episodes, stochastic policy
    length_mean: float | None
    lag_mean: float  # versions; with a replay the age of the rows that were learned from
    lag_max: int
    # the algorithm's, means over valid rows
    metrics: Mapping[str, float] = field(default_factory=dict)
    aborted: int = 0  # episodes that an env's failure ended, so far
    # Program.source.metrics: "name/last", "name/mean"
    info: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)  # no slots: two bases with slots cannot be joined
class Measured:
    """Numbers of the moment that a runtime measures and a report repeats."""

    taken: int = 0  # env steps that were taken, trained on or still to be trained on
    # the present phase of each worker's start
    phases: Mapping[str, str] = field(default_factory=dict)
    # by worker: lines in its log, and the last one
    printed: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    # with --on ray: the workers on other machines
    sites: Mapping[str, SiteStats] = field(default_factory=dict)
    # 0..1: "queue", "replay", "shard 0", ...
    occupancy: Mapping[str, float] = field(default_factory=dict)
    lent: int = 0  # learners whose device generates now
    switches: int = 0  # how often devices were lent or taken back, so far
    handed_over: int = 0  # samples that went on in another generator, so far
    # bytes so far: "written", "read", "batches", "weights"
    moved: Mapping[str, int] = field(default_factory=dict)
    # busy, used, power_w, ...: see ``gpus.py``
    gpus: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def repeated_fields(kind: type[Learned | Measured], source: Learned | Measured) -> dict[str, Any]:
    """Return the fields of ``kind`` as ``source`` has them."""
    return {one.name: getattr(source, one.name) for one in fields(kind)}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report(Learned, Measured):
    """The run so far. ``*_per_s``, ``balance``, ``lag_*`` and ``metrics`` cover the time since the
    last recorded report, and in the final report ``balance``, ``cause`` and ``verdict`` the whole
    run. Steps and updates of a report that is not recorded are the moment's.
    """

    wall_s: float  # since the run began
    env_steps: int  # trained on, after frame skip
    frames: int
    updates: int
    steps_per_s: float
    updates_per_s: float
    tokens_per_s: float | None = None  # that are learned from, where a step is a sample of text
    balance: Mapping[str, Shares]  # "actor 0", "learner", ...
    cause: str  # the bottleneck, in a word: "Sampling-bound" (balance/verdict.py)
    verdict: str  # the sentence that begins with it
    remedies: tuple[Remedy, ...] = ()  # suggestions, the best first; of some seconds
    remaining_s: float | None
    # how many actors act and the bound on lag, if they change meanwhile
    governor: Mapping[str, int | None] | None = None
    evaluation: Evaluation | None = None  # if one ended since the last report
    evaluating: Evaluating | None = None  # of the moment: never in a recorded report
    solved_at_s: float | None = None
    alarms: tuple[Alarm, ...] = ()  # all that were raised so far (balance/alarms.py)
    notes: tuple[str, ...] = ()  # notes for a person, each reported once: "warning: ..."
    recorded: bool = True  # False: of the moment, between two lines of metrics.jsonl
    # recorded because time has passed, not steps: a resume does not repeat it
    timed: bool = False
    final: bool = False
    # histograms: counts by the upper ends of the bins
    lags: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # by process: its "cpu_s" and "rss" in bytes
    usage: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __repr__(self) -> str:
        reached = "none" if self.return_mean is None else f"{self.return_mean:.1f}"
        return (
            f"<Report step {self.step:,}, return {reached}, {self.steps_per_s:,.0f} steps/s, "
            f"{self.cause}>"
        )

    def to_dict(self) -> dict[str, object]:
        """Return all numbers of the report, as its line of ``metrics.jsonl`` has them."""
        found: dict[str, object] = plain(self)
        return found

    @property
    def step(self) -> int:
        """The progress in units of ``Program.schedule.steps``: env steps, or else updates."""
        return self.env_steps or self.updates
