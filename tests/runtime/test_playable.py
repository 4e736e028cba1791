"""A run can be played where the package of its env is missing: ``spec.json`` holds all that it takes."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import equipoise as eq
from equipoise import api
from equipoise.runtime import playable
from equipoise.runtime.checkpoint import SPEC

MODULE = "an_env_that_goes_away"
SOURCE = '''
from collections import OrderedDict
import gymnasium, numpy as np
from gymnasium import spaces

class Env(gymnasium.Env):
    """Where the seen number is to be answered, from 3 on; one of the five answers is never allowed."""
    observation_space = spaces.Dict(
        OrderedDict(z=spaces.Discrete(4), a=spaces.Box(-1, 1, (2,)), action_mask=spaces.MultiBinary(5))
    )
    action_space = spaces.Discrete(5, start=3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 6
        return self.seen(), {}

    def seen(self):
        z = int(self.np_random.integers(4))
        return {"z": z, "a": np.full(2, z / 4, np.float32), "action_mask": np.array([1, 1, 1, 1, 0], np.int8)}

    def step(self, action):
        assert action != 7
        self.left -= 1
        return self.seen(), float(action == 3), self.left == 0, False, {}
'''


class Blocked(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == MODULE:
            raise ModuleNotFoundError(f"No module named {MODULE!r}", name=MODULE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an env whose module is gone since."""
    folder = tmp_path_factory.mktemp("gone")
    (folder / f"{MODULE}.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    try:
        run = api.train(
            f"{MODULE}:Env", "impala", on="serial", out=folder / "run", unroll=8, actors=1, envs_per_actor=4, steps=64,
            evaluate_episodes=2, evaluate_every=32, settings=["algorithm.core=gru"],
        )  # fmt: skip
        for _ in run:
            pass
    finally:
        sys.path.remove(str(folder))
    (folder / f"{MODULE}.py").unlink()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return folder / "run"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The env's module cannot be imported."""
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Blocked(), *sys.meta_path])


def observation(count: int | None = None) -> dict[str, Any]:
    shape = () if count is None else (count,)
    mask = np.broadcast_to([1, 1, 1, 1, 0], (*shape, 5))
    return {"z": np.zeros(shape, np.int64), "a": np.zeros((*shape, 2)), "action_mask": mask}


def test_a_policy_plays_without_the_package_of_its_env(trained: Path, without: None) -> None:
    player = eq.load(trained)
    assert player.spec.mask == ("action_mask",) and player.spec.action == spaces.Discrete(5, start=3)
    assert {player.act(observation(), deterministic=False) for _ in range(60)} == {3, 4, 5, 6}
    player.reset()
    assert player.act(observation(2)).shape == (2,)
    for checkpoint in (trained / "checkpoints").glob("**/step_*"):
        assert eq.load(checkpoint).act(observation()) in (3, 4, 5, 6)
    assert eq.load(trained, best=True).meta["status"] == "best"
    with pytest.raises(Exception, match=MODULE):
        eq.evaluate(trained)


def test_a_run_and_each_of_its_checkpoints_say_the_same(trained: Path) -> None:
    said = [json.loads(file.read_text()) for file in (trained / SPEC, *(trained / "checkpoints").glob(f"**/{SPEC}"))]
    assert len(said) >= 3 and all(one == said[0] for one in said)
    policy = said[0]["policies"]["main"]
    assert policy["algorithm"]["name"] == "impala" and policy["algorithm"]["fields"]["core"] == "gru"
    assert [key for key, _ in policy["observation"]["spaces"]] == ["z", "a", "action_mask"]
    made = playable.from_json(said[0], SPEC)["main"]
    assert made.learns and made.spec.agents == ("",) and made.algorithm.network(made.spec) is not None


def test_another_env_than_the_one_of_training_is_refused(trained: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / f"{MODULE}.py").write_text(SOURCE.replace("Discrete(5, start=3)", "Discrete(5)"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(ValueError, match=rf"{MODULE}:Env: action: expected what the policy 'main' was trained with"):
        eq.evaluate(trained, episodes=1)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


def change(data: dict[str, Any], path: str, value: Any) -> Any:
    """The same JSON with another value at a path."""
    key, _, rest = path.partition("/")
    return {**data, key: change(data[key], rest, value) if rest else value}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("format", 2, "format: expected a whole number from 1 to 1, got 2"),
        ("precision", "fp64", "precision: expected one of 'fp32', 'medium', 'bf16'"),
        ("policies", [], "policies: expected"),
        ("policies/main", {"algorithm": {}}, "policies.main"),
        ("policies/main/action/n", "x", "policies.main.action.n: expected a whole number"),
        ("policies/main/mask", ["nowhere"], r"policies.main.mask: expected a key of the observation space, one of \["),
        ("policies/main/mask", "action_mask", "mask: expected a list"),
        ("policies/main/places", [1], "policies.main.places: expected places among the 1 agents"),
        ("policies/main/stacks", {"a": {"frames": "4", "padding": "zero"}}, "stacks.a.frames: expected a whole number"),
        ("policies/main/algorithm/name", "impale", "unknown algorithm 'impale'; did you mean 'impala'"),
        ("policies/main/algorithm/fields/gamma", "x", "policies.main.algorithm.fields.gamma: expected a number"),
    ],
)
def test_what_is_no_spec_is_refused_where_it_stands(trained: Path, path: str, value: Any, said: str) -> None:
    data = json.loads((trained / SPEC).read_text())
    with pytest.raises(ValueError, match=said):
        playable.from_json(change(data, path, value), SPEC)
