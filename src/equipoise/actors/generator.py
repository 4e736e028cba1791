"""The generator: it writes completions of a task's prompts, group by group, into the places of the
queue.

A group is a block of the queue: its place is reserved when its first token is about to be drawn,
and no token of it is drawn with weights that are older than the newest of that moment, so no token
is older than its place. While samples are drawn, new weights are taken a part a tick, so that no
token waits for all of them. A generator holds as many places as it writes groups side by side. The
block's number in the run alone decides the group's prompt and the draw of every token: any
generator may write it, and a generator has no state to save.

In an elastic run a generator may hand its groups over before all their samples have ended: the
tokens so far stand in the rows of the block (``drafts.py``), and the other generator goes on with
them, with weights that are no older than the newest of that moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np

from equipoise.actors import drafts
from equipoise.actors.engine.engine import Engine, HandsOver, Partial, Sampled
from equipoise.actors.episodes import Episodes
from equipoise.actors.lending import Seat
from equipoise.clock import Clock
from equipoise.types import (
    Array,
    Blocks,
    Look,
    Slot,
    StateReader,
    StateWriter,
    Stop,
    Tick,
    Tree,
    WeightStore,
)

PARTS = ("fetch", "decode", "write", "score")
HELD_S = 0.016  # of a tick that new weights may hold running samples up
MOST_FAILURES = 20  # most different failures of partners that are noted


class Prompts(Protocol):
    """The prompts that are learned from."""

    def __len__(self) -> int: ...
    def token(self, number: int) -> Sequence[int]: ...


class Grader(Protocol):
    """The grader of groups, in this process or in another. Nothing blocks."""

    # of prompt ``number``
    def submit(self, group: int, number: int, samples: Sequence[Sampled]) -> None: ...
    # by group: rewards, or why there are none
    def poll(self) -> Mapping[int, Sequence[float | None] | str]: ...
    # by group of the last ``poll``, by reward function: the terms of the rewards, unweighted
    def terms(self) -> Mapping[int, Mapping[str, Sequence[float | None]]]: ...
    def fds(self) -> tuple[int, ...]: ...  # descriptors that become readable with an answer
    def close(self) -> None: ...


@dataclass(slots=True)
class _Open:
    """A group that is being written."""

    slots: Mapping[str, Slot]
    refills: int = 0  # groups that were dropped in its place
    number: int = 0  # of its prompt
    left: int = 0  # samples that are not done
    samples: list[Sampled] = field(default_factory=list)
    handed: bool = False  # by another generator, with a draft, and not begun here


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """The parts that a generator writes with: its prompts, their grader and the limits."""

    prompts: Prompts
    grader: Grader
    policy: str  # its name
    at_once: int  # samples under way at the same time
    limit: int  # most tokens of a sample
    # (block) -> its number among the blocks of all learners' queues
    number: Callable[[int], int]
    # (number, groups that were dropped in its place) -> the prompt
    order: Callable[[int, int], int]
    refills: int  # most times that a group whose rewards are all equal is dropped
    imitates: bool = False  # samples have no rewards, and the generator warns of none
    # its words in an elastic run, whose generators hand groups to each other
    seat: Seat | None = None


class Generator:
    """One policy's model with its engine. A tick is one token of every running sample."""

    ready = Tick.BLOCKED  # no group is open

    def __init__(
        self,
        engine: Engine,
        writing: Writing,
        *,
        blocks: Blocks,
        weights: WeightStore,
        episodes: Episodes,
        streams: Array,
        clock: Clock,
        note: Callable[[str], object],
    ) -> None:
        """``streams``: the streams of the group's samples, numbered as in the queue."""
        self._engine, self._blocks, self._weights = engine, blocks, weights
        self._prompts, self._grader, self._policy = writing.prompts, writing.grader, writing.policy
        self._episodes, self._streams, self._samples = episodes, streams, len(streams)
        self._at_once, self._limit, self._refills = writing.at_once, writing.limit, writing.refills
        self._number, self._order, self._imitates = writing.number, writing.order, writing.imitates
        self._clock, self._note = clock, note
        self._again: list[_Open] = []  # groups to write again
        # a group that waits for weights, and the version that it asks for
        self._next: tuple[_Open, int] | None = None
        self._taking: tuple[Look, Iterator[None]] | None = None  # weights that come part by part
        self._open: dict[int, _Open] = {}
        self._running = 0  # samples
        self._version = -1  # of the weights that the engine was given
        self._until = 0.0  # this time new weights may be taken in this tick
        self._begun = episodes.next_row
        self._failures = set[str]()  # those of partners that were noted
        self._seat = writing.seat
        self.reserves = True  # does it take new places?
        self.gives = True  # may it give groups to others, and ask for theirs?

    @property
    def grading(self) -> bool:
        """Are there groups that wait for their rewards, or samples that wait for an answer?"""
        return self._engine.away > 0 or any(group.left == 0 for group in self._open.values())

    @property
    def busy(self) -> bool:
        """Are there groups that are not handed in?"""
        return bool(self._open or self._again or self._next)

    @property
    def drawing(self) -> bool:
        """Are there groups with samples to draw?"""
        waits = bool(self._again or self._next)
        return waits or any(group.left for group in self._open.values())

    @property
    def hands_over(self) -> bool:
        """Can its samples go on in another generator?"""
        return isinstance(self._engine, HandsOver)

    def fds(self) -> tuple[int, ...]:
        """Descriptors that wake it."""
        return self._grader.fds()

    def tick(self) -> Tick:
        clock = self._clock
        clock.begin()
        self._until = perf_counter() + HELD_S
        graded = self._grader.poll()
        for group, rewards in graded.items():
            self._graded(group, rewards)
        if graded:
            clock.lap("score")
        self._adopt()
        while self._drawn + self._samples <= max(self._at_once, self._samples) and self._begin():
            pass
        self._give()
        if not self._running:
            return Tick.WORKED if graded else Tick.STARVED if self._open else Tick.BLOCKED
        drawn = self._drawn
        if drawn:
            self._fetch(self._weights.version)
        clock.lap("write", "decode")
        began = perf_counter()
        done = self._engine.step()
        if self._seat is not None and (live := self._engine.live - self._engine.away + len(done)):
            self._seat.step(live, perf_counter() - began)
        clock.lap("decode", "write")
        for sample in done:
            self._write(sample)
        clock.lap("write")
        return Tick.WORKED if graded or done or drawn or self._drawn else Tick.STARVED

    @property
    def _drawn(self) -> int:
        """The number of samples under way that do not wait for a partner's answer."""
        return self._running - self._engine.away

    def _begin(self) -> bool:
        """Submit a group: a group to write again, or the group of a place that is reserved now;
        False if there is neither.
        """
        if self._next is None:
            if self._again:
                one = self._again.pop(0)
            elif self.reserves and (slots := self._blocks.reserve(self._streams)) is not None:
                one = _Open(slots)
            else:
                return False
            self._next = one, self._weights.version
        one, version = self._next
        if not self._fetch(version):
            return False
        self._next = None
        group, one.number = self._number_of(one)
        one.left, one.samples = self._samples, []
        prompt = self._prompts.token(one.number)
        if one.handed:
            self._go_on(one, group, prompt)
        else:
            self._label(one, group, prompt)
        self._episodes.begins(self._engine.version, self._begun)
        self._open[group] = one
        self._running += one.left
        if not one.handed:
            self._engine.submit(group, prompt, self._samples, limit=self._limit)
        one.handed = False
        return True

    def _number_of(self, one: _Open) -> tuple[int, int]:
        """A group's number in the run, which seeds its draws, and its prompt's."""
        block = self._number(int(one.slots[self._policy].keys[0, 1]))
        return block * (1 + self._refills) + one.refills, self._order(block, one.refills)

    def _label(self, one: _Open, group: int, prompt: Sequence[int]) -> None:
        """Write what a group's rows are about."""
        data = one.slots[self._policy].data
        context = {
            "task": one.number,
            "group": group,
            "refills": one.refills,
            "prompt_length": len(prompt),
        }
        context |= {"stream": self._streams, "start": self._begun}
        for name, value in context.items():
            data.context[name][:] = value
        data.context["prompt"][:, : len(prompt)] = prompt
        # the learner keeps pass rates; a generator that goes on with the block leaves these
        if "dropped" in data.context and one.refills == 0:
            data.context["dropped"][:], data.context["dropped_reward"][:] = 0, math.nan
        self._begun += one.refills == 0

    def _fetch(self, wanted: int) -> bool:
        """Take weights until the engine has this version, until the tick's share of time is over if
        it draws -> has it?
        """
        if self._version >= wanted:
            return True
        began = perf_counter()
        while self._version < wanted and (not self._drawn or perf_counter() < self._until):
            if self._taking is None:
                if (found := self._weights.look(self._version)) is None:
                    continue  # they are being rewritten: newer ones are coming
                self._taking = found, self._engine.take(*found)
            (version, _, whole), parts = self._taking
            if next(parts, self._taking) is self._taking:  # all of them are there
                self._taking = None
                if whole():
                    self._version = version
                # the publisher is faster, or the engine's own are of two versions now: all at once,
                # before a token
                else:
                    self._until = math.inf
        seconds = perf_counter() - began
        self._clock.add("fetch", seconds)
        if self._seat is not None:
            self._seat.fetched(seconds)
        return self._version >= wanted

    def _write(self, sample: Sampled) -> None:
        """Write a finished sample into its row; submit its group to the grader if it is whole."""
        group = self._open[sample.group]
        data, i, length = group.slots[self._policy].data, sample.index, len(sample.token)
        data.action["token"][0, i, :length] = sample.token
        behaviour = data.behaviour
        behaviour["logp"][0, i, :length] = sample.logp
        behaviour["version"][0, i, :length] = sample.version
        behaviour["chosen"][0, i] = np.arange(behaviour["chosen"].shape[2]) < length
        if (conversation := sample.conversation) is not None:
            behaviour["chosen"][0, i, :length] = conversation.chosen
            if "retokenized" in data.context:  # not of a recited one
                data.context["retokenized"][i] = conversation.retokenized
            if conversation.part is not None:
                behaviour["part"][0, i, :length] = conversation.part
            if conversation.failure:
                self._count_failure(conversation.failure)
        if "given_back" in data.context:
            data.context["given_back"][i] = sample.given_back
            data.context["kv_load"][i] = sample.kv_load
        behaviour["length"][0, i], behaviour["stop"][0, i] = length, int(sample.stop)
        data.version[0, i] = sample.version[0]
        group.samples.append(sample)
        group.left -= 1
        self._running -= 1
        if group.left == 0:
            group.samples.sort(key=lambda one: one.index)
            self._grader.submit(sample.group, group.number, group.samples)

    def _count_failure(self, failure: str) -> None:
        """Count a conversation whose partner failed; note the failure the first time."""
        self._episodes.failures[0] += 1
        if failure not in self._failures and len(self._failures) < MOST_FAILURES:
            self._failures.add(failure)
            self._note(f"warning: a conversation is not learned from: {failure}")

    def _graded(self, number: int, rewards: Sequence[float | None] | str) -> None:
        """Hand in a graded group, or write another one in its place if nothing can be learned from
        it.
        """
        group = self._open.pop(number)
        worth = set() if isinstance(rewards, str) else {one for one in rewards if one is not None}
        equal = not isinstance(rewards, str) and len(worth) < 2
        if equal and group.refills < self._refills:
            context = group.slots[self._policy].data.context
            if "dropped" in context:
                context["dropped"][:, group.refills] = group.number
                context["dropped_reward"][:, group.refills] = next(iter(worth), math.nan)
            group.refills += 1
            self._again.append(group)
        else:
            self._commit(group, rewards)

    def _commit(self, group: _Open, rewards: Sequence[float | None] | str) -> None:
        """Hand a group in. A group without rewards is also handed in, but masked, so that no later
        group waits for it.
        """
        data = group.slots[self._policy].data
        lost = isinstance(rewards, str)
        if isinstance(rewards, str):
            self._note(
                f"warning: a group of {self._samples} samples is not learned from: {rewards}"
            )
            data.reward[0] = 0.0
            self._episodes.failures[0] += self._samples
        else:
            failed = any(one.stop == Stop.FAILED for one in group.samples)
            if not (self._imitates or failed) and all(one is None for one in rewards):
                self._note(
                    "warning: no reward function gave any sample of a group a number, so nothing "
                    "is learned from it"
                )
            # nan: no function graded the sample
            data.reward[0] = [math.nan if one is None else one for one in rewards]
        data.mask[0], data.bootstrap[0], data.first[:] = not lost, False, True
        lengths = np.array([one.drawn for one in group.samples])
        # the numbers of given samples are labels, and no return
        returns = np.full(self._samples, np.nan) if self._imitates else np.array(data.reward[0])
        self._episodes.whole(returns.astype(np.float64), lengths, there=not lost)
        self._blocks.commit(group.slots)

    # ------------------------------------------------------------------------------ in elastic runs

    def hand_over(self, to: Callable[[], Array]) -> int:
        """Let other generators go on with all groups that have samples to draw -> the number of
        these samples. ``to``: the streams of the next generator; to be called if ``hands_over``.
        """
        seat = self._seat
        assert seat is not None, "an elastic run"
        moved = self._hand([group for group, one in self._open.items() if one.left], to)
        waits = [*self._again, *([self._next[0]] if self._next is not None else [])]
        self._again, self._next = [], None
        for one in waits:
            if not one.handed:  # nothing of it is drawn
                one.left = self._samples
                group, one.number = self._number_of(one)
                self._label(one, group, self._prompts.token(one.number))
                drafts.clear(one.slots[self._policy].data)
            seat.blocks.hand_over(one.slots, to())
            moved += one.left
        self._episodes.next_row = self._begun
        seat.hands_over(moved)
        return moved

    def _hand(self, groups: Collection[int], to: Callable[[], Array]) -> int:
        """Let other generators go on with these groups -> the number of their open samples."""
        engine, seat = self._engine, self._seat
        assert isinstance(engine, HandsOver) and seat is not None
        taken = dict[int, list[Partial]]()
        for sample in engine.withdraw(groups):
            taken.setdefault(sample.group, []).append(sample)
        moved = 0
        for group in groups:
            one = self._open.pop(group)
            drafts.write(one.slots[self._policy].data, taken[group])
            self._running -= one.left
            moved += one.left
            seat.blocks.hand_over(one.slots, to())
        return moved

    def _give(self) -> None:
        """Give a part of the groups, the newest, to a generator that has nothing to draw."""
        seat = self._seat
        if seat is None or not self.hands_over:
            return
        seat.ask(self.gives and self.reserves and not self.drawing)
        if not self.gives:
            return
        open_ = sorted(group for group, one in self._open.items() if one.left)
        if len(open_) > 1 and (taker := seat.asked()) is not None:
            seat.answer(taker)
            part = max(len(open_) // taker.among, 1)
            seat.hands_over(self._hand(open_[-part:], lambda: taker.streams))

    def _adopt(self) -> None:
        """Take the groups that other generators handed to this one."""
        if (seat := self._seat) is None:
            return
        mine = [*self._open.values(), *self._again, *([self._next[0]] if self._next else [])]
        known = {int(one.slots[self._policy].keys[0, 1]) for one in mine}
        for slots in seat.blocks.handed(self._streams, known):
            data = slots[self._policy].data
            one = _Open(slots, int(data.context["refills"][0]), handed=True)
            one.left = drafts.count(data)
            self._again.append(one)

    def _go_on(self, one: _Open, group: int, prompt: Sequence[int]) -> None:
        """Go on with the samples of a group that was handed to this generator."""
        engine, data = self._engine, one.slots[self._policy].data
        assert isinstance(engine, HandsOver)
        one.samples = drafts.ended(data, group)
        partial = drafts.partial(data, group)
        one.left = len(partial)
        if all(len(sample.token) == 0 for sample in partial) and not one.samples:
            engine.submit(group, prompt, self._samples, limit=self._limit)
            return
        for sample in partial:
            engine.resume(sample, prompt, limit=self._limit)

    def state(self) -> Tree:
        """Return the reports' numbers; nothing else is left between two groups."""
        if left := len(self._open) + len(self._again) + (self._next is not None):
            raise RuntimeError(f"save: expected a generator without open groups, got {left}")
        found: Tree = {"episodes": self._episodes.state()}
        return found if self._seat is None else found | {"handed": self._seat.handed}

    def restore(self, state: Tree) -> None:
        """Go on from a ``state``."""
        self._episodes.load(state["episodes"])
        self._begun = self._episodes.next_row
        if self._seat is not None:
            self._seat.load(state["handed"])

    def save(self, to: StateWriter) -> None:
        to.put(self.state())

    def load(self, source: StateReader) -> None:
        self.restore(source.state())

    def close(self) -> None:
        self._engine.close()
        self._grader.close()
