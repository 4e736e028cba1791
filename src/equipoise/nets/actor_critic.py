"""The network of the policy-gradient algorithms: a distribution over actions and a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise import tree
from equipoise.nets import heads
from equipoise.nets.cores import NO_CORE, AnyCore, CoreOptions, make_core
from equipoise.nets.distributions import Distribution
from equipoise.nets.heads import PLAIN, HeadOptions
from equipoise.nets.normalize import RunningNorm
from equipoise.nets.precision import exact
from equipoise.nets.torso import MLP, columns, encode, encoded_size, linear, measured
from equipoise.nets.vision import torso as make_torso
from equipoise.types import Array, EnvSpec, Pool, Tree

Policy = Distribution


class ActorCriticOutput(NamedTuple):
    """For rows [...], which are B in ``step`` and T, B in ``unroll``."""

    policy: Policy
    value: Tensor  # [...] float32; with several value outputs [..., values]


class ActorCritic(nn.Module):
    """``types.Network``: torso, core if any, and two heads.

    Without a core policy and value have a torso each unless ``shared`` (as in CleanRL; Huang et al.
    2022, "The 37 implementation details of PPO", 13). With a core there is one torso, then the
    core, then the heads. The policy head follows ``head``; the value head starts at gain 1. An
    action mask is no feature: it only decides what the policy may do.

    With a ``clip_obs`` the numbers of the observation go through ``norm``, a ``RunningNorm``
    clipped to that number of standard deviations, which ``absorb`` feeds.

    ``torso`` is that of ``vision.torso``; any but an MLP is shared by policy and value. Under
    autocast it alone computes in low precision: core and heads stay in float32.

    ``state`` is {} without a core, else the core's.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        core: CoreOptions = NO_CORE,
        shared: bool = False,
        torso: str = "auto",
        head: HeadOptions = PLAIN,
        clip_obs: float | None = None,
    ) -> None:
        super().__init__()
        # without the mask, and where in an observation that is
        self.observation, self.seen = heads.seen(spec)
        self.mask = spec.mask
        self.head = heads.head(spec.action, squash=head.squash)
        self.value_torso: MLP | None = None
        # the policy's, or of both
        self.torso = make_torso(torso, self.observation, hidden=hidden, activation=activation)
        features = self.torso.size_out
        self.core: AnyCore | None = make_core(core, features)
        if self.core is not None:
            features = core.size
        elif isinstance(self.torso, MLP) and not shared:
            self.value_torso = make_torso(
                "mlp", self.observation, hidden=hidden, activation=activation
            )
        self.norm: RunningNorm | None = None
        if clip_obs is not None:
            if not isinstance(self.torso, MLP):
                raise ValueError(
                    "normalize_obs: expected observations that an MLP takes, got those of a torso "
                    "for images"
                )
            size = encoded_size(self.observation)
            self.norm = RunningNorm(size, clip=clip_obs, columns=measured(self.observation))
        self.policy_head = linear(features, self.head.size, head.gain)
        self.log_std: nn.Parameter | None = None
        self.by_state = head.by_state
        if head.by_state and not isinstance(self.head, heads.BoxHead):
            raise ValueError(
                "algorithm.sde_every: must be 0 unless actions are a single Box, got actions of "
                f"{spec.action}"
            )
        if self.head.stds:
            shape = (features, self.head.stds) if head.by_state else (self.head.stds,)
            self.log_std = nn.Parameter(torch.full(shape, float(head.log_std)))
        self.value_head = linear(features, head.values, 1.0)

    def initial_state(self, batch: int) -> Tree:
        return {} if self.core is None else self.core.initial_state(batch)

    def policy(self, obs: Tree, first: Tensor, state: Tree) -> tuple[Policy, Tree]:
        """``step`` without the value: obs [B, ...], first [B] -> distribution over [B], state."""
        flat = self.torso(self._rows(obs, first))
        with exact(flat.device):
            features, state = self._features(flat, first, state)
            return self._policy(features, first.shape, obs), state

    def step(self, obs: Tree, first: Tensor, state: Tree) -> tuple[ActorCriticOutput, Tree]:
        """obs [B, ...], first [B] bool, state [B, ...] -> outputs [B], the next state."""
        return self._both(obs, first, state)

    def unroll(self, obs: Tree, first: Tensor, state: Tree) -> tuple[ActorCriticOutput, Tree]:
        """obs [T, B, ...], first [T, B] bool, state before row 0 -> outputs [T, B], last state."""
        return self._both(obs, first, state)

    def absorb(self, obs: Tree, mask: Tensor, pool: Pool) -> None:
        """Add the observations [..., *] where ``mask`` [...] is True to the statistics."""
        if self.norm is not None:
            self.norm.absorb(encode(self.observation, heads.at(obs, self.seen)), mask, pool)

    def _both(self, obs: Tree, first: Tensor, state: Tree) -> tuple[ActorCriticOutput, Tree]:
        x = self._rows(obs, first)
        flat = self.torso(x)
        value_flat = None if self.value_torso is None else self.value_torso(x)
        with exact(flat.device):
            features, state = self._features(flat, first, state)
            policy = self._policy(features, first.shape, obs)
            if value_flat is not None:
                features = value_flat.float()
            value = columns(self.value_head, features)
            one = len(value) == 1
            value = value.view(first.shape if one else (-1, *first.shape))
            return ActorCriticOutput(policy, value if one else value.movedim(0, -1)), state

    def _rows(self, obs: Tree, first: Tensor) -> Array:
        """The torso's N rows of all of ``first``: encoded [N, F] for an MLP, else observations."""
        obs = heads.at(obs, self.seen)
        if isinstance(self.torso, MLP):
            x = encode(self.observation, obs)
            x = x if self.norm is None else self.norm.forward(x)
            return x if x.ndim == 2 else x.flatten(0, -2)
        return obs if first.ndim == 1 else tree.map(lambda leaf: leaf.flatten(0, 1), obs)

    def _features(self, flat: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """flat [N, F], first [...] -> [N, features], state."""
        flat = flat.float()
        if self.core is None:
            return flat, state
        if first.ndim == 1:
            return self.core.step(flat, first, state)
        y, state = self.core.unroll(flat.view(*first.shape, -1), first, state)
        return y.flatten(0, -2), state

    def _policy(self, features: Tensor, rows: torch.Size, obs: Tree) -> Policy:
        """features [N, F] -> the distribution. A single Box is cheaper with the outputs last."""
        by_rows = isinstance(self.head, heads.BoxHead)
        y = self.policy_head(features).t() if by_rows else columns(self.policy_head, features)
        if self.by_state and isinstance(self.head, heads.BoxHead) and self.log_std is not None:
            return self.head.by_state(y, features.detach(), self.log_std, rows)
        return self.head(y, self.log_std, rows, heads.at(obs, self.mask) if self.mask else None)
