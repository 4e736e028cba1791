"""States of a learner that a term of the rewards keeps and brings back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise import tree
from equipoise.algorithms.ppo import PPO
from equipoise.algorithms.sac import SAC
from equipoise.learners.learner import Learner
from equipoise.record import statefile
from equipoise.rewards.term import LearnerStates, RewardTerm
from equipoise.types import Batch, Rewards, Trajectory
from tests.algorithms.items import BOX, DISCRETE, batch, drawn, network
from tests.rewards.test_terms import batches

pytestmark = pytest.mark.usefixtures("one_thread")
NAME = f"{__name__}:Steering"
KEPT = ("groups", "buffers", "target")


@dataclass(kw_only=True, eq=False)
class Steering(RewardTerm):
    """Keeps the state after the second batch, and brings it back after the fourth one."""

    name = "steering"

    def rewards(self, data: Trajectory) -> Tensor:
        return data.reward

    def steer(self, states: LearnerStates) -> None:
        if self.version == 2:
            states.keep("a")
        elif self.version == 3:
            states.rename("a", "b")
        elif self.version == 4:
            states.go_back("b")


def learner(kind: str) -> Learner:
    algorithm: Any = PPO(hidden=(16,), minibatches=2) if kind == "ppo" else SAC(hidden=(8,))
    return Learner(
        algorithm,
        network(algorithm, DISCRETE if kind == "ppo" else BOX, 0),
        rewards=Rewards(sum=NAME),
        terms={"steering": Steering()},
        schedule_updates=9,
        seed=3,
        batch=8,
    )


def given(kind: str) -> list[Batch]:
    if kind == "ppo":
        return batches(6)
    return [batch(drawn(BOX, 1, 8, seed)) for seed in range(6)]


def copied(made: Learner) -> dict[str, Any]:
    state = made.state()
    return {name: tree.map(torch.clone, state[name]) for name in KEPT}


def same(one: Any, other: Any) -> bool:
    pairs = zip(tree.leaves(one), tree.leaves(other), strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_a_kept_state_comes_back_to_the_bit_and_the_version_goes_on(kind: str) -> None:
    made, seen = learner(kind), []
    for one in given(kind)[:4]:
        made.step(one)
        seen.append(copied(made))
    assert same(seen[3], seen[1]) and not same(seen[2], seen[1])
    assert made.version == 4 and made.progress == pytest.approx(4 / 9)


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_kept_states_are_in_a_checkpoint(kind: str) -> None:
    whole, half, loaded = learner(kind), learner(kind), learner(kind)
    data = given(kind)
    for one in data:
        whole.step(one)
    for one in data[:3]:
        half.step(one)
    loaded.load(statefile.parse(statefile.dump(half.state())))
    for one in data[3:]:
        loaded.step(one)
    assert same(loaded.state(), whole.state())


def test_a_kept_state_of_another_network_is_refused() -> None:
    made = learner("ppo")
    for one in given("ppo")[:3]:
        made.step(one)
    state = made.state()
    state["kept"] = {"b": state["kept"]["b"] | {"target": {"x": torch.zeros(1)}}}
    with pytest.raises(ValueError, match=r"kept\.b\.target\.x: expected no such key"):
        learner("ppo").load(state)


def test_a_learner_without_kept_states_has_none_in_its_state() -> None:
    assert "kept" not in learner("ppo").state()
