"""What a summary offers as next: each command is typed as it stands, and works."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise import api
from equipoise.cli import app, seeds
from equipoise.console import terminal
from equipoise.console.terminal import look_command
from equipoise.record import listing
from equipoise.types import EnvSource

SHORT = ["--on", "serial", "--evaluate-episodes", "0"]
SMALL = [
    "--actors",
    "1",
    "--envs-per-actor",
    "2",
    "--unroll",
    "4",
    "--batch",
    "2",
    "--steps",
    "16",
    "--no-recipe",
]


def typed(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


def offered(text: str) -> list[list[str]]:
    lines = text.partition("Next:\n")[2].splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("  equipoise ")]


def done(out: Path, *words: str, code: int = 0) -> list[list[str]]:
    result = typed("train", *words, *SHORT, "--out", str(out))
    assert result.exit_code == code, result.output
    return offered(result.output)


def works(command: list[str]) -> None:
    result = typed(
        *command,
        *(["--episodes", "1"] if command[0] == "evaluate" and "--recorded" not in command else []),
    )
    assert result.exit_code == 0, (command, result.output)


@pytest.mark.parametrize(
    ("env", "more", "commands"),
    [
        ("CartPole-v1", [], ["evaluate", "evaluate --video"]),
        ("tests.envs.faulty:Faulty", ["--set", "env.how=none"], ["evaluate"]),
        ("tests.envs.given:Duo", ["--set", "env.place=", "--set", "env.kind=array"], ["evaluate"]),
    ],
)
def test_what_is_offered_of_an_env_works(
    env: str, more: list[str], commands: list[str], tmp_path: Path
) -> None:
    found = done(tmp_path / "a run's", env, *SMALL, *more)
    assert [" ".join([one[0], *one[2:]]) for one in found] == commands
    for command in found:
        works(command)


@pytest.mark.thorough
def test_what_is_offered_of_a_run_on_text_works(tmp_path: Path) -> None:
    found = done(tmp_path / "run", "sort", "--algorithm", "grpo", "--steps", "64", "--batch", "64")
    assert {command[0] for command in found} >= {"generate"}
    for command in found:
        works(["012>" if word == "TEXT" else word for word in command])  # a prompt of its own


@pytest.mark.thorough
def test_what_is_offered_of_conversations_works(tmp_path: Path) -> None:
    found = done(tmp_path / "run", "guess", "--algorithm", "grpo", "--steps", "64", "--batch", "64")
    assert ["generate", str(tmp_path / "run"), "--conversations", "3"] in found
    for command in found:
        works(command)


@pytest.mark.thorough
def test_what_is_offered_of_recorded_rows_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    done(tmp_path / "first", "CartPole-v1", *SMALL)
    api.collect(tmp_path / "first", "own/cart-v0", episodes=2)
    found = done(
        tmp_path / "run",
        "CartPole-v1",
        "--dataset",
        "own/cart-v0",
        "--algorithm",
        "bc",
        "--steps",
        "4",
    )
    assert found and {command[0] for command in found} == {"evaluate"}
    for command in found:
        works(command)


def test_of_a_run_that_learned_nothing_nothing_is_offered(tmp_path: Path) -> None:
    assert (
        done(
            tmp_path / "run",
            "tests.envs.given:OldStep",
            *SMALL,
            "--set",
            "env.place=",
            "--set",
            "env.kind=array",
            code=1,
        )
        == []
    )
    found = [listing.row(tmp_path / "run")]
    assert seeds.next_commands(tmp_path, found) == []


@pytest.mark.parametrize(
    "env", ["remote:tcp://127.0.0.1:1", "envpool:Pong-v5", "tests.envs.given:Gone", "gone:Env"]
)
def test_no_video_is_offered_of_what_nobody_can_draw(env: str) -> None:
    from dataclasses import replace

    made = api.program("CartPole-v1", "ppo")
    assert look_command(made) == terminal.VIDEO
    named: Any = replace(made.env, target=env)
    assert look_command(replace(made, source=EnvSource(env=named))) == ""


def test_a_package_that_is_missing_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(tmp_path / "runs" / "seed 1", "CartPole-v1", *SMALL, "--set", "env.max_episode_steps=4")
    made, found = api.program("CartPole-v1", "ppo"), [listing.row(tmp_path / "runs" / "seed 1")]
    commands = seeds.next_commands(tmp_path / "runs", found)
    assert [shlex.split(one)[0] for one in commands] == ["plot", "evaluate"]
    for command in commands:
        works(
            [
                *shlex.split(command),
                *(["--out", str(tmp_path / "curves.svg")] if command.startswith("plot") else []),
            ]
        )
    monkeypatch.setattr(terminal, "find_spec", lambda name: None)
    monkeypatch.setattr(seeds, "find_spec", lambda name: None)
    assert look_command(made) == ""
    assert [one.split()[0] for one in seeds.next_commands(tmp_path / "runs", found)] == ["evaluate"]
