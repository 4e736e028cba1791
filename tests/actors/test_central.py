"""ActingPrecision together is acting alone, side by side: logits agree, and so do actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise import api, tree
from equipoise.actors.inference.central import PARTS
from equipoise.actors.inference.joint import Asked, JointForward
from equipoise.clock import Clock
from equipoise.plans import roles
from equipoise.plans.plan import plan_run

GROUPS, STREAMS, ROUNDS = 13, 5, 20
CASES = [
    ("CartPole-v1", "ppo", []),
    ("CartPole-v1", "impala", ["algorithm.core=lstm"]),
    ("CartPole-v1", "r2d2", []),
    ("CartPole-v1", "apex_dqn", []),
    ("Pendulum-v1", "sac", []),
    ("ALE/Pong-v5", "impala", []),
]


def some(specs: Any, rng: np.random.Generator, *shape: int) -> Any:
    """Normal numbers, bytes of all values."""

    def leaf(spec: tree.ArraySpec) -> Any:
        size = (*shape, *spec.shape)
        numbers = rng.integers(0, 256, size) if spec.dtype == "uint8" else rng.standard_normal(size)
        return numbers.astype(spec.dtype)

    return tree.map(leaf, specs)


@pytest.mark.few(1)
@pytest.mark.parametrize(("env", "algorithm", "settings"), CASES)
def test_what_is_chosen_together_is_chosen_alone(
    env: str, algorithm: str, settings: list[str], seed: int
) -> None:
    blue = plan_run(api.program(env, algorithm, recipe=False, settings=settings, steps=100_000))
    role, rng = blue.roles["main"], np.random.default_rng(seed)
    forward = JointForward(role.algorithm, roles.network(blue.program, blue.spec, "main"))

    def asked(group: int) -> Asked:
        rows: Any = forward.rows(
            obs=some(role.row.obs, rng, 1, STREAMS),
            first=rng.random((1, STREAMS)) < 0.2,
            noise=rng.random((1, STREAMS, role.noise.columns), np.float32),
            action=tree.zeros(tree.prepend(role.row.action, 1, STREAMS)),
            behaviour=tree.zeros(tree.prepend(role.row.behaviour, 1, STREAMS)),
        )
        explore = role.algorithm.explore(
            np.arange(group * STREAMS, (group + 1) * STREAMS), GROUPS * STREAMS, 5000
        )
        return Asked(rows[0], tree.torch_views(some(role.row.state, rng, STREAMS)), explore)

    equal, count, rounds = 0, 0, 2 if "ALE" in env else ROUNDS
    for _ in range(rounds):
        groups = [asked(group) for group in range(GROUPS)]
        states = forward.together(groups, Clock(PARTS))
        for mine, state in zip(groups, states, strict=True):
            action, behaviour = (
                tree.map(np.array, x) for x in (mine.row.action, mine.row.behaviour)
            )
            tree.map(
                lambda x: x.fill(0), {"action": mine.row.action, "behaviour": mine.row.behaviour}
            )
            (alone,) = forward.together([mine], Clock(PARTS))
            for x, y in zip(tree.leaves(mine.row.behaviour), tree.leaves(behaviour), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
            for a, b in zip(tree.leaves(alone), tree.leaves(state), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
            for x, y in zip(tree.leaves(mine.row.action), tree.leaves(action), strict=True):
                same = np.isclose(x, y, atol=1e-4) if x.dtype.kind == "f" else x == y
                equal, count = equal + int(same.sum()), count + same.size
    assert equal >= 0.999 * count, f"{count - equal} of {count} actions differ"
