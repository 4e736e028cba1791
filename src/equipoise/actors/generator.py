"""The generator: it writes completions of a task's prompts, group by group, into the places of the
queue.

A group is a block of the queue: its place is reserved when its first token is about to be drawn,
and no token of it is drawn with weights that are older than the newest of that moment, so no token
is older than its place. While samples are drawn, new weights are taken a part a tick, so that no
token waits for all of them. A generator holds as many places as it writes groups side by side. The
block's number in the run alone decides the group's prompt and the draw of every token: any
generator may write it, and a generator has no state to save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np

from equipoise.actors.engine.engine import Engine, Sampled
from equipoise.actors.episodes import Episodes
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
    # of each dropped group, its prompt and the reward of all its samples (nan: none)
    dropped: list[tuple[int, float]] = field(default_factory=list)
    left: int = 0  # samples that are not done
    samples: list[Sampled] = field(default_factory=list)


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

    @property
    def grading(self) -> bool:
        """Are there groups that wait for their rewards, or samples that wait for an answer?"""
        return self._engine.away > 0 or any(group.left == 0 for group in self._open.values())

    @property
    def busy(self) -> bool:
        """Are there groups that are not handed in?"""
        return bool(self._open or self._again or self._next)

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
        while self._drawn + self._samples <= max(self._at_once, self._samples) and self._begin():
            pass
        if not self._running:
            return Tick.WORKED if graded else Tick.STARVED if self._open else Tick.BLOCKED
        drawn = self._drawn
        if drawn:
            self._fetch(self._weights.version)
        clock.lap("write", "decode")
        done = self._engine.step()
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
            elif (slots := self._blocks.reserve(self._streams)) is not None:
                one = _Open(slots)
            else:
                return False
            self._next = one, self._weights.version
        one, version = self._next
        if not self._fetch(version):
            return False
        self._next = None
        slot = one.slots[self._policy]
        block = self._number(int(slot.keys[0, 1]))
        # a number of its own in the run, which seeds its draws
        group = block * (1 + self._refills) + one.refills
        one.number, one.left, one.samples = self._order(block, one.refills), self._samples, []
        prompt = self._prompts.token(one.number)
        data = slot.data
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
        self._begun += one.refills == 0
        self._episodes.begins(self._engine.version, self._begun)
        self._open[group] = one
        self._running += self._samples
        self._engine.submit(group, prompt, self._samples, limit=self._limit)
        return True

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
        self._clock.add("fetch", perf_counter() - began)
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
            group.refills += 1
            group.dropped.append((group.number, next(iter(worth), math.nan)))
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
        if "dropped" in data.context:  # the learner keeps pass rates
            data.context["dropped"][:], data.context["dropped_reward"][:] = 0, math.nan
            for at, (number, reward) in enumerate(group.dropped):
                data.context["dropped"][:, at] = number
                data.context["dropped_reward"][:, at] = reward
        data.mask[0], data.bootstrap[0], data.first[:] = not lost, False, True
        lengths = np.array([one.drawn for one in group.samples])
        # the numbers of given samples are labels, and no return
        returns = np.full(self._samples, np.nan) if self._imitates else np.array(data.reward[0])
        self._episodes.whole(returns.astype(np.float64), lengths, there=not lost)
        self._blocks.commit(group.slots)

    def state(self) -> Tree:
        """Return the reports' numbers; nothing else is left between two groups."""
        if left := len(self._open) + len(self._again) + (self._next is not None):
            raise RuntimeError(f"save: expected a generator without open groups, got {left}")
        return {"episodes": self._episodes.state()}

    def restore(self, state: Tree) -> None:
        """Go on from a ``state``."""
        self._episodes.load(state["episodes"])
        self._begun = self._episodes.next_row

    def save(self, to: StateWriter) -> None:
        to.put(self.state())

    def load(self, source: StateReader) -> None:
        self.restore(source.state())

    def close(self) -> None:
        self._engine.close()
        self._grader.close()
