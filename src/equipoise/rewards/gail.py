"""Generative adversarial imitation: a reward for rows that look like a data set's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise import tree
from equipoise.facts import KEPT, Help, NonNegativeFloat, PositiveInt, Rate
from equipoise.nets.torso import MLP, encode, encoded_size, linear
from equipoise.rewards.observed import Observed
from equipoise.rewards.term import Refused, RewardTerm
from equipoise.seeds import derive_seed
from equipoise.types import EnvSpec, Learns, LossOutput, Optimizer, Trajectory, Tree

MOST_BYTES = 1 << 30  # of the rows of a data set


class Discriminator(nn.Module):
    """Logits [...] that rows of numbers [..., F] are of the data set."""

    def __init__(self, size: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.mlp = MLP(size, hidden)
        self.last = linear(self.mlp.size_out, 1, 1.0)
        self.mean, self.std = nn.Buffer(torch.zeros(size)), nn.Buffer(torch.ones(size))

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.last(self.mlp((rows - self.mean) / self.std)).squeeze(-1)
        return found


@dataclass(kw_only=True, eq=False)
class GAIL(RewardTerm):
    """``-log(1 - D)``, where D is the chance by a discriminator that a row of observation and
    action is of the demonstrations (Ho and Ermon 2016, arXiv:1606.03476).

    The discriminator learns to tell each batch of the policy from as many rows of the
    demonstrations, with a penalty on its gradient (Kostrikov et al. 2019, arXiv:1809.02925, section
    4.1). The reward is above 0, so it favours long episodes.
    """

    name: ClassVar[str] = "gail"

    demonstrations: Annotated[str, Help("Data set to imitate, by its id or directory")] = ""
    hidden: Annotated[tuple[PositiveInt, ...], Help("Hidden layers of the discriminator"), KEPT] = (
        64,
        64,
    )
    learning_rate: Annotated[Rate, Help("Learning rate of the discriminator")] = 1e-3
    updates: Annotated[
        PositiveInt,
        Help("Steps of the discriminator after each batch", "Each has rows of its own."),
    ] = 1
    penalty: Annotated[
        NonNegativeFloat, Help("Weight of the penalty on the gradient; 0 turns it off")
    ] = 10.0

    def follow(self, algorithm: Learns) -> None:
        if not self.demonstrations:
            raise Refused(
                "reward.gail.demonstrations: must be a data set, got none; 'equipoise collect' "
                "makes one"
            )

    def build(self, spec: EnvSpec, seed: int) -> None:
        self._observed, self._action, self._seed = Observed(spec), spec.action, seed
        size = self._observed.size + encoded_size(spec.action)
        self.net: Discriminator = Discriminator(size, self.hidden)
        self.optimizer = Optimizer(learning_rate=self.learning_rate, schedule="constant")
        self.steps, self._step = self.updates, 0
        self._most = MOST_BYTES // (4 * size)
        self._shown = torch.zeros(0, size)

    def recorded(self) -> str:
        return self.demonstrations

    def demonstrate(self, data: Trajectory) -> None:
        mask = torch.from_numpy(data.mask)
        obs, action = tree.torch_views(self._observed.leaf(data.obs)), tree.torch_views(data.action)
        rows = self._rows(tree.index(obs, slice(None, -1)), action)[mask]
        self._shown = torch.cat([self._shown, rows])
        if len(self._shown) > self._most:
            raise ValueError(
                f"{self.demonstrations}: must have at most {self._most:,} rows of "
                f"{self._shown.shape[1]:,} numbers, got more"
            )
        self.net.mean.copy_(self._shown.mean(0))
        std = self._shown.std(0, correction=0)
        self.net.std.copy_(torch.where(std > 1e-6, std, 1.0))

    def to(self, device: torch.device) -> None:
        self._shown = self._shown.to(device)

    def _rows(self, obs: Tree, action: Tree) -> Tensor:
        """Return observations and actions as numbers [..., F]."""
        return torch.cat([self._observed.rows(obs), encode(self._action, action)], -1)

    def _policy(self, data: Trajectory) -> Tensor:
        obs = self._observed.leaf(data.obs)
        return self._rows(tree.index(obs, slice(None, -1)), data.action)

    def rewards(self, data: Trajectory) -> Tensor:
        return F.softplus(self.net(self._policy(data)))

    def loss(self, data: Trajectory) -> LossOutput:
        rows, weight = self._policy(data).flatten(0, 1), data.mask.flatten().float()
        self._step = (self._step + 1) % self.steps
        purpose = f"{self.version} {self._step}"
        generator = torch.Generator().manual_seed(derive_seed(self._seed, purpose))
        drawn = torch.randint(len(self._shown), (len(rows),), generator=generator)
        share = torch.rand(len(rows), 1, generator=generator).to(rows.device)
        shown = self._shown[drawn.to(self._shown.device)]
        ours, theirs = self.net(rows), self.net(shown)
        loss = F.softplus(ours) + F.softplus(-theirs)
        if self.penalty > 0:
            between = (share * rows + (1 - share) * shown).requires_grad_()
            (slope,) = torch.autograd.grad(self.net(between).sum(), between, create_graph=True)
            size = (slope * self.net.std).square().sum(-1).add(1e-12).sqrt()
            loss = loss + self.penalty * (size - 1).square()
        # a count above 0 also if no row is real
        return LossOutput(loss=(loss * weight).sum(), count=weight.sum() + 1e-9)
