"""A start says what it is at, and is left when somebody wants to leave."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise import api, phases
from equipoise.console import ending, starting
from equipoise.console.starting import Starting
from equipoise.record.directory import RunDirectory
from equipoise.run import run as run_module

ENV = "tests.envs.starting:Waiting"
TINY: dict[str, Any] = {
    "actors": 1,
    "envs_per_actor": 2,
    "unroll": 16,
    "steps": 320,
    "evaluate_episodes": 0,
    "recipe": False,
    "settings": ["algorithm.minibatches=1"],
}


def test_a_long_phase_has_a_line_and_a_short_one_has_none(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    deadline: Callable[..., None],
) -> None:
    monkeypatch.setattr(starting, "FIRST_S", 0.05)
    monkeypatch.setattr(starting, "EVERY_S", 0.1)
    monkeypatch.setattr(starting, "LOOK_S", 0.01)
    told: list[str] = []

    def tell(self: Starting) -> None:
        self._told = time.monotonic()
        told.append(self._text)

    monkeypatch.setattr(Starting, "_tell", tell)
    with Starting():
        phases.say("reset 1 of 2")
        phases.say("reset 2 of 2")
        deadline(lambda: told.count("reset 2 of 2") >= 2, 10.0, "two lines")
        phases.say("")
        told.clear()
    assert "reset 1 of 2" not in told
    phases.say("nobody hears this")
    assert told == []


def test_a_terminal_keeps_no_line_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", out)
    with Starting() as start:
        start._say("importing a module with a long name")
        start._tell()
        start._tell()
    assert out.getvalue() == 2 * ("starting: importing" + "\r\x1b[2K")
    monkeypatch.setenv("TERM", "dumb")
    with Starting() as start:
        start._say("importing")
        start._tell()
    assert out.getvalue().endswith("starting: importing\n")


def test_reports_say_what_workers_are_at_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "LIVE_S", 0.0)
    go = tmp_path / "go"
    run = api.start(ENV, env_kwargs={"go": str(go)}, on="process", out=tmp_path / "run", **TINY)
    for report in run:
        if report.phases.get("actor 0") == "first reset of env 1 of 2":
            break
    assert report.verdict.startswith("Starting: ") and report.taken == 0
    go.touch()
    reports = list(run)
    assert (
        reports[-1].phases == {}
        and reports[-1].updates > 0
        and not reports[-1].verdict.startswith("Starting")
    )


class Begun:
    """``equipoise train`` as a process; ``said``: what it has printed so far."""

    def __init__(self, place: Path, *words: str) -> None:
        self.run, self._file = place / "run", place / "said.txt"
        command = [
            sys.executable,
            "-m",
            "equipoise",
            "train",
            ENV,
            "--out",
            str(self.run),
            "--actors",
            "1",
        ]
        with self._file.open("w") as file:
            self._process = subprocess.Popen(
                [*command, "--envs-per-actor", "2", *words], stderr=file, stdout=file
            )

    def said(self) -> str:
        return self._file.read_text()

    def interrupted(self) -> int:
        """Press Ctrl-C -> the exit code; a process that does not end is a failure."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(30.0)

    def __enter__(self) -> Begun:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_ctrl_c_amid_the_first_resets_leaves_a_summary(
    on: str, tmp_path: Path, deadline: Any
) -> None:
    with Begun(tmp_path, "--on", on, "--set", f"env.go={tmp_path / 'go'}") as begun:
        deadline(lambda: "first reset of env 1 of 2" in begun.said(), 100.0, "a line on the phase")
        assert begun.interrupted() == 130, begun.said()
        summary = RunDirectory.open(begun.run).summary()
    assert summary is not None and summary["status"] == "interrupted"


@pytest.mark.thorough
def test_ctrl_c_ends_a_start_in_which_python_is_not_asked(tmp_path: Path, deadline: Any) -> None:
    with Begun(tmp_path, "--set", "env.stuck=true") as begun:
        deadline(lambda: "making an env of" in begun.said(), 100.0, "a line on the phase")
        assert begun.interrupted() == 130, begun.said()
    assert not begun.run.exists()


def test_episodes_that_never_end_are_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.run.reporter.ENDLESS", 100)
    run = api.start(ENV, env_kwargs={"endless": True}, on="serial", out=tmp_path / "run", **TINY)
    list(run)
    assert run.summary is not None
    (note,) = (note for note in run.summary["notes"] if "no episode has ended" in note)
    assert "--set env.max_episode_steps=N" in note


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("on", "inference"), [("serial", "local"), ("process", "local"), ("process", "central")]
)
def test_resets_are_timed(on: Any, inference: str, tmp_path: Path) -> None:
    options = TINY | {"inference": inference}
    run = api.start(ENV, env_kwargs={"reset_s": 0.01}, on=on, out=tmp_path / "run", **options)
    reports = list(run)
    shares = reports[-1].balance["actor 0"]
    assert shares.counts["reset"] >= 2 * 320 / 2 / 6 - 2  # an episode and its seam are six rows
    # each sleeps so long, and none is a sample (clock.ADDED)
    assert shares.parts["reset"] >= 0.01 * shares.counts["reset"]


def test_a_long_end_has_a_line_and_a_short_one_has_none(
    monkeypatch: pytest.MonkeyPatch, deadline: Callable[..., None]
) -> None:
    monkeypatch.setattr(ending, "FIRST_S", 0.05)
    monkeypatch.setattr(ending, "EVERY_S", 0.1)
    told: list[str] = []

    class Shown:
        def ending(self, text: str) -> None:
            told.append(text)

    with ending.Ending(Shown()):
        phases.ending("saved at once")
        phases.ending("saving")
        deadline(lambda: told.count("saving") >= 2, 10.0, "two lines")
        phases.ending("")
        told.clear()
        time.sleep(0.15)
        assert told == []
    assert not any(thread.name == "ending" for thread in threading.enumerate())
    phases.ending("nobody hears this")
    assert told == []


def test_an_end_says_what_it_is_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "LAST_CUT_S", -1.0)  # no time for a whole checkpoint
    told: list[str] = []
    before = phases.listen_to_ends(told.append)
    try:
        run = api.start(ENV, on="serial", out=tmp_path / "run", **TINY)
        next(report for report in run if report.updates)
        run.close()
    finally:
        phases.listen_to_ends(before)
    assert told[0].startswith("saving the whole run") and told[1:] == ["", "saving the weights", ""]


@pytest.mark.thorough
def test_ctrl_c_amid_a_long_step_is_answered_by_a_line(tmp_path: Path, deadline: Any) -> None:
    """The workers of a run hold still between two steps, and one of these takes seconds."""
    with Begun(
        tmp_path, "--set", "env.step_s=2.5", "--unroll", "2", "--set", "algorithm.minibatches=1"
    ) as begun:
        deadline(lambda: "  4 steps" in begun.said(), 100.0, "an update")
        assert begun.interrupted() == 130, begun.said()
        assert "ending: saving the whole run" in begun.said()
