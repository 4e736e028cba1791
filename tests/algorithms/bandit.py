"""A bandit as text: a prompt of one token, a sample of one token, the arm; where each algorithm
must end is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.types import Packed
from tests.algorithms import text
from tests.algorithms.text import Table


def pulls(arm: Tensor, reward: Tensor, logp: Tensor) -> Packed:
    """``arm`` [G, S], ``reward`` [arms], ``logp`` [arms] of the engine."""
    groups, size = arm.shape
    rows = torch.cat([torch.zeros(groups, 1, dtype=torch.int64), arm], 1)
    sample = torch.cat(
        [torch.full((groups, 1), -1), torch.arange(groups * size).view(groups, size)], 1
    ).flatten()
    token, chosen = rows.flatten(), sample >= 0
    zero = torch.zeros(groups * size, dtype=torch.int64)
    return Packed(
        token=token,
        position=(sample >= 0).long(),
        sample=sample,
        chosen=chosen,
        logp=torch.where(chosen, logp[token], 0.0),
        version=torch.where(chosen, 0, -1),
        reward=torch.where(chosen, reward[token], 0.0),
        prompt=zero + 1,
        group=torch.arange(groups).repeat_interleave(size),
        stop=zero + 1,
        task=zero,
        refills=zero,
    )


def policy(net: Table) -> Tensor:
    """log pi [arms]"""
    return net.head[:, 0].detach().log_softmax(0)


def tables(arms: int, seed: int) -> tuple[Table, Table, Tensor]:
    """A policy, a reference, and what the arms give."""
    rng = np.random.default_rng(seed)
    return (
        Table(arms, seed=seed),
        Table(arms, seed=seed + 1),
        torch.from_numpy(rng.uniform(0, 1, arms)),
    )


def expected_gradient(
    algorithm: Any, net: Table, reference: Table, reward: Tensor, size: int
) -> Tensor:
    """The loss's gradient by the logits [arms], over every group that there may be, each as often
    as it comes.
    """
    arms = len(reward)
    logp = policy(net)
    every = torch.cartesian_prod(*[torch.arange(arms)] * size).view(-1, size)
    data = pulls(every, reward, logp)
    made = text.targets(algorithm, net, reference, data)
    often = logp[every].sum(1).exp() * len(every)
    weighed = torch.cat([often[:, None], often[:, None].expand(-1, size)], 1).flatten()
    made["weight"] = made["weight"] * weighed
    group = "policy" if "policy" in algorithm.groups(net) else "all"
    out = text.loss(algorithm, net, data, made, reference=reference, group=group, version=0)
    (gradient,) = torch.autograd.grad(out.loss / out.count, [net.head])
    return gradient[:, 0]


def wanted_gradient(net: Table, value: Any) -> Tensor:
    """That of minus ``value(pi)``, by automatic differentiation of the closed form."""
    logits = net.head[:, 0].detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(-value(logits.softmax(0)), [logits])
    return gradient


def variation(p: Tensor, q: Tensor) -> float:
    """Total variation between two distributions."""
    return float(0.5 * (p - q).abs().sum())


def learned(
    algorithm: Any,
    reward: Tensor,
    reference: Table,
    *,
    groups: int,
    size: int,
    steps: int,
    rate: float,
    seed: int,
) -> Tensor:
    """The policy after so many steps on samples, averaged over the last half, in which the rate
    falls to 0.
    """
    net = text.for_(algorithm, Table(len(reward), seed=seed))
    rng = torch.Generator().manual_seed(seed)
    optimizers = {
        name: torch.optim.Adam(params, lr=rate, betas=(0.9, 0.99))
        for name, params in algorithm.groups(net).items()
    }
    average = torch.zeros_like(reward)
    for step in range(steps):
        p = policy(net).exp()
        arm = torch.multinomial(p, groups * size, replacement=True, generator=rng).view(
            groups, size
        )
        data = pulls(arm, reward, policy(net))
        made = text.targets(algorithm, net, reference, data)
        for name, optimizer in optimizers.items():
            optimizer.zero_grad()
            out = text.loss(algorithm, net, data, made, reference=reference, group=name, version=0)
            (out.loss / out.count.clamp(min=1)).backward()
            optimizer.param_groups[0]["lr"] = rate * min(1.0, 2.0 * (1.0 - step / steps))
            optimizer.step()
        if step >= steps // 2:
            average += p / (steps - steps // 2)
    return average
