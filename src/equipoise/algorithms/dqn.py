"""DQN (Mnih et al. 2015, doi:10.1038/nature14236) with its later extensions, each an option.

With s' the observation ``n_step`` rows on, R the discounted rewards until there, and Q' the target
network,

    y = R + gamma^n Q'(s', a*)        a* = argmax_a Q(s', a) with ``double``, else argmax_a Q'(s', a)
    L = w l(y - Q(s, a)),             l the Huber function with delta 1, or half the square

``double``: van Hasselt et al. 2016, arXiv:1509.06461, Eq. 4. ``dueling``: Wang et al. 2016,
arXiv:1511.06581, Eq. 9. ``n_step``: Hessel et al. 2018, arXiv:1710.02298. w is the weight of
prioritized replay (Schaul et al. 2016, arXiv:1511.05952), whose priority is |y - Q(s, a)|.
``distribution`` learns the return's distribution Z instead of its mean, acting by the mean:

c51 (Bellemare et al. 2017, arXiv:1707.06887, algorithm 1): Z has ``atoms`` between ``v_min`` and
``v_max``; R + gamma^n Z' is projected onto them and L is the cross entropy. quantile (Dabney et al.
2018, arXiv:1710.10044, Eq. 10): Z has ``quantiles`` of equal weight at tau_i = (i + 1/2) / N, and
with u_ij = y_j - theta_i

    L = w sum_i mean_j |tau_i - 1{u_ij < 0}| huber_kappa(u_ij) / kappa

Deviations: priorities are of the means even if Z is learned (Rainbow: the cross entropy); both
heads of a dueling network stand on one torso; exploration is by epsilon, not by noisy layers; the
loss is a mean over the items.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise import tree
from equipoise.algorithms._off_policy import (
    OffPolicyAlgorithm,
    epsilon_greedy,
    epsilon_propensity,
    weighed,
)
from equipoise.facts import KEPT, Help, Read
from equipoise.nets.q import QNetwork, greedy
from equipoise.types import (
    Array,
    Batch,
    EnvSpec,
    LossOutput,
    NonNegativeInt,
    Optimizer,
    Pool,
    PositiveFloat,
    PositiveInt,
    Trajectory,
    Tree,
    UnitInterval,
)

C51, QUANTILE = Read("distribution", "c51"), Read("distribution", "quantile")


@dataclass(frozen=True, kw_only=True)
class DQN(OffPolicyAlgorithm):
    default_optimizer: ClassVar[Optimizer] = replace(
        OffPolicyAlgorithm.default_optimizer, learning_rate=1e-4, max_grad_norm=10.0
    )
    defaults: ClassVar[Mapping[str, object]] = {
        "policy.unroll": 4,
        "policy.batch": 32,
        "replay.capacity": 100_000,
    }

    double: Annotated[
        bool,
        Help(
            "Double Q-learning",
            "The learning network chooses the action that the target network evaluates.",
        ),
    ] = True
    dueling: Annotated[bool, Help("Dueling heads: state value and advantages"), KEPT] = False
    distribution: Annotated[
        Literal["none", "c51", "quantile"],
        Help("Distribution of returns to learn; none learns the mean"),
        KEPT,
    ] = "none"
    atoms: Annotated[PositiveInt, Help("Atoms of the C51 distribution"), C51, KEPT] = 51
    v_min: Annotated[float, Help("Lowest return of the C51 distribution"), C51] = -10.0
    v_max: Annotated[float, Help("Highest return of the C51 distribution"), C51] = 10.0
    quantiles: Annotated[
        PositiveInt, Help("Quantiles of the return distribution"), QUANTILE, KEPT
    ] = 200
    kappa: Annotated[PositiveFloat, Help("Threshold of the quantile Huber loss"), QUANTILE] = 1.0
    error: Annotated[
        Literal["huber", "mse"], Help("Loss function of the TD error"), Read("distribution", "none")
    ] = "huber"
    epsilon_start: Annotated[
        UnitInterval,
        Help("Initial share of random actions (epsilon)"),
        Read("epsilon_steps", why="epsilon does not change"),
    ] = 1.0
    epsilon: Annotated[UnitInterval, Help("Final share of random actions (epsilon)")] = 0.05
    epsilon_steps: Annotated[
        NonNegativeInt, Help("Env steps from epsilon_start to epsilon", "The share falls linearly.")
    ] = 50_000
    target_every: PositiveInt = 250

    def network(self, spec: EnvSpec) -> QNetwork:
        if self.distribution == "c51" and not (self.v_min < self.v_max and self.atoms > 1):
            got = f"v_min={self.v_min:g}, v_max={self.v_max:g}, atoms={self.atoms}"
            raise ValueError(
                "algorithm.distribution=c51: expected v_min < v_max and two atoms or more, got "
                f"{got}"
            )
        bins = {"none": 1, "c51": self.atoms, "quantile": self.quantiles}[self.distribution]
        return QNetwork(spec, dueling=self.dueling, bins=bins, **self.shape)

    def explore(self, stream: Array, streams: int, step: int) -> Tree:
        share = min(step / self.epsilon_steps, 1.0) if self.epsilon_steps else 1.0
        return {
            "epsilon": torch.full(
                (len(stream),), self.epsilon_start + share * (self.epsilon - self.epsilon_start)
            )
        }

    def act(
        self, net: QNetwork, obs: Tree, first: Tensor, state: Tree, *, explore: Tree, noise: Tensor
    ) -> tuple[Tree, Tree, Tree]:
        action, _ = epsilon_greedy(net, self.mean(net(obs)), obs, explore["epsilon"], noise)
        return action, {}, state

    def propensity(
        self, net: QNetwork, obs: Tree, first: Tensor, state: Tree, action: Tree, *, explore: Tree
    ) -> Tensor | None:
        return epsilon_propensity(net, self.mean(net(obs)), obs, explore["epsilon"], action)

    def best(self, net: QNetwork, obs: Tree, first: Tensor, state: Tree) -> tuple[Tree, Tree]:
        return greedy(self.mean(net(obs)), net.allowed(obs, net.actions)) + net.start, state

    def mean(self, out: Tensor) -> Tensor:
        """Turn the network's output [..., bins] into Q [...]."""
        if self.distribution == "c51":
            return (out.softmax(-1) * self.support(out)).sum(-1)
        return out.mean(-1)

    def support(self, like: Tensor) -> Tensor:
        """The returns [atoms] that c51 gives probabilities to."""
        return torch.linspace(self.v_min, self.v_max, self.atoms, device=like.device)

    def targets(
        self,
        net: QNetwork,
        target_net: QNetwork,
        data: Trajectory,
        *,
        rng: torch.Generator,
        pool: Pool,
    ) -> Tree:
        """{"target": y [B, bins]}: a value, the probabilities of atoms, or quantiles."""
        reward, discount, obs = self.ahead(data)
        out = target_net(obs)
        online = self.mean(net(obs) if self.double else out)
        best = greedy(online, net.allowed(obs, net.actions))
        following = target_net.taken(out, best + net.start)
        if self.distribution != "c51":
            return {"target": reward.unsqueeze(-1) + discount.unsqueeze(-1) * following}
        support = self.support(out)
        returns = reward.unsqueeze(-1) + discount.unsqueeze(-1) * support
        return {"target": project(returns, following.softmax(-1), support)}

    def loss(
        self,
        net: QNetwork,
        target_net: QNetwork,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        """L above, summed over items; no gradient flows into y."""
        data, target = batch.data, batch.targets["target"]
        taken = net.taken(net(tree.index(data.obs, 0)), data.action[0])
        q = self.mean(taken)
        wanted = (
            (target * self.support(target)).sum(-1)
            if self.distribution == "c51"
            else target.mean(-1)
        )
        if self.distribution == "c51":
            terms = -(target * taken.log_softmax(-1)).sum(-1)
        elif self.distribution == "quantile":
            terms = quantile_huber(taken, target, self.kappa)
        else:
            terms = (F.huber_loss if self.error == "huber" else half_square)(
                q, wanted, reduction="none"
            )
        td_error = (wanted - q).abs()
        return weighed(batch.weight, terms, priority=td_error, loss=terms, td_error=td_error, q=q)


def half_square(a: Tensor, b: Tensor, reduction: str = "none") -> Tensor:
    return 0.5 * (a - b).square()


def project(returns: Tensor, probability: Tensor, support: Tensor) -> Tensor:
    """The distribution of ``returns`` [B, m] with ``probability`` [B, m] on the evenly spaced
    ``support`` [n] -> [B, n].

    A return beyond an end goes to that end; one between two atoms is split between them by its
    distance to each:

        p_i = sum_j [1 - |clip(y_j) - z_i| / dz]_0^1 p_j        (Bellemare et al. 2017, Eq. 7)
    """
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    clipped = returns.clamp(support[0], support[-1])
    # [B, n, m]
    share = (1 - (clipped.unsqueeze(-2) - support.unsqueeze(-1)).abs() / spacing).clamp(0, 1)
    return (share * probability.unsqueeze(-2)).sum(-1)


def quantile_huber(theta: Tensor, target: Tensor, kappa: float) -> Tensor:
    """The quantile regression loss [B] of ``theta`` [B, n] against samples ``target`` [B, m]."""
    tau = (torch.arange(theta.shape[-1], device=theta.device) + 0.5) / theta.shape[-1]
    u = target.unsqueeze(-2) - theta.unsqueeze(-1)  # [B, n, m]
    huber = F.huber_loss(u, torch.zeros_like(u), reduction="none", delta=kappa) / kappa
    return ((tau.unsqueeze(-1) - (u < 0).to(u.dtype)).abs() * huber).mean(-1).sum(-1)
