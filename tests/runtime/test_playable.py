"""A run can be played where the package of its env is missing: ``spec.json`` holds all that it
takes.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import equipoise as eq
from equipoise import api, cli
from equipoise.record import playable
from equipoise.record.checkpoint import SPEC

MODULE = "an_env_that_goes_away"
SOURCE = '''
from collections import OrderedDict
import gymnasium, numpy as np
from gymnasium import spaces
from typer.testing import CliRunner

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
'''  # noqa: E501


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
        run = api.start(
            f"{MODULE}:Env",
            "impala",
            on="serial",
            out=folder / "run",
            unroll=8,
            actors=1,
            envs_per_actor=4,
            steps=64,
            evaluate_episodes=2,
            evaluate_every=32,
            settings=["algorithm.core=gru"],
        )
        for _ in run:
            pass
        if importlib.util.find_spec("minari") is not None:
            eq.collect(run.directory, folder / "played", episodes=3, deterministic=True)
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
    assert player.spec.mask == ("action_mask",) and player.spec.action == spaces.Discrete(
        5, start=3
    )
    assert {player.act(observation(), deterministic=False) for _ in range(60)} == {3, 4, 5, 6}
    player.reset()
    assert player.act(observation(2)).shape == (2,)
    for checkpoint in (trained / "checkpoints").glob("**/step_*"):
        assert eq.load(checkpoint).act(observation()) in (3, 4, 5, 6)
    assert eq.load(trained, best=True).meta["status"] == "best"
    with pytest.raises(Exception, match=MODULE):
        eq.evaluate(trained)


def test_a_run_and_each_of_its_checkpoints_say_the_same(trained: Path) -> None:
    said = [
        json.loads(file.read_text())
        for file in (trained / SPEC, *(trained / "checkpoints").glob(f"**/{SPEC}"))
    ]
    assert len(said) >= 3 and all(one == said[0] for one in said)
    policy = said[0]["policies"]["main"]
    assert (
        policy["algorithm"]["name"] == "impala" and policy["algorithm"]["fields"]["core"] == "gru"
    )
    assert [key for key, _ in policy["observation"]["spaces"]] == ["z", "a", "action_mask"]
    made = playable.from_json(said[0], SPEC)["main"]
    assert (
        made.learns and made.spec.agents == ("",) and made.algorithm.network(made.spec) is not None
    )


def recording(path: Path, **changes: Any) -> Path:
    """Twelve rows of two episodes, as an npz file."""
    rows = observation(12) | {"z": np.arange(12) % 4}
    arrays: dict[str, Any] = (
        {f"obs/{key}": x for key, x in rows.items()} | {"first": np.arange(12) % 7 == 0} | changes
    )
    np.savez(path, **{key: x for key, x in arrays.items() if x is not None})
    return path


def test_recorded_observations_are_played_without_the_env(
    trained: Path, without: None, tmp_path: Path
) -> None:
    played = eq.play(trained, recording(tmp_path / "a.npz"))
    assert (played.rows, played.episodes) == (12, 2) and not played.same and not played.distance
    player = eq.load(trained)
    for row, action in enumerate(played.action):  # each episode from its beginning
        if row % 7 == 0:
            player.reset()
        assert player.act(observation() | {"z": row % 4}) == action
    # no action of this policy in three of the rows
    other = np.where(np.arange(12) < 3, 7, played.action)
    again = eq.play(trained, recording(tmp_path / "b.npz", action=other))
    assert again.same == {"action": 0.75}
    again.save(tmp_path / "actions.npz")
    with np.load(tmp_path / "actions.npz") as saved:
        np.testing.assert_array_equal(saved["action"], played.action)
        np.testing.assert_array_equal(saved["first"], np.arange(12) % 7 == 0)


def test_the_command_line_plays_recorded_observations(
    trained: Path, without: None, tmp_path: Path
) -> None:
    file = recording(tmp_path / "a.npz", action=np.full(12, 7))
    runner, told = (
        CliRunner(),
        ["evaluate", str(trained), "--recorded", str(file), "--out", str(tmp_path / "out.npz")],
    )
    answer = runner.invoke(cli.app, told)
    assert answer.exit_code == 0, answer.output
    assert "played 12 rows of 2 episodes (weights of step 64)" in answer.output
    assert "action: 0.0% as recorded" in answer.output and (tmp_path / "out.npz").is_file()
    assert runner.invoke(cli.app, [*told, "--video"]).exit_code == 2
    assert runner.invoke(cli.app, ["evaluate", str(trained), "--out", "x"]).exit_code == 2


def test_a_recorded_data_set_is_played_without_the_env(trained: Path, without: None) -> None:
    pytest.importorskip("minari")
    played = eq.play(trained, trained.parent / "played")
    assert (played.rows, played.episodes) == (18, 3) and played.same == {"action": 1.0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"obs/z": None}, "obs: expected the keys"),
        ({"obs/a": np.zeros((12, 3))}, r"obs/a: expected shape .* or a batch"),
        (
            {"obs/a": np.full((12, 2), np.nan)},
            "a.npz: obs/a: expected finite numbers, got nan in row 0",
        ),
        (
            {"obs/a": np.array([None] * 12)},
            "a.npz: obs/a: expected an array of numbers, got Object arrays",
        ),
        ({"obs/more": np.zeros(12)}, "obs: expected the keys .*, got also"),
        ({"first": np.full(12, np.nan)}, "first: expected finite numbers, got nan in row 0"),
        ({"first": np.full(12, 3)}, "first: expected one array of 0 and 1"),
        ({"action": np.zeros(())}, r"action: expected shape \[12, ...\]"),
        (
            {"action": np.zeros(11, np.int64)},
            r"action: expected shape \[12, ...\], as many rows as obs has, got \[11\]",
        ),
        (
            {"first": np.zeros(3, bool)},
            r"first: expected shape \[12\], as many rows as obs has, got \[3\]",
        ),
        (
            {"action": np.zeros((12, 2), np.int64)},
            r"action: expected recorded actions of shape \[12\], got \[12, 2\]",
        ),
        (
            {"reward": np.zeros(12)},
            r"expected the arrays obs, action and first \(obs at least\), got the unknown "
            r"\['reward'\]",
        ),
        (
            {"obs/action_mask": np.zeros((12, 5))},
            r"obs/action_mask: expected int8 \[5\], got float64",
        ),
        (
            {"obs/action_mask": np.zeros((12, 5), np.int8)},
            "obs/action_mask: expected at least one action allowed, got none in row 0",
        ),
    ],
)
def test_a_recording_that_does_not_fit_is_refused(
    trained: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        eq.play(trained, recording(tmp_path / "a.npz", **changes))


def test_another_env_than_the_one_of_training_is_refused(
    trained: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / f"{MODULE}.py").write_text(SOURCE.replace("Discrete(5, start=3)", "Discrete(5)"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(
        ValueError,
        match=rf"{MODULE}:Env: action: expected what the policy 'main' was trained "
        r"with",
    ):
        eq.evaluate(trained, episodes=1, trust=[MODULE])
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


def change(data: dict[str, Any], path: str, value: Any) -> Any:
    """The same JSON with another value at a path."""
    key, _, rest = path.partition("/")
    return {**data, key: change(data[key], rest, value) if rest else value}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("format", 2, "format: must be 1, got 2, which a newer version of Equipoise wrote"),
        (
            "precision",
            "fp64",
            "precision: expected one of 'fp32', 'medium', 'tf32', 'bf16', 'fp16'",
        ),
        ("policies", [], "policies: expected"),
        ("policies/main", {"algorithm": {}}, "policies.main"),
        ("policies/main/action/n", "x", "policies.main.action.n: expected a whole number"),
        (
            "policies/main/mask",
            ["nowhere"],
            r"policies.main.mask: expected a key of the observation space, one of \[",
        ),
        ("policies/main/mask", "action_mask", "mask: expected a list"),
        ("policies/main/places", [1], "policies.main.places: expected places among the 1 agents"),
        (
            "policies/main/stacks",
            {"a": {"frames": "4", "padding": "zero"}},
            "stacks.a.frames: expected a whole number",
        ),
        (
            "policies/main/algorithm/name",
            "impale",
            "unknown algorithm 'impale'; did you mean 'impala'",
        ),
        (
            "policies/main/algorithm/fields/gamma",
            "x",
            "policies.main.algorithm.fields.gamma: expected a number",
        ),
    ],
)
def test_what_is_no_spec_is_refused_where_it_stands(
    trained: Path, path: str, value: Any, said: str
) -> None:
    data = json.loads((trained / SPEC).read_text())
    with pytest.raises(ValueError, match=said):
        playable.from_json(change(data, path, value), SPEC)
