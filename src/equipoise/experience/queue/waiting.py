"""Blocks that wait for a shard on the machine that made them, while the queue at home records only
that they are complete.

At the site they lie by the places of home's queue, so that a shard reads them as it would read the
queue. At home such a block holds whose rows they are, and a mark instead of the rows: ``start`` is
-1 less the block's sequence, which no real row has. An actor or a checkpoint that writes rows there
writes over the mark. So the block itself has the place of its rows, whatever process dies.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from equipoise import tree
from equipoise.experience.queue.outbound import block_bytes, block_views
from equipoise.experience.queue.queue import Plan
from equipoise.memory import Memory
from equipoise.tree import ArraySpec
from equipoise.types import Array, Slot, Trajectory, Tree


class Waiting:
    """The rows of complete blocks at a site. The site's carrier writes a block; a shard reads it
    when it is asked to.
    """

    def __init__(self, plan: Plan, memory: Memory) -> None:
        """``plan``: of home's queue."""
        self._parts = plan, memory
        self.plan = plan
        self._bytes: list[Array] = list(tree.views(self.specs(plan), memory.buffer).values())
        self._blocks: dict[int, dict[str, Trajectory]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return Waiting, self._parts

    @staticmethod
    def specs(plan: Plan) -> dict[str, Tree]:
        """Memory for the blocks of all actors, of which this machine's are written."""
        return {
            str(place): ArraySpec((block_bytes(plan),), "uint8") for place in range(plan.blocks)
        }

    def block(self, place: int) -> Mapping[str, Trajectory]:
        """The rows of a block by policy, as views."""
        if place not in self._blocks:
            fields = block_views(self.plan, self._bytes[place])
            self._blocks[place] = {name: Trajectory(**one) for name, one in fields.items()}
        return self._blocks[place]

    def write(self, place: int, data: bytes | memoryview | Array) -> None:
        """Keep the bytes of a block: ``block_bytes`` of them."""
        self._bytes[place][:] = np.frombuffer(data, np.uint8)

    def read(self, place: int) -> Array:
        """The bytes of a block."""
        return self._bytes[place]


def mark(slots: Mapping[str, Slot], streams: Array, sequence: int) -> None:
    """Home's: note that the rows of this block wait at a site. ``streams``: of the group that made
    them.
    """
    for slot in slots.values():
        slot.data.context["stream"][:] = streams[0]
        slot.data.context["start"][:] = -1 - sequence


def marked(block: Mapping[str, Trajectory]) -> int | None:
    """The sequence of the block whose rows wait at a site; None: the rows are here."""
    start = int(next(iter(block.values())).context["start"][0])
    return None if start >= 0 else -1 - start


def raw(plan: Plan, block: Mapping[str, Trajectory]) -> Array:
    """The rows of a block of the queue, as the bytes that ``Waiting`` keeps."""
    data = np.zeros(block_bytes(plan), np.uint8)
    for name, fields in block_views(plan, data).items():
        tree.copy(fields, block[name].fields())
    return data


def put_back(plan: Plan, block: Mapping[str, Trajectory], data: Array) -> None:
    """Write rows that waited at a site over the mark; ValueError, and nothing is written, if these
    are no such bytes.
    """
    if len(data) != block_bytes(plan):
        raise ValueError(f"expected {block_bytes(plan):,} bytes of rows, got {len(data):,}")
    for name, fields in block_views(plan, np.frombuffer(data, np.uint8)).items():
        tree.copy(block[name].fields(), fields)
