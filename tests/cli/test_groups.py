"""``equipoise --help``: its groups, and the commands ``help`` and ``version``."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from equipoise import __version__
from equipoise.cli import app
from equipoise.console.groups import GROUPS

COMMANDS = {name: text for some in GROUPS.values() for name, text in some.items()}


def out(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_each_command_has_one_whole_line_in_a_group() -> None:
    lines = out("--help").splitlines()
    assert set(COMMANDS) == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert all(f"  {name:10}  {text}" in lines for name, text in COMMANDS.items())
    assert [line[:-1] for line in lines if line in {f"{one}:" for one in GROUPS}] == [*GROUPS]
    assert all(len(line) <= 80 for line in lines) and "..." not in "".join(lines[1:])


def test_help_and_version_are_commands() -> None:
    assert out("help") == out("--help")
    assert out("help", "resume").splitlines()[0].endswith("resume [OPTIONS] DIR|URL")
    assert out("version") == out("--version") == f"equipoise {__version__}\n"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_type_of_python_leaks_into_a_help(command: str) -> None:
    text = out(command, "--help")
    assert not any(part in text for part in ("<list", "[[", "<=x", "INTEGER RANGE")), text
