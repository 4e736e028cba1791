"""Blocks of the queue between machines: places that are granted to actors of a site, and the rows
that they wrote.

At home the proxy reserves a block when an actor asks for a place, copies the rows that come into
it, and commits it. A place is granted with the newest versions of that moment, and an actor does
not begin before its machine has them. So the bound on the lag holds as if the actor were here.

At the site actors work over ``experience/queue/outbound.py``. When a session ends they go on with
the slot that they have, and its rows are dropped. They get the next one in the next session. Rows
that shards of the site keep wait there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from equipoise.experience.queue.outbound import VOID, Outbound, block_bytes
from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.unstacked import BlockPacker, LastRows
from equipoise.experience.queue.waiting import Waiting, mark, marked, put_back
from equipoise.runtime.cluster.carried import Carried
from equipoise.runtime.cluster.frames import (
    Body,
    Brought,
    Grant,
    Kept,
    Kind,
    Lost,
    Message,
    Restarted,
    Rows,
    Want,
)
from equipoise.runtime.cluster.protocols import Queue
from equipoise.runtime.cluster.weights import Newest, SiteWeights
from equipoise.runtime.cluster.wire import Refused, lookup
from equipoise.types import Array, Slot, Stack


@dataclass(slots=True)
class Remote:
    """One group of envs on another machine, as home sees it."""

    group: int
    queue: Queue
    streams: Array
    held: int = 1  # blocks that its actor writes at a time
    wanted: int = 0  # places that it waits for
    life: int = 0  # of its actor, as the site counts
    # by sequence: granted, and the rows have not come
    open: dict[int, Mapping[str, Slot]] = field(default_factory=dict)
    last: LastRows | None = None  # of its rows that have come in this session


class HomeBlocks(Carried):
    """Home's end, for the groups of one site."""

    def __init__(
        self,
        plan: Plan,
        crossing: BlockPacker,
        remotes: Iterable[Remote],
        newest: Newest,
        fences: Mapping[str, Array],
        cut: Callable[[], object],
        kept: Collection[int] = (),
    ) -> None:
        """``fences``: as ``Proxy.specs``; ``cut``: the cut under way, or None. ``kept``: groups
        whose rows wait at the site.
        """
        self._plan, self._crossing, self._newest, self._cut = plan, crossing, newest, cut
        self._remotes = {remote.group: remote for remote in remotes}
        self._gone, self._cancelled = fences["gone"], fences["cancelled"]
        self._kept, self._leaving = {group: self._remotes[group] for group in kept}, False
        self.most = {Kind.WANT: 0, Kind.ROWS: crossing.most, Kind.LOST: 0, Kind.RESTARTED: 0}
        if kept:
            self.most |= {Kind.KEPT: 0, Kind.BROUGHT: block_bytes(self._plan)}

    @property
    def quiet(self) -> bool:
        return not any(remote.open for remote in self._remotes.values())

    def leave(self) -> None:
        self._leaving = True

    def ready(self) -> Iterator[Message]:
        """Yield grants. During a cut there are no messages: a site cannot distinguish an actor that
        waits for a message from an actor that rests.
        """
        for group, remote in self._remotes.items():
            places = list[list[int]]()
            while (
                remote.wanted
                and self._cut() is None
                and not self._leaving
                and self._gone[group] == self._cancelled[group]
            ):
                if (slots := remote.queue.reserve(remote.streams)) is None:
                    break
                sequence = int(slots[self._plan.first].keys[0, 1])
                issued = remote.queue.issued(sequence).tolist() if self._plan.issues else []
                places.append([sequence, *issued])
                remote.wanted -= 1
                remote.open[sequence] = slots
            # the versions: after the blocks were reserved, as an actor here would look
            if places:
                body = np.array([*self._newest.versions(), *chain(*places)], np.int64)
                yield Grant(group, remote.life, body.tobytes())

    def take(self, message: Message) -> None:
        match message:
            case Want(group, life, count):
                remote = lookup(message, "group", group, self._remotes)
                # the slots under way, and the next ones
                most = 2 * (remote.held + 1)
                if count < 1 or remote.wanted + len(remote.open) + count > most:
                    raise Refused(f"want: expected 1 to {most} places of a group, got {count} more")
                remote.wanted += count
                remote.life = life
            case Lost(group, life):
                remote = lookup(message, "group", group, self._remotes)
                remote.life = life
                self._let_go(remote)
            case Restarted(group):
                remote = lookup(message, "group", group, self._remotes)
                if not remote.open:
                    raise Refused(f"restarted: expected group {group} with an open block, got none")
                remote.queue.restart(remote.open[min(remote.open)])
            case Rows(group, sequence, body):
                remote = lookup(message, "group", group, self._remotes)
                slots = self._open(message, remote, sequence)
                if remote.last is None:
                    remote.last = self._crossing.last()
                try:
                    self._crossing.unpack(body, slots, remote.last)
                except ValueError as error:
                    raise Refused(f"rows: {error}") from error
                remote.queue.commit(slots)
            case Kept(group, sequence):
                remote = lookup(message, "group", group, self._kept)
                slots = self._open(message, remote, sequence)
                mark(slots, remote.streams, sequence)
                remote.queue.commit(slots)
            case Brought(group, sequence, body):
                remote = lookup(message, "group", group, self._kept)
                if self._cut() is not None:  # else it was given up meanwhile
                    self._brought(remote, sequence, body)

    def _open(self, message: Message, remote: Remote, sequence: int) -> Mapping[str, Slot]:
        if (slots := remote.open.pop(sequence, None)) is None:
            got = f"{remote.group} has, got {sequence}"
            raise Refused(f"{message.kind.name}: expected a block that group {got}")
        return slots

    def _brought(self, remote: Remote, sequence: int, body: Body) -> None:
        """Rows that wait at the site come, so that a checkpoint has them."""
        block = remote.queue.block(sequence % self._plan.blocks)
        stream = int(next(iter(block.values())).context["stream"][0])
        if marked(block) != sequence or stream != int(remote.streams[0]):
            return  # home had taken the block back before it heard that the rows were complete
        try:
            put_back(self._plan, block, body)
        except ValueError as error:
            raise Refused(f"brought: {error}") from error

    def forget(self) -> None:
        for remote in self._remotes.values():
            self._let_go(remote)
            if remote.last is not None:
                remote.last.known = False

    def _let_go(self, remote: Remote) -> None:
        """Forget the blocks of a group; the driver takes them back."""
        remote.open.clear()
        remote.wanted = 0
        self._gone[remote.group] += 1


@dataclass(slots=True)
class _Granted:
    """Places that home gave at once, which wait for weights or for free slots."""

    places: Array  # [n, 1 + prompts] int64: the sequence of each, and the prompts issued for it
    versions: Array  # [policies] int64


@dataclass(slots=True)
class _Group:
    """The site's state of a group, besides the words of ``Outbound``."""

    outbound: Outbound
    at: int  # its place there
    crossing: BlockPacker
    last: LastRows  # of its rows that crossed in this session
    told: int = 0  # the number of its wants that home has
    life: int = 0  # of its actor
    restarted: int = 0
    pending: deque[_Granted] = field(default_factory=deque)


class SiteBlocks(Carried):
    """The site's end, for the groups that write there."""

    def __init__(
        self,
        outbound: Sequence[Outbound],
        stacks: Mapping[str, Mapping[str, Stack]],
        weights: SiteWeights,
        policies: int,
        counted: Callable[[int], Iterable[Message]],
        waiting: Waiting | None = None,
        kept: Collection[int] = (),
    ) -> None:
        """``outbound``: of each learner; ``stacks``: of each policy's observations, as in
        ``EnvSpec``. ``weights``: the stores of all ``policies``. ``counted``: the counts that home
        gets before a group's rows.

        ``waiting``: complete blocks for shards of this site, and ``kept``: the groups that those
        blocks come from.
        """
        self._outbound, self._weights, self._policies = outbound, weights, policies
        self._counted = counted
        self._waiting, self._kept, self._groups = waiting, kept, dict[int, _Group]()
        for one in outbound:
            crossing = BlockPacker(one.plan, stacks)
            self._groups |= {
                group: _Group(one, at, crossing, crossing.last())
                for at, group in enumerate(one.groups)
            }
        # by place, the group and the sequence of each block that waits
        self._wait: dict[int, tuple[int, int]] = {}
        self._brings = self._leaving = False
        self.dropped = 0  # slots whose rows were not sent, since their block was taken away
        self._width = 1 + max((one.plan.issues for one in outbound), default=0)
        places = max((one.slots for one in outbound), default=0)
        self.most = {Kind.GRANT: 8 * (policies + places * self._width)}

    @property
    def quiet(self) -> bool:
        return all(one.quiet for one in self._outbound) and not any(
            group.pending for group in self._groups.values()
        )

    def leave(self) -> None:
        self._leaving = True

    def bring(self) -> None:
        """Send all blocks that wait: a checkpoint is to have them."""
        self._brings = True

    def taken(self, place: int) -> None:
        """The learner has taken the block that waits here."""
        self._wait.pop(place, None)

    def take(self, message: Message) -> None:
        match message:
            case Grant(number, life, body):
                group, size = lookup(message, "group", number, self._groups), len(body)
                past = size - 8 * self._policies
                if past <= 0 or past % (8 * self._width):
                    raise Refused(f"grant: expected {self._policies} versions, got {size} bytes")
                # it was for an actor that died meanwhile, and home has taken it back
                if life != group.life:
                    return
                versions, places = np.split(np.frombuffer(body, np.int64), [self._policies])
                places = places.reshape(-1, self._width)
                count = len(places) + sum(len(one.places) for one in group.pending)
                most = group.outbound.slots
                if count > most:
                    raise Refused(f"grant: expected at most {most} places that wait, got {count}")
                group.pending.append(_Granted(places, versions))

    def forget(self) -> None:
        for group in self._groups.values():
            self._forget(group)
            group.last.known = False
        self._brings = False

    def _forget(self, group: _Group) -> None:
        """Home has taken the blocks of the group back, or will."""
        group.outbound.void(group.at)
        group.pending.clear()
        words = group.outbound.words
        group.told, group.life, group.restarted = (
            int(words[name][group.at]) for name in ("granted", "lives", "restarted")
        )

    def ready(self) -> Iterator[Message]:
        """The wants and the rows of actors: the next want first, so that the answer meets the
        rows.
        """
        for number, group in self._groups.items():
            words, at = group.outbound.words, group.at
            if (life := int(words["lives"][at])) != group.life:
                yield from self._rows(number, group)  # of the dead one, which it had handed in
                self._forget(group)
                yield Lost(number, life)
            while group.restarted < words["restarted"][at]:
                group.restarted += 1
                if group.outbound.writes(at):
                    yield Restarted(number)
            if (more := int(words["want"][at]) - group.told) > 0 and not self._leaving:
                group.told += more
                yield Want(number, group.life, more)
            yield from self._rows(number, group)
        if self._brings:
            self._brings = False
            for place, (number, sequence) in self._wait.items():
                assert self._waiting is not None
                yield Brought(number, sequence, self._waiting.read(place).tobytes())
        for group in self._groups.values():
            self._grant(group)

    def _rows(self, number: int, group: _Group) -> Iterator[Message]:
        while (found := group.outbound.complete(group.at)) is not None:
            n, sequence, data = found
            if sequence == VOID:
                self.dropped += 1
            else:
                yield from self._counted(number)
                if number in self._kept:
                    yield self._keep(number, sequence, data)
                else:
                    yield Rows(number, sequence, group.crossing.pack(data, group.last).data)
            group.outbound.sent(group.at, n)

    def _keep(self, number: int, sequence: int, data: Array) -> Message:
        """Let a complete block wait for its shard."""
        assert self._waiting is not None
        place = sequence % self._waiting.plan.blocks
        self._waiting.write(place, data)
        self._wait[place] = number, sequence
        return Kept(number, sequence)

    def _grant(self, group: _Group) -> None:
        """Hand out places whose weights are here."""
        while group.pending and self._weights.here((granted := group.pending[0]).versions):
            sequences, issued = granted.places[:, 0].tolist(), granted.places[:, 1:]
            granted.places = granted.places[group.outbound.grant(group.at, sequences, issued) :]
            if len(granted.places):  # no slot is free
                break
            group.pending.popleft()
