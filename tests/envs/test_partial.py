"""Envs whose streams answer some at a time give each stream the rows that it has in an env that
answers all at once.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from equipoise.envs import make
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.partial import ThreadedEnv, make_partial
from equipoise.types import EnvFactory
from tests.envs.faulty import fails

B = 4


def partial_env(target: str, answers: int = 2, count: int = B, **given: Any) -> Any:
    kwargs = given.pop("kwargs", {})
    return make_partial(
        EnvFactory(target=target, kwargs=kwargs),
        streams=np.arange(count),
        seed=1,
        answers=answers,
        **given,
    )


def received(env: Any) -> Any:
    """The next rows, within a time."""
    until = time.monotonic() + 20.0
    while (ts := env.recv()) is None:
        assert time.monotonic() < until
    return ts


def rolled(env: Any, rows: int, count: int = B, action: int = 1) -> list[list[tuple[Any, ...]]]:
    """So many rows of each stream: (obs, reward, terminated, truncated, first, valid)."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(count)]
    at = np.arange(count)
    received(env)
    while min(map(len, found)) < rows:
        env.send(np.full(len(at), action), env.ts.stream[at])
        ts = received(env)
        at = np.flatnonzero(ts.answered)
        for i in at:
            flags = (ts.reward, ts.terminated, ts.truncated, ts.first, ts.valid)
            found[i].append((*np.ravel(ts.obs[i]).tolist(), *(x[i].item() for x in flags)))
        others = ~ts.answered
        assert (
            not ts.reward[others].any()
            and not (ts.valid | ts.first | ts.terminated | ts.truncated)[others].any()
        )
    return [mine[:rows] for mine in found]


def whole(env: Any, rows: int, count: int = B, action: int = 1) -> list[list[tuple[Any, ...]]]:
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(count)]
    env.recv()
    for _ in range(rows):
        env.send(np.full(count, action), env.ts.stream)
        ts = env.recv()
        for i in range(count):
            flags = (ts.reward, ts.terminated, ts.truncated, ts.first, ts.valid)
            found[i].append((*np.ravel(ts.obs[i]).tolist(), *(x[i].item() for x in flags)))
    return found


@pytest.mark.parametrize("answers", [1, 3])
@pytest.mark.parametrize("target", ["equipoise/Ruler-v0", "CartPole-v1"])
def test_threads_give_the_rows_of_a_loop(target: str, answers: int) -> None:
    env = partial_env(target, answers)
    other = make(EnvFactory(target=f"python:{target}"), streams=np.arange(B), seed=1)
    assert rolled(env, 60) == whole(other, 60)
    env.close()
    other.close()


def test_a_slow_stream_is_not_waited_for() -> None:
    env = partial_env("equipoise/Ruler-v0", 3, kwargs={"stragglers": [2], "sleep_s": 0.4})
    rows = dict.fromkeys(range(B), 0)
    received(env)
    at = np.arange(B)
    while not rows[2]:
        env.send(np.ones(len(at), int), env.ts.stream[at])
        at = np.flatnonzero(received(env).answered)
        for i in at.tolist():
            rows[i] += 1
    assert rows[2] == 1 and min(rows[i] for i in (0, 1, 3)) > 20
    env.close()


class Failing(gymnasium.Env[Any, Any]):
    """Its third step raises, or is nan."""

    observation_space, action_space = spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, stream: int = 0, kind: str = "raise") -> None:
        self.stream, self.kind, self.t = stream, kind, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.t == 3 and self.stream == 1:
            if self.kind == "raise":
                raise ArithmeticError("the third step")
            return np.full(1, np.nan, np.float32), 1.0, False, False, {}
        return np.zeros(1, np.float32), 1.0, False, False, {"steps": self.t}


def test_what_an_env_raises_reaches_the_actor() -> None:
    env = partial_env("tests.envs.test_partial:Failing")
    with pytest.raises(ArithmeticError, match="the third step"):
        rolled(env, 5)
    env.close()


@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_a_failing_env_costs_its_own_episode(kind: str) -> None:
    failures = Failures(on_nonfinite="drop")
    env = partial_env("tests.envs.test_partial:Failing", kwargs={"kind": kind}, failures=failures)
    rows = rolled(env, 7)
    assert all(row[-1] for i in (0, 2, 3) for row in rows[i]) and [row[-1] for row in rows[1]][
        :3
    ] == [True, True, False]
    env.close()  # a step of its thread may be under way
    assert failures.counts[0] == failures.causes.told[0][2] >= 2


def test_faulty_rows_are_those_of_a_loop() -> None:
    assert fails(np.arange(9), np.zeros(9, int), np.arange(9)).any()
    env = partial_env("tests.envs.faulty:FaultyRuler", failures=Failures())
    other = make(
        EnvFactory(target="python:tests.envs.faulty:FaultyRuler"),
        streams=np.arange(B),
        seed=1,
        failures=Failures(),
    )
    assert rolled(env, 80) == whole(other, 80)
    env.close()
    other.close()


def test_numbers_of_the_info() -> None:
    env = partial_env(
        "tests.envs.test_partial:Failing",
        kwargs={"kind": "none"},
        metrics=["steps"],
        count=1,
        answers=1,
    )
    received(env)
    seen = []
    for _ in range(3):
        env.send(np.ones(1, int), env.ts.stream)
        seen.append(float(received(env).info[0, 0]))
    assert seen == [1.0, 2.0, 3.0]
    env.close()


def test_a_state_has_the_answers_that_were_not_told() -> None:
    """The steps under way end first; a load tells what they came to, and every stream goes on where
    it was.
    """
    kwargs = {"stragglers": [0], "sleep_s": 0.05}
    env = partial_env("equipoise/Ruler-v0", 1, kwargs=kwargs)
    received(env)
    env.send(np.ones(B, int), env.ts.stream)
    first = received(env)
    assert not first.answered[0]
    told = first.answered.copy()
    state = env.state()
    other = partial_env("equipoise/Ruler-v0", 1, kwargs=kwargs)
    received(other)
    other.load(state)
    assert other.resumed == {"exact": B, "replay": 0, "restart": 0}
    ts = received(other)
    assert (ts.answered == ~told).all() and ts.obs[0].tolist() == [0, 0, 1] and ts.reward[0] > 0
    for one in (env, other):
        one.close()


def test_threads_end_with_the_env() -> None:
    before = threading.active_count()
    env = partial_env("equipoise/Ruler-v0")
    assert threading.active_count() == before + B
    env.close()
    env.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("remote:tcp://127.0.0.1:7777", "whose streams are stepped together"),
        ("device:cartpole", "whose streams are stepped together"),
        ("jax:gymnax/CartPole-v1", "whose streams are stepped together"),
        ("tests.runtime.vectors:sync_ruler", "it returns a vector env"),
        ("tests.envs.games:Signal", "whose agents act together"),
    ],
)
def test_what_cannot_answer_in_parts_is_refused(target: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        partial_env(target)


# ------------------------------------------------------------------------------------------ EnvPool


@pytest.mark.parametrize("target", ["envpool:CartPole-v1", "envpool:Pong-v5"])
def test_envpool_gives_the_rows_of_whole_batches(target: str) -> None:
    pytest.importorskip("envpool", reason="EnvPool is not installed (extra envpool)")
    env = partial_env(target, 2)
    other = make(EnvFactory(target=target), streams=np.arange(B), seed=1)
    rows = 60 if "Cart" in target else 8
    assert rolled(env, rows) == whole(other, rows)
    env.close()
    other.close()


def test_envpool_answers_in_batches_of_one_size() -> None:
    pytest.importorskip("envpool", reason="EnvPool is not installed (extra envpool)")
    env = partial_env("envpool:CartPole-v1", 2, metrics=["elapsed_step"])
    received(env)
    env.send(np.ones(2, int), env.ts.stream[:2])
    ts = received(env)
    assert ts.answered.tolist() == [True, True, False, False] and ts.info[:2, 0].tolist() == [
        1.0,
        1.0,
    ]
    with pytest.raises(RuntimeError, match="whose reset was not returned yet"):
        env.load({})
    env.close()


def test_threads_are_what_python_envs_get() -> None:
    env = partial_env("CartPole-v1")
    assert isinstance(env, ThreadedEnv) and env.spec.resume == "exact"
    env.close()
