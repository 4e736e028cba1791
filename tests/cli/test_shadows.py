"""Files of the user's that are named like modules of Python's, where the command is typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENV = """
import os
import gymnasium
import beside_it

def make():
    assert "PYTHONSAFEPATH" not in os.environ
    return gymnasium.make("CartPole-v1")
"""
SIZES = (
    "--steps 128 --unroll 8 --actors 1 --envs-per-actor 4 --evaluate-episodes 0 --no-recipe "
    "--out run"
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("random", "numbers", "queue", "socket", "selectors"):
        (tmp_path / f"{name}.py").write_text(
            f"raise SystemExit('the {name}.py of the user was imported')\n"
        )
    (tmp_path / "my_game.py").write_text(ENV)
    (tmp_path / "beside_it.py").write_text("")
    return tmp_path


def type_there(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "equipoise"), *words]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    return subprocess.run(
        command, cwd=here, env=environment, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.mark.thorough
def test_a_random_py_of_the_users_breaks_no_command(here: Path) -> None:
    # which starts both servers
    done = type_there(here, "train", "my_game:make", *SIZES.split(), "--inference", "central")
    assert done.returncode == 0, done.stdout + done.stderr
    done = type_there(here, "evaluate", "run", "--episodes", "1")
    assert done.returncode == 0 and "return" in done.stdout, done.stdout + done.stderr


@pytest.mark.thorough
def test_check_finds_what_is_typed_and_python_its_own(here: Path) -> None:
    done = type_there(here, "check", "my_game:make", "--steps", "50")
    assert done.returncode == 0, done.stdout + done.stderr
    done = type_there(here, "check", "random:make")
    said = done.stdout + done.stderr
    assert (
        done.returncode == 2
        and f"comes before {here / 'random.py'}: give yours another name" in said
    ), said
