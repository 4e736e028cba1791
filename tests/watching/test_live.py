"""live.json: what a run does at this moment, and whether the one that wrote it still goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise import deaths
from equipoise.balance.shares import Shares
from equipoise.record import live
from equipoise.record.live import picture
from equipoise.record.ring import Rates
from tests.cli.samples import program, report


@pytest.mark.thorough
def test_a_run_says_what_it_does(tmp_path: Path) -> None:
    with eq.start(
        "CartPole-v1", "ppo", steps=6000, out=tmp_path / "run", on="serial", tensorboard=False
    ) as run:
        next(run)
        told = live.read_live(tmp_path / "run")
        assert (
            live.state_of(told) == "running"
            and told["pid"] == os.getpid()
            and told["steps"] == 6000
        )
        for _ in run:
            pass
    told = live.read_live(tmp_path / "run")
    assert told["final"] and told["step"] >= 6000 and told["verdict"].startswith(told["cause"])
    stations, arrows = told["ring"]["stations"], told["ring"]["arrows"]
    assert [one["name"] for one in stations][1:] == ["queue", "learner"] and len(arrows) == 2
    assert arrows[1]["said"][0][0].endswith("updates/s"), "the words of the terminal"
    assert told["ring"]["back"]["said"][0] == ["weights (max lag 0)", "flow"]
    for one in told["workers"]:
        assert sum(one["shares"].values()) == pytest.approx(1, abs=0.01), one
    assert {one["name"] for one in told["workers"]} == {"actor 0", "learner"}
    assert not list((tmp_path / "run").glob(".live*")), "nothing is left beside it"


def test_it_is_written_twice_a_second_and_costs_no_run(tmp_path: Path) -> None:
    run = eq.start(
        "CartPole-v1", "ppo", steps=2048, out=tmp_path / "run", on="serial", tensorboard=False
    )
    with run:
        report = next(run)
        writer = live.Live(tmp_path / "run", run.program)
        writer.write(report)
        first = (tmp_path / "run" / live.LIVE).stat().st_mtime_ns
        writer.write(report)
        assert (tmp_path / "run" / live.LIVE).stat().st_mtime_ns == first, (
            "too soon after the last one"
        )
        gone = live.Live(tmp_path / "nowhere", run.program)
        gone.write(report)  # a place that cannot be written costs a picture
    assert run.summary is not None


def test_a_killed_run_is_told_from_a_live_one(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None and child.stdout.readline()
        told: dict[str, Any] = {
            "pid": child.pid,
            "born": live.born(child.pid),
            "machine": deaths.machine(),
            "time": time.time(),
        }
        assert live.state_of(told) == "running"
        assert live.state_of(told | {"time": 0.0}) == "running", "busy, but there"
        assert live.state_of(told | {"born": told["born"] - 1}) == "killed", (
            "another process has its number now"
        )
        child.kill()
        end = time.monotonic() + 10
        while live.state_of(told) == "running":  # also while it is a zombie
            assert time.monotonic() < end
    finally:
        child.kill()
        child.communicate()
    assert live.state_of(told) == "killed"
    elsewhere = told | {"machine": "another"}
    assert live.state_of(elsewhere, now=elsewhere["time"] + 1) == "running"
    assert live.state_of(elsewhere, now=elsewhere["time"] + 60) == "killed"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', "nan"])
def test_a_damaged_one_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / live.LIVE).write_text(text)
    with pytest.raises(ValueError, match=r"live\.json"):
        live.read_live(tmp_path)


def test_a_resume_writes_it_again(tmp_path: Path) -> None:
    with eq.start(
        "CartPole-v1", "ppo", steps=2048, out=tmp_path / "run", on="serial", tensorboard=False
    ) as run:
        for _ in run:
            pass
    before = json.loads((tmp_path / "run" / live.LIVE).read_text())
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with eq.start(resume=tmp_path / "copy", steps=4096) as again:
        for _ in again:
            pass
    after = json.loads((tmp_path / "copy" / live.LIVE).read_text())
    assert after["step"] > before["step"] and after["steps"] == 4096


def test_each_worker_stands_at_its_station_in_the_order_of_the_ring() -> None:
    balance = {
        "learner": Shares(worked=1, side="learning"),
        "inference 0": Shares(worked=1, side="sampling", serves=True),
        "driver": Shares(worked=1, side="beside"),
        "actor 0": Shares(worked=1, side="sampling"),
    }
    found = picture(report(balance=balance), program(inference="central"), Rates())
    names = [one["name"] for one in found["ring"]["stations"]]
    assert [(one["name"], one["station"]) for one in found["workers"]] == [
        ("actor 0", 0),
        ("inference 0", 1),
        ("learner", 3),
        ("driver", None),
    ]
    assert names[1:] == ["1 inference worker", "queue", "learner"]
