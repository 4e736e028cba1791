"""Odd command lines: each kind is refused in one line that names what came and what to type."""

from __future__ import annotations

import shlex
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.cli.train import WRITTEN
from equipoise.console.topics import with_topic
from equipoise.record.completions import COMPLETIONS
from equipoise.record.directory import LOGS
from equipoise.record.paths import CAPSULES

ROOT = typer.main.get_group(app)


def leaves(command: Any = ROOT, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], TyperCommand]:
    """Every command by its words."""
    if not isinstance(command, TyperGroup):
        return {words: command}
    found: dict[tuple[str, ...], TyperCommand] = {}
    for name, one in command.commands.items():
        found |= leaves(one, (*words, name))
    return found


def typed(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    return done.exit_code, done.output.strip()


def refused(*words: str) -> str:
    code, said = typed(*words)
    assert code == 2 and said.count("\n") == 0 and "Traceback" not in said, (words, said)
    return said


@pytest.mark.thorough
def test_no_argument_and_no_option_of_any_command_may_be_empty() -> None:
    count = 0
    for words, command in leaves().items():
        for param in command.params:
            takes = not (getattr(param, "is_flag", False) or param.default == "")
            if not takes or param.name == "prompt":
                continue
            name = param.opts[0]
            said = refused(*words, *((name,) if name[:1] == "-" else ()), "")
            assert "must not be empty, got ''" in said, said
            count += 1
    assert count > 150


def test_an_empty_text_that_means_something_is_taken(tmp_path: Path) -> None:
    said = refused("registry", "rollback", "x", "--reason", "", "--registry", str(tmp_path))
    assert "expected a registry" in said
    assert "must not be empty" not in refused("generate", str(tmp_path), "--prompt", "")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("train CartPole-v1 –lr 0.1", "'–lr': must begin with '-', got '–'; try '--lr'."),
        ("train CartPole-v1 —lr=0.1", "'—lr=0.1': must begin with '-', got '—'; try '--lr=0.1'."),
        ("evaluate runs/x −-seed 3", "'−-seed': must begin with '-', got '−'; try '--seed'."),
        ("train E --gamma 0.9 --gamma 0.8", "algorithm.gamma: must be given once, got '0.9' and"),
        (
            "train E --lr 0.1 --set optimizer.learning_rate=0.2",
            "optimizer.learning_rate: must be given once, got '0.1' and '0.2'; remove one.",
        ),
        ("train E --clip 0.1 --clip 0.2", "algorithm.clip: must be given once, got '0.1' and"),
        ("train E --steps 3 --set schedule.steps=4", "schedule.steps: must be given once, got '3'"),
        ("train E --out a --out b", "--out: must be given once, got 'a' and 'b'"),
        ("train E --algorithm ../x --foo 3", "no such option '--foo', since the fields of the"),
        ("train E --algorithm pppo --clip 3", "no such option '--clip', since the fields of the"),
        (
            "resume nope --clip 0.1",
            "the fields of the algorithm are not known: nope: expected",
        ),
        ("evaluate --help-all", "it is one of 'train', and --help lists everything"),
        ("--help-all", "it is one of 'train', and --help lists everything"),
        ("-v", "no such option '-v'; did you mean '--version'?"),
        ("-V", "no such option '-V'; did you mean '--version'?"),
        ("help train extra", "'extra' must be a command of 'equipoise train', got none such"),
        ("help registry nope", "'nope' must be a command of 'equipoise registry'"),
        ("help ''", "must not be empty, got ''"),
        ("help --x", "no such option '--x'"),
        ("Train E", "no such command 'Train'; did you mean 'train'?"),
        ("train --clip", "option '--clip' requires an argument"),
    ],
)
def test_an_odd_line_is_refused_by_name(line: str, wanted: str) -> None:
    assert wanted in refused(*shlex.split(line))


def test_the_same_value_twice_and_several_settings_are_fine() -> None:
    words = ("--gamma", "0.9", "--gamma", "0.9", "--set", "env.a=1", "--set", "env.b=2")
    assert "must be given once" not in typed("train", "E", *words, "--config", "x.toml")[1]
    _, said = typed("serve", "nope", "--port", "1", "--port", "2")  # the last one, as everywhere
    assert "must be a registry, a run or an artifact" in said


def test_a_dry_run_refuses_what_a_run_would(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for words, wanted in (
        (("--out", str(tmp_path / "file")), "expected a directory to write the run into"),
        (("--out", str(tmp_path / "full")), "expected a new or an empty directory"),
        (("--callback", "x"), "callback: expected module:name, got 'x'"),
        (("--callback", "json:loads"), "an object must have one of the methods"),
    ):
        code, said = typed("train", "CartPole-v1", "--dry-run", *words)
        assert code == 2 and wanted in said, said


def test_a_dry_run_lists_the_files_of_a_run(tmp_path: Path) -> None:
    words = ("--steps", "256", "--evaluate-episodes", "1", "--on", "serial", "-q")
    code, said = typed("train", "CartPole-v1", *words, "--out", str(tmp_path / "run"))
    assert code == 0, said
    found = {f"{one.name}{'/' * one.is_dir()}" for one in (tmp_path / "run").iterdir()}
    of_some = {f"{CAPSULES}/", f"{LOGS}/", COMPLETIONS}  # failures, processes, text
    listed = {next((one for one in found if fnmatch(one, name)), name) for name in WRITTEN}
    assert listed == found | of_some
    _, printed = typed("train", "CartPole-v1", "--dry-run")
    assert all(f"#   {name:16} {text}" in printed for name, text in WRITTEN.items())


def test_spaces_around_an_env_are_refused() -> None:
    code, said = typed("train", "CartPole-v1 ", "--dry-run")
    assert code == 2 and "got 'CartPole-v1 '; did you mean 'CartPole-v1'?" in said, said


def test_an_error_of_the_system_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        (tmp_path / "a" / "b").mkdir()
    wanted = f"{tmp_path / 'a' / 'b'}: must be a place that can be used, got 'No such file or"
    assert with_topic(caught.value).startswith(wanted)


def test_a_file_in_place_of_a_run_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hi")
    for words in (("evaluate",), ("export",), ("runs", "show")):
        more = (str(tmp_path / "out"),) if words == ("export",) else ()
        assert "got a file" in refused(*words, str(tmp_path / "file"), *more)


def test_a_dry_run_refuses_what_cannot_run_there() -> None:
    words = ("sort", "--algorithm", "grpo", "--steps", "64", "--on", "ray", "--dry-run")
    for kind, lag in (("together", "0"), ("elastic", "1")):
        code, said = typed("train", *words, "--placement", kind, "--max-lag", lag)
        assert code == 2 and "try --placement apart" in said, said
    serial = ("train", "CartPole-v1", "--on", "serial", "--balance", "auto", "--dry-run")
    code, said = typed(*serial, "--max-lag", "2")
    assert code == 2 and "balance: expected off with on=serial" in said, said
    for heat in ("inf", "1e-320", "0"):
        setting = f"algorithm.temperature={heat}"
        code, said = typed("train", *words[:-3], "--dry-run", "--set", setting)
        assert code == 2 and "algorithm.temperature: expected 0.001 to 100" in said, said


def test_counts_are_read_before_anything_is_measured() -> None:
    for option in ("--seeds", "--jobs"):
        code, said = typed("train", "CartPole-v1", option, "0")
        assert code == 2 and f"{option}: expected at least 1, got 0" in said, said
