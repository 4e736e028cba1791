"""Playing with a fixed policy: the evaluator, ``eq.load`` and recorded observations all act through
``Playing``.

``Playing`` keeps what a policy needs from step to step, for each of B streams: the recurrent state,
which ``first`` resets, and the row number, by which noise is drawn. Normalised observations need
nothing: the statistics are buffers of the network. Stacks of frames are the env's: an observation
holds them already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from equipoise import tree
from equipoise.actors.forward.noise import Noise
from equipoise.edge import Reader
from equipoise.envs import observation_spec, space_json
from equipoise.envs.masks import counted
from equipoise.nets import action_dims
from equipoise.nets.precision import autocast
from equipoise.types import Algorithm, Array, EnvSpec, Precision, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPolicy:
    """A network with its algorithm and precision."""

    algorithm: Algorithm
    net: Any  # a module and a ``Network``
    noise: Noise
    precision: Precision = "fp32"


def noise_of(algorithm: Algorithm, net: object, action: gymnasium.Space[object]) -> Noise:
    """The noise of an action: a number a dimension, one for whether to explore if the algorithm
    explores, and the numbers that the algorithm holds.
    """
    explores = bool(tree.leaves(algorithm.explore(np.zeros(1, np.int64), 1, 0)))
    held, every = algorithm.held_noise(net)
    return Noise(action_dims(action) + explores, held, every)


class Playing:
    """A fixed policy in B streams: one call a step."""

    def __init__(
        self,
        policy: FixedPolicy,
        streams: Array,
        *,
        deterministic: bool = True,
        seed: int = 0,
        step: int = 0,
        total_streams: int | None = None,
        row: int = 0,
    ) -> None:
        """``streams`` [B] int64, their numbers among ``total_streams`` (None: as many as there are
        here), from ``row`` on.

        Unless ``deterministic``, actions are drawn as by an actor at this ``step`` of training,
        whose noise has this ``seed``.
        """
        self.policy = policy
        self.streams = np.asarray(streams, np.int64)
        self.deterministic = deterministic
        self._seed, self._step = seed, step
        self._total = len(self.streams) if total_streams is None else total_streams
        self.state: Tree = policy.net.initial_state(len(self.streams))
        self.row = row  # row number of every stream

    def __call__(self, obs: Tree, first: Array, noise: Array | None = None) -> Tree:
        """Choose the actions [B, ...], in the policy's form, for numpy observations [B, ...].

        ``first`` [B] bool: this observation begins an episode. ``noise`` [B, k], uniform in (0, 1):
        in place of the seed's.
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


# ------------------------------------------------------------------------ observations from outside


def reader_of(spec: EnvSpec) -> Reader:
    """Return the judge of observations of the env's space."""
    specs, mask = observation_spec(spec.observation), spec.mask
    found: Tree = tree.zeros(tree.prepend(specs, 1))
    for key in mask:
        found = found[key]
    arrays = counted(tree.path_of("obs", *mask), found, spec.action) if mask else ()
    rows = {
        name: (one.shape, np.dtype(one.dtype)) for name, one in tree.named("obs", specs).items()
    }
    return Reader(_parts(spec.observation), rows, [(name, begins) for name, _, begins in arrays])


def read_rows(spec: EnvSpec, obs: Tree, reader: Reader | None = None) -> tuple[Tree, bool]:
    """Read an observation of the env's space, or a batch of them -> (contiguous arrays [B, ...],
    was it a single one).

    ValueError names what is wrong: another shape, dtype or key, a number that is not finite, a mask
    that allows nothing. ``reader``: the result of ``reader_of``, for a caller that reads again and
    again.
    """
    rows, single = (reader or reader_of(spec)).read(obs)
    return tree.like(observation_spec(spec.observation), rows, "obs"), single


def _parts(space: gymnasium.Space[object]) -> dict[str, object]:
    """A space as JSON, without what is large of a Box."""
    if (inner := tree.branches(space)) is None:
        return {"type": "Box"} if isinstance(space, spaces.Box) else space_json.to_json(space)
    parts = {key: _parts(one) for key, one in inner.items()}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": list(parts.items())}
    return {"type": "Tuple", "spaces": list(parts.values())}
