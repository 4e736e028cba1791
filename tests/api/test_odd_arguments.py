"""Odd arguments of Python's functions are refused by name, before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.api.options import BOOLS, MAPPINGS, PLACES
from equipoise.device_envs.naming import make_device_env
from equipoise.language.tasks import built_in

ODD: list[tuple[Mapping[Any, Any], str]] = [
    *(({name: "no"}, f"{name}: must be True or False, got 'no'") for name in BOOLS),
    *(({name: [1]}, f"{name}: must be a dict, got \\[1\\]") for name in MAPPINGS),
    *(({name: b"x"}, f"{name}: must be a path, as text.*, got b'x'") for name in PLACES[:2]),
    ({"out": 3}, "out: must be a path"),
    ({"trust": "os"}, "trust: must be a list of modules such as .*, got 'os'"),
    ({"trust": {"os"}}, "trust: must be a list of modules"),
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
