"""What workers print: it lies in a log of bounded size, is counted, and is a dead worker's last
word.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.errors import WorkerFailed
from equipoise.runtime.process import log
from equipoise.runtime.process.log import Logs

LOUD = "tests.envs.printing:Loud"
TINY: dict[str, Any] = {
    "actors": 1,
    "envs_per_actor": 2,
    "unroll": 16,
    "steps": 320,
    "evaluate_episodes": 0,
    "recipe": False,
    "settings": ["algorithm.minibatches=1"],
}


def test_prints_of_an_env_lie_in_the_log_of_its_worker(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = api.start(LOUD, on="process", out=tmp_path / "run", **TINY)
    reports = list(run)
    text = (tmp_path / "run" / "logs" / "actor-0.log").read_text()
    assert "by python 20\n" in text and "by C 20\n" in text
    assert run.summary is not None and run.summary["printed"] == {"actor 0": len(text.splitlines())}
    lines, last = reports[-1].printed["actor 0"]
    assert lines == len(text.splitlines()) and last == text.splitlines()[-1]
    out, err = capfd.readouterr()
    assert "by python" not in out and "by C" not in err


@pytest.mark.thorough
def test_the_last_lines_of_a_worker_that_died_are_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="actor 0 exited with code 3") as caught:
        list(
            api.start(
                LOUD,
                env_kwargs={"exits": 15},
                on="process",
                out=tmp_path / "run",
                **TINY | {"steps": 10_000},
            )
        )
    assert caught.value.traceback_text.startswith(
        f"the last lines of {tmp_path}/run/logs/actor-0.log:\n"
    )
    assert caught.value.traceback_text.endswith("by C 15\nmy last words")


@pytest.mark.thorough
def test_the_command_ends_with_the_cause(tmp_path: Path) -> None:
    done = train(LOUD, "--set", "env.nan=true", out=tmp_path / "run")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith(
        "equipoise train: actor 0 raised an exception: WrongValue: "
    ), done.stderr
    assert (
        "expected a finite number, got nan" in last
        and "; --on-nonfinite drop gives up the episode" in last
    )


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_nothing_that_an_env_prints_reaches_the_terminal(on: str, tmp_path: Path) -> None:
    """An evaluation plays in the driver's process, and serial workers work there."""
    done = train(LOUD, "--on", on, "--evaluate-episodes", "2", out=tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert (
        "by python" not in done.stdout and "by C" not in done.stderr and "Completed" in done.stdout
    )
    text = (tmp_path / "run" / "logs" / "driver.log").read_text()
    assert "by python 20\n" in text and "by C 20\n" in text


@pytest.mark.thorough
def test_what_an_env_prints_while_it_is_measured_is_not_shown(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "equipoise",
        "train",
        LOUD,
        "--envs-per-actor",
        "2",
        "--save-config",
        str(tmp_path / "a.toml"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "by python" not in done.stdout and "by C" not in done.stderr and "wrote " in done.stdout


def train(env: str, *words: str, out: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "equipoise",
        "train",
        env,
        "--steps",
        "320",
        "--actors",
        "1",
        "--no-recipe",
        *words,
    ]
    return subprocess.run(
        [
            *command,
            "--envs-per-actor",
            "2",
            "--unroll",
            "16",
            "--set",
            "algorithm.minibatches=1",
            "--out",
            str(out),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


# ----------------------------------------------------------------------------------------- the file


def test_a_log_stays_small_and_programs_write_on_in_it(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys, time
from pathlib import Path
from equipoise.runtime.process import log
log.LARGEST = 1000
made = log.Log(Path({str(tmp_path)!r}) / "actor-0.log")
made.begin()
for i in range(300):
    print(f"line {{i:04}}")
    made.keep_small()
subprocess.run(["sh", "-c", "echo from a program"])
made.keep_small()
print("the end")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    now, before = (tmp_path / f"actor-0{suffix}" for suffix in (".log", ".log.1"))
    assert now.stat().st_size <= 1020 and 0 < before.stat().st_size <= 1000
    lines = now.read_text().splitlines()
    assert lines[-2:] == ["from a program", "the end"]
    assert before.read_text().splitlines()[-1] < lines[0] and lines[0].startswith("line 02")


def test_lines_are_counted_as_they_come_and_estimated_where_many_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, logs = tmp_path / "actor-3.log", Logs(str(tmp_path))
    file.write_text("from the run before\n")
    assert logs.size("actor 3") == 20 and logs.printed() == {}
    with file.open("a") as opened:
        opened.write("one\ntwo\n\n")
    assert logs.printed() == {"actor 3": (3, "two")}
    assert logs.tail("actor 3", 20) == "one\ntwo"
    monkeypatch.setattr(log, "TAIL", 100)
    with file.open("a") as opened:
        opened.write("123456789\n" * 1000)
    assert logs.printed() == {"actor 3": (1003, "123456789")}
    os.truncate(file, 0)  # as the worker does
    file.write_text("anew\n")
    assert logs.printed() == {"actor 3": (1004, "anew")}
    assert (
        Logs(None).printed() == {}
        and Logs(None).tail("actor 3", 0) == ""
        and Logs(None).size("actor 3") == 0
    )
