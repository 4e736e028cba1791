"""target_kl: a batch's remaining minibatches are left out once the policy went too far, and only
then does anything change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.algorithms.ppo import PPO
from equipoise.learners.learner import Learner
from equipoise.learners.minibatch import minibatches
from equipoise.learners.optimizers import descent
from equipoise.learners.parameters.flat import Flat
from equipoise.learners.pool import ALONE, Alone
from equipoise.types import Batch, Optimizer
from tests.algorithms.items import batch
from tests.algorithms.windows import GAMMA, network, window

ADAM = Optimizer(learning_rate=3e-3, schedule="constant")
EPOCHS, PARTS = 4, 5


def ppo(target_kl: float | None) -> PPO:
    return PPO(gamma=GAMMA, epochs=EPOCHS, minibatches=PARTS, target_kl=target_kl)


def learner(target_kl: float | None, **options: Any) -> Learner:
    algorithm = ppo(target_kl)
    return Learner(
        algorithm,
        network(algorithm, 0),
        optimizer=ADAM,
        schedule_updates=9,
        seed=3,
        batch=5,
        **options,
    )


def made() -> Batch:
    algorithm = ppo(None)
    return batch(window(algorithm, network(algorithm, 0)))


def weights(net: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def by_hand(target_kl: float) -> tuple[Any, list[float]]:
    """Stable-Baselines3's loop: the network, and the KL of each minibatch that was looked at."""
    algorithm, whole, rng = ppo(None), made(), torch.Generator().manual_seed(3)
    net = network(algorithm, 0)
    adam = torch.optim.Adam(net.parameters(), lr=ADAM.learning_rate, eps=ADAM.epsilon)
    with torch.no_grad():
        whole = replace(
            whole, targets=algorithm.targets(net, None, whole.data, rng=rng, pool=ALONE)
        )
    seen: list[float] = []
    for _ in range(EPOCHS):
        for part in minibatches(whole, PARTS, by_rows=True, rng=rng):
            out = algorithm.loss(net, None, part, group="all", step=0.0, rng=rng)
            assert out is not None
            total, count = out.metrics["approx_kl"]
            seen.append(float(total / count))
            if seen[-1] > 1.5 * target_kl:
                return net, seen
            adam.zero_grad()
            (out.loss / out.count).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), ADAM.max_grad_norm)
            adam.step()
    return net, seen


# ends in the first epoch or the second, or never
@pytest.mark.parametrize("target_kl", [0.004, 0.0166, 0.11, 1e3])
@pytest.mark.parametrize("on_a_device", [False, True])
def test_it_is_the_loop_of_stable_baselines3(
    target_kl: float, on_a_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device, which is not waited for, the further steps are made and undone: the same weights
    and metrics.
    """
    if on_a_device:
        monkeypatch.setattr(Learner, "_ended", lambda *_: False)
    mine, pulses = learner(target_kl), [0]
    mine.pulse = lambda: pulses.append(0)
    step = mine.step(made())
    net, seen = by_hand(target_kl)
    torch.testing.assert_close(weights(mine.net), weights(net), rtol=1e-4, atol=1e-6)
    steps = len(seen) - (target_kl < 1)
    assert len(pulses) - 1 == (EPOCHS * PARTS if on_a_device else len(seen))
    assert (1 <= steps < EPOCHS * PARTS) if target_kl < 1 else steps == EPOCHS * PARTS
    assert (
        step.metrics["grad_norm/all"][1].item()
        == steps
        == mine.parameters.optimizers["all"].slots["step"].item()
    )
    total, count = step.metrics["approx_kl"]
    rows = made().data.mask.sum().item()
    assert count.item() == pytest.approx(rows * len(seen) / PARTS, abs=rows / PARTS)
    assert total.item() / count.item() == pytest.approx(sum(seen) / len(seen), rel=0.2)


def test_far_from_the_target_not_a_bit_changes() -> None:
    one, other = learner(None), learner(1e9)
    for _ in range(3):
        one.step(made())
        other.step(made())
    assert torch.equal(weights(one.net), weights(other.net))


class Far(Alone):
    """The pool of a learner whose neighbour's policy is far."""

    def sum(self, x: Tensor) -> Tensor:
        return x + 1e6 if x.ndim == 0 and x.dtype == torch.float32 else x


def test_learners_of_one_policy_end_a_batch_together() -> None:
    far = learner(0.05, parameters=Flat(Far()))
    step = far.step(made())
    assert "grad_norm/all" not in step.metrics and "approx_kl" in step.metrics
    assert torch.equal(weights(far.net), weights(learner(0.05).net))


@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop"])
def test_an_undone_step_leaves_nothing(kind: Any) -> None:
    flat = torch.nn.Parameter(torch.ones(5))
    made = descent(Optimizer(name=kind, weight_decay=0.1), flat)
    flat.grad = torch.arange(5.0)
    made.step(0.1)
    before = [x.clone() for x in (flat.detach(), *made.slots.values())]
    made.step_unless(torch.tensor(True), 0.1)
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, (flat.detach(), *made.slots.values()), strict=True)
    )
    made.step_unless(torch.tensor(False), 0.1)
    assert not torch.equal(before[0], flat)


@pytest.mark.gpu
def test_a_device_ends_where_the_cpu_does() -> None:
    """Whole batches, whose order needs no random number."""
    algorithm, ends = replace(ppo(0.05), epochs=EPOCHS * PARTS, minibatches=1), []
    for device in ("cpu", "cuda"):
        net = network(algorithm, 0)
        one = Learner(
            algorithm, net, optimizer=ADAM, device=device, schedule_updates=9, seed=3, batch=5
        )
        ends.append((one.step(made()).metrics["grad_norm/all"][1].item(), weights(one.net).cpu()))
    assert 1 <= ends[0][0] == ends[1][0] < EPOCHS * PARTS
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=1e-3, atol=1e-4)
