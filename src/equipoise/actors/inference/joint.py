"""One act for several agents: their rows go through the network side by side, and each gets its own
actions back.

Per agent there is only a list of arrays and a copy of the actions: with sixty-four agents that
overhead counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise import tree
from equipoise.actors.forward.forward import Forward, Row, cut
from equipoise.clock import Clock
from equipoise.types import Array, Tree


class JointRow(Row):
    """The arrays of a row, listed once; ``alone`` is the same row as tensors."""

    __slots__ = ("alone", "read", "written")

    def __init__(
        self, obs: Tree, first: Array, noise: Array, action: Tree, behaviour: Tree, alone: Row
    ) -> None:
        super().__init__(obs, first, noise, action, behaviour)
        self.alone = alone
        self.read: list[Array] = [*tree.leaves(obs), first, noise]
        self.written: list[Array] = [*tree.leaves(action), *tree.leaves(behaviour)]


@dataclass(frozen=True, slots=True)
class Asked:
    """One agent's part of an act."""

    row: JointRow
    state: Tree  # [B, ...] tensors on the network's device
    explore: Tree  # [B, ...] tensors


class JointForward(Forward):
    """The joint forward by torch."""

    def _rows(self, fields: tuple[Tree, ...]) -> list[Row]:
        rows = zip(
            cut(tree.map(list, field) for field in fields), super()._rows(fields), strict=True
        )
        return [
            JointRow(one.obs, one.first, one.noise, one.action, one.behaviour, alone)
            for one, alone in rows
        ]

    def together(self, asked: Sequence[Asked], clock: Clock) -> list[Tree]:
        """Write action and behaviour of every row -> the states after them."""
        # the same code as local inference, to the bit
        if len(asked) == 1 and self.device.type == "cpu":
            self.begin(asked[0].explore)
            return [self(asked[0].row.alone, asked[0].state)]
        rows = [one.row for one in asked]
        *leaves, first, noise = (
            torch.from_numpy(np.concatenate(column)).to(self.device)
            for column in zip(*(row.read for row in rows), strict=True)
        )
        each = iter(leaves)
        obs = tree.map(lambda _: next(each), rows[0].obs)
        state = _joined([one.state for one in asked])
        explore = tree.to(_joined([one.explore for one in asked]), self.device)
        clock.lap("gather", "act")
        with torch.inference_mode(), self._autocast:
            action, behaviour, state = self.algorithm.act(
                self.net, obs, first, state, explore=explore, noise=noise
            )
        actions = tree.map(_array, rows[0].action, action)
        behaviours = tree.map(_array, rows[0].behaviour, behaviour)
        for chosen, column in zip(
            tree.leaves(actions) + tree.leaves(behaviours),
            zip(*(r.written for r in rows)),
            strict=True,
        ):
            for to, part in zip(
                column, chosen.reshape(len(rows), -1, *chosen.shape[1:]), strict=True
            ):
                np.copyto(to, part)
        return _parted(state, len(rows))


def _array(to: Array, of: Tensor) -> Array:
    return (of.float() if of.dtype == torch.bfloat16 else of).cpu().numpy()  # numpy has no bfloat16


def _joined(trees: Sequence[Tree]) -> Tree:
    return tree.map(lambda *leaves: torch.cat(leaves), *trees)


def _parted(whole: Tree, parts: int) -> list[Tree]:
    """Split into ``parts`` of one size."""
    pieces = tree.map(lambda leaf: leaf.chunk(parts), whole)
    return [tree.map(lambda chunks, i=i: chunks[i], pieces) for i in range(parts)]
