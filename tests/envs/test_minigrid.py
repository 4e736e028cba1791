"""MiniGrid: what is seen, and what is left out."""

import sys

import numpy as np
import pytest

from equipoise.envs.making import resolve
from tests.envs.rolling import env_of, rows

ID = "MiniGrid-DoorKey-5x5-v0"


def test_codes_are_one_hot_and_the_mission_is_dropped():
    pytest.importorskip("minigrid")
    env, raw = env_of(ID, 3, 1), env_of(ID, 3, 1, codes="raw")
    assert list(env.spec.observation) == ["direction", "image"]
    assert env.spec.observation["image"].shape == (7, 7, 21) and env.spec.settings.endswith(
        "its mission, a text, is dropped"
    )
    actions = np.random.default_rng(0).integers(0, 7, (300, 3))
    one, other = rows(env, actions), rows(raw, actions)
    image, at = one["obs"]["image"], 0
    for n, size in enumerate((11, 6, 4)):
        part = image[..., at : at + size]
        at += size
        assert (part.sum(-1) == 1).all()
        np.testing.assert_array_equal(part.argmax(-1), other["obs"]["image"][..., n])
    np.testing.assert_array_equal(one["obs"]["direction"], other["obs"]["direction"])
    assert one["truncated"].any() and env.spec.resume == "replay"


@pytest.mark.parametrize(
    ("codes", "wrapper", "tile", "shape"),
    [
        ("pixels", "RGBImgPartialObsWrapper", 8, (56, 56, 3)),
        ("map", "RGBImgObsWrapper", 16, (80, 80, 3)),
    ],
)
def test_drawn_cells_are_those_of_the_wrappers(codes, wrapper, tile, shape):
    wrappers = pytest.importorskip("minigrid.wrappers")
    import gymnasium

    assert env_of(ID, 2, 1, codes=codes, tile=tile).spec.observation["image"].shape == shape
    mine = resolve(ID)(codes=codes, tile=tile)
    theirs = getattr(wrappers, wrapper)(
        gymnasium.make(ID, disable_env_checker=True), tile_size=tile
    )
    (got, _), (want, _) = mine.reset(seed=3), theirs.reset(seed=3)
    for action in (0, 2, 1, 2, 3, 5):
        assert mine.observation_space.contains(got)
        np.testing.assert_array_equal(got["image"], want["image"])
        got, want = mine.step(action)[0], theirs.step(action)[0]


def test_wrong_arguments_and_ids_are_named():
    pytest.importorskip("minigrid")
    with pytest.raises(
        ValueError, match="codes: expected one of one-hot, raw, pixels, map, got 'hot'"
    ):
        env_of(ID, codes="hot")
    for tile in (0, 1.5, "x", True):
        with pytest.raises(
            ValueError, match=f"tile: expected a whole number of pixels from 1 on, got {tile!r}"
        ):
            env_of(ID, codes="map", tile=tile)
    with pytest.raises(ValueError, match=f"did you mean '{ID}'"):
        env_of("MiniGrid-DorKey-5x5-v0")
    env = resolve(ID)(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape[-1] == 3


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(ImportError, match="needs minigrid: pip install 'minigrid>="):
        env_of(ID)
