"""Targets, arguments, what callables are given, and what is said when something is wrong."""

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from equipoise.envs import hints as wrong
from equipoise.envs import make
from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.loop import LoopEnv
from equipoise.types import Env, EnvFactory
from tests.envs.rolling import Scripted, env_of

HERE = __name__
given: list[Any] = []


def one(stream: int, flavour: str = "plain", **rest: Any) -> Scripted:
    given.append((stream, flavour, rest))
    return Scripted()


def many(num_envs: int, streams: Any, seed: int, short: int = 0) -> SyncVectorEnv:
    given.append((num_envs, streams.tolist(), seed))
    return SyncVectorEnv([Scripted] * (num_envs - short))


class Sized(Scripted):
    def __init__(self, size: int, *, goal: int, stream: int) -> None:
        super().__init__()


CONSTANT = 3


def nothing() -> str:
    return "no env"


class Two(Scripted):
    def __init__(self, stream: int) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(2 + stream)


def test_native_where_there_is_one():
    assert isinstance(env_of("CartPole-v1"), GymnasiumEnv)
    assert isinstance(
        env_of("CartPole-v1", sutton_barto_reward=True, max_episode_steps=7), GymnasiumEnv
    )
    for target in (
        "python:CartPole-v1",
        "Acrobot-v1",
        "gymnasium:Acrobot-v1",
        "python:gymnasium.envs:CartPole-v1",
    ):
        assert isinstance(env_of(target), LoopEnv), target


def test_arguments_only_the_python_env_has_make_it_python(monkeypatch):
    def vector(num_envs: int = 1, max_episode_steps: int = 1) -> Any:
        raise RuntimeError("called")

    spec = gymnasium.registry["CartPole-v1"]
    monkeypatch.setattr(spec, "vector_entry_point", vector)
    assert isinstance(env_of("CartPole-v1", sutton_barto_reward=True), LoopEnv)
    with pytest.raises(ValueError, match="RuntimeError: called"):
        env_of("CartPole-v1", max_episode_steps=3)


def test_a_callable_is_given_what_it_names():
    given.clear()
    env = env_of(f"{HERE}:one", [3, 4], flavour="sweet", more=1)
    assert isinstance(env, LoopEnv) and given == [
        (3, "sweet", {"more": 1}),
        (4, "sweet", {"more": 1}),
    ]
    given.clear()
    assert isinstance(env_of(f"{HERE}:many", [3, 4], 9), GymnasiumEnv) and given == [(2, [3, 4], 9)]


def test_max_episode_steps_reaches_both():
    for target in ("CartPole-v1", "python:CartPole-v1"):
        env = env_of(target, 2, max_episode_steps=1)
        ts = env.recv()
        env.send(np.zeros(2, np.int64), ts.stream)
        assert env.recv().truncated.all()


@pytest.mark.parametrize(
    ("target", "kwargs", "said"),
    [
        ("cartpole-v1", {}, "unknown env id 'cartpole-v1'; did you mean 'CartPole-v1'?"),
        ("CartPole", {}, "did you mean 'CartPole-v1'"),
        ("CartPole-v7", {}, "did you mean 'CartPole-v1'"),
        ("Acrobat-v1", {}, "did you mean 'Acrobot-v1'"),
        (
            "gymnazium:CartPole-v1",
            {},
            "unknown module 'gymnazium' in env 'gymnazium:CartPole-v1'; did you mean 'gymnasium'",
        ),
        ("equipoise.envz:Catch", {}, "did you mean 'equipoise.envs'"),
        (
            "equipoise.envs:Cach",
            {},
            "unknown env 'Cach' in module 'equipoise.envs'; did you mean 'Catch'",
        ),
        (
            "equipoise.envs:Catch",
            {"row": 3},
            "takes no argument 'row' (did you mean 'rows'?); it takes: rows, columns",
        ),
        (
            "CartPole-v1",
            {"max_steps": 3},
            "did you mean 'max_episode_steps'?); it takes: sutton_barto_reward, render_mode",
        ),
        (f"{HERE}:nothing", {}, "returned str, expected a gymnasium.Env"),
        (f"{HERE}:many", {"short": 1}, "has 3 envs, expected 4"),
        (f"python:{HERE}:many", {}, "it returns a vector env, SyncVectorEnv"),
        (f"{HERE}:Two", {}, "same spaces"),
        ("json/Thing-v0", {}, "if the module 'json' registers it, write json:json/Thing-v0"),
        ("qqqqqqqq", {}, "unknown env id 'qqqqqqqq'"),
        ("equipoise/Rular-v0", {}, "unknown env id 'equipoise/Rular-v0'"),
        (
            "qqqqqqqq:make",
            {},
            "unknown module 'qqqqqqqq' in env 'qqqqqqqq:make'. Modules are looked for in "
            f"{os.getcwd()} and",
        ),
        (f"{HERE}:CONSTANT", {}, "expected a class or a function that makes an env, got int 3"),
        (
            f"{HERE}:",
            {},
            f"expected module:callable, such as {HERE}:make, got no name of what is in the module",
        ),
        (HERE, {}, "expected module:callable, such as tests.envs:test_making, got no colon"),
        ("tests", {}, "expected module:callable, such as tests:make, got no colon"),
        (
            "my_envs.py:make",
            {},
            "expected a module as an import names it, such as my_envs:make, got a path",
        ),
        ("./some/my_envs.py:", {}, "such as some.my_envs:make, got a path"),
        ("some/my_envs.py", {}, "such as some.my_envs:make, got a path"),
        (
            f"{HERE}:Sized",
            {},
            "Sized: expected a value for its arguments size, goal, got none: --set env.size=VALUE, "
            "in Python",
        ),
        (
            f"{HERE}:Sized",
            {"size": 1},
            "for its argument goal, got none: --set env.goal=VALUE, in Python env_kwargs={'goal': "
            "V",
        ),
    ],
)
def test_what_is_said(target, kwargs, said):
    with pytest.raises(ValueError) as error:
        env_of(target, **kwargs)
    assert said in str(error.value)


def test_what_make_returns_is_an_env() -> None:
    # mypy checks the Protocol here
    env: Env = make(EnvFactory(target="CartPole-v1"), streams=np.arange(2), seed=0)
    assert (ts := env.recv()) is not None and ts.stream.tolist() == [0, 1]


def test_streams_must_be_ids():
    for streams in (np.zeros((2, 2), int), np.zeros(0, int)):
        with pytest.raises(ValueError, match=r"expected \[B\]"):
            make(EnvFactory(target="CartPole-v1"), streams=streams, seed=0)


@pytest.mark.parametrize(
    ("target", "module", "package"),
    [
        ("ALE/Pong-v5", "ale_py", "ale-py"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("envpool:CartPole-v1", "envpool", "envpool"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch, target, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "equipoise.envs.families.pool", raising=False)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError) as error:
        env_of(target)
    assert f"{target} needs {module}: pip install '{package}>=" in str(error.value)


def test_a_module_that_lacks_another_is_not_called_unknown(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        env_of("lacking:make")


def test_nearest_prefers_the_newest_version():
    assert "'A-v10'" in str(wrong.unknown("id", "a", ["A-v2", "A-v10", "A-v9"]))
    assert "mean" not in str(wrong.unknown("id", "xyz", ["A-v2"]))


@pytest.mark.parametrize(
    ("target", "module", "kwargs", "said"),
    [
        (
            "MiniGrid-DoorKey-5x5-v0",
            "minigrid",
            {"sizee": 6},
            "takes no argument 'sizee' (did you mean 'size'?)",
        ),
        (
            "HalfCheetah-v5",
            "mujoco",
            {"frameskip": 2},
            "takes no argument 'frameskip' (did you mean 'frame_skip'?)",
        ),
    ],
)
def test_an_argument_that_a_parent_class_refuses_is_named(
    target: str, module: str, kwargs: Any, said: str
) -> None:
    """Their own constructors take ``**kwargs``, and hand them on."""
    pytest.importorskip(module)
    with pytest.raises(ValueError) as error:
        make(EnvFactory(target=target, kwargs=kwargs), streams=np.arange(1), seed=0)
    assert str(error.value).startswith(f"{target} {said}")


def unlicensed(stream: int) -> Any:
    raise RuntimeError(f"no licence for simulator {stream}")


def doubtful(stream: int) -> Any:
    raise LookupError  # without words


def test_an_error_without_words_is_told_by_its_line() -> None:
    with pytest.raises(ValueError, match=r"could not be made: LookupError: raise LookupError"):
        make(EnvFactory(target=f"{__name__}:doubtful"), streams=np.array([7]), seed=0)


def test_what_an_env_raises_as_it_is_made_is_told_with_its_place() -> None:
    factory = EnvFactory(target=f"{__name__}:unlicensed")
    with pytest.raises(
        ValueError,
        match=r"could not be made: RuntimeError: no licence for simulator 7 \(.*test_making.py, "
        r"line",
    ):
        make(factory, streams=np.array([7]), seed=0)


def test_an_env_whose_module_does_not_parse_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unparsed_envs.py").write_text("\ndef env(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match=r"could not be made: SyntaxError: .*unparsed_envs.py, line 2\)$"
    ):
        make(EnvFactory(target="unparsed_envs:env"), streams=np.arange(1), seed=0)
