"""What V-trace costs: its share of a learner step, at T = 128, B = 64, one thread.

    python benchmarks/vtrace.py

The step is forward, V-trace loss, backward and fused Adam over 8192 rows of a policy and value net
with an MLP 64x64 (tanh, observations of 4 numbers). V-trace alone and the step alternate, each a
mean over a few calls; the medians are reported.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from equipoise.returns import vtrace

T, B, OBS, ACTIONS = 128, 64, 4, 2
ROUNDS, CALLS = 5, 20
LIMIT = 0.05


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.torso = nn.Sequential(nn.Linear(OBS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.policy, self.value = nn.Linear(64, ACTIONS), nn.Linear(64, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.torso(obs)
        return self.policy(features), self.value(features).squeeze(-1)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    adam = torch.optim.Adam(net.parameters(), lr=3e-4, eps=1e-5, fused=True)
    obs, action, reward = (
        torch.randn(T + 1, B, OBS),
        torch.randint(ACTIONS, (T, B)),
        torch.randn(T, B),
    )
    mask, discount = torch.rand(T, B) > 0.02, 0.99 * (torch.rand(T, B) > 0.02)
    logp_behaviour = torch.full((T, B), -0.7)
    value, log_rho = torch.randn(T + 1, B), 0.1 * torch.randn(T, B)

    def returns() -> None:
        vtrace(reward=reward, discount=discount, value=value, log_rho=log_rho, mask=mask)

    def step() -> None:
        logits, values = net(obs)
        logp = logits[:-1].log_softmax(-1)
        chosen = logp.gather(-1, action[..., None]).squeeze(-1)
        got = vtrace(
            reward=reward,
            discount=discount,
            value=values,
            log_rho=chosen - logp_behaviour,
            mask=mask,
        )
        entropy = -(logp.exp() * logp).sum(-1)
        rows = -chosen * got.advantage + 0.5 * (values[:-1] - got.target) ** 2 - 0.01 * entropy
        adam.zero_grad()
        (rows * mask).sum().div(mask.sum()).backward()
        adam.step()

    for call in (returns, step):
        call()  # the first one also allocates
    pairs = [(seconds(returns), seconds(step)) for _ in range(ROUNDS)]
    alone, whole = (statistics.median(times) for times in zip(*pairs, strict=True))
    share = statistics.median(a / b for a, b in pairs)
    print(
        json.dumps(
            {
                "vtrace_ms": round(1e3 * alone, 3),
                "step_ms": round(1e3 * whole, 3),
                "share": round(share, 4),
                "limit": LIMIT,
            }
        )
    )
    raise SystemExit(share >= LIMIT)


if __name__ == "__main__":
    main()
