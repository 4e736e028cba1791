"""Action distributions: a few tensor operations each, no argument checks, noise handed in. Parts of
a joint are independent.

Noise is uniform in (0, 1), float32 [..., k] with k >= ``action_dims(space)``; a head uses its first
columns and the same noise gives the same action however it is batched. Actions are in the env's own
terms. Timings: one CPU thread, 1024 rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from equipoise import tree
from equipoise.types import Tree

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
SQRT2 = math.sqrt(2)
ACTIONS = "Discrete, MultiDiscrete, MultiBinary, Box, and Dict and Tuple of these"
MASKED = -1e9  # a logit
LEAST_VARIANCE = 1e-6  # of noise that is a function of the state, added as in Stable-Baselines3
# float32 noise next to 1 gives 3.74; noise that rounds to 0 or 1 would give infinity
ERFINV_MAX = 4.0


def action_dims(space: spaces.Space[object]) -> int:
    """Columns of noise: 1 of a Discrete, else elements; ValueError for other spaces."""
    if isinstance(space, spaces.Discrete):
        return 1
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return math.prod(space.shape)
    if (inner := tree.branches(space)) is not None:
        return sum(action_dims(one) for one in inner.values())
    raise ValueError(f"action space {space} is not supported; supported are {ACTIONS}")


def taken_by(space: spaces.Space[object]) -> str:
    """The end of a refusal of an action space: the algorithms that take it."""
    own = {
        spaces.Discrete: "dqn and sac take a Discrete, ",
        spaces.Box: "sac and td3 take a Box, ",
    }.get(type(space), "")
    return f"; {own}ppo and impala any of {ACTIONS}"


def noise_of_state(h: Tensor, sigma: Tensor, z: Tensor) -> Tensor:
    """[N, d] sum_j h_j sigma_ji z_ji of h [N, F], sigma [F, d], z [N, F d]: gSDE."""
    return (h.unsqueeze(-1) * (sigma * z.view(-1, *sigma.shape))).sum(-2)


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(12)
# E f(z) of a standard normal z is about the sum of weight f(node)
QUADRATURE = _NODES, _WEIGHTS / _WEIGHTS.sum()


class Distribution(ABC):
    """A distribution over actions for rows [...] (B, or T and B)."""

    __slots__ = ()

    @property
    @abstractmethod
    def dims(self) -> int:
        """Columns of noise that a sample takes."""

    @abstractmethod
    def sample(self, noise: Tensor) -> Tree:
        """noise [..., k] -> action. Box actions are reparametrised; other actions have no
        gradient.
        """

    @abstractmethod
    def sample_and_logp(self, noise: Tensor) -> tuple[Tree, Tensor]:
        """``sample`` and its ``logp`` [...], for less than the two calls."""

    @abstractmethod
    def logp(self, action: Tree) -> Tensor:
        """Log probability or density (Box) -> [...]."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy in nats -> [...]."""

    @abstractmethod
    def mode(self) -> Tree:
        """The likeliest action (of a squashed Gaussian its median, as is the custom)."""

    @abstractmethod
    def kl(self, other: Self) -> Tensor:
        """KL(self || other) -> [...]."""

    @abstractmethod
    def __getitem__(self, rows: slice) -> Self:
        """The distributions of these rows of the first axis, T in an unroll."""


class Categorical(Distribution):
    """A choice among ``start``, ..., ``start + n - 1``; actions int64 [...].

    ``logits`` [n, ...] and ``log_probs`` [n, ...] have the actions FIRST: softmax, sum and gather
    then run over contiguous rows (52 us a sample for n=2 and 68 for n=6, against 99 and 199 with
    the actions last).

    An action that a mask forbids has the logit ``MASKED``: its probability is 0 in float32, and
    since the number is finite so are entropy, divergence and every gradient, also in a row that
    forbids all of them.
    """

    __slots__ = ("_log_probs", "logits", "start")

    def __init__(self, logits: Tensor, start: int = 0) -> None:
        self.logits = logits
        self.start = start
        self._log_probs: Tensor | None = None

    @property
    def dims(self) -> int:
        return 1

    @property
    def log_probs(self) -> Tensor:
        """[n, ...], normalised; computed once, when first asked for."""
        if self._log_probs is None:
            self._log_probs = self.logits.log_softmax(0)
        return self._log_probs

    def sample(self, noise: Tensor) -> Tensor:
        if self.logits.shape[0] == 2:
            return self._shift((self.log_probs[0].exp() < noise[..., 0]).to(torch.int64))
        return self._shift(self._invert(noise).squeeze(0))

    def sample_and_logp(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        if self.logits.shape[0] == 2:  # the same rule, 32 us instead of 52
            logp_0, logp_1 = self.log_probs.unbind(0)
            second = logp_0.exp() < noise[..., 0]
            return self._shift(second.to(torch.int64)), torch.where(second, logp_1, logp_0)
        index = self._invert(noise)
        return self._shift(index.squeeze(0)), self.log_probs.gather(0, index).squeeze(0)

    def _invert(self, noise: Tensor) -> Tensor:
        """[1, ...]: how many partial sums of the probabilities lie below the noise (Devroye 1986,
        III.2).

        Noise is scaled by the last sum, which rounding moves off 1: so an action is never out of
        range, nor one after which all have probability zero. (Gumbel's trick costs the same here
        and needs n columns of noise.)
        """
        cdf = self.log_probs.exp().cumsum(0)
        return (cdf < noise[..., 0] * cdf[-1]).sum(0, keepdim=True)

    def _shift(self, index: Tensor) -> Tensor:
        return index + self.start if self.start else index

    def logp(self, action: Tensor) -> Tensor:
        index = action - self.start if self.start else action
        return self.log_probs.gather(0, index.unsqueeze(0)).squeeze(0)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(0)

    def mode(self) -> Tensor:
        return self._shift(self.logits.argmax(0))

    def kl(self, other: Self) -> Tensor:
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(0)

    def __getitem__(self, rows: slice) -> Self:
        return type(self)(self.logits[:, rows], self.start)


class DiagonalGaussian(Distribution):
    """Independent normals, unbounded (the env's adapter clips); actions float32 [..., *shape].

    ``mean`` [..., d] and ``log_std`` [d] or [..., d], d the product of ``shape``. Samples by the
    inverse CDF, ndtri(u) = sqrt(2) erfinv(2u - 1), since torch's erfinv is vectorised and its ndtri
    is not (35 us against 117, d=6).

    ``by_state``: (h [N, F], sigma [F, d]) if the noise is a function of the state (gSDE,
    ``nets/actor.py``): samples are mean + h theta, theta_ji ~ N(0, sigma_ji^2) of the last F d
    columns of noise. ``log_std`` is then of that sum.
    """

    __slots__ = ("by_state", "log_std", "mean", "shape")

    def __init__(self, mean: Tensor, log_std: Tensor, shape: tuple[int, ...]) -> None:
        self.mean = mean
        self.log_std = log_std
        self.shape = shape
        self.by_state: tuple[Tensor, Tensor] | None = None

    @property
    def dims(self) -> int:
        return self.mean.shape[-1]

    def _erfinv(self, noise: Tensor) -> Tensor:
        """[..., d], a standard normal over sqrt(2)."""
        if self.by_state is not None:
            h, sigma = self.by_state
            z = torch.erfinv(noise[..., -sigma.numel() :] * 2 - 1).clamp_(-ERFINV_MAX, ERFINV_MAX)
            return noise_of_state(h, sigma, z) * (-self.log_std).exp()
        uniform = noise[..., : self.mean.shape[-1]]
        return torch.erfinv(uniform * 2 - 1).clamp_(-ERFINV_MAX, ERFINV_MAX)

    def _place(self, erfinv: Tensor) -> Tensor:
        return self._shape(torch.addcmul(self.mean, erfinv, self.log_std.exp() * SQRT2))

    def _shape(self, flat: Tensor) -> Tensor:
        return flat if len(self.shape) == 1 else flat.reshape(*flat.shape[:-1], *self.shape)

    def _log_scale(self) -> Tensor:
        """[] or [...] the log of the density at the mean, negated."""
        log_stds = self.log_std.sum() if self.log_std.ndim == 1 else self.log_std.sum(-1)
        return log_stds + self.mean.shape[-1] * HALF_LOG_2PI

    def sample(self, noise: Tensor) -> Tensor:
        return self._place(self._erfinv(noise))

    def sample_and_logp(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        erfinv = self._erfinv(noise)
        return self._place(erfinv), -erfinv.square().sum(-1) - self._log_scale()

    def logp(self, action: Tensor) -> Tensor:
        flat = action if len(self.shape) == 1 else action.reshape(self.mean.shape)
        z = (flat - self.mean) * (-self.log_std).exp()
        return -0.5 * z.square().sum(-1) - self._log_scale()

    def entropy(self) -> Tensor:
        return (self._log_scale() + 0.5 * self.mean.shape[-1]).expand(self.mean.shape[:-1])

    def mode(self) -> Tensor:
        return self._shape(self.mean)

    def kl(self, other: Self) -> Tensor:
        log_ratio = self.log_std - other.log_std
        z = (self.mean - other.mean) * (-other.log_std).exp()
        return (0.5 * ((2 * log_ratio).exp() - 1 + z.square()) - log_ratio).sum(-1)

    def __getitem__(self, rows: slice) -> Self:
        return type(self)(self.mean[rows], self._log_std_of(rows), self.shape)

    def _log_std_of(self, rows: slice) -> Tensor:
        return self.log_std if self.log_std.ndim == 1 else self.log_std[rows]


class SquashedGaussian(DiagonalGaussian):
    """A ``DiagonalGaussian`` x bent into a Box by tanh: a = low + (high - low) (1 + tanh x) / 2,
    [..., *shape].

    The density (Haarnoja et al. 2018, arXiv:1801.01290, appendix C) is computed from the action
    alone, when sampling and when learning, and from its distances to the two bounds, which floats
    hold exactly even next to them:

        x = (log(a - low) - log(high - a)) / 2        log |da/dx| = log 2 (a - low) (high - a) / (high - low)

    An action that rounding puts on a bound counts as half a rounding error away from it. The
    entropy has no closed form; it is the Gaussian's plus E log |da/dx|, estimated by Gauss-Hermite
    quadrature at 12 points: off by less than 1e-4 nats a dimension for standard deviations up to 1,
    0.01 up to 2, 0.05 up to 3 (means from -4 to 4).

    ``low``, ``high`` and ``least`` are [d]; ``least`` is that half of a rounding error.
    """  # noqa: E501

    __slots__ = ("high", "least", "low")

    def __init__(
        self,
        mean: Tensor,
        log_std: Tensor,
        shape: tuple[int, ...],
        *,
        low: Tensor,
        high: Tensor,
        least: Tensor,
    ) -> None:
        super().__init__(mean, log_std, shape)
        self.low, self.high, self.least = low, high, least

    def _place(self, erfinv: Tensor) -> Tensor:
        return self._bend(torch.addcmul(self.mean, erfinv, self.log_std.exp() * SQRT2))

    def _bend(self, x: Tensor) -> Tensor:
        a = torch.addcmul(self.low, self.high - self.low, (2 * x).sigmoid())
        return self._shape(torch.maximum(torch.minimum(a, self.high), self.low))

    def sample_and_logp(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        action = self.sample(noise)
        return action, self.logp(action)

    def logp(self, action: Tensor) -> Tensor:
        flat = action if len(self.shape) == 1 else action.reshape(self.mean.shape)
        below, above = (
            torch.maximum(d, self.least).log() for d in (flat - self.low, self.high - flat)
        )
        z = (0.5 * (below - above) - self.mean) * (-self.log_std).exp()
        slope = below + above - (0.5 * (self.high - self.low)).log()
        return -(0.5 * z.square() + slope).sum(-1) - self._log_scale()

    def entropy(self) -> Tensor:
        nodes, weights = (
            torch.tensor(x, dtype=self.mean.dtype, device=self.mean.device) for x in QUADRATURE
        )
        x = self.mean.unsqueeze(-1) + self.log_std.exp().unsqueeze(-1) * nodes
        # minus the log of the slope, without the scale
        bend = ((F.softplus(2 * x) + F.softplus(-2 * x)) * weights).sum(-1)
        return super().entropy() + ((2 * (self.high - self.low)).log() - bend).sum(-1)

    def mode(self) -> Tensor:
        return self._bend(self.mean)

    def __getitem__(self, rows: slice) -> Self:
        return type(self)(
            self.mean[rows],
            self._log_std_of(rows),
            self.shape,
            low=self.low,
            high=self.high,
            least=self.least,
        )


class MultiCategorical(Distribution):
    """Independent choices, as many as ``shape`` has elements; actions int64 [..., *shape].

    ``logits`` [n, k, ...]: n is the most values that one of the k choices has, choices with fewer
    are filled up with ``MASKED``. ``start`` [k] int64 is their first values, None if all are 0.
    """

    __slots__ = ("_choices", "shape", "start")

    def __init__(self, logits: Tensor, start: Tensor | None, shape: tuple[int, ...]) -> None:
        self._choices = Categorical(logits)
        self.start, self.shape = start, shape

    @property
    def logits(self) -> Tensor:
        return self._choices.logits

    @property
    def dims(self) -> int:
        return self.logits.shape[1]

    def sample(self, noise: Tensor) -> Tensor:
        return self._last(self._choices.sample(first(noise, self.dims).unsqueeze(-1)))

    def sample_and_logp(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        index, logp = self._choices.sample_and_logp(first(noise, self.dims).unsqueeze(-1))
        return self._last(index), logp.sum(0)

    def _last(self, index: Tensor) -> Tensor:
        action = index.movedim(0, -1)
        action = action if self.start is None else action + self.start
        return action.reshape(*index.shape[1:], *self.shape)

    def logp(self, action: Tensor) -> Tensor:
        flat = action.reshape(*self.logits.shape[2:], self.dims)
        index = flat if self.start is None else flat - self.start
        return self._choices.logp(index.movedim(-1, 0)).sum(0)

    def entropy(self) -> Tensor:
        return self._choices.entropy().sum(0)

    def mode(self) -> Tensor:
        return self._last(self._choices.mode())

    def kl(self, other: Self) -> Tensor:
        return self._choices.kl(other._choices).sum(0)

    def __getitem__(self, rows: slice) -> Self:
        return type(self)(self.logits[:, :, rows], self.start, self.shape)


class Bernoulli(Distribution):
    """Independent coins of ``shape``; actions int8 [..., *shape], by ``logits`` [k, ...]."""

    __slots__ = ("logits", "shape")

    def __init__(self, logits: Tensor, shape: tuple[int, ...]) -> None:
        self.logits, self.shape = logits, shape

    @property
    def dims(self) -> int:
        return self.logits.shape[0]

    def sample(self, noise: Tensor) -> Tensor:
        return self._last(torch.sigmoid(-self.logits) < first(noise, self.dims))

    def sample_and_logp(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        action = self.sample(noise)
        return action, self.logp(action)

    def _last(self, ones: Tensor) -> Tensor:
        return ones.to(torch.int8).movedim(0, -1).reshape(*ones.shape[1:], *self.shape)

    def logp(self, action: Tensor) -> Tensor:
        ones = action.reshape(*self.logits.shape[1:], self.dims).movedim(-1, 0) != 0
        return F.logsigmoid(torch.where(ones, self.logits, -self.logits)).sum(0)

    def entropy(self) -> Tensor:
        return (F.softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(0)

    def mode(self) -> Tensor:
        return self._last(self.logits > 0)

    def kl(self, other: Self) -> Tensor:
        one, zero = (
            F.logsigmoid(sign * self.logits) - F.logsigmoid(sign * other.logits) for sign in (1, -1)
        )
        p = self.logits.sigmoid()
        return (p * one + (1 - p) * zero).sum(0)

    def __getitem__(self, rows: slice) -> Self:
        return type(self)(self.logits[:, rows], self.shape)


def first(noise: Tensor, k: int) -> Tensor:
    """Return the first columns [..., k] of the noise as rows [k, ...]."""
    return noise[..., :k].movedim(-1, 0)
