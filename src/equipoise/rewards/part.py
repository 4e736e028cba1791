"""The interface of a part of the rewards: a bonus, a learned model of rewards, or a scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from equipoise import schema
from equipoise.hints import raised
from equipoise.naming import called
from equipoise.types import Learns, LossOutput, Optimizer, Pool, Trajectory, Tree

SCALE = "rewards"  # the name of the last part, which scales


@runtime_checkable
class RewardPart(Protocol):
    """Rewards that an algorithm learns from and knows nothing of. A subclass overrides the methods
    that it needs.

    ======================  ===========================================================================================
    before the targets      each part of a learner in order: ``rewards`` of the rewards that the part before it returned
    after the last step     each part in the same order: ``loss``, one step of the optimiser of ``net``, then ``absorb``
    ======================  ===========================================================================================
    """  # noqa: E501

    name: ClassVar[str] = ""  # of its state, among those of the learner
    version: int = 0  # how many batches it has learned from
    net: nn.Module | None = None  # moved by an optimiser of its own, with these settings:
    optimizer: Optimizer = Optimizer(schedule="constant")

    def follow(self, algorithm: Learns) -> None:
        """Read what the part needs of the algorithm; ValueError if it is missing."""
        return

    def to(self, device: torch.device) -> None:
        """Move tensors to the device of the learner; ``net`` is moved by the learner."""
        return

    def rewards(self, data: Trajectory) -> Tensor:
        """Return rewards [T, B] in place of ``data.reward``. No gradient is recorded."""
        ...

    def loss(self, data: Trajectory) -> LossOutput | None:
        """Return the loss of ``net``; None: no step now. All learners return one, or none does."""
        return None

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        """Add a batch to statistics over ``pool``; data.reward: of the part before."""
        return

    def state(self) -> Tree:
        """Return what ``rewards`` depends on besides ``net`` and ``version``."""
        return {}

    def schema(self) -> schema.Schema:
        """Return the schema of a saved state."""
        return schema.like(self.state(), finite=True)

    def load(self, state: Tree) -> None:
        """Take what ``state`` returned, once it fits ``schema``."""
        return


def parts_of(names: Sequence[str]) -> list[RewardPart]:
    """Make the parts that ``module:Class`` names; ValueError for what is no part, or raises."""
    parts: list[RewardPart] = []
    for name in names:
        make = called(name, "rewards.parts")
        try:
            part = make()
        except Exception as error:  # the class of a user may raise anything
            raise ValueError(
                f"rewards.parts: expected {name}() to make a part, got {raised(error)}"
            ) from error
        if not isinstance(part, RewardPart):
            raise ValueError(
                f"rewards.parts: expected {name}() to be a RewardPart, got {type(part).__name__}"
            )
        if type(part).state is not RewardPart.state and type(part).load is RewardPart.load:
            raise ValueError(
                f"rewards.parts: expected {name} to have a method load, since it has a state, got "
                "none: a resume would begin with another state"
            )
        parts.append(part)
    check_names([*(part.name for part in parts), SCALE])
    return parts


def check_names(names: Sequence[str]) -> None:
    """ValueError if the names of parts cannot name their states."""
    if wrong := [name for name in names if not name.isidentifier()]:
        raise ValueError(
            "rewards.parts: expected a name of letters and digits, such as 'counts', got "
            f"{wrong[0]!r}"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            "rewards.parts: expected names that differ, since a state goes by them, got "
            f"{twice[0]!r} twice"
        )
