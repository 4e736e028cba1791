"""The interface of a learner's parameters, and the code that all kinds with whole gradients
share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from torch import Tensor, nn

from equipoise import tree
from equipoise.learners.pool import ALONE, Learners
from equipoise.types import Batch, LossOutput, Optimizer, Tree

LossSums = tuple[Tensor, Tensor]  # of the losses and the counts of the parts of a step so far
Groups = Callable[[nn.Module], Mapping[str, Sequence[nn.Parameter]]]  # of a network
T = TypeVar("T")


def added(out: LossOutput, before: LossSums | None) -> LossSums:
    """The sums of a step's parts, the sum of ``out`` included."""
    loss = out.loss.detach()
    return (loss, out.count) if before is None else (before[0] + loss, before[1] + out.count)


class Parameters(ABC):
    """The parameters of a network by optimiser group, with their gradients and what the optimisers
    remember.

    If several learners share them, all learners call each method at the same time, apart from
    ``like``.
    """

    net: nn.Module
    optimizers: Mapping[str, Any]  # by group

    def __init__(self, pool: Learners = ALONE) -> None:
        """``pool``: the learners whose losses and statistics are added up."""
        self.pool = pool

    @abstractmethod
    def hold(self, net: nn.Module, groups: Groups, settings: Optimizer) -> None:
        """Lay out the parameters of ``net``, on its device, by ``groups``. Called first."""

    def together(self) -> AbstractContextManager[object]:
        """The context of a step, which raises ``LearnerLost`` if another learner is gone."""
        return nullcontext()

    def share(self, batch: Batch) -> Batch:
        """Return the rows that this learner learns from."""
        return batch

    def compute(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which computes with the network."""
        return work()

    def begin(self, group: str, parts: int) -> int:
        """Zero the gradient for a step over ``parts`` -> how many more another learner has."""
        for part in self.gradient(group):
            part.zero_()
        return 0

    def backward(
        self, group: str, out: LossOutput, before: LossSums | None, fill: Callable[[Tensor], None]
    ) -> Tensor:
        """Make the gradient that of the mean loss over the items of all learners -> that loss [].

        ``before``: sums of the step's earlier parts, whose gradient is there. ``fill``: adds the
        gradient of a loss.
        """
        if before is None:
            loss = out.loss / out.count.clamp(min=1)
            fill(loss)
            return loss.detach()
        fill(out.loss)
        return self._mean(group, *added(out, before))

    def _mean(self, group: str, loss: Tensor, count: Tensor) -> Tensor:
        """Divide the gradient of a sum by its count -> the mean loss."""
        count = count.clamp(min=1)
        for part in self.gradient(group):
            part.div_(count)
        return loss / count

    @abstractmethod
    def gradient(self, group: str) -> Sequence[Tensor]:
        """Return the tensors of the group's gradient that lie here."""

    @abstractmethod
    def norm(self, group: str) -> Tensor:
        """Return the norm [] of the group's whole gradient."""

    def clip(self, group: str, bound: float) -> Tensor:
        """Scale the gradient down to the norm ``bound`` (0: never) -> its norm [] before."""
        norm = self.norm(group)
        if bound > 0:
            factor = (bound / (norm + 1e-6)).clamp(max=1.0)
            for part in self.gradient(group):
                part.mul_(factor)
        return norm

    def step(self, group: str, rate: float | Tensor, unless: Tensor | None) -> None:
        """Move the group against its gradient, unless ``unless`` [] is True."""
        if unless is None:
            self.optimizers[group].step(rate)
        else:
            self.optimizers[group].step_unless(unless, rate)

    def settings(self) -> list[Optimizer]:
        """Return the settings that each optimiser has."""
        return [one.settings for one in self.optimizers.values()]

    def tensors(self) -> Mapping[str, Tensor]:
        """Return whole parameters and buffers by name, in the network's memory if they lie here."""
        return tree.named_tensors(self.net)

    def join_gather(self) -> None:  # noqa: B027  # there is nothing to gather where each learner keeps all
        """Join the all-gather that another learner's read of ``tensors`` started."""

    @abstractmethod
    def state(self, group: str) -> Tree:
        """Return the group's parameters, one behind the other, and its optimiser's memory."""

    def like(self, group: str) -> Tree:
        """Return tensors of the types and shapes of ``state``."""
        return self.state(group)

    @abstractmethod
    def load(self, group: str, state: Tree) -> None:
        """Take what ``state`` returned, here or in a learner with another kind of parameters."""
