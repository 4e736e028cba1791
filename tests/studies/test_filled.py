"""A suite that is killed, and finished elsewhere from its kept cells."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.report.suite import suite_markdown
from equipoise.studies.kept import missing, read_kept
from equipoise.studies.suite import read_suite

SUITE = """
name = "tiny"
envs = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0"]
algorithms = ["ppo", "impala"]
seeds = 3
steps = 256
episodes = 1
on = "serial"
settings.placement.envs_per_actor = 2
settings.placement.actors = 1
settings.policy.unroll = 16
"""
CELLS = 18


def begun(folder: Path) -> subprocess.Popen[bytes]:
    """A process that fills the suite of a checkout."""
    words = ["study", "tiny.toml", "--jobs", "2", "--quiet"]
    return subprocess.Popen([sys.executable, "-m", "equipoise", *words], cwd=folder)


def checkout(folder: Path) -> Path:
    folder.mkdir()
    (folder / "tiny.toml").write_text(SUITE)
    return folder


@pytest.mark.thorough
def test_a_suite_that_is_killed_twice_and_finished_elsewhere_gives_the_same_report(
    tmp_path: Path, deadline: Callable[..., None]
) -> None:
    whole = checkout(tmp_path / "whole")
    assert begun(whole).wait(500) == 0
    killed = checkout(tmp_path / "killed")
    for kept in (3, 7):
        process = begun(killed)
        deadline(lambda n=kept: len([*killed.glob("tiny/*.json")]) >= n, 300.0, f"{kept} cells")
        process.send_signal(signal.SIGKILL)
        process.wait()
    other = checkout(tmp_path / "other")
    shutil.copytree(killed / "tiny", other / "tiny")
    before = {file.name: file.read_bytes() for file in other.glob("tiny/*.json")}
    assert 7 <= len(before) < CELLS
    assert begun(other).wait(500) == 0
    assert all((other / "tiny" / name).read_bytes() == data for name, data in before.items())
    trained = {run.name for run in other.glob("studies/tiny/trials/*") if run.is_dir()}
    assert len(trained) == CELLS - len(before), "no cell is repeated"
    reports = []
    for folder in (whole, other):
        suite = read_suite(folder / "tiny.toml")
        assert missing(suite, folder / "tiny") == []
        cells = read_kept(folder / "tiny", suite)
        reports.append(suite_markdown(suite, cells))
    assert [timeless(one) for one in reports] == [timeless(reports[0])] * 2


def timeless(report: str) -> list[str]:
    """The lines of a report without the seconds that its cells took."""
    lines = report.splitlines()
    head = next(line for line in lines if "seconds" in line or "time" in line)
    place = [name.strip() for name in head.split("|")]
    column = next(n for n, name in enumerate(place) if name in ("seconds", "time"))
    rows = [line.split("|") for line in lines]
    return [
        "|".join(r[:column] + r[column + 1 :]) if len(r) == len(place) else "|".join(r)
        for r in rows
    ]
