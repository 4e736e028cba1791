"""The interface of a part of the rewards: a bonus, a learned model of rewards, or a scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from equipoise import schema
from equipoise.hints import raised
from equipoise.naming import called
from equipoise.types import Learns, LossOutput, Optimizer, Pool, Trajectory, Tree

SCALE = "rewards"  # the name of the last part, which scales


@runtime_checkable
class RewardPart(Protocol):
    """Rewards that an algorithm learns from without any code for them. A subclass overrides the
    methods that it needs.

    ======================  ===========================================================================================
    before the targets      each part of a learner in order: ``rewards`` of the rewards that the part before it returned
    after the last step     each part in the same order: ``loss``, one step of the optimiser of ``net``, then ``absorb``
    ======================  ===========================================================================================
    """  # noqa: E501

    name: ClassVar[str] = ""  # the name of its state in the learner's state
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
        """Return the loss of ``net``; None: no step now. All learners return one, or no learner
        does.
        """
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


class Refused(ValueError):
    """The error of a part whose sentence is whole."""


def parts_of(names: Sequence[str], algorithm: Learns) -> list[RewardPart]:
    """Make the parts that ``module:Class`` names; ValueError for what is no part, or raises, or
    could not learn, be saved and be resumed.
    """
    parts: list[RewardPart] = []
    for name in names:
        make = called(name, "rewards.parts")
        try:
            part = make()
            fits = isinstance(part, RewardPart)  # it asks for every attribute
        except Exception as error:  # the class of a user may raise anything
            raise ValueError(
                f"rewards.parts: expected {name}() to make a part, got {raised(error)}"
            ) from error
        if not fits:
            raise ValueError(
                f"rewards.parts: expected {name}() to be a RewardPart, got {type(part).__name__}"
            )
        try:
            check_part(part, name)
            part.follow(algorithm)
            check_state(state := part.state())
            schema.check(state, part.schema(), "state")
        except Refused:
            raise
        except Exception as error:
            raise ValueError(f"rewards.parts: {name}: {raised(error)}") from error
        parts.append(part)
    check_names([*(part.name for part in parts), SCALE])
    return parts


def check_part(part: RewardPart, name: str) -> None:
    """Refused if a learner cannot work with the attributes of a part."""
    net: object = part.net  # a user's attributes, whatever the annotations are
    optimizer: object = part.optimizer
    version: object = part.version
    if net is not None and not (
        isinstance(net, nn.Module) and any(one.requires_grad for one in net.parameters())
    ):
        raise Refused(
            f"rewards.parts: expected {name}.net to be a torch.nn.Module with parameters that "
            f"require gradients, got {type(net).__name__}"
        )
    if net is not None and len(kinds := {one.dtype for one in net.parameters()}) > 1:
        raise Refused(
            f"rewards.parts: expected {name}.net to have parameters of one dtype, got "
            f"{', '.join(sorted(map(str, kinds)))}"
        )
    if (net is not None) != (type(part).loss is not RewardPart.loss):
        raise Refused(
            f"rewards.parts: expected {name} to have a net and a method loss, or neither, got "
            f"only {'a loss' if net is None else 'a net'}"
        )
    if not isinstance(optimizer, Optimizer):
        raise Refused(
            f"rewards.parts: expected {name}.optimizer to be an equipoise.types.Optimizer, got "
            f"{type(optimizer).__name__}"
        )
    if type(version) is not int:
        raise Refused(
            f"rewards.parts: expected {name}.version to be a whole number, which the learner "
            f"counts up, got {type(version).__name__}"
        )
    if type(part).state is not RewardPart.state and type(part).load is RewardPart.load:
        raise Refused(
            f"rewards.parts: expected {name} to have a method load, since it has a state, got "
            "none: a resume would begin with another state"
        )


def check_state(state: object, where: str = "state") -> None:
    """TypeError if a checkpoint cannot hold the state of a part."""
    leaf = isinstance(state, str | bool | int | float | None) or (
        isinstance(state, np.ndarray) and state.dtype.kind in "biuf"
    )
    if isinstance(state, Mapping):
        for key, value in state.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: expected keys that are strings, got {key!r}")
            check_state(value, f"{where}.{key}")
    elif where == "state" or not (
        leaf or (isinstance(state, Tensor) and state.layout is torch.strided)
    ):
        raise TypeError(
            f"{where}: expected a dict of tensors, arrays, numbers and texts, got "
            f"{type(state).__name__}"
        )


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
