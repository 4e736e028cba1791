"""What a CartPole-v1 actor-critic costs when nothing connects its pieces: the yardstick of the process runtime.

    .venv/bin/python benchmarks/pieces.py [--vector native|sync] [--streams 512] [--unroll 16] [--batch 512]

Core time per env step of three pieces alone, one thread each:

- env: one step of a Gymnasium vector env (native: its own NumPy CartPole; sync: Python envs in turn). The actions keep the
  pole up, as those of a trained policy do, and are replayed, so only ``step`` is timed. ``env_random`` has random actions:
  more resets, so it is dearer; it is shown and not used.
- act: observations in, actions and their log-probabilities written to the rows of an unroll: forward of an MLP 64-64 tanh
  with a policy and a value head, and a categorical sample; the noise is drawn once an unroll.
- learn: one IMPALA step on [T+1, B]: forward, V-trace targets, policy, value and entropy loss, backward, clip by the norm of
  the flat gradient, optimiser step.

``bound = cores / (env + act + learn)``: env steps/s if every core were busy with these and with nothing else. It imports
gymnasium, torch and numpy only, nothing of ours, and is written as fast as plain eager torch goes; ``--check`` trains with
the same functions and prints the return, so that a fast wrong loss would be seen.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

OBS, ACTIONS, HIDDEN = 4, 2, 64
GAMMA, VALUE, ENTROPY, MAX_NORM, RATE = 0.99, 0.5, 0.01, 40.0, 3e-3


# --------------------------------------------------------------------------------------------------------------- the net


class Net(nn.Module):
    """MLP 64-64 tanh; the policy and the value head are columns of one matrix. Parameters and gradients view ``flat``."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((OBS, HIDDEN, math.sqrt(2)), (HIDDEN, HIDDEN, math.sqrt(2)), (HIDDEN, ACTIONS + 1, 0.01))
        params = [p for i, o, gain in sizes for p in (nn.init.orthogonal_(torch.empty(i, o), gain), torch.zeros(o))]
        self.flat = nn.Parameter(torch.cat([p.reshape(-1) for p in params]))
        self.grad = torch.zeros_like(self.flat, requires_grad=False)
        self.flat.grad = self.grad
        self.views, at = [], 0  # a plain list, so that the module has one parameter
        for p in params:
            part = slice(at, at + p.numel())
            view = self.flat.data[part].view_as(p).requires_grad_()
            view.grad = self.grad[part].view_as(p)
            self.views.append(view)
            at += p.numel()

    def policy_only(self) -> list[Tensor]:
        """Contiguous weights of a forward without the value, as acting needs it."""
        *torso, weight, bias = self.views
        return [*torso, weight[:, :ACTIONS].contiguous(), bias[:ACTIONS]]


def mlp(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """[N, 4] -> [N, 2] logits, or [N, 2 + 1] logits and value. addmm on [in, out] is faster than F.linear on [out, in]."""
    w1, b1, w2, b2, w3, b3 = weights
    return torch.addmm(b3, torch.addmm(b2, torch.addmm(b1, x, w1).tanh_(), w2).tanh_(), w3)


# ------------------------------------------------------------------------------------------------------------ the pieces


class Rows:
    """One batch: an unroll of T rows of B streams, and the observation after it."""

    def __init__(self, unroll: int, batch: int) -> None:
        self.obs = torch.zeros(unroll + 1, batch, OBS)
        self.action = torch.zeros(unroll, batch, dtype=torch.int64)
        self.logp, self.reward = torch.zeros(unroll, batch), torch.zeros(unroll, batch)
        self.mask, self.bootstrap = torch.ones(unroll, batch), torch.ones(unroll, batch)  # a real row; its next value counts


def gumbel(unroll: int, streams: int) -> tuple[Tensor, ...]:
    """Noise of a whole unroll, [B, 2] a row: argmax(logits + noise) is a sample."""
    return torch.empty(unroll, streams, ACTIONS).exponential_().log_().neg_().unbind(0)


def act(weights: Sequence[Tensor], obs: Tensor, noise: Tensor, action: Tensor, logp: Tensor) -> None:
    """obs [B, 4] -> action [B] and logp [B], in place."""
    logits = mlp(weights, obs)
    log_prob = torch.log_softmax(logits, -1)
    torch.argmax(logits.add_(noise), -1, out=action)
    torch.gather(log_prob, 1, action.unsqueeze(1), out=logp.unsqueeze(1))


@torch.no_grad()
def vtrace(rows: Rows, value: Tensor, logp: Tensor) -> tuple[Tensor, Tensor]:
    """Targets v_s and policy-gradient advantages [T, B] of Espeholt et al. 2018 (arXiv:1802.01561), all clips 1."""
    rho = (logp - rows.logp).exp_().clamp_(max=1.0).mul_(rows.mask)
    discount = rows.bootstrap * GAMMA
    delta = torch.addcmul(rows.reward, discount, value[1:]).sub_(value[:-1]).mul_(rho)
    trace = discount * rho
    target = value.clone()  # v_T = V(s_T)
    acc = torch.zeros_like(delta[0])
    for out, d, c in zip(reversed(target[:-1].unbind(0)), reversed(delta.unbind(0)), reversed(trace.unbind(0)), strict=True):
        acc = torch.addcmul(d, c, acc)
        out.add_(acc)
    advantage = torch.addcmul(rows.reward, discount, target[1:]).sub_(value[:-1]).mul_(rho)
    return target[:-1], advantage


def learn(net: Net, optimizer: torch.optim.Optimizer, rows: Rows) -> None:
    """One pass, one step."""
    edges, batch = rows.obs.shape[:2]
    real = (edges - 1) * batch
    out = mlp(net.views, rows.obs.view(-1, OBS))
    logp_all = torch.log_softmax(out[:real, :ACTIONS], -1)
    nll = F.nll_loss(logp_all, rows.action.view(-1), reduction="none")
    value = out[:, ACTIONS]
    target, advantage = vtrace(rows, value.detach().view(edges, batch), -nll.detach().view(edges - 1, batch))
    mask = rows.mask.view(-1)
    negative_entropy = (logp_all.exp() * logp_all).sum(-1)
    error = (value[:real] - target.reshape(-1)).square()
    loss = (nll * advantage.view(-1) + (0.5 * VALUE) * error + ENTROPY * negative_entropy) * mask
    net.grad.zero_()
    (loss.sum() / mask.sum()).backward()  # type: ignore[no-untyped-call]
    norm = torch.linalg.vector_norm(net.grad)
    net.grad.mul_((MAX_NORM / (norm + 1e-6)).clamp_(max=1.0))
    optimizer.step()


def make_optimizer(net: Net, name: str) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam([net.flat], lr=RATE, eps=1e-5, fused=True)
    return torch.optim.RMSprop([net.flat], lr=RATE, alpha=0.99, eps=0.01, foreach=True)


def make_env(vector: str, streams: int) -> Any:
    mode = {"native": "vector_entry_point", "sync": "sync"}[vector]
    return gymnasium.make_vec("CartPole-v1", num_envs=streams, vectorization_mode=mode)


def balancing(vector: str, streams: int, steps: int) -> list[np.ndarray]:
    """Actions that keep the pole up for whole episodes, from a reset with seed 0 on."""
    env = make_env(vector, streams)
    obs, _ = env.reset(seed=0)
    actions, falls = [], 0
    for _ in range(steps):
        actions.append((obs @ np.array([0.05, 0.2, 1.0, 0.5], np.float32) > 0).astype(np.int64))
        obs, _, terminated, _, _ = env.step(actions[-1])
        falls += int(terminated.sum())
    env.close()
    if falls > streams * steps / 500:
        raise RuntimeError(f"the balancing controller fell {falls} times in {streams * steps} steps")
    return actions


# ------------------------------------------------------------------------------------------------------------- measuring


def keep_memory() -> bool:
    """Ask glibc to keep freed memory: else each learner step gives megabytes back and faults them in again, page by page."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # malloc.h
    return bool(mallopt and mallopt(trim_threshold, 1 << 30) and mallopt(mmap_threshold, 1 << 30) and mallopt(top_pad, 1 << 26))


def env_piece(vector: str, streams: int, actions: Sequence[np.ndarray]) -> Callable[[], int]:
    env = make_env(vector, streams)

    def run() -> int:
        env.reset(seed=0)
        for a in actions:
            env.step(a)
        return len(actions) * streams

    return run


def act_piece(streams: int, unroll: int) -> Callable[[], int]:
    net, rows = Net(), Rows(unroll, streams)
    obs = np.random.default_rng(0).normal(0, 0.1, (streams, OBS)).astype(np.float32)  # where an env leaves it
    view = torch.from_numpy(obs)

    def run() -> int:
        with torch.inference_mode():
            weights, noise = net.policy_only(), gumbel(unroll, streams)
            for t, (row, action, logp) in enumerate(zip(rows.obs, rows.action, rows.logp)):
                row.copy_(view)
                act(weights, row, noise[t], action, logp)
                action.numpy()
        return unroll * streams

    return run


def learn_piece(unroll: int, batch: int, optimizer: str) -> Callable[[], int]:
    net, rows = Net(), Rows(unroll, batch)
    rows.obs.normal_(0, 0.1)
    rows.action.random_(ACTIONS)
    rows.logp.fill_(math.log(1 / ACTIONS))
    rows.reward.fill_(1.0)
    rows.mask.bernoulli_(0.99)
    rows.bootstrap.bernoulli_(0.99)
    opt = make_optimizer(net, optimizer)
    opt.param_groups[0]["lr"] = 1e-9  # the same work for ever: the data never change

    def run() -> int:
        learn(net, opt, rows)
        return unroll * batch

    return run


def timed(run: Callable[[], int], seconds: float) -> tuple[float, float]:
    """Microseconds per env step: (of core time, of wall time)."""
    run()
    steps, cpu, wall = 0, time.process_time(), time.perf_counter()
    while (took := time.perf_counter() - wall) < seconds:
        steps += run()
    return (time.process_time() - cpu) / steps * 1e6, took / steps * 1e6


def measure(a: argparse.Namespace) -> dict[str, Any]:
    """Rounds of all pieces in turn; the median of each."""
    rng = np.random.default_rng(0)
    pieces = {
        "env": env_piece(a.vector, a.streams, balancing(a.vector, a.streams, 500)),
        "env_random": env_piece(a.vector, a.streams, list(rng.integers(0, ACTIONS, (500, a.streams)))),
        "act": act_piece(a.streams, a.unroll),
        "learn": learn_piece(a.unroll, a.batch, a.optimizer),
    }
    core: dict[str, list[float]] = {name: [] for name in pieces}
    wall: dict[str, list[float]] = {name: [] for name in pieces}
    for _ in range(a.rounds):
        for name, run in pieces.items():
            c, w = timed(run, a.seconds)
            core[name].append(c)
            wall[name].append(w)
    median = {name: statistics.median(values) for name, values in core.items()}
    median_wall = {name: statistics.median(values) for name, values in wall.items()}
    total = median["env"] + median["act"] + median["learn"]
    return {
        "benchmark": "pieces",
        "value": round(a.cores * 1e6 / total),  # the bound, env steps/s
        "core_us_per_step": {name: round(v, 4) for name, v in median.items()},
        "wall_us_per_step": {name: round(v, 4) for name, v in median_wall.items()},
        "spread": {name: round(max(v) / min(v), 3) for name, v in core.items()},  # slowest round / fastest: the machine's noise
        "cores": a.cores,
        "vector": a.vector, "streams": a.streams, "unroll": a.unroll, "batch": a.batch, "optimizer": a.optimizer,
        "rounds": a.rounds, "seconds": a.seconds, "allocator": a.allocator,
        "versions": {"torch": torch.__version__, "gymnasium": gymnasium.__version__, "python": platform.python_version()},
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- the check


def check(a: argparse.Namespace) -> dict[str, Any]:
    """Train with these very functions in one loop, on-policy, for ``--check`` env steps."""
    torch.manual_seed(0)
    env, net, rows = make_env(a.vector, a.streams), Net(), Rows(a.unroll, a.streams)
    opt = make_optimizer(net, a.optimizer)
    obs, _ = env.reset(seed=0)
    done, returns, finished = np.zeros(a.streams, bool), np.zeros(a.streams), []
    steps, start = 0, time.perf_counter()
    while steps < a.check:
        with torch.inference_mode():
            weights, noise = net.policy_only(), gumbel(a.unroll, a.streams)
            for t in range(a.unroll):
                rows.obs[t] = torch.from_numpy(obs)
                act(weights, rows.obs[t], noise[t], rows.action[t], rows.logp[t])
                obs, reward, terminated, truncated, _ = env.step(rows.action[t].numpy())
                rows.mask[t] = torch.from_numpy(~done)
                rows.reward[t] = torch.from_numpy(reward.astype(np.float32))
                rows.bootstrap[t] = torch.from_numpy(~terminated)
                returns += reward
                done = terminated | truncated
                finished += returns[done].tolist()
                returns[done] = 0.0
            rows.obs[-1] = torch.from_numpy(obs)
        learn(net, opt, rows)
        steps += a.unroll * a.streams
    took = time.perf_counter() - start
    last = finished[-500:]
    return {"check": "one loop, one core", "steps_per_s": round(steps / took), "steps": steps, "seconds": round(took, 1),
            "return_first_500": round(statistics.fmean(finished[:500]), 1), "return_last_500": round(statistics.fmean(last), 1),
            "learns": statistics.fmean(last) >= 195}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vector", choices=("native", "sync"), default="native")
    parser.add_argument("--streams", type=int, default=512, help="envs of one actor, so the rows of one act")
    parser.add_argument("--unroll", type=int, default=16, help="T")
    parser.add_argument("--batch", type=int, default=512, help="unrolls of one learner step, B")
    parser.add_argument("--optimizer", choices=("adam", "rmsprop"), default="adam")
    parser.add_argument("--allocator", choices=("keep", "default"), default="keep", help="keep: glibc gives no memory back")
    parser.add_argument("--cores", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each piece in each round")
    parser.add_argument("--check", type=int, default=0, metavar="STEPS", help="instead: train that long, show the return")
    a = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if a.allocator == "keep" and not keep_memory():
        print("note: no mallopt here, so memory is returned and faulted in again; learn is slower for it", file=sys.stderr)
    if a.check:
        result = check(a)
        print(json.dumps(result), flush=True)
        return 0 if result["learns"] else 1
    result = measure(a)
    print(json.dumps(result), flush=True)
    worst = max(w / c for w, c in zip(result["wall_us_per_step"].values(), result["core_us_per_step"].values()))
    if worst > 1.05 or max(result["spread"].values()) > 1.2:
        print("note: others used these cores meanwhile (see wall against core time, and spread)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
