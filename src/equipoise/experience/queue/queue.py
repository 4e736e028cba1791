"""The queue of on-policy learning: windows in reservation order, with a bound on how stale they can
be.

The policies that act in one env write side by side: a block has a slot for each of them, and a
batch has a batch for each of them, by name.

The law. Memory is ``groups`` batches side by side, a block (one actor's envs) is the unit that is
reserved, and block ``s`` of the run lies at place ``s % blocks``. A block is reserved when its
unroll starts, batches are sampled in the order of reservation, and a place is dealt again only when
``finish`` frees it, after the learner published. So the unroll in group ``g`` started no earlier
than version ``g - max_lag``, and is used at version ``g``: the lag is never above ``max_lag``,
whatever the speed of any actor, and a batch is one contiguous view of the memory that actors wrote
into.

Without a bound (``max_lag=None``) there are two blocks an actor, batches are made in the order of
completion, and a batch of several blocks costs one copy.

There is no lock, and an actor may be killed at any instruction. ``tokens.py`` states which process
may write which word when, and the fate of the block that a killed actor had taken. This file adds:

- A commit is one store, OPEN to FULL: before it the block is dropped, after it the block is
  sampled. Sequences only grow, so how many blocks were committed follows from the words, and no
  counter can disagree with them.
- Without a bound the sequence is announced after that store. The announcement only gives the order
  of completion: the learner also looks for blocks that are FULL and unannounced, and ignores a
  block that it has already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import perf_counter

import numpy as np
import torch

from equipoise import schema, tree
from equipoise.experience.layout import RowSpec, columns, trajectory_specs
from equipoise.experience.queue.tokens import FREE, FULL, MOST_BLOCKS, OPEN, READ, Channel, Tokens
from equipoise.histograms import EDGES, tally
from equipoise.memory import Memory
from equipoise.publishing import publish
from equipoise.tree import ArraySpec
from equipoise.types import Array, Batch, Slot, Trajectory, Tree


class Plan:
    """The sizes of a queue, and where block ``s`` goes.

    ``rows`` by policy. ``envs``: all envs that write here; ``block``: the envs of one actor;
    ``batch``: the envs of one learner step. ``span``: the streams of an actor are numbered from a
    multiple of it on; it is not ``block`` if an env has several agents. ``learners``: how many have
    a queue; of so many actors that follow each other one writes here.
    """

    def __init__(
        self,
        *,
        rows: Mapping[str, RowSpec],
        unroll: int,
        batch: int,
        block: int,
        envs: int,
        max_lag: int | None,
        span: int | None = None,
        learners: int = 1,
    ) -> None:
        if batch % block:
            raise ValueError(
                f"expected a batch that is a multiple of envs_per_actor={block}, got {batch}: it "
                "could deadlock"
            )
        self.unroll = unroll
        self.batch = batch
        self.block = block
        self.max_lag = max_lag
        # prompts that the learner issues for each block; 0: it issues none
        self.issues = max(row.issues for row in rows.values())
        self.span = span or block
        self.rows = dict(rows)
        self.first, *_ = self.rows  # the policy whose keys stand for all policies
        self.columns = sum(row.columns for row in self.rows.values())  # streams of one env
        self.actors = envs // block
        # from an actor's streams to the streams of the next actor that writes here
        self._apart = self.span * learners
        self.per_batch = batch // block  # blocks
        self.ordered = max_lag is not None
        self.blocks = (
            self.per_batch * (max_lag + 1)
            if max_lag is not None
            else 2 * max(self.actors, self.per_batch)
        )
        if self.blocks > MOST_BLOCKS:
            raise ValueError(
                f"expected at most {MOST_BLOCKS} blocks, got {self.blocks}; use more "
                "envs_per_actor or a smaller max_lag"
            )
        self.width = batch if self.ordered else block  # envs of one contiguous group
        group = self.fields(self.width)
        # the copy for a batch of blocks that do not lie together
        self.gathered = self.fields(batch)
        self.specs: dict[str, Tree] = {
            "groups": {str(g): group for g in range(self.blocks * block // self.width)},
            "tokens": Tokens.specs(self.blocks, self.actors),
            "sampled": ArraySpec((1,), "int64"),  # blocks, written by the learner
            "dropped": ArraySpec((1,), "int64"),  # blocks, written by the driver
            # blocks that were written twice; written by their actor
            "restarted": ArraySpec((self.actors,), "int64"),
            # ordered: the first block of the next batch, written by the learner
            "next": ArraySpec((1,), "int64"),
            # the mean time of a block's env steps; written by its actor
            "stepped": ArraySpec((self.blocks,), "float64"),
            # blocks by their age once learned from; by the learner
            "loop": ArraySpec((len(EDGES["loop"]) + 1,), "float64"),
            # actors that may reserve, blocks ahead; 0: all. Written by the driver
            "limits": ArraySpec((2,), "int64"),
        }
        if self.issues:  # by place: 1 + the number of each prompt; 0: none is issued
            self.specs["issued"] = ArraySpec((self.blocks, self.issues), "int64")
        self.nbytes = tree.nbytes(self.specs)
        self.rows_nbytes = tree.nbytes(self.specs["groups"])
        # of one stream, about
        self.row_nbytes = tree.nbytes(group) / (unroll * self.width * self.columns)
        # Lockstep deals by a fixed rule, so that a run does not depend on the order of arrival.
        self.channels = self.actors if max_lag == 0 else 1

    def actor(self, streams: Array) -> int:
        """The actor of these streams, counted among the actors that write here."""
        return int(streams[0]) // self._apart

    def fields(self, envs: int) -> dict[str, dict[str, Tree]]:
        """The specs of the rows of ``envs`` envs, by policy."""
        return {
            name: trajectory_specs(row, self.unroll, envs * row.columns)
            for name, row in self.rows.items()
        }


class Queue:
    """The rows of all policies, in memory that several processes may map. One learner samples; each
    actor owns its envs.
    """

    def __init__(
        self,
        plan: Plan,
        memory: Memory,
        *,
        free: Sequence[Channel],
        full: Channel,
        rows: torch.Tensor | None = None,
    ) -> None:
        """``free``: ``plan.channels`` channels of tokens to actors; ``full``: completed blocks,
        used without a bound.

        ``rows`` [``plan.rows_nbytes``] uint8: memory of a device for the rows, where all that read
        and write them run in this process; None: they lie in ``memory``.
        """
        self._plan = plan
        self._memory = memory
        self._free = free
        self._full = full
        self._rows = rows
        self._open_views()

    def _open_views(self) -> None:
        views = tree.views(self._plan.specs, self._memory.buffer)
        self._tokens = Tokens(views["tokens"], self._free)
        self._word = self._tokens.word
        self._sampled, self._dropped, self._next = views["sampled"], views["dropped"], views["next"]
        self._restarted = views["restarted"]
        self._stepped = views["stepped"]
        self._loop = views["loop"]
        self._limits = views["limits"]
        self._issued: Array | None = views.get("issued")
        # when a block was reserved in this process, by its place
        self._begun: dict[int, float] = {}
        per_group = self._plan.width // self._plan.block
        groups = (
            views["groups"]
            if self._rows is None
            else tree.tensor_views(self._plan.specs["groups"], self._rows)
        )
        self._groups = list(groups.values())
        self._blocks = [
            self._columns(self._groups[b // per_group], b % per_group)
            for b in range(self._plan.blocks)
        ]
        self._slots: dict[int, dict[str, Slot]] = {}
        self._ready: list[int] = []  # unordered: completed and not yet sampled
        self._batches: dict[int, dict[str, dict[str, Tree]]] = {}
        batch = self._plan.batch
        device = None if self._rows is None else self._rows.device
        self._weight = {
            name: torch.ones(batch * row.columns, device=device)
            for name, row in self._plan.rows.items()
        }

    def __getstate__(self) -> tuple[object, ...]:
        if self._rows is not None:
            raise TypeError(
                "queue: expected rows in shared memory to travel to another process, got rows on a "
                "device"
            )
        return self._plan, self._memory, self._free, self._full

    def __setstate__(self, state: tuple[Plan, Memory, Sequence[Channel], Channel]) -> None:
        self._plan, self._memory, self._free, self._full = state
        self._rows = None
        self._open_views()

    def fill(self) -> None:
        """Deal every place once; the owner of the memory calls this before the
        first ``reserve``.
        """
        self._tokens.free(range(self._plan.blocks))

    # ----------------------------------------------------------------------------- the actor's side

    def reserve(self, streams: Array) -> Mapping[str, Slot] | None:
        """A slot for each policy of one actor (any of its streams identify it), or None while the
        learner holds all places.
        """
        actor = self._plan.actor(streams)
        if self._limits[0] and not self._allowed(actor):
            return None
        sequence = self._tokens.take(actor)
        return None if sequence is None else self._slot_of(sequence)

    def _slot_of(self, sequence: int) -> Mapping[str, Slot]:
        """The slots of an open block of this process."""
        place = sequence % self._plan.blocks
        if (slots := self._slots.get(place)) is None:
            keys = np.empty((self._plan.block, 2), np.int64)
            keys[:, 0] = np.arange(place * self._plan.block, (place + 1) * self._plan.block)
            slots = self._slots[place] = {
                name: Slot(keys=keys, data=data) for name, data in self.block(place).items()
            }
        slots[self._plan.first].keys[:, 1] = sequence
        self._begun[place] = perf_counter()
        return slots

    def _allowed(self, actor: int) -> bool:
        """May it reserve within the limits of the moment?

        The blocks ahead are counted from the oldest unfinished block, so the actor that reserves it
        is never refused, and the ring cannot stand still. Actors look one after the other and take
        afterwards: the limit may be passed by a block an actor, while the tokens keep the law
        whatever the limit is.
        """
        actors, ahead = self._limits.tolist()
        if actor >= actors:
            return False
        if not ahead:
            return True
        sequences, status = np.divmod(self._word, 4)
        free = sequences[status == FREE]
        return bool(len(free)) and int(free.min()) < int(sequences.min()) + ahead

    def commit(self, slots: Mapping[str, Slot]) -> None:
        """Hand in complete slots: [T, B] rows, obs[T] included."""
        sequence = int(slots[self._plan.first].keys[0, 1])
        place = sequence % self._plan.blocks
        now = perf_counter()
        self._stepped[place] = (self._begun.get(place, now) + now) / 2
        publish(self._word, place, sequence * 4 + FULL)
        if not self._plan.ordered:
            self._full.put([sequence])

    def hand_over(self, slots: Mapping[str, Slot], streams: Array) -> None:
        """Hand an open block to the actor of these streams, with the rows as they are: the caller
        must not touch them any more. The block keeps its place in the order, and so the bound on
        its age.
        """
        sequence = int(slots[self._plan.first].keys[0, 1])
        self._tokens.hand_over(sequence % self._plan.blocks, self._plan.actor(streams))

    def handed(self, streams: Array, known: Collection[int]) -> list[Mapping[str, Slot]]:
        """The slots of the open blocks that were handed to the actor of these streams, the oldest
        first. ``known``: the sequences of the blocks that it has already.
        """
        held = self._tokens.held(self._plan.actor(streams))
        return [self._slot_of(sequence) for sequence in held if sequence not in known]

    def restart(self, slots: Mapping[str, Slot]) -> None:
        """Count the written rows as inserted and dropped; the actor writes the slots again."""
        sequence = int(slots[self._plan.first].keys[0, 1])
        self._restarted[self._tokens.owner[sequence % self._plan.blocks]] += 1

    def issued(self, sequence: int) -> Array:
        """The numbers [``plan.issues``] of the prompts that the learner issued for an open block;
        -1 if it issued none, as for the blocks that a run begins with.
        """
        assert self._issued is not None, "a queue without issued prompts"
        numbers: Array = self._issued[sequence % self._plan.blocks] - 1
        return numbers

    # ---------------------------------------------------------------------------- the driver's side

    def limit(self, actors: int, max_lag: int | None) -> None:
        """Let only ``actors`` actors begin unrolls, and let rows grow no older than ``max_lag``,
        which is at most the plan's. The other actors finish what they have begun, and wait.
        """
        if not 1 <= actors <= self._plan.actors:
            raise ValueError(f"actors: expected 1 to {self._plan.actors}, got {actors}")
        self._limits[1] = (
            0 if max_lag is None or not self._plan.ordered else self._plan.per_batch * (max_lag + 1)
        )
        publish(self._limits, 0, actors)

    def cancel(self, streams: Array) -> None:
        """Deal the open slots of a verified dead actor again; their rows count as inserted and
        dropped.

        Call it before the successor starts, in one thread of the driver; then ``reconcile`` until
        it returns True.
        """
        self._dropped[0] += self._tokens.cancel(self._plan.actor(streams))
        self.reconcile()

    def reconcile(self) -> bool:
        """Deal again the blocks that dying actors lost -> False: not certain yet, call again (in
        the thread that cancels).
        """
        return self._tokens.reconcile()

    def orphaned(self) -> None:
        """The learner is verified dead; its successor begins with ``take_over``. Call ``reconcile``
        until it returns True.
        """
        self._tokens.orphaned()

    # --------------------------------------------------------------------------- the learner's side

    def take_over(self, version: int, *, freed: bool) -> Array | None:
        """Go on in the place of a learner that died; the next version is ``version`` + 1.

        ``freed``: had it freed the batch of ``version``? Then what it had taken is learned from
        again -> None. Else -> the keys of what is left of that batch, which is to be finished; None
        if nothing is.
        """
        read = np.flatnonzero(self._word % 4 == READ)
        if freed:
            publish(self._word, read, self._word[read] + FULL - READ)
            read = read[:0]
        sequences, status = np.divmod(self._word, 4)
        self._sampled[0] = (sequences // self._plan.blocks).sum() + (status == READ).sum()
        if self._plan.ordered:
            self._next[0] = self._sampled[0]
        self._ready = []
        return self._keys(np.sort(sequences[read]).tolist()) if len(read) else None

    def take(self) -> Array | None:
        """The keys [n, 2] of the next batch, one an env; None while one of its blocks is not
        complete.
        """
        sequences = self._ordered() if self._plan.ordered else self._completed()
        if sequences is None:
            return None
        for sequence in sequences:
            publish(self._word, sequence % self._plan.blocks, sequence * 4 + READ)
        self._sampled[0] += len(sequences)
        self._next[0] += len(sequences)
        return self._keys(sequences)

    def coming(self) -> Array | None:
        """The keys that ``take`` gives next, once their blocks are complete; None if blocks have no
        order.
        """
        sequences = self._ordered() if self._plan.ordered else None
        return None if sequences is None else self._keys(sequences)

    def _keys(self, sequences: Sequence[int]) -> Array:
        block = self._plan.block
        keys = np.empty((len(sequences) * block, 2), np.int64)
        keys[:, 0] = np.concatenate(
            [
                np.arange(p * block, (p + 1) * block)
                for p in (s % self._plan.blocks for s in sequences)
            ]
        )
        keys[:, 1] = np.repeat(sequences, block)
        return keys

    def batches(self, keys: Array) -> dict[str, Batch]:
        """The taken batches by policy: views if the blocks lie together, else copies that the next
        call overwrites.
        """
        fields = self._fields(self.places(keys))
        return {
            name: Batch(
                data=Trajectory(**fields[name]),
                keys=keys.repeat(row.columns, 0),
                weight=self._weight[name],
                targets={},
            )
            for name, row in self._plan.rows.items()
        }

    def places(self, keys: Array) -> list[int]:
        """The places of the blocks that were taken."""
        return [int(key) // self._plan.block for key in keys[:: self._plan.block, 0]]

    def block(self, place: int) -> dict[str, Trajectory]:
        """The rows of a block by policy, as numpy views: the reader's until ``finish``."""
        return {name: Trajectory(**fields) for name, fields in self._blocks[place].items()}

    def _ordered(self) -> Sequence[int] | None:
        start = int(self._next[0])
        sequences = range(start, start + self._plan.per_batch)
        first = start % self._plan.blocks
        words = self._word[first : first + self._plan.per_batch]
        return (
            sequences
            if all(int(w) == s * 4 + FULL for w, s in zip(words, sequences, strict=True))
            else None
        )

    def _completed(self) -> Sequence[int] | None:
        self._collect()
        if len(self._ready) < self._plan.per_batch:
            return None
        sequences = self._ready[: self._plan.per_batch]
        self._ready = self._ready[self._plan.per_batch :]
        return sequences

    def _collect(self) -> None:
        """Collect all complete blocks into ``_ready``: first the announced blocks, then the
        unannounced ones.

        The words are looked at before the announcements are: a block that is FULL then and
        unannounced afterwards is an actor's latest block, unless it was killed there: then its
        successor's may come first. The other way round two blocks of an actor could be missed by
        one look and met by the other, in any order.
        """
        full = (self._word[self._word % 4 == FULL] // 4).tolist()
        order = dict.fromkeys([*self._ready, *self._full.drain()])
        # not sampled before its announcement
        known = [s for s in order if self._word[s % self._plan.blocks] == s * 4 + FULL]
        self._ready = [*known, *(s for s in full if s not in order)]

    def _fields(self, places: Sequence[int]) -> dict[str, dict[str, Tree]]:
        """The fields as tensors: a view if the places are one group, else gathered into a buffer
        made once.
        """
        together = self._plan.ordered or self._plan.per_batch == 1
        which = places[0] * self._plan.block // self._plan.width if together else -1
        if which not in self._batches:
            fresh = tree.torch_views(
                self._groups[which] if together else tree.zeros(self._plan.gathered)
            )
            self._batches[which] = tree.to(fresh, self._weight[self._plan.first].device)
        fields = self._batches[which]
        if not together:
            for i, place in enumerate(places):
                tree.put(self._columns(fields, i), self._blocks[place])
        return fields

    def _columns(self, fields: Mapping[str, Tree], block: int) -> dict[str, dict[str, Tree]]:
        """The columns of block number ``block`` among several that lie side by side, by policy."""
        first, last = block * self._plan.block, (block + 1) * self._plan.block
        rows = self._plan.rows.items()
        return {
            name: columns(fields[name], first * row.columns, last * row.columns)
            for name, row in rows
        }

    def issue(self, keys: Array, prompts: Array) -> None:
        """Issue prompts for the blocks that are dealt when taken blocks are finished; a second call
        with the same arguments changes nothing.

        ``keys``: of the taken blocks, or of those of a batch that are not finished. ``prompts``
        [``plan.per_batch``, ``plan.issues``]: numbers, by the block's place in the batch.
        """
        assert self._issued is not None, "a queue without issued prompts"
        sequences = keys[:: self._plan.block, 1]
        rows = sequences % self._plan.per_batch if self._plan.ordered else np.arange(len(sequences))
        self._issued[sequences % self._plan.blocks] = prompts[rows] + 1

    def finish(self, keys: Array) -> None:
        """Deal the places of taken blocks again: the learner is done with them."""
        tally(self._loop, EDGES["loop"], perf_counter() - self._stepped[self.places(keys)])
        self._tokens.free([int(s) + self._plan.blocks for s in keys[:: self._plan.block, 1]])

    # ---------------------------------------------------------------------------------- for anybody

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def counters(self) -> list[Array]:
        """The arrays that ``stats`` reads, as views: a queue of the same plan with a copy of them
        has the same numbers.
        """
        return [self._word, self._sampled, self._dropped, self._restarted, self._loop]

    @property
    def loop(self) -> Array:
        """Blocks by the seconds from their env steps, in the mean, to the end of what was learned
        from them: [bins] float64.
        """
        return self._loop

    def stats(self) -> dict[str, float]:
        """Count rows: inserted = sampled + dropped + held (exact while no process writes)."""
        rows = self._plan.unroll * self._plan.block * self._plan.columns
        sequence, status = np.divmod(self._word, 4)
        # a place is committed once a sequence
        committed = int((sequence // self._plan.blocks + (status >= FULL)).sum())
        sampled, dropped = int(self._sampled[0]), int(self._dropped[0] + self._restarted.sum())
        return {
            "inserted": (committed + dropped) * rows,
            "sampled": sampled * rows,
            "dropped": dropped * rows,
            "held": int((status == FULL).sum()) * rows,
            "open": int((status == OPEN).sum()) * rows,
            "capacity": self._plan.blocks * rows,
        }

    def state(self) -> Tree:
        """Return the state, taken by the learner while no actor writes: its last batch counts as
        finished.
        """
        if (opened := self._word % 4 == OPEN).any():
            raise RuntimeError(f"state: expected no open block, got {int(opened.sum())}")
        if not self._plan.ordered:
            self._collect()
        read = self._word % 4 == READ
        word = np.where(read, (self._word // 4 + self._plan.blocks) * 4 + FREE, self._word)
        return self._saved() | {
            "word": word,
            "ready": np.array(self._ready, np.int64),
            "blocks": {
                str(place): tree.on_host(self._blocks[place])
                for place in np.flatnonzero(word % 4 == FULL)
            },
        }

    def _saved(self) -> dict[str, Array]:
        return {
            "word": self._word,
            "sampled": self._sampled,
            "dropped": self._dropped,
            "restarted": self._restarted,
            "next": self._next,
        } | ({} if self._issued is None else {"issued": self._issued})

    def load(self, state: Tree) -> None:
        """Load a state, instead of ``fill``, into an unused queue of the same plan."""
        arrays = self._saved()
        counts = {
            name: schema.Array(array.shape, str(array.dtype), 0, schema.MOST)
            for name, array in arrays.items()
        }
        blocks = {
            f"{place}?": schema.like(tree.on_host(fields))
            for place, fields in enumerate(self._blocks)
        }
        schema.check(
            state,
            counts | {"ready": schema.Array((None,), "int64", 0, schema.MOST), "blocks": blocks},
            "queue",
        )
        for name, array in arrays.items():
            array[:] = state[name]
        self._stepped[:] = perf_counter()
        for place, fields in state["blocks"].items():
            tree.put(self._blocks[int(place)], fields)
        self._tokens.free(sorted((self._word[self._word % 4 == FREE] // 4).tolist()))
        if len(state["ready"]):
            self._full.put(state["ready"].tolist())
