"""As ``ruling``, of several policies: the loss proves every row of its policy by the law of the herd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from equipoise.types import Batch, EnvFactory, Frozen, LossOutput, Policy, Program
from tests.envs import herd
from tests.runtime.ruling import Counter, Ruling, plant

AT: dict[int, tuple[int, int]] = {}  # of this process: the learner's


@dataclass(frozen=True, kw_only=True)
class Herding(Ruling):
    actions: int = 8

    def network(self, spec: Any) -> nn.Module:
        return Counter()

    def act(self, net: Any, obs: Any, first: Any, state: Any, *, explore: Any, noise: torch.Tensor) -> Any:
        _, behaviour, state = super().act(net, obs, first, state, explore=explore, noise=noise)
        return (noise[:, 0] * self.actions).long(), behaviour, state

    def loss(self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any) -> LossOutput:
        data = plant(batch.data, self.fault)
        wrong = herd.verify(data, AT)
        by_weights = np.rint(data.behaviour["updates"].numpy())
        wrong += [f"version{tuple(i)} is not that of the weights" for i in np.argwhere(by_weights != data.version.numpy())]
        chosen = (data.behaviour["noise"].numpy() * self.actions).astype(np.int64)
        wrong += [f"action{tuple(i)} is not the one chosen" for i in np.argwhere(chosen != data.action.numpy())]
        for b, (stream, start) in enumerate(zip(*(data.context[k].tolist() for k in ("stream", "start")), strict=True)):
            of, rows = herd.law(stream, start + len(data.reward)), np.arange(start, start + len(data.reward))
            since = rows - np.array(of.begun)[rows]
            if not np.array_equal(data.behaviour["seen"].numpy()[:, b], since):
                wrong.append(f"recurrent state of stream {stream}: expected {since} rows since its first, got others")
        if wrong:
            raise AssertionError(f"{len(wrong)} rows do not prove themselves, the first: {wrong[:3]}")
        count = torch.tensor(float(data.mask.numel()))
        return LossOutput(loss=-net.updates.sum() * count, count=count, metrics={"rows": (count, torch.tensor(1.0))})


def program(
    *, target: str = "tests.envs.herd:ExactHerd", actors: int = 2, envs: int = 3, unroll: int = 5, batch: int | None = None,
    max_lag: int | None = 0, steps: int = 1500, fault: Any = "none", **options: Any,
) -> Program:  # fmt: skip
    """Two policies that learn, of two agents and of one, whose spaces differ."""
    sizes: Any = {"unroll": unroll, "batch": batch or actors * envs}
    return Program(
        env=EnvFactory(target=target),
        policies={
            "goats": Policy(algorithm=Herding(fault=fault), **sizes), "dog": Policy(algorithm=Herding(actions=5), **sizes),
        },
        route={"a*": "goats", "b0": "dog"},
        actors=actors, envs_per_actor=envs, max_lag=max_lag, steps=steps, evaluate_episodes=0, **options,
    )  # fmt: skip


def against_its_past(*, every: int = 7, pool: int = 3, **options: Any) -> Program:
    """One policy, ``a0``, against its past, ``a1``; the third agent has a policy of its own."""
    made = program(**options)
    learn = made.policies["goats"], made.policies["dog"]
    policies: Any = {"old": Frozen(of="main", every=every, pool=pool), "main": learn[0], "dog": learn[1]}
    return Program(
        **{f: getattr(made, f) for f in Program.__slots__} | {"policies": policies, "route": {"a1": "old", "b0": "dog"}}
    )
