"""Losses of text, against the formulas written out sample by sample and token by token, and cut in
any way.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.algorithms._text import PolicyText
from equipoise.algorithms.grpo import GRPO
from equipoise.algorithms.reinforce_pp import ReinforcePP
from equipoise.algorithms.rloo import RLOO
from equipoise.algorithms.sft import SFT
from equipoise.algorithms.token_ppo import TokenPPO
from equipoise.programs.ranges import out_of_range
from equipoise.types import Packed, Stop
from tests.algorithms import text

SIZES = (4, 2, 3)
KL: dict[str, Any] = {"beta": 0.3, "target_every": 10**9}
GRPOS: dict[str, GRPO] = {
    f"{loss_type}, {importance}, {scale}": GRPO(
        loss_type=loss_type,
        importance=importance,
        scale_rewards=scale,
        max_completion=9,
        epsilon=0.1,
        epsilon_high=0.3,
    )
    for loss_type in ("dapo", "grpo", "dr_grpo")
    for importance in ("token", "sequence")
    for scale in ("group", "batch", "none")
} | {
    "cispo": GRPO(surrogate="cispo", epsilon_high=0.3),
    "unclipped": GRPO(epsilon=0.0),
    "k1": GRPO(**KL, kl="k1"),
    "k2": GRPO(**KL, kl="k2", loss_type="grpo"),
    "k3": GRPO(**KL, kl="k3", loss_type="dr_grpo", max_completion=256),
    "k3, times the ratio": GRPO(**KL, kl_ratio=True),
    "k3 in the reward": GRPO(**KL, kl="k3", kl_in="reward"),
    "entropy": GRPO(entropy=0.2, loss_type="grpo"),
    "tis": GRPO(anchor="recomputed", correction="token_tis", cap=1.2),
    "sequence tis": GRPO(anchor="recomputed", correction="sequence_tis", cap=1.2, **KL),
    "mask": GRPO(anchor="recomputed", correction="mask", cap=1.5),
    "recomputed": GRPO(anchor="recomputed", correction="none"),
    "warm": GRPO(temperature=1.7, entropy=0.1, **KL),
    "skip": GRPO(equal_groups="skip", **KL),
    "skip, grpo": GRPO(equal_groups="skip", loss_type="grpo"),
    "skip, dr_grpo": GRPO(equal_groups="skip", loss_type="dr_grpo", max_completion=256),
}
RLOOS: dict[str, RLOO] = {
    "rloo": RLOO(**KL),
    "rloo, k2 in the loss": RLOO(**KL, kl="k2", kl_in="loss", entropy=0.1),
    "rloo, of tokens": RLOO(importance="token", **KL),
    "rloo, unclipped": RLOO(epsilon=0.0, equal_groups="skip"),
}
OTHERS: dict[str, PolicyText] = {
    "reinforce++": ReinforcePP(**KL),
    "reinforce++, no baseline": ReinforcePP(baseline="none", gamma=0.9, equal_groups="skip"),
    "token ppo": TokenPPO(**KL, gamma=0.9, lambda_=0.8),
    "token ppo, value clip": TokenPPO(
        value_clip=0.2, normalize_advantage=False, loss_type="grpo", equal_groups="skip"
    ),
}
ALL: dict[str, PolicyText] = {**GRPOS, **RLOOS, **OTHERS}


def data_of(seed: int) -> Packed:
    """With tools' tokens, and a group in which all get the same."""
    data = text.packed(SIZES, seed=seed, tools=True)
    reward = data.reward.clone()
    for m in (data.group == 1).nonzero():
        reward[(data.sample == m).nonzero()[-1]] = 1.0
    return replace(data, reward=reward)


# ------------------------------------------------------------------------------------ the slow twin


def spoken(net: text.Table, data: Packed, temperature: float) -> tuple[list[Tensor], list[Tensor]]:
    """The log-probability and the entropy of every token of a sample, each from its own softmax;
    zeros for prompts.
    """
    tokens, sample = data.token.tolist(), data.sample.tolist()
    logps, entropies = list[Tensor](), list[Tensor]()
    end = 0
    for n, m in enumerate(sample):
        if m < 0:
            end = n
            logps.append(torch.zeros((), dtype=torch.float64))
            entropies.append(torch.zeros((), dtype=torch.float64))
            continue
        seen = tokens[n - 1] if sample[n - 1] == m else tokens[end]
        p = torch.softmax(net.head[:, seen] / temperature, 0)
        logps.append(p[tokens[n]].log())
        entropies.append(-(p * p.log()).sum())
    return logps, entropies


def estimate(kind: str, now: Tensor, reference: Tensor) -> Tensor:
    gap = now - reference
    return {"k1": gap, "k2": gap**2 / 2, "k3": torch.exp(reference - now) - (reference - now) - 1}[
        kind
    ]


def advantages(
    a: Any,
    data: Packed,
    scored: list[float],
    costs: dict[int, float],
    chosen: list[list[int]],
    value: list[float],
) -> tuple[dict[int, float], dict[int, float]]:
    """Of each chosen token, and the value target; ``costs``: each one's divergence times beta."""
    out, target = dict[int, float](), dict[int, float]()
    paid = [r - sum(costs[n] for n in places) for r, places in zip(scored, chosen, strict=True)]
    for m, places in enumerate(chosen):
        mates = [j for j in range(len(paid)) if data.group[j] == data.group[m]]
        if isinstance(a, RLOO):
            out |= dict.fromkeys(
                places, paid[m] - statistics.mean(paid[j] for j in mates if j != m)
            )
        elif isinstance(a, GRPO):
            deviation = {"group": [paid[j] for j in mates], "batch": paid}.get(a.scale_rewards)
            centred = paid[m] - statistics.mean(paid[j] for j in mates)
            out |= dict.fromkeys(
                places, centred / (1.0 if deviation is None else statistics.stdev(deviation) + 1e-4)
            )
        else:
            lambda_, after, trace = getattr(a, "lambda_", 1.0), 0.0, 0.0
            with_baseline = isinstance(a, ReinforcePP) and a.baseline == "group"
            baseline = statistics.mean(scored[j] for j in mates) if with_baseline else 0.0
            for n in reversed(places):
                got = (scored[m] - baseline if n == places[-1] else 0.0) - costs[n]
                trace = got + a.gamma * after - value[n] + a.gamma * lambda_ * trace
                out[n], target[n], after = trace, trace + value[n], value[n]
    if getattr(a, "normalize_advantage", isinstance(a, ReinforcePP)):
        counted = [out[n] for n in out if not skipped(a, data, scored, int(data.sample[n]))]
        mean, deviation_ = statistics.mean(counted), statistics.pstdev(counted)
        out = {n: (x - mean) / (deviation_ + 1e-8) for n, x in out.items()}
    return out, target


def skipped(a: Any, data: Packed, scored: list[float], m: int) -> bool:
    return (
        a.equal_groups == "skip"
        and len({scored[j] for j in range(len(scored)) if data.group[j] == data.group[m]}) == 1
    )


def slow_loss(a: Any, net: text.Table, reference: text.Table, data: Packed) -> Tensor:
    """The whole step's loss, from the papers' formulas."""
    now, entropy = spoken(net, data, a.temperature)
    start = [x.detach() for x in now]
    ref = [x.detach() for x in spoken(reference, data, a.temperature)[0]]
    engine = data.logp.tolist()
    anchor = [x.item() for x in start] if a.anchor == "recomputed" else engine
    samples = [
        [n for n, m in enumerate(data.sample.tolist()) if m == sample]
        for sample in range(len(data.prompt))
    ]
    scored = [sum(data.reward[n].item() for n in places) for places in samples]
    chosen = [[n for n in places if data.chosen[n]] for places in samples]
    value, values = [0.0] * len(now), list[Tensor]()
    if isinstance(a, TokenPPO):
        values = valued(net, data)
        value = [x.item() for x in values]
    inside = a.beta if a.kl_in == "reward" else 0.0
    costs = {
        n: inside * float(estimate(a.kl, torch.tensor(anchor[n], dtype=torch.float64), ref[n]))
        for places in chosen
        for n in places
    }
    advantage, target = advantages(a, data, scored, costs, chosen, value)
    total, divisor = torch.zeros((), dtype=torch.float64), 0.0
    whole = getattr(a, "importance", "token") == "sequence"
    low, high = a.epsilon, a.epsilon if a.epsilon_high is None else a.epsilon_high
    for m, places in enumerate(chosen):
        if skipped(a, data, scored, m):
            continue
        logs = [now[n] - anchor[n] for n in places]
        shift = sum(float(start[n]) - engine[n] for n in places)
        of_sample = torch.zeros((), dtype=torch.float64)
        for n, log in zip(places, logs, strict=True):
            if whole:
                log = sum(logs, torch.zeros(())) / (1 if isinstance(a, RLOO) else len(places))
            ratio = log.exp()
            if getattr(a, "surrogate", "ppo") == "cispo":
                term = -min(ratio.item(), 1 + high) * advantage[n] * now[n]
            elif not low:
                term = -ratio * advantage[n]
            else:
                term = -torch.min(
                    ratio * advantage[n], torch.clamp(ratio, 1 - low, 1 + high) * advantage[n]
                )
            if a.anchor == "recomputed":
                weight = math.exp(float(start[n]) - engine[n])
                term = (
                    term
                    * {
                        "none": 1.0,
                        "token_tis": min(weight, a.cap),
                        "sequence_tis": min(math.exp(shift), a.cap),
                        "mask": weight if 1 / a.cap <= weight <= a.cap else 0.0,
                    }[a.correction]
                )
            if a.beta and a.kl_in == "loss":
                term = term + a.beta * estimate(a.kl, now[n], ref[n]) * (
                    ratio if a.kl_ratio else 1.0
                )
            # at the start of the step a new value is the old one, so the clip does nothing
            if values:
                term = term + a.value * 0.5 * (values[n] - target[n]) ** 2
            of_sample = of_sample + term - a.entropy * entropy[n]
        by_tokens = not whole if isinstance(a, RLOO) else a.loss_type != "grpo"
        total = total + (of_sample if by_tokens else of_sample / len(places))
        if isinstance(a, RLOO) or a.loss_type == "grpo":
            divisor += 1
        else:
            divisor += len(places) if a.loss_type == "dapo" else a.max_completion
    return total / divisor


def valued(net: Any, data: Packed) -> list[Tensor]:
    """V before every token of a sample, zeros for prompts."""
    tokens, sample, end = data.token.tolist(), data.sample.tolist(), 0
    out = list[Tensor]()
    for n, m in enumerate(sample):
        end = n if m < 0 else end
        seen = tokens[n - 1] if m >= 0 and sample[n - 1] == m else tokens[end]
        out.append(net.critic.head.weight[0, seen] + net.critic.head.bias[0])
    return out


def nets(algorithm: Any = None) -> tuple[text.Table, text.Table]:
    return text.for_(algorithm, text.Table(seed=1)), text.Table(seed=2)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_loss_is_its_formula(name: str, seed: int) -> None:
    algorithm, data = ALL[name], data_of(seed)
    net, reference = nets(algorithm)
    value, gradient = text.stepped(algorithm, net, reference, data, [range(len(data.prompt))])
    wanted = slow_loss(algorithm, net, reference, data)
    slow = torch.cat([x.flatten() for x in torch.autograd.grad(wanted, list(net.parameters()))])
    torch.testing.assert_close(value, wanted.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient, slow, rtol=1e-9, atol=1e-12)
    assert gradient.abs().max() > 1e-4


CUTS = ([[0], [1, 2, 3, 4, 5, 6, 7, 8]], [[m] for m in range(9)], [[8, 0], [4, 7, 1], [6, 5, 3, 2]])


@pytest.mark.parametrize("name", ALL)
def test_a_step_may_be_cut_anywhere(name: str) -> None:
    algorithm, data = ALL[name], data_of(3)
    net, reference = nets(algorithm)
    value, gradient = text.stepped(algorithm, net, reference, data, [range(len(data.prompt))])
    for cuts in CUTS:
        cut, part = text.stepped(algorithm, net, reference, data, cuts)
        torch.testing.assert_close(cut, value, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(part, gradient, rtol=1e-6, atol=1e-12)
    mixed, _ = text.part(data, {}, [7, 2, 5, 8, 0, 3, 6, 1, 4])
    other, moved = text.stepped(algorithm, net, reference, mixed, [range(len(data.prompt))])
    torch.testing.assert_close(other, value, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(moved, gradient, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["k3", "tis", "sequence tis", "rloo"])
def test_metrics_are_sums_too(name: str) -> None:
    algorithm, data = ALL[name], data_of(4)
    net, reference = nets()
    made = text.targets(algorithm, net, reference, data)
    whole = text.means([text.loss(algorithm, net, data, made)])
    cut = text.means(
        [text.loss(algorithm, net, *text.part(data, made, samples)) for samples in CUTS[2]]
    )
    assert cut == pytest.approx(whole, rel=1e-9)


def test_metrics_say_what_they_are_named_for() -> None:
    algorithm, data = GRPO(**KL, epsilon=0.1), data_of(5)
    net, reference = nets()
    made = text.targets(algorithm, net, reference, data)
    got = text.means([text.loss(algorithm, net, data, made)])
    now, entropy = spoken(net, data, 1.0)
    ref, chosen = spoken(reference, data, 1.0)[0], data.chosen.nonzero().squeeze(1).tolist()
    ratios = [math.exp(now[n].item() - data.logp[n].item()) for n in chosen]
    advantages = made["advantage"][data.chosen].tolist()
    low = [r < 0.9 and a < 0 for r, a in zip(ratios, advantages, strict=True)]
    high = [r > 1.1 and a > 0 for r, a in zip(ratios, advantages, strict=True)]
    gaps = [abs(now[n].item() - data.logp[n].item()) for n in chosen]
    assert sum(low) and sum(high)
    assert got == pytest.approx(
        {
            "reward": data.reward.sum().item() / 9,
            "completions/mean_length": len(chosen) / 9,
            "completions/clipped_ratio": (data.stop == Stop.LENGTH).sum().item() / 9,
            "frac_reward_zero_std": 2 / 9,
            "frac_reward_none": 0.0,
            "entropy": statistics.mean(entropy[n].item() for n in chosen),
            "kl": statistics.mean(estimate("k3", now[n], ref[n]).item() for n in chosen),
            "clip_ratio/low_mean": statistics.mean(low),
            "clip_ratio/high_mean": statistics.mean(high),
            "clip_ratio/region_mean": statistics.mean(low) + statistics.mean(high),
            "token_mult_prob_error": statistics.mean(map(math.exp, gaps)),
            "token_mult_prob_error/older_keys": 0.0,  # there is no such token
            "sampling/sampling_logp_difference/mean": statistics.mean(gaps),
        }
    )


def test_the_gate_is_of_what_this_version_drew_by_its_own_keys() -> None:
    algorithm, net = GRPO(), text.Table(seed=1)
    data = text.packed([2, 2, 2], seed=6, version=3, longest=9)
    exact = torch.stack(spoken(net, data, 1.0)[0]).detach()
    # Odd samples were begun by version 2, and their later tokens drawn by version 3 with keys of
    # version 2.
    older = (data.sample % 2 == 1) & (data.sample >= 0)
    place = torch.where(data.sample >= 0, data.position - data.prompt[data.sample.clamp(min=0)], 0)
    version = torch.where(older & (place < 2), 2, 3)
    late = data.chosen & older & (place >= 2)
    assert late.any()
    data = replace(
        data,
        logp=torch.where(late, exact - 0.5, torch.where(version == 2, -7.0, exact)),
        version=version,
    )
    made = text.targets(algorithm, net, None, data)

    def seen(version: int, name: str = "token_mult_prob_error") -> tuple[float, float]:
        total, count = text.loss(algorithm, net, data, made, version=version).metrics[name]
        return float(total), float(count)

    total, count = seen(3)
    assert count == int((data.chosen & ~older).sum()) and total == pytest.approx(count, rel=1e-12)
    total, count = seen(3, "token_mult_prob_error/older_keys")
    assert count == int(late.sum()) and total == pytest.approx(count * math.exp(0.5), rel=1e-9)
    assert seen(2)[0] > 10 * seen(2)[1] > 0
    assert seen(-1) == (0.0, 0.0)  # once a step has changed the weights


def test_a_skipped_group_counts_nowhere() -> None:
    data, (net, reference) = data_of(7), nets()
    others = [m for m, group in enumerate(data.group.tolist()) if group != 1]
    less, _ = text.part(data, {}, others)
    for loss_type in ("dapo", "grpo", "dr_grpo"):
        skipping = GRPO(
            equal_groups="skip", loss_type=loss_type, entropy=0.1, max_completion=9, **KL
        )
        with_it = text.stepped(skipping, net, reference, data, [range(9)])
        without = text.stepped(
            replace(skipping, equal_groups="keep"), net, reference, less, [range(7)]
        )
        for one, other in zip(with_it, without, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
        everything, _ = text.part(data, {}, [4, 5])
        value, gradient = text.stepped(skipping, net, reference, everything, [[0, 1]])
        assert value == 0 and not gradient.any()


def test_fine_tuning_is_the_mean_over_completions() -> None:
    data, (net, _) = data_of(9), nets()
    now, entropy = spoken(net, data, 1.0)
    chosen = data.chosen.nonzero().squeeze(1).tolist()
    value, gradient = text.stepped(SFT(entropy=0.1), net, None, data, CUTS[2])
    wanted = sum((-now[n] - 0.1 * entropy[n] for n in chosen), torch.zeros(())) / len(chosen)
    torch.testing.assert_close(value, wanted.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted, [net.head])[0].flatten())
    metrics = text.means([text.loss(SFT(), net, data, {})])
    assert metrics == pytest.approx(
        {
            "loss": -statistics.mean(now[n].item() for n in chosen),
            "entropy": statistics.mean(entropy[n].item() for n in chosen),
        }
    )


def test_a_critic_of_its_own_has_its_own_optimiser() -> None:
    together = TokenPPO(gamma=0.9)
    apart = replace(together, critic="own")
    data, shared = data_of(10), text.for_(together, text.Table(seed=1))
    net: Any = text.for_(apart, text.Table(seed=1))
    groups = apart.groups(net)
    assert list(groups) == ["critic", "policy"] and [p.shape for p in groups["policy"]] == [
        net.head.shape
    ]
    assert sum(len(params) for params in groups.values()) == len(list(net.parameters()))
    assert [name for name, _ in net.named_parameters() if not name.startswith("critic.")] == [
        "head"
    ]
    whole, gradient = text.stepped(together, shared, None, data, [range(9)])
    policy, of_policy = text.stepped(apart, net, None, data, CUTS[2], "policy")
    critic, of_critic = text.stepped(apart, net, None, data, CUTS[2], "critic")
    torch.testing.assert_close(policy + critic, whole)
    torch.testing.assert_close(of_policy, gradient[: net.head.numel()])
    torch.testing.assert_close(of_critic, gradient[net.head.numel() :])


def test_a_value_is_held_near_what_it_was() -> None:
    algorithm, data = TokenPPO(value_clip=0.1), data_of(11)
    net, _ = nets(algorithm)
    made = text.targets(algorithm, net, None, data)
    with torch.no_grad():
        net.critic.head.bias += 5.0  # type: ignore[union-attr, operator]
    out = algorithm.value_loss(made["value"] + 5.0, text.batch(data, made))
    near, far = (
        (made["value"] + 0.1 - made["target"]).square(),
        (made["value"] + 5.0 - made["target"]).square(),
    )
    torch.testing.assert_close(out.loss, (0.25 * torch.maximum(near, far))[data.chosen].sum())


class Halves:
    """A pool whose other learner has the same batch as this one."""

    def sum(self, x: Tensor) -> Tensor:
        return 2 * x

    def max(self, x: Tensor) -> Tensor:
        return x


def test_a_deviation_is_of_all_learners() -> None:
    algorithm, data = GRPO(scale_rewards="batch"), data_of(8)
    net, _ = nets()
    shared = text.targets(algorithm, net, None, data, Halves())["advantage"]
    alone = text.targets(replace(algorithm, scale_rewards="none"), net, None, data)["advantage"]
    scored = [data.reward[data.sample == m].sum().item() for m in range(9)]
    torch.testing.assert_close(shared * (statistics.stdev(scored * 2) + 1e-4), alone)


@pytest.mark.parametrize("max_lag", [0, 1, 2, None])
def test_an_unclipped_loss_takes_fresh_samples(max_lag: int | None) -> None:
    assert GRPO().refused(max_lag) is RLOO().refused(max_lag) is None
    assert GRPO(epsilon=0.0, force=True).refused(max_lag) is None
    said = RLOO(epsilon=0.0).refused(max_lag)
    if max_lag in (0, 1):
        assert said is None
    else:
        assert (
            said is not None
            and "algorithm.epsilon=0.2 or max_lag=1, or algorithm.force=true" in said
        )


def test_a_mean_of_a_group_takes_two() -> None:
    said = ReinforcePP(num_generations=1).refused(0)
    assert said is not None and "use algorithm.num_generations=2 or algorithm.baseline=none" in said
    assert ReinforcePP(num_generations=1, baseline="none").refused(0) is None
    for algorithm in (GRPO(num_generations=1), RLOO(num_generations=1)):
        assert out_of_range(algorithm, "algorithm.") == [
            "algorithm.num_generations: expected at least 2, got 1"
        ]


def test_a_divergence_alone_keeps_the_first_policy() -> None:
    assert (GRPO().copied_every, GRPO(target_every=5, beta=0.1).copied_every) == (0, 5)
    assert GRPO(beta=0.1).refused(0) is None and GRPO(beta=0.1).copied_every > 1 << 30
