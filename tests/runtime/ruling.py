"""An algorithm that learns nothing and checks everything: its loss proves every row that reaches
the learner.

The env is the ruler, so rows prove themselves. The network counts: its state is how many rows of
the episode it has seen, so recurrent state proves itself; its one parameter is the number of
updates, so the weights that chose an action prove the version that is written beside it. ``fault``
plants an off-by-one in one place, to see the proof fail.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from equipoise.envs.toys import ruler
from equipoise.types import (
    Algorithm,
    Batch,
    EnvFactory,
    EnvSource,
    EvaluationSettings,
    LossOutput,
    Optimizer,
    Placement,
    Policy,
    Program,
    ReplaySettings,
    Schedule,
    Trajectory,
)
from tests.envs.faulty import fails

Fault = Literal["none", "state", "version", "reward", "mask", "obs", "action", "first"]


class Counter(nn.Module):
    """state["seen"]: rows of the episode before this one."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = nn.Parameter(torch.zeros(1))
        self.actions = 8

    def initial_state(self, batch: int) -> dict[str, torch.Tensor]:
        return {"seen": torch.zeros(batch)}

    def step(self, obs: Any, first: torch.Tensor, state: Any) -> tuple[Any, Any]:
        seen = torch.where(first, 0.0, state["seen"])
        return seen, {"seen": seen + 1}


@dataclass(frozen=True, kw_only=True)
class Ruling(Algorithm):
    default_optimizer: ClassVar[Optimizer] = Optimizer(
        learning_rate=1.0, schedule="constant", epsilon=1e-12, max_grad_norm=0.0
    )

    fault: Fault = "none"
    gaps: bool = False
    faulty: bool = False  # the env is tests.envs.faulty:FaultyRuler
    same_step: int = 0  # the streams of an env in SAME_STEP
    partial: int | None = None  # streams are partial, and rows may be so many versions old

    def network(self, spec: Any) -> nn.Module:
        return Counter()

    def act(
        self, net: Any, obs: Any, first: Any, state: Any, *, explore: Any, noise: torch.Tensor
    ) -> Any:
        seen, state = net.step(obs, first, state)
        action = (noise[:, 0] * 8).long()
        return (
            action,
            {
                "updates": net.updates.expand(len(first)).clone(),
                "seen": seen,
                "noise": noise[:, 0].clone(),
            },
            state,
        )

    def best(self, net: Any, obs: Any, first: Any, state: Any) -> Any:
        return torch.zeros(len(first), dtype=torch.int64), net.step(obs, first, state)[1]

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput:
        data = plant(batch.data, self.fault)
        oldest = None if self.partial is None else round(net.updates.item()) - self.partial
        if wrong := violations(
            data,
            gaps=self.gaps,
            fails=fails if self.faulty else None,
            same_step=self.same_step,
            oldest=oldest,
        ):
            raise AssertionError(
                f"{len(wrong)} rows do not prove themselves, the first: {wrong[:3]}"
            )
        count = torch.tensor(float(data.mask.numel()))
        return LossOutput(
            loss=-net.updates.sum() * count,
            count=count,
            metrics={"rows": (count, torch.tensor(1.0))},
        )


@dataclass(frozen=True, kw_only=True)
class Doomed(Ruling):
    """It fails at one version, however often it comes there."""

    at: int = 10

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput:
        if round(float(net.updates)) >= self.at:
            raise ArithmeticError("no further than this")
        count = torch.tensor(float(batch.data.mask.numel()))
        return LossOutput(loss=-net.updates.sum() * count, count=count)


class Blank(Counter):
    """Without a state, so that a window may begin at any row."""

    def initial_state(self, batch: int) -> dict[str, torch.Tensor]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Remembering(Ruling):
    """The same of windows of ``rows`` rows out of a replay; an item's priority is the row of its
    episode that it begins at.
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
        return (
            (noise[:, 0] * 8).long(),
            {"updates": net.updates.expand(len(first)).clone(), "noise": noise[:, 0].clone()},
            state,
        )

    def best(self, net: Any, obs: Any, first: Any, state: Any) -> Any:
        return torch.zeros(len(first), dtype=torch.int64), state

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput:
        data = plant(batch.data, self.fault)
        oldest = None if self.partial is None else -1  # rows of any age are learned from
        wrong = (
            ruler.verify(data, same_step=self.same_step, oldest=oldest)
            + misversioned(data)
            + misacted(data)
        )
        if wrong or not bool(data.mask[0].all()):
            raise AssertionError(
                f"{len(wrong)} rows do not prove themselves, the first: {wrong[:3]}"
            )
        count = torch.tensor(float(data.mask.numel()))
        return LossOutput(
            loss=-net.updates.sum() * count,
            count=count,
            metrics={"rows": (count, torch.tensor(1.0))},
            priority=data.obs[0, :, 2].float(),
        )


@dataclass(frozen=True, kw_only=True)
class Held(Ruling):
    """Its first update never ends."""

    def loss(self, *args: Any, **kwargs: Any) -> LossOutput:
        while True:
            signal.pause()


LEDGER = ruler.Ledger()  # of this process: the learner's


def misversioned(data: Trajectory) -> list[str]:
    """Rows whose version is not that of the weights that acted."""
    version, by_weights = data.version.numpy(), np.rint(data.behaviour["updates"].numpy())
    return [
        f"version{tuple(i)}: written {version[tuple(i)]}, acted with {by_weights[tuple(i)]}"
        for i in np.argwhere(by_weights != version)
    ]


def misacted(data: Trajectory) -> list[str]:
    chosen = (data.behaviour["noise"].numpy() * 8).astype(np.int64)
    return [
        f"action{tuple(i)} is not the one chosen"
        for i in np.argwhere(chosen != data.action.numpy())
    ]


def violations(
    data: Trajectory,
    *,
    gaps: bool,
    fails: Any = None,
    same_step: int = 0,
    oldest: int | None = None,
) -> list[str]:
    """What the ruler, the counter and the versions say about a batch."""
    wrong = ruler.verify(data, LEDGER, gaps=gaps, fails=fails, same_step=same_step, oldest=oldest)
    wrong += misversioned(data) + misacted(data)
    if oldest is not None:
        again = (data.obs[1:] == data.obs[:-1]).all(-1).numpy()
        wrong += [
            f"row {tuple(i)} is real, after its window's end"
            for i in np.argwhere(again[:-1] & ~again[1:])
        ]
    t, first = data.obs.numpy()[..., 2], data.first.numpy()
    seen = data.behaviour["seen"].numpy()
    if same_step:  # an observation that is shown again is a row that a core sees again
        before = np.concatenate([data.state["seen"].numpy()[None], seen[:-1] + 1])
        t = np.concatenate([np.where(first[:-1], 0, before), t[-1:]])
    wrong += [
        f"state at {tuple(i)}: seen {seen[tuple(i)]} rows of the episode, at t {t[tuple(i)]}"
        for i in np.argwhere(seen != t[:-1])
    ]
    stored = np.where(first[0], 0.0, data.state["seen"].numpy())
    wrong += [
        f"stored state of column {i}: {stored[i]}, at t {t[0, i]}"
        for i in np.flatnonzero(stored != t[0])
    ]
    return wrong


def plant(data: Trajectory, fault: Fault) -> Trajectory:
    """The batch with one field moved by one row."""
    if fault == "none":
        return data
    if fault == "state":
        return replace(data, state={"seen": data.state["seen"] + 1})
    return replace(
        data, **{fault: torch.roll(getattr(data, fault), 1, 0) + (1 if fault == "version" else 0)}
    )


def program(
    *,
    target: str = "equipoise/Ruler-v0",
    actors: int = 2,
    envs: int = 8,
    unroll: int = 5,
    batch: int | None = None,
    max_lag: int | None = 0,
    steps: int = 4000,
    algorithm: Algorithm | None = None,
    replay: ReplaySettings | None = None,
    partial_streams: int = 0,
    **env: Any,
) -> Program:
    return Program(
        source=EnvSource(env=EnvFactory(target=target, kwargs=env)),
        policies={
            "main": Policy(
                algorithm=algorithm or Ruling(),
                unroll=unroll,
                batch=batch or actors * envs,
                replay=replay,
            )
        },
        placement=Placement(
            actors=actors, envs_per_actor=envs, max_lag=max_lag, partial_streams=partial_streams
        ),
        schedule=Schedule(steps=steps),
        evaluation=EvaluationSettings(episodes=0),
    )
