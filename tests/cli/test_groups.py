"""``equipoise --help`` and ``train --help``: groups, one screen, and the commands ``help`` and
``version``.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from equipoise import __version__
from equipoise.cli import app
from equipoise.console.groups import GROUPS
from equipoise.console.own_options import as_settings
from equipoise.console.short_help import SHORT

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


def test_the_help_of_train_fits_on_a_screen_and_help_all_has_each_option() -> None:
    short, whole = out("train", "--help"), out("train", "--help-all")
    assert len(short.splitlines()) <= 45
    assert all(word in short for word in ("--lr X", "--gamma X", "--steps N", "(default: 500000)"))
    on_text = out("train", "--algorithm", "grpo", "--help-all")
    on_text_short = out("train", "--algorithm", "grpo", "--help")
    assert "module:function[,...]" in on_text and "module:function[,...]" in on_text_short
    for one in (
        "--model",
        "--reward MODULE:FUNCTION",
        "--max-completion-length",
        "source.task",
    ):  # of text
        assert one not in short and one not in whole
        assert one in on_text or one in on_text_short
    assert "placement.give_up_s" in whole and "--algorithm grpo, --help-all" in whole
    options = {line.split()[0] for part in SHORT.values() for line in part if line.startswith("--")}
    assert all(option in whole for option in options - {"--lr", "--gamma", "--no-recipe"})


def test_the_help_of_a_study_has_the_options_of_one() -> None:
    short, whole = out("tune", "start", "--help"), out("tune", "start", "--help-all")
    assert len(short.splitlines()) <= 55
    assert all(word in short for word in ("--space KEY=VALUES", "--jobs J", "--confirm N"))
    assert "--seeds" not in short and "placement.give_up_s" in whole


def test_the_help_of_an_algorithm_has_its_own_fields() -> None:
    sac = out("train", "--algorithm", "sac", "--help")
    assert "--target-entropy" in sac and "--clip " not in sac and "--model" not in sac
    assert "--model" in out("train", "--algorithm", "grpo", "--help")


def test_fields_of_the_named_algorithm_are_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "--clip",
        "0.1",
        "--entropy=0.01",
        "--lambda",
        "0.9",
        "--no-anneal-clip",
        "--lr",
        "2e-3",
    ]
    plan = out(
        "train", "CartPole-v1", "--on", "serial", *words, "--normalize-advantage", "--dry-run"
    )
    policy = tomllib.loads(plan)["policies"]["main"]
    fields = policy["algorithm"]["fields"]
    assert (fields["clip"], fields["entropy"], fields["lambda_"]) == (0.1, 0.01, 0.9)
    assert not fields["anneal_clip"] and fields["normalize_advantage"]
    assert policy["optimizer"]["learning_rate"] == 2e-3
    assert "checkpoints/" in plan and list(tmp_path.iterdir()) == [], "it writes nothing"


def test_an_option_of_the_run_wins_over_a_field_of_its_name() -> None:
    assert as_settings("train", ["A", "--steps", "5", "--gamma", "0.9"], {"--steps": True}) == [
        *("A", "--steps", "5", "--set", "algorithm.gamma=0.9")
    ]
    assert as_settings("train", ["A", "--", "--gamma", "1"], {}) == ["A", "--", "--gamma", "1"]
    with pytest.raises(ValueError, match="option '--gamma' requires an argument"):
        as_settings("train", ["A", "--gamma"], {})
