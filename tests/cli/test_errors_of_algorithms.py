"""An error in a user's algorithm is shown from the user's line on, and once for all attempts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.hints import in_code_of_a_user, trace

ALGORITHM = """
from dataclasses import dataclass
from equipoise.algorithms.ppo import PPO

@dataclass(frozen=True)
class Mine(PPO):
    def loss(self, net, target_net, part, *, group, step, rng):
        raise RAISED
"""
LINE = 'alg.py", line 8, in loss'


@pytest.mark.thorough
@pytest.mark.parametrize("raised", ["ZeroDivisionError('mine')", "ValueError('mine')"])
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_traceback_begins_in_the_algorithm(tmp_path: Path, on: str, raised: str) -> None:
    (tmp_path / "alg.py").write_text(ALGORITHM.replace("RAISED", raised))
    asked = f"train CartPole-v1 --algorithm alg:Mine --on {on} --steps 2k --quiet --trust alg"
    told = subprocess.run(
        [sys.executable, "-m", "equipoise", *asked.split(), "--out", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    said = told.stderr
    assert told.returncode == 1 and raised.partition("(")[0] + ": mine" in said.splitlines()[-1]
    assert said.count(LINE) == 1 and "learner.py" not in said + told.stdout
    assert told.stdout.count("the run goes on from") == 2 * (on == "process"), (
        "each of two restarts"
    )
    assert told.stdout.count(LINE) == (on == "process"), "a note of the first of three attempts"


def test_a_traceback_without_a_users_line_is_whole() -> None:
    with pytest.raises(ValueError) as caught:
        int("x" + "1" * len(trace.__name__))
    assert in_code_of_a_user(caught.value), "this file is a user's"
    error = ValueError("nobody's")
    assert not in_code_of_a_user(error) and trace(error) == "ValueError: nobody's\n"
