"""Planted bugs: each is made on purpose, and the check that is named for it sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.algorithms import _text
from equipoise.algorithms.grpo import GRPO
from equipoise.algorithms.reinforce_pp import ReinforcePP
from equipoise.algorithms.token_ppo import TokenPPO
from equipoise.nets.layout import Layout
from equipoise.nets.token_logp import token_logp
from equipoise.types import Packed
from tests.algorithms import text

Monkey = pytest.MonkeyPatch
REINFORCE = ReinforcePP(baseline="none", gamma=1.0)


def with_tool_at_the_end() -> Packed:
    """A sample of three tokens, the last of which a tool wrote; its reward stands there."""
    return Packed(
        token=torch.tensor([0, 1, 2, 3]),
        position=torch.arange(4),
        sample=torch.tensor([-1, 0, 0, 0]),
        chosen=torch.tensor([False, True, True, False]),
        logp=torch.tensor([0.0, -1.0, -1.0, 0.0], dtype=torch.float64),
        version=torch.tensor([-1, 3, 3, -1]),
        reward=torch.tensor([0.0, 0.0, 0.0, 2.0], dtype=torch.float64),
        prompt=torch.tensor([1]),
        group=torch.tensor([0]),
        stop=torch.tensor([1]),
        task=torch.tensor([0]),
        refills=torch.tensor([0]),
    )


def a_reward_is_paid_to_the_last_chosen_token() -> None:
    algorithm = TokenPPO(normalize_advantage=False, lambda_=1.0)
    net, data = text.Table(seed=1), with_tool_at_the_end()
    algorithm.with_critic(net, text.VOCABULARY).double()
    made = text.targets(algorithm, net, None, data)
    assert made["advantage"].tolist() == [0.0, 2.0, 2.0, 0.0]


def words_of_a_tool_are_not_learned() -> None:
    """What a tool wrote last is seen by no drawing, so it may be anything."""
    net, data = text.Table(seed=1), with_tool_at_the_end()
    other = replace(
        data,
        token=torch.tensor([0, 1, 2, 4]),
        logp=torch.tensor([0.0, -1.0, -1.0, -7.0], dtype=torch.float64),
    )
    for algorithm in (TokenPPO(normalize_advantage=False), GRPO(entropy=0.1), REINFORCE):
        text.for_(algorithm, net)
        one, two = (text.stepped(algorithm, net, None, each, [[0]]) for each in (data, other))
        for x, y in zip(one, two, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)


def a_step_is_divided_once() -> None:
    net, data = text.Table(seed=1), text.packed([2, 3, 4], seed=3)
    for algorithm in (GRPO(), GRPO(loss_type="grpo"), GRPO(scale_rewards="batch"), REINFORCE):
        whole = text.stepped(algorithm, net, None, data, [range(9)])
        cut = text.stepped(algorithm, net, None, data, [[0], [1, 2, 3], [4, 5, 6, 7, 8]])
        for one, other in zip(whole, cut, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-12)


def a_token_is_predicted_by_the_one_before() -> None:
    """The gate, for an engine that is right: it samples from the same table."""
    net, data = text.Table(seed=1), text.packed([2, 2], seed=4)
    tokens, previous = data.token, Layout.of(data).previous
    true = net.head.detach().log_softmax(0)[tokens, tokens[previous]]
    data = replace(data, logp=torch.where(data.chosen, true, 0.0))
    made = text.targets(GRPO(), net, None, data)
    total, count = text.loss(GRPO(), net, data, made).metrics["token_mult_prob_error"]
    assert float(total / count) < 1.001


def paid_where_it_stands(*, value: Tensor, sample: Tensor, chosen: Tensor) -> Tensor:
    """Planted: a reward stays at the last token, whoever wrote it."""
    last = torch.ones_like(chosen)
    last[:-1] = sample[1:] != sample[:-1]
    return torch.where(last & (sample >= 0), value[sample.clamp(min=0)], 0.0)


def divided_by_each(algorithm: Any, net: Any, reference: Any, data: Packed, cuts: Any) -> Any:
    """Planted: each micro-batch is divided by its own count, and the sum by how many there are."""
    made = text.targets(algorithm, net, reference, data)
    outs = [text.loss(algorithm, net, *text.part(data, made, samples)) for samples in cuts]
    loss = torch.stack([out.loss / out.count for out in outs]).mean()
    return loss.detach(), torch.autograd.grad(loss, [net.head])[0].flatten()


def shifted(net: Any, data: Packed, **given: Any) -> tuple[Tensor, Tensor]:
    """Planted: a token's logits are those behind it."""
    return token_logp(net, data, **(given | {"hidden": net.hidden(data).roll(-1, 0)}))


def as_if_drawn(algorithm: Any, net: Any, reference: Any, data: Packed, cuts: Any) -> Any:
    """Planted: every token of a sample counts as chosen."""
    return STEPPED(algorithm, net, reference, replace(data, chosen=data.sample >= 0), cuts)


STEPPED = text.stepped
CHECKS = {
    "reward on PAD": a_reward_is_paid_to_the_last_chosen_token,
    "tool tokens as chosen": words_of_a_tool_are_not_learned,
    "normalisation a micro-batch": a_step_is_divided_once,
    "logits shifted by one": a_token_is_predicted_by_the_one_before,
}


def plant(name: str, monkey: Monkey) -> None:
    if name == "reward on PAD":
        monkey.setattr(_text, "at_last", paid_where_it_stands)
    elif name == "tool tokens as chosen":
        monkey.setattr(text, "stepped", as_if_drawn)
    elif name == "normalisation a micro-batch":
        monkey.setattr(text, "stepped", divided_by_each)
    else:
        monkey.setattr(_text, "token_logp", shifted)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", CHECKS)
def test_a_planted_bug_is_seen(name: str, monkeypatch: Monkey) -> None:
    CHECKS[name]()
    plant(name, monkeypatch)
    with pytest.raises(AssertionError):
        CHECKS[name]()
