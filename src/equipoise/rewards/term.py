"""The interface of a reward to learn from, beside the env's: a bonus, or a learned reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from equipoise import schema
from equipoise.facts import KEPT, Help, Read, UnitInterval
from equipoise.types import EnvSpec, Learns, LossOutput, Optimizer, Pool, Trajectory, Tree

NET = Optimizer(schedule="constant")


class LearnerStates(Protocol):
    """The learner's policy after an update, and states of the learner that are kept by name: its
    weights, their optimisers, statistics and target network. They are in each checkpoint.
    """

    @property
    def net(self) -> nn.Module: ...
    @property
    def progress(self) -> float: ...  # share of the schedule that is done, 0..1
    def keep(self, name: str) -> None: ...  # the present state
    def rename(self, name: str, other: str) -> None: ...
    def go_back(self, name: str) -> None: ...  # make a kept state the present one


@dataclass(kw_only=True, eq=False)
class RewardTerm:
    """A term of the sum of rewards. A subclass is a dataclass, whose annotated fields are its
    settings, and overrides the methods that it needs.

    =====================  ====================================================================
    once, at the start     ``notes``, ``follow``, ``build``, ``demonstrate``
    as rows arrive         ``collect``
    before the targets     ``rewards``, which the learner weighs and adds to the other terms'
    after the last step    ``loss`` and a step of the optimiser of ``net``, ``steps`` times, then
                           ``absorb``
    then                   ``steer``
    at a checkpoint        ``state``
    =====================  ====================================================================

    In ``data``, ``reward`` is the env's own. Every learner of a run has its own copy of a term.
    """

    name: ClassVar[str] = ""  # in a sum and in a state; "": the name of the class, in small letters
    # does ``collect`` get the rows of all learners? Otherwise it gets those of its own learner
    together: ClassVar[bool] = False

    head: Annotated[
        bool,
        Help(
            "A value output of its own (algorithms with value_heads)",
            "Without it the term is part of the sum that the value predicts.",
        ),
        KEPT,
    ] = False
    gamma: Annotated[
        UnitInterval | None,
        Help("Discount of the term's value; none uses the algorithm's"),
        Read("head", why="the term has no value output of its own"),
    ] = None
    episodic: Annotated[
        bool,
        Help(
            "End the term's return with the episode",
            "Otherwise the return goes on into the next episode, and the row between the two "
            "has a reward of 0.",
        ),
        Read("head", why="the term has no value output of its own"),
    ] = True
    version: int = field(default=0, init=False, repr=False)  # batches that it has learned from
    # moved by an optimiser of its own, with these settings:
    net: nn.Module | None = field(default=None, init=False, repr=False)
    optimizer: Optimizer = field(default=NET, init=False, repr=False)
    steps: int = field(default=1, init=False, repr=False)  # of the optimiser after each batch

    def follow(self, algorithm: Learns) -> None:
        """Read what the term needs of the algorithm; ValueError if it is missing."""
        return

    def build(self, spec: EnvSpec, seed: int) -> None:
        """Make networks and statistics for a policy with these observations and actions.

        torch is seeded, so that all learners make the same; ``seed`` is for other generators.
        """
        return

    def recorded(self) -> str:
        """Return the name of the data set that ``demonstrate`` is shown; "" for none."""
        return ""

    def demonstrate(self, data: Trajectory) -> None:
        """Take in rows [T, 1] of that data set, numpy arrays, in their order."""
        return

    def to(self, device: torch.device) -> None:
        """Move tensors to the device of the learner; ``net`` is moved by the learner."""
        return

    def collect(self, data: Trajectory) -> None:
        """Take in new rows [T, B], each once and in the order of its stream, before any batch has
        them: numpy arrays with a replay, tensors on policy.
        """
        return

    def rewards(self, data: Trajectory) -> Tensor:
        """Return this term's rewards [T, B], without the weight. No gradient is recorded.

        Rows that are no step (``data.mask`` False) count as 0.
        """
        raise NotImplementedError

    def loss(self, data: Trajectory) -> LossOutput | None:
        """Return the loss of ``net``; None: no step now. All learners return one, or no learner
        does.
        """
        return None

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        """Add a batch to statistics over ``pool``."""
        return

    def steer(self, states: LearnerStates) -> None:
        """Act on the learner after an update: keep its state, or go back to a kept one."""
        return

    def notes(self) -> Sequence[str]:
        """Return what to print when a run with this term begins, a line each."""
        return ()

    def metrics(self) -> Mapping[str, float]:
        """Return numbers for the reports, by name."""
        return {}

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
    """The error of a term whose sentence is whole."""


def check_term(term: RewardTerm, name: str) -> None:
    """Refused if a learner cannot work with the attributes of a term."""
    net: object = term.net  # a user's attributes, whatever the annotations are
    optimizer: object = term.optimizer
    version: object = term.version
    if net is not None and not (
        isinstance(net, nn.Module) and any(one.requires_grad for one in net.parameters())
    ):
        raise Refused(
            f"reward: expected {name}.net to be a torch.nn.Module with parameters that require "
            f"gradients, got {type(net).__name__}"
        )
    if net is not None and len(kinds := {one.dtype for one in net.parameters()}) > 1:
        raise Refused(
            f"reward: expected {name}.net to have parameters of one dtype, got "
            f"{', '.join(sorted(map(str, kinds)))}"
        )
    if (net is not None) != (type(term).loss is not RewardTerm.loss):
        raise Refused(
            f"reward: expected {name} to have a net and a method loss, or neither, got only "
            f"{'a loss' if net is None else 'a net'}"
        )
    if not isinstance(optimizer, Optimizer):
        raise Refused(
            f"reward: expected {name}.optimizer to be an equipoise.types.Optimizer, got "
            f"{type(optimizer).__name__}"
        )
    if type(version) is not int:
        raise Refused(
            f"reward: expected {name}.version to be a whole number, which the learner counts up, "
            f"got {type(version).__name__}"
        )
    if type(term).state is not RewardTerm.state and type(term).load is RewardTerm.load:
        raise Refused(
            f"reward: expected {name} to have a method load, since it has a state, got none: a "
            "resume would begin with another state"
        )


def check_state(state: object, where: str = "state") -> None:
    """TypeError if a checkpoint cannot hold the state of a term."""
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
