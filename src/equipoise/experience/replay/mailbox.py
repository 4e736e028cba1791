"""The mailbox between a learner and its shards: words in memory that all of them map.

The learner writes requests to a shard one after the other; the shard does them in that order and
reports its progress.

============  ===============================  ========================================================
word          written by                       when
============  ===============================  ========================================================
request[i]    the learner                      before it counts ``asked`` up to i + 1
asked         the learner                      then
answered      the shard                        when request i is done, and all that it says of it is written
..            the learner, the shard dead      to ``asked``: its successor is not to do what was asked of it
life          the driver, the shard dead       counted up, before the successor starts
seen          the learner                      = ``life``, once it knows what was lost: the successor begins
============  ===============================  ========================================================

So a word has one writer at a time, and a request is done at most once. The answers of a dead shard
stand still until the learner has looked. docs/inside/memory-order.md states which stores have to be seen
in which order.
"""  # noqa: E501

from __future__ import annotations

from enum import IntEnum

from equipoise import tree
from equipoise.experience.layout import trajectory_specs
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.memory import Memory
from equipoise.publishing import publish
from equipoise.tree import ArraySpec
from equipoise.types import Array, Tree

WORD = ArraySpec((1,), "int64")
BUFFERS = 2  # batches: the learner uses one while the next is gathered
LEDGER = ("kept", "overwritten", "lost")  # the fate of the rows that shards took


class Request(IntEnum):
    """A request, with up to three numbers."""

    LOOK = 0  # report the items and their mass
    INSERT = 1  # take in the inbox's block at this place
    DRAW = 2  # draw a number of items into this buffer, from this column on
    UPDATE = 3  # take new priorities, from this index to that, of a total number


class ShardMailbox:
    """The memory of all shards of a run."""

    def __init__(self, plan: ReplayPlan, batch: int, memory: Memory) -> None:
        self._parts = plan, batch, memory
        self.batch = batch
        views = tree.views(self.specs(plan, batch), memory.buffer)
        self.shards: list[dict[str, Array]] = [
            views["shards"][str(k)] for k in range(plan.settings.shards)
        ]
        self.batches: list[dict[str, Tree]] = [views["batches"][str(b)] for b in range(BUFFERS)]
        self.priorities: dict[str, Array] = views["priorities"]
        self.ledger: dict[str, Array] = views["ledger"]

    def __reduce__(self) -> tuple[object, ...]:
        return ShardMailbox, self._parts

    @staticmethod
    def specs(plan: ReplayPlan, batch: int) -> Tree:
        # Most requests before an answer: a whole round of blocks for one shard, and one of each
        # other kind.
        requests = plan.actors + len(Request)
        shard = {
            **dict.fromkeys(("asked", "answered", "life", "seen"), WORD),
            "request": ArraySpec((requests, 4), "int64"),
            # by the shard; blocks of all its lives
            "items": WORD,
            "mass": ArraySpec((1,), "float64"),
            "inserted": WORD,
        }
        keys = {"keys": ArraySpec((batch, 2), "int64")}
        drawn = {
            "data": trajectory_specs(plan.row, plan.window, batch),
            "probability": ArraySpec((batch,), "float64"),
        } | keys
        return {
            "shards": {str(k): shard for k in range(plan.settings.shards)},
            "batches": {str(b): drawn for b in range(BUFFERS)},
            "priorities": {"priority": ArraySpec((batch,), "float64")} | keys,
            "ledger": dict.fromkeys(LEDGER, WORD),  # rows; written by the learner
        }

    def lost(self, shard: int) -> None:
        """Note a lost shard. The driver calls it once the shard is verified dead, before the
        successor starts.
        """
        publish(self.shards[shard]["life"], 0, self.shards[shard]["life"][0] + 1)

    def inserted(self, shard: int) -> int:
        """Count the blocks that a shard took in, in all of its lives."""
        return int(self.shards[shard]["inserted"][0])

    def stats(self) -> dict[str, int]:
        """Rows that shards took, by fate. The rows sampled from the inbox are the sum, except for a
        round on its way.
        """
        return {name: int(word[0]) for name, word in self.ledger.items()}
