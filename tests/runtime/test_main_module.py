"""An env and an algorithm that a script defines itself: they work on processes, without a guard,
and through a resume.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.runtime.process import main_module

SCRIPT = """
from __future__ import annotations
import sys
from dataclasses import dataclass
import threading
from typing import Annotated, Literal
import gymnasium
import numpy as np
import equipoise as eq
from equipoise.algorithms.ppo import PPO
from equipoise.facts import Help, NonNegativeFloat

SIZE = 3
print("the script runs")


class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (SIZE,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    lock = None

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(SIZE, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(SIZE, np.float32), float(action), self.t >= 20, False, {}


@dataclass(frozen=True, kw_only=True)
class Bolder(PPO):
    bonus: Annotated[NonNegativeFloat, Help("A bonus of the run, held by lock.")] = 0.1
    kind: Annotated[Literal["lock"], Help("lock")] = "lock"
    later: list["Mine"] | None = None


lock = threading.Lock()  # in no annotation, only in their texts
out, on, inference, doing = sys.argv[1:]
options = dict(actors=1, envs_per_actor=4, unroll=16, max_lag=0, evaluate_episodes=1, inference=inference, recipe=False)
if doing == "unpicklable":
    Mine.lock = threading.Lock()
if doing == "resume":
    run = eq.start(resume=out, steps=2048)
else:
    run = eq.start(Mine, "__main__:Bolder", steps=1024, out=out, on=on, settings=["algorithm.bonus=0.3"], **options)
list(run)
print(run.summary["params_sha256"])
"""  # noqa: E501


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (place / "script.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "script.py", *words],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.thorough
def test_what_a_script_defines_works_on_processes_as_on_serial_and_is_run_once(
    tmp_path: Path,
) -> None:
    hashes = []
    for on, inference in (("serial", "local"), ("process", "local"), ("process", "central")):
        done = run(tmp_path, f"{on}-{inference}", on, inference, "train")
        assert done.returncode == 0, done.stderr
        first, params = done.stdout.splitlines()
        assert first == "the script runs"
        hashes.append(params)
    assert hashes[0] == hashes[1], "in lockstep, to the bit"
    program = json.loads((tmp_path / "process-local" / "run.json").read_text())["program"]
    assert program["source"]["env"]["target"] == "__main__:Mine"
    assert program["policies"]["main"]["algorithm"]["fields"]["bonus"] == 0.3


@pytest.mark.thorough
def test_its_run_goes_on_in_the_script_and_says_so_elsewhere(tmp_path: Path) -> None:
    assert run(tmp_path, "run", "process", "local", "train").returncode == 0
    done = run(tmp_path, "run", "process", "local", "resume")
    assert done.returncode == 0, done.stderr
    for command in (("resume", "run", "--steps", "4096"), ("evaluate", "run")):
        elsewhere = subprocess.run(
            [sys.executable, "-m", "equipoise", *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert elsewhere.returncode == 2
        assert (
            "env '__main__:Mine' was defined by a script or in a notebook; it can go on there "
            "alone" in elsewhere.stderr
        )


@pytest.mark.thorough
def test_what_cannot_be_sent_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, "run", "process", "local", "unpicklable")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "ValueError: Bolder, Mine: must be sendable to a process, got TypeError: cannot pickle"
    ), last


@pytest.mark.parametrize(
    ("annotation", "names"),
    [
        ('Annotated[float, Help("Steps of a run.")]', {"Annotated", "float", "Help"}),
        ('Annotated[float, Help("run")]', {"Annotated", "float", "Help"}),
        ('Literal["run"]', {"Literal"}),
        ('typing.Literal["run", 1]', {"typing"}),
        ('list["Later"]', {"list", "Later"}),
        ("list['dict[str, Later]']", {"list", "dict", "str", "Later"}),
        ("'Later'", {"Later"}),
        ("Annotated[int, Range(0, MOST)]", {"Annotated", "int", "Range", "MOST"}),
        ("int | None", {"int"}),
    ],
)
def test_an_annotation_names_what_it_reads_and_not_the_words_of_its_texts(
    annotation: str, names: set[str]
) -> None:
    assert set(main_module._names(annotation)) == names
