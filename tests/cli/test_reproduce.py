"""``equipoise reproduce`` and ``--on-nonfinite``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from equipoise.envs import make
from equipoise.envs.failures.capsule import Failures
from equipoise.types import EnvFactory

ROOT = Path(__file__).parents[2]
TARGET = "tests.envs.faulty:Faulty"


@pytest.fixture(scope="module")
def capsule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capsules")
    env = make(
        EnvFactory(target=TARGET), streams=np.array([3]), seed=0, failures=Failures(capsules=path)
    )
    env.recv()
    while not list(path.iterdir()):
        env.send(np.zeros(1, int), env.ts.stream)
        env.recv()
    return next(path.iterdir())


def equipoise(*arguments: object, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from equipoise.cli import main; main()", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, input=typed, capture_output=True, text=True, check=False, timeout=100
    )


def test_the_same_exception_comes_again(capsule: Path) -> None:
    done = equipoise("reproduce", capsule)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert (
        lines[-1] == "reproduced: RuntimeError: the reactor is leaking"
        and "importing tests.envs.faulty" in lines
    )
    assert "faulty.py" in done.stderr and "Traceback" in done.stderr


def test_the_debugger_stands_where_it_failed(capsule: Path) -> None:
    done = equipoise("reproduce", capsule, "--pdb", typed="p self.how, wrong\nq\n")
    assert done.returncode == 1 and "('raise', True)" in done.stdout


@pytest.mark.thorough
def test_what_is_mended_says_so(capsule: Path, tmp_path: Path) -> None:
    data = json.loads((capsule / "capsule.json").read_text())
    data["env"]["kwargs"] = {"how": "none"}
    (tmp_path / "capsule.json").write_text(json.dumps(data))
    (tmp_path / "arrays.npz").write_bytes((capsule / "arrays.npz").read_bytes())
    done = equipoise("reproduce", tmp_path, "--trust", "tests.envs.faulty")
    assert done.returncode == 3 and "steps were done and nothing was raised" in done.stdout
    data["message"] = "another"
    data["env"]["kwargs"] = {}
    (tmp_path / "capsule.json").write_text(json.dumps(data))
    done = equipoise("reproduce", tmp_path / "capsule.json", "--trust", "tests.envs.faulty:Faulty")
    assert (
        done.returncode == 3
        and "another exception came, RuntimeError: the reactor is leaking" in done.stdout
    )


@pytest.mark.thorough
def test_what_a_capsule_says_moves_no_cursor(capsule: Path, tmp_path: Path) -> None:
    data = json.loads((capsule / "capsule.json").read_text())
    data["message"], data["env"]["kwargs"] = (
        "\x1b[2J\x1b]0;title\x07gone\r\u202e",
        {"how": "none", "\x1b[31mred": 1},
    )
    (tmp_path / "capsule.json").write_text(json.dumps(data))
    (tmp_path / "arrays.npz").write_bytes((capsule / "arrays.npz").read_bytes())
    done = equipoise("reproduce", tmp_path, "--trust", "tests.envs.faulty")
    assert not set("\x1b\x07\r\u202e") & set(done.stdout + done.stderr)
    assert "\\x1b[2J\\x1b]0;title\\x07gone\\r\\u202e" in done.stdout


@pytest.mark.thorough
def test_what_is_no_capsule_is_said_in_a_line(tmp_path: Path) -> None:
    done = equipoise("reproduce", tmp_path)
    assert (
        done.returncode == 2
        and done.stderr.startswith("equipoise reproduce: ")
        and "expected a capsule" in done.stderr
    )
    assert len(done.stderr.splitlines()) == 1
    away = equipoise("reproduce", tmp_path / "away")
    assert (
        away.returncode == 2
        and "away: expected a capsule or a run with capsules, got no such file" in away.stderr
    )


@pytest.mark.thorough
def test_an_unknown_policy_is_refused_in_a_line() -> None:
    done = equipoise("train", "CartPole-v1", "--on-nonfinite", "ignore")
    assert (
        done.returncode == 2
        and "--on-nonfinite: expected one of 'stop', 'drop', 'clamp', got 'ignore'" in done.stderr
    )
