"""A module or an env that exits, as a script does at its end, ends a command with an error: nothing
was done.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENV = """
import gymnasium, numpy as np, argparse, sys
class E(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        RESET
        return np.zeros(1, np.float32), {}
    def step(self, action):
        STEP
        return np.zeros(1, np.float32), 1.0, True, False, {}
END
"""  # noqa: E501
EXIT, LINE = "sys.exit(0)", {"RESET": 6, "STEP": 9, "END": 11}


@pytest.mark.few(1)
@pytest.mark.parametrize("place", list(LINE))
@pytest.mark.parametrize(
    "exits", [EXIT, "raise SystemExit", "argparse.ArgumentParser().parse_args(['--nothing'])"]
)
def test_an_exit_of_a_users_code_is_no_success(tmp_path: Path, place: str, exits: str) -> None:
    text = ENV.replace(place, exits)
    for other in LINE:
        text = text.replace(other, "")
    (tmp_path / "leaves.py").write_text(text)
    told = subprocess.run(
        [
            sys.executable,
            "-m",
            "equipoise",
            "train",
            "leaves:E",
            "--on",
            "serial",
            "--steps",
            "64",
            "--quiet",
            "--evaluate-episodes",
            "0",
            "--out",
            "run",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert told.returncode == 1 and f"leaves.py:{LINE[place]}" in told.stderr.splitlines()[-1], (
        told.stderr
    )


@pytest.mark.thorough
def test_an_exit_of_our_own_stays_what_it_is(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "equipoise", "runs", "none"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "returns or raises" not in told.stderr and told.returncode == 2


@pytest.mark.thorough
def test_an_error_whose_text_raises_is_named_by_its_type(tmp_path: Path) -> None:
    text = ENV.replace("STEP", "raise Odd()").replace("RESET", "").replace("END", "")
    (tmp_path / "leaves.py").write_text(
        text + "class Odd(Exception):\n    def __str__(self): raise ValueError('no text')\n"
    )
    for command in ("train", "check"):
        extra = (
            ["--on", "serial", "--steps", "64", "--evaluate-episodes", "0", "--out", "run"]
            if command == "train"
            else []
        )
        told = subprocess.run(
            [sys.executable, "-m", "equipoise", command, "leaves:E", *extra],
            cwd=tmp_path,
            check=False,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert (
            told.returncode == 1
            and "since its str() raises ValueError" in told.stdout + told.stderr
        ), told.stderr
