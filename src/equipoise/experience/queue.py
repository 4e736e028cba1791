"""The queue of on-policy learning: windows in reservation order, with a bound on how stale they can be.

The law. Memory is ``groups`` batches side by side, a block (one actor's streams) is the unit that is reserved, and block
``s`` of the run lies at place ``s % blocks``. A block is reserved when its unroll starts, batches are sampled in the order
of reservation, and a place is dealt again only when ``finish`` frees it, after the learner published. So the unroll in
group ``g`` started no earlier than version ``g - max_lag``, and is used at version ``g``: the lag is never above
``max_lag``, whatever the speed of any actor, and a batch is one contiguous view of the memory that actors wrote into.

Without a bound (``max_lag=None``) there are two blocks an actor, batches are made in the order of completion, and a batch
of several blocks costs one copy.

No lock is held by anybody. The word of a block has one writer at a time: the actor that took its token (FREE to OPEN to
FULL), then the learner (FULL to READ to FREE). Tokens travel through channels that the runtime provides (a deque in one
process, an atomic 8-byte message in a pipe between several).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from equipoise import tree
from equipoise.experience.layout import RowSpec, columns, trajectory, trajectory_specs
from equipoise.tree import ArraySpec
from equipoise.types import Array, Batch, Slot, Tree

FREE, OPEN, FULL, READ = range(4)
SAMPLED, DROPPED, NEXT = range(3)
MOST_BLOCKS = 4096  # their tokens fit the smallest pipe buffer twice


class Channel(Protocol):
    """Numbers in, numbers out, in order; nobody can hold it."""

    def put(self, values: Sequence[int]) -> None: ...
    def get(self) -> int | None: ...  # None: empty


class LocalChannel:
    """A channel within one process."""

    def __init__(self) -> None:
        self._values: deque[int] = deque()

    def put(self, values: Sequence[int]) -> None:
        self._values.extend(values)

    def get(self) -> int | None:
        return self._values.popleft() if self._values else None


class Memory(Protocol):
    """A writable buffer; the runtime's are shared between processes and travel as a handle."""

    buffer: Any


class Plan:
    """The sizes of a queue, and where block ``s`` goes.

    ``streams`` are all streams of the run, ``block`` those of one actor, ``batch`` those of one learner step.
    """

    def __init__(self, *, row: RowSpec, unroll: int, batch: int, block: int, streams: int, max_lag: int | None) -> None:
        if batch % block:
            raise ValueError(f"expected a batch that is a multiple of envs_per_actor={block}, got {batch}: it could deadlock")
        self.unroll, self.batch, self.block, self.max_lag = unroll, batch, block, max_lag
        self.actors = streams // block
        self.per_batch = batch // block  # blocks
        self.ordered = max_lag is not None
        self.blocks = self.per_batch * (max_lag + 1) if max_lag is not None else 2 * max(self.actors, self.per_batch)
        if self.blocks > MOST_BLOCKS:
            raise ValueError(
                f"expected at most {MOST_BLOCKS} blocks, got {self.blocks}; use more envs_per_actor or a smaller max_lag"
            )
        self.width = batch if self.ordered else block  # streams of one contiguous group
        group = trajectory_specs(row, unroll, self.width)
        self.gathered = trajectory_specs(row, unroll, batch)  # where a batch is made of blocks that do not lie together
        self.specs: dict[str, Tree] = {
            "groups": {str(g): group for g in range(self.blocks * block // self.width)},
            "word": ArraySpec((self.blocks,), "int64"),  # sequence * 4 + status; the owner is who took the token
            "owner": ArraySpec((self.blocks,), "int64"),
            "committed": ArraySpec((self.actors,), "int64"),  # blocks, one writer each
            "learner": ArraySpec((3,), "int64"),  # blocks sampled, blocks dropped, ordered: first block of the next batch
        }
        self.nbytes = tree.nbytes(self.specs)
        # Lockstep deals by a fixed rule, so that a run does not depend on who came first.
        self.channels = self.actors if max_lag == 0 else 1


class Queue:
    """``Experience`` over memory that several processes may map. One learner samples; each actor owns its streams."""

    def __init__(self, plan: Plan, memory: Memory, *, free: Sequence[Channel], full: Channel) -> None:
        """``free``: ``plan.channels`` channels of tokens to actors; ``full``: completed blocks, used without a bound."""
        self._plan, self._memory, self._free, self._full = plan, memory, free, full
        self._open_views()

    def _open_views(self) -> None:
        views = tree.views(self._plan.specs, self._memory.buffer)
        self._word, self._owner = views["word"], views["owner"]
        self._committed, self._learner = views["committed"], views["learner"]
        per_group = self._plan.width // self._plan.block
        self._groups = list(views["groups"].values())
        self._blocks = [
            columns(self._groups[b // per_group], b % per_group * self._plan.block, (b % per_group + 1) * self._plan.block)
            for b in range(self._plan.blocks)
        ]
        self._slots: dict[int, Slot] = {}
        self._ready: list[int] = []  # unordered: completed and not yet sampled
        self._batches: dict[int, tuple[dict[str, Tree], torch.Tensor]] = {}

    def __getstate__(self) -> tuple[Any, ...]:
        return self._plan, self._memory, self._free, self._full

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._plan, self._memory, self._free, self._full = state
        self._open_views()

    def fill(self) -> None:
        """Deal every place once; the owner of the memory calls this before anybody reserves."""
        self._word[:] = np.arange(self._plan.blocks) * 4 + FREE
        self._deal(range(self._plan.blocks))

    def _deal(self, sequences: Sequence[int]) -> None:
        for i, channel in enumerate(self._free):
            mine = [s for s in sequences if s % len(self._free) == i]
            if mine:
                channel.put(mine)

    # ------------------------------------------------------------------------------------------------- the actor's side

    def reserve(self, streams: Array) -> Slot | None:
        """A slot for these streams (one actor's), or None while the learner holds all places."""
        actor = int(streams[0]) // self._plan.block
        sequence = self._free[actor % len(self._free)].get()
        if sequence is None:
            return None
        place = sequence % self._plan.blocks
        self._owner[place] = actor
        self._word[place] = sequence * 4 + OPEN
        if (slot := self._slots.get(place)) is None:
            keys = np.empty((self._plan.block, 2), np.int64)
            keys[:, 0] = np.arange(place * self._plan.block, (place + 1) * self._plan.block)
            slot = self._slots[place] = Slot(keys=keys, data=trajectory(self._blocks[place]))
        slot.keys[:, 1] = sequence
        return slot

    def commit(self, slot: Slot, priority: Array | None = None) -> None:
        """The slot is complete: [T, B] rows, obs[T] included."""
        sequence = int(slot.keys[0, 1])
        place = sequence % self._plan.blocks
        self._committed[self._owner[place]] += 1
        self._word[place] = sequence * 4 + FULL
        if not self._plan.ordered:
            self._full.put([sequence])

    def cancel(self, streams: Array) -> None:
        """Deal the open slots of a verified dead actor again; their rows count as inserted and dropped."""
        actor = int(streams[0]) // self._plan.block
        for place in np.flatnonzero((self._word % 4 == OPEN) & (self._owner == actor)):
            self._committed[actor] += 1
            self._learner[DROPPED] += 1
            sequence = int(self._word[place]) // 4
            self._word[place] = sequence * 4 + FREE
            self._deal([sequence])

    # ----------------------------------------------------------------------------------------------- the learner's side

    def sample(self, n: int) -> Batch | None:
        """The next batch of ``n`` windows, or None while one of its blocks is not complete."""
        if n != self._plan.batch:
            raise ValueError(f"expected the batch of {self._plan.batch} windows that this queue was planned for, got {n}")
        sequences = self._ordered() if self._plan.ordered else self._completed()
        if sequences is None:
            return None
        places = [s % self._plan.blocks for s in sequences]
        for sequence, place in zip(sequences, places, strict=True):
            self._word[place] = sequence * 4 + READ
        self._learner[SAMPLED] += len(places)
        block = self._plan.block
        keys = np.empty((n, 2), np.int64)
        keys[:, 0] = np.concatenate([np.arange(p * block, (p + 1) * block) for p in places])
        keys[:, 1] = np.repeat(sequences, block)
        fields, weight = self._batch(places)
        return Batch(data=trajectory(fields), keys=keys, weight=weight, targets={})

    def _ordered(self) -> Sequence[int] | None:
        start = int(self._learner[NEXT])
        sequences = range(start, start + self._plan.per_batch)
        first = start % self._plan.blocks
        words = self._word[first : first + self._plan.per_batch]
        if not all(int(w) == s * 4 + FULL for w, s in zip(words, sequences, strict=True)):
            return None
        self._learner[NEXT] = start + self._plan.per_batch
        return sequences

    def _completed(self) -> Sequence[int] | None:
        while len(self._ready) < self._plan.per_batch:
            sequence = self._full.get()
            if sequence is None:
                return None
            self._ready.append(sequence)
        sequences, self._ready = self._ready, []
        return sequences

    def _batch(self, places: Sequence[int]) -> tuple[dict[str, Tree], torch.Tensor]:
        """The fields as tensors: a view where the places are one group, else gathered into a buffer made once."""
        together = self._plan.ordered or self._plan.per_batch == 1
        which = places[0] * self._plan.block // self._plan.width if together else -1
        if which not in self._batches:
            row = self._groups[which] if together else tree.zeros(self._plan.gathered)
            self._batches[which] = ({k: tree.torch_views(v) for k, v in row.items()}, torch.ones(self._plan.batch))
        fields, weight = self._batches[which]
        if not together:
            for i, place in enumerate(places):
                into = columns(fields, i * self._plan.block, (i + 1) * self._plan.block)
                tree.map(lambda t, s: np.copyto(t.numpy(), s), into, self._blocks[place])
        return fields, weight

    def finish(self, keys: Array, priority: Array | None = None) -> None:
        """The learner is done with these items: their places are dealt again."""
        sequences = [int(s) for s in keys[:: self._plan.block, 1]]
        for sequence in sequences:
            self._word[sequence % self._plan.blocks] = (sequence + self._plan.blocks) * 4 + FREE
        self._deal([s + self._plan.blocks for s in sequences])

    # ------------------------------------------------------------------------------------------------------ for anybody

    def stats(self) -> dict[str, float]:
        """Rows: inserted = sampled + dropped + held (exact while nobody writes)."""
        rows = self._plan.unroll * self._plan.block
        inserted, (sampled, dropped) = int(self._committed.sum()), (int(x) for x in self._learner[:NEXT])
        return {
            "inserted": inserted * rows,
            "sampled": sampled * rows,
            "dropped": dropped * rows,
            "held": int((self._word % 4 == FULL).sum()) * rows,
            "open": int((self._word % 4 == OPEN).sum()) * rows,
            "capacity": self._plan.blocks * rows,
        }

    def state(self) -> Tree:
        """Taken by the learner while nobody writes: its last batch counts as finished, complete blocks come along."""
        while (sequence := self._full.get()) is not None:
            self._ready.append(sequence)
        if (self._word % 4 == OPEN).any():
            raise RuntimeError(
                f"state: expected no open block, got those of actors {self._owner[self._word % 4 == OPEN].tolist()}"
            )
        read = self._word % 4 == READ
        word = np.where(read, (self._word // 4 + self._plan.blocks) * 4 + FREE, self._word)
        return {
            "word": word,
            "committed": self._committed,
            "learner": self._learner,
            "ready": np.array(self._ready, np.int64),
            "blocks": {str(place): self._blocks[place] for place in np.flatnonzero(word % 4 == FULL)},
        }

    def load(self, state: Tree) -> None:
        """Instead of ``fill``, into a queue of the same plan that nobody uses yet."""
        for name, array in (("word", self._word), ("committed", self._committed), ("learner", self._learner)):
            if array.shape != state[name].shape:
                raise ValueError(f"queue {name}: expected shape {array.shape}, got a state of {state[name].shape}")
            array[:] = state[name]
        for place, fields in state["blocks"].items():
            tree.copy(self._blocks[int(place)], fields)
        self._deal(sorted(int(w) // 4 for w in self._word[self._word % 4 == FREE]))
        if len(state["ready"]):
            self._full.put(state["ready"].tolist())
