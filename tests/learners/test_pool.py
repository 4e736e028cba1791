"""Statistics of a whole batch are functions of sums: two learners with half of the streams each get
those of one with all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise import tree
from equipoise.algorithms._actor_critic import ActorCriticAlgorithm, standardized
from equipoise.learners.pool import ALONE
from equipoise.programs.program import algorithm_class, algorithm_names, text_algorithm_names
from equipoise.rewards.step import RewardStep
from equipoise.types import EnvSpec, Pool, Rewards, Trajectory
from tests.algorithms import items
from tests.learners.several import streams_of, together

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE, CONTINUOUS = (
    EnvSpec(observation=BOX, action=action)
    for action in (spaces.Discrete(4), spaces.Box(-1.0, 1.0, (2,)))
)
STREAMS = 8
CONTINUOUS_ONLY = ("crossq", "td3", "tqc")
OPTIONS: dict[str, dict[str, Any]] = {
    "r2d2": {"burn_in": 2, "length": 3, "n_step": 2},
    "bc": {"normalize_obs": True},
}


def halves(work: Callable[[int, Pool], Any]) -> list[Any]:
    """``work(part, pool)`` by two learners -> what each returned."""

    def run(part: int, pool: Pool) -> Any:
        with torch.no_grad():
            return work(part, pool)

    return together(2, run)


def made(name: str) -> tuple[Any, Any, Any, Trajectory]:
    """An algorithm with everything on that is a statistic, its network and target network, and a
    batch.
    """
    cls = algorithm_class(name)
    statistics = {"normalize_obs": True} if issubclass(cls, ActorCriticAlgorithm) else {}
    algorithm = cls(**statistics, **OPTIONS.get(name, {}))
    spec = CONTINUOUS if name in CONTINUOUS_ONLY else DISCRETE
    net, target_net = (
        items.network(algorithm, spec, 0),
        algorithm.followed(items.network(algorithm, spec, 1)),
    )
    rows = algorithm.item_rows or 20
    data = items.drawn(spec, rows, STREAMS, 3)
    if statistics:  # far from what has mean 0 and deviation 1
        data.obs.mul_(7.0).add_(50.0)
    # the halves have not as many real rows
    data.mask[:, 5:] &= torch.rand(rows, 3, generator=items.generator(1)) < 0.5
    logp = -torch.rand(rows, STREAMS, generator=items.generator(2))
    said = {"logp": logp, "q": torch.randn(rows, STREAMS), "value": torch.randn(rows, STREAMS)}
    state = tree.map(lambda x: x.clone(), net.initial_state(STREAMS))
    return algorithm, net, target_net, replace(data, behaviour=said, state=state)


ACTING = [name for name in algorithm_names() if name not in text_algorithm_names()]
PARTS = (slice(0, 3), slice(3, STREAMS))


@pytest.mark.parametrize("name", ACTING)
def test_targets_of_two_parts_are_those_of_the_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise is drawn for each item, not for a batch: there is none here."""
    for room in ("crossq", "sac", "td3"):
        monkeypatch.setattr(
            f"equipoise.algorithms.{room}.standard_normal", lambda like, rng: torch.zeros(like)
        )
    algorithm, net, target_net, data = made(name)

    def targets(data: Trajectory, pool: Any) -> Any:
        return algorithm.targets(net, target_net, data, rng=items.generator(), pool=pool)

    with torch.no_grad():
        whole = targets(data, ALONE)
    parts = halves(lambda part, pool: targets(streams_of(data, PARTS[part]), pool))
    for wanted, one, other in zip(tree.leaves(whole), *map(tree.leaves, parts), strict=True):
        axis = wanted.shape.index(STREAMS)
        torch.testing.assert_close(torch.cat([one, other], axis), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ACTING)
def test_two_parts_leave_the_statistics_of_the_whole(name: str) -> None:
    algorithm, net, _, data = made(name)
    nets: list[Any] = [copy.deepcopy(net) for _ in range(2)]

    def absorb(part: int, pool: Any) -> None:
        algorithm.absorb(nets[part], streams_of(data, PARTS[part]), pool=pool)

    for _ in range(2):  # the second on top of the first
        halves(absorb)
    with torch.no_grad():
        for _ in range(2):
            algorithm.absorb(net, data, pool=ALONE)
    for part in nets:
        for name_, buffer in net.named_buffers():
            torch.testing.assert_close(
                dict(part.named_buffers())[name_], buffer, rtol=1e-6, atol=1e-6
            )


def test_two_parts_leave_the_reward_statistics_of_the_whole() -> None:
    data = made("ppo")[3]
    whole, *parts = [RewardStep(Rewards(normalize=True), 0.9) for _ in range(3)]
    for _ in range(2):
        halves(lambda part, pool: parts[part].absorb(streams_of(data, PARTS[part]), pool))
        whole.absorb(data, ALONE)
    kept: Any = whole.state()
    for streams, part in zip(PARTS, parts, strict=True):
        its: Any = part.state()
        for name, value in kept["statistics"].items():
            torch.testing.assert_close(its["statistics"][name], value, rtol=1e-6, atol=1e-6)
        # those of all streams, in every learner
        assert torch.equal(kept["return"], its["return"]), streams


def test_a_learner_alone_has_its_own_moments_to_the_bit() -> None:
    advantage, mask = torch.randn(64, 32) * 3 + 1, torch.rand(64, 32) < 0.9
    real = advantage[mask]
    wanted = (advantage - real.mean()) / (real.std(correction=0) + 1e-8)
    assert torch.equal(standardized(advantage, mask, ALONE), wanted)


def test_a_part_without_a_real_row_has_the_moments_of_the_other() -> None:
    advantage, mask = torch.randn(6, STREAMS), torch.ones(6, STREAMS, dtype=torch.bool)
    mask[:, PARTS[1]] = False
    parts = halves(
        lambda part, pool: standardized(advantage[:, PARTS[part]], mask[:, PARTS[part]], pool)
    )
    torch.testing.assert_close(
        torch.cat(parts, 1), standardized(advantage, mask, ALONE), rtol=1e-6, atol=1e-6
    )
    assert torch.equal(standardized(advantage, torch.zeros_like(mask), ALONE), advantage)
