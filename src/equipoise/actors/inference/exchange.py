"""The exchange between env workers and inference workers: rows one way, actions the other, in
memory that both map.

The envs of a run come in groups, which are stepped and answered together. A group has one env
worker and one inference worker. The rows and actions of a group lie by policy; there is one set of
words, since all policies of an env are answered together:

=============  ==============================  ====================================================================
word           written by                      when
=============  ==============================  ====================================================================
answered[g]    the env worker                  = ``asked`` + 1, once the rows that answer it are written
anew[g]        the env worker                  before its first answer: 0 where the envs are as a resume left them, and
                                               no rows are written
asked[g]       the inference worker            = ``answered``, once the actions for those rows are written
epoch[g]       the driver                      counted up, once one of the two is verified dead
held[g]        the inference worker            the cut in which it holds still: the env worker may save
=============  ==============================  ====================================================================

``asked`` and ``answered`` are ``epoch * 2^32 + n``, the n-th of an epoch, so their difference gives
the turn: 0 the env worker's, 1 the inference worker's. An epoch begins when the inference worker
writes ``asked = epoch * 2^32``: it has dropped everything of the last epoch by then. Then the env
worker begins new episodes. So a process that is alive never finds its rows or actions overwritten
while it reads them, and a word has one writer at a time. docs/inside/memory-order.md states which
stores have to be seen in which order.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from equipoise import tree
from equipoise.memory import Memory
from equipoise.publishing import publish
from equipoise.tree import ArraySpec
from equipoise.types import Array, TimeStep, Tree

EPOCH = 32  # bits above the count
WORDS = ("answered", "anew", "asked", "epoch", "held")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySizes:
    """The sizes of one policy's part of each group."""

    obs: Tree  # specs of one stream
    action: Tree  # specs of one stream
    width: int  # streams
    metrics: int = 0  # numbers of ``info``

    def rows(self) -> dict[str, Tree]:
        flag = ArraySpec((self.width,), "bool")
        rows = {
            "obs": tree.prepend(self.obs, self.width),
            "reward": ArraySpec((self.width,), "float32"),
        }
        rows |= dict.fromkeys(("terminated", "truncated", "first", "valid"), flag)
        return rows | (
            {"info": ArraySpec((self.width, self.metrics), "float64")} if self.metrics else {}
        )


class Exchange:
    """The memory of all groups of a run."""

    def __init__(self, memory: Memory, policies: Mapping[str, PolicySizes], groups: int) -> None:
        self._parts = memory, dict(policies), groups
        views = tree.views(self.specs(policies=policies, groups=groups), memory.buffer)
        self.words: dict[str, Array] = views["words"]  # [groups] each
        self._rows: list[dict[str, dict[str, Tree]]] = [
            views["rows"][str(g)] for g in range(groups)
        ]
        self._actions: list[dict[str, Tree]] = [views["actions"][str(g)] for g in range(groups)]

    def __reduce__(self) -> tuple[object, ...]:
        return Exchange, self._parts

    @staticmethod
    def specs(*, policies: Mapping[str, PolicySizes], groups: int) -> dict[str, Tree]:
        rows = {name: sizes.rows() for name, sizes in policies.items()}
        actions = {
            name: tree.prepend(sizes.action, sizes.width) for name, sizes in policies.items()
        }
        return {
            "words": dict.fromkeys(WORDS, ArraySpec((groups,), "int64")),
            "rows": {str(g): rows for g in range(groups)},
            "actions": {str(g): actions for g in range(groups)},
        }

    def rows(self, group: int, streams: Mapping[str, Array]) -> dict[str, TimeStep]:
        """The rows of a group by policy, where they lie."""
        return {
            name: TimeStep(**rows, stream=streams[name]) for name, rows in self._rows[group].items()
        }

    def actions(self, group: int) -> Mapping[str, Tree]:
        """The actions for a group by policy [width, ...], where they lie."""
        return self._actions[group]

    def arrays(self, group: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """The arrays of a group's rows and of its actions, by path ("POLICY/obs/..."); in the same
        order in every process.
        """
        return dict(tree.items(self._rows[group])), dict(tree.items(self._actions[group]))

    def lost(self, groups: range) -> None:
        """Begin a new epoch (called by the driver), once the env worker or inference worker of
        these groups is verified dead.
        """
        for group in groups:
            publish(self.words["epoch"], group, self.words["epoch"][group] + 1)


class EnvSide:
    """The env worker's side of one group."""

    def __init__(self, exchange: Exchange, group: int, streams: Mapping[str, Array]) -> None:
        self._words, self._g = exchange.words, group
        self._rows, self.actions = exchange.rows(group, streams), exchange.actions(group)
        self._begun = -1  # the epoch that this process has begun
        # rows whose arrays are paired with the exchange's arrays
        self._paired: Mapping[str, TimeStep] | None = None
        self._pairs: list[tuple[Array, Array]] = []

    @property
    def turn(self) -> bool:
        """Is it the env worker's turn to answer actions?"""
        asked = int(self._words["asked"][self._g])
        return (
            asked >> EPOCH == self._begun
            and asked == int(self._words["answered"][self._g])
            and self._current(asked)
        )

    @property
    def begins(self) -> bool:
        """Has a new epoch begun, which needs the first rows of new episodes?"""
        asked = int(self._words["asked"][self._g])
        return asked >> EPOCH != self._begun and self._current(asked)

    @property
    def epoch(self) -> int:
        """The epoch of the inference worker."""
        return int(self._words["asked"][self._g]) >> EPOCH

    def _current(self, asked: int) -> bool:
        return asked >> EPOCH == int(self._words["epoch"][self._g])

    def held(self, cut: int) -> bool:
        """Does the inference worker hold still for this cut?"""
        return bool(self._words["held"][self._g] == cut)

    def begin(self, parts: Mapping[str, TimeStep] | None) -> None:
        """Give the first answer of an epoch; None: the envs are as a resume left them, and these
        rows were given before.
        """
        asked = int(self._words["asked"][self._g])
        self._begun, self._words["anew"][self._g] = asked >> EPOCH, parts is not None
        if parts is not None:
            self._write(parts)
        publish(self._words["answered"], self._g, asked + 1)

    def answer(self, parts: Mapping[str, TimeStep]) -> None:
        self._write(parts)
        publish(self._words["answered"], self._g, self._words["answered"][self._g] + 1)

    def _write(self, parts: Mapping[str, TimeStep]) -> None:
        if parts is not self._paired:  # an env gives the same arrays each time
            self._pairs = [
                pair for name, mine in self._rows.items() for pair in _pairs(mine, parts[name])
            ]
            self._paired = parts
        for to, value in self._pairs:
            np.copyto(to, value)


def _pairs(to: TimeStep, of: TimeStep) -> Iterator[tuple[Array, Array]]:
    """Pair the arrays of two time steps that have the same place."""
    into, rows = _written(to), _written(of)
    return zip(
        tree.leaves(into), tree.leaves(tree.map(lambda _, theirs: theirs, into, rows)), strict=True
    )


def _written(ts: TimeStep) -> dict[str, Tree]:
    """The parts of a time step that travel."""
    rows = ts.rows()
    return rows if ts.info is None else rows | {"info": ts.info}
