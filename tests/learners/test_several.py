"""Several learners make the update that one would have made of the whole batch, and all of them
have the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise import tree
from equipoise.learners.learner import Learner
from equipoise.learners.pool import Group
from equipoise.learners.steps import NonFiniteUpdate
from equipoise.programs.program import algorithm_class
from equipoise.types import Batch, Rewards
from tests.algorithms import items
from tests.learners.several import alone, learned, share, together
from tests.learners.test_pool import CONTINUOUS, DISCRETE

STREAMS, ROWS, UPDATES = 8, 8, 100
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {"epochs": 4, "minibatches": 4, "normalize_obs": True}),
    "impala": ("impala", {}),
    "impala-lstm": ("impala", {"core": "lstm", "core_size": 16}),
    "appo": ("appo", {"epochs": 2, "minibatches": 2}),
    "r2d2": ("r2d2", {"burn_in": 2, "length": 3, "n_step": 2, "core_size": 16}),
    "sac": ("sac", {}),
    "dqn": ("dqn", {"n_step": 2}),
}


def case(name: str) -> tuple[Any, Any, Any]:
    """An algorithm, its first network, and its batches by update, all made before a thread begins:
    a space has one state.
    """
    called, options = CASES[name]
    made: Any = algorithm_class(called)
    algorithm = made(hidden=(16, 16), **options)
    spec = CONTINUOUS if called == "sac" else DISCRETE
    net = items.network(algorithm, spec, 0)
    rows = algorithm.item_rows or ROWS

    def batch(update: int) -> Batch:
        data = items.drawn(spec, rows, STREAMS, update)
        logp = -torch.rand(rows, STREAMS, generator=items.generator(update))
        said = {"logp": logp, "q": -logp, "value": logp}
        state = tree.map(lambda x: x.clone(), net.initial_state(STREAMS))
        weight = 0.5 + torch.rand(STREAMS, generator=items.generator(update + 1))
        return items.batch(replace(data, behaviour=said, state=state), weight / weight.max())

    drawn = [batch(update) for update in range(UPDATES)]
    return algorithm, net, drawn.__getitem__


@pytest.fixture(autouse=True)
def _no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is drawn by each learner for its own items: the single one would draw other numbers."""
    monkeypatch.setattr(
        "equipoise.algorithms.sac.standard_normal", lambda like, rng: torch.zeros(like)
    )


def of(learner: Learner) -> dict[str, Tensor]:
    """All tensors of a learner's networks, by name."""
    state: Any = learner.state()
    return dict(learner.params()) | {
        f"target {path}": tensor for path, tensor in state["target"].items()
    }


@pytest.mark.thorough
@pytest.mark.timeout(1200)  # four threads and the four of gloo, on however few cores
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_several_learn_what_one_learns_of_the_whole_batch(name: str, size: int) -> None:
    algorithm, net, batches = case(name)
    settings: dict[str, Any] = {"rewards": Rewards(normalize=True)} if name == "ppo" else {}
    ranks = together(
        size, lambda rank, pool: learned(algorithm, net, batches, UPDATES, pool=pool, **settings)
    )
    for other in ranks[1:]:
        for path, tensor in of(ranks[0]).items():
            assert torch.equal(tensor, of(other)[path]), f"{path} is not the same in all learners"
    whole = of(alone(algorithm, net, batches, UPDATES, size, **settings))
    assert any(not torch.equal(whole[path], first) for path, first in net.named_parameters()), (
        "nothing was learned"
    )
    for path, tensor in of(ranks[0]).items():
        torch.testing.assert_close(
            tensor,
            whole[path],
            rtol=0,
            atol=1e-6,
            msg=lambda text, path=path: f"{path}: {text}",  # type: ignore[misc]
        )


def test_a_loss_that_is_not_finite_is_raised_by_all_and_changes_nothing() -> None:
    algorithm, net, batches = case("impala")  # whose rank 1 has a finite loss of its own
    before = {path: tensor.clone() for path, tensor in net.named_parameters()}

    def broken(update: int) -> Batch:
        batch = batches(update)
        reward = batch.data.reward.clone()
        reward[0, 0] = float("inf")  # a stream of rank 0
        return replace(batch, data=replace(batch.data, reward=reward))

    def work(rank: int, pool: Group) -> Any:
        with pytest.raises(NonFiniteUpdate) as raised:
            learned(algorithm, net, broken, 1, pool=pool)
        return str(raised.value)

    one, other = together(2, work)
    assert one == other
    assert all(torch.equal(tensor, before[path]) for path, tensor in net.named_parameters())


def test_a_gradient_is_sent_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With small buckets the first parts are on their way before backward is over, and the sum is
    the same.
    """
    algorithm, net, batches = case("impala")
    whole = together(2, lambda rank, pool: of(learned(algorithm, net, batches, 3, pool=pool)))
    monkeypatch.setattr("equipoise.learners.parameters.buckets.BUCKET", 256)
    events: list[str] = []

    class Noting(Group):
        def add_up(self, x: Tensor) -> Any:
            if self.rank == 0:
                events.append("sent")
            return super().add_up(x)

    def work(rank: int, pool: Group) -> Any:
        pool.__class__ = Noting
        made = learned(algorithm, net, batches, 0, pool=pool)
        if rank == 0:
            parameters: Any = made.parameters
            first = next(iter(parameters._buckets.values()))
            finish = first.finish

            def noted() -> None:
                events.append("over")
                finish()

            first.finish = noted
        for update in range(3):
            made.step(share(batches(update), rank, 2))
        return of(made)

    parts = together(2, work)
    for path, tensor in whole[0].items():
        assert torch.equal(tensor, parts[0][path])
    assert events.index("over") > 3, events[:20]
    assert events.count("sent") > 3 * 4, events
