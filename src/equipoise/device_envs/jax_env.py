"""``JaxEnv``: an env written in JAX as a device env: its own step under ``vmap`` and ``jit``, over
memory that torch shares.

DLPack hands an array from one library to the other as a pointer: nothing is copied, neither to the
host nor on the device. The state is a tree of tensors like any device env's. It holds all arrays of
the env's own state, and each stream's PRNG key, so a checkpoint has them and a resume is exact.

A stream's key is ``fold_in`` of the seed and the stream's number. Each row splits it: one half is
the next row's key, the other goes to the env's step, or in a seam to the env's reset. So a stream's
episodes do not depend on which other streams are in the batch.

A reset costs much in some envs (Craftax makes a world), and in most rows few streams need one. So
each row resets a sixteenth of the streams at a time, until no stream is left.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

# leave memory for the policy on the same GPU
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from jax import lax
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from equipoise import foreign, tree
from equipoise.device_envs.device_env import Autoreset
from equipoise.hints import raised
from equipoise.types import TimeStep, Tree

Pytree = Any  # JAX arrays in the containers and classes that an env keeps its state in
# state, observation, reward, terminated, truncated
Stepped = tuple[Pytree, Pytree, jax.Array, jax.Array, jax.Array]
SMALL = 64  # numbers
# parts in which streams are reset when all of them end at once
RESETS = 16
# torch has few operations on unsigned numbers other than bytes
SIGNED = {"uint16": jnp.int16, "uint32": jnp.int32, "uint64": jnp.int64}


class World(Protocol):
    """One stream of a JAX env: pure functions for ``jax.jit``; ``key`` is a typed PRNG key."""

    action: gymnasium.Space[object]  # Discrete, or a Box of floats
    # the library's space of observations (``low`` and ``high``, ``n`` or ``spaces``), or None
    bounds: Any

    def begin(self, key: jax.Array) -> tuple[Pytree, Pytree]:
        """An episode's first state and observation."""

    def advance(self, key: jax.Array, state: Pytree, action: jax.Array) -> Stepped:
        """Step without a reset -> state, observation, reward, terminated, truncated."""


class JaxEnv:
    """B streams of a ``World``."""

    autoreset: ClassVar[Autoreset] = "next_step"
    exact: ClassVar[bool] = True
    # a graph or a compiler of torch's would not see what JAX does
    traceable: ClassVar[bool] = False

    def __init__(self, name: str, world: World) -> None:
        """``name`` is for errors. ValueError if a state or a row has no fixed shape."""
        self._world, self.action = world, world.action
        self._form, seen = _traced(name, world)
        self.observation = space_of(name, seen, world.bounds)
        self._first_rows, self._next_rows = jax.jit(self._begin_all), jax.jit(self._step_all)
        # the state of the last row, as torch and as JAX have it
        self._last: tuple[Tree, Pytree] = ({}, {})

    # ---------------------------------------------------------------------------- between libraries

    def reset(self, seed: int, streams: Tensor) -> tuple[Tree, TimeStep]:
        words = np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint32)
        inner, obs = self._first_rows(words, from_torch(streams.to(torch.int32)))
        no = torch.zeros_like(streams, dtype=torch.bool)
        rows = TimeStep(
            obs=tree.map(to_torch, obs),
            reward=no.float(),
            terminated=no,
            truncated=no,
            first=~no,
            valid=no,
            stream=streams,
        )
        return self._kept(inner, streams), rows

    def step(self, state: Tree, action: Tree) -> tuple[Tree, TimeStep]:
        # Within an unroll the state comes back as it was given; its arrays are at hand then.
        inner = self._last[1] if state is self._last[0] else tree.map(from_torch, state["jax"])
        number = (action if action.is_floating_point() else action.to(torch.int32)).contiguous()
        # On a CPU a view of numpy's, since DLPack would cost 0.1 ms a step.
        taken = from_torch(number) if number.is_cuda else number.numpy()
        inner, obs, reward, flags = self._next_rows(inner, taken)
        terminated, truncated, seam = to_torch(flags).unbind()
        rows = TimeStep(
            obs=tree.map(to_torch, obs),
            reward=to_torch(reward),
            terminated=terminated,
            truncated=truncated,
            first=seam,
            valid=~seam,
            stream=state["stream"],
        )
        return self._kept(inner, state["stream"]), rows

    def _kept(self, inner: Pytree, streams: Tensor) -> Tree:
        state = {"jax": tree.map(to_torch, inner), "stream": streams}
        self._last = (state, inner)
        return state

    # -------------------------------------------------------------------------------- inside of JAX

    def _begin_all(self, words: jax.Array, streams: jax.Array) -> Pytree:
        run = jax.random.fold_in(jax.random.key(words[0]), words[1])
        return jax.vmap(lambda stream: self._begin(jax.random.fold_in(run, stream)))(streams)

    def _step_all(self, state: Pytree, action: jax.Array) -> Pytree:
        rows, reward, ends, cut, seam, keys = jax.vmap(self._advance)(state, action)
        state, obs = self._refilled(seam, keys, rows)
        return state, obs, reward, jnp.stack([ends, cut, seam])

    def _refilled(self, seam: jax.Array, keys: jax.Array, rows: Pytree) -> Pytree:
        """The rows with a new episode where ``seam`` is True."""
        count = len(seam)

        def some(carry: Pytree) -> Pytree:
            left, rows = carry
            # count: no stream's place, dropped
            (at,) = jnp.nonzero(left, size=-(-count // RESETS), fill_value=count)
            begun = jax.vmap(self._begin)(keys.at[at].get(mode="clip"))
            rows = jax.tree.map(lambda x, new: x.at[at].set(new, mode="drop"), rows, begun)
            return left.at[at].set(False, mode="drop"), rows

        return lax.while_loop(lambda carry: carry[0].any(), some, (seam, rows))[1]

    def _begin(self, key: jax.Array) -> Pytree:
        """One stream's first row of an episode."""
        kept, now = jax.random.split(key)
        state, obs = self._world.begin(now)
        return self._form.leaves((state, kept, False)), jax.tree.map(_seen, obs)

    def _advance(self, leaves: Pytree, action: jax.Array) -> Pytree:
        """One stream's next row; in a seam that of ``_begin`` with the same key."""
        state, key, seam = self._form.whole(leaves)
        kept, now = jax.random.split(key)
        state, obs, reward, ends, cut = self._world.advance(now, state, action)
        reward, ends, cut = (
            jnp.asarray(x).astype(kind)
            for x, kind in ((reward, jnp.float32), (ends, bool), (cut, bool))
        )
        ends &= ~seam
        cut &= ~ends & ~seam
        row = self._form.leaves((state, kept, ends | cut)), jax.tree.map(_seen, obs)
        return row, jnp.where(seam, 0, reward), ends, cut, seam, key


class Form:
    """A stream's state as tensors: one for each large array, one row of 32-bit words for the
    others.

    Each tensor costs microseconds a step, and there may be a hundred small arrays. Keys and
    unsigned numbers are stored by their bits, empty arrays not at all.
    """

    def __init__(self, shapes: Pytree) -> None:
        """``shapes``: the state as ``jax.eval_shape`` has it."""
        found, self._def = jax.tree_util.tree_flatten_with_path(shapes)
        self.shapes = {jax.tree_util.keystr(path): leaf for path, leaf in found}
        raw = jax.eval_shape(
            lambda: [_words(jnp.zeros(leaf.shape, leaf.dtype)) for leaf in self.shapes.values()]
        )
        self._raw = dict(zip(self.shapes, raw, strict=True))

    def leaves(self, state: Pytree) -> dict[str, jax.Array]:
        every = {
            name: _words(jnp.asarray(x))
            for name, x in zip(self.shapes, jax.tree.leaves(state), strict=True)
        }
        large = {name: x for name, x in every.items() if not _is_small(x)}
        small = [
            lax.bitcast_convert_type(_wide(x), jnp.int32).ravel()
            for x in every.values()
            if _is_small(x)
        ]
        return {"small": jnp.concatenate(small), **large}

    def whole(self, leaves: dict[str, jax.Array]) -> Pytree:
        state, at = [], 0
        for name, shape in self.shapes.items():
            if (x := leaves.get(name)) is None:
                raw = self._raw[name]
                wide = jax.eval_shape(_wide, raw).dtype
                x = (
                    lax.bitcast_convert_type(leaves["small"][at : at + raw.size], wide)
                    .reshape(raw.shape)
                    .astype(raw.dtype)
                )
                at += raw.size
            state.append(_unsigned(x, shape.dtype))
        return jax.tree.unflatten(self._def, state)


def from_torch(x: Tensor) -> jax.Array:
    """The array over a tensor's memory."""
    return jax.dlpack.from_dlpack(x.contiguous())


def to_torch(x: jax.Array) -> Tensor:
    """The tensor over an array's memory, once the array is computed."""
    return from_dlpack(x)


def _words(x: jax.Array) -> jax.Array:
    """An array in a dtype that torch works with: the same bits."""
    x = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    signed = SIGNED.get(x.dtype.name)
    # Converted also to its own dtype: a type that is weak, as a Python number's is, would have the
    # step compiled twice.
    return (
        lax.convert_element_type(x, x.dtype)
        if signed is None
        else lax.bitcast_convert_type(x, signed)
    )


def _is_small(x: jax.Array) -> bool:
    return bool(x.size <= SMALL and x.dtype.itemsize <= 4)


def _wide(x: jax.Array) -> jax.Array:
    """A small array in 32-bit numbers that hold its own."""
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.int32)


def _unsigned(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """The array of which ``_words`` made this one."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(lax.bitcast_convert_type(x, jnp.uint32))
    return x if x.dtype == dtype else lax.bitcast_convert_type(x, dtype)


def _seen(x: jax.Array) -> jax.Array:
    """An observation for networks: floats and flags as float32, bytes kept, integers as int32."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x if x.dtype == jnp.uint8 else x.astype(jnp.int32)
    return x.astype(jnp.float32)


# ------------------------------------------------------------------------------------------- checks


def _traced(name: str, world: World) -> tuple[Form, Pytree]:
    """The form of a world's state and its observations' shapes; ValueError if not fixed."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    taken = jnp.float32 if isinstance(world.action, spaces.Box) else jnp.int32
    action = jax.ShapeDtypeStruct(world.action.shape or (), taken)
    state, obs = _shapes(f"{name}, reset", world.begin, key)
    after, later, *numbers = _shapes(f"{name}, step", world.advance, key, state, action)
    _same(f"{name}, state", state, after)
    _same(f"{name}, obs", obs, later)
    for what, shape in zip(("reward", "terminated", "truncated"), numbers, strict=True):
        if shape.shape != ():
            raise ValueError(
                f"{name}, {what}: expected one number a stream, shape (), got {_said(shape)}"
            )
    return Form((state, key, jax.ShapeDtypeStruct((), bool))), jax.eval_shape(
        lambda: jax.tree.map(lambda x: _seen(jnp.zeros(x.shape, x.dtype)), obs)
    )


def _shapes(where: str, function: Callable[..., Pytree], *shapes: Pytree) -> Pytree:
    try:
        return jax.eval_shape(function, *shapes)
    # JAX's error if a shape or a branch depends on values
    except (TypeError, IndexError) as error:
        raise ValueError(
            f"{where}: expected a function of fixed shapes, which jax.jit can trace, got "
            f"{raised(error)}"
        ) from error
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{where}: expected a row, got {raised(error)}") from error


def _same(where: str, one: Pytree, other: Pytree) -> None:
    """ValueError if a step gives other shapes than a reset."""
    a, b = Form(one).shapes, Form(other).shapes
    if a.keys() != b.keys():
        raise ValueError(
            f"{where}: expected a fixed shape, the leaves of a reset {sorted(a)}, got {sorted(b)} "
            "of a step"
        )
    for path, shape in a.items():
        if (shape.shape, shape.dtype) != (b[path].shape, b[path].dtype):
            raise ValueError(
                f"{where}{path}: expected a fixed shape, {_said(shape)} as a reset has it, got "
                f"{_said(b[path])} of a step"
            )


def _said(shape: Pytree) -> str:
    return f"{shape.dtype} {list(shape.shape)}"


def space_of(name: str, shapes: Pytree, bounds: Any) -> gymnasium.Space[object]:
    """The Gymnasium space of observations of these shapes, within the library's bounds if any."""
    inner = foreign.attribute(bounds, "spaces")
    if isinstance(shapes, dict):
        known = inner if isinstance(inner, dict) else {}
        return spaces.Dict(
            {
                key: space_of(f"{name}, obs/{key}", one, known.get(key))
                for key, one in shapes.items()
            }
        )
    if not foreign.has(shapes, "shape"):
        raise ValueError(
            f"{name}: expected observations that are an array or a dict of arrays, got "
            f"{type(shapes).__name__}"
        )
    if foreign.attribute(bounds, "shape", shapes.shape) != shapes.shape:
        raise ValueError(
            f"{name}: expected a fixed shape, {list(bounds.shape)} as its space says, got "
            f"{list(shapes.shape)}"
        )
    integers = np.issubdtype(shapes.dtype, np.integer)
    if integers and foreign.has(bounds, "n"):
        return spaces.Discrete(int(bounds.n), dtype=np.int32)
    ends = np.iinfo(shapes.dtype) if integers else None
    low, high = (-np.inf, np.inf) if ends is None else (ends.min, ends.max)
    dtype: np.dtype = shapes.dtype.type
    said = [
        np.broadcast_to(np.asarray(foreign.attribute(bounds, key, x), dtype), shapes.shape)
        for key, x in (("low", low), ("high", high))
    ]
    return spaces.Box(said[0], said[1], shapes.shape, dtype)
