"""An actor process that does nothing but reserve, write and commit, and rows that tell who wrote
them.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np

from equipoise.experience.layout import RowSpec
from equipoise.runtime.ipc import Lifeline, Segment
from equipoise.tree import ArraySpec
from equipoise.types import Batch, stream_ids
from tests.experience.alone import Alone

BLOCK, UNROLL = 2, 3
ROW = RowSpec(
    obs=ArraySpec((), "int64"),
    action=ArraySpec((), "int64"),
    behaviour={},
    state={},
    context={"stream": ArraySpec((), "int64"), "start": ArraySpec((), "int64")},
)


def write(slot: Any, actor: int, stamp: int) -> None:
    """``stamp`` in the first and the last field that is written, and in what lies between."""
    _stamps(slot.data)[:] = stamp
    slot.data.action[:] = stamp
    slot.data.version[:] = stamp
    slot.data.context["stream"][:] = stream_ids(actor, BLOCK)
    slot.data.context["start"][:] = stamp


def _stamps(data: Any) -> Any:
    """The observations that are stamps; others may stand beside them."""
    return data.obs["stamp"] if isinstance(data.obs, dict) else data.obs


def read(batch: Batch) -> list[tuple[int, int, int]]:
    """(sequence, actor, stamp) of every block of a batch; AssertionError where a block is not of
    one piece.
    """
    data, found = batch.data, []
    for i in range(0, len(batch.keys), BLOCK):
        of = slice(i, i + BLOCK)
        stamps = np.concatenate(
            [np.ravel(x) for x in (_stamps(data)[:, of], data.action[:, of], data.version[:, of])]
        )
        stamp = int(data.context["start"][i])
        assert (stamps == stamp).all() and (np.asarray(data.context["start"][of]) == stamp).all(), (
            f"torn: {set(stamps)}, {stamp}"
        )
        actor = int(data.context["stream"][i]) // BLOCK
        assert data.context["stream"][of].tolist() == stream_ids(actor, BLOCK).tolist(), (
            "torn streams"
        )
        assert (batch.keys[of, 1] == batch.keys[i, 1]).all()
        found.append((int(batch.keys[i, 1]), actor, stamp))
    return found


def main(queue: Alone, actor: int, stamp: int, progress: Segment, lifeline: Lifeline) -> None:
    """Until killed. ``progress``: an int64 an actor, the last stamp whose commit returned."""
    os.nice(5)  # the learner first
    done = np.frombuffer(progress.buffer, np.int64)
    streams = stream_ids(actor, BLOCK)
    for turn in itertools.count():
        if turn % 1000 == 0 and lifeline.cut():
            os._exit(0)
        slot = queue.reserve(streams)
        # no wait: a process that waits is killed where it waits, and it is to be killed anywhere
        if slot is None:
            continue
        stamp += 1
        write(slot, actor, stamp)
        queue.commit(slot)
        done[actor] = stamp
