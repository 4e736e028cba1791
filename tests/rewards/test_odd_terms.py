"""Terms of the rewards that a user may write by mistake: each is refused in one sentence, before
the run or at its first batch, and none leaves a checkpoint that cannot be resumed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from equipoise import tree
from equipoise.algorithms.ppo import PPO
from equipoise.errors import RewardsFailed
from equipoise.record import statefile
from equipoise.rewards.term import RewardTerm
from equipoise.rewards.terms import built
from equipoise.types import LossOutput, Rewards, Trajectory
from tests.algorithms.items import DISCRETE
from tests.rewards.test_terms import batches, learner

pytestmark = pytest.mark.usefixtures("one_thread")


def odd(**members: Any) -> type[RewardTerm]:
    """A term that returns the env's rewards, with other members."""
    body = {"rewards": lambda self, data: data.reward, "__module__": __name__, **members}
    return type("Odd", (RewardTerm,), body)


def made(**members: Any) -> Any:
    """A learner with such a term."""
    return learner("odd", terms={"odd": odd(**members)()})


def state(found: object) -> dict[str, Any]:
    return {"state": lambda self: found, "load": lambda self, state: None}


def loss(found: Callable[[nn.Module, Trajectory], object]) -> dict[str, Any]:
    net = nn.Linear(3, 1)
    return {"net": net, "loss": lambda self, data: found(net, data)}


def count(data: Trajectory) -> torch.Tensor:
    return data.mask.sum()


def fails(*_: object) -> None:
    raise KeyError("x")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a net that is a dict": (dict(net={"a": nn.Linear(3, 1)}), "Odd.net to be a torch.nn.Module"),
    "a net without parameters": (dict(loss=fails, net=nn.ReLU()), "parameters that require grad"),
    "a net that is frozen": (
        dict(loss=fails, net=nn.Linear(3, 1).requires_grad_(False)),
        "parameters that require grad",
    ),
    "a net of two dtypes": (
        dict(loss=fails, net=nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 1).double())),
        "parameters of one dtype, got torch.float32, torch.float64",
    ),
    "a net that cannot be asked for": (dict(net=property(fails)), "KeyError: 'x'"),
    "a state with an array of objects": (state({"n": np.array([fails])}), "state.n: expected"),
    "a net without a loss": (dict(net=nn.Linear(3, 1)), "got only a net"),
    "a loss without a net": (dict(loss=fails), "got only a loss"),
    "an optimizer by its name": (dict(optimizer="adam"), "optimizer to be .*, got str"),
    "a version that is a text": (dict(version="one"), "version to be a whole number"),
    "a state that is a list": (state([1, 2]), "state: expected a dict .*, got list"),
    "a state with a function": (state({"n": {"m": len}}), "state.n.m: expected .*, got builtin"),
    "a state with a set": (state({"n": {1}}), "state.n: expected .*, got set"),
    "a state with a sparse tensor": (state({"n": torch.zeros(2).to_sparse()}), "state.n: expected"),
    "a state with nan": (state({"n": torch.tensor(float("nan"))}), "finite numbers"),
    "a state by numbers": (state({1: torch.zeros(2)}), "expected keys that are strings, got 1"),
    "a state that fails": ({"state": fails, "load": fails}, "KeyError: 'x'"),
    "a schema that is a text": (state({}) | {"schema": lambda self: "x"}, "odd: "),
    "an algorithm that it cannot follow": (dict(follow=lambda self, of: of.no_such), "no_such"),
}

FAILS: dict[str, tuple[dict[str, Any], str]] = {
    "one number": (
        dict(rewards=lambda self, data: torch.tensor(1.0)),
        "expected a tensor of float",
    ),
    "sparse": (dict(rewards=lambda self, data: data.reward.to_sparse()), "torch.sparse_coo"),
    "nowhere": (dict(rewards=lambda self, data: data.reward.to("meta")), "on meta"),
    "in place": (dict(rewards=lambda self, data: data.reward.add_(1)), "data.reward changed in"),
    "in place, of another row": (
        dict(rewards=lambda self, data: data.reward + data.obs[1:].zero_().sum()),
        "data.obs changed in place",
    ),
    "in place, when it is absorbed": (
        dict(absorb=lambda self, data, pool: data.mask.zero_()),
        "absorb failed: .*data.mask changed in place",
    ),
    "an exit": (dict(rewards=lambda self, data: sys.exit(0)), "rewards failed: SystemExit: 0"),
    "metrics of texts": (dict(metrics=lambda self: {"a": "x"}), "a number for 'a', got str"),
    "metrics of two": (dict(metrics=lambda self: {"a": torch.zeros(2)}), "got Tensor"),
    "a loss that is a tensor": (loss(lambda net, data: net(data.obs).sum()), "a LossOutput"),
    "a loss for each row": (
        loss(lambda net, data: LossOutput(loss=net(data.obs), count=count(data))),
        r"one number with a gradient, got shape",
    ),
    "a loss of a constant": (
        loss(lambda net, data: LossOutput(loss=torch.tensor(1.0), count=count(data))),
        "got one without a gradient",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_odd_term_is_refused_before_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members, said = REFUSED[name]
    monkeypatch.setitem(globals(), "Odd", odd(**members))
    with pytest.raises(ValueError, match=f"reward: .*{said}"):
        built(Rewards(sum=f"{__name__}:Odd"), PPO(), DISCRETE, 0)


@pytest.mark.parametrize("name", FAILS)
def test_an_odd_answer_ends_the_run_with_the_term_named(name: str) -> None:
    members, said = FAILS[name]
    with pytest.raises(RewardsFailed, match=f"reward: Odd.*{said}"):
        made(**members).step(batches(1)[0])


def test_a_state_that_no_resume_could_take_is_not_saved() -> None:
    """It is told at the checkpoint that holds it, not at the resume."""
    seen: list[float] = [0.0]
    one = made(**state(None) | {"state": lambda self: {"seen": torch.tensor(seen)}})
    one.check()
    seen.append(1.0)
    with pytest.raises(RewardsFailed, match=r"Odd.state failed: .*seen.* \[1\], got .* \[2\]"):
        one.check()


def test_frozen_parameters_of_a_net_stay() -> None:
    net = nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 1))
    before = net[0].weight.clone()  # type: ignore[operator]
    members = dict(
        net=net,
        loss=lambda self, data: LossOutput(loss=net(data.obs).square().sum(), count=count(data)),
    )
    one, last = made(**members), net[1].weight.clone()  # type: ignore[operator]
    for given in batches(2):
        one.step(given)
    assert torch.equal(net[0].weight, before) and not torch.equal(net[1].weight, last)  # type: ignore[arg-type]

    saved = statefile.parse(statefile.dump(one.state()))
    nn.init.ones_(net[0].weight)  # type: ignore[arg-type]  # a resumed process draws another
    made(**members).load(saved)
    assert torch.equal(net[0].weight, before), "the state has them as well"  # type: ignore[arg-type]


@pytest.mark.parametrize("arrays", [False, True], ids=["on policy", "replay"])
def test_new_rows_stay_as_they_are(arrays: bool) -> None:
    """A term that changed them would change what the algorithm learns from."""

    def collect(self: Any, data: Trajectory) -> None:
        data.reward[:] = 99

    data = batches(1)[0].data
    if arrays:
        data = Trajectory(**tree.numpy_views(data.fields()))
    with pytest.raises(RewardsFailed, match="Odd.collect failed: .*(changed in place|read-only)"):
        made(collect=collect).collect(data)
    assert arrays is False or not (data.reward == 99).any()
