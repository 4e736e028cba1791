"""The learning half of the ring: experience in, versions out."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import Tensor

from equipoise import schema, tree
from equipoise.clock import Clock
from equipoise.files import numbered
from equipoise.learners.curriculum import Curriculum
from equipoise.learners.lags import Lags
from equipoise.learners.learner import PARTS as STEP
from equipoise.learners.learner import Learner
from equipoise.learners.meeting import Meeting, Solo
from equipoise.learners.opponents import OpponentPool
from equipoise.learners.pool import LearnerLost
from equipoise.learners.stale import mask_stale
from equipoise.learners.sums import SCHEMA, Record, Sums
from equipoise.types import (
    Array,
    Batch,
    Experience,
    LateSave,
    SaveEnd,
    StateReader,
    StateWriter,
    Tick,
    Tree,
    WeightStore,
)

LEADER = "learner"  # the file of the state that all learners have alike, and the leader's own

# "insert": rows into a replay, "priorities": of the items of a batch.
PARTS = ("insert", "sample", *STEP, "publish", "record", "priorities")
PARTIAL_S = 2.0  # seconds between partial records


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLearner:
    """One policy's way through the learner."""

    learner: Learner
    experience: Experience
    batch: int  # items of a step
    weights: WeightStore
    publish_every: int  # versions
    host: WeightStore | None = None  # for workers that do not act, if ``weights`` lie on a device
    collects: bool = False  # are the rows of a batch new, so that the terms are shown them?
    max_lag: int | None = None  # rows that are older do not count; None: the queue sees to it
    curriculum: Curriculum | None = None  # None: generators take all prompts in turn


class Inbox(Protocol):
    """A queue, as far as the learner itself needs it."""

    def state(self) -> Tree: ...
    def take_over(self, version: int, *, freed: bool) -> Array | None: ...
    def issue(self, keys: Array, prompts: Array) -> None: ...


def _nothing() -> None: ...


def _cloned(x: object) -> object:
    return x.clone() if isinstance(x, Tensor) else x


def never(version: int) -> bool:
    """A gate that never withholds a batch."""
    return False


class LearnerWorker:
    """Each tick is one step of every policy's learner, until ``updates`` are done.

    ``record`` is called every ``record_every`` updates and at the end, before the batch is
    released: in lockstep all actors wait then, so a record is the same in every runtime. If records
    are far apart in time, it is also called in between, with ``partial`` set.

    ``gate`` returns True to withhold a batch. Then no slot becomes free, every actor ends up
    BLOCKED between two unrolls, and the run can be saved.

    Several learners that share the batches (``meeting.py``) have a worker each, with their own
    experience. Their weights are the same to the bit. The first one of each machine publishes
    there; the first of all, the leader, records for all.
    """

    ready = Tick.BLOCKED

    def __init__(
        self,
        lines: Mapping[str, PolicyLearner],
        *,
        queue: Inbox,
        past: Mapping[str, OpponentPool] | None = None,
        updates: int,
        record_every: int,
        record: Callable[[dict[str, object]], None],
        gate: Callable[[int], bool] = never,
        meeting: Meeting | None = None,
        replaceable: bool = False,
        publishes: bool = True,
        clock: Clock | None = None,
        lags: Lags | None = None,
    ) -> None:
        """``lines``, ``past``: policies that learn, and that do not; ``queue`` is saved with the
        learner; ``meeting``: with the other learners, None if there is only one; ``replaceable``: a
        lost learner is replaced, and the other learners go back with it; ``publishes``: is this the
        first learner of its machine?
        """
        self.lines, self._queue, self._clock = dict(lines), queue, clock or Clock(PARTS)
        self._meeting: Meeting = Solo() if meeting is None else meeting
        self._leads = self._meeting.pool.rank == 0
        self._replaceable, self._publishes = replaceable, publishes
        self._lags = lags or Lags()
        self._one, *_ = self.lines.values()  # any of them: their versions rise together
        self.past = dict(past or {})
        self._updates, self._record_every = updates, record_every
        self._record, self._gate = record, gate
        self._batches: dict[str, Batch] = {}  # the batches of the next step that there are
        self._unfinished: dict[str, Array] = {}  # keys of the batches learned last
        self._sums = Sums()
        # with several learners, during a step: the state before it, and the work that follows it
        self._before: Tree = None
        self._commit: Callable[[], object] = _nothing
        self._on_host = -1  # the version
        self._shares = self._meeting.pool.size  # of the learners that were saved, once loaded
        self._recorded_at = time.monotonic()

    @property
    def version(self) -> int:
        return self._one.learner.version

    @property
    def broken(self) -> bool:
        """Is another learner lost? Then the weights may be of no version until the next tick."""
        return self._meeting.broken

    @property
    def saved(self) -> int:
        """The number of learners that were saved in the checkpoint that it goes on from."""
        return self._shares

    @property
    def done(self) -> bool:
        return self.version >= self._updates and not self._unfinished

    def params(self) -> dict[str, Tensor]:
        """Return the parameters of every policy, by policy name where there are several."""
        learned = {name: line.learner.params() for name, line in self.lines.items()}
        return tree.joined(learned | {name: past.params() for name, past in self.past.items()})

    def begin(self) -> None:
        """Before the first tick, unless a learner died before: announce the first version.

        It is also published on a device. Without a version there, actors would read the host's.
        """
        self._meeting.begin(self.version)
        self._lags.published(self.version)
        for line in self.lines.values():
            if line.host is not None and self._leads:
                line.weights.publish(self.version, line.learner.params())

    def tick(self) -> Tick:
        if self._meeting.broken:
            self._meet_again()
        if self._unfinished:
            return self._finish(Tick.BLOCKED)
        if self.done:
            return Tick.STARVED
        self._clock.begin()
        for name, line in self.lines.items():
            if (
                name not in self._batches
                and (batch := line.experience.sample(line.batch)) is not None
            ):
                self._batches[name] = batch
                self._clock.lap("sample")
        if len(self._batches) < len(self.lines):
            return Tick.STARVED
        if not self._meeting.step(self.version + 1, self._learn):
            return Tick.STARVED
        return self._finish(Tick.WORKED)

    def _learn(self) -> None:
        self._clock.begin("record")
        metrics, priority, sums, pool = {}, {}, self._sums.copy(), self._meeting.pool
        outcomes: dict[str, tuple[Array, Array]] = {}
        if self._replaceable:
            self._before, self._commit = tree.map(_cloned, self._replicated()), _nothing
        for name, line in self.lines.items():
            version, data = line.learner.version, self._batches[name].data
            acted = (
                data.version[0] if line.max_lag is None else mask_stale(data, version, line.max_lag)
            )
            self._lags.used(version, *sums.note_lag(version, acted))
            self._clock.lap("record", "copy")
            if line.collects:
                line.learner.collect(data)
            out = line.learner.step(self._batches[name])
            line.learner.ahead(line.experience.coming)
            metrics[name], priority[name] = out.metrics, out.priority
            if line.curriculum is not None:
                outcomes[name] = found = line.curriculum.outcomes(data, pool)
                metrics[name] = {**metrics[name], **line.curriculum.metrics(*found, pool)}
        sums.add(tree.joined(metrics))
        version, last = self.version, self.version >= self._updates
        due = version % self._record_every == 0 or last
        if due:
            self._settle()
        record = sums.record(pool if pool.size > 1 else None) if due else None
        self._clock.lap("record")
        self._commit = partial(self._made, sums, record, priority, outcomes)
        self._meeting.agree(version)
        self._clock.begin("publish")
        self._commit()

    def _made(
        self,
        sums: Sums,
        record: Record | None,
        priority: Mapping[str, Tensor | None],
        outcomes: Mapping[str, tuple[Array, Array]],
    ) -> None:
        """After all learners made the version: publish, record, and finish the batches."""
        self._before, version = None, self.version
        batches, self._batches = self._batches, {}
        self._sums = sums if record is None else Sums()
        self._publish()
        for past in self.past.values():
            past.tick(version, self.lines[past.frozen.of].learner.params())
        self._clock.lap("publish", "record")
        if record is not None:
            self._publish_to_host()
            self._report(record)
        elif time.monotonic() - self._recorded_at >= PARTIAL_S:
            self._settle()
            self._report(sums.record(None), whole=False)
        self._clock.lap("record", "priorities")
        for name, line in self.lines.items():
            if line.curriculum is not None:
                line.curriculum.learn(*outcomes[name])
                self._issue(batches[name].keys, line.curriculum)
            line.experience.learned(batches[name].keys, priority[name])
        self._clock.lap("priorities")
        self._unfinished = {name: batch.keys for name, batch in batches.items()}

    def _issue(self, keys: Array, curriculum: Curriculum) -> None:
        """Issue the prompts of the blocks that come after a batch, which no worker reads before
        the batch is finished.
        """
        self._queue.issue(keys, curriculum.issued(self._meeting.pool.rank))

    def _settle(self) -> None:
        """Wait for the device; NonFiniteUpdate if a number since the last call is not finite."""
        if all(line.learner.looks for line in self.lines.values()):
            return  # each step's were looked at
        self._clock.lap("record", "look")
        for line in self.lines.values():
            line.learner.settle()
        self._clock.lap("look", "record")

    def _publish(self) -> None:
        last = self.version >= self._updates
        due = [
            line for line in self.lines.values() if self.version % line.publish_every == 0 or last
        ]
        for line in due:
            if self._publishes:
                line.weights.publish(self.version, line.learner.params())
            else:
                line.learner.parameters.join_gather()
        if due:
            self._lags.published(self.version)

    def _report(self, record: Record, *, whole: bool = True) -> None:
        """Record numbers, if this is the leader. Partial ones (not ``whole``) are its own alone."""
        self._recorded_at = time.monotonic()
        if not self._leads:
            return
        for name, past in self.past.items():
            record["metrics"][f"{name}/version"] = float(past.version)
        self._record({**record, "version": self.version, "partial": not whole})

    def _meet_again(self) -> None:
        """Go on from the version that all learners have made, after one was lost."""
        while self._meeting.broken:
            with contextlib.suppress(LearnerLost):  # yet another one
                version = self._meeting.rejoin()
                if (
                    self._before is not None
                    and version == self.version
                    and self._commit is not _nothing
                ):
                    self._commit()
                elif self._before is not None:
                    self._load_learners(self._before)
                    self._before = None
                state = self._meeting.hand_over(self._replicated)
                if state is not None:
                    self._take_over(state)

    def _take_over(self, state: Tree) -> None:
        """Go on in the place of a learner that died: with the others' state and its own queue."""
        self._load_learners(state)
        if self._publishes and self._one.weights.version < self.version:
            self._publish()
        keys = self._queue.take_over(self.version, freed=self._meeting.last_freed >= self.version)
        if keys is None:
            self._meeting.freed(self.version)  # even if the one before died before it reported that
        else:
            for name, line in self.lines.items():
                if line.curriculum is not None:
                    self._issue(keys, line.curriculum)
                line.experience.adopt(keys)
                self._unfinished[name] = keys

    def _load_learners(self, state: Tree) -> None:
        for name, line in self.lines.items():
            line.learner.load(state["learners"][name])
            if line.curriculum is not None:
                line.curriculum.load(state["curricula"][name])

    def _finish(self, withheld: Tick) -> Tick:
        """Release the batches, after publish: no unroll is born stale."""
        if self._meeting.held(self.version, self._gate):
            self._publish_to_host()
            return withheld
        for name, line in self.lines.items():
            line.experience.finish(self._unfinished[name])
        self._unfinished = {}
        self._meeting.freed(self.version)
        return Tick.WORKED

    def _publish_to_host(self) -> None:
        if self._on_host == self.version or not self._leads:
            return
        self._on_host = self.version
        for line in self.lines.values():
            if line.host is not None:
                line.host.publish(self.version, line.learner.params())

    def save(self, to: StateWriter) -> LateSave | None:
        """Put the state of the learner's process, while the gate withholds the batches.

        The leader puts what all learners have alike, and each one its own share. All learners call
        this together, so that parts of a state can be gathered.
        """
        for line in self.lines.values():
            line.learner.settle()
            line.learner.check()
        replicated = self._replicated()
        mine = replicated | {"live": json.dumps(self._live())} if self._leads else {}
        to.put(self._sums.state() | mine)
        to.put(self._queue.state(), numbered("experience", self._meeting.pool.rank))
        if self._leads:
            to.put_weights(self.params())
        else:
            for line in self.lines.values():
                line.learner.parameters.join_gather()
        late = [
            one for line in self.lines.values() if (one := line.experience.save(to)) is not None
        ]
        return _LateSaves(late) if late else None

    def close(self) -> None:
        for line in self.lines.values():
            line.experience.close()

    def _replicated(self) -> dict[str, Tree]:
        """The state that all learners have alike, while the gate withholds a batch."""
        return {
            "learners": {name: line.learner.state() for name, line in self.lines.items()},
            "past": {name: past.state() for name, past in self.past.items()},
            "shares": self._meeting.pool.size,
        } | ({"curricula": found} if (found := self._curricula()) else {})

    def _curricula(self) -> dict[str, Tree]:
        return {
            name: line.curriculum.state()
            for name, line in self.lines.items()
            if line.curriculum is not None
        }

    def _live(self) -> dict[str, object]:
        """The settings that the learners go by, by their keys: those of several policies begin with
        the policy's name. They are never loaded.
        """
        several = len(self.lines) + len(self.past) > 1
        return {
            (f"policies.{name}.{key}" if several else key): value
            for name, line in self.lines.items()
            for key, value in line.learner.live().items()
        }

    def load(self, source: StateReader) -> None:
        """Go on where the learner was saved. The queue is loaded before, with its memory."""
        state, pool = source.state(LEADER), self._meeting.pool
        past = {name: schema.Anything() for name in self.past} if self._leads else schema.Anything()
        wanted = {
            "learners": {name: schema.Anything() for name in self.lines},
            "past": past,
            "shares": schema.count(1),
            "live?": schema.Anything(),  # for readers of checkpoints
        }
        if kept := self._curricula():
            wanted["curricula"] = dict.fromkeys(kept, schema.Anything())
        schema.check(state, wanted | SCHEMA, "")
        self._load_learners(state)
        for name, opponents in self.past.items():
            opponents.load(state["past"][name])
        self._shares = state["shares"]
        # if there were more learners, some have several shares
        for rank in range(pool.rank, self._shares, pool.size):
            self._sums.absorb(
                source.state(numbered(LEADER, rank)) if rank else state, self._one.learner.device
            )
        for line in self.lines.values():
            line.experience.restore(source, self._shares)


class _LateSaves:
    def __init__(self, saves: Sequence[LateSave]) -> None:
        self._open, self._ended = list(saves), list[SaveEnd]()

    def poll(self) -> SaveEnd | None:
        for save in list(self._open):
            if (end := save.poll()) is not None:
                self._open.remove(save)
                self._ended.append(end)
        if self._open:
            return None
        return SaveEnd(
            files={name: entry for end in self._ended for name, entry in end.files.items()},
            segments={name: entry for end in self._ended for name, entry in end.segments.items()},
            error=next((end.error for end in self._ended if end.error is not None), None),
        )

    def wait(self, timeout_s: float) -> None:
        if self._open:
            self._open[0].wait(timeout_s)
