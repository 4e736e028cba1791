"""The counts of a site's workers, of which home has a copy: their episodes, their rows of the
board, the learners' words.

Home and every site list the same parts in the same order, so that a number names one. Each has one
writer: the worker at the site, and at home the proxy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from equipoise import tree
from equipoise.learners.meeting import SharedMeeting
from equipoise.publishing import publish
from equipoise.runtime.cluster.carried import Carried
from equipoise.runtime.cluster.frames import Body, Kind, Known, Message, Statistics
from equipoise.runtime.cluster.wire import Refused
from equipoise.types import Array
from equipoise.workers.kind import LearningKind, Member, Movable, Placed, SteppingKind, WritingKind
from equipoise.workers.shared import Shared

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint


STATISTICS_S = 0.25  # between two reports of what workers count, if no rows take them along


class Part(Protocol):
    """Some numbers of one worker, or of one group of envs."""

    nbytes: int

    def read(self) -> bytes: ...
    def write(self, data: Body) -> None: ...  # of ``nbytes``


class Arrays:
    """Arrays that are copied as they are, one after the other."""

    def __init__(self, *arrays: Array) -> None:
        self._arrays = [array.reshape(-1).view(np.uint8) for array in arrays]
        self.nbytes = sum(array.nbytes for array in arrays)

    def read(self) -> bytes:
        return b"".join(array.tobytes() for array in self._arrays)

    def write(self, data: Body) -> None:
        at = 0
        for array in self._arrays:
            array[:] = np.frombuffer(data, np.uint8, len(array), at)
            at += len(array)


class Words(Arrays):
    """Words that belong together, such as an address and its presence: they are read until two
    looks agree, and each is published after the words before it.
    """

    def __init__(self, *words: Array) -> None:
        super().__init__(*words)
        self._words = words

    def write(self, data: Body) -> None:
        at = 0
        for words in self._words:
            publish(
                words, ..., np.frombuffer(data, words.dtype, words.size, at).reshape(words.shape)
            )
            at += words.nbytes

    def read(self) -> bytes:
        found = super().read()
        while (again := super().read()) != found:
            found = again
        return found


class BoardRow:
    """A worker's row of the board, without the flag of its doorbell. The time of the last sign is
    sent as an age, since two machines have two clocks.
    """

    def __init__(self, fields: Mapping[str, Array]) -> None:
        self._touched = fields["touched_s"]
        self._rest = Arrays(
            *(array for name, array in fields.items() if name not in ("sleeping", "touched_s"))
        )
        self.nbytes = 8 + self._rest.nbytes

    def read(self) -> bytes:
        age = np.array([time.perf_counter() - self._touched[0]])
        return age.tobytes() + self._rest.read()

    def write(self, data: Body) -> None:
        self._touched[0] = time.perf_counter() - float(np.frombuffer(data, np.float64, 1)[0])
        self._rest.write(data[8:])


@dataclass(frozen=True, slots=True)
class Place:
    """The owner of a part: a group of envs, or a worker.

    ``titles``: the workers that write it: their places are known. An env counts its failures, and
    the worker that acts for it counts the rest; under central inference these are two workers.
    ``heard``: the workers that read it, so that home passes it on to their machines.
    """

    part: Part
    titles: frozenset[str]
    group: int | None = None
    heard: frozenset[str] = frozenset()

    def of(self, titles: Collection[str]) -> bool:
        """Is it written by some of these workers?"""
        return not self.titles.isdisjoint(titles)

    def reaches(self, titles: Collection[str]) -> bool:
        """Do some of these workers read it, and another machine's worker write it?"""
        return not (self.heard.isdisjoint(titles) or self.of(titles))


def parts(
    blue: Blueprint,
    shared: Shared,
    rows: Mapping[str, Mapping[str, Array]],
    members: Sequence[Member],
) -> dict[int, Place]:
    """The parts of a run by number. ``members``: of the whole run; ``rows``: of the board, of the
    workers here.
    """
    found: list[Place | None] = []
    steps, acts = list[set[str]](), list[set[str]]()
    for group in range(blue.program.groups):
        mine = [one for one in members if group in one.groups(blue)]
        steps.append({one.title for one in mine if isinstance(one.kind, SteppingKind)})
        acts.append({one.title for one in mine if isinstance(one.kind, WritingKind)})
    for policy in shared.policies.values():
        for group, one in enumerate(policy.episodes):
            acting, stepping = one.counted()
            if acts[group] == steps[group]:
                found.append(Place(Arrays(*acting, *stepping), frozenset(acts[group]), group))
            else:
                found.append(Place(Arrays(*acting), frozenset(acts[group]), group))
                found.append(Place(Arrays(*stepping), frozenset(steps[group]), group))
        rounding = [np.frombuffer(one.memory.buffer, np.uint8) for one in policy.rounding]
        found += [
            Place(Arrays(array), frozenset(acts[group]), group)
            for group, array in enumerate(rounding)
        ]
    for title in (member.title for member in members):
        found.append(Place(BoardRow(rows[title]), frozenset([title])) if title in rows else None)
    learners = [one for one in members if isinstance(one.kind, LearningKind)]
    for member in learners if blue.apart else ():
        words, queue = shared.own[member.kind.name].views, shared.queues.get(member.index)
        found.append(
            Place(
                Words(*SharedMeeting.words_of(words, member.index)),
                frozenset([member.title]),
                heard=frozenset(one.title for one in learners),
            )
        )
        found.append(
            None if queue is None else Place(Arrays(*queue.counters), frozenset([member.title]))
        )
    for name in dict.fromkeys(
        member.kind.name
        for member in members
        if isinstance(member.kind, Movable) and member.kind.name in shared.own
    ):
        arrays = tree.leaves(shared.own[name].views)
        found.append(
            Place(
                Arrays(*arrays),
                frozenset(member.title for member in members if member.kind.name == name),
            )
        )
    writing = frozenset(one.title for one in members if isinstance(one.kind, WritingKind))
    for member in members:
        if isinstance(kind := member.kind, Placed):
            views, alone = shared.own[kind.name].views, frozenset([member.title])
            found.append(Place(Words(*kind.heard(views, member.index)), alone, heard=writing))
            found.append(Place(Arrays(*kind.counted(views, member.index)), alone))
    return {number: place for number, place in enumerate(found) if place is not None}


class HomeParts(Carried):
    """Home's end, for the parts that workers of one site write."""

    def __init__(
        self,
        parts: Mapping[int, Part],
        counts: Collection[int],
        said: Collection[int] = (),
        heard: Collection[int] = (),
        met: Callable[[], object] = lambda: None,
    ) -> None:
        """``parts``: of the whole run, by number; ``counts``: the site's counts. ``said``: those
        that workers elsewhere read; ``heard``: words from elsewhere that the site's workers read.

        ``met`` is called when the site has sent one of ``said``.
        """
        self._parts, self._counts, self._met = parts, frozenset(counts), met
        self._said, self._elsewhere = frozenset(said), sorted(heard)
        # the words from elsewhere that the site has, by part
        self._known: dict[int, bytes] = {}
        self.most = {
            Kind.STATISTICS: max((parts[number].nbytes for number in self._counts), default=0)
        }

    def take(self, message: Message) -> None:
        match message:
            case Statistics(part, body):
                if part not in self._counts or self._parts[part].nbytes != len(body):
                    got = f"{part} with {len(body):,} bytes"
                    raise Refused(f"statistics: expected a part of this site, got {got}")
                self._parts[part].write(body)
                if part in self._said:
                    self._met()

    def ready(self) -> Iterator[Message]:
        for number in self._elsewhere:
            if (said := self._parts[number].read()) != self._known.get(number):
                self._known[number] = said
                yield Known(number, said)

    def forget(self) -> None:
        self._known.clear()


class SiteParts(Carried):
    """The site's end."""

    def __init__(
        self,
        parts: Mapping[int, Part],
        of_group: Mapping[int, Iterable[int]],
        clock: Callable[[], float],
        said: Mapping[int, Part] = MappingProxyType({}),
        known: Mapping[int, Part] = MappingProxyType({}),
    ) -> None:
        """``parts``: the counts of the workers here, by home's numbers; ``of_group``: the counts
        that go home before a group's rows.

        ``clock``: gives seconds. ``said``: the words here that workers elsewhere read, and
        ``known``: the words from elsewhere.
        """
        self._parts, self._of_group, self._said, self._known = parts, of_group, said, known
        self._clock = clock
        # the words sent home in this session, of parts that are sent if they have changed
        self._sent: dict[int, bytes] = {}
        self._counted_at = 0.0
        self.most = {Kind.KNOWN: max(part.nbytes for part in known.values())} if known else {}

    def all(self) -> Iterator[Message]:
        """Yield what all workers here count."""
        return (Statistics(number, part.read()) for number, part in self._parts.items())

    def of_group(self, group: int) -> Iterator[Message]:
        """Yield the parts of a group."""
        return (Statistics(number, self._parts[number].read()) for number in self._of_group[group])

    def changed(self, group: int) -> Iterator[Message]:
        """Yield the parts of a group that are not as they were sent."""
        for number in self._of_group[group]:
            if (counted := self._parts[number].read()) != self._sent.get(number):
                self._sent[number] = counted
                yield Statistics(number, counted)

    def ready(self) -> Iterator[Message]:
        for number, part in self._said.items():
            if (words := part.read()) != self._sent.get(number):
                self._sent[number] = words
                yield from self.all()  # the counts of that moment
                yield Statistics(number, words)
        if (now := self._clock()) - self._counted_at >= STATISTICS_S:
            self._counted_at = now
            yield from self.all()

    def take(self, message: Message) -> None:
        match message:
            case Known(part, body):
                if part not in self._known or self._known[part].nbytes != len(body):
                    raise Refused(f"known: expected a part of workers elsewhere, got part {part}")
                self._known[part].write(body)

    def forget(self) -> None:
        self._sent.clear()
