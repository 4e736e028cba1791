"""A run whose directory is removed, renamed or replaced ends with one sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.errors import DirectoryLost


def removed(path: Path) -> None:
    shutil.rmtree(path)


def renamed(path: Path) -> None:
    path.rename(path.with_name("new"))


def replaced(path: Path) -> None:
    renamed(path)
    shutil.copytree(path.with_name("new"), path)


def a_file(path: Path) -> None:
    renamed(path)
    path.write_text("")


@pytest.mark.parametrize("happens", [removed, renamed, replaced, a_file])
def test_the_run_ends_at_once_and_a_renamed_directory_goes_on(
    happens: Callable[[Path], None], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"checkpoint_every": 512, "evaluate_episodes": 0}
    run = eq.start("CartPole-v1", "ppo", steps=10**9, out=tmp_path / "run", on="serial", **options)
    reports = iter(run)
    while not list((tmp_path / "run/checkpoints").glob("step_*")):
        next(reports)
    happens(tmp_path / "run")
    with pytest.raises(DirectoryLost, match="removed, renamed or replaced") as caught:
        for _ in reports:
            pass
    assert str(caught.value).startswith(f"{tmp_path / 'run'}: ")
    assert not (tmp_path / "run/summary.json").exists()
    if happens is not removed:
        with eq.start(resume=tmp_path / "new") as again:
            assert next(iter(again)).step > 0
