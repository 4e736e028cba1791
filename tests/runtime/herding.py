"""As ``ruling``, of several policies: the loss proves every row of its policy by the law of the
herd.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from equipoise.types import (
    Batch,
    EnvFactory,
    EnvSource,
    EvaluationSettings,
    Frozen,
    LossOutput,
    Placement,
    Policy,
    Program,
    ReplaySettings,
    Schedule,
)
from tests.envs import herd
from tests.runtime.ruling import Counter, Ruling, misversioned, plant

AT: dict[int, tuple[int, int]] = {}  # of this process: the learner's


@dataclass(frozen=True, kw_only=True)
class Herding(Ruling):
    actions: int = 8

    def network(self, spec: Any) -> nn.Module:
        return Counter()

    def act(
        self, net: Any, obs: Any, first: Any, state: Any, *, explore: Any, noise: torch.Tensor
    ) -> Any:
        _, behaviour, state = super().act(net, obs, first, state, explore=explore, noise=noise)
        return (noise[:, 0] * self.actions).long(), behaviour, state

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput:
        data = plant(batch.data, self.fault)
        wrong = herd.verify(data, AT)
        by_weights = np.rint(data.behaviour["updates"].numpy())
        wrong += [
            f"version{tuple(i)} is not that of the weights"
            for i in np.argwhere(by_weights != data.version.numpy())
        ]
        chosen = (data.behaviour["noise"].numpy() * self.actions).astype(np.int64)
        wrong += [
            f"action{tuple(i)} is not the one chosen"
            for i in np.argwhere(chosen != data.action.numpy())
        ]
        for b, (stream, start) in enumerate(
            zip(*(data.context[k].tolist() for k in ("stream", "start")), strict=True)
        ):
            of, rows = (
                herd.law(stream, start + len(data.reward)),
                np.arange(start, start + len(data.reward)),
            )
            since = rows - np.array(of.begun)[rows]
            if not np.array_equal(data.behaviour["seen"].numpy()[:, b], since):
                wrong.append(
                    f"recurrent state of stream {stream}: expected {since} rows since its first, "
                    "got others"
                )
        if wrong:
            raise AssertionError(
                f"{len(wrong)} rows do not prove themselves, the first: {wrong[:3]}"
            )
        count = torch.tensor(float(data.mask.numel()))
        return LossOutput(
            loss=-net.updates.sum() * count,
            count=count,
            metrics={"rows": (count, torch.tensor(1.0))},
        )


class Blank(Counter):
    """Without a state, so that a window may begin at any row."""

    def initial_state(self, batch: int) -> dict[str, torch.Tensor]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Replayed(Herding):
    """The same of windows of ``rows`` rows out of a replay, which may come again; a row that begins
    one was acted on.
    """

    needs_replay: ClassVar[bool] = True
    rows: int = 1

    @property
    def item_rows(self) -> int:
        return self.rows

    def network(self, spec: Any) -> nn.Module:
        return Blank()

    def act(
        self, net: Any, obs: Any, first: Any, state: Any, *, explore: Any, noise: torch.Tensor
    ) -> Any:
        behaviour = {
            "updates": net.updates.expand(len(first)).clone(),
            "noise": noise[:, 0].clone(),
        }
        return (noise[:, 0] * self.actions).long(), behaviour, state

    def best(self, net: Any, obs: Any, first: Any, state: Any) -> Any:
        return torch.zeros(len(first), dtype=torch.int64), state

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput:
        data = plant(batch.data, self.fault)
        wrong = herd.verify(data) + misversioned(data)
        chosen = (data.behaviour["noise"].numpy() * self.actions).astype(np.int64)
        wrong += [
            f"action{tuple(i)} is not the one chosen"
            for i in np.argwhere(chosen != data.action.numpy())
        ]
        if wrong or not bool(data.mask[0].all()):
            raise AssertionError(
                f"{len(wrong)} rows do not prove themselves, the first: {wrong[:3]}"
            )
        count = torch.tensor(float(data.mask.numel()))
        metrics = {"rows": (count, torch.tensor(1.0))}
        return LossOutput(
            loss=-net.updates.sum() * count,
            count=count,
            metrics=metrics,
            priority=1.0 + data.obs[0, :, 2].float(),
        )


def replaying(
    *,
    rows: tuple[int, int] = (1, 3),
    fault: Any = "none",
    updates: int = 2,
    steps: int = 900,
    actors: int = 2,
    envs: int = 3,
    max_lag: int | None = 0,
    goats: Mapping[str, Any] = MappingProxyType({}),
    dog: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> Program:
    """As ``program``, of two policies with a replay each:
    ``goats`` and ``dog`` are their settings.
    """
    made = program(steps=steps, actors=actors, envs=envs, max_lag=max_lag, **options)
    common: dict[str, Any] = {"capacity": 400, "starts_at": 60, "updates": updates}
    kinds = {"goats": Replayed(rows=rows[0], fault=fault), "dog": Replayed(rows=rows[1], actions=5)}
    policies = {
        name: Policy(
            algorithm=kinds[name],
            unroll=5,
            batch=batch,
            replay=ReplaySettings(**common | dict(given)),
        )
        for (name, batch), given in zip({"goats": 16, "dog": 11}.items(), (goats, dog), strict=True)
    }
    return replace(made, policies=policies)


def program(
    *,
    target: str = "tests.envs.herd:ExactHerd",
    actors: int = 2,
    envs: int = 3,
    unroll: int = 5,
    batch: int | None = None,
    max_lag: int | None = 0,
    steps: int = 1500,
    fault: Any = "none",
    **options: Any,
) -> Program:
    """Two policies that learn, of two agents and of one, whose spaces differ."""
    sizes: Any = {"unroll": unroll, "batch": batch or actors * envs}
    return Program(
        source=EnvSource(env=EnvFactory(target=target)),
        policies={
            "goats": Policy(algorithm=Herding(fault=fault), **sizes),
            "dog": Policy(algorithm=Herding(actions=5), **sizes),
        },
        route={"a*": "goats", "b0": "dog"},
        placement=Placement(actors=actors, envs_per_actor=envs, max_lag=max_lag),
        schedule=Schedule(steps=steps),
        evaluation=EvaluationSettings(episodes=0),
        **options,
    )


def against_its_past(*, every: int = 7, pool: int = 3, **options: Any) -> Program:
    """One policy, ``a0``, against its past, ``a1``; the third agent has a policy of its own."""
    made = program(**options)
    learn = made.policies["goats"], made.policies["dog"]
    policies: Any = {
        "old": Frozen(of="main", every=every, pool=pool),
        "main": learn[0],
        "dog": learn[1],
    }
    return Program(
        **{f: getattr(made, f) for f in Program.__slots__}
        | {"policies": policies, "route": {"a1": "old", "b0": "dog"}}
    )
