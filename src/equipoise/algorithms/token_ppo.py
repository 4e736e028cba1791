"""Proximal policy optimisation of text (Ouyang et al. 2022, arXiv:2203.02155): a token is a step,
and a critic estimates the value of each.

    r_n = [n is the sample's last] reward - beta log pi(n) / reference(n),   A = GAE(r, V) over chosen tokens

in the clipped loss of ``_text``, plus value (V - (A + V_start))^2 / 2, over the same tokens by the
same weights. V_n is of what had been seen when token n was drawn. The critic is a head on the
policy's hidden states, one optimiser for both; or a decoder of its own, which begins as a copy of
the policy and has an optimiser of its own, as in SAC.

Deviations: a sample that a limit cut is worth nothing beyond the cut; advantages are scaled once a
step, not once a minibatch.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from equipoise.algorithms._actor_critic import standardized
from equipoise.algorithms._text import PolicyText, over, per_sample, spread
from equipoise.facts import KEPT, Help
from equipoise.nets.layout import Layout
from equipoise.nets.lora import copied
from equipoise.nets.token_logp import token_logp
from equipoise.returns import token_gae
from equipoise.types import (
    Batch,
    LossOutput,
    NonNegativeFloat,
    Packed,
    Pool,
    TextSpec,
    Tree,
    UnitInterval,
)


class Critic(nn.Module):
    """V [N] of what had been seen when each token was drawn; 0 at first."""

    def __init__(self, size: int, body: Any = None) -> None:
        """``body`` makes hidden states of ``size``; None: the policy's are given."""
        super().__init__()
        self.body, self.head = body, nn.Linear(size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, data: Packed, layout: Layout, hidden: Tensor | None = None) -> Tensor:
        states: Any = hidden if self.body is None else self.body.hidden(data, layout)
        return self.head(states.index_select(0, layout.previous)).squeeze(1)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class TokenPPO(PolicyText):
    critic: Annotated[
        Literal["head", "own"],
        Help(
            "Critic: a head on the policy or a network of its own",
            "The network of its own has its own optimiser.",
        ),
        KEPT,
    ] = "head"
    gamma: Annotated[UnitInterval, Help("Discount factor per token")] = 1.0
    lambda_: Annotated[UnitInterval, Help("GAE lambda")] = 0.95
    value: Annotated[NonNegativeFloat, Help("Value loss coefficient")] = 0.5
    value_clip: Annotated[
        NonNegativeFloat,
        Help(
            "Clip range of the value; 0 turns it off",
            "It is relative to the value at the start of the step.",
        ),
    ] = 0.0
    normalize_advantage: Annotated[bool, Help("Normalise the advantages of a step")] = True
    kl: Literal["k1", "k2", "k3"] = "k1"
    kl_in: Literal["loss", "reward"] = "reward"

    def network(self, spec: TextSpec) -> nn.Module:
        return self.with_critic(super().network(spec), int(spec.model["hidden_size"]))

    def with_critic(self, net: nn.Module, size: int) -> nn.Module:
        """Add the critic under a name of its own, next to the policy's parameters, which stay as
        they are.
        """
        net.add_module("critic", Critic(size, copied(net) if self.critic == "own" else None))
        return net

    def groups(self, net: Any) -> dict[str, list[Parameter]]:
        if self.critic == "head":
            return super().groups(net)
        critic = list(net.critic.parameters())
        others = {id(p) for p in critic}
        return {"critic": critic, "policy": [p for p in net.parameters() if id(p) not in others]}

    def look(self, net: Any, target_net: Any, data: Packed) -> dict[str, Tensor]:
        layout = Layout.of(data)
        hidden = net.hidden(data, layout) if self.critic == "head" else None
        return super().look(net, target_net, data) | {"value": net.critic(data, layout, hidden)}

    def advantage(
        self, data: Packed, reward: Tensor, kept: Tensor, seen: dict[str, Tensor], pool: Pool
    ) -> Tree:
        graded = spread(~per_sample(reward, data).isnan(), data)
        out = token_gae(
            reward=reward.nan_to_num(0.0),
            value=seen["value"],
            gamma=self.gamma,
            lambda_=self.lambda_,
            sample=data.sample,
            chosen=data.chosen,
        )
        advantage = (
            standardized(out.advantage, kept, pool) if self.normalize_advantage else out.advantage
        )
        # else there is no error
        return {"advantage": advantage, "target": torch.where(graded, out.target, seen["value"])}

    def loss(
        self,
        net: Any,
        target_net: Any,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        layout = Layout.of(batch.data)
        if group == "critic":
            return self.value_loss(net.critic(batch.data, layout), batch)
        hidden = net.hidden(batch.data, layout)
        said = token_logp(
            net, batch.data, temperature=self.temperature, layout=layout, hidden=hidden
        )
        out = self.policy_loss(*said, batch)
        if group == "policy":
            return out
        of_value = self.value_loss(net.critic(batch.data, layout, hidden), batch)
        return replace(out, loss=out.loss + of_value.loss, metrics=out.metrics | of_value.metrics)

    def value_loss(self, value: Tensor, batch: Batch) -> LossOutput:
        targets = batch.targets
        error = (value - targets["target"]).square()
        if self.value_clip:
            near = targets["value"] + (value - targets["value"]).clamp(
                -self.value_clip, self.value_clip
            )
            error = torch.maximum(error, (near - targets["target"]).square())
        terms = torch.where(targets["kept"], 0.5 * self.value * error, 0.0)
        metrics = over(targets["kept"], {"value_error": error, "value": value})
        return LossOutput(
            loss=(terms * targets["weight"]).sum(), count=targets["count"].sum(), metrics=metrics
        )
