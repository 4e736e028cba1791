"""The table of numbers: each place shows the names that it had before there was a table, with the
values of a report.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields
from pathlib import Path

from typer.testing import CliRunner

import equipoise as eq
from equipoise import cli
from equipoise.console.curves import curves
from equipoise.record import live
from equipoise.record.events import scalars
from equipoise.record.prometheus import Address, Endpoint
from equipoise.record.report import Learned, Measured, Report, repeated_fields
from equipoise.record.series import AXES, CURVES, SERIES
from tests.runtime.test_prometheus import said

SCALARS = {
    "speed/steps_per_s",
    "speed/updates_per_s",
    "episodes/return_mean",
    "episodes/length_mean",
    "lag/mean",
    "lag/max",
    "evaluation/mean",
}
METRICS = {
    "env_steps_total",
    "taken_total",
    "updates_total",
    "episodes_total",
    "aborted_total",
    "wall_seconds",
    "steps_per_second",
    "updates_per_second",
    "return_mean",
    "length_mean",
    "lag_versions_mean",
    "learner",
    "verdict",
    "worker_seconds_total",
    "part_seconds_total",
    "part_times_total",
    "process_cpu_seconds_total",
    "process_resident_bytes",
    "occupancy",
    "moved_bytes_total",
    "lag_versions_bucket",
    "lag_seconds_bucket",
    "loop_seconds_bucket",
}
LIVE = {
    "format",
    "time",
    "pid",
    "machine",
    "born",
    "evaluation",
    "notes",
    "step",
    "steps",
    "taken",
    "version",
    "wall_s",
    "remaining_s",
    "final",
    "steps_per_s",
    "updates_per_s",
    "tokens_per_s",
    "episodes",
    "return_mean",
    "length_mean",
    "evaluating",
    "solved_at_s",
    "lag",
    "cause",
    "verdict",
    "remedies",
    "ring",
    "workers",
    "more_workers",
    "alarms",
    "phases",
    "sites",
    "gpus",
    "governor",
}
SUMMARY = {
    "status",
    "env_steps",
    "taken",
    "frames",
    "updates",
    "wall_s",
    "steps_per_s",
    "updates_per_s",
    "episodes",
    "return_mean",
    "info",
    "evaluation",
    "best_evaluation",
    "lag",
    "acting",
    "balance",
    "cause",
    "verdict",
    "remedies",
    "solved_at_s",
    "evaluations",
    "params_sha256",
    "rows",
    "notes",
    "alarms",
    "governor",
    "lending",
    "failures",
    "aborted",
    "printed",
    "sites",
    "refused",
}


def test_a_short_run_has_the_same_names_in_each_place_as_before(tmp_path: Path) -> None:
    with (
        Endpoint(Address("127.0.0.1", 0)) as endpoint,
        eq.start(
            "CartPole-v1",
            "impala",
            steps=4096,
            actors=2,
            envs_per_actor=8,
            unroll=8,
            batch=16,
            on="serial",
            recipe=False,
            evaluate_episodes=2,
            tensorboard=False,
            settings=["algorithm.hidden=[16]"],
            out=tmp_path / "run",
        ) as run,
    ):
        for last in run:
            endpoint.update(last)
        page = said(endpoint)
    moment, summary, found = live.read_live(tmp_path / "run"), run.summary, scalars(last)
    assert {
        name for name in found if name.partition("/")[0] not in ("learner", "balance")
    } == SCALARS
    assert {name for name in found if name.startswith("balance/learner/")} == {
        f"balance/learner/{state}" for state in ("worked", "preempted", "starved", "blocked")
    }
    names = {name.removeprefix("equipoise_") for name, _ in page}
    assert {
        name for name in names if not name.endswith(("_count", "_sum")) and "gpu" not in name
    } == METRICS
    assert moment.keys() == LIVE and moment["lag"].keys() == {"name", "mean", "max", "bound", "now"}
    assert summary is not None and summary.keys() == SUMMARY
    values = [
        last.env_steps,
        moment["step"],
        summary["env_steps"],
        page["equipoise_env_steps_total", ()],
    ]
    assert (
        len(set(values)) == 1 and len({last.episodes, moment["episodes"], summary["episodes"]}) == 1
    )
    assert (
        found["episodes/return_mean"]
        == last.return_mean
        == moment["return_mean"]
        == summary["return_mean"]
    )
    assert found["lag/max"] == last.lag_max == moment["lag"]["max"] == summary["lag"]["max"]
    for name in CURVES.keys() - {"lag"}:
        (line,) = curves([str(tmp_path / "run")], y=name)
        assert math.isfinite(line.mean[-1]), name


def test_a_number_has_one_row_and_a_name_once_in_each_place() -> None:
    known = {one.name for one in fields(Report)}
    assert {one.name.partition(".")[0] for one in SERIES} <= known
    for place in ("name", "scalar", "metric", "live", "curve"):
        names = [name for one in SERIES if (name := getattr(one, place))]
        assert len(set(names)) == len(names), place
    assert all((one.words.endswith(".") and one.label == "") or one.curve for one in SERIES)


def test_a_report_repeats_all_numbers_of_a_record_and_of_the_moment() -> None:
    assert {one.name for kind in (Learned, Measured) for one in fields(kind)} <= {
        one.name for one in fields(Report)
    }
    measured = Measured(taken=7, moved={"read": 3})
    assert repeated_fields(Measured, measured)["taken"] == 7 and repeated_fields(
        Measured, measured
    )["moved"] == {"read": 3}


def test_the_help_of_plot_names_curves_that_there_are() -> None:
    text = CliRunner().invoke(cli.app, ["plot", "--help"], env={"COLUMNS": "200"}).output
    text = " ".join(text.split())
    (x,) = re.findall(r"--x (\S+\|\S+)", text)
    (y,) = re.findall(r"--y takes (.*?), as TensorBoard", text)
    assert {*x.split("|")} == {*AXES}
    known = {*CURVES, "evaluation", "learner/METRIC", "info/NAME"}
    assert {*re.findall(r"[\w/]+", y)} - {"or"} <= known
