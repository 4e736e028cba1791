"""Actors without a value: a squashed Gaussian (with noise of a row's own, or of a function of the
state) or one point of a Box, a categorical of a Discrete.

A continuous actor's actions lie between -1 and 1, whatever the bounds of the env are; ``Bounds``
translates. So a target entropy, a noise and a critic's input mean the same in every env.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from equipoise.nets.distributions import (
    ERFINV_MAX,
    HALF_LOG_2PI,
    LEAST_VARIANCE,
    MASKED,
    SQRT2,
    SquashedGaussian,
    noise_of_state,
    taken_by,
)
from equipoise.nets.features import Features
from equipoise.nets.heads import Constant, finite, least_distance
from equipoise.nets.precision import exact
from equipoise.nets.q import discrete
from equipoise.nets.renorm import RenormMLP
from equipoise.nets.torso import MLP, linear
from equipoise.types import EnvSpec, Tree

LOG_STD = -20.0, 2.0  # Haarnoja et al. 2018, their code
NEXT_TO_BOUND = 1e-6  # of -1 .. 1: the way there and back may be off by that
FARTHEST_MEAN = 2.0  # of gSDE: Stable-Baselines3
GAIN = (
    # gain of the last layer: the first actions are near the middle, the first distributions nearly
    # as wide as they can be
    0.01
)

# makes hidden layers of (size in, sizes, activation)
Body = Callable[[int, Sequence[int], str], MLP | RenormMLP]


class Bounds:
    """A Box of finite bounds as -1 .. 1 in ``size`` dimensions; ValueError for other spaces."""

    def __init__(self, space: spaces.Space[object], who: str) -> None:
        if not isinstance(space, spaces.Box):
            raise ValueError(f"action space: {who} expected a Box, got {space}{taken_by(space)}")
        low, high = finite(
            space, who, "action", "take an algorithm without bounds, such as ppo, or "
        )
        self.shape, self.size = tuple(space.shape), len(low)
        self._low, self._high = Constant(low), Constant(high)
        self._least = Constant(least_distance(low, high))
        self._middle, self._half = Constant(low + (high - low) / 2), Constant((high - low) / 2)

    def to_env(self, x: Tensor) -> Tensor:
        """x [N, size] from -1 to 1 -> [N, *shape], within the bounds to the last bit."""
        low, high, middle, half = (
            one.on(x.device) for one in (self._low, self._high, self._middle, self._half)
        )
        return torch.addcmul(middle, half, x).maximum(low).minimum(high).view(-1, *self.shape)

    def squashed(self, mean: Tensor, log_std: Tensor) -> SquashedGaussian:
        """The distribution of ``to_env(tanh(x))`` for x ~ N(mean, std), each [N, size]."""
        low, high, least = (one.on(mean.device) for one in (self._low, self._high, self._least))
        return SquashedGaussian(mean, log_std, self.shape, low=low, high=high, least=least)

    def clipped_logp(self, mean: Tensor, std: float, action: Tensor) -> Tensor:
        """[N] logp of ``to_env(clip(x))``, x ~ N(mean [N, size], std); the tail's at a bound."""
        x, half = self.from_env(action), self._half.on(mean.device)
        within = -0.5 * ((x - mean) / std).square() - math.log(std) - HALF_LOG_2PI - half.log()
        # at x = 1 P(X > 1), at x = -1 P(X < -1)
        tail = torch.special.log_ndtr((x * mean - 1.0) / std)
        return torch.where(x.abs() > 1.0 - NEXT_TO_BOUND, tail, within).sum(-1)

    def log_volume(self, like: Tensor) -> Tensor:
        """[] the logarithm of the Box's volume."""
        return (self._high.on(like.device) - self._low.on(like.device)).log().sum()

    def from_env(self, action: Tensor) -> Tensor:
        """[N, *shape] -> [N, size] from -1 to 1. An action beyond a bound counts as the bound."""
        flat = action.reshape(-1, self.size)
        return ((flat - self._middle.on(flat.device)) / self._half.on(flat.device)).clamp(-1.0, 1.0)


def normal(noise: Tensor) -> Tensor:
    """Standard normal numbers of uniform ones in (0, 1), by the inverse distribution."""
    return torch.erfinv(noise * 2 - 1).clamp(-ERFINV_MAX, ERFINV_MAX) * SQRT2


class Actor(Features):
    """Torso, hidden layers made by ``body`` (also after a torso for images), linear head."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden: Sequence[int],
        activation: str,
        torso: str,
        outputs: int,
        body: Body = MLP,
    ) -> None:
        super().__init__(spec, hidden=(), activation=activation, torso=torso)
        self.body = body(self.size_out, hidden, activation)
        self.head = linear(self.body.size_out, outputs, GAIN)

    def latent(self, obs: Tree) -> Tensor:
        """The last hidden layer [N, ...] float32, which the head reads."""
        return self.body(self.features(obs)).float()  # type: ignore[no-any-return]

    def outputs(self, obs: Tree) -> Tensor:
        """obs [N, ...] -> [N, outputs] float32."""
        x = self.latent(obs)
        with exact(x.device):
            return self.head(x)  # type: ignore[no-any-return]


class DeterministicActor(Actor):
    """mu(s) = tanh(head), [N, size] from -1 to 1."""

    def __init__(
        self, spec: EnvSpec, *, hidden: Sequence[int], activation: str, torso: str, size: int
    ) -> None:
        super().__init__(spec, hidden=hidden, activation=activation, torso=torso, outputs=size)

    def forward(self, obs: Tree) -> Tensor:
        return self.outputs(obs).tanh()


class GaussianActor(Actor):
    """a = tanh(x), x ~ N(mean(s), std(s)), [N, size] from -1 to 1.

        log pi(a|s) = sum_i log N(x_i; mean_i, std_i) - log(1 - tanh(x_i)^2)

    (Haarnoja et al. 2018, arXiv:1801.01290, Eq. 21), the last term as 2 (log 2 - x - softplus(-2
    x)), which is exact far out.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden: Sequence[int],
        activation: str,
        torso: str,
        size: int,
        body: Body = MLP,
    ) -> None:
        super().__init__(
            spec, hidden=hidden, activation=activation, torso=torso, outputs=2 * size, body=body
        )

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        """Return mean and log_std, each [N, size]."""
        mean, log_std = self.outputs(obs).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD)

    def sample(self, obs: Tree, z: Tensor) -> tuple[Tensor, Tensor]:
        """z [N, size] standard normal -> action [N, size], reparametrised, and its logp [N]."""
        mean, log_std = self(obs)
        x = torch.addcmul(mean, log_std.exp(), z)
        slope = 2 * (math.log(2) - x - F.softplus(-2 * x))
        logp = -(0.5 * z.square() + log_std + slope).sum(-1) - z.shape[-1] * HALF_LOG_2PI
        return x.tanh(), logp


class StateNoiseActor(GaussianActor):
    """A ``GaussianActor`` whose noise is a linear function of the last hidden layer h(s) (gSDE:
    Raffin et al. 2021, arXiv:2005.05719, section 3).

        x_i = mean_i(s) + sum_j theta_ji h_j(s),  theta_ji ~ N(0, sigma_ji^2)

    While theta stays as it is a state has one action, and similar states have similar ones. If
    theta is not known

        x_i ~ N(mean_i(s), sum_j h_j(s)^2 sigma_ji^2)

    and from that ``sample`` draws, for each row by itself. sigma is a parameter. Means lie within 2
    of 0 and 1e-6 is added to the variance, as in Stable-Baselines3.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden: Sequence[int],
        activation: str,
        torso: str,
        size: int,
        log_std: float,
        body: Body = MLP,
    ) -> None:
        Actor.__init__(
            self, spec, hidden=hidden, activation=activation, torso=torso, outputs=size, body=body
        )
        self.log_std = nn.Parameter(torch.full((self.body.size_out, size), log_std))

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        h = self.latent(obs)
        with exact(h.device):
            variance = h.square() @ (2 * self.log_std).exp()
            return self.mean(h), 0.5 * (variance + LEAST_VARIANCE).log()

    def mean(self, h: Tensor) -> Tensor:
        return self.head(h).clamp(-FARTHEST_MEAN, FARTHEST_MEAN)  # type: ignore[no-any-return]

    def explored(self, obs: Tree, z: Tensor) -> Tensor:
        """The action [N, size] of the theta that the standard normal ``z`` [N, h * size] makes."""
        h = self.latent(obs)
        with exact(h.device):
            return (self.mean(h) + noise_of_state(h, self.log_std.exp(), z)).tanh()


class CategoricalActor(Actor):
    """Logits [N, actions]; an action that a mask forbids has ``MASKED``, whose probability is 0."""

    def __init__(
        self, spec: EnvSpec, *, hidden: Sequence[int], activation: str, torso: str
    ) -> None:
        actions, start = discrete(spec.action)
        super().__init__(spec, hidden=hidden, activation=activation, torso=torso, outputs=actions)
        self.actions, self.start = actions, start

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor | None]:
        """The logits, and which actions are allowed."""
        logits, allowed = self.outputs(obs), self.allowed(obs, self.actions)
        return (logits if allowed is None else torch.where(allowed, logits, MASKED)), allowed
