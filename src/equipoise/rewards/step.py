"""The step from the env's rewards to the learned ones, and the running statistics that it needs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise import schema, tree
from equipoise.nets.normalize import RunningNorm
from equipoise.returns import running_returns
from equipoise.rewards.part import SCALE, RewardPart
from equipoise.types import Learns, Pool, Rewards, Trajectory, Tree

NORMALIZED = 10.0  # the bound of a normalised reward, in deviations of the return


def scaled(settings: Rewards, reward: Tensor) -> Tensor:
    """Scale and clip rewards of any shape; the same memory where the settings change nothing."""
    if settings.scale != 1.0:
        reward = reward * settings.scale
    return reward.clamp(-settings.clip, settings.clip) if settings.clip > 0 else reward


class RewardStep(RewardPart):
    """The last part: rewards scaled, clipped or normalised. With ``normalize`` it keeps running
    statistics, else no state.

    A normalised reward is divided by the running deviation of the discounted return, as
    VecNormalize does ("reward scaling" in Engstrom et al. 2020, arXiv:2005.12729), and clipped. The
    statistics are the learner's: nothing that acts needs them.
    """

    name = SCALE

    def __init__(self, settings: Rewards, gamma: float = 0.0) -> None:
        """``gamma``: the discount, until an algorithm is followed."""
        self._settings, self._gamma = settings, gamma
        self._norm = (
            RunningNorm(1, clip=settings.clip or NORMALIZED) if settings.normalize else None
        )
        self._so_far: Tensor | None = None  # [streams] the discounted return of each stream so far

    def follow(self, algorithm: Learns) -> None:
        gamma = getattr(algorithm, "gamma", None)
        if gamma is None and self._settings.normalize:
            raise ValueError(
                "rewards.normalize: expected an algorithm with a discount (a field gamma), got one "
                "without"
            )
        self._gamma = gamma or 0.0

    def to(self, device: torch.device) -> None:
        if self._norm is not None:
            self._norm.to(device)

    def rewards(self, data: Trajectory) -> Tensor:
        reward: Tensor = data.reward
        return scaled(self._settings, reward) if self._norm is None else self._norm.scale(reward)

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        if self._norm is not None:
            there = ~data.reward.isnan()  # a sample that no function judged has no reward
            data = replace(
                data, mask=data.mask & there, reward=torch.where(there, data.reward, 0.0)
            )
            returns, mine = carry(data, self._gamma, self._so_far)
            self._so_far = of_all(mine, data.context["stream"], pool)
            self._norm.absorb(returns.unsqueeze(-1), data.mask, pool)

    def state(self) -> Tree:
        """The statistics, and the return of each stream so far; {} without ``normalize``."""
        if self._norm is None:
            return {}
        so_far = {} if self._so_far is None else {"return": self._so_far}
        return {"statistics": dict(self._norm.named_buffers()), **so_far}

    def schema(self) -> schema.Schema:
        """The schema of a saved state; the number of streams is unknown before the first batch."""
        if self._norm is None:
            # ``load`` explains their faults
            return {"statistics?": schema.Anything(), "return?": schema.Anything()}
        statistics = schema.like(dict(self._norm.named_buffers()), finite=True)
        return {
            "statistics": statistics,
            "return?": schema.Array((None,), "float32", tensor=True, finite=True),
        }

    def load(self, state: Tree) -> None:
        """Load a state; ValueError if only one side has statistics."""
        if bool(state) != (self._norm is not None):
            had, has = ("statistics" if state else "none"), self._settings.normalize
            raise ValueError(
                f"rewards: expected a state saved with rewards.normalize={str(has).lower()}, got "
                f"{had}"
            )
        if self._norm is not None:
            for name, buffer in self._norm.named_buffers():
                buffer.copy_(state["statistics"][name])
            self._so_far = (
                tree.to(state["return"], self._norm.mean.device) if "return" in state else None
            )


def of_all(carried: Tensor, stream: Tensor, pool: Pool) -> Tensor:
    """Running returns [streams] of all learners; at most one has a stream in its batch."""
    count = int(pool.max(torch.tensor(len(carried), device=carried.device)))
    mine = carried.new_zeros(2, count)
    mine[0, stream], mine[1, stream] = carried[stream], 1.0
    total = pool.sum(mine)
    found = total[0]
    found[: len(carried)] = torch.where(
        total[1, : len(carried)] > 0, found[: len(carried)], carried
    )
    return found


def carry(data: Trajectory, gamma: float, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Carry running returns through every window, from the end of its stream's last one -> [T, B],
    [streams] for the next batch.

    A batch may hold several windows of a stream; they are taken in the order of their rows, one of
    each stream at a time.
    """
    stream, start = data.context["stream"], data.context["start"]
    streams = int(stream.max()) + 1
    carried = data.reward.new_zeros(max(streams, 0 if before is None else len(before)))
    if before is not None:
        carried[: len(before)] = before
    # [B] windows of its stream before it
    turn = ((stream[:, None] == stream) & (start[:, None] > start)).sum(1)
    returns = data.reward.new_empty(data.shape)
    for i in range(int(turn.max()) + 1):
        now = turn == i
        ids = stream[now]
        part = running_returns(
            reward=data.reward[:, now],
            first=data.first[:-1, now],
            gamma=gamma,
            before=carried[ids],
            mask=data.mask[:, now],
        )
        returns[:, now] = part
        carried[ids] = part[-1]
    return returns, carried
