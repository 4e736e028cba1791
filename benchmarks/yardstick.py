"""The fastest plain torch for what an actor-critic does: nets, acting, one IMPALA step.
``pieces.py`` times these.

Nothing of Equipoise is imported, so that the bound that follows from them is nobody's opinion of
itself. ``Net`` is an MLP 64-64 tanh with a categorical or a Gaussian policy; ``Conv`` is the Nature
CNN (Mnih et al. 2015) in bfloat16, channels last, compiled. Both give ``learn`` the same three
things: -log pi(a|s), its negative entropy, and the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.nets.precision import native_bf16

HIDDEN = 64
GAMMA, VALUE, ENTROPY, MAX_NORM, RATE = 0.99, 0.5, 0.01, 40.0, 3e-3
FRAMES = (4, 84, 84)


class Rows:
    """One batch: an unroll of T rows of B streams, and the observation after it."""

    def __init__(self, unroll: int, batch: int, obs: Tensor, action: Tensor) -> None:
        """``obs`` and ``action``: one of each, for shape, dtype and memory format."""
        self.obs = torch.zeros((unroll + 1, batch, *obs.shape), dtype=obs.dtype)
        self.action = torch.zeros((unroll, batch, *action.shape), dtype=action.dtype)
        self.logp, self.reward = torch.zeros(unroll, batch), torch.zeros(unroll, batch)
        # a real row; its next value counts
        self.mask, self.bootstrap = torch.ones(unroll, batch), torch.ones(unroll, batch)


# ----------------------------------------------------------------------------------------- the nets


class Net:
    """MLP 64-64 tanh; the policy and the value head are columns of one matrix. Parameters and
    gradients view ``flat``.
    """

    def __init__(self, obs: int, actions: int, *, gaussian: bool = False) -> None:
        self.obs, self.actions, self.gaussian = obs, actions, gaussian
        sizes = (
            (obs, HIDDEN, math.sqrt(2)),
            (HIDDEN, HIDDEN, math.sqrt(2)),
            (HIDDEN, actions + 1, 0.01),
        )
        params = [
            p
            for i, o, gain in sizes
            for p in (nn.init.orthogonal_(torch.empty(i, o), gain), torch.zeros(o))
        ]
        if gaussian:
            params.append(torch.zeros(actions))  # log std
        self.flat = nn.Parameter(torch.cat([p.reshape(-1) for p in params]))
        self.grad = torch.zeros_like(self.flat, requires_grad=False)
        self.flat.grad = self.grad
        self.views: list[Tensor] = []
        at = 0
        for p in params:
            part = slice(at, at + p.numel())
            view = self.flat.data[part].view_as(p).requires_grad_()
            view.grad = self.grad[part].view_as(p)
            self.views.append(view)
            at += p.numel()

    def parameters(self) -> list[nn.Parameter]:
        return [self.flat]

    def rows(self, unroll: int, batch: int) -> Rows:
        one = torch.zeros(self.actions) if self.gaussian else torch.zeros((), dtype=torch.int64)
        return Rows(unroll, batch, torch.zeros(self.obs), one)

    def frozen(self) -> list[Tensor]:
        """Contiguous weights of a forward without the value, as acting needs it."""
        w1, b1, w2, b2, weight, bias, *rest = self.views
        return [w1, b1, w2, b2, weight[:, : self.actions].contiguous(), bias[: self.actions], *rest]

    def noise(self, unroll: int, streams: int) -> tuple[Tensor, ...]:
        """Of a whole unroll, [B, A] a row: argmax(logits + Gumbel) is a sample, and so is mean +
        std * normal.
        """
        out = torch.empty(unroll, streams, self.actions)
        return (out.normal_() if self.gaussian else out.exponential_().log_().neg_()).unbind(0)

    def act(
        self, weights: Sequence[Tensor], obs: Tensor, noise: Tensor, action: Tensor, logp: Tensor
    ) -> None:
        """obs [B, ...] -> action [B, ...] and logp [B], in place."""
        out = mlp(weights, obs)
        if self.gaussian:
            log_std = weights[6]
            torch.addcmul(out, noise, log_std.exp(), out=action)
            torch.sum(noise.square().mul_(-0.5), -1, out=logp)
            logp.sub_(log_std.sum() + 0.5 * self.actions * math.log(2 * math.pi))
            return
        sample(out, noise, action, logp)

    def judge(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Negative log-probability [T*B] and negative entropy [T*B] or [] of the rows, value
        [(T+1)*B].
        """
        real = rows.reward.numel()
        out = mlp(self.views, rows.obs.view(-1, self.obs))
        if self.gaussian:
            log_std = self.views[6]
            z = (rows.action.view(-1, self.actions) - out[:real, : self.actions]) * (-log_std).exp()
            nll = 0.5 * z.square().sum(-1) + (
                log_std.sum() + 0.5 * self.actions * math.log(2 * math.pi)
            )
            return nll, -log_std.sum(), out[:, self.actions]
        logp = torch.log_softmax(out[:real, : self.actions], -1)
        nll = F.nll_loss(logp, rows.action.view(-1), reduction="none")
        return nll, (logp.exp() * logp).sum(-1), out[:, self.actions]

    def zero(self) -> None:
        self.grad.zero_()

    def clip(self) -> None:
        norm = torch.linalg.vector_norm(self.grad)
        self.grad.mul_((MAX_NORM / (norm + 1e-6)).clamp_(max=1.0))


def mlp(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """[N, obs] -> [N, actions] or [N, actions + 1], the value last. addmm on [in, out] is faster
    than F.linear on [out, in].
    """
    w1, b1, w2, b2, w3, b3 = weights[:6]
    return torch.addmm(b3, torch.addmm(b2, torch.addmm(b1, x, w1).tanh_(), w2).tanh_(), w3)


def sample(logits: Tensor, noise: Tensor, action: Tensor, logp: Tensor) -> None:
    log_prob = torch.log_softmax(logits, -1)
    torch.argmax(logits.add_(noise), -1, out=action)
    torch.gather(log_prob, 1, action.unsqueeze(1), out=logp.unsqueeze(1))


class _Conv(nn.Module):
    def __init__(self, actions: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        layers: list[nn.Module] = []
        for i, o, kernel, stride in ((4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)):
            layers += [nn.Conv2d(i, o, kernel, stride), nn.ReLU()]
        self.convs, self.hidden = nn.Sequential(*layers), nn.Linear(3136, 512)
        self.head = nn.Linear(512, actions + 1)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.orthogonal_(p, math.sqrt(2))
            else:
                nn.init.zeros_(p)
        nn.init.orthogonal_(self.head.weight, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        """uint8 [N, 4, 84, 84] -> float32 [N, actions + 1]. Bytes are exact in bfloat16; their
        1/255 is in the weights.
        """
        first: nn.Conv2d = self.convs[0]  # type: ignore[assignment]
        x = x.to(self.dtype, memory_format=torch.channels_last)
        x = self.convs[1:](F.conv2d(x, first.weight * (1 / 255), first.bias, first.stride))
        # channels last, so no copy
        y: Tensor = self.head(self.hidden(x.permute(0, 2, 3, 1).flatten(1)).relu())
        return y.float()


class Conv:
    """The Nature CNN; one output matrix for policy and value."""

    def __init__(self, actions: int, *, bf16: bool | None = None, compiled: bool = True) -> None:
        self.actions, self.bf16 = actions, native_bf16() if bf16 is None else bf16
        made = _Conv(actions, torch.bfloat16 if self.bf16 else torch.float32)
        self.module: nn.Module = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.forward: Any = torch.compile(self.module, dynamic=False) if compiled else self.module

    def parameters(self) -> list[nn.Parameter]:
        return list(self.module.parameters())

    def rows(self, unroll: int, batch: int) -> Rows:
        return Rows(
            unroll,
            batch,
            torch.zeros(FRAMES, dtype=torch.uint8),
            torch.zeros((), dtype=torch.int64),
        )

    def frozen(self) -> list[Tensor]:
        return []

    def noise(self, unroll: int, streams: int) -> tuple[Tensor, ...]:
        return torch.empty(unroll, streams, self.actions).exponential_().log_().neg_().unbind(0)

    def out(self, obs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            y: Tensor = self.forward(obs)
        return y

    def act(
        self, weights: Sequence[Tensor], obs: Tensor, noise: Tensor, action: Tensor, logp: Tensor
    ) -> None:
        sample(self.out(obs)[:, : self.actions], noise, action, logp)

    def judge(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        real = rows.reward.numel()
        out = self.out(rows.obs.view(-1, *FRAMES))
        logp = torch.log_softmax(out[:real, : self.actions], -1)
        nll = F.nll_loss(logp, rows.action.view(-1), reduction="none")
        return nll, (logp.exp() * logp).sum(-1), out[:, self.actions]

    def zero(self) -> None:
        for p in self.module.parameters():
            p.grad = None

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.module.parameters(), MAX_NORM, foreach=True)


# ------------------------------------------------------------------------------------- the learning


@torch.no_grad()
def vtrace(rows: Rows, value: Tensor, logp: Tensor) -> tuple[Tensor, Tensor]:
    """Targets v_s and policy-gradient advantages [T, B] of Espeholt et al. 2018 (arXiv:1802.01561),
    all clips 1.
    """
    rho = (logp - rows.logp).exp_().clamp_(max=1.0).mul_(rows.mask)
    discount = rows.bootstrap * GAMMA
    delta = torch.addcmul(rows.reward, discount, value[1:]).sub_(value[:-1]).mul_(rho)
    trace = discount * rho
    target = value.clone()  # v_T = V(s_T)
    acc = torch.zeros_like(delta[0])
    for out, d, c in zip(
        reversed(target[:-1].unbind(0)),
        reversed(delta.unbind(0)),
        reversed(trace.unbind(0)),
        strict=True,
    ):
        acc = torch.addcmul(d, c, acc)
        out.add_(acc)
    advantage = torch.addcmul(rows.reward, discount, target[1:]).sub_(value[:-1]).mul_(rho)
    return target[:-1], advantage


def learn(net: Net | Conv, optimizer: torch.optim.Optimizer, rows: Rows) -> None:
    """One pass, one step."""
    unroll, batch = rows.reward.shape
    nll, negative_entropy, value = net.judge(rows)
    target, advantage = vtrace(
        rows, value.detach().view(unroll + 1, batch), -nll.detach().view(unroll, batch)
    )
    mask = rows.mask.view(-1)
    error = (value[: unroll * batch] - target.reshape(-1)).square()
    loss = (nll * advantage.view(-1) + (0.5 * VALUE) * error + ENTROPY * negative_entropy) * mask
    net.zero()
    (loss.sum() / mask.sum()).backward()  # type: ignore[no-untyped-call]
    net.clip()
    optimizer.step()


def make_optimizer(net: Net | Conv, name: str) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(net.parameters(), lr=RATE, eps=1e-5, fused=True)
    return torch.optim.RMSprop(net.parameters(), lr=RATE, alpha=0.99, eps=0.01, foreach=True)
