"""Outbound slots: the rows of actors on a machine without a queue, until they are sent to the queue
on another machine.

Each group of envs has a ring of slots. An actor asks for slots by their number (``want``), takes
them in order once they are granted (``taken``), and hands them in in any order (``done``,
``full``). A *carrier* stands between these words and the queue. It grants a slot once the queue has
given a block for it, and counts it as ``sent`` once its rows are under way. A slot has
one actor and a word has one writer, so there is no lock, and an actor may be killed at any
instruction.

==================  =============================================================================
word[group]         written by
==================  =============================================================================
want, taken, full   the group's actor; the carrier when the actor is verified dead
done[., slots]      the same, before ``full``: by slot, its newest number that was handed in, + 1
restarted           the group's actor: how many slots it began to write a second time
granted, sent       the carrier
gone[., slots]      the carrier: by slot, its newest number that was sent, + 1
sequence[., slots]  the carrier, before ``granted``: the block of the queue that this slot is for
issued[., slots]    the carrier, before ``granted``: 1 + that block, and the prompts issued for it
lives               the carrier: how many actors of the group are verified dead
==================  =============================================================================

A slot whose block was taken away meanwhile is *void*: its rows are dropped. The actor finishes it
if it has begun it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from equipoise import tree
from equipoise.experience.queue.queue import Plan
from equipoise.memory import Buffer, Memory
from equipoise.publishing import publish
from equipoise.tree import ArraySpec
from equipoise.types import Array, Slot, Trajectory, Tree

VOID = -1  # instead of the sequence of a block
WORDS = ("want", "taken", "full", "restarted", "granted", "sent", "lives")


class Outbound:
    """The slots of some groups of envs, in memory that several processes may map. ``Blocks`` for
    their actors.
    """

    def __init__(
        self, plan: Plan, groups: Sequence[int], memory: Memory, held: int = 1, asked: int = 0
    ) -> None:
        """``plan``: the plan of the queue that the rows are for; ``groups``: the groups that write
        here.

        ``held``: the most slots of a group that its actor writes at a time. A further block is sent
        meanwhile. ``asked``: the slots that an actor without an open slot asks for at once (0:
        ``held``).
        """
        self._parts = plan, tuple(groups), memory, held, asked
        self.plan, self.groups, self.slots = plan, tuple(groups), held + 1
        self._held, self._asked = held, asked or held
        self._at = {group: at for at, group in enumerate(self.groups)}
        views = tree.views(self.specs(plan, groups, held), memory.buffer)
        self.words: dict[str, Array] = views["words"]
        self._sequence, self._done, self._gone = (
            self.words[name] for name in ("sequence", "done", "gone")
        )
        self._issued: Array | None = self.words.get("issued")
        self._bytes = [list(slots.values()) for slots in views["slots"].values()]
        self._slots = [
            [self._slot(at, n) for n in range(self.slots)] for at in range(len(self.groups))
        ]

    @staticmethod
    def specs(plan: Plan, groups: Sequence[int], held: int = 1) -> dict[str, Tree]:
        count, slot = len(groups), ArraySpec((block_bytes(plan),), "uint8")
        each = dict.fromkeys(("sequence", "done", "gone"), ArraySpec((count, held + 1), "int64"))
        if plan.issues:
            each["issued"] = ArraySpec((count, held + 1, 1 + plan.issues), "int64")
        slots = {str(n): slot for n in range(held + 1)}
        words = dict.fromkeys(WORDS, ArraySpec((count,), "int64"))
        return {"words": words | each, "slots": {str(group): slots for group in groups}}

    def __reduce__(self) -> tuple[object, ...]:
        return Outbound, self._parts

    def _slot(self, at: int, n: int) -> dict[str, Slot]:
        fields = block_views(self.plan, self._bytes[at][n])
        keys = np.empty((self.plan.block, 2), np.int64)
        keys[:, 0] = at * self.slots + n
        return {name: Slot(keys=keys, data=Trajectory(**one)) for name, one in fields.items()}

    def _of(self, streams: Array) -> int:
        return self._at[int(streams[0]) // self.plan.span]

    # ----------------------------------------------------------------------------- the actor's side

    def reserve(self, streams: Array) -> Mapping[str, Slot] | None:
        """A slot for each policy of one actor, or None while there is no block for it. The next one
        is asked for, so that it travels meanwhile.

        The keys have the sequence of the block, like the queue's keys.
        """
        at, words = self._of(streams), self.words
        slots = self._take(at)
        taken, full = int(words["taken"][at]), int(words["full"][at])
        self._want(at, max(full + self._asked, min(taken + 1, full + self._held)))
        return slots

    def _take(self, at: int) -> Mapping[str, Slot] | None:
        words = self.words
        while (n := int(words["taken"][at])) < words["granted"][at]:
            sequence = int(self._sequence[at, n % self.slots])
            publish(words["taken"], at, n + 1)
            if sequence == VOID:  # nothing is written for it
                self._hand_in(at, n)
                continue
            slots = self._slots[at][n % self.slots]
            slots[self.plan.first].keys[:, 1] = sequence
            return slots
        return None

    def _want(self, at: int, count: int) -> None:
        if self.words["want"][at] < count:
            publish(self.words["want"], at, count)

    def commit(self, slots: Mapping[str, Slot]) -> None:
        """Hand in complete slots, and ask for the next one before: the two travel in this order, so
        that no time is lost.
        """
        at, slot = divmod(int(slots[self.plan.first].keys[0, 0]), self.slots)
        newest = int(self.words["taken"][at]) - 1
        self._hand_in(at, newest - (newest - slot) % self.slots)

    def _hand_in(self, at: int, n: int) -> None:
        full = int(self.words["full"][at]) + 1
        self._want(at, full + self._asked)
        self._done[at, n % self.slots] = n + 1
        publish(self.words["full"], at, full)

    def restart(self, slots: Mapping[str, Slot]) -> None:
        """Count the written rows as dropped; the actor writes the slots again."""
        self.words["restarted"][int(slots[self.plan.first].keys[0, 0]) // self.slots] += 1

    def issued(self, sequence: int) -> Array:
        """As the queue's: the prompts of an open block, also if the block was taken away."""
        assert self._issued is not None, "slots without issued prompts"
        at, n = np.argwhere(self._issued[:, :, 0] == 1 + sequence)[0]
        numbers: Array = self._issued[at, n, 1:]
        return numbers

    # --------------------------------------------------------------------------- the carrier's side

    def cancel(self, streams: Array) -> None:
        """The actor of these envs is verified dead: unfinished rows are void, and its successor
        asks again.
        """
        at, words = self._of(streams), self.words
        granted = int(words["granted"][at])
        for n in range(max(granted - self.slots, 0), granted):
            if self._done[at, n % self.slots] <= n:
                self._sequence[at, n % self.slots] = VOID
                self._done[at, n % self.slots] = n + 1
        for name in ("want", "taken", "full"):
            publish(words[name], at, granted)
        publish(words["lives"], at, words["lives"][at] + 1)

    def grant(self, at: int, sequences: Sequence[int], issued: Array | None = None) -> int:
        """Let the actor write its next slots, for the first of these blocks -> the number of slots
        that were free. ``issued`` [sequences, ``plan.issues``]: the prompts of each block.
        """
        n = first = int(self.words["granted"][at])
        for number, sequence in enumerate(sequences):
            if self._gone[at, n % self.slots] < n + 1 - self.slots:
                break
            if self._issued is not None and issued is not None:
                self._issued[at, n % self.slots] = [1 + sequence, *issued[number]]
            self._sequence[at, n % self.slots] = sequence
            n += 1
        publish(self.words["granted"], at, n)
        return n - first

    def void(self, at: int) -> None:
        """The blocks of all granted slots were taken away."""
        self._sequence[at] = VOID

    def writes(self, at: int) -> bool:
        """Is the block of the newest slot that the actor began still its own?"""
        return bool(self._sequence[at, (self.words["taken"][at] - 1) % self.slots] != VOID)

    def complete(self, at: int) -> tuple[int, int, Array] | None:
        """The oldest slot that is handed in and not sent -> its number, its block's sequence or
        ``VOID``, and its bytes.
        """
        if self.words["sent"][at] >= self.words["full"][at]:
            return None
        done = self._done[at]
        n = int(done[done > self._gone[at]].min()) - 1
        return n, int(self._sequence[at, n % self.slots]), self._bytes[at][n % self.slots]

    def sent(self, at: int, n: int) -> None:
        """Slot number ``n`` is free again."""
        self._gone[at, n % self.slots] = n + 1
        publish(self.words["sent"], at, self.words["sent"][at] + 1)

    @property
    def quiet(self) -> bool:
        """Were all slots that were granted handed in and sent?"""
        words = self.words
        return bool(
            (words["granted"] == words["full"]).all() and (words["sent"] == words["full"]).all()
        )


def block_bytes(plan: Plan) -> int:
    """The bytes of the rows of one block, as they travel."""
    return tree.nbytes(plan.fields(plan.block))


def block_views(plan: Plan, buffer: Buffer) -> dict[str, dict[str, Tree]]:
    """The rows of a block by policy, as views over its bytes."""
    views: dict[str, dict[str, Tree]] = tree.views(plan.fields(plan.block), buffer)
    return views
