"""Acting together is acting alone, side by side: logits agree, and so do actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise import api, tree
from equipoise.actors.central import joined, parted
from equipoise.actors.forward import Asked, Forward
from equipoise.runtime import blueprint

GROUPS, STREAMS, ROUNDS = 13, 5, 20
CASES = [
    ("CartPole-v1", "ppo", []), ("CartPole-v1", "impala", ["algorithm.core=lstm"]), ("CartPole-v1", "r2d2", []),
    ("CartPole-v1", "apex_dqn", []), ("Pendulum-v1", "sac", []), ("ALE/Pong-v5", "impala", []),
]  # fmt: skip


def some(specs: Any, count: int, rng: np.random.Generator) -> Any:
    """Normal numbers, bytes of all values."""

    def leaf(spec: tree.ArraySpec) -> torch.Tensor:
        shape = (count, *spec.shape)
        numbers = rng.integers(0, 256, shape) if spec.dtype == "uint8" else rng.standard_normal(shape)
        return torch.from_numpy(numbers.astype(spec.dtype))

    return tree.map(leaf, specs)


@pytest.mark.parametrize(("env", "algorithm", "settings"), CASES)
def test_what_is_chosen_together_is_chosen_alone(env: str, algorithm: str, settings: list[str], seed: int) -> None:
    blue = blueprint.blueprint(api.program(env, algorithm, recipe=False, settings=settings, steps=100_000))
    role, rng = blue.roles["main"], np.random.default_rng(seed)
    net = blueprint.network(blue.program, blue.spec, "main")
    forward = Forward(role.algorithm, net)
    equal, count, rounds = 0, 0, 2 if "ALE" in env else ROUNDS
    for _ in range(rounds):
        asked = [
            Asked(
                obs=some(role.row.obs, STREAMS, rng), first=torch.from_numpy(rng.random(STREAMS) < 0.2),
                noise=torch.from_numpy(rng.random((STREAMS, role.noise_columns), np.float32)),
                state=some(role.row.state, STREAMS, rng),
                explore=role.algorithm.explore(np.arange(group * STREAMS, (group + 1) * STREAMS), GROUPS * STREAMS, 5000),
            )
            for group in range(GROUPS)
        ]  # fmt: skip
        together = parted(forward.together(joined(asked)), GROUPS)
        for mine, (action, behaviour, state) in zip(asked, together, strict=True):
            alone = forward.together(mine)
            for a, b in zip(map(tree.leaves, alone[1:]), map(tree.leaves, (behaviour, state)), strict=True):
                for x, y in zip(a, b, strict=True):
                    torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)
            for x, y in zip(tree.leaves(alone[0]), tree.leaves(action), strict=True):
                same = torch.isclose(x, y, atol=1e-4) if x.dtype.is_floating_point else x == y
                equal, count = equal + int(same.sum()), count + same.numel()
    assert equal >= 0.999 * count, f"{count - equal} of {count} actions differ"
