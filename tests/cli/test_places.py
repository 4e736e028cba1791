"""Where output goes: 80 columns, a pipe that is closed early, no colour, a dumb terminal, a build
server.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.console import place
from equipoise.console.checking import CheckLine
from equipoise.console.groups import GROUPS
from equipoise.console.help import one_line
from equipoise.console.tables import runs_table, seeds_table
from equipoise.console.terminal import View, make_console, print_summary
from equipoise.console.unread import opened
from equipoise.envs.check.supervise import Progress
from equipoise.record.listing import RunRow
from tests.cli.samples import evaluation, program, report, summary

ROOT = Path(__file__).parents[2]
LONG = (
    "warning: this is a note of many words, and a path "
    + "/tmp/"
    + "x" * 90
    + " which stays whole, since it is to be copied"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wide(text: str, columns: int = 80) -> list[str]:
    """The lines that are wider, but for those that are no wider than their longest word."""
    lines = text.splitlines()
    return [
        line
        for line in lines
        if len(line) > columns and max(map(len, line.split())) <= columns - 20
    ]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal, of a shell in which nothing is set."""
    for name in ("CI", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


# ----------------------------------------------------------------------------------- eighty columns


def call(*words: str, **env: str) -> str:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "80", **env}, prog_name="equipoise")
    assert done.exit_code == 0, done.output
    return str(done.output)


@pytest.mark.parametrize(
    "command", [*(name for some in GROUPS.values() for name in some), "train --algorithm dqn"]
)
def test_the_help_of_a_command_has_eighty_columns(command: str) -> None:
    assert wide(call(*command.split(), "--help")) == []


@pytest.mark.parametrize(
    "words",
    ["algorithms", "recipes", "recipes CartPole-v1", "envs", "envs cheetah", "chaos --list"],
)
def test_what_a_command_lists_has_eighty_columns(words: str) -> None:
    assert wide(call(*words.split())) == []


@pytest.mark.parametrize("columns", [80, 100])
def test_a_report_of_check_has_the_columns_of_the_terminal(columns: int) -> None:
    done = CliRunner().invoke(
        app,
        ["check", "tests.envs.planted:OldApi", "--steps", "20"],
        env={"COLUMNS": str(columns)},
        prog_name="equipoise",
    )
    assert done.exit_code == 1 and wide(done.stdout, columns) == []
    assert max(map(len, done.stdout.splitlines())) > columns - 20


def rows(count: int = 2) -> list[RunRow]:
    given: dict[str, Any] = {
        "env": "MiniGrid-MemoryS7-v0",
        "algorithm": "apex_dqn",
        "status": "interrupted",
        "steps": 123_456_789,
        "steps_per_s": 123_456.7,
        "return_mean": -1234.56,
        "evaluation": -1234.5,
        "wall_s": 40_000.0,
        "size": 123_456_789,
        "verdict": "Too early to say",
        "changed": time.time() - 3600,
    }
    return [
        RunRow(path=Path(f"a-run-with-a-name-that-is-long-{i}"), seed=i, **given)
        for i in range(count)
    ]


def test_a_table_of_runs_leaves_out_what_there_are_no_columns_for() -> None:
    lines = [line.plain for line in runs_table(rows(), width=80)]
    assert wide("\n".join(lines)) == [] and len(lines) == 4
    assert lines[-1].startswith("left out at 80 columns: seed, time, evaluation, algorithm")
    for said in ("interrupted", "Too early to say", "1h ago", "123k", "-1,234.6", "123MB"):
        assert said in lines[1], f"{said!r} is there at 80 columns"
    for width in (200, None):  # a pipe has no columns: whoever reads it cuts for himself
        lines = [line.plain for line in runs_table(rows(), width=width)]
        assert (
            len(lines) == 3
            and lines[1].startswith("a-run-with-a-name-that-is-long-0 ")
            and "MiniGrid" in lines[1]
        )
    assert wide("\n".join(seeds_table(rows(), width=80))) == []


@pytest.mark.parametrize("said", [{}, {"verdict": "Sampling-bound: " + "word " * 60}])
def test_a_run_has_eighty_columns(
    said: dict[str, Any], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("CI", "true")
    with redirect_stdout(terminal), View(program(), on="process") as view:
        told = {
            "evaluation": evaluation(),
            "notes": (LONG,),
            "phases": {"actor 0": "first reset of env 1 of 2, " * 4},
        }
        view.update(report(**told, **said))
        print_summary(
            view.console, summary(info={"a/last": 1.0, "a/mean": 2.0}, **said), Path("runs/x")
        )
    text = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    assert wide(text) == [] and "x" * 90 in text and "\x1b" not in text
    assert (
        "1:12   42 %  210k steps" in text
        and "return 215.3" in text
        and "evaluation 487.2 ± 20.1" in text
    ), "no number is broken in two"


def test_in_a_pipe_a_message_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with View(program(), on="process") as view:
        view.update(report(notes=(LONG,), evaluation=evaluation()))
    place.say(LONG)
    assert [len(line) > 80 for line in capsys.readouterr().out.splitlines()] == [True, True, True]


def test_words_and_parts_stay_whole() -> None:
    assert place.wrapped("one two  three", 8, "  ") == ["one two", "  three"]
    assert place.wrapped("a " + "x" * 20 + " b", 8) == ["a", "x" * 20, "b"]
    assert place.wrapped("a\nb", None) == ["a", "b"]
    assert place.joined(["0:05", "return 1.0", "lag 2"], 18, "    ") == [
        "0:05  return 1.0",
        "    lag 2",
    ]
    assert place.joined(["0:05", "a b c d e f g h"], 10, "  ") == [
        "0:05  a b",
        "  c d e f",
        "  g h",
    ]


# ------------------------------------------------------------------- colours, a picture, a question


def test_a_terminal_has_colours_and_a_picture(terminal: Terminal) -> None:
    """What the others have not."""
    with redirect_stdout(terminal), View(program(), on="process") as view:
        view.update(report(notes=("warning: red",)))
    assert "\x1b[?25l" in terminal.getvalue() and re.search(r"\x1b\[[\d;]+m", terminal.getvalue())


def test_the_picture_has_the_size_of_the_terminal_that_it_is_drawn_on(terminal: Terminal) -> None:
    """What the process prints otherwise, to the descriptors 1 and 2,
    may go into a file meanwhile.
    """
    outer, inner = os.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 60, 0, 0))
    with os.fdopen(inner, "w") as file, redirect_stdout(file):
        view = View(program(), on="serial")
        with view:
            view.update(report())
    os.close(outer)
    assert view.console.size == (60, 30)


def test_no_color_is_no_bold_either(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stdout(terminal), View(program(), on="process") as view:
        view.update(report(notes=("warning: not red",)))
        print_summary(view.console, summary(), Path("runs/x"))
    assert not re.search(r"\x1b\[[\d;]*m", terminal.getvalue()) and "not red" in terminal.getvalue()


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("CI", "true"), ("CI", "1")])
def test_nothing_is_drawn_over_where_nobody_looks(
    name: str, value: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("equipoise.console.checking.LINE_S", 0.0)
    with redirect_stdout(terminal), redirect_stderr(terminal):
        with View(program(), on="process") as view:
            view.update(report())
        line = CheckLine()
        line(
            Progress(
                spent_s=12.0,
                seconds=60.0,
                probe="the first walk",
                where="step 4",
                steps=9,
                call_s=0.0,
                findings=0,
            )
        )
        line.clear()
    written = terminal.getvalue()
    assert (
        not re.search(r"\x1b\[\??\d*[A-HJKhl]", written)
        and "\r" not in written
        and "1:12" in written
        and "first walk" in written
    )
    assert name == "CI" or "\x1b" not in written


def test_a_pipe_has_no_escape_codes_even_where_colour_is_forced_on_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for forced in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", forced)
        assert not make_console().is_interactive
    monkeypatch.delenv("FORCE_COLOR")
    with View(program(), on="process") as view:
        view.update(report(notes=("warning: plain",)))
        print_summary(view.console, summary(), Path("runs/x"))
    assert "\x1b" not in capsys.readouterr().out


def test_a_warning_that_gymnasium_painted_is_plain() -> None:
    assert (
        one_line("\x1b[33mWARN: it is out of date\x1b[0m", UserWarning, "", 0)
        == "warning: WARN: it is out of date\n"
    )


def test_a_build_server_is_asked_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.record import listing

    monkeypatch.setattr(listing, "rows", lambda *_, **__: rows())
    monkeypatch.setattr(
        "equipoise.cli.runs.sys", type("Sys", (), {"stdin": Terminal("y\n"), "stdout": sys.stdout})
    )
    done = CliRunner().invoke(
        app, ["runs", "rm", str(tmp_path)], env={"CI": "true"}, prog_name="equipoise"
    )
    assert done.exit_code == 2 and "must have --yes, since no terminal is there" in done.stderr


# ------------------------------------------------------------------------------- a pipe without end


def test_what_nobody_reads_goes_nowhere() -> None:
    reads, writes = os.pipe()
    stream = opened(writes, sys.__stdout__ or io.StringIO())
    print("read", file=stream, flush=True)
    os.close(reads)
    for _ in range(3):
        print("unread " * 1000, file=stream, flush=True)
    assert os.readlink(f"/proc/self/fd/{writes}") == os.devnull if sys.platform == "linux" else True
    stream.close()


COMMANDS = [
    ("algorithms", 0),
    ("train --help", 0),
    ("runs nowhere", 2),
    ("runs .", 0),
    ("envs", 0),
    ("recipes CartPole-v1", 0),
    ("chaos --list", 0),
    ("check equipoise/Catch-v0 --steps 20", 0),
    ("check tests.envs.planted:OldApi --steps 20", 1),
    (
        "train CartPole-v1 --on serial --steps 500 --evaluate-episodes 0 --no-recipe --actors 1 "
        "--out {place}/run",
        0,
    ),
    (
        "train CartPole-v1 --on process --steps 500 --evaluate-episodes 1 --no-recipe --actors 1 "
        "--out {place}/run",
        0,
    ),
    ("evaluate {place}/nothing", 2),
    ("resume {place}/nothing", 2),
    ("plot {place}/nothing", 2),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("command", "code"), COMMANDS)
def test_a_command_whose_readers_have_gone_ends_with_its_own_code(
    command: str, code: int, tmp_path: Path
) -> None:
    """They go before it begins, so that its first word already finds nobody."""
    reads, writes = os.pipe()
    os.close(reads)
    words = [word.format(place=tmp_path) for word in command.split()]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "equipoise", *words],
            stdout=writes,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            timeout=200,
            check=False,
        )
    finally:
        os.close(writes)
    assert (
        done.returncode == code and "Traceback" not in done.stderr and "roken" not in done.stderr
    ), done.stderr


@pytest.mark.thorough
def test_an_error_that_nobody_reads_keeps_its_code() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    words = [sys.executable, "-m", "equipoise", "runs", "nowhere"]
    try:
        done = subprocess.run(
            words, stdout=writes, stderr=writes, cwd=ROOT, timeout=200, check=False
        )
    finally:
        os.close(writes)
    assert done.returncode == 2
