"""Runs with preferences that are killed, also during a round, and go on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "seed"),
    [("ppo", 0), ("sac", 1), *(pytest.param("ppo", n, marks=pytest.mark.slow) for n in (2, 3, 4))],
)
def test_a_run_that_is_killed_three_times_ends_as_one_that_is_not(
    algorithm: str, seed: int, tmp_path: Path
) -> None:
    words = ["-m", "tests.rewards.preferences.killing", str(tmp_path), algorithm, str(seed)]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    whole, killed, kills = (json.loads(line) for line in done.stdout.splitlines())
    assert len(kills) >= 2, "on a slow machine a run may end before the third"
    for part, wanted in whole.items():
        assert killed[part] == wanted, part
    assert len(whole["queries"]) == len(whole["answers"]) >= 60
    assert whole["reward"]["rounds"] >= 15 and whole["reward"]["fitted"]
