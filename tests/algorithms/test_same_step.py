"""The truth table of ends from the env to the target: a real env, actor and replay, in NEXT_STEP
and in SAME_STEP.

Every step pays the same, so where nothing terminates the value of everything is r / (1 - gamma),
and a termination leaves what is paid until then. Each item that is learned from tells what it was
of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.sac import SAC
from equipoise.plans.beginning import Fresh
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from equipoise.types import (
    Batch,
    EnvFactory,
    EnvSource,
    EnvSpec,
    EvaluationSettings,
    Optimizer,
    Placement,
    Policy,
    Program,
    ReplaySettings,
    Schedule,
)
from tests.envs.same import ENDS, PAY

GAMMA = 0.9
VALUE = PAY / (1 - GAMMA)
ITEMS: list[dict[str, Any]] = []  # of the learner, which is this process


def note(algorithm: Any, batch: Batch) -> None:
    """Each item's first observation, its target, and the observation whose value the target goes on
    with.
    """
    data, (_, discount, obs) = batch.data, algorithm.ahead(batch.data)
    target = batch.targets["target"].reshape(len(discount), -1).mean(-1)
    assert data.mask[0].all()
    for i in range(len(target)):
        stream, left = int(data.obs[0, i, 0]), int(data.obs[0, i, 1])
        # it is made of, where no hold is among them
        rows = min(left, algorithm.n_step) if stream < 3 else algorithm.n_step
        ITEMS.append(
            {
                "stream": stream,
                "left": left,
                "episode": int(data.obs[0, i, 2]),
                "target": float(target[i]),
                "cut": not bool(data.mask[:rows, i].all()),
                "discount": float(discount[i]),
                "goes on at": obs[i].tolist(),
            }
        )


@dataclass(frozen=True, kw_only=True)
class ConstantDQN(DQN):
    """Whose values are all VALUE and stay so."""

    default_optimizer: ClassVar[Optimizer] = replace(DQN.default_optimizer, learning_rate=0.0)

    def network(self, spec: EnvSpec) -> Any:
        net: Any = super().network(spec)
        for p in net.parameters():
            p.data.zero_()
        net.head.bias.data.fill_(VALUE)
        return net

    def loss(self, net: Any, target_net: Any, batch: Batch, **given: Any) -> Any:
        note(self, batch)
        return super().loss(net, target_net, batch, **given)


@dataclass(frozen=True, kw_only=True)
class ConstantSAC(SAC):
    default_optimizer: ClassVar[Optimizer] = replace(SAC.default_optimizer, learning_rate=0.0)

    temperature: float = 1e-9
    learn_temperature: bool = False

    def network(self, spec: EnvSpec) -> Any:
        net: Any = super().network(spec)
        for p in net.critic.parameters():
            p.data.zero_()
        net.critic.twins.biases[-1].data.fill_(VALUE)
        return net

    def loss(self, net: Any, target_net: Any, batch: Batch, *, group: str, **given: Any) -> Any:
        if group == "critic":
            note(self, batch)
        return super().loss(net, target_net, batch, group=group, **given)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("kind", [ConstantDQN, ConstantSAC])
def test_the_truth_table(kind: Any, n: int, mode: str, tmp_path: Any) -> None:
    ITEMS.clear()
    algorithm = kind(hidden=(8,), gamma=GAMMA, n_step=n)
    policy = Policy(
        algorithm=algorithm,
        unroll=6,
        batch=64,
        replay=ReplaySettings(capacity=1200, starts_at=600, updates=4),
    )
    program = Program(
        source=EnvSource(
            env=EnvFactory(
                target="tests.envs.same:clocked", kwargs={"mode": mode, "box": kind is ConstantSAC}
            )
        ),
        policies={"main": policy},
        placement=Placement(actors=1, envs_per_actor=4),
        schedule=Schedule(steps=1200),
        evaluation=EvaluationSettings(episodes=0),
    )
    with Run(program, Fresh(out=tmp_path / "run"), Services(on="serial")) as going:
        for _ in going:
            pass
    ends, others = dict.fromkeys(range(4), 0), dict.fromkeys(range(4), 0)  # items of each stream
    for item in ITEMS:
        stream, left = int(item["stream"]), int(item["left"])
        terminated, truncated = ENDS[stream]
        within = (terminated or truncated) and left <= n and not item["cut"]
        expected = PAY * sum(GAMMA**i for i in range(left)) if within and terminated else VALUE
        assert item["target"] == pytest.approx(expected, rel=1e-5), item
        assert bool(item["discount"]) == (not (within and terminated)), item
        # on in the same episode, at its true last observation where a clock cut it
        if item["discount"]:
            steps = round(math.log(item["discount"], GAMMA))
            assert item["goes on at"] == [stream, left - steps, item["episode"]], item
            assert steps == (left if within else n) or item["cut"], item
        (ends if within else others)[stream] += 1
    assert min(ends[0], ends[1], ends[2], others[3]) > 50 and (n > 1 or min(others.values()) > 50)
    assert any(item["cut"] for item in ITEMS) == (mode == "SameStep" and n > 1)
