"""Faults that make a run hopeless: envs that leak or hold on to old weights, algorithms whose loss
or reward is wrong.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import torch

from equipoise.actors.forward.forward import Forward
from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.ppo import PPO
from equipoise.types import Batch, LossOutput, Trajectory, Tree

AT = "equipoise actor 1"  # the process with the fault


def leaking(bytes_a_second: float = 1e6, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """CartPole that keeps memory by the clock, in actor 1."""
    return Leaking(gymnasium.make("CartPole-v1", **kwargs), bytes_a_second)


class Leaking(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], bytes_a_second: float) -> None:
        super().__init__(env)
        self._rate = bytes_a_second if multiprocessing.current_process().name == AT else 0.0
        self._kept, self._at = list[bytes](), time.monotonic()

    def step(self, action: Any) -> Any:
        now = time.monotonic()
        if (due := int((now - self._at) * self._rate)) > 4096:
            self._kept.append(b"\1" * due)
            self._at = now
        return self.env.step(action)


def freezing(after: int = 5, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """CartPole whose making keeps actor 1 from taking any weights after version ``after``."""
    if multiprocessing.current_process().name == AT:
        real = Forward.refresh

        def refresh(self: Forward, weights: Any) -> bool:
            return self.version < after and real(self, weights)

        Forward.refresh = refresh  # type: ignore[method-assign]
    return gymnasium.make("CartPole-v1", **kwargs)


@dataclass(frozen=True, kw_only=True)
class Nan(PPO):
    """PPO whose loss is nan from a tenth of the run on."""

    def loss(self, *args: Any, step: float, **kwargs: Any) -> LossOutput | None:
        out = super().loss(*args, step=step, **kwargs)
        return out if out is None or step < 0.1 else replace(out, loss=out.loss * torch.nan)


@dataclass(frozen=True, kw_only=True)
class Contrary(PPO):
    """PPO that learns from rewards of the wrong sign."""

    def targets(self, net: Any, target_net: Any, data: Trajectory, **kwargs: Any) -> Tree:
        return super().targets(net, target_net, replace(data, reward=-data.reward), **kwargs)


@dataclass(frozen=True, kw_only=True)
class Forgetful(IMPALA):
    """IMPALA whose actors say that they chose each action with far too small a probability, now and
    then.
    """

    def loss(self, net: Any, target_net: Any, batch: Batch, **kwargs: Any) -> LossOutput | None:
        logp = batch.data.behaviour["logp"]
        wrong = torch.where(torch.arange(len(logp)).unsqueeze(1) % 20 == 0, logp - 8.0, logp)
        return super().loss(
            net,
            target_net,
            replace(batch, data=replace(batch.data, behaviour={"logp": wrong})),
            **kwargs,
        )
