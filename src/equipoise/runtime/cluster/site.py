"""A site: the half of every line where the actors are. It carries their rows home, and brings grants and weights.

The actors work as those at home do, over the memory of their machine; ``experience/queue/outbound.py`` is what they have for a
queue, and the site is the one process that publishes into their weight stores. When a session ends, the actors go on with the
slot that they have, whose rows are dropped; they get the next one once there is a session again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from equipoise.experience.queue.outbound import VOID, Outbound
from equipoise.experience.queue.unstacked import Crossing, Last
from equipoise.runtime.cluster.frames import (
    Ask,
    Asked,
    Cut,
    Denied,
    Expelled,
    File,
    Grant,
    Hello,
    Hold,
    Kind,
    Known,
    LetGo,
    Lost,
    Message,
    Restarted,
    Rows,
    Said,
    Statistics,
    Step,
    Stepped,
    Stop,
    Unstepped,
    Want,
    Weights,
    Welcome,
)  # fmt: skip
from equipoise.runtime.cluster.keeping import SiteShards
from equipoise.runtime.cluster.line import SILENT_S, Line, Link
from equipoise.runtime.cluster.parts import Part
from equipoise.runtime.cluster.stepping import FIRST, Asker
from equipoise.runtime.cluster.wire import BOTH, WORDS, Refused, read, words
from equipoise.types import Stack, Tick

AGAIN_S = 1.0  # after which home is asked again to begin a session
STATISTICS_S = 0.25  # between two reports of what workers count, where no rows take them along
AHEAD = 1 << 20  # sessions that home may have begun and this site has not heard of


class Store(Protocol):
    """The weights of one policy on this machine."""

    @property
    def nbytes(self) -> int: ...  # of ``publish_bytes``
    @property
    def version(self) -> int: ...
    def publish_bytes(self, version: int, data: Any) -> None: ...


@dataclass(slots=True)
class _Granted:
    """Places that home gave at once, which wait for weights or for free slots."""

    sequences: list[int]
    versions: Any  # [policies] int64


@dataclass(slots=True)
class _Group:
    """What the site knows of a group besides the words of ``Outbound``."""

    last: Last  # of its rows that crossed in this session
    told: int = 0  # of its wants, home knows of so many
    life: int = 0  # of its actor
    restarted: int = 0
    pending: deque[_Granted] = field(default_factory=deque)


class SiteEnd:
    """A state machine that is ticked: it waits for nothing, and knows neither processes, sockets nor Ray."""

    def __init__(
        self, name: str, incarnation: int, link: Link, outbound: Sequence[Outbound], stores: Sequence[Store],
        parts: Mapping[int, Part], of_group: Mapping[int, Sequence[int]], *, digest: str,
        cut: Callable[[int, int, bool], object], ended: Callable[[str], object], stacks: Mapping[str, Mapping[str, Stack]],
        silent_s: float = SILENT_S, askers: Mapping[int, Asker] = MappingProxyType({}),
        meeting: Mapping[int, Part] = MappingProxyType({}), known: Mapping[int, Part] = MappingProxyType({}),
        shards: SiteShards | None = None,
    ) -> None:  # fmt: skip
        """``outbound``: of each learner; ``stores``: of each policy; ``parts``: what the workers here count, by home's
        numbers; ``of_group``: the numbers of those that go home before the group's rows do.

        ``digest``: of the Program. ``cut`` is called with the number and the step of a cut that workers are to save for, and
        whether it is the learners' turn; ``ended`` with the reason why this site is of no more use. ``stacks``: of each
        policy's observations, as in ``EnvSpec``. ``askers``: by group, of those whose envs are stepped here and acted for at
        home. ``meeting``: what the learners here say to the others, by home's numbers, and ``known``: what those say. Where
        there are learners they publish into ``stores``, instead of this end. ``shards``: those that keep rows here.
        """
        self._shards = SiteShards() if shards is None else shards
        self._askers, self._meeting, self._known = askers, meeting, known
        self._counted: dict[int, bytes] = {}  # what home knows of the parts of those groups, by number
        self._put_off: dict[int, Step] = {}  # asks that came while this site leaves, by group
        self._name, self._incarnation, self._digest, self._cut, self._ended = name, incarnation, digest, cut, ended
        self._outbound, self._stores, self._parts, self._of_group = outbound, stores, parts, of_group
        self._crossing = [Crossing(one.plan, stacks) for one in outbound]
        self._groups = {
            (o, at): _Group(self._crossing[o].last()) for o, one in enumerate(outbound) for at in range(len(one.groups))
        }
        most = {
            Kind.WELCOME: 0, Kind.EXPELLED: 0, Kind.REFUSED: WORDS, Kind.CUT: 0, Kind.LET_GO: 0, Kind.STOP: 0, Kind.HOLD: 0,
            Kind.GRANT: 8 * (len(stores) + max((one.slots for one in outbound), default=0)),
            Kind.STEP: max((one.actions.nbytes for one in askers.values()), default=0),
            Kind.WEIGHTS: max((store.nbytes for store in stores), default=0),
            Kind.KNOWN: max((part.nbytes for part in known.values()), default=0),
            Kind.ASKED: self._shards.most, **BOTH,
        }  # fmt: skip
        self.line = Line(link, most, silent_s)
        self._nonce = incarnation << 32  # no other process of this site has it
        self._asked_at: float | None = None  # when home was asked to begin a session
        self._asked = [False] * len(stores)  # for weights
        self._counted_at = 0.0
        self.sessions = 0  # that have begun
        self.leaving = False  # does home ask for the actors, to give them to another machine?
        self.dropped = 0  # slots whose rows were not sent, since their block was taken away

    @property
    def joined(self) -> bool:
        return bool(self.line.session)

    def tick(self, now: float) -> Tick:
        worked = self._hear(now)
        if not self.joined:
            self._ask(now)
        for (o, at), group in self._groups.items():
            worked |= self._carry(o, at, group)
        worked |= self._grant()
        for number, asker in self._askers.items():
            worked |= self._answer(number, asker)
        for number, part in self._meeting.items():
            worked |= self._meet(number, part)
        worked |= self._shards.tell(self.line)
        if self.joined and now - self._counted_at >= STATISTICS_S:
            self._counted_at = now
            self._count(self._parts)
        return Tick.WORKED if worked else Tick.STARVED

    @property
    def idle(self) -> bool:
        """Have all groups handed in every place that they got, and are the rows under way?

        And do envs that are acted for at home wait for what is asked next?
        """
        if not all(asker.quiet for asker in self._askers.values()):
            return False
        return all(one.quiet for one in self._outbound) and not any(group.pending for group in self._groups.values())

    def count(self) -> None:
        """Send home what all workers here count."""
        self._count(self._parts)

    def say(self, title: str, message: Mapping[str, Any]) -> None:
        """Pass on what a worker told its driver."""
        self.line.send(Said(words(title=title, message=message)))

    def files(self, title: str, files: Mapping[str, bytes], then: Mapping[str, Any] | None = None) -> None:
        """Send a worker's files of a checkpoint, and after them what it told its driver."""
        for name, data in files.items():
            self.line.send(File(data))
            self.line.send(Said(words(title=title, name=name)))
        if then is not None:
            self.say(title, then)

    # ------------------------------------------------------------------------------------------------------ the session

    def _ask(self, now: float) -> None:
        """Ask home to begin a session, and ask again: what is asked for may not have come."""
        if self._asked_at is None:  # a session has ended, or this is the first
            self._nonce += 1
            for (o, at), group in self._groups.items():
                self._forget(self._outbound[o], at, group)
                group.last.known = False
            self._asked = [False] * len(self._stores)
            self._counted.clear()
            self._put_off.clear()
            for asker in self._askers.values():
                asker.forget()
            self._shards.forget()
        elif now - self._asked_at < AGAIN_S:
            return
        self._asked_at = now
        self.line.outside(Hello(self._incarnation, self._nonce, words(site=self._name, plan=self._digest)))

    def _forget(self, outbound: Outbound, at: int, group: _Group) -> None:
        """Home has taken the blocks of the group back, or will."""
        outbound.void(at)
        group.pending.clear()
        group.told = int(outbound.words["granted"][at])
        group.life = int(outbound.words["lives"][at])
        group.restarted = int(outbound.words["restarted"][at])

    def _hear(self, now: float) -> bool:
        worked, line = False, self.line
        while (frame := line.receive(now)) is not None:
            worked = True
            try:
                self._take(frame.message, now)
            except Refused as error:
                line.refused.add(error.reason)
                line.end()
        line.late.clear()
        if self._asked_at is None and not line.beat(now):
            worked = True  # the session is over: ``_ask`` is next
        return worked

    def _take(self, message: Message, now: float) -> None:
        match message:
            case Welcome(nonce, session):
                if nonce == self._nonce and not self.joined:
                    self.line.begin(session, now)
                    self._asked_at = None
                    self.sessions += 1
            case Expelled(session, nonce):
                if not self.joined:
                    if self._nonce <= nonce < self._nonce + AHEAD:  # home's word that a session began was lost on its way
                        self._nonce, self._asked_at = nonce, None
                elif session == self.line.session:
                    self.line.end()
            case Denied(nonce):
                if nonce in (self._nonce, -1):
                    self._ended(str(read(message).get("why", "home refused it")))
            case Grant():
                self._granted(message)
            case Weights(policy, version, body):
                if not 0 <= policy < len(self._stores) or self._stores[policy].nbytes != len(body):
                    raise Refused("wrong numbers", f"weights: expected a policy's, got {policy} with {len(body):,} bytes")
                self._asked[policy] = False
                if version > self._stores[policy].version:
                    self._stores[policy].publish_bytes(version, body)
            case Asked():
                self._shards.ask(message)
            case Cut(cut, step, last):
                if not last:
                    self._shards.bring(self.line)
                self._cut(cut, step, bool(last))
            case Step(group, ask, whole, body):
                asker = self._asker(message)
                if len(body) != (asker.actions.nbytes if ask & FIRST else 0):
                    raise Refused("wrong numbers", f"step: expected {asker.actions.nbytes} bytes of actions, got {len(body)}")
                if self.leaving and asker.quiet and ask != asker.asked:  # another machine will take that step
                    self._put_off[group] = message
                else:
                    self._put_off.pop(group, None)
                    asker.ask(ask, bool(whole), body)
            case Hold(_, cut):
                self._asker(message).hold(cut)
            case Known(part, body):
                if part not in self._known or self._known[part].nbytes != len(body):
                    raise Refused("wrong numbers", f"known: expected what learners elsewhere say, got part {part}")
                self._known[part].write(body)
            case LetGo():
                self.leaving = True
            case Stop():
                self._ended("")

    def _granted(self, message: Grant) -> None:
        group, most = self._place(message.group)
        size, policies = len(message.body), len(self._stores)
        if size % 8 or size <= 8 * policies:
            raise Refused("wrong numbers", f"grant: expected {policies} versions, got {size} bytes")
        if message.life == group.life:  # else it was for an actor that died meanwhile, and home has taken it back
            versions, sequences = np.split(np.frombuffer(message.body, np.int64), [policies])
            if (count := len(sequences) + sum(len(one.sequences) for one in group.pending)) > most:
                raise Refused("wrong numbers", f"grant: expected at most {most} places that wait, got {count}")
            group.pending.append(_Granted(sequences.tolist(), versions))

    def _place(self, group: int) -> tuple[_Group, int]:
        """A group that is here, and the slots that it has."""
        for o, one in enumerate(self._outbound):
            if group in one.groups:
                return self._groups[o, one.at(group)], one.slots
        raise Refused("wrong numbers", f"grant: expected a group that is here, got {group}")

    def _asker(self, message: Step | Hold) -> Asker:
        if (group := message.group) not in self._askers:
            raise Refused("wrong numbers", f"{message.kind.name}: expected a group that is stepped here, got {group}")
        return self._askers[group]

    # --------------------------------------------------------------------------------------------------- what is carried

    def _carry(self, o: int, at: int, group: _Group) -> bool:
        """Send what a group's actor asks for and what it wrote: its next want first, so that the answer meets the rows."""
        outbound = self._outbound[o]
        worked, number = False, outbound.groups[at]
        if (life := int(outbound.words["lives"][at])) != group.life:
            worked |= self._rows(o, at, group)  # of the dead one, which it had handed in
            self._forget(outbound, at, group)
            group.life = life
            if self.joined:
                self.line.send(Lost(number, life))
        if self.joined:
            while group.restarted < outbound.words["restarted"][at]:
                group.restarted += 1
                if outbound.writes(at):
                    self.line.send(Restarted(number))
            if (more := int(outbound.words["want"][at]) - group.told) > 0 and not self.leaving:
                group.told += more
                self.line.send(Want(number, group.life, more))
                worked = True
        return worked | self._rows(o, at, group)

    def _rows(self, o: int, at: int, group: _Group) -> bool:
        outbound = self._outbound[o]
        worked, number = False, outbound.groups[at]
        while (found := outbound.complete(at)) is not None:
            n, sequence, data = found
            if sequence == VOID or not self.joined:
                self.dropped += 1
            else:
                self._count(self._of_group[number])
                if number in self._shards.kept:
                    self._shards.keep(self.line, number, sequence, data)
                else:
                    self.line.send(Rows(number, sequence, self._crossing[o].pack(data, group.last)))
            outbound.sent(at, n)
            worked = True
        return worked

    def _answer(self, group: int, asker: Asker) -> bool:
        """Send what an env worker answered, or that its envs were lost; before it, what the envs have counted since."""
        if not asker.quiet and (step := self._put_off.pop(group, None)) is not None:  # its envs were lost before they moved
            asker.ask(step.ask, bool(step.whole), step.body)
        if not self.joined or (answer := asker.answers()) is None:
            return False
        asked, anew, rows = answer
        for number in self._of_group[group]:
            if (counted := self._parts[number].read()) != self._counted.get(number):
                self._counted[number] = counted
                self.line.send(Statistics(number, counted))
        if rows is None:
            self.line.send(Unstepped(group, asked))
        else:
            self.line.send(Stepped(group, asked, int(anew), rows))
        return True

    def _meet(self, number: int, part: Part) -> bool:
        """Send what a learner here says to the others; before it, what had been counted when it said so."""
        if not self.joined or (said := part.read()) == self._counted.get(number):
            return False
        self._counted[number] = said
        self._count(self._parts)
        self.line.send(Statistics(number, said))
        return True

    def _count(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.line.send(Statistics(number, self._parts[number].read()))

    def _grant(self) -> bool:
        """Hand out places whose weights are here; ask for the weights of the others."""
        worked = False
        have = np.array([store.version for store in self._stores], np.int64)
        wanted = np.zeros(len(have), bool)
        for (o, at), group in self._groups.items():
            outbound = self._outbound[o]
            while group.pending:
                if (missing := (granted := group.pending[0]).versions > have).any():
                    wanted |= missing
                    break
                given = outbound.grant(at, granted.sequences)
                worked |= given > 0
                del granted.sequences[:given]
                if granted.sequences:  # no slot is free
                    break
                group.pending.popleft()
        for policy in np.flatnonzero(wanted).tolist():
            if not self._asked[policy] and not self._meeting:
                self._asked[policy] = True
                self.line.send(Ask(policy, int(have[policy])))
        return worked
