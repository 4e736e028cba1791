"""The shared base of what learns from text: a clipped loss over the tokens of samples, and the sums
it is made of.

A token has three log-probabilities, which are never mixed up: ``data.logp`` is the engine's, of
when the token was drawn; ``targets["start"]`` is the learner's at the start of the step, if
``anchor`` is recomputed; the loss takes that of now. With the ratio r = pi / pi_anchor of now, the
advantage A, the correction w and the divergence kl from the reference policy,

    loss = sum_n weight_n (-w_n min(r_n A_n, clip(r_n) A_n) + beta kl_n - entropy H_n)  /  count

over chosen tokens n (Schulman et al. 2017, arXiv:1707.06347, Eq. 7, token by token). ``weight`` and
``count`` are sums over the whole step, so it may be cut anywhere between two samples:

    loss_type   weight of a token     count
    dapo        1                     tokens               (Yu et al. 2025, arXiv:2503.14476, Eq. 8)
    grpo        1 / its sample's      samples              (Shao et al. 2024, arXiv:2402.03300, Eq. 3)
    dr_grpo     1                     samples x longest    (Liu et al. 2025, arXiv:2503.20783, section 3.2)

Rewards become advantages in ``targets``, over the whole step. No gradient goes through r's anchor,
w, A or the reference.
"""  # noqa: E501

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from equipoise.facts import Help, Read
from equipoise.language import adapters, architectures
from equipoise.nets.decoder import Decoder
from equipoise.nets.layout import Layout
from equipoise.nets.packing import pack
from equipoise.nets.token_logp import token_logp
from equipoise.returns import at_last, ends, group_range
from equipoise.types import (
    Batch,
    Learns,
    LossOutput,
    NonNegativeFloat,
    NonNegativeInt,
    Optimizer,
    Packed,
    Pool,
    PositiveFloat,
    PositiveInt,
    Range,
    Stop,
    TextSpec,
    Trajectory,
    Tree,
)

NEVER = 1 << 40  # updates: the reference stays the first policy
Sums = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class TextLearns(Learns):
    """The base of every algorithm for text: how text is drawn, and which network learns."""

    default_optimizer: ClassVar[Optimizer] = Optimizer(
        schedule="constant", epsilon=1e-8, max_grad_norm=1.0
    )
    needs_task: ClassVar[bool] = True

    micro_batch: Annotated[
        NonNegativeInt,
        Help("Most tokens per micro-batch; 0 takes all at once"),
    ] = 0
    temperature: Annotated[
        Annotated[float, Range(1e-3, 100)],
        Help(
            "Sampling temperature of tokens",
            "The loss takes all probabilities at this temperature.",
        ),
    ] = 1.0

    def network(self, spec: TextSpec) -> nn.Module:
        """The language model, with the weights of the directory that the spec names."""
        net = architectures.build(spec.model, spec.weights)
        net.batch_invariant = spec.batch_invariant
        return adapters.add_adapters(net, spec)

    def prepare(self, data: Trajectory) -> Packed:
        return pack(data)

    @property
    def part_tokens(self) -> int:
        return self.micro_batch


@dataclass(frozen=True, kw_only=True)
class PolicyText(TextLearns):
    """The base of algorithms that learn from rewards."""

    has_target: ClassVar[bool] = True

    num_generations: Annotated[PositiveInt, Help("Completions per prompt (group size)")] = 8
    epsilon: Annotated[
        NonNegativeFloat, Help("Clip range of the ratio below 1; 0 turns clipping off")
    ] = 0.2
    epsilon_high: Annotated[
        NonNegativeFloat | None,
        Help("Clip range of the ratio above 1; none uses epsilon"),
        Read("epsilon"),
    ] = None
    loss_type: Annotated[
        Literal["dapo", "dr_grpo", "grpo"],
        Help(
            "Averaging of the loss over tokens and samples",
            "dapo: the mean over all tokens of the step. dr_grpo: the sum over "
            "tokens, divided by samples times `max_completion`. grpo: the mean "
            "over samples of the mean in each.",
        ),
    ] = "dapo"
    max_completion: Annotated[
        NonNegativeInt,
        Help("Length that dr_grpo divides by; 0 uses the token limit"),
        Read("loss_type", "dr_grpo"),
    ] = 0
    anchor: Annotated[
        Literal["engine", "recomputed"],
        Help(
            "Old policy in the probability ratio",
            "engine: the policy that drew the token. recomputed: the learner's policy "
            "at the start of the step.",
        ),
    ] = "engine"
    correction: Annotated[
        Literal["none", "token_tis", "sequence_tis", "mask"],
        Help(
            "Correction for engine and learner that differ",
            "It weighs a token by the probability ratio of learner to engine. "
            "token_tis and sequence_tis truncate the ratio at `cap`. mask sets a "
            "weight to 0 if the ratio is outside 1/`cap` to `cap`.",
        ),
        Read("anchor", "recomputed", why="the ratio is against the engine's policy already"),
    ] = "token_tis"
    cap: Annotated[
        PositiveFloat, Help("Upper limit of the correction's weight"), Read("anchor", "recomputed")
    ] = 2.0
    beta: Annotated[
        NonNegativeFloat,
        Help(
            "KL coefficient against the reference; 0 turns it off",
            "The reference is the first policy or, with `target_every`, its last copy.",
        ),
    ] = 0.0
    kl: Annotated[
        Literal["k1", "k2", "k3"], Help("Estimator of the KL divergence"), Read("beta")
    ] = "k3"
    kl_in: Annotated[Literal["loss", "reward"], Help("Place of the KL term"), Read("beta")] = "loss"
    kl_ratio: Annotated[
        bool,
        Help(
            "Weigh the KL term by the probability ratio",
            "k3 then has the gradient of KL(policy || reference).",
        ),
        Read("kl_in", "loss"),
    ] = False
    entropy: Annotated[NonNegativeFloat, Help("Entropy coefficient, per token")] = 0.0
    equal_groups: Annotated[
        Literal["keep", "skip"],
        Help(
            "Treatment of groups whose rewards are all equal",
            "keep: they count in every mean. skip: they count in no mean.",
        ),
    ] = "keep"
    mask_truncated_completions: Annotated[
        bool,
        Help(
            "Ignore completions cut by the token limit in the loss",
            "Their rewards still count in the group's mean.",
        ),
    ] = False
    refills: Annotated[
        NonNegativeInt,
        Help("Most replacements of a group with equal rewards"),
    ] = 0
    force: Annotated[bool, Help("Allow an unclipped loss with max_lag above 1")] = False

    @property
    def group_size(self) -> int:
        return self.num_generations

    @property
    def copied_every(self) -> int:
        return self.target_every or (NEVER if self.beta else 0)

    @abstractmethod
    def advantage(
        self, data: Packed, reward: Tensor, kept: Tensor, seen: dict[str, Tensor], pool: Pool
    ) -> Tree:
        """{"advantage": [N], ...}, of ``reward`` [N]: a sample's at its last chosen token, less the
        divergence at each.

        ``kept`` [N]: the tokens that count; ``seen``: the result of ``look``. The reward of a
        sample that no function graded is nan, and its advantage does not matter.
        """

    def refused(self, max_lag: int | None) -> str | None:
        if self.refills and self.num_generations < 2:
            return (
                "algorithm.refills: expected 0 with "
                f"algorithm.num_generations={self.num_generations}, whose rewards are all "
                f"equal, got {self.refills}"
            )
        if not self.epsilon and not self.force and (max_lag is None or max_lag > 1):
            return (
                "algorithm.epsilon: expected a clip with "
                f"max_lag={'none' if max_lag is None else max_lag}, since an unclipped "
                "loss of old samples diverges, got 0; use algorithm.epsilon=0.2 or max_lag=1, or "
                "algorithm.force=true"
            )
        return None

    def look(self, net: Decoder, target_net: Decoder, data: Packed) -> dict[str, Tensor]:
        """[N] each: log-probabilities at the start of the step. Groups do not affect each other."""
        asked = {"start": net} if self.anchor == "recomputed" else {}
        asked |= {"reference": target_net} if self.beta else {}
        layout = Layout.of(data) if asked else None
        return {
            name: token_logp(one, data, temperature=self.temperature, layout=layout, entropy=False)[
                0
            ]
            for name, one in asked.items()
        }

    def targets(
        self, net: Decoder, target_net: Decoder, data: Packed, *, rng: torch.Generator, pool: Pool
    ) -> Tree:
        """[N] each: advantage, weight and count; and what the metrics and the loss need besides."""
        seen = self.look(net, target_net, data)
        scored = per_sample(data.reward, data)
        first, _ = ends(sample=data.sample, chosen=data.chosen)
        graded = spread(~scored.isnan(), data)
        equal = spread(group_range(value=scored, group=data.group) == 0, data)
        counted = data.chosen & ~equal if self.equal_groups == "skip" else data.chosen
        cut = self.mask_truncated_completions & spread(data.stop == int(Stop.LENGTH), data)
        kept = counted & ~cut
        reward = at_last(value=scored, sample=data.sample, chosen=data.chosen)
        if self.beta and self.kl_in == "reward":
            drawn: Tensor = data.logp
            gap = seen.get("start", drawn) - seen["reference"]
            reward = reward - self.beta * torch.where(data.chosen, divergence(gap, self.kl), 0.0)
        # a masked sample counts in the mean, as in TRL
        weight, count = self.weights(data, counted, first & counted)
        out = self.advantage(data, reward, kept & graded, seen, pool) | {
            "weight": weight * kept,
            "count": count,
        }
        out["advantage"] = torch.where(graded, out["advantage"], 0.0)
        if "start" in seen:
            out["correction"] = self.corrections(seen["start"] - data.logp, data)
        return out | seen | {"kept": kept, "equal": first & equal}

    def weights(self, data: Packed, kept: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """[N] each, the table above; ``first``: each sample's first token that counts."""
        if self.loss_type == "dapo":
            return kept.to(data.logp.dtype), kept.to(data.logp.dtype)
        if self.loss_type == "dr_grpo":
            return kept.to(data.logp.dtype), first.to(data.logp.dtype) * (
                self.max_completion or data.longest
            )
        return mean_weight(data, kept), first.to(data.logp.dtype)

    def corrections(self, log_ratio: Tensor, data: Packed) -> Tensor:
        """[N] w: min(ratio, cap) of start against engine, of the token or of its whole sample;
        mask: 0 outside of 1/cap .. cap.

        Yao et al. 2025, Your efficient RL framework secretly brings you off-policy RL training;
        mask: IcePop, Ling Team 2025, arXiv:2510.18855.
        """
        log_ratio = torch.where(data.chosen, log_ratio, 0.0)
        if self.correction == "none":
            return torch.ones_like(log_ratio)
        if self.correction == "mask":
            ratio = log_ratio.exp()
            return torch.where((ratio >= 1.0 / self.cap) & (ratio <= self.cap), ratio, 0.0)
        if self.correction == "sequence_tis":
            log_ratio = spread(per_sample(log_ratio, data), data)
        return log_ratio.exp().clamp(max=self.cap)

    def ratio_of(self, log_ratio: Tensor, data: Packed) -> Tensor:
        """[N] log of the ratio that is clipped, of log pi - log pi_anchor [N]."""
        return log_ratio

    def objective(self, ratio: Tensor, advantage: Tensor, logp: Tensor) -> Tensor:
        """[N] the part of the loss that the advantage is in, to be gone up."""
        if not self.epsilon:
            return ratio * advantage
        return torch.minimum(
            ratio * advantage, ratio.clamp(1.0 - self.epsilon, 1.0 + self.high) * advantage
        )

    @property
    def high(self) -> float:
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    def loss(
        self,
        net: Decoder,
        target_net: Decoder,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        """The loss above, of whole samples."""
        logp, entropy = token_logp(net, batch.data, temperature=self.temperature)
        return self.policy_loss(logp, entropy, batch)

    def policy_loss(self, logp: Tensor, entropy: Tensor, batch: Batch) -> LossOutput:
        data, targets = batch.data, batch.targets
        kept, advantage = targets["kept"], targets["advantage"]
        anchor = targets.get("start", data.logp)
        ratio = self.ratio_of(torch.where(data.chosen, logp - anchor, 0.0), data).exp()
        terms = -self.objective(ratio, advantage, logp)
        shown = {"entropy": entropy} | clipped(ratio.detach(), advantage, self.epsilon, self.high)
        if "correction" in targets:
            terms = terms * targets["correction"]
            shown["sampling/importance_sampling_ratio/mean"] = targets["correction"]
        if self.beta:
            kl = divergence(logp - targets["reference"], self.kl)
            shown["kl"] = kl
            if self.kl_in == "loss":
                terms = terms + self.beta * (kl * ratio if self.kl_ratio else kl)
        if self.entropy:
            terms = terms - self.entropy * entropy
        loss = (torch.where(kept, terms, 0.0) * targets["weight"]).sum()
        metrics = (
            over(kept, shown)
            | of_samples(data, targets)
            | gate(data, targets.get("start", logp), batch.version)
        )
        if self.refills:
            metrics["refills"] = data.refills.sum(), loss.new_full((), len(data.refills))
        return LossOutput(loss=loss, count=targets["count"].sum(), metrics=metrics)


def divergence(gap: Tensor, kind: str) -> Tensor:
    """Estimators of KL(pi || reference) from ``gap`` = log pi - log reference, of samples of pi
    (Schulman 2020, Approximating KL divergence).

    k1 = gap, k2 = gap^2 / 2, k3 = exp(-gap) - 1 + gap. As a loss their expected gradients are zero,
    the gradient of KL(pi || reference), and the gradient of KL(reference || pi). That of KL(pi ||
    reference) comes also from k1 in the reward, and from k1 or k3 as a loss times the ratio
    (DeepSeek-AI 2025, arXiv:2512.02556).
    """
    if kind == "k1":
        return gap
    return 0.5 * gap.square() if kind == "k2" else (-gap).exp() - 1.0 + gap


def per_sample(x: Tensor, data: Packed) -> Tensor:
    """[M] the sum of ``x`` [N] over each sample's tokens."""
    inside = data.sample >= 0
    return x.new_zeros(len(data.prompt)).index_add(
        0, data.sample.clamp(min=0), torch.where(inside, x, 0)
    )


def spread(x: Tensor, data: Packed) -> Tensor:
    """[N] each sample's ``x`` [M] at all of its tokens; that of no sample, 0, at a prompt's."""
    return torch.where(
        data.sample >= 0,
        x[data.sample.clamp(min=0)],
        torch.zeros((), dtype=x.dtype, device=x.device),
    )


def mean_weight(data: Packed, kept: Tensor) -> Tensor:
    """[N] 1 / tokens that count of the token's sample; 0 if it does not count."""
    ones = kept.to(data.logp.dtype)
    return ones / spread(per_sample(ones, data), data).clamp(min=1.0)


def deviation(x: Tensor, pool: Pool) -> Tensor:
    """[] the deviation of all learners' ``x`` [M], sqrt(sum (x - mean)^2 / (n - 1)), in float64."""
    wide = x.double()
    total, n = pool.sum(torch.stack([wide.sum(), wide.new_full((), len(x))]))
    square: Tensor = pool.sum((wide - total / n.clamp(min=1)).square().sum())
    out: Tensor = (square / (n - 1).clamp(min=1)).sqrt().to(x.dtype)
    return out


@torch.no_grad()
def over(kept: Tensor, shown: dict[str, Tensor]) -> Sums:
    """Metrics that are means over the tokens that count."""
    count = kept.sum()
    return {name: (torch.where(kept, x.detach(), 0.0).sum(), count) for name, x in shown.items()}


@torch.no_grad()
def clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> dict[str, Tensor]:
    """[N] each: is the ratio clipped, so that there is no gradient? {} without a clip."""
    if not low:
        return {}
    below, above = (ratio < 1.0 - low) & (advantage < 0), (ratio > 1.0 + high) & (advantage > 0)
    where = {"low": below, "high": above, "region": below | above}
    return {f"clip_ratio/{name}_mean": x.to(ratio.dtype) for name, x in where.items()}


@torch.no_grad()
def of_samples(data: Packed, targets: Tree) -> Sums:
    """Metrics that are means over samples, including samples of skipped groups."""
    samples = data.reward.new_full((), len(data.prompt))
    graded = ~per_sample(data.reward, data).isnan()
    sums = {
        "completions/mean_length": data.chosen.sum(),
        "completions/clipped_ratio": (data.stop == int(Stop.LENGTH)).sum(),
        "frac_reward_zero_std": targets["equal"].sum(),
        "frac_reward_none": (~graded).sum(),
    }
    if data.retokenized is not None:
        turns = data.chosen.clone()  # the first token of each
        turns[1:] &= ~data.chosen[:-1] | (data.sample[1:] != data.sample[:-1])
        sums |= {
            "completions/turns": turns.sum(),
            "completions/failed_ratio": (data.stop == int(Stop.FAILED)).sum(),
            "completions/retokenized_turns": data.retokenized.sum(),
        }
    more: Sums = {}
    if data.given_back is not None and data.kv_load is not None:
        known = ~data.kv_load.isnan()
        more["kv/given_back"] = data.given_back.sum(), samples
        more["kv/load"] = data.kv_load.nan_to_num().sum(), known.sum()
    if data.part is not None:  # prefixes that were read, and turns after them
        inside = data.sample >= 0
        new = inside.clone()
        new[1:] &= (data.sample[1:] != data.sample[:-1]) | (data.part[1:] != data.part[:-1])
        sums["completions/prefixes"] = new.sum()
    reward = torch.where(data.sample >= 0, data.reward, 0.0).nan_to_num().sum()
    return (
        {"reward": (reward, graded.sum())}
        | {name: (total, samples) for name, total in sums.items()}
        | more
    )


@torch.no_grad()
def gate(data: Packed, logp: Tensor, version: int) -> Sums:
    """How far the engine's log-probabilities are from the learner's of the same version: 1 and 0 if
    the two agree.

    ``token_mult_prob_error`` is the mean of exp |engine - learner| over tokens of samples that this
    version began. A token of a sample that an older version began was drawn by keys and values of
    both (``source.on_update=keep``), and is in ``token_mult_prob_error/older_keys``. Tokens of
    other versions are left out.
    """
    first, _ = ends(sample=data.sample, chosen=data.chosen)
    begun = spread(per_sample(torch.where(first, data.version, 0), data), data) == version
    same = data.chosen & (data.version == version)
    gap = torch.where(same, (logp.detach() - data.logp).abs(), 0.0)

    def mean(x: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(where, x, 0.0).sum(), where.sum()

    return {
        "token_mult_prob_error": mean(gap.exp(), same & begun),
        "token_mult_prob_error/older_keys": mean(gap.exp(), same & ~begun),
        "sampling/sampling_logp_difference/mean": mean(gap, same & begun),
    }
