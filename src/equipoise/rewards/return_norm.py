"""The running deviation of discounted returns, by which rewards are divided."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise import schema, tree
from equipoise.nets.normalize import RunningNorm
from equipoise.returns import running_returns
from equipoise.rewards.streams import of_all, turns, with_room
from equipoise.types import Pool, Trajectory, Tree


class ReturnNorm:
    """Divide rewards by the running deviation of the discounted return of their stream so far.

    The return runs forward along time, as in VecNormalize ("reward scaling" in Engstrom et al.
    2020, arXiv:2005.12729) and in random network distillation (Burda et al. 2018,
    arXiv:1810.12894, section 2.4). ``episodic``: it begins again with each episode.
    """

    def __init__(self, *, clip: float, episodic: bool = True) -> None:
        self._norm, self._episodic = RunningNorm(1, clip=clip), episodic
        self._so_far: Tensor | None = None  # [streams] the discounted return of each stream so far

    def to(self, device: torch.device) -> None:
        self._norm.to(device)

    def scale(self, reward: Tensor) -> Tensor:
        return self._norm.scale(reward)

    def absorb(self, data: Trajectory, gamma: float, pool: Pool) -> None:
        """Add the returns of ``data.reward`` to the statistics."""
        if not self._episodic:
            data = replace(data, first=torch.zeros_like(data.first))
        returns, mine = carry(data, gamma, self._so_far)
        self._so_far = of_all(mine, data.context["stream"], mine.new_zeros(()), pool)
        self._norm.absorb(returns.unsqueeze(-1), data.mask, pool)

    def centred(self, reward: Tensor) -> Tensor:
        """Return rewards minus the mean of the returns, divided by their deviation."""
        found: Tensor = self._norm(reward.unsqueeze(-1)).squeeze(-1)
        return found

    def state(self) -> Tree:
        """The statistics, and the return of each stream so far."""
        so_far = {} if self._so_far is None else {"return": self._so_far}
        return {"statistics": dict(self._norm.named_buffers()), **so_far}

    def schema(self) -> dict[str, schema.Schema]:
        """The schema of a saved state; the number of streams is unknown before the first batch."""
        return {
            "statistics": schema.like(dict(self._norm.named_buffers()), finite=True),
            "return?": schema.Array((None,), "float32", tensor=True, finite=True),
        }

    def load(self, state: Tree) -> None:
        for name, buffer in self._norm.named_buffers():
            buffer.copy_(state["statistics"][name])
        self._so_far = (
            tree.to(state["return"], self._norm.mean.device) if "return" in state else None
        )


def carry(data: Trajectory, gamma: float, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Carry running returns through every window, from the end of its stream's last one -> [T, B],
    [streams] for the next batch.

    A batch may hold several windows of a stream; they are taken in the order of their rows, one of
    each stream at a time.
    """
    stream, new = data.context["stream"], data.reward.new_zeros(())
    before = data.reward.new_zeros(0) if before is None else before
    carried = with_room(before, int(stream.max()) + 1, new)
    returns = data.reward.new_empty(data.shape)
    for windows in turns(data):
        ids = stream[windows]
        part = running_returns(
            reward=data.reward[:, windows],
            first=data.first[:-1, windows],
            gamma=gamma,
            before=carried[ids],
            mask=data.mask[:, windows],
        )
        returns[:, windows] = part
        carried[ids] = part[-1]
    return returns, carried
