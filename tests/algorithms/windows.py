"""Windows with episode ends, as an actor with some policy would have written them, and the networks
that look at them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from equipoise.learners.pool import ALONE
from equipoise.types import Batch, EnvSpec, LossOutput, Trajectory
from tests.returns.cases import streams

T, B, GAMMA = 7, 5, 0.9
SPEC = EnvSpec(
    observation=spaces.Box(-1.0, 1.0, (3,), np.float32), action=spaces.Discrete(4, start=2)
)


def network(algorithm: Any, seed: int) -> Any:
    """Heads of gain 1, so that policies differ."""
    torch.manual_seed(seed)
    net = algorithm.network(SPEC)
    torch.nn.init.orthogonal_(net.policy_head.weight)
    return net


def window(algorithm: Any, acting: Any, seed: int = 0) -> Trajectory:
    rng = np.random.default_rng(seed)
    mask, bootstrap = (torch.from_numpy(x) for x in streams("next_step", T, B, rng))
    obs = torch.from_numpy(rng.normal(size=(T + 1, B, 3)).astype(np.float32))
    first = torch.zeros(T + 1, B, dtype=torch.bool)
    noise = torch.from_numpy(rng.uniform(size=(T, B, 1)).astype(np.float32))
    rows = [
        algorithm.act(acting, obs[t], first[t], {}, explore={}, noise=noise[t])[:2]
        for t in range(T)
    ]
    return Trajectory(
        obs=obs,
        first=first,
        action=torch.stack([action for action, _ in rows]),
        behaviour={"logp": torch.stack([behaviour["logp"] for _, behaviour in rows]).detach()},
        reward=torch.where(mask, torch.from_numpy(rng.normal(size=(T, B)).astype(np.float32)), 0.0),
        mask=mask,
        bootstrap=bootstrap,
        version=torch.zeros(T, B, dtype=torch.int64),
        state={},
        context={"stream": torch.arange(B), "start": torch.zeros(B, dtype=torch.int64)},
    )


@dataclass(frozen=True)
class Learned:
    """What one loss of a whole window came to."""

    loss: float
    out: LossOutput
    targets: Any
    gradient: torch.Tensor


def learn(algorithm: Any, net: Any, target_net: Any, data: Trajectory) -> Learned:
    rng = torch.Generator()
    with torch.no_grad():
        targets = algorithm.targets(net, target_net, data, rng=rng, pool=ALONE)
    batch = Batch(data=data, keys=np.zeros((B, 2), np.int64), weight=torch.ones(B), targets=targets)
    net.zero_grad()
    out = algorithm.loss(net, target_net, batch, group="all", step=0.0, rng=rng)
    out.loss.backward()
    return Learned(
        out.loss.item(), out, targets, torch.cat([p.grad.flatten() for p in net.parameters()])
    )


def mean(out: LossOutput, name: str) -> float:
    total, count = out.metrics[name]
    return float(total / count)


def with_behaviour(data: Trajectory, logp: torch.Tensor) -> Trajectory:
    return replace(data, behaviour={"logp": logp})
