"""Populations: a learner takes another one's whole state, and then other settings,
while it learns.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from equipoise import tree
from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.ppo import PPO
from equipoise.algorithms.sac import SAC
from equipoise.learners.execution import Graph
from equipoise.learners.learner import Learner
from equipoise.learners.parameters.flat import Flat
from equipoise.types import Batch, Optimizer, Rewards
from tests.algorithms.items import BOX, DISCRETE, batch, drawn, generator, network
from tests.learners.several import share, together
from tests.learners.test_pool import made as pooled
from tests.nets.recording import Recording

pytestmark = pytest.mark.usefixtures("one_thread")
OLD = Optimizer(learning_rate=1e-2, schedule="linear", max_grad_norm=0.5)
NEW = Optimizer(
    learning_rate=1e-3,
    schedule="cosine",
    max_grad_norm=0.1,
    epsilon=1e-3,
    betas=(0.8, 0.9),
    weight_decay=0.01,
)
ON_POLICY = PPO(hidden=(16,), epochs=2, minibatches=2)
CASES: dict[str, tuple[Any, Any, Any]] = {
    "ppo": (
        ON_POLICY,
        replace(ON_POLICY, epochs=3, minibatches=4, clip=0.05, gamma=0.8, entropy=0.1),
        DISCRETE,
    ),
    "impala": (IMPALA(hidden=(16,)), IMPALA(hidden=(16,), gamma=0.8, entropy=0.1), DISCRETE),
    "dqn": (
        DQN(hidden=(16,), target_every=3),
        DQN(hidden=(16,), target_every=2, tau=0.5, gamma=0.9),
        DISCRETE,
    ),
    "sac": (SAC(hidden=(16,)), SAC(hidden=(16,), tau=0.1, gamma=0.9), BOX),
}


def learner(
    algorithm: Any, spec: Any, seed: int = 0, optimizer: Optimizer = OLD, **settings: Any
) -> Learner:
    net = network(algorithm, spec, seed)
    rewards = Rewards(normalize=not algorithm.needs_replay)
    return Learner(
        algorithm,
        net,
        optimizer=optimizer,
        rewards=rewards,
        schedule_updates=9,
        seed=seed,
        batch=6,
        **settings,
    )


def batches(algorithm: Any, spec: Any, count: int, first: int = 0) -> list[Batch]:
    made = []
    for seed in range(first, first + count):
        data = drawn(spec, algorithm.item_rows or 4, 6, seed)
        logp = -torch.rand(data.shape, generator=generator(seed))
        made.append(batch(replace(data, behaviour={"logp": logp, "value": logp})))
    return made


def learn(made: Learner, given: list[Batch]) -> Learner:
    for one in given:
        made.step(copy.deepcopy(one))
    return made


def same(one: Learner, other: Learner) -> bool:
    """Are parameters, optimisers, target network and statistics equal to the bit?"""
    kept = ("groups", "buffers", "target", "rewards", "rng")
    pairs = [
        (tree.items(mine), tree.items(others))
        for mine, others in ((_of(one, kept), _of(other, kept)),)
    ]
    return all(
        torch.equal(a, b)
        for mine, others in pairs
        for (_, a), (_, b) in zip(mine, others, strict=True)
    )


def _of(made: Learner, kept: tuple[str, ...]) -> Any:
    state: Any = made.state()
    return {name: state[name] for name in kept}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("what", ["optimizer", "algorithm", "both"])
def test_a_retuned_learner_goes_on_as_a_new_one_with_these_settings(name: str, what: str) -> None:
    old, new, spec = CASES[name]
    changes: dict[str, Any] = {"optimizer": NEW, "algorithm": new}
    changes = changes if what == "both" else {what: changes[what]}
    given = batches(old, spec, 6)
    tuned, kept = (learn(learner(old, spec), given[:3]) for _ in range(2))
    resumed = learner(changes.get("algorithm", old), spec, optimizer=changes.get("optimizer", OLD))
    resumed.load(tuned.snapshot())
    tuned.retune(**changes)
    for made in (tuned, kept, resumed):
        learn(made, given[3:])
    assert same(tuned, resumed) and not same(tuned, kept)
    assert tuned.version == 6


@pytest.mark.parametrize("name", CASES)
def test_a_member_takes_the_state_of_another_and_then_has_a_rate_of_its_own(name: str) -> None:
    algorithm, _, spec = CASES[name]
    best, worst = learner(algorithm, spec, 0), learner(algorithm, spec, 1)
    learn(best, batches(algorithm, spec, 2))
    learn(worst, batches(algorithm, spec, 4, first=10))
    given = best.snapshot()
    before = {path: x.clone() for path, x in tree.items(given) if isinstance(x, torch.Tensor)}
    worst.adopt(given)
    assert (worst.version, worst.updates, worst.progress) == (4, 2, best.progress), (
        "versions only rise in a run"
    )
    more = batches(algorithm, spec, 3, first=20)
    learn(best, more[:1])
    learn(worst, more[:1])
    assert same(best, worst)
    resumed = learner(algorithm, spec, 2)
    resumed.load(worst.snapshot())
    assert (resumed.version, resumed.updates) == (5, 3), "a cut after that is a state as any other"
    worst.retune(optimizer=replace(OLD, learning_rate=0.5 * OLD.learning_rate))
    for made in (best, worst):
        learn(made, more[1:])
    assert not same(best, worst)
    assert all(torch.equal(x, before[path]) for path, x in tree.items(given) if path in before), (
        "the copy stays"
    )


def test_several_learners_are_retuned_and_take_a_state_alike() -> None:
    algorithm, net, _, data = pooled("ppo")
    whole = batch(data)

    def work(rank: int, pool: Any) -> Any:
        made = Learner(
            algorithm,
            copy.deepcopy(net),
            schedule_updates=9,
            seed=1,
            batch=8,
            parameters=Flat(pool),
        )
        mine = share(whole, rank, 2)
        made.step(mine)
        state = made.snapshot()
        made.step(mine)
        made.adopt(state)
        made.retune(optimizer=NEW, algorithm=replace(algorithm, clip=0.01))
        made.step(mine)
        return (
            made.version,
            made.updates,
            {name: x.detach().clone() for name, x in made.params().items()},
        )

    one, other = together(2, work)
    assert one[:2] == other[:2] == (3, 2)
    assert all(torch.equal(x, other[2][name]) for name, x in one[2].items())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"optimizer": replace(OLD, name="adamw")},
            r"optimizer\.name: expected 'adam' as before.*got 'adamw'",
        ),
        (
            {"optimizer": replace(OLD, rates={"actor": 1e-3})},
            r"optimizer\.rates: expected groups of \['all'\], got 'actor'",
        ),
        (
            {"algorithm": replace(ON_POLICY, hidden=(8,))},
            r"algorithm\.hidden: expected \(16,\) as before",
        ),
        ({"algorithm": IMPALA(hidden=(16,))}, r"algorithm: expected PPO as before, got IMPALA"),
        (
            {"algorithm": replace(ON_POLICY, target_every=2)},
            r"algorithm\.target_every: expected 0 to stay 0.*0 -> 2",
        ),
        (
            {
                "algorithm": replace(ON_POLICY, minibatches=4),
                "optimizer": replace(OLD, name="rmsprop"),
            },
            r"optimizer\.name",
        ),
    ],
)
def test_what_the_state_does_not_fit_is_refused_and_changes_nothing(
    changes: dict[str, Any], said: str
) -> None:
    given = batches(ON_POLICY, DISCRETE, 4)
    made, kept = (learn(learner(ON_POLICY, DISCRETE), given[:2]) for _ in range(2))
    with pytest.raises(ValueError, match=said):
        made.retune(**changes)
    assert (made.algorithm, made.optimizer) == (ON_POLICY, OLD)
    assert same(learn(made, given[2:]), learn(kept, given[2:]))


def test_graphs_are_recorded_again_for_other_settings() -> None:
    """A graph has the clip and the bound of the norm that it was recorded with."""
    given, record = batches(ON_POLICY, DISCRETE, 1)[0], Recording()
    cpu = torch.device("cpu")
    plain, graphed = (learner(ON_POLICY, DISCRETE) for _ in range(2))
    graphed.set_execution(Graph(cpu, lambda text: None, record))
    for algorithm in (ON_POLICY, replace(ON_POLICY, clip=0.05)):
        for made in (plain, graphed):
            made.retune(algorithm=algorithm, optimizer=NEW)
            for _ in range(3):
                made.step(given)
    assert (record.made, record.replayed) == (2, 4)
    for name, x in plain.params().items():
        torch.testing.assert_close(graphed.params()[name], x, rtol=1e-4, atol=1e-6, msg=name)
    with pytest.raises(
        ValueError,
        match=r"graphs: expected an algorithm whose updates can be recorded.*value alone",
    ):
        graphed.retune(algorithm=replace(ON_POLICY, value_warmup=2))
