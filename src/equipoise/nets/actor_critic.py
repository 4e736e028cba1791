"""The network of the policy-gradient algorithms: a distribution over actions and a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from equipoise import tree
from equipoise.nets.core import Core
from equipoise.nets.distributions import Categorical, DiagonalGaussian, action_dims
from equipoise.nets.precision import exact
from equipoise.nets.torso import MLP, columns, encode, linear
from equipoise.nets.vision import torso as make_torso
from equipoise.types import EnvSpec, Tree

Policy = Categorical | DiagonalGaussian


class ActorCriticOutput(NamedTuple):
    """For rows [...], which are B in ``step`` and T, B in ``unroll``."""

    policy: Policy
    value: Tensor  # [...] float32


class ActorCritic(nn.Module):
    """``types.Network``: torso, core if any, and two heads.

    Without a core policy and value have a torso each unless ``shared`` (as in CleanRL; Huang et al. 2022, "The 37
    implementation details of PPO", 13). With a core there is one torso, then the core, then the heads. The policy head
    starts at gain ``policy_gain``, near uniform; the value head at 1. Box actions have one ``log_std`` a dimension,
    independent of the observation, 0 at first.

    ``torso`` is that of ``vision.torso``; any but an MLP is shared by policy and value. Under autocast it alone computes in
    low precision: core and heads stay in float32.

    ``state`` is {} without a core, {"h"} for gru, {"h", "c"} for lstm, each [B, core_size].
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        core: Literal["none", "lstm", "gru"] = "none",
        core_size: int = 64,
        shared: bool = False,
        torso: str = "auto",
        policy_gain: float = 0.01,
    ) -> None:
        super().__init__()
        if core not in ("none", "lstm", "gru"):
            raise ValueError(f"core {core!r} is unknown; known are none, lstm, gru")
        self.observation = spec.observation
        dims = action_dims(spec.action)
        self.action_shape = spec.action.shape or ()
        self.start: int | None = None  # the first action of a Discrete space
        self.core: Core | None = None
        self.value_torso: MLP | None = None
        self.torso = make_torso(torso, spec.observation, hidden=hidden, activation=activation)  # the policy's, or of both
        features = self.torso.size_out
        if core != "none":
            self.core = Core(core, features, core_size)
            features = core_size
        elif isinstance(self.torso, MLP) and not shared:
            self.value_torso = make_torso("mlp", spec.observation, hidden=hidden, activation=activation)
        if isinstance(spec.action, spaces.Discrete):
            self.start = int(spec.action.start)
            self.policy_head = linear(features, int(spec.action.n), policy_gain)
        else:
            self.policy_head = linear(features, dims, policy_gain)
            self.log_std = nn.Parameter(torch.zeros(dims))
        self.value_head = linear(features, 1, 1.0)

    def initial_state(self, batch: int) -> Tree:
        return {} if self.core is None else self.core.initial_state(batch)

    def policy(self, obs: Tree, first: Tensor, state: Tree) -> tuple[Policy, Tree]:
        """``step`` without the value: obs [B, ...], first [B] -> distribution over [B], state."""
        flat = self.torso(self._rows(obs, first))
        with exact(flat.device):
            features, state = self._features(flat, first, state)
            return self._policy(features, first.shape), state

    def step(self, obs: Tree, first: Tensor, state: Tree) -> tuple[ActorCriticOutput, Tree]:
        """obs [B, ...], first [B] bool, state [B, ...] -> outputs [B], the next state."""
        return self._both(obs, first, state)

    def unroll(self, obs: Tree, first: Tensor, state: Tree) -> tuple[ActorCriticOutput, Tree]:
        """obs [T, B, ...], first [T, B] bool, state [B, ...] before row 0 -> outputs [T, B], the state after row T-1."""
        return self._both(obs, first, state)

    def _both(self, obs: Tree, first: Tensor, state: Tree) -> tuple[ActorCriticOutput, Tree]:
        x = self._rows(obs, first)
        flat = self.torso(x)
        value_flat = None if self.value_torso is None else self.value_torso(x)
        with exact(flat.device):
            features, state = self._features(flat, first, state)
            policy = self._policy(features, first.shape)
            if value_flat is not None:
                features = value_flat.float()
            return ActorCriticOutput(policy, columns(self.value_head, features).view(first.shape)), state

    def _rows(self, obs: Tree, first: Tensor) -> Any:
        """What a torso takes: N rows, the product of all of ``first``'s; encoded [N, F] for an MLP, else observations."""
        if isinstance(self.torso, MLP):
            x = encode(self.observation, obs)
            return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        return obs if first.ndim == 1 else tree.map(lambda leaf: leaf.flatten(0, 1), obs)

    def _features(self, flat: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """flat [N, F], first [...] -> [N, features], state."""
        flat = flat.float()
        if self.core is None:
            return flat, state
        if first.ndim == 1:
            return self.core.step(flat, first, state)
        y, state = self.core.unroll(flat.view(*first.shape, -1), first, state)
        return y.reshape(-1, y.shape[-1]), state

    def _policy(self, features: Tensor, rows: torch.Size) -> Policy:
        if self.start is not None:
            logits = columns(self.policy_head, features)
            return Categorical(logits if len(rows) == 1 else logits.view(-1, *rows), self.start)
        return DiagonalGaussian(self.policy_head(features).view(*rows, -1), self.log_std, self.action_shape)
