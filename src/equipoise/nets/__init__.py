"""Networks: torsos, cores, heads, distributions. ``step`` and ``unroll`` agree."""

from equipoise.nets.actor_critic import ActorCritic, ActorCriticOutput, Policy
from equipoise.nets.core import Core
from equipoise.nets.cores import CoreOptions
from equipoise.nets.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
    action_dims,
)
from equipoise.nets.heads import HeadOptions
from equipoise.nets.joint import Joint
from equipoise.nets.normalize import RunningNorm
from equipoise.nets.torso import MLP, encode, encoded_size

__all__ = [
    "MLP",
    "ActorCritic",
    "ActorCriticOutput",
    "Bernoulli",
    "Categorical",
    "Core",
    "CoreOptions",
    "DiagonalGaussian",
    "Distribution",
    "HeadOptions",
    "Joint",
    "MultiCategorical",
    "Policy",
    "RunningNorm",
    "SquashedGaussian",
    "action_dims",
    "encode",
    "encoded_size",
]
