"""What the page of environments from outside is made of: times of lines, advice as options, and
what a command leaves.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import environments
import pytest
from commands import Command
from environment_rows import ENVS, FAMILIES
from environments import followed, of_lines, row

LINES = [
    (1.0, "starting: importing"),
    (4.0, "starting: measuring an env of x:make"),
    (
        5.0,
        "0:00    0 %  0 steps  0/s  return —  lag 0.0 (max 0)  Starting  starting: actor 0: first "
        "reset of env 1 of 16",
    ),
    (11.0, "0:05    0 %  0 steps (300 taken)  60/s  return —  lag 0.0 (max 0)  Too early to say"),
    (16.0, "0:10    0 %  2.05k steps  80/s  return 0.3  lag 0.0 (max 0)  CPU-bound"),
]


def test_steps_begin_after_the_last_line_that_knows_of_none() -> None:
    found = of_lines(LINES, 18.0, recorded_at=13.0)
    assert (found["first_line"], found["steps_at"], found["record_s"]) == (1.0, 11.0, 8.0)
    assert (found["silence"], found["silence_at"]) == (6.0, 5.0)
    assert of_lines(LINES[:3], 30.0, recorded_at=None) | {"sizes": None} == {
        "first_line": 1.0,
        "silence": 25.0,
        "silence_at": 5.0,
        "steps_at": None,
        "record_s": None,
        "sizes": None,
    }


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (
            "Resetting: ...; use --actors 8 --envs-per-actor 1, since the resets",
            "--actors 8 --envs-per-actor 1",
        ),
        ("Resetting: ...; use --actors 8, since the resets", "--actors 8"),
        (
            "Sampling-bound: ...; add envs per actor (2 actors on 2 cores already).",
            "--envs-per-actor 8",
        ),
        ("Sampling-bound: ...; add actors or envs per actor.", "--actors 4"),
        ("CPU-bound: ...; use fewer actors.", "--actors 1"),
        ("Lockstep: ...; raise --max-lag to overlap them.", "--max-lag 1"),
        ("Balanced: the actors and the learner are both busy.", None),
    ],
)
def test_an_advice_is_followed_as_it_stands(verdict: str, words: str | None) -> None:
    placement = {"actors": 2, "envs_per_actor": 4, "max_lag": 0}
    assert followed(verdict, placement) == (None if words is None else tuple(words.split()))


def test_every_environment_is_of_a_family_and_has_a_row() -> None:
    assert len(ENVS) == len({env.name for env in ENVS}) == 21 and {env.family for env in ENVS} == {
        *FAMILIES
    }
    run = of_lines(LINES, 18.0, 13.0) | {
        "returned_at": 15.0,
        "seconds": 17.0,
        "first_return": 0.1,
        "last_return": 0.3,
        "ended": 41,
        "episodes": 40,
        "taken": 5000,
        "leaves_s": 1.0,
        "load": [9.6, 11.2],
    }
    check: dict[str, Any] = {"findings": ["note   a", "note   b"], "seconds": 9.0}
    shown = row("an env", {"check": check, "run": run})
    assert (
        len(shown) == len(environments.HEAD)
        and "2 notes (9 s)" in shown
        and "40 of 41" in shown
        and "0.10 → 0.30" in shown
    )


def test_the_page_counts_what_was_kept() -> None:
    good = {
        "taken": 5,
        "record_s": 3.0,
        "silence": 5.2,
        "summary": True,
        "leaves_s": 2.0,
        "left": [],
    }
    bad = {
        "taken": 5,
        "record_s": 31.0,
        "silence": 6.1,
        "summary": False,
        "leaves_s": 1.0,
        "left": ["a process"],
    }
    rows = [{"run": good}, {"run": bad}, {"run": good | {"taken": 0, "record_s": None}}]
    assert [line.split()[1:4] for line in environments.kept(rows)] == [
        ["1", "of", "3"],
        *[["2", "of", "3"]] * 3,
    ]


def test_what_outlives_a_command_is_found_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commands.GRACE_S", 0.1)
    # stands for the interpreter: prints, and leaves a process in a session of its own
    python = tmp_path / "python"
    child = (
        "import os, time; os.setsid(); print('here', flush=True); os.close(1); os.close(2); "
        "time.sleep(60)"
    )
    python.write_text(
        f'#!/bin/sh\necho "words: $*"\n"{sys.executable}" -c "{child}" &\nwait_for=$!\nsleep 0.3\n'
    )
    python.chmod(0o755)
    run = Command(python, ["train", "x"], tmp_path)
    assert run.ended(20.0)
    (left,) = run.close()
    assert "os.setsid()" in left and run.lines[0][1] == "words: -m equipoise train x"
    assert run.process.returncode == 0 != -signal.SIGKILL
