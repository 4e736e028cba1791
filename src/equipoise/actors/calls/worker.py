"""The worker that answers calls and learns from them: an engine, the conversations, and the queue.

All state is in the worker's own thread. The web server has a thread of its own, and leaves work in
the worker's ``Inbox``. A block of the queue is reserved only when a whole group is there, and is
committed in the same tick. So a slow agent holds nobody up, and the worker can be saved between any
two ticks. A token may therefore be older than its block: answers with a token that is older than
``max_lag`` allows are not learned from, and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Protocol

from equipoise.actors.calls.blocks import Block, blocks_of, write
from equipoise.actors.calls.conversations import Conversations
from equipoise.actors.calls.inbox import Inbox
from equipoise.actors.calls.ledger import Ledger
from equipoise.actors.calls.records import (
    Answer,
    Conversation,
    Limits,
    Names,
    NotPossible,
    Turn,
    prefixes,
)
from equipoise.actors.calls.splicing import Splicer
from equipoise.actors.engine.call_engine import CallEngine
from equipoise.actors.engine.request_engine import Sampling
from equipoise.actors.episodes import Episodes
from equipoise.actors.generator import HELD_S, Generator, Writing
from equipoise.clock import Clock
from equipoise.types import Array, Blocks, Slot, StateReader, StateWriter, Stop, Tick, WeightStore

SWEEP_S = 0.25  # between two looks at conversations that wait too long
IDLE_S = 1e-3  # that a tick without work waits, if workers take turns in one thread
OVER = "run: must go on, got its end: nothing is learned any more"
Message = Mapping[str, object]


class Listener(Protocol):
    """The reader of a call's answers. The worker's thread calls it."""

    def token(
        self,
        index: int,
        token: int,
        logp: float,
        likeliest: tuple[Sequence[int], Sequence[float]],
        version: int,
        stop: Stop | None,
    ) -> bool:
        """Take a token of answer ``index``; ``stop`` with the last one. True ends the answer: its
        text has a stop string.
        """

    def ended(self, index: int) -> tuple[Sequence[Message], str]:
        """Return the new messages of a whole answer, and the key of all messages up to it."""

    def flush(self) -> None:
        """Pass on what has come since the last step."""

    def fail(self, status: int, sentence: str) -> None:
        """End the call without an answer."""


@dataclass(eq=False, slots=True, kw_only=True)
class Call:
    """A call with ``samples`` answers."""

    prompt: Sequence[int]
    samples: int
    limit: int  # most tokens of an answer
    names: Names
    listener: Listener
    hashes: Sequence[int] = ()  # ``prefixes`` of the prompt
    top: int = 0  # likeliest tokens to report
    overridden: bool = False  # has it a temperature, top_p or seed that is not used?
    begun: bool = False
    over: bool = False
    group: int = -1  # in the engine
    turns: list[Turn] = field(default_factory=list)
    token: list[list[int]] = field(default_factory=list)  # of each answer
    logp: list[list[float]] = field(default_factory=list)
    version: list[list[int]] = field(default_factory=list)


class Grader(Protocol):
    """The grader of conversations that have ended. Nothing blocks."""

    def submit(self, key: int, one: Conversation) -> None: ...
    # by key: a reward, None if no function gave one, or why there is none
    def poll(self) -> Mapping[int, float | str | None]: ...
    def fds(self) -> tuple[int, ...]: ...
    def close(self) -> None: ...


class WebServer(Protocol):
    """The web server in a thread of its own."""

    def check(self) -> None:
        """RuntimeError if the server has failed, so that nobody can call."""

    def refuse(self) -> None:
        """Refuse all later requests; return once no more work comes into the inbox."""

    def close(self) -> None:
        """Send the answers that are there, and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParts:
    """The parts that a worker answers with."""

    writing: Writing
    ledger: Ledger
    limits: Limits
    grader: Grader | None  # None: rewards come from the callers alone
    filler: int  # a token for rows without an answer
    max_lag: int | None
    per_batch: int  # blocks of an update
    most_ready: int  # without a bound on lag: complete blocks above which new conversations wait
    alone: bool  # has the worker a thread of its own?
    splicer: Splicer | None  # None: tokens are never those of a text
    cut: Callable[[], int]  # the number of the newest cut that is saved for


class CallWorker(Generator):
    """A ``Generator`` whose prompts are calls. A tick is one token of every running answer."""

    _engine: CallEngine

    def __init__(
        self,
        engine: CallEngine,
        answering: CallParts,
        *,
        blocks: Blocks,
        weights: WeightStore,
        episodes: Episodes,
        streams: Array,
        clock: Clock,
        note: Callable[[str], object],
    ) -> None:
        super().__init__(
            engine,
            answering.writing,
            blocks=blocks,
            weights=weights,
            episodes=episodes,
            streams=streams,
            clock=clock,
            note=note,
        )
        self._parts, self.ledger, self.inbox = answering, answering.ledger, Inbox()
        self.conversations = Conversations(answering.limits, self.ledger, answering.splicer)
        self.server: WebServer | None = None
        self._pending: deque[Call] = deque()
        self._calls: dict[int, Call] = {}  # by the engine's group
        self._groups = 0  # of the engine, so far
        self._ready: deque[Block] = deque()
        self._graded_now: dict[int, Conversation] = {}
        self._keys = 0
        self._sequence: int | None = None  # of the newest block
        self._saved, self._swept = answering.cut(), 0.0

    @property
    def version(self) -> int:
        """The version of the weights that draw."""
        return self._engine.version

    @property
    def live(self) -> int:
        """The number of answers that are being drawn."""
        return self._engine.live

    # ----------------------------------------------------------------- from the worker's own thread

    def ask(self, call: Call) -> None:
        """Take a call; its answer begins when there is room."""
        if call.over:
            return
        if call.overridden:
            self.ledger.add("overridden")
        self._pending.append(call)

    def cancel(self, call: Call, reason: str = "left") -> None:
        """Drop the answers of a call that are not whole."""
        call.over = True
        if call in self._pending:
            self._pending.remove(call)
        if self._calls.pop(call.group, None) is not None:
            self._engine.cancel(call.group)
        for turn in call.turns:
            self.conversations.drop(turn, reason)

    def refuse(self) -> None:
        """Count a call that is refused before it begins."""
        self.ledger.add("refused")

    # ------------------------------------------------------------------------------------ the ticks

    def fds(self) -> tuple[int, ...]:
        grader = self._parts.grader
        return (*self.inbox.fds(), *(() if grader is None else grader.fds()))

    @property
    def patience(self) -> float:
        """Seconds that the next tick may wait, if nothing wakes the worker."""
        return SWEEP_S

    @property
    def _drawn(self) -> int:
        return self._engine.live

    def tick(self) -> Tick:
        clock, parts = self._clock, self._parts
        clock.begin()
        if parts.cut() > self._saved:  # nothing is half done between two ticks
            return self.ready
        self._until = perf_counter() + HELD_S
        worked, now = self.inbox.do(), monotonic()
        if now - self._swept > SWEEP_S:
            self._swept = now
            self.conversations.sweep(now)
            if self.server is not None:
                self.server.check()
        worked |= self._grade(now)
        worked |= self._hand_in()
        clock.lap("score")
        if self._weights.version >= 0:
            worked |= self._begin_calls(now)
            worked |= self._step()
        if not worked and not parts.alone:
            self.inbox.wait(IDLE_S)
        if worked:
            return Tick.WORKED
        return Tick.BLOCKED if self._ready else Tick.STARVED

    def _begin_calls(self, now: float) -> bool:
        """Give the engine the calls that may begin: a new conversation waits while the learner has
        enough, since its tokens would be too old when their turn comes.
        """
        begun = False
        for _ in range(len(self._pending)):
            call = self._pending.popleft()
            # it is asked again in each tick in which it waits
            call.hashes = call.hashes or prefixes(call.prompt)
            if self._full and not self.conversations.knows(call.prompt, call.hashes, call.names):
                self._pending.append(call)
                continue
            try:
                call.turns = self.conversations.begin(
                    call.prompt, call.names, call.samples, now, call.hashes
                )
            except NotPossible as no:
                call.over = True
                self.ledger.add("refused")
                call.listener.fail(no.status, no.sentence)
                continue
            if not begun:
                self._fetch(self._weights.version)
            begun = call.begun = True
            call.group, self._groups = self._groups, self._groups + 1
            call.token = [[] for _ in call.turns]
            call.logp = [[] for _ in call.turns]
            call.version = [[] for _ in call.turns]
            self._calls[call.group] = call
            how, prompt, limit = Sampling(top=call.top), call.turns[0].prompt, call.limit
            if (splicer := self._parts.splicer) is not None:
                # the drawn tokens of a text may be more than the text's own
                limit = min(limit, splicer.most - len(prompt))
            self._engine.submit(call.group, prompt, call.samples, limit=limit, sampling=how)
        return begun

    @property
    def _full(self) -> bool:
        """Would the block of a conversation that begins now come after all that its version may be
        used for?
        """
        if self._parts.max_lag is None:
            return len(self._ready) >= self._parts.most_ready
        blocks = len(self._ready) + len(self._calls) // self._samples
        newest = -1 if self._sequence is None else self._sequence
        return self._oldest(newest + 1 + blocks) > self._weights.version

    def _step(self) -> bool:
        engine = self._engine
        if not (engine.live or engine.waiting):
            return False
        self._fetch(self._weights.version)
        self._clock.lap("write", "decode")
        ends = {(one.group, one.index): one.stop for one in engine.step()}
        self._clock.lap("decode", "write")
        drawn, version, touched = engine.drawn, engine.version, dict[Call, None]()
        for group, index, token, logp in zip(
            drawn.group, drawn.index, drawn.token, drawn.logp, strict=True
        ):
            call, stop = self._calls[group], ends.get((group, index))
            touched[call] = None
            call.token[index].append(token)
            call.logp[index].append(logp)
            call.version[index].append(version)
            likeliest = drawn.likeliest.get((group, index), ((), ()))
            said = call.listener.token(index, token, logp, likeliest, version, stop)
            if said and stop is None:
                engine.cancel(group, index)
            if said or stop is not None:
                self._ended(call, index, Stop.TEXT if said else stop or Stop.LENGTH)
        for call in touched:
            call.listener.flush()
        return True

    def _ended(self, call: Call, index: int, stop: Stop) -> None:
        """Record a whole answer."""
        answer = Answer(call.token[index], call.logp[index], call.version[index], stop)
        messages, key = call.listener.ended(index)
        self.conversations.record(call.turns[index], answer, messages, key)
        if all(turn.over for turn in call.turns):
            call.over = True
            del self._calls[call.group]

    def _grade(self, now: float) -> bool:
        grader, conversations = self._parts.grader, self.conversations
        if grader is None:
            return False
        worked = bool(conversations.to_grade)
        while conversations.to_grade:
            self._keys += 1
            self._graded_now[self._keys] = one = conversations.to_grade.popleft()
            grader.submit(self._keys, one)
        for key, value in grader.poll().items():
            worked = True
            if isinstance(value, str):
                self._count_failure(value)
            conversations.graded(
                self._graded_now.pop(key), None if isinstance(value, str) else value, now
            )
        return worked

    def _hand_in(self) -> bool:
        """Write the groups that are complete into blocks of the queue."""
        conversations, worked = self.conversations, False
        while conversations.groups:
            self._ready.extend(blocks_of(conversations.groups.popleft()))
        while self._ready:
            if self._sequence is not None and self._ready[0].newest < self._oldest(
                self._sequence + 1
            ):
                one = self._ready.popleft()
                self.ledger.add("old", sum(len(row.spans) for row in one.rows if row is not None))
                continue
            slots = self._blocks.reserve(self._streams)
            if slots is None:
                return worked
            self._commit_block(self._ready.popleft(), slots)
            worked = True
        return worked

    def _oldest(self, sequence: int) -> int:
        """Return the oldest version that is learned from in a block: the update of batch ``g`` uses
        version ``g``.
        """
        lag = self._parts.max_lag
        return 0 if lag is None else sequence // self._parts.per_batch - lag

    def _commit_block(self, block: Block, slots: Mapping[str, Slot]) -> None:
        slot = slots[self._policy]
        sequence = self._sequence = int(slot.keys[0, 1])
        written = write(
            block,
            slot,
            oldest=self._oldest(sequence),
            filler=self._parts.filler,
            version=max(self._version, 0),
        )
        context = slot.data.context
        context["stream"][:], context["start"][:] = self._streams, self._begun
        context["task"][:], context["group"][:], context["refills"][:] = 0, sequence, 0
        context["retokenized"][:] = 0
        self._begun += 1
        self._episodes.begins(self._engine.version, self._begun)
        self._episodes.whole(written.returns, written.lengths, there=True)
        for name in ("learned", "old", "long", "samples"):
            self.ledger.add(name, getattr(written, name))
        self._blocks.commit(slots)

    # ------------------------------------------------------------------------------ saved and ended

    def save(self, to: StateWriter) -> None:
        """Put the numbers of reports. Open conversations go on here, and are not saved."""
        self._saved = self._parts.cut()
        to.put({"episodes": self._episodes.state(), "ledger": self.ledger.state()})

    def load(self, source: StateReader) -> None:
        """Load the numbers of reports."""
        state = source.state()
        self._episodes.load(state["episodes"])
        self.ledger.load(state["ledger"])
        self._begun = self._episodes.next_row

    def close(self) -> None:
        """End all calls, and the server."""
        if self.server is not None:
            self.server.refuse()
        self.inbox.do()
        for call in (*self._calls.values(), *self._pending):
            call.listener.fail(503, OVER)
        if self.server is not None:
            self.server.close()
        self.ledger.lost("ended")
        if self._parts.grader is not None:
            self._parts.grader.close()
        self.inbox.close()
        self._engine.close()
