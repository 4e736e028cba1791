"""JAX envs as device envs: their rows, the memory that they share with torch, exact states, and
what is refused.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

pytest.importorskip("jax", reason="needs JAX: make test-jax has it")

import jax
import jax.numpy as jnp

from equipoise import tree
from equipoise.device_envs import jax_env
from equipoise.device_envs.device_env import check, check_state
from equipoise.device_envs.naming import make_device_env
from equipoise.tree import ArraySpec
from tests.device_envs.jax_stand_in import Kinds

pytestmark = pytest.mark.jax

HERE = "jax:tests.device_envs.jax_stand_in"
SEED, B = 3 + (5 << 32), 33
SPEC = ArraySpec((3,), "float32")


@functools.cache  # compiled once for most tests
def env() -> Any:
    return make_device_env(f"{HERE}:Kinds", {}, streams=B)


def actions(row: int, streams: torch.Tensor) -> torch.Tensor:
    return (streams * 7 + row) % 3


def played(env: Any, state: Any, streams: torch.Tensor, rows: range) -> tuple[Any, list[Any]]:
    """Step on -> the state, and for each row (obs, reward, terminated, truncated, first, valid)."""
    seen = []
    for row in rows:
        state, ts = env.step(state, actions(row, streams))
        seen.append(
            [
                x.clone()
                for x in (ts.obs, ts.reward, ts.terminated, ts.truncated, ts.first, ts.valid)
            ]
        )
    return state, seen


def stream_alone(stream: int, rows: int) -> list[Any]:
    """The rows of one stream by the env's own functions, in a loop over one stream."""
    own, params = Kinds(), Kinds.default_params
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), 5), stream)
    key, now = jax.random.split(key)
    obs, state = own.reset_env(now, params)
    over, seen = False, []
    step, reset = jax.jit(own.step_env, static_argnums=3), jax.jit(own.reset_env, static_argnums=1)
    for row in range(rows):
        key, now = jax.random.split(key)
        if over:
            obs, state = reset(now, params)
            seen.append((obs, 0.0, False, False, True, False))
            over = False
            continue
        action = jnp.int32((stream * 7 + row) % 3)
        obs, state, reward, ends, _ = step(now, state, action, params)
        cut = bool(own.is_truncated(state, params)) and not bool(ends)
        over = bool(ends) or cut
        seen.append((obs, float(reward), bool(ends), cut, False, True))
    return seen


def test_each_stream_has_the_rows_of_the_envs_own_functions() -> None:
    streams = torch.arange(B) + 4
    made = env()
    state, ts = made.reset(SEED, streams)
    check("kinds", ts, SPEC, streams)
    assert bool(ts.first.all()) and not bool(ts.valid.any())
    after, seen = played(made, state, streams, range(40))
    check_state("kinds", state, after)
    counts = torch.stack([torch.stack(row[2:5]).sum(1) for row in seen]).sum(0)
    assert int(counts.min()) > 20, f"too few ends, cuts or seams to prove anything: {counts}"
    for i in (0, 1, 16, 31, 32):
        for row, wanted in enumerate(stream_alone(int(streams[i]), 40)):
            obs, *rest = [x[i] for x in seen[row]]
            assert torch.allclose(obs, jax_env.to_torch(wanted[0])), (i, row)
            assert [x.item() for x in rest] == pytest.approx(wanted[1:]), (i, row)


def test_all_streams_may_end_at_once() -> None:
    made = make_device_env(f"{HERE}:one_step", {}, streams=B)
    state, _ = made.reset(0, torch.arange(B))
    numbers = []
    for row in range(6):
        state, ts = made.step(state, torch.zeros(B, dtype=torch.int64))
        assert bool((ts.truncated if row % 2 == 0 else ts.first).all()) and bool(
            ts.valid.all()
        ) is (row % 2 == 0)
        numbers.append(ts.obs[:, 0])
    assert len(torch.cat(numbers[1::2]).unique()) == 3 * B, "each stream has an episode of its own"


def test_a_stream_does_not_depend_on_who_else_is_in_the_batch() -> None:
    made, streams = env(), torch.arange(B)
    _, every = played(made, made.reset(SEED, streams)[0], streams, range(30))
    _, some = played(made, made.reset(SEED, streams[20:])[0], streams[20:], range(30))
    for one, other in zip(every, some, strict=True):
        assert all(torch.equal(a[20:], b) for a, b in zip(one, other, strict=True))
    _, others = played(made, made.reset(SEED + 1, streams)[0], streams, range(1))
    _, words = played(made, made.reset(SEED + (1 << 32), streams)[0], streams, range(1))
    assert not torch.equal(every[0][0], others[0][0]) and not torch.equal(every[0][0], words[0][0])


def test_a_state_that_was_kept_goes_on_to_the_same_bits() -> None:
    made, streams = env(), torch.arange(B)
    state, _ = played(made, made.reset(SEED, streams)[0], streams, range(10))
    kept = tree.map(torch.clone, state)
    _, seen = played(made, state, streams, range(10, 30))
    again = env()
    again.reset(SEED + 9, streams)
    _, later = played(again, kept, streams, range(10, 30))
    assert all(
        torch.equal(a, b)
        for one, other in zip(seen, later, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    assert {str(x.dtype) for x in tree.leaves(kept)} <= {
        "torch.int32",
        "torch.int64",
        "torch.float32",
    }, "what files hold"


def test_nothing_is_copied_between_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array that goes in has the address of a tensor, and every tensor that comes out that of
    an array.
    """
    made, streams = env(), torch.arange(B)
    state, _ = made.reset(SEED, streams)
    state, _ = made.step(tree.map(torch.clone, state), actions(0, streams))
    crossed: list[tuple[int, int]] = []
    into, out = jax_env.from_torch, jax_env.to_torch

    def watched(x: Any, convert: Any) -> Any:
        made = convert(x)
        pair = (x, made) if isinstance(x, torch.Tensor) else (made, x)
        crossed.append((pair[0].data_ptr(), pair[1].unsafe_buffer_pointer()))
        return made

    monkeypatch.setattr(jax_env, "from_torch", lambda x: watched(x, into))
    monkeypatch.setattr(jax_env, "to_torch", lambda x: watched(x, out))
    state, ts = made.step(tree.map(torch.clone, state), actions(1, streams))
    inside = len(tree.leaves(state["jax"]))
    assert len(crossed) == 2 * inside + 3 and all(a == b for a, b in crossed)
    assert {ts.obs.data_ptr(), ts.reward.data_ptr(), ts.terminated.data_ptr()} <= {
        a for a, _ in crossed
    }
    number = actions(2, streams).to(torch.int32)
    assert (
        jax.device_put(number.numpy(), may_alias=True).unsafe_buffer_pointer() == number.data_ptr()
    ), "as an action is taken"
    crossed.clear()
    made.step(state, actions(2, streams))
    assert len(crossed) == inside + 3, "a state that comes back as it was given is at hand"


def test_the_step_is_compiled_once() -> None:
    made, streams = env.__wrapped__(), torch.arange(B)
    state, _ = made.reset(SEED, streams)
    for row in range(3):
        state, _ = made.step(state, actions(row, streams))
    made.step(tree.map(torch.clone, state), actions(3, streams))
    assert made._next_rows._cache_size() == 1


BAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "Grows",
        {},
        "obs: expected a fixed shape, float32 [3] as a reset has it, got float32 [6] of a step",
    ),
    (
        "ByValue",
        {},
        "step: expected a function of fixed shapes, which jax.jit can trace, got "
        "NonConcreteBooleanIndexError",
    ),
    (
        "Branches",
        {},
        "reset: expected a function of fixed shapes, which jax.jit can trace, got "
        "TracerBoolConversionError",
    ),
    ("OtherSpace", {}, "expected a fixed shape, [4] as its space says, got [3]"),
    (
        "OtherState",
        {},
        "state['large']: expected a fixed shape, float32 [100] as a reset has it, got float32 [50] "
        "of a step",
    ),
    (
        "Short",
        {},
        "step: expected a row, got ValueError: not enough values to unpack (expected 5, got 4)",
    ),
    ("Wide", {}, "reward: expected one number a stream, shape (), got float32 [1]"),
    ("Listed", {}, "expected observations that are an array or a dict of arrays, got list"),
]


@pytest.mark.parametrize(("name", "kwargs", "said"), BAD)
def test_an_env_without_a_fixed_shape_is_refused(name: str, kwargs: Any, said: str) -> None:
    with pytest.raises(ValueError) as error:
        make_device_env(f"{HERE}:{name}", kwargs, streams=2)
    assert str(error.value).startswith(f"{HERE}:{name}") and said in str(error.value)


def test_a_device_that_this_jax_has_not_is_named() -> None:
    if any(one.platform == "gpu" for one in jax.devices()):
        pytest.skip("this JAX has a GPU")
    with pytest.raises(ValueError, match="device: expected a JAX with cuda:0, got one with cpu:0"):
        make_device_env(f"{HERE}:Kinds", {}, streams=2, device="cuda:0")
