"""From observations to features: ``encode`` makes rows of floats, ``MLP`` maps rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from equipoise import tree
from equipoise.nets.activations import ACTIVATIONS
from equipoise.private.torch import constant_when_compiled, parameters
from equipoise.types import Tree

OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"


def encoded_size(space: spaces.Space[object]) -> int:
    """F, the width of what ``encode`` returns; ValueError if the space is not supported."""
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return math.prod(space.shape)
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if (inner := tree.branches(space)) is not None:
        return sum(encoded_size(one) for one in inner.values())
    raise ValueError(f"observation space {space} is not supported; supported are {OBSERVATIONS}")


def encode(space: spaces.Space[object], obs: Tree) -> Tensor:
    """Observations as float32 features.

    ``obs`` [..., *space.shape] (a dict of such arrays for Dict and Tuple) -> [..., F]. Box and
    MultiBinary: cast and flattened; a picture (bytes of rank 2 or more) is also scaled to 0 .. 1,
    as a CNN does. Discrete and each part of a MultiDiscrete: one-hot from ``start`` (all zeros for
    a value outside). Dict: its parts concatenated in sorted key order; Tuple: in its own.
    """
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        rank = len(space.shape)
        if rank > 1 and not encoded_size(space):  # onnxruntime reshapes no array without elements
            obs = obs.sum(tuple(range(-rank, 0))).unsqueeze(-1)[..., :0]
        elif rank != 1:
            obs = obs.reshape(*obs.shape[: obs.ndim - rank], encoded_size(space))
        x = obs.to(torch.float32)
        if rank > 1 and space.dtype == np.uint8 and (scale := scale_of(space)) != 1.0:
            x = x * scale
        return x  # type: ignore[no-any-return]
    if isinstance(space, spaces.Discrete):
        values = torch.arange(int(space.start), int(space.start + space.n), device=obs.device)
        return torch.eq(obs.to(torch.int64).unsqueeze(-1), values).to(torch.float32)
    if isinstance(space, spaces.MultiDiscrete):
        part, value = _one_hot(
            tuple(space.nvec.ravel().tolist()), tuple(space.start.ravel().tolist()), obs.device
        )
        flat = obs.reshape(*obs.shape[: obs.ndim - len(space.shape)], space.nvec.size).to(
            torch.int64
        )
        return torch.eq(flat.index_select(-1, part), value).to(torch.float32)
    if (inner := tree.branches(space)) is not None:
        return torch.cat([encode(inner[key], obs[key]) for key in ordered(space, inner)], -1)
    raise ValueError(f"observation space {space} is not supported; supported are {OBSERVATIONS}")


@constant_when_compiled
def scale_of(space: spaces.Space[object]) -> float:
    """The factor that scales an image's integers to 0 .. 1."""
    assert isinstance(space, spaces.Box)
    return 1.0 / max(float(space.high.max(initial=0)), 1.0)


def ordered(space: spaces.Space[object], inner: Collection[str]) -> list[str]:
    """The order in which the parts of a Dict or of a Tuple follow each other."""
    return sorted(inner) if isinstance(space, spaces.Dict) else list(inner)


@functools.lru_cache(maxsize=256)
def _one_hot(
    counts: tuple[int, ...], starts: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Two arrays [F]: the part that each feature belongs to, and the value that it stands for."""
    with torch.inference_mode(False):  # kept, and also used with gradients
        part = torch.arange(len(counts), device=device).repeat_interleave(
            torch.tensor(counts, device=device)
        )
        values = [
            torch.arange(start, start + n, device=device)
            for start, n in zip(starts, counts, strict=True)
        ]
        return part, torch.cat(values)


def measured(space: spaces.Space[object]) -> list[bool]:
    """[F] bool: the columns of ``encode`` that a running norm covers: numbers of a Box."""
    if (inner := tree.branches(space)) is not None:
        return [column for key in ordered(space, inner) for column in measured(inner[key])]
    return [isinstance(space, spaces.Box)] * encoded_size(space)


def linear(size_in: int, size_out: int, gain: float, *, bias: bool = True) -> nn.Linear:
    """A layer with orthogonal weights (Saxe et al. 2014) times ``gain``, and bias 0 if any."""
    layer = nn.Linear(size_in, size_out, bias=bias)
    nn.init.orthogonal_(layer.weight, gain)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def columns(layer: nn.Linear, x: Tensor) -> Tensor:
    """``layer(x)`` with the features first: [N, F] -> [out, N].

    A head of few outputs is cheaper so: at [1024, 64] -> 2, the product and all that is then done
    over the outputs (softmax, sum, gather run over contiguous rows of N) take about half of the
    time of the usual layout.
    """
    weight, bias = _weight_and_bias(layer)
    return torch.addmm(bias.unsqueeze(1), weight, x.t())


def _weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor]:
    mine = parameters(layer)
    return mine["weight"], mine["bias"]


class MLP(nn.Module):
    """Hidden layers only, each followed by the activation: [N, size] -> [N, ``size_out``].
    ``hidden=()`` is the identity.

    Orthogonal weights with gain sqrt(2), biases 0 (CleanRL; Huang et al. 2022, "The 37
    implementation details of PPO", 2).
    """

    def __init__(
        self, size: int, hidden: Sequence[int] = (64, 64), activation: str = "tanh"
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation {activation!r} is unknown; known are {', '.join(ACTIVATIONS)}"
            )
        sizes = (size, *hidden)
        self.layers = nn.ModuleList(linear(a, b, math.sqrt(2)) for a, b in pairwise(sizes))
        self.activation = activation
        self.size_out = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        activate = ACTIVATIONS[self.activation]
        for layer in self.layers:
            x = activate(F.linear(x, *_weight_and_bias(layer)))
        return x
