"""Numbers of ``info`` by name: of single dicts, vector envs with masks, EnvPool; what is missing
and what is no number.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import assume, given
from hypothesis import strategies as st

from equipoise.envs import make
from equipoise.envs.check import info_probe as named
from equipoise.envs.infos import Infos, NoNumber, paths
from equipoise.types import EnvFactory

NAN = float("nan")


def read_one(info, *names):
    infos = Infos(names, 2)
    infos.read_one(1, info)
    assert np.isnan(infos.value[0]).all(), "another stream's row"
    return infos.value[1].tolist()


def test_keys_paths_and_keys_with_a_slash():
    info = {
        "x": 2,
        "ok": True,
        "episode": {"r": 1.5, "deep": {"y": np.float32(0.25)}},
        "a/b": np.array([7]),
        "c": {"d/e": 3},
    }
    names = ("x", "ok", "episode/r", "episode/deep/y", "a/b", "c/d/e")
    assert read_one(info, *names) == [2.0, 1.0, 1.5, 0.25, 7.0, 3.0]
    assert sorted(paths(info)) == sorted(names)


@pytest.mark.thorough
@given(
    st.recursive(
        st.floats(-9, 9),
        lambda inner: st.dictionaries(st.text("ab/", max_size=3), inner, max_size=3),
    )
)
def test_each_name_that_is_listed_is_found(info):
    info = info if isinstance(info, dict) else {"": info}
    places = list(_places(info))
    assume(len(set(places)) == len(places))  # "a/b" and "a", "b" have the same name
    names = list(paths(info))
    assert not np.isnan(read_one(info, *names)).any()
    columns = _as_columns(info)
    assert not any(np.isnan(read_all(columns, name)).any() for name in names)


def _places(info, before=""):
    for key, value in info.items():
        yield f"{before}{key}"
        if isinstance(value, dict):
            yield from _places(value, f"{before}{key}/")


def _as_columns(info):
    return {
        key: _as_columns(value) if isinstance(value, dict) else np.full(3, value)
        for key, value in info.items()
    }


@pytest.mark.parametrize("name", ["z", "x/y", "episode/z", "none", "episode/r/z"])
def test_what_is_not_there_is_nan(name):
    assert np.isnan(read_one({"x": 2, "none": None, "episode": {"r": 1.5}}, name)).all()


def test_a_row_is_written_anew_each_time():
    infos = Infos(("x",), 1)
    infos.read_one(0, {"x": 1})
    infos.read_one(0, {})
    assert np.isnan(infos.value).all()


@pytest.mark.parametrize("value", ["3", [1, 2], np.zeros(3), {"a": 1}, 1j, 10**400])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(NoNumber, match=r"metrics: expected a number in the env's info\['x'\], got"):
        read_one({"x": value}, "x")


def read_all(info, name, count=3):
    infos = Infos((name,), count)
    infos.read_all(info)
    return infos.value[:, 0].tolist()


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"x": np.array([1, 2, 3])}, [1, 2, 3]),
        ({"x": np.array([1, 2, 3]), "_x": np.array([True, False, True])}, [1, NAN, 3]),
        ({"x": np.array([[1.0], [2.0], [3.0]])}, [1, 2, 3]),
        ({"x": 5}, [5, 5, 5]),
        (
            {"x": np.array([True, None, 2.5], object), "_x": np.array([True, False, True])},
            [1, NAN, 2.5],
        ),
        ({"x": np.array([None, 4, None], object)}, [NAN, 4, NAN]),
        ({}, [NAN, NAN, NAN]),
    ],
)
def test_arrays_and_their_masks(info, expected):
    assert np.array_equal(read_all(info, "x"), expected, equal_nan=True)


def test_masks_of_every_level_count():
    info = {
        "e": {"r": np.array([1.0, 2.0, 3.0]), "_r": np.array([True, True, False])},
        "_e": np.array([False, True, True]),
    }
    assert np.array_equal(read_all(info, "e/r"), [NAN, 2, NAN], equal_nan=True)
    assert list(paths(info)) == ["e/r"]


@pytest.mark.parametrize("value", [np.zeros((3, 2)), np.array(["a", "b", "c"]), np.zeros(2)])
def test_arrays_of_another_shape_or_kind_are_refused(value):
    with pytest.raises(NoNumber, match=r"expected 3 numbers in the vector env's info\['x'\]"):
        read_all({"x": value}, "x")


class Telling(gymnasium.Env):
    """Episodes of stream + 2 steps. ``t`` in every step, ``won`` at the end only; a reset says
    ``t`` 99, of nobody.
    """

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, stream=0, word=None):
        self.length, self.word = stream + 2, word

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {"t": 99}

    def step(self, action):
        self.t += 1
        ended = self.t == self.length
        info = {"t": self.t, **({"won": ended, "episode": {"l": self.t}} if ended else {})}
        if self.word is not None:
            info["word"] = self.word
        return np.full(1, self.t, np.float32), 1.0, ended, False, info


class SameStep(SyncVectorEnv):
    def __init__(self, num_envs, streams):
        super().__init__(
            [lambda i=i: Telling(i) for i in streams], autoreset_mode=AutoresetMode.SAME_STEP
        )


class NextStep(SyncVectorEnv):
    def __init__(self, num_envs, streams):
        super().__init__(
            [lambda i=i: Telling(i) for i in streams], autoreset_mode=AutoresetMode.NEXT_STEP
        )


@pytest.mark.parametrize("maker", ["Telling", "SameStep", "NextStep"])
def test_every_kind_of_env_tells_the_same_of_real_rows(maker):
    """Per stream: (t, won, episode/l) of each valid row, and where an episode ended."""
    names = ("t", "won", "episode/l")
    env = make(
        EnvFactory(target=f"{__name__}:{maker}"), streams=np.arange(2), seed=0, metrics=names
    )
    rows = [[], []]
    ts = env.recv()
    assert ts.info is not None and ts.info.shape == (2, 3) and ts.info.dtype == np.float64
    for _ in range(20):
        env.send(np.zeros(2, np.int64), ts.stream)
        ts = env.recv()
        for i in np.flatnonzero(ts.valid):
            rows[i].append(ts.info[i].tolist())
    env.close()
    for i, got in enumerate(rows):
        episode = [[float(t), NAN, NAN] for t in range(1, i + 2)] + [[i + 2.0, 1.0, i + 2.0]]
        assert np.array_equal(got, (episode * 20)[: len(got)], equal_nan=True), f"stream {i}"


def test_unasked_nothing_is_read():
    env = make(
        EnvFactory(target=f"{__name__}:Telling", kwargs={"word": "x"}), streams=np.arange(2), seed=0
    )
    assert env.recv().info is None and env.infos is None
    env.close()


def test_a_word_ends_the_run_and_not_an_episode():
    env = make(
        EnvFactory(target=f"{__name__}:Telling", kwargs={"word": "x"}),
        streams=np.arange(1),
        seed=0,
        metrics=("word",),
        failures=named.Failures(on_nonfinite="drop"),
    )
    env.send(np.zeros(1, np.int64), env.recv().stream)
    with pytest.raises(NoNumber, match=r"info\['word'\], got str"):
        env.recv()
    env.close()


def test_envpool_tells_its_arrays():
    pytest.importorskip("envpool")
    env = make(
        EnvFactory(target="envpool:CartPole-v1"),
        streams=np.arange(3),
        seed=0,
        metrics=("elapsed_step", "players/env_id"),
    )
    ts = env.recv()
    for t in range(1, 4):
        env.send(np.zeros(3, np.int64), ts.stream)
        ts = env.recv()
        assert ts.info.tolist() == [[t, 0], [t, 1], [t, 2]]
    env.close()


# ---------------------------------------------------------------------------- the walk before a run


def walk(*names, **kwargs):
    return named.unseen(EnvFactory(target=f"{__name__}:Telling", kwargs=kwargs), names, seed=0)


def test_names_that_appear_need_no_word():
    assert walk("t", "won", "episode/l") == []


def test_a_name_that_does_not_appear_is_told_with_the_nearest():
    (said,) = walk("t", "wonn")
    assert said.startswith(
        "warning: metrics: no 'wonn' in the env's info within 5 random steps (2 episodes ended); "
    )
    assert said.endswith("did you mean 'won'? it had episode/l, t, won")
    (said,) = walk("zzz")
    assert said.endswith("; it had episode/l, t, won")
    (said,) = named.unseen(EnvFactory(target="CartPole-v1"), ["won"], seed=0)
    assert said.endswith("; it had nothing")


def test_a_name_of_no_number_is_refused():
    with pytest.raises(NoNumber, match=r"info\['word'\]"):
        walk("word", word="hello")
