"""Odd arguments of Python's functions are refused by name, before anything is made."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms import PPO
from equipoise.api.options import BOOLS, LISTS, MAPPINGS, PLACES
from equipoise.device_envs.naming import make_device_env
from equipoise.language.tasks import built_in
from equipoise.types import learning

ODD: list[tuple[Mapping[Any, Any], str]] = [
    *(({name: "no"}, f"{name}: must be True or False, got 'no'") for name in BOOLS),
    *(({name: [1]}, f"{name}: must be a dict, got \\[1\\]") for name in MAPPINGS),
    *(({name: b"x"}, f"{name}: must be a path, as text.*, got b'x'") for name in PLACES[:2]),
    ({"out": 3}, "out: must be a path"),
    ({"trust": "os"}, "trust: must be a list of modules such as .*, got 'os'"),
    ({"trust": {"os"}}, "trust: must be a list of modules"),
    *(({name: 5}, f"{name}: must be a list of .*, got 5") for name in LISTS),
    *(({name: [None]}, f"{name}: must be a list of .*, got None in it") for name in LISTS),
    *(({name: b"x"}, f"{name}: must be a list of .*, got b'x'") for name in LISTS),
    ({"report_to": {"wandb": "x"}}, "report_to: must be a list of trackers"),
    ({"policies": {"main": 5}}, "policies: main: must be .*, got 5"),
    ({"settings": {1: 2}}, "settings: keys must be texts such as 'algorithm.gamma', got 1"),
    ({"settings": [1]}, "settings: must hold texts such as 'algorithm.gamma=0.98', got 1"),
    ({"gama": 0.9}, r"unknown option 'gama'; did you mean settings=\{'algorithm.gamma': 0.9\}\?"),
    ({"stepz": 9}, "unknown option 'stepz'; did you mean 'steps'"),
    ({"settings": 5}, "settings: must be a list such as .*, got 5"),
]


@pytest.mark.parametrize(("given", "said"), ODD, ids=lambda one: str(one)[:40])
def test_an_argument_of_another_shape_is_refused(
    given: Mapping[Any, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=said):
        eq.train("CartPole-v1", **{"progress": False, "on": "serial", "steps": 512, **given})
    assert not list(tmp_path.iterdir())


def test_messages_that_go_on_have_one_stop() -> None:
    for make in (
        lambda: built_in("no_such_task", 0),
        lambda: make_device_env("no_such_env", {}, streams=1),
    ):
        with pytest.raises(ValueError) as caught:
            make()
        assert ".;" not in str(caught.value) and "; valid: " in str(caught.value)


class Bytes:
    def __fspath__(self) -> bytes:
        return b"x"


@pytest.mark.parametrize("name", PLACES)
def test_a_path_that_no_file_system_has_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for odd, said in (("", "an empty text"), ("a\0b", "without NUL"), (Bytes(), "got b'x'")):
        with pytest.raises((TypeError, ValueError), match=f"{name}: must be a path.*{said}"):
            eq.train("CartPole-v1", **{"on": "serial", "steps": 512, name: odd})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_are_numbers_and_huge_ones_are_named() -> None:
    made = eq.program(
        "CartPole-v1",
        PPO(gamma=np.float32(0.5), epochs=np.int32(2)),  # type: ignore[arg-type]
        settings={"placement.actors": np.uint8(3), "placement.graphs": np.bool_(False)},
    )
    algorithm = learning(made)["main"].algorithm
    assert isinstance(algorithm, PPO) and (algorithm.gamma, algorithm.epochs) == (0.5, 2)
    assert type(algorithm.gamma) is float and made.placement.actors == 3
    with pytest.raises(ValueError, match="the largest is 9223372036854775807"):
        eq.program("CartPole-v1", steps=2**70)


def _train(out: Path, answers: Any) -> None:
    try:
        answers.put(eq.train("CartPole-v1", steps=512, progress=False, out=out).status)
    except Exception as error:
        answers.put(repr(error))


def _in(kind: str, out: Path, *, daemon: bool = False) -> str:
    context: Any = multiprocessing.get_context(kind)
    answers = context.Queue()
    process = context.Process(target=_train, args=(out, answers), daemon=daemon)
    process.start()
    said: str = answers.get(timeout=100)
    process.join(60)
    assert process.exitcode == 0
    return said


@pytest.mark.thorough
def test_a_daemonic_process_is_told_before_anything_is_made(tmp_path: Path) -> None:
    said = _in("spawn", out := tmp_path / "run", daemon=True)
    assert "on: must be serial in a daemonic process" in said and not out.exists()


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_is_forked_after_a_run_starts_servers_of_its_own(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import tests.api.test_odd_arguments as odd\n"
        "out = Path(sys.argv[1]); from equipoise.runtime.process import forkserver\n"
        "forkserver.prepare(); before = forkserver.pids()\n"
        "assert odd._in('fork', out) == 'completed'; assert forkserver.pids() == before"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=True, timeout=200)


def test_a_limit_of_steps_is_a_number_of_steps(tmp_path: Path) -> None:
    small: Any = {"on": "serial", "steps": 512, "evaluate_episodes": 0, "progress": False}
    for odd in (-3, 0, 1.5, "x", True):
        with pytest.raises(ValueError, match="max_episode_steps: must be a whole number of at"):
            eq.train("CartPole-v1", env_kwargs={"max_episode_steps": odd}, **small)
    endless = eq.train("CartPole-v1", env_kwargs={"max_episode_steps": -1}, out=tmp_path, **small)
    assert endless.return_mean is not None and endless.return_mean > 5
