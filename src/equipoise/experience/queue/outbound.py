"""Outbound slots: actors write their rows here on a machine without a queue, and are told of the queue elsewhere.

Each group of envs has two slots, used in turn. An actor asks for slot n (``want`` becomes n + 1), writes it once it is granted,
and hands it in (``full`` becomes n + 1). A *carrier* stands between these words and the queue. It grants a slot once
the queue has given a block for it, and counts it as ``sent`` once its rows are under way. Nobody competes for a slot and every
word has one writer, so there is no lock, and an actor may be killed at any instruction.

=================  ==============================================================================
word[group]        written by
=================  ==============================================================================
want, full         the group's actor; the carrier when the actor is verified dead
restarted          the group's actor: how many slots it began to write a second time
granted, sent      the carrier
sequence[., 2]     the carrier, before ``granted``: the block of the queue that this slot is for
lives              the carrier: how many actors of the group are verified dead
=================  ==============================================================================

A slot whose block was taken away meanwhile is *void*: its actor finishes it, and its rows are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise import tree
from equipoise.experience.queue.queue import Plan
from equipoise.memory import Memory
from equipoise.publishing import publish
from equipoise.tree import ArraySpec
from equipoise.types import Array, Slot, Trajectory, Tree

SLOTS = 2  # of a group: one is written while the other is sent
VOID = -1  # instead of the sequence of a block
WORDS = ("want", "full", "restarted", "granted", "sent", "lives")


class Outbound:
    """The slots of some groups of envs, in memory that several processes may map. ``Blocks`` for their actors."""

    def __init__(self, plan: Plan, groups: Sequence[int], memory: Memory) -> None:
        """``plan``: of the queue that the rows are for; ``groups``: those that write here."""
        self._parts = plan, tuple(groups), memory
        self.plan, self.groups = plan, tuple(groups)
        self._at = {group: at for at, group in enumerate(self.groups)}
        views = tree.views(self.specs(plan, groups), memory.buffer)
        self.words: dict[str, Any] = views["words"]
        self.sequence = self.words["sequence"]
        self._bytes = [list(slots.values()) for slots in views["slots"].values()]
        self._slots = [[self._slot(at, n) for n in range(SLOTS)] for at in range(len(self.groups))]

    @staticmethod
    def specs(plan: Plan, groups: Sequence[int]) -> dict[str, Tree]:
        count, slot = len(groups), ArraySpec((block_bytes(plan),), "uint8")
        words = dict.fromkeys(WORDS, ArraySpec((count,), "int64")) | {"sequence": ArraySpec((count, SLOTS), "int64")}
        slots = {str(n): slot for n in range(SLOTS)}
        return {"words": words, "slots": {str(group): slots for group in groups}}

    def __reduce__(self) -> tuple[Any, ...]:
        return Outbound, self._parts

    def _slot(self, at: int, n: int) -> dict[str, Slot]:
        fields = block_views(self.plan, self._bytes[at][n])
        keys = np.empty((self.plan.block, 2), np.int64)
        keys[:, 0] = self.groups[at]
        return {name: Slot(keys=keys, data=Trajectory(**one)) for name, one in fields.items()}

    def at(self, group: int) -> int:
        """The place of a group among those that write here."""
        return self._at[group]

    def _of(self, streams: Array) -> int:
        return self._at[int(streams[0]) // self.plan.span]

    # ------------------------------------------------------------------------------------------------- the actor's side

    def reserve(self, streams: Array) -> Mapping[str, Slot] | None:
        """A slot for each policy of one actor, or None while there is no block for it. The first call asks for one."""
        at, words = self._of(streams), self.words
        n = int(words["full"][at])
        if words["want"][at] <= n:
            publish(words["want"], at, n + 1)
        if words["granted"][at] <= n:
            return None
        slots = self._slots[at][n % SLOTS]
        slots[self.plan.first].keys[:, 1] = n
        return slots

    def commit(self, slots: Mapping[str, Slot]) -> None:
        """Hand in complete slots, and ask for the next one before: the two travel in this order, so that no time is lost."""
        group, n = slots[self.plan.first].keys[0].tolist()
        at = self._at[group]
        publish(self.words["want"], at, n + 2)
        publish(self.words["full"], at, n + 1)

    def restart(self, slots: Mapping[str, Slot]) -> None:
        """Count the written rows as dropped; the actor writes the slots anew."""
        self.words["restarted"][self._at[int(slots[self.plan.first].keys[0, 0])]] += 1

    # ----------------------------------------------------------------------------------------------- the carrier's side

    def cancel(self, streams: Array) -> None:
        """The actor of these envs is verified dead: what it had not handed in is dropped, and its successor asks anew."""
        at, words = self._of(streams), self.words
        for name in ("granted", "want"):
            publish(words[name], at, words["full"][at])
        publish(words["lives"], at, words["lives"][at] + 1)

    def grant(self, at: int, sequence: int) -> None:
        """Let the actor write its next slot, for that block."""
        n = int(self.words["granted"][at])
        self.sequence[at, n % SLOTS] = sequence
        publish(self.words["granted"], at, n + 1)

    def room(self, at: int) -> bool:
        """Is the next slot to grant free: were the rows sent that it held last?"""
        return bool(self.words["granted"][at] - self.words["sent"][at] < SLOTS)

    def void(self, at: int) -> None:
        """The blocks of all granted slots were taken away."""
        self.sequence[at] = VOID

    def complete(self, at: int) -> tuple[int, Any] | None:
        """The oldest slot that is handed in and not sent -> the sequence of its block, or ``VOID``, and its bytes."""
        n = int(self.words["sent"][at])
        if n >= self.words["full"][at]:
            return None
        return int(self.sequence[at, n % SLOTS]), self._bytes[at][n % SLOTS]

    def sent(self, at: int) -> None:
        """That slot is free again."""
        publish(self.words["sent"], at, self.words["sent"][at] + 1)


def block_bytes(plan: Plan) -> int:
    """The bytes of the rows of one block, as they travel."""
    return tree.nbytes(plan.fields(plan.block))


def block_views(plan: Plan, buffer: Any) -> dict[str, dict[str, Tree]]:
    """The rows of a block by policy, as views over its bytes."""
    views: dict[str, dict[str, Tree]] = tree.views(plan.fields(plan.block), buffer)
    return views
