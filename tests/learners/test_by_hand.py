"""What several learners add up, in numbers that can be done by hand: the gradient, its count,
weights, draws and statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from equipoise import tree
from equipoise.learners.learner import Learner
from equipoise.learners.parameters.flat import Flat
from equipoise.learners.pool import ALONE
from equipoise.learners.steps import NonFiniteUpdate
from equipoise.rewards.step import RewardStep
from equipoise.types import Batch, LossOutput, Pool, Rewards, Trajectory
from tests.learners.several import SEED, share, together
from tests.learners.test_learner import Quadratic, batch

STREAMS = 6  # of ``batch``: a row t of stream b has the reward 100 t + b, a stream b the weight b


@dataclass(frozen=True, kw_only=True)
class Noting(Quadratic):
    """The quadratic, which notes the rewards and the weights of each minibatch, and how often it
    absorbed a batch.
    """

    def network(self, spec: Any) -> Any:
        net: Any = super().network(spec)
        net.seen, net.weights, net.absorbed = [], [], 0
        return net

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput | None:
        if group == "a":
            net.seen.append(batch.data.reward.flatten().tolist())
            net.weights.append(batch.weight.clone())
        return super().loss(net, target_net, batch, group=group, step=step, rng=rng)

    def absorb(self, net: Any, data: Trajectory, *, pool: Pool) -> None:
        net.absorbed += 1


@dataclass(frozen=True, kw_only=True)
class Discounted(Noting):
    gamma: float = 0.99


def learner(algorithm: Quadratic, pool: Any, **settings: Any) -> Learner:
    return Learner(
        algorithm,
        algorithm.network(None),
        optimizer=algorithm.default_optimizer,
        schedule_updates=10,
        seed=SEED,
        batch=STREAMS,
        parameters=Flat(pool),
        **settings,
    )


def uneven(rows: int) -> Batch:
    """The batch, of which the first of two learners has so many real rows a stream, and the other
    all.
    """
    whole = batch()
    whole.data.mask[rows:, : STREAMS // 2] = False
    return whole


def each(
    work: Callable[[Learner, Batch], Any],
    whole: Batch,
    algorithm: Quadratic | None = None,
    **settings: Any,
) -> list[Any]:
    """``work(learner, share)`` by two learners -> what each returned."""
    return together(
        2,
        lambda rank, pool: work(
            learner(algorithm or Noting(), pool, **settings), share(whole, rank, 2)
        ),
    )


@pytest.mark.parametrize("rows", [0, 1])
def test_the_gradient_is_the_sum_over_all_rows_divided_by_all_their_rows(rows: int) -> None:
    """Neither by the number of learners besides, nor by each learner's own rows; one of the two may
    have none.
    """

    def gradient(made: Learner, mine: Batch) -> tuple[float, float]:
        out = made.step(mine)
        return float(made.parameters.gradient("a")[0]), float(out.metrics["grad_norm/a"][0])

    whole = uneven(rows)
    real = float(whole.data.reward[whole.data.mask].mean())
    for got, norm in each(gradient, whole):
        assert got == pytest.approx(-2 * real)
        assert norm == pytest.approx(2 * real)


def test_weights_are_divided_by_the_largest_of_all() -> None:
    def weights(made: Learner, mine: Batch) -> list[float]:
        made.step(mine)
        (seen,) = made.net.weights
        return seen.tolist()

    one, other = each(weights, batch())
    assert one + other == pytest.approx([b / (STREAMS - 1) for b in range(STREAMS)])
    none = replace(batch(), weight=torch.zeros(STREAMS))
    assert each(weights, none) == [[0.0] * 3] * 2, "nothing to divide by"


def test_minibatches_are_drawn_anew_by_each_learner_and_in_each_update() -> None:
    """A learner that goes on from the state of another draws as the one in its place would have."""
    saved: list[Any] = [None, None]
    algorithm = Noting(minibatches=2)

    def places(made: Learner, mine: Batch) -> list[list[float]]:
        """The order in which the rows of two updates came, as places in the learner's own share."""
        own = mine.data.reward.flatten().tolist()
        made.step(mine)
        saved[made.pool.rank] = tree.map(
            lambda x: x.clone() if isinstance(x, torch.Tensor) else x, made.state()
        )
        made.step(mine)
        one, two, three, four = ([own.index(reward) for reward in part] for part in made.net.seen)
        return [one + two, three + four]

    whole = batch(streams=32)
    first = each(places, whole, algorithm)
    rows = list(range(4 * 16))
    orders = [order for learner in first for order in learner]
    assert all(sorted(order) == rows for order in orders)
    assert len({tuple(order) for order in orders}) == 4, "two learners or two updates draw the same"

    def second(made: Learner, mine: Batch) -> list[list[float]]:
        made.load(saved[1 - made.pool.rank])
        return places(made, mine)

    again = each(second, whole, algorithm)
    assert [order for order, _ in again] == [order for _, order in first]


def test_a_batch_is_absorbed_once() -> None:
    def counts(made: Learner, mine: Batch) -> tuple[int, dict[str, torch.Tensor]]:
        made.step(mine)
        kept: Any = made.state()["rewards"]
        return made.net.absorbed, kept["statistics"]

    wanted: Any = RewardStep(Rewards(normalize=True), 0.99)
    wanted.absorb(batch().data, ALONE)
    for times, statistics in each(counts, batch(), Discounted(), rewards=Rewards(normalize=True)):
        assert times == 1
        assert float(statistics["count"]) == float(wanted.state()["statistics"]["count"]) > 0


@pytest.mark.parametrize("device", ["cpu", "other"])
@pytest.mark.parametrize("part", [0, 1])
def test_what_is_not_finite_in_one_share_stops_all(
    part: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device, where to look is to wait, the steps of all are of zeros, and all raise at the
    end.
    """
    monkeypatch.setattr(tree, "to", lambda x, device, non_blocking: x)

    def step(made: Learner, mine: Batch) -> tuple[str, float]:
        if device != "cpu":
            made.device = SimpleNamespace(type=device)  # type: ignore[assignment]
        if made.pool.rank == part:
            mine.data.reward[0, 0] = float("inf")
        with pytest.raises(NonFiniteUpdate) as raised:
            made.step(mine)
        assert made.version == 0 and made.net.absorbed == 0
        return str(raised.value), float(made.params()["a"])

    one, other = each(step, batch())
    assert one == other
    assert one[1] == 0.0, "no weight has moved"
