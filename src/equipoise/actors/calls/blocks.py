"""Groups of conversations as rows of the queue: exact tokens, and each answer once.

Row ``i`` of a group's block number ``k`` is the ``k``-th sample of its conversation number ``i``. A
conversation with fewer samples has a *witness* there: one given token with the conversation's
reward, so that the baseline is that of the whole group, and nothing is learned from it. Rows of
conversations that are not there are masked.

The samples of a block begin with the same tokens at least once: as many of them as fit are the
block's prompt, and the rest of each prompt is given at the beginning of its sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.actors.calls.records import Conversation, Row
from equipoise.types import Array, Slot, Stop


@dataclass(frozen=True, slots=True)
class Block:
    """The samples of a group that are learned from together."""

    conversations: Sequence[Conversation]
    number: int  # of the sample in each conversation

    @property
    def rows(self) -> list[Row | None]:
        """The sample of each conversation; None: a witness."""
        return [
            one.rows[self.number] if self.number < len(one.rows) else None
            for one in self.conversations
        ]

    @property
    def newest(self) -> int:
        """The oldest version of its newest answer: if that is too old, all of them are."""
        return max(
            min(row.version[a:b]) for row in self.rows if row is not None for a, b in row.spans
        )


def blocks_of(group: Sequence[Conversation]) -> list[Block]:
    """Return the blocks of a group."""
    return [Block(group, number) for number in range(max(len(one.rows) for one in group))]


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a block's answers."""

    learned: int
    old: int
    long: int
    samples: int  # with an answer that is learned from
    returns: Array  # [B] float64, nan for a row without a conversation
    lengths: Array  # [B] drawn tokens that are learned from


def shared(rows: Sequence[Row], most: int) -> int:
    """Return how many tokens all rows begin with, at most ``most``, without any drawn one."""
    length = min(most, *(row.spans[0][0] for row in rows))
    first, others = rows[0].token[:length], rows[1:]
    while length and any(row.token[:length] != first[:length] for row in others):
        # halve, then grow again: prompts of a group mostly agree at once
        low, high = 0, length
        while low < high:
            middle = (low + high + 1) // 2
            if all(row.token[:middle] == first[:middle] for row in others):
                low = middle
            else:
                high = middle - 1
        length = low
    return length


def write(block: Block, slot: Slot, *, oldest: int, filler: int, version: int) -> Written:
    """Write a block into its slot. ``oldest``: the oldest version that is learned from; answers
    with an older token are given, not chosen. ``filler``: a token for witnesses.
    """
    data, count = slot.data, slot.data.mask.shape[1]
    token, behaviour = data.action["token"], data.behaviour
    room = token.shape[2]
    real = [row for row in block.rows if row is not None]
    asked = shared(real, data.context["prompt"].shape[1])
    learned = old = long = samples = 0
    returns, lengths = np.full(count, np.nan), np.zeros(count, np.int64)
    data.mask[0], data.reward[0] = False, 0.0
    behaviour["chosen"][0], behaviour["length"][0] = False, 1
    behaviour["stop"][0], data.version[0] = int(Stop.EOS), version
    token[0, :, 0], behaviour["logp"][0, :, 0], behaviour["version"][0, :, 0] = filler, 0.0, -1
    for i, (conversation, row) in enumerate(zip(block.conversations, block.rows, strict=True)):
        reward = math.nan if conversation.reward is None else conversation.reward
        data.mask[0, i], data.reward[0, i], returns[i] = True, reward, reward
        if row is None:
            continue
        length = len(row.token) - asked
        if not asked or length > room:
            long += len(row.spans)
            continue
        token[0, i, :length] = row.token[asked:]
        behaviour["logp"][0, i, :length] = row.logp[asked:]
        behaviour["version"][0, i, :length] = row.version[asked:]
        behaviour["length"][0, i], behaviour["stop"][0, i] = length, int(row.marks[-1].stop)
        versions = np.array(row.version)
        fresh = [(a, b) for a, b in row.spans if int(versions[a:b].min()) >= oldest]
        for a, b in row.spans:
            part = slice(a - asked, b - asked)
            if (a, b) in fresh:
                behaviour["chosen"][0, i, part] = True
                lengths[i] += b - a
            else:
                behaviour["logp"][0, i, part], behaviour["version"][0, i, part] = 0.0, -1
        learned, old = learned + len(fresh), old + len(row.spans) - len(fresh)
        samples += bool(fresh)
        if fresh:
            data.version[0, i] = min(int(versions[a:b].min()) for a, b in fresh)
    data.context["prompt_length"][:] = max(asked, 1)
    data.context["prompt"][:, : max(asked, 1)] = real[0].token[: max(asked, 1)]
    data.bootstrap[0], data.first[:] = False, True
    return Written(learned, old, long, samples, returns, lengths)
