"""An algorithm that learns nothing and checks everything: it proves every row that reaches the
learner.

The env is the ruler, so rows prove themselves. The network counts: its state is how many rows of
the episode it has seen, and its one parameter is the number of updates, so state and version also
prove themselves.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from equipoise.chaos import beats
from equipoise.chaos.ledger import Ledger, T
from equipoise.envs.toys.ruler import ACTIONS
from equipoise.types import Algorithm, Batch, LossOutput, Optimizer, Pool, Trajectory, Tree


class Counter(nn.Module):
    """state["seen"]: rows of the episode before this one."""

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.updates = nn.Parameter(torch.zeros(1))
        self.ledger = Ledger(streams)

    def initial_state(self, batch: int) -> dict[str, torch.Tensor]:
        return {"seen": torch.zeros(batch)}

    def step(self, obs: Tree, first: torch.Tensor, state: Tree) -> tuple[Tree, Tree]:
        seen = torch.where(first, 0.0, state["seen"])
        return seen, {"seen": seen + 1}


@dataclass(frozen=True, kw_only=True)
class Ruling(Algorithm):
    # Adam's step is the rate itself while the gradient is always the same.
    default_optimizer: ClassVar[Optimizer] = Optimizer(
        learning_rate=1.0, schedule="constant", epsilon=1e-12, max_grad_norm=0.0
    )

    streams: int = 16  # streams of the run
    aborts: bool = False  # an env failure may cut an episode short
    beats: str = ""  # the file of ``Beats`` that notes each update

    def network(self, spec: object) -> Counter:
        return Counter(self.streams)

    def act(
        self,
        net: Counter,
        obs: Tree,
        first: Tree,
        state: Tree,
        *,
        explore: Tree,
        noise: torch.Tensor,
    ) -> tuple[Tree, Tree, Tree]:
        seen, state = net.step(obs, first, state)
        action = (noise[:, 0] * ACTIONS).long()
        return (
            action,
            {
                "updates": net.updates.expand(len(first)).clone(),
                "seen": seen,
                "noise": noise[:, 0].clone(),
            },
            state,
        )

    def best(self, net: Counter, obs: Tree, first: Tree, state: Tree) -> tuple[Tree, Tree]:
        return torch.zeros(len(first), dtype=torch.int64), net.step(obs, first, state)[1]

    def loss(
        self,
        net: Counter,
        target_net: object,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput:
        if self.beats:
            beats.opened(self.beats).beat()
        count = torch.tensor(float(batch.data.mask.numel()))
        return LossOutput(loss=-net.updates.sum() * count, count=count)

    def absorb(self, net: Counter, data: Trajectory, *, pool: Pool) -> None:
        before = net.ledger.counts.clone()
        for said in net.ledger.enter(data, aborts=self.aborts, replayed=self.needs_replay)[:3]:
            print(f"chaos: {said}", file=sys.stderr, flush=True)
        net.ledger.merge(data, before, pool)


@dataclass(frozen=True, kw_only=True)
class Replayed(Ruling):
    """The same with whole unrolls from a replay; priorities favour a late beginning."""

    needs_replay: ClassVar[bool] = True

    def loss(
        self,
        net: Counter,
        target_net: object,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput:
        out = super().loss(net, target_net, batch, group=group, step=step, rng=rng)
        return replace(out, priority=batch.data.obs[0, :, T])
