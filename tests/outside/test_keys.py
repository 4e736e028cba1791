"""An env's keys may be any text: each place where arrays have names gives every value back at its
key.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise import edge, tree
from equipoise.api.recorded import recordings
from equipoise.envs import masks
from equipoise.envs.check.findings import Findings, flatten
from equipoise.envs.failures import capsule as capsules
from equipoise.envs.hints import UnsupportedSpace
from equipoise.envs.spaces import action_spec, observation_spec
from equipoise.experience.layout import RowSpec, trajectory_specs
from equipoise.experience.recorded import dataset as datasets
from equipoise.experience.replay.row_buffer import Extent, RowBuffer
from equipoise.experience.replay.row_layout import Layout
from equipoise.experience.replay.rows import without_observations
from equipoise.exporting import artifact as artifacts
from equipoise.exporting.observations import sampled
from equipoise.learners.encoding import Encoding
from equipoise.nets.vae import LATENTS, Encoder
from equipoise.nets.vision import encoders
from equipoise.record import statefile
from equipoise.registry import Registry
from equipoise.serving import oip
from equipoise.serving.torch_model import TorchModel
from equipoise.types import EnvSpec, Trajectory
from tests.artifacts import untrained
from tests.experience.history import STREAM
from tests.serving.test_service import Served

KEYS = [
    "a/b",
    "",
    "/",
    "//",
    "~",
    "~1",
    "~2",
    ".",
    "..",
    "ä ö",
    "%2F",
    "a\\b",
    "x.npy",
    "file",
    "two\nlines",
    "_index_0",
    "obs",
]
EXPORTED = KEYS[:5]  # together; the fewer parts, the faster the export
UNROLL = 4
ACTION = spaces.Dict(
    {"a/b": spaces.Discrete(3), "a": spaces.Dict({"b": spaces.Discrete(4), "": spaces.Discrete(2)})}
)


def parts(*keys: str) -> spaces.Dict:
    """Each key with a number of its own, beside a branch whose path looks the same, and one deep
    down.
    """
    found: dict[str, Any] = {
        key: spaces.Box(-9.0, 9.0, (i % 3 + 1,), np.float32) for i, key in enumerate(keys)
    }
    more = {
        "b": spaces.Discrete(3),
        "deep": spaces.Dict({key: spaces.Box(-1.0, 1.0, (), np.float32) for key in keys}),
    }
    return spaces.Dict(
        {"plain": spaces.Box(-9.0, 9.0, (2,), np.float32), **found, "a": spaces.Dict(more)}
    )


# What an exported policy sees: every key of these, and a mask.
MASK = spaces.Dict(
    {
        "a/b": spaces.MultiBinary(3),
        "a": spaces.Dict({"b": spaces.MultiBinary(4), "": spaces.MultiBinary(2)}),
    }
)
SEEN = spaces.Dict({**parts(*EXPORTED).spaces, "m/": MASK})


def numbered(specs: Any, *front: int) -> Any:
    """Arrays of which no two are alike."""
    count = iter(range(1, 1000))
    return tree.map(
        lambda s: np.full(
            (*front, *s.shape), next(count) % 3 if s.dtype != "float32" else next(count), s.dtype
        ),
        specs,
    )


def same(got: Any, wanted: Any) -> None:
    tree.map(np.testing.assert_array_equal, got, wanted)


def replay(space: spaces.Dict, folder: Path) -> None:
    """Rows of a replay, gathered, without observations, and from the state of a checkpoint."""
    row = RowSpec(
        obs=observation_spec(space),
        action=action_spec(space),
        behaviour={},
        state={},
        context=STREAM,
    )
    rings = [
        RowBuffer(Layout.of(row, {}), Extent(slots=16, block=1, actors=1, unroll=UNROLL, window=2))
        for _ in range(2)
    ]
    obs, action = numbered(row.obs, UNROLL + 1, 1), numbered(row.action, UNROLL, 1)
    for number in range(2):
        fields = tree.zeros(trajectory_specs(row, UNROLL, 1)) | {"obs": obs, "action": action}
        fields["context"]["start"][:] = UNROLL * number
        rings[0].insert(Trajectory(**fields), 0)
    window = rings[0].gather(np.array([1]), 0)
    same(tree.numpy_views(window.obs), tree.map(lambda x: x[:3], obs))
    same(tree.numpy_views(window.action), tree.map(lambda x: x[:2], action))
    same(
        tree.numpy_views(without_observations(rings[0], np.array([1])).action),
        tree.map(lambda x: x[:2], action),
    )
    rings[1].load(statefile.parse(statefile.dump(rings[0].state())))


def encoding(space: spaces.Dict, folder: Path) -> None:
    """Latents stand where their images were."""
    (key,) = space["a"]["deep"].spaces  # type: ignore[index]
    image = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    seen = spaces.Dict(
        {
            **space.spaces,
            key: image,
            "a": spaces.Dict({"b": spaces.Discrete(3), "deep": spaces.Dict({key: image})}),
        }
    )
    paths = [tree.path_of(key), tree.path_of("a", "deep", key)]
    _, policy = untrained(
        "dqn", {"torso": "vae"}, EnvSpec(observation=seen, action=spaces.Discrete(2))
    )
    assert set(encoders(policy.net)) == set(paths)
    made = Encoding(
        {path: Encoder((16, 16, 3)) for path in paths}, rows=0, seed=0, device=torch.device("cpu")
    )
    number, obs = np.zeros((2, 1)), numbered(observation_spec(seen), 3, 1)
    data = Trajectory(
        obs=obs,
        first=number > 0,
        action=number,
        behaviour={},
        reward=number,
        mask=number == 0,
        bootstrap=number > 0,
        version=number,
        state={},
        context={},
    )
    got = made(data).obs
    assert got[key].shape == got["a"]["deep"][key].shape == (3, 1, LATENTS)
    same(got["plain"], obs["plain"])


def dataset(space: spaces.Dict, folder: Path) -> None:
    obs, action, rewards = (
        numbered(observation_spec(space), 4),
        numbered(action_spec(space), 3),
        np.zeros(3, np.float32),
    )
    one = datasets.Episode(
        obs=obs, action=action, reward=rewards, terminated=rewards > 0, truncated=rewards > 0
    )
    datasets.write(str(folder / "d"), [one], observation=space, action=space)
    found = datasets.find(str(folder / "d"))
    assert (found.observation, found.action) == (space, space)
    (got,) = found
    same(got.obs, obs)
    same(got.action, action)


def recorded(space: spaces.Dict, folder: Path) -> None:
    """Observations from a file, by the names that the docs give."""
    obs = numbered(observation_spec(space), 3)
    np.savez(folder / "rows.npz", **tree.named("obs", obs), **tree.named("action", obs))
    (got,) = recordings(folder / "rows.npz", EnvSpec(observation=space, action=space))
    same(got.obs, obs)
    same(got.action, obs)


def capsule(space: spaces.Dict, folder: Path) -> None:
    arrays = {
        "actions": numbered(action_spec(space), 2),
        "obs": numbered(observation_spec(space), 2),
    }
    np.savez(folder / "arrays.npz", **dict(tree.items(arrays)))
    same(capsules.read_arrays(folder / "arrays.npz"), arrays)


def checkpoint(space: spaces.Dict, folder: Path) -> None:
    obs = numbered(observation_spec(space), 2)
    same(statefile.parse(statefile.dump({"carry": obs}))["carry"], obs)


def check(space: spaces.Dict, folder: Path) -> None:
    """Parts of an observation as 'equipoise check' judges them."""
    obs = numbered(observation_spec(space))
    flat = flatten(Findings(), space, obs, "reset()")
    assert flat.keys() == tree.named("obs", tree.parts(space)).keys()
    same(tree.within("obs", flat), obs)


PLACES: list[Callable[[spaces.Dict, Path], None]] = [
    check,
    replay,
    encoding,
    dataset,
    recorded,
    capsule,
    checkpoint,
]


@pytest.mark.few(12)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("key", KEYS)
def test_every_value_comes_back_at_its_key(
    key: str, place: Callable[[spaces.Dict, Path], None], tmp_path: Path
) -> None:
    place(parts(key), tmp_path)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "policy"
    one, policy = untrained("ppo", {}, EnvSpec(observation=SEEN, action=ACTION, mask=("m/",)))
    seen = sampled(one.spec, policy.net, rows=32)
    artifacts.write(
        folder,
        "main",
        one,
        policy,
        lineage={},
        seen=dataclasses.replace(seen, recorded=True),
        rows=32,
    )
    return folder


def sample() -> Any:
    SEEN.seed(3)
    obs = SEEN.sample()
    obs["m/"] = {
        "a/b": np.array([0, 0, 1], np.int8),
        "a": {"b": np.array([0, 1, 0, 0], np.int8), "": np.array([0, 1], np.int8)},
    }
    return obs


def listed(value: Any) -> Any:
    return (
        {key: listed(one) for key, one in value.items()}
        if isinstance(value, dict)
        else np.asarray(value).tolist()
    )


@pytest.mark.thorough
def test_an_exported_policy_takes_and_gives_every_key(exported: Path) -> None:
    obs = sample()
    action = edge.EdgePolicy(exported).act(obs)
    spec = json.loads((exported / "spec.json").read_text())["artifact"]
    names = set(tree.named("obs", observation_spec(SEEN)))
    assert set(spec["rows"]) == names and set(spec["quantiles"]) == {
        name for name in names if not name.startswith("obs/m~1/")
    }
    assert action == {"a/b": 2, "a": {"b": 1, "": 1}}, "what the mask allows"
    model = TorchModel.load(exported)
    rows, _ = model.read(obs)
    raw, _, _ = model.run(rows, np.array([True]), {}, None, np.array([True]))
    tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), model.action(raw, 0), action)


@pytest.mark.thorough
def test_a_server_takes_and_gives_every_key(exported: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry", create=True)
    registry.alias("odd", "champion", registry.add(exported, "odd"))
    obs = sample()

    async def ask() -> Any:
        served = Served(registry, "odd")
        return await served.ask(listed(obs)), served.versions.find(None)

    decision, version = asyncio.run(ask())
    wanted = edge.EdgePolicy(exported).act(obs)
    assert decision.action == listed(wanted)
    for name, leaf in tree.named("action", listed(wanted)).items():
        assert oip._value(decision, name) == leaf
    tensors = tree.named("obs", obs)
    same(oip._obs(version, tensors), obs)
    assert {name for name, *_ in oip.outputs(version)} == set(tree.named("action", wanted)) | {
        "propensity"
    }
    version.model.spec["artifact"] |= {"quantiles": None}
    version.prove()  # with an observation from the middle of the space


def test_a_mask_is_found_by_its_path() -> None:
    assert masks.place_of("obs/m~1", SEEN, ACTION) == ("m/",)
    with pytest.raises(ValueError, match="action_mask: path 'm/'"):
        masks.place_of("obs/m/", SEEN, ACTION)


@pytest.mark.parametrize("key", ["half \ud83e", "\0", "a\0b"])
def test_a_key_that_no_file_can_hold_is_refused(key: str) -> None:
    for spec in (observation_spec, action_spec):
        with pytest.raises(UnsupportedSpace, match="expected texts of whole characters"):
            spec(spaces.Dict({"a": spaces.Dict({key: spaces.Discrete(2)})}))
