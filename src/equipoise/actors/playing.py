"""Playing with a fixed policy: the evaluator, ``eq.load`` and recorded observations all act through ``Playing``.

``Playing`` keeps what a policy needs from step to step, for each of B streams: the recurrent state, which ``first`` resets,
and the row number, by which noise is drawn. Normalised observations need nothing: the statistics are buffers of the network.
Stacks of frames are the env's: an observation holds them already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch

from equipoise import tree
from equipoise.actors.forward.noise import Noise
from equipoise.envs import observation_spec
from equipoise.envs.masks import counted
from equipoise.envs.spaces import member
from equipoise.envs.values import described
from equipoise.nets import action_dims
from equipoise.nets.precision import autocast
from equipoise.types import Algorithm, Array, EnvSpec, Precision, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPolicy:
    """A network with its algorithm and precision."""

    algorithm: Algorithm
    net: Any
    noise: Noise
    precision: Precision = "fp32"


def noise_of(algorithm: Algorithm, net: Any, action: gymnasium.Space[Any]) -> Noise:
    """The noise of an action: a number a dimension, one for whether to explore where the algorithm does, and those it holds."""
    explores = bool(tree.leaves(algorithm.explore(np.zeros(1, np.int64), 1, 0)))
    held, every = algorithm.held_noise(net)
    return Noise(action_dims(action) + explores, held, every)


class Playing:
    """A fixed policy in B streams: one call a step."""

    def __init__(
        self, policy: FixedPolicy, streams: Array, *, deterministic: bool = True, seed: int = 0, step: int = 0,
        total_streams: int | None = None, row: int = 0,
    ) -> None:  # fmt: skip
        """``streams`` [B] int64, their numbers among ``total_streams`` (None: as many as there are here), from ``row`` on.

        Unless ``deterministic``, actions are drawn as by an actor at this ``step`` of training, whose noise has this ``seed``.
        """
        self.policy, self.streams, self.deterministic = policy, np.asarray(streams, np.int64), deterministic
        self._seed, self._step = seed, step
        self._total = len(self.streams) if total_streams is None else total_streams
        self.state: Tree = policy.net.initial_state(len(self.streams))
        self.row = row  # row number of every stream

    def __call__(self, obs: Tree, first: Array, noise: Array | None = None) -> Tree:
        """Choose the actions [B, ...], in the policy's form, for numpy observations [B, ...].

        ``first`` [B] bool: this observation begins an episode. ``noise`` [B, k], uniform in (0, 1): in place of the seed's.
        """
        algorithm, net = self.policy.algorithm, self.policy.net
        rows, begins = tree.torch_views(obs), torch.from_numpy(first)
        with torch.inference_mode(), autocast(self.policy.precision):
            if self.deterministic:
                action, self.state = algorithm.best(net, rows, begins, self.state)
            else:
                if noise is None:
                    start = np.full(len(self.streams), self.row)
                    noise = self.policy.noise.draw(self._seed, self.streams, start, 1)[0]
                explore = algorithm.explore(self.streams, self._total, self._step)
                action, _, self.state = algorithm.act(
                    net, rows, begins, self.state, explore=explore, noise=torch.from_numpy(noise)
                )
        self.row += 1
        return tree.numpy_views(action)


# ------------------------------------------------------------------------------------------ observations from outside


def read_rows(spec: EnvSpec, obs: Any) -> tuple[Tree, bool]:
    """Read an observation of the env's space, or a batch of them -> (contiguous arrays [B, ...], was it a single one).

    ValueError says where it is none, and which row's mask allows no action.
    """
    specs = observation_spec(spec.observation)
    rows = _arrays(specs, obs, "obs")
    single = _is_single(specs, rows)
    batch = tree.map(lambda x: np.ascontiguousarray(x[None] if single else x), rows)
    check_masks(spec, batch)
    return batch, single


def check_masks(spec: EnvSpec, batch: Tree) -> None:
    """ValueError for the first row whose mask allows no action."""
    if not spec.mask:
        return
    mask = batch
    for key in spec.mask:
        mask = mask[key]
    for place, array, begins in counted("/".join(("obs", *spec.mask)), mask, spec.action):
        allowed = np.logical_or.reduceat(array != 0, begins, axis=1).all(axis=1)
        if not allowed.all():
            row = f" in row {int(allowed.argmin())}" if len(array) > 1 else ""
            raise ValueError(f"{place}: expected at least one action allowed, got none{row}")


def _arrays(specs: Tree, obs: Any, place: str) -> Tree:
    """An env's own dicts and tuples as a tree of arrays."""
    if not isinstance(specs, dict):
        try:
            return np.asarray(obs, specs.dtype)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{place}: expected {specs.dtype} {list(specs.shape)}, got {described(obs)}") from error
    try:
        return {key: _arrays(inner, member(obs, key), f"{place}/{key}") for key, inner in specs.items()}
    except (KeyError, IndexError, TypeError) as error:
        got = f"the keys {sorted(map(str, obs))}" if isinstance(obs, Mapping) else type(obs).__name__
        raise ValueError(f"{place}: expected the keys {sorted(specs)}, got {got}") from error


def _is_single(specs: Tree, rows: Tree) -> bool:
    both = list(zip(tree.leaves(specs), tree.leaves(rows), strict=True))
    if all(x.shape == s.shape for s, x in both):
        return True
    fits = all(x.ndim == len(s.shape) + 1 and x.shape[1:] == s.shape for s, x in both)
    if not fits or len(counts := {len(x) for _, x in both}) > 1 or not min(counts):
        wanted, got = ({path or "obs": list(x.shape) for path, x in tree.items(one)} for one in (specs, rows))
        raise ValueError(f"expected an observation of shape {_said(wanted)}, or a batch [B, ...] of them, got {_said(got)}")
    return False


def _said(shapes: Mapping[str, list[int]]) -> str:
    """One shape as it is; several by their place."""
    return str(next(iter(shapes.values()))) if len(shapes) == 1 else str(dict(shapes))
