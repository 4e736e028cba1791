"""A video holds every frame of the episodes, or nothing is left behind."""

import contextlib
import os
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from equipoise import api
from equipoise.console.video import record
from equipoise.types import EnvFactory


class Counting(gymnasium.Env):
    """Episodes of ``length`` steps; each step pays 2; a frame's grey is its step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}
    observation_space = gymnasium.spaces.Discrete(1000)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None, length=5, size=(65, 97), frame=None):
        self.render_mode, self.length, self.size, self.frame = render_mode, length, size, frame

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.t, {}

    def step(self, action):
        assert action == self.t % 2
        self.t += 1
        return self.t, 2.0, self.t == self.length, False, {}

    def render(self):
        return (
            np.full((*self.size, 3), 20 * (self.t % 12), np.uint8)
            if self.frame is None
            else self.frame
        )


class Blind(Counting):
    metadata = {"render_modes": ["human"]}


class CountingVector(SyncVectorEnv):
    def __init__(self, num_envs=1, render_mode=None, mode="NEXT_STEP", length=4):
        makers = [lambda: Counting(render_mode, length=length)] * num_envs
        super().__init__(makers, autoreset_mode=AutoresetMode[mode])


def no_render_mode(length=5):
    return Counting(length=length)


def endless(render_mode):
    return Counting(render_mode, length=10**9)


def drawing(frame):
    return lambda render_mode: Counting(frame=frame)


def act(obs):
    return obs % 2


def frames(path):
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        return float(video.average_rate), [
            frame.to_ndarray(format="rgb24") for frame in container.decode(video)
        ]


def here(name):
    return f"{__name__}:{name}"


def test_every_frame_of_every_episode_is_there(tmp_path):
    path, began = tmp_path / "videos" / "a.mp4", []
    returns = record(Counting, act, path, episodes=2, begin=lambda: began.append(1))
    assert returns == [10.0, 10.0]
    assert began == [1, 1]
    rate, shown = frames(path)
    assert rate == 25
    assert [round(frame.mean() / 20) for frame in shown] == [0, 1, 2, 3, 4, 5] * 2
    assert shown[0].shape == (66, 98, 3)  # made even
    assert os.listdir(path.parent) == ["a.mp4"]


@pytest.mark.parametrize("target", [here("Counting"), f"python:{here('Counting')}"])
def test_an_env_as_data_is_made_with_its_arguments(target, tmp_path):
    assert record(EnvFactory(target=target, kwargs={"length": 3}), act, tmp_path / "a.mp4") == [6.0]


@pytest.mark.parametrize(("mode", "last"), [("NEXT_STEP", 4), ("SAME_STEP", 0)])
def test_a_vector_env_is_recorded_as_one_of_one(mode, last, tmp_path):
    """In SAME_STEP the row that ends an episode shows the next one's first frame, as it does to the
    policy.
    """
    env = EnvFactory(target=here("CountingVector"), kwargs={"mode": mode})
    assert record(env, act, tmp_path / "a.mp4", episodes=2) == [8.0, 8.0]
    _, shown = frames(tmp_path / "a.mp4")
    assert [round(frame.mean() / 20) for frame in shown] == [0, 1, 2, 3, last] * 2


@pytest.mark.thorough
def test_a_run_on_a_native_vector_env_is_recorded_as_its_python_env(tmp_path):
    pytest.importorskip("pygame")
    options = {
        "actors": 1,
        "envs_per_actor": 2,
        "unroll": 8,
        "steps": 32,
        "evaluate_episodes": 0,
        "recipe": False,
    }
    run = api.start(
        "CartPole-v1",
        "ppo",
        on="serial",
        out=tmp_path / "run",
        settings=["algorithm.minibatches=1"],
        **options,
    )
    for _ in run:
        pass
    api.evaluate(run.directory, episodes=1, video=True)
    (path,) = (tmp_path / "run" / "videos").iterdir()
    assert path.name == "evaluation-step_32.mp4"
    rate, shown = frames(path)
    assert rate == 50 and shown[0].shape == (400, 600, 3) and len(shown) > 5


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["ALE/Pong-v5", "python:ALE/Pong-v5"])
def test_an_atari_game_is_recorded_as_its_python_env(target, tmp_path):
    """ALE's vector env does not draw; ``num_threads`` is that one's."""
    pytest.importorskip("ale_py")
    env = EnvFactory(target=target, kwargs={"num_threads": 1} if target.startswith("ALE") else {})
    turns = iter(range(40))
    with contextlib.suppress(StopIteration):
        record(env, lambda obs: next(turns) % 6, tmp_path / "a.mp4")
    assert next(turns, None) is None, "forty frames were asked for"


@pytest.mark.thorough
def test_what_is_recorded_is_what_training_sees(tmp_path):
    """Float64 observations are float32, as in the ring."""
    seen = []

    def look(obs):
        seen.append(obs.dtype)
        return np.zeros(1, np.float32)

    pytest.importorskip("pygame")
    record("Pendulum-v1", look, tmp_path / "a.mp4")
    assert set(seen) == {np.dtype("float32")} and len(seen) == 200


def test_a_gymnasium_id(tmp_path, monkeypatch):
    """The Python env also where there is a native vector env, which need not draw."""
    native = gymnasium.envs.registration.EnvSpec(
        "Counting-v0", entry_point=Counting, vector_entry_point=here("nothing")
    )
    monkeypatch.setitem(gymnasium.registry, "Counting-v0", native)
    assert record("Counting-v0", act, tmp_path / "a.mp4", episodes=1, seed=3) == [10.0]


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (
            Blind,
            ValueError,
            r"expected the render mode 'rgb_array' .*, got an env with \['human'\]",
        ),
        (no_render_mode, ValueError, "expected an env that takes render_mode='rgb_array'"),
        (
            drawing(np.zeros((4, 4))),
            ValueError,
            r"expected a frame \[H, W, 3\] of uint8, got float64 \(4, 4\)",
        ),
        (drawing([]), ValueError, r"expected a frame .* \(list\)"),
        ("Countin-v0", ValueError, "unknown env id 'Countin-v0'"),
        ("envpool:Pong-v5", ValueError, "EnvPool's envs do not render"),
    ],
)
def test_what_cannot_be_recorded_says_why_and_leaves_nothing(env, error, message, tmp_path):
    with pytest.raises(error, match=message):
        record(env, act, tmp_path / "a.mp4")
    assert os.listdir(tmp_path) == []


def test_a_policy_that_raises_leaves_the_old_video(tmp_path):
    record(Counting, act, tmp_path / "a.mp4")
    before = (tmp_path / "a.mp4").read_bytes()
    with pytest.raises(ZeroDivisionError):  # late enough that the encoder has begun to write
        record(endless, lambda obs: act(obs) if obs < 200 else 1 // 0, tmp_path / "a.mp4")
    assert os.listdir(tmp_path) == ["a.mp4"]
    assert (tmp_path / "a.mp4").read_bytes() == before


def test_the_extra_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"a video needs PyAV: pip install 'av>="):
        record(Counting, act, tmp_path / "a.mp4")


def test_arguments_are_checked_first(tmp_path):
    with pytest.raises(ValueError, match="episodes: expected at least 1, got 0"):
        record(Counting, act, tmp_path / "a.mp4", episodes=0)
    with pytest.raises(ValueError, match="expected a name that ends in .mp4"):
        record(Counting, act, tmp_path / "a.gif")
