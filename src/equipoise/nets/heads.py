"""Heads: from the outputs of one linear layer to a distribution over any action space, without the
actions that a mask forbids.

A head has its slice of the layer's outputs; ``y`` is [size, N] (outputs first, ``torso.columns``),
``rows`` the shape that N stands for: B, or T and B.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise import tree
from equipoise.nets.distributions import (
    ACTIONS,
    LEAST_VARIANCE,
    MASKED,
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
)
from equipoise.nets.joint import Joint
from equipoise.types import Array, EnvSpec, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOptions:
    """How a policy's head starts, how it draws Box actions, and how many values stand beside it."""

    gain: float = 0.01  # of its first weights: near uniform
    squash: bool = False  # bends Box actions into their bounds
    # at first, one for each dimension of a Box, independent of the observation
    log_std: float = 0.0
    # The noise of Box actions is a linear function of what the head reads (gSDE), into which no
    # gradient flows from there, and ``log_std`` [features, d] is of its weights.
    by_state: bool = False
    values: int = 1  # outputs of the value


PLAIN = HeadOptions()


class Head(ABC):
    """``size`` outputs from ``at`` on, and ``stds`` entries of log_std from ``std_at`` on."""

    size: int
    stds: int = 0

    def __init__(self, at: int, std_at: int) -> None:
        self.at, self.std_at = at, std_at

    @abstractmethod
    def __call__(
        self, y: Tensor, log_std: Tensor | None, rows: torch.Size, mask: Tree | None
    ) -> Distribution:
        """``mask`` [*rows, ...] as in ``envs.masks``, None: everything is allowed."""


class DiscreteHead(Head):
    def __init__(self, space: spaces.Discrete, at: int, std_at: int) -> None:
        super().__init__(at, std_at)
        self.size, self.start = int(space.n), int(space.start)

    def __call__(
        self, y: Tensor, log_std: Tensor | None, rows: torch.Size, mask: Tree | None
    ) -> Distribution:
        logits = part(y, self.at, self.size)
        if mask is not None:
            logits = masked(logits, mask)
        return Categorical(logits if len(rows) == 1 else logits.view(-1, *rows), self.start)


class MultiDiscreteHead(Head):
    """Logits of k choices in a row; ``index`` lays unequal counts out as [n, k]."""

    def __init__(self, space: spaces.MultiDiscrete, at: int, std_at: int) -> None:
        super().__init__(at, std_at)
        counts = space.nvec.reshape(-1).astype(np.int64)
        self.size, self.most, self.shape = int(counts.sum()), int(counts.max()), tuple(space.shape)
        n, begins = np.arange(self.most)[:, None], np.cumsum([0, *counts[:-1]])
        self.even = bool((counts == self.most).all())
        # the last output is MASKED
        self.index = Constant(np.where(n < counts, begins + n, self.size).reshape(-1))
        self.start = (
            Constant(space.start.reshape(-1).astype(np.int64)) if space.start.any() else None
        )

    def __call__(
        self, y: Tensor, log_std: Tensor | None, rows: torch.Size, mask: Tree | None
    ) -> Distribution:
        logits = part(y, self.at, self.size)
        if mask is not None:
            logits = masked(
                logits,
                torch.cat([mask[key] for key in mask], -1) if isinstance(mask, dict) else mask,
            )
        if self.even:
            laid = logits.view(-1, self.most, logits.shape[-1]).transpose(0, 1)
        else:
            filled = torch.cat([logits, logits.new_full((1, logits.shape[-1]), MASKED)])
            laid = filled.index_select(0, self.index.on(y.device)).view(
                self.most, -1, logits.shape[-1]
            )
        start = None if self.start is None else self.start.on(y.device)
        return MultiCategorical(laid.reshape(*laid.shape[:2], *rows), start, self.shape)


class MultiBinaryHead(Head):
    def __init__(self, space: spaces.MultiBinary, at: int, std_at: int) -> None:
        super().__init__(at, std_at)
        self.size, self.shape = int(np.prod(space.shape)), tuple(space.shape)

    def __call__(
        self, y: Tensor, log_std: Tensor | None, rows: torch.Size, mask: Tree | None
    ) -> Distribution:
        return Bernoulli(part(y, self.at, self.size).view(-1, *rows), self.shape)


class BoxHead(Head):
    """Means are outputs, deviations are parameters; ``squash`` bends samples into the bounds."""

    def __init__(
        self, space: spaces.Box, at: int, std_at: int, *, squash: bool, place: str
    ) -> None:
        super().__init__(at, std_at)
        self.size = self.stds = int(np.prod(space.shape))
        self.shape = tuple(space.shape)
        self.bounds: tuple[Constant, Constant, Constant] | None = None
        if not squash:
            return
        low, high = finite(space, "algorithm.squash", place, "use algorithm.squash=false, or ")
        self.bounds = Constant(low), Constant(high), Constant(least_distance(low, high))

    def __call__(
        self, y: Tensor, log_std: Tensor | None, rows: torch.Size, mask: Tree | None
    ) -> Distribution:
        assert log_std is not None
        mean = part(y, self.at, self.size).t().reshape(*rows, -1)
        return self._made(mean, part(log_std, self.std_at, self.stds))

    def by_state(self, y: Tensor, h: Tensor, log_std: Tensor, rows: torch.Size) -> Distribution:
        """gSDE: noise is a linear function of h [N, F] by weights of ``log_std`` [F, size]."""
        variance = h.square() @ (2 * log_std).exp()
        made = self._made(
            y.t().reshape(*rows, -1), (0.5 * (variance + LEAST_VARIANCE).log()).view(*rows, -1)
        )
        made.by_state = h, log_std.exp()
        return made

    def _made(self, mean: Tensor, log_std: Tensor) -> DiagonalGaussian:
        if self.bounds is None:
            return DiagonalGaussian(mean, log_std, self.shape)
        low, high, least = (bound.on(mean.device) for bound in self.bounds)
        return SquashedGaussian(mean, log_std, self.shape, low=low, high=high, least=least)


def least_distance(low: Array, high: Array) -> Array:
    """[d] float32, half a rounding error of numbers as large as the bounds of a Box."""
    return np.maximum(np.abs(low), np.abs(high)) * np.float32(2.0**-24)


def finite(space: spaces.Box, who: str, place: str, instead: str) -> tuple[Array, Array]:
    """[d] float32, the bounds of a Box, flat; ValueError, in the name of ``who``, if a bound is
    infinite.

    ``instead``: another way that may help.
    """
    low, high = (np.asarray(bound, np.float32).reshape(-1) for bound in (space.low, space.high))
    wrong = ~(np.isfinite(low) & np.isfinite(high) & np.isfinite(high - low) & (low < high))
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(
            f"{who}: expected finite bounds with low < high for {place}, got low {low[i]} and high "
            f"{high[i]} in "
            f"dimension {i}; {instead}say what the bounds are, in a function of yours that returns "
            "gymnasium.wrappers.TransformAction(env, lambda action: action, "
            "gymnasium.spaces.Box(low, high)) with arrays of "
            "finite bounds"
        )
    return low, high


class JointHead(Head):
    def __init__(self, parts: dict[str, Head], at: int, std_at: int) -> None:
        super().__init__(at, std_at)
        self.parts = parts
        self.size = sum(one.size for one in parts.values())
        self.stds = sum(one.stds for one in parts.values())

    def __call__(
        self, y: Tensor, log_std: Tensor | None, rows: torch.Size, mask: Tree | None
    ) -> Distribution:
        given = mask or {}
        made = {key: one(y, log_std, rows, given.get(key)) for key, one in self.parts.items()}
        return Joint(
            {key: one.parts if isinstance(one, Joint) else one for key, one in made.items()}
        )


def head(
    space: spaces.Space[object],
    *,
    squash: bool = False,
    at: int = 0,
    std_at: int = 0,
    place: str = "action",
) -> Head:
    """The head of an action space; ValueError for a space or a bound that does not work."""
    if isinstance(space, spaces.Discrete):
        return DiscreteHead(space, at, std_at)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscreteHead(space, at, std_at)
    if isinstance(space, spaces.MultiBinary):
        return MultiBinaryHead(space, at, std_at)
    if isinstance(space, spaces.Box):
        return BoxHead(space, at, std_at, squash=squash, place=place)
    if (inner := tree.branches(space)) is None:
        raise ValueError(
            f"action space {space} at {place} is not supported; supported are {ACTIONS}"
        )
    parts: dict[str, Head] = {}
    begins = at, std_at
    for key, one in inner.items():
        parts[key] = head(one, squash=squash, at=at, std_at=std_at, place=f"{place}/{key}")
        at, std_at = at + parts[key].size, std_at + parts[key].stds
    return JointHead(parts, *begins)


def part(x: Tensor, at: int, size: int) -> Tensor:
    """Return rows ``at`` to ``at + size``; ``x`` itself if that is all of them."""
    return x if size == x.shape[0] else x[at : at + size]


def masked(logits: Tensor, mask: Tensor) -> Tensor:
    """[n, N] with ``MASKED`` if the mask [*rows, ...] of n numbers a row is 0."""
    allowed = mask.reshape(logits.shape[1], logits.shape[0]).t() != 0
    return torch.where(allowed, logits, MASKED)


class Constant:
    """An array as a tensor on any device, cached there; neither published nor saved."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self._on: dict[torch.device, Tensor] = {}

    def __getstate__(self) -> np.ndarray:
        return self._array

    def __setstate__(self, array: np.ndarray) -> None:
        self._array, self._on = array, {}

    def on(self, device: torch.device) -> Tensor:
        if device not in self._on:
            with torch.inference_mode(False):  # kept, and also used with gradients
                self._on[device] = torch.as_tensor(self._array, device=device)
        return self._on[device]


def seen(spec: EnvSpec) -> tuple[spaces.Space[object], tuple[str, ...]]:
    """The observation space without the mask, and the keys that lead to it."""
    space, keys = spec.observation, list[str]()
    if not spec.mask:
        return space, ()
    space = without(space, spec.mask)
    # such as {"obs": ..., "action_mask": ...}
    while isinstance(space, spaces.Dict) and len(space.spaces) == 1:
        ((key, space),) = space.spaces.items()
        keys.append(key)
    if not tree.branches(space) and isinstance(space, spaces.Dict):
        raise ValueError(
            f"observation space {spec.observation}: must have another part besides the mask, got "
            "the mask alone"
        )
    return space, tuple(keys)


def without(space: spaces.Space[object], path: tuple[str, ...]) -> spaces.Dict:
    """A Dict space without the part at ``path``."""
    rest = OrderedDict(tree.branches(space) or {})
    inner = rest.pop(path[0])
    if len(path) > 1 and (kept := without(inner, path[1:])).spaces:
        rest[path[0]] = kept
    return spaces.Dict(rest)


def at(obs: Tree, path: tuple[str, ...]) -> Tree:
    for key in path:
        obs = obs[key]
    return obs
