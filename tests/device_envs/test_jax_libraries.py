"""gymnax, Craftax, Brax and MuJoCo Playground: rows are those of each library's own step, and kinds
of ends are told apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from typer.testing import CliRunner

pytest.importorskip("jax", reason="needs JAX and its simulators: make test-jax has them")

import jax
import jax.numpy as jnp

from equipoise import tree
from equipoise.cli import app
from equipoise.device_envs.device_env import check, check_state
from equipoise.device_envs.naming import make_device_env
from equipoise.envs import make
from equipoise.types import EnvFactory

pytestmark = [
    pytest.mark.jax,
    pytest.mark.timeout(600),  # Craftax and Brax compile for a minute
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Brax System"),
]

B, ROWS, LIMIT, SEED = 6, 30, 12, 11
# (reset, step -> state, obs, reward, terminated, truncated)
Own = tuple[Callable[[Any], Any], Callable[[Any, Any, Any], Any]]


def of_gymnax() -> Own:
    gymnax = pytest.importorskip("gymnax", reason="needs gymnax: make test-jax has it")
    env, params = gymnax.make("CartPole-v1")
    params = params.replace(max_steps_in_episode=LIMIT)

    def step(key: Any, state: Any, action: Any) -> Any:
        obs, state, reward, ends, _ = env.step_env(key, state, action, params)
        return state, obs, reward, ends, state.time >= LIMIT

    return lambda key: env.reset_env(key, params)[::-1], step


def of_craftax() -> Own:
    make = pytest.importorskip(
        "craftax.craftax_env", reason="needs Craftax: make test-jax has it"
    ).make_craftax_env_from_name
    env = make("Craftax-Classic-Symbolic-v1", auto_reset=False)
    params = env.default_params.replace(max_timesteps=LIMIT)

    def step(key: Any, state: Any, action: Any) -> Any:
        # done: of either kind
        obs, state, reward, done, _ = env.step_env(key, state, action, params)
        cut = (state.timestep >= LIMIT) & (state.player_health > 0)
        return state, obs, reward, done & ~cut, cut

    return lambda key: env.reset_env(key, params)[::-1], step


def of_mujoco(env: Any, wrapper: Any) -> Own:
    """By their own ``EpisodeWrapper``, which says what it truncates."""
    wrapped = wrapper.EpisodeWrapper(env, LIMIT, 1)

    def reset(key: Any) -> Any:
        state = wrapped.reset(key)
        return state, state.obs

    def step(key: Any, state: Any, action: Any) -> Any:
        state = wrapped.step(state, action)
        cut = state.info["truncation"] > 0
        return state, state.obs, state.reward, (state.done > 0) & ~cut, cut

    return reset, step


def of_brax() -> Own:
    envs = pytest.importorskip("brax.envs", reason="needs Brax: make test-jax has it")
    from brax.envs.wrappers import training

    return of_mujoco(envs.get_environment("inverted_pendulum", backend="spring"), training)


def of_playground() -> Own:
    playground = pytest.importorskip(
        "mujoco_playground", reason="needs MuJoCo Playground: make test-jax has it"
    )
    from brax.envs.wrappers import training

    return of_mujoco(
        playground.registry.load("CartpoleBalance", config_overrides={"impl": "jax"}), training
    )


CASES: dict[str, tuple[dict[str, Any], Callable[[], Own]]] = {
    "gymnax/CartPole-v1": ({}, of_gymnax),
    "brax/inverted_pendulum": ({"backend": "spring"}, of_brax),
    "playground/CartpoleBalance": ({}, of_playground),
    "craftax/Craftax-Classic-Symbolic-v1": ({}, of_craftax),
}


def acted(env: Any, row: int) -> torch.Tensor:
    generator = np.random.default_rng(row)
    if isinstance(env.action, spaces.Discrete):
        action = torch.from_numpy(generator.integers(env.action.n, size=B))
        action[:2] = 1  # CartPole falls within ten steps
        return action
    return torch.from_numpy(generator.uniform(-1, 1, (B, *env.action.shape)).astype(np.float32))


def chosen(over: np.ndarray[Any, Any], begun: Any, went_on: Any) -> Any:
    """Row by row: what begins where ``over`` [B] is True, what goes on elsewhere."""
    return jax.tree.map(
        lambda new, x: jnp.where(over.reshape(-1, *(1,) * (x.ndim - 1)), new, x), begun, went_on
    )


@pytest.mark.few(4)
@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_the_librarys_own_jitted_step(name: str) -> None:
    kwargs, own = CASES[name]
    reset, step = (jax.jit(jax.vmap(function)) for function in own())
    env = make_device_env(f"jax:{name}", {**kwargs, "max_episode_steps": LIMIT}, streams=B)
    streams = torch.arange(B) + 2
    keys = jax.vmap(
        lambda stream: jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), 0), stream)
    )(jnp.arange(B) + 2)
    both = jax.vmap(jax.random.split)(keys)
    keys, (theirs, obs) = both[:, 0], reset(both[:, 1])
    state, ts = env.reset(SEED, streams)
    spec = tree.map(lambda x: tree.ArraySpec(tuple(x.shape[1:]), str(x.dtype)), obs)
    check(name, ts, spec, streams)
    over = np.zeros(B, bool)
    ends = {"terminated": 0, "truncated": 0}
    halfway: Any = None
    later = []
    for row in range(ROWS):
        action = acted(env, row)
        both = jax.vmap(jax.random.split)(keys)
        keys, now = both[:, 0], both[:, 1]
        begun, first = reset(now)
        theirs, obs, reward, ended, cut = step(now, theirs, jnp.asarray(action.numpy()))
        theirs, obs = chosen(over, (begun, first), (theirs, obs))
        before = state
        state, ts = env.step(state, action)
        check(name, ts, spec, streams)
        check_state(name, before, state)
        assert np.array_equal(ts.first, over) and np.array_equal(ts.valid, ~over)
        np.testing.assert_allclose(ts.obs, obs, rtol=1e-4, atol=1e-4, err_msg=f"row {row}")
        np.testing.assert_allclose(
            ts.reward, np.where(over, 0, reward), rtol=1e-4, atol=1e-4, err_msg=f"row {row}"
        )
        assert np.array_equal(ts.terminated, np.asarray(ended) & ~over), f"row {row}"
        assert np.array_equal(ts.truncated, np.asarray(cut) & ~np.asarray(ended) & ~over), (
            f"row {row}"
        )
        over = ts.terminated.numpy() | ts.truncated.numpy()
        ends = {key: count + int(getattr(ts, key).sum()) for key, count in ends.items()}
        if halfway is not None:
            later.append((ts.obs.clone(), ts.reward.clone()))
        if row == ROWS // 2:
            halfway = tree.map(torch.clone, state)
    assert ends["truncated"] > 0
    assert ends["terminated"] > 0 or "gymnax" not in name, "CartPole is pushed over"
    # from a copy of the state: the keys are in it
    for row, (seen, got) in enumerate(later, ROWS // 2 + 1):
        halfway, ts = env.step(halfway, acted(env, row))
        assert torch.equal(ts.obs, seen) and torch.equal(ts.reward, got)


def test_a_truncated_row_shows_the_final_observation() -> None:
    """CartPole without a fall: the row that the clock cuts goes on from the one before, and the
    next one begins anew.
    """
    pytest.importorskip("gymnax", reason="needs gymnax: make test-jax has it")
    env = make_device_env("jax:gymnax/CartPole-v1", {"max_steps_in_episode": 4}, streams=B)
    state, ts = env.reset(0, torch.arange(B))
    before = ts.obs.clone()
    for row in range(1, 9):
        state, ts = env.step(state, torch.arange(B) % 2)
        moved = torch.allclose(ts.obs[:, 0], before[:, 0] + 0.02 * before[:, 1])
        assert (
            moved is (row % 5 != 0)
            and bool(ts.truncated.all()) is (row % 5 == 4)
            and not bool(ts.terminated.any())
        )
        before = ts.obs.clone()


BAD = [
    ("jax:gymnas/CartPole-v1", {}, "unknown library of JAX envs 'gymnas'; did you mean 'gymnax'?"),
    ("jax:gymnax/Cartpole", {}, "unknown env 'Cartpole' of gymnax; did you mean 'CartPole-v1'?"),
    (
        "jax:gymnax/CartPole-v1",
        {"max_steps": 3},
        "jax:gymnax/CartPole-v1 takes no argument 'max_steps'; did you mean 'max_",
    ),
    ("jax:craftax/Craftax-v1", {}, "unknown env 'Craftax-v1' of craftax; did you mean 'Craftax-"),
    (
        "jax:craftax/Craftax-Classic-Symbolic-v1",
        {"max_step": 3},
        "takes no argument 'max_step'; did you mean 'max_",
    ),
    ("jax:brax/aunt", {}, "unknown env 'aunt' of brax; did you mean 'ant'?"),
    (
        "jax:brax/ant",
        {"back": "spring"},
        "jax:brax/ant takes no argument 'back'; did you mean 'backend'?",
    ),
    (
        "jax:playground/CartPoleBalance",
        {},
        "unknown env 'CartPoleBalance' of playground; did you mean 'CartpoleBalance'?",
    ),
    (
        "jax:playground/CartpoleBalance",
        {"dt": 0.1},
        "jax:playground/CartpoleBalance takes no argument 'dt'",
    ),
]


@pytest.mark.few(9)
@pytest.mark.parametrize(("name", "kwargs", "said"), BAD)
def test_a_wrong_name_or_argument_has_a_nearest_one(name: str, kwargs: Any, said: str) -> None:
    with pytest.raises(ValueError) as error:
        make(EnvFactory(target=name, kwargs=kwargs), streams=np.arange(2), seed=0)
    assert said in str(error.value)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(ImportError, match="jax:gymnax/CartPole-v1 needs gymnax: .*jax"):
        make(EnvFactory(target="jax:gymnax/CartPole-v1"), streams=np.arange(2), seed=0)


def test_their_ids_are_listed() -> None:
    listed = CliRunner().invoke(app, ["envs", "jax:"]).stdout.split()
    for name in (
        "gymnax/CartPole-v1",
        "craftax/Craftax-Symbolic-v1",
        "brax/ant",
        "playground/CartpoleBalance",
    ):
        assert f"jax:{name}" in listed
