"""Envs that are stepped on one machine and acted for on another: both halves of the exchange
between them.

At home a ``RemoteEnvs`` takes the place of the env worker: it passes on what is asked, and writes
the rows that come back. At the site a ``RemoteInference`` takes the place of the inference worker.

Each ask has a number in the exchange, and one answer: the rows, or the news that the envs are not
at the row before the answer (their worker died). An ask that comes a second time, since a session
ended meanwhile, gets the same answer, for the rows lie where they are until the next ask. So no
step is lost with a session, and no step is taken twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from equipoise.actors.inference.exchange import EPOCH, Exchange
from equipoise.experience.queue.unstacked import stack_paths
from equipoise.publishing import publish
from equipoise.runtime.cluster.carried import Carried
from equipoise.runtime.cluster.frames import Body, Hold, Kind, Message, Step, Stepped, Unstepped
from equipoise.runtime.cluster.parts import Arrays
from equipoise.runtime.cluster.wire import Refused, lookup
from equipoise.types import Array, Stack

NEVER = -1 << EPOCH  # of ``asked``: not asked yet
# masks an ask's number in its epoch: 0 asks for the first rows of new episodes
FIRST = (1 << EPOCH) - 1


class Rows:
    """A group's rows of one step, as they travel. A stack that follows from the last one sends its
    newest frame alone.

    The bytes: leaves that are no stack; then of each stack [B] whether it follows, the newest
    frames [B, frame], and the older frames of the stacks that do not follow [n, k - 1, frame].
    """

    def __init__(self, arrays: Mapping[str, Array], stacks: Mapping[str, Stack]) -> None:
        """``arrays``: the arrays by path; ``stacks``: the stacks among them, by the same paths."""
        self._plain = Arrays(*(array for path, array in arrays.items() if path not in stacks))
        self._stacks = [
            array.reshape(len(array), stacks[path].frames, -1).view(np.uint8)
            for path, array in arrays.items()
            if path in stacks
        ]
        self._last: list[Array] = []  # the sender's, from the first that it keeps
        self._known = False
        # if all follow
        self.least = self._plain.nbytes + sum(
            len(stack) + stack[:, 0].nbytes for stack in self._stacks
        )
        self.most = self._plain.nbytes + sum(len(stack) + stack.nbytes for stack in self._stacks)

    def keep(self, *, known: bool) -> None:
        """The sender's: the next rows follow from these, if the receiver has them."""
        self._known = known
        self._last = self._last or [np.empty_like(stack) for stack in self._stacks]
        for last, stack in zip(self._last, self._stacks, strict=True):
            np.copyto(last, stack)

    def read(self) -> bytes:
        parts = [self._plain.read()]
        for last, stack in zip(self._last, self._stacks, strict=True):
            follows = (stack[:, :-1] == last[:, 1:]).all((1, 2)) & self._known
            parts += [follows.tobytes(), stack[:, -1].tobytes(), stack[~follows, :-1].tobytes()]
        return b"".join(parts)

    def write(self, data: Body) -> None:
        """The receiver's; ValueError, and nothing is written, if these are no such rows."""
        body = np.frombuffer(data, np.uint8)
        at, found = self._plain.nbytes, list[tuple[Array, Array, Array]]()
        for stack in self._stacks:
            streams, frames, frame = stack.shape
            follows, at = body[at : at + streams] != 0, at + streams
            newest, at = body[at : at + streams * frame], at + streams * frame
            older = body[at : at + (size := int((~follows).sum()) * (frames - 1) * frame)]
            at = at + size
            found.append((follows, newest, older))
        if at != len(body):
            raise ValueError(f"expected {at:,} bytes of rows, got {len(body):,}")
        self._plain.write(body[: self._plain.nbytes].data)
        for stack, (follows, newest, older) in zip(self._stacks, found, strict=True):
            stack[:, :-1] = stack[:, 1:]
            stack[~follows, :-1] = older.reshape(-1, *stack[0, :-1].shape)
            stack[:, -1] = newest.reshape(len(stack), -1)


def _halves(
    exchange: Exchange, group: int, stacks: Mapping[str, Mapping[str, Stack]]
) -> tuple[Rows, Arrays]:
    rows, actions = exchange.arrays(group)
    named = {
        f"{name}/{path}": stack
        for name, of_it in stacks.items()
        for path, stack in stack_paths(of_it).items()
    }
    return Rows(rows, named), Arrays(*actions.values())


class RemoteEnvs:
    """Home's half, for one group."""

    def __init__(
        self, exchange: Exchange, group: int, stacks: Mapping[str, Mapping[str, Stack]]
    ) -> None:
        """``stacks``: of each policy's observations, as in ``EnvSpec``."""
        self._words, self._g = exchange.words, group
        self.rows, self.actions = _halves(exchange, group, stacks)
        self.forget()

    def forget(self) -> None:
        """A session has ended: messages passed on in it may not have come."""
        self._passed, self._held = NEVER, 0

    def asks(self) -> tuple[int, bool, bytes] | None:
        """(ask, whole stacks, actions) that was not passed on yet; None: there is none.

        Full stacks are wanted if the last answer may be half-written or the site missed it.
        """
        asked, whole = int(self._words["asked"][self._g]), self._passed == NEVER
        if asked == self._passed or not self._open(asked):
            return None
        self._passed = asked
        return asked, whole, self.actions.read() if asked & FIRST else b""

    def holds(self) -> int:
        """The cut for which the env worker may save from now on; 0: as before."""
        held = int(self._words["held"][self._g])
        if held == self._held:
            return 0
        self._held = held
        return held

    def answer(self, asked: int, anew: bool, rows: Body) -> bool:
        """Hand the rows to the inference worker; False: it does not wait for them any more.
        ValueError if they are not such rows.
        """
        if not self.waits(asked):
            return False
        if asked & FIRST or anew:
            self.rows.write(rows)
        if not asked & FIRST:
            self._words["anew"][self._g] = anew
        publish(self._words["answered"], self._g, asked + 1)
        return True

    def waits(self, asked: int) -> bool:
        """Is this what the inference worker waits for?"""
        return asked == self._passed == int(self._words["asked"][self._g]) and self._open(asked)

    def _open(self, asked: int) -> bool:
        current = asked >> EPOCH == int(self._words["epoch"][self._g])
        return current and int(self._words["answered"][self._g]) != asked + 1


class RemoteInference:
    """The site's half, for one group. The exchange's epochs are this machine's own; 0, before
    anything was lost, is also home's.
    """

    def __init__(
        self, exchange: Exchange, group: int, stacks: Mapping[str, Mapping[str, Stack]]
    ) -> None:
        """``stacks``: of each policy's observations, as in ``EnvSpec``."""
        self._words, self._g = exchange.words, group
        self.rows, self.actions = _halves(exchange, group, stacks)
        publish(self._words["asked"], group, NEVER)
        self.asked: int | None = None  # home's ask that the env worker answers
        self.steps = 0  # that the envs were asked for
        self._epoch = 0  # in which it was asked
        self._owed = False  # home may not have the answer
        self._called = False  # was it asked for in this session?
        self._told = False  # were the rows of the last answer sent?
        # actions for envs that come from another machine, once they are there
        self._first: bytes | None = None

    @property
    def quiet(self) -> bool:
        """Has the env worker answered, and has home heard of it, so that it waits for the
        next ask?
        """
        asked = int(self._words["asked"][self._g])
        return asked != NEVER and not self._owed and self._first is None and self._answered(asked)

    def _answered(self, asked: int) -> bool:
        return int(self._words["answered"][self._g]) == asked + 1 and self._current

    @property
    def _current(self) -> bool:
        """Does the env worker live that was asked?"""
        return int(self._words["epoch"][self._g]) == self._epoch

    def forget(self) -> None:
        """A session has ended: its messages may not have come. Home will ask once more, if so."""
        self._owed, self._called = self.asked is not None, False

    def hold(self, cut: int) -> None:
        """The env worker may save for this cut."""
        publish(self._words["held"], self._g, cut)

    def ask(self, asked: int, whole: bool, actions: Body) -> None:
        """Home asks: pass it on to the env worker, unless it has this very ask. ``whole``: does
        home want whole stacks?
        """
        words, g, before = self._words, self._g, self.asked
        self._owed = self._called = True
        if asked == before:
            self.rows.keep(known=False)
            return
        # it asks on from what it took
        self.rows.keep(known=self._told and before == asked - 1 and not whole)
        self._told = False
        self.asked, local = asked, int(words["asked"][g])
        publish(words["held"], g, 0)
        if not asked & FIRST:
            self._first = None
            # else it is the first of all, and envs of a resume are at the row that it left
            if asked or local != NEVER:
                publish(words["epoch"], g, words["epoch"][g] + 1)
            self._epoch = int(words["epoch"][g])
            publish(words["asked"], g, self._epoch << EPOCH)
        elif local == NEVER:
            self._first = bytes(actions)
            self._epoch = 0
            publish(words["asked"], g, 0)
        elif before == asked - 1 and self._answered(local):
            self._write(actions)
        else:
            self._epoch = -1  # the envs are not at the row that home expects

    def _write(self, actions: Body) -> None:
        self.steps += 1
        self.actions.write(actions)
        publish(self._words["asked"], self._g, self._words["answered"][self._g])

    def answers(self) -> tuple[int, bool, bytes | None] | None:
        """(ask, are the episodes new, rows) that home does not have yet; rows are None if the envs
        were lost.
        """
        if not (self._owed and self._called) or self.asked is None:
            return None
        words, g = self._words, self._g
        if not self._current:
            self._owed = False
            return self.asked, False, None
        if not self._answered(int(words["asked"][g])):
            return None
        anew = bool(words["anew"][g])
        if (first := self._first) is not None:
            self._first = None
            if anew:  # the envs could not be brought back
                self._owed = False
                return self.asked, False, None
            self._write(first)
            return None
        self._owed = False
        self._told = bool(self.asked & FIRST) or anew
        return self.asked, anew, self.rows.read() if self._told else b""


class HomeSteps(Carried):
    """Home's end, for the groups of one site that are acted for at home."""

    def __init__(
        self,
        envs: Mapping[int, RemoteEnvs],
        fences: Mapping[str, Array],
        wake: Callable[[int], object] = lambda group: None,
    ) -> None:
        """``envs``: by group; ``fences``: as ``Proxy.specs``. ``wake`` is called with a group
        that has an answer.
        """
        self._envs, self._gone = envs, fences["gone"]
        self._cancelled, self._wake = fences["cancelled"], wake
        self.most = {
            Kind.STEPPED: max((one.rows.most for one in envs.values()), default=0),
            Kind.UNSTEPPED: 0,
        }

    def take(self, message: Message) -> None:
        match message:
            case Stepped(group, ask, anew, body):
                try:
                    remote = lookup(message, "group", group, self._envs)
                    news = remote.answer(ask, bool(anew), body)
                except ValueError as error:
                    raise Refused(f"stepped: {error}") from error
                if news:
                    self._wake(group)
            case Unstepped(group, ask):
                waits = lookup(message, "group", group, self._envs).waits(ask)
                if waits and self._gone[group] == self._cancelled[group]:
                    self._gone[group] += 1  # the driver begins their episodes again

    def ready(self) -> Iterator[Message]:
        for group, remote in self._envs.items():
            if (found := remote.asks()) is not None:
                ask, whole, actions = found
                yield Step(group, ask, int(whole), actions)
            if held := remote.holds():
                yield Hold(group, held)

    def forget(self) -> None:
        for remote in self._envs.values():
            remote.forget()


class SiteSteps(Carried):
    """The site's end."""

    def __init__(
        self, inferences: Mapping[int, RemoteInference], counted: Callable[[int], Iterable[Message]]
    ) -> None:
        """``inferences``: by group. ``counted``: the counts that home gets before an answer for a
        group.
        """
        self._inferences, self._counted, self._leaving = inferences, counted, False
        self._put_off: dict[int, Step] = {}  # asks that came while this site leaves, by group
        self.most = {
            Kind.STEP: max((one.actions.nbytes for one in inferences.values()), default=0),
            Kind.HOLD: 0,
        }

    @property
    def quiet(self) -> bool:
        """Do all envs wait for what is asked next?"""
        return all(inference.quiet for inference in self._inferences.values())

    def leave(self) -> None:
        self._leaving = True

    def forget(self) -> None:
        self._put_off.clear()
        for inference in self._inferences.values():
            inference.forget()

    def take(self, message: Message) -> None:
        match message:
            case Step(group, ask, whole, body):
                inference = lookup(message, "group", group, self._inferences)
                size = inference.actions.nbytes if ask & FIRST else 0
                if len(body) != size:
                    raise Refused(f"step: expected {size} bytes of actions, got {len(body)}")
                # another machine will take that step
                if self._leaving and inference.quiet and ask != inference.asked:
                    self._put_off[group] = message
                else:
                    self._put_off.pop(group, None)
                    inference.ask(ask, bool(whole), body)
            case Hold(group, cut):
                lookup(message, "group", group, self._inferences).hold(cut)

    def ready(self) -> Iterator[Message]:
        for group, inference in self._inferences.items():
            # its envs were lost before they moved
            if not inference.quiet and (step := self._put_off.pop(group, None)) is not None:
                inference.ask(step.ask, bool(step.whole), step.body)
            if (answer := inference.answers()) is None:
                continue
            asked, anew, rows = answer
            yield from self._counted(group)
            yield (
                Unstepped(group, asked) if rows is None else Stepped(group, asked, int(anew), rows)
            )
