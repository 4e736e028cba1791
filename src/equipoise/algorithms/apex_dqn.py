"""Ape-X DQN (Horgan et al. 2018, arXiv:1803.00933): DQN with many actors that explore differently,
each with a fixed epsilon.

The learner is DQN's (``dqn.py``): double, dueling, n-step, from prioritized replay. Env i of N acts
at random with

    epsilon_i = epsilon^(1 + alpha i / (N - 1))                                                        (section 4)

An item's first priority is not the highest so far but the TD error as the actor saw it (section 3),
with Q of the acting weights and without double:

    |sum_{i<k} gamma^i r_i + gamma^k max_a Q(s_k, a) - Q(s_0, a_0)|,  k = min(n, rows until the episode ends)

The actor writes Q(s, a) and max_a Q(s, a) with every row; the value of s_n stands in row n, with
which the item is complete: an item is a window of n + 1 rows.

Deviations: Adam for centred RMSProp; the oldest rows leave when there is no room, not every 100
updates; also the deviations of ``dqn.py``.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import Tensor

from equipoise.algorithms._off_policy import epsilon_greedy, ladder
from equipoise.algorithms.dqn import DQN
from equipoise.facts import Help
from equipoise.nets.q import QNetwork
from equipoise.types import (
    Array,
    NonNegativeFloat,
    NonNegativeInt,
    Optimizer,
    PositiveInt,
    Trajectory,
    Tree,
    UnitInterval,
)


@dataclass(frozen=True, kw_only=True)
class ApexDQN(DQN):
    default_optimizer: ClassVar[Optimizer] = replace(DQN.default_optimizer, max_grad_norm=40.0)
    defaults: ClassVar[Mapping[str, object]] = {
        "policy.unroll": 16,
        "policy.batch": 128,
        "replay.selector": "prioritized",
        "placement.actors": 2,
        "placement.envs_per_actor": 16,
        "placement.max_lag": None,
    }

    dueling: bool = True
    n_step: PositiveInt = 3
    epsilon: Annotated[
        UnitInterval,
        Help(
            "Share of random actions (epsilon) in the first env",
            "Env i of N explores with epsilon^(1 + epsilon_alpha i / (N - 1)).",
        ),
    ] = 0.4
    epsilon_alpha: Annotated[
        NonNegativeFloat,
        Help(
            "Exponent of epsilon in the last env, minus 1",
            "Env i of N explores with epsilon^(1 + epsilon_alpha i / (N - 1)).",
        ),
    ] = 7.0
    epsilon_steps: Annotated[
        NonNegativeInt,
        Help(
            "Env steps until each env reaches its own epsilon",
            "The share falls linearly from `epsilon_start`.",
        ),
    ] = 0
    target_every: PositiveInt = 2500

    @property
    def item_rows(self) -> int:
        return self.n_step + 1

    def explore(self, stream: Array, streams: int, step: int) -> Tree:
        share = min(step / self.epsilon_steps, 1.0) if self.epsilon_steps else 1.0
        rung = ladder(stream, streams, self.epsilon, self.epsilon_alpha)
        return {"epsilon": self.epsilon_start + share * (rung - self.epsilon_start)}

    def act(
        self, net: QNetwork, obs: Tree, first: Tensor, state: Tree, *, explore: Tree, noise: Tensor
    ) -> tuple[Tree, Tree, Tree]:
        action, behaviour = epsilon_greedy(net, self.mean(net(obs)), obs, explore["epsilon"], noise)
        return action, behaviour, state

    def priority(self, data: Trajectory) -> Tensor:
        """Priorities [N] of items, by the Q that the actor recorded."""
        reward, discount, value = self.ahead(replace(data, obs=data.behaviour["value"]))
        error: Tensor = reward + discount * value - data.behaviour["q"][0]
        return error.abs()
