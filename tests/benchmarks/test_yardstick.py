"""The bound rests on these functions, so they must do the real work: the same V-trace, the same
probabilities.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from yardstick import GAMMA, Conv, Net, Rows, learn, make_optimizer, vtrace

from equipoise import returns


def filled(net: Net | Conv, unroll: int = 5, batch: int = 3) -> Rows:
    rows = net.rows(unroll, batch)
    torch.manual_seed(1)
    rows.obs.random_(256) if rows.obs.dtype == torch.uint8 else rows.obs.normal_()
    rows.action.random_(net.actions) if rows.action.dtype == torch.int64 else rows.action.normal_()
    rows.logp.uniform_(-2, -0.5)
    rows.reward.normal_()
    rows.mask.bernoulli_(0.7)
    rows.bootstrap.bernoulli_(0.7)
    return rows


NETS: dict[str, Any] = {
    "categorical": lambda: Net(4, 2),
    "gaussian": lambda: Net(17, 6, gaussian=True),
    "conv": lambda: Conv(6, bf16=False, compiled=False),
}


def test_vtrace_is_that_of_the_package() -> None:
    rows = filled(Net(4, 2))
    value, logp = torch.randn(6, 3), torch.randn(5, 3) - 1
    target, advantage = vtrace(rows, value, logp)
    expected = returns.vtrace(
        reward=rows.reward,
        discount=GAMMA * rows.bootstrap,
        value=value,
        log_rho=logp - rows.logp,
        mask=rows.mask.bool(),
    )
    real = rows.mask.bool()
    torch.testing.assert_close(target[real], expected.target[real])
    torch.testing.assert_close(advantage[real], expected.advantage[real])


@pytest.mark.parametrize("kind", NETS)
def test_acting_and_learning_agree_on_the_probability(kind: str) -> None:
    torch.manual_seed(0)
    net = NETS[kind]()
    rows = filled(net)
    noise = net.noise(5, 3)
    with torch.inference_mode():
        for t in range(5):
            net.act(net.frozen(), rows.obs[t], noise[t], rows.action[t], rows.logp[t])
    nll, negative_entropy, value = net.judge(rows)
    torch.testing.assert_close(-nll.view(5, 3), rows.logp, rtol=1e-4, atol=1e-4)
    assert value.shape == (18,)
    if kind == "gaussian":
        std = torch.distributions.Normal(torch.zeros(6), net.views[6].exp())
        # up to a constant
        expected = std.entropy().sum() - 6 * 0.5 * (1 + torch.log(torch.tensor(2 * torch.pi)))
        torch.testing.assert_close(-negative_entropy, expected)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", NETS)
def test_a_step_lowers_the_error_of_the_value(kind: str) -> None:
    torch.manual_seed(0)
    net = NETS[kind]()
    rows = filled(net)
    opt = make_optimizer(net, "adam")
    opt.param_groups[0]["lr"] = 3e-4
    rows.bootstrap.zero_()  # the targets are the rewards
    rows.mask.fill_(1.0)
    rows.logp.copy_(-net.judge(rows)[0].detach().view(5, 3))
    before = (net.judge(rows)[2][:15].detach() - rows.reward.view(-1)).square().mean()
    for _ in range(20):
        learn(net, opt, rows)
    after = (net.judge(rows)[2][:15].detach() - rows.reward.view(-1)).square().mean()
    assert after < before
