"""Tokens: the right to write a block, and the fate of the token of a killed actor.

A token is the number of a block that is FREE. It is dealt through a channel that no process can
hold, so at any moment it is in the channel, held by one actor, or lost. The actor that takes it
opens the block. Before it takes one it sets ``claiming``, since a process that is killed in between
can report nothing afterwards.

=============  =====================================  ==============================================
word           written by                             when
=============  =====================================  ==============================================
word[place]    the actor that took its token          FREE to OPEN, OPEN to FULL
..             the learner                            FULL to READ, READ to FREE of the next sequence
..             the driver, its owner verified dead    OPEN to FREE of the same sequence
owner[place]   the actor that took its token          before OPEN; meant only while OPEN
..             that actor, to another's number       OPEN, once all that it leaves there is written
claiming[a]    actor a; the driver when it is dead    1 before it takes a token, 0 after OPEN
dealing        the learner                            1 before it writes FREE, 0 after it put the token
..             the driver, the learner dead           0
=============  =====================================  ==============================================

An actor can be killed at any instruction, and so can one of several learners (the driver cannot,
nor can a learner alone: their death ends the run). An actor killed

- before it took a token: nothing happened;
- while it held the token: the block is FREE and in no channel. ``claiming`` shows it, ``reconcile``
  finds it;
- after OPEN, however far: ``cancel`` makes the block FREE again, and counts it as dropped;
- after it handed an open block over (``hand_over``): the block is the other actor's, whose death is
  what counts for it. If that one is already dead, its successor finds the block;
- after FULL: the block is the learner's. Nothing that an actor does after FULL is needed.

A learner that is killed while it deals leaves blocks that are FREE and in no channel; ``reconcile``
also finds such blocks. The successor learns again from the blocks that it had READ, or frees them
(``Queue.take_over``).

``reconcile`` deals a token again only when it is certain that no actor holds it. A block is
suspected if it was FREE, the learner was not dealing (so its token was in the channel before), and
the channel, emptied afterwards, did not contain it. Then a living actor took it, or a dead one.
Every actor that claimed something when the channel was emptied is waited for until it has been seen
to claim nothing; the block whose token it held is OPEN now, or further. A suspect still FREE after
that is lost: since the emptying no process put it back, so no actor can have taken it. That never
blocks: an uncertain token is asked for again, and a claimer that dies meanwhile is cancelled, after
which the search begins again.

All this needs stores that become visible in the order of the program (``publishing.py``), and that
a store before a read or write of a pipe is visible before it (the pipe's own lock).
docs/inside/memory-order.md has the proof.
"""  # noqa: E501

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from equipoise.publishing import publish
from equipoise.tree import ArraySpec
from equipoise.types import Array

FREE, OPEN, FULL, READ = range(4)
MOST_BLOCKS = 4096  # their tokens fit the smallest pipe buffer twice


class Channel(Protocol):
    """A channel: numbers in, numbers out, in order. No process can hold it, and each number comes
    out whole and once.
    """

    def put(self, values: Sequence[int]) -> None: ...
    def get(self) -> int | None: ...  # None: empty
    def drain(self) -> list[int]: ...  # all that are in it now


class LocalChannel:
    """A channel within one process."""

    def __init__(self) -> None:
        self._values: deque[int] = deque()

    def put(self, values: Sequence[int]) -> None:
        self._values.extend(values)

    def get(self) -> int | None:
        return self._values.popleft() if self._values else None

    def drain(self) -> list[int]:
        values = list(self._values)
        self._values.clear()
        return values


class Tokens:
    """The words of all blocks and the channels of the free ones. Block ``s`` lies at place ``s %
    blocks``.
    """

    def __init__(self, views: dict[str, Array], channels: Sequence[Channel]) -> None:
        """``views``: int64 arrays as in ``specs``. ``channels``: one for all actors, or one an
        actor.
        """
        self.word, self.owner = views["word"], views["owner"]
        self._claiming, self._dealing = views["claiming"], views["dealing"]
        self._channels = channels
        # Used by the driver: channels that may have lost a token -> the suspects and the actors to
        # wait for; None: not looked yet.
        self._searches: dict[int, tuple[list[int], list[int]] | None] = {}

    @staticmethod
    def specs(blocks: int, actors: int) -> dict[str, ArraySpec]:
        return {
            "word": ArraySpec((blocks,), "int64"),  # sequence * 4 + status
            "owner": ArraySpec((blocks,), "int64"),
            "claiming": ArraySpec((actors,), "int64"),
            "dealing": ArraySpec((1,), "int64"),
        }

    def take(self, actor: int) -> int | None:
        """Open the next block (called by an actor) -> its sequence; None: no block is free."""
        publish(self._claiming, actor, 1)
        sequence = self._channels[actor % len(self._channels)].get()
        if sequence is not None:
            place = sequence % len(self.word)
            self.owner[place] = actor
            publish(self.word, place, sequence * 4 + OPEN)
        publish(self._claiming, actor, 0)
        return sequence

    def hand_over(self, place: int, actor: int) -> None:
        """Make an open block another actor's (called by its owner, which has no right to it from
        then on).
        """
        publish(self.owner, place, actor)

    def held(self, actor: int) -> list[int]:
        """The sequences of an actor's open blocks, taken or handed to it (called by the actor)."""
        words = self.word.copy()  # before the owners, which are written before OPEN
        mine = (words % 4 == OPEN) & (self.owner == actor)
        mine &= self.word == words  # else the owner may be that of the place's next sequence
        return sorted((words[mine] // 4).tolist())

    def free(self, sequences: Sequence[int]) -> None:
        """Free blocks (called by the learner), so that actors may take them; also the first deal of
        a run.
        """
        publish(self._dealing, 0, 1)
        for sequence in sequences:
            publish(self.word, sequence % len(self.word), sequence * 4 + FREE)
        for i, channel in enumerate(self._channels):
            if mine := [s for s in sequences if s % len(self._channels) == i]:
                channel.put(mine)
        publish(self._dealing, 0, 0)

    def cancel(self, actor: int) -> int:
        """Deal the open blocks of a verified dead actor again (called by the driver) -> their
        number.

        A block that is FULL or READ is the learner's and stays. Call ``reconcile`` until it returns
        True.
        """
        places = np.flatnonzero(
            (self.word % 4 == OPEN) & (self.owner == actor)
        )  # read in this order: owner is written before OPEN
        sequences = [int(self.word[place]) // 4 for place in places]
        for place, sequence in zip(places, sequences, strict=True):
            publish(self.word, place, sequence * 4 + FREE)
        channel = actor % len(self._channels)
        self._put_in_order(channel, sequences)
        if self._claiming[actor]:
            publish(self._claiming, actor, 0)
            self._searches[channel] = None
        # the blocks that were just dealt may include a suspect
        self._searches = dict.fromkeys(self._searches)
        return len(places)

    def orphaned(self) -> None:
        """The learner is verified dead (called by the driver): it may have died while it dealt."""
        publish(self._dealing, 0, 0)
        self._searches = dict.fromkeys(range(len(self._channels)))

    def reconcile(self) -> bool:
        """Find the tokens that died with their actors and deal them again (called by the driver) ->
        False: not certain yet.
        """
        for channel in list(self._searches):
            search = self._searches[channel] or self._suspects(channel)
            if search is None:
                continue
            suspects, claimers = search
            claimers = [a for a in claimers if self._claiming[a]]
            if suspects and claimers:
                self._searches[channel] = suspects, claimers
                continue
            self._put_in_order(
                channel, [s for s in suspects if self.word[s % len(self.word)] == s * 4 + FREE]
            )
            del self._searches[channel]
        return not self._searches

    def _suspects(self, channel: int) -> tuple[list[int], list[int]] | None:
        """Find tokens that were dealt to a channel, but are not open and not in it, and the actors
        that may hold them; None: ask again.
        """
        words = self.word.copy()
        if self._dealing[0]:  # read after the words: a FREE block may not be in the channel yet
            return None
        queued = self._channels[channel].drain()
        self._channels[channel].put(sorted(queued))
        free = (
            s
            for s in (words[words % 4 == FREE] // 4).tolist()
            if s % len(self._channels) == channel
        )
        return sorted(set(free).difference(queued)), list(
            range(channel, len(self._claiming), len(self._channels))
        )

    def _put_in_order(self, channel: int, sequences: Sequence[int]) -> None:
        """Put tokens before the tokens in the channel: the learner waits for the lowest. Meanwhile
        actors find it empty.
        """
        self._channels[channel].put(sorted([*sequences, *self._channels[channel].drain()]))
