"""Worlds as an ``Env`` of B streams: each has a seat for a world, and the next rows are there when
each world has sent one.

A world that has not answered holds the other streams of its env up, for at most its grace. After
that its episode is aborted, and its rows are masked (``valid`` False, ``first`` True, reward 0, a
harmless observation) until another world, or the same, begins an episode there. If no stream has a
world no row is returned: there would be nothing to learn from::

                world gone, longer than its grace     gone, and another came      the world began anew by itself
    obs         o0  o1  -   -   p0  p1                o0  o1  p0  p1              o0  o1  p0  p1
    first       x       x   x   x                     x       x                   x       x
    valid           x               x                     x       x                   x       x
"""  # noqa: E501

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from equipoise import tree
from equipoise.envs.base import ANSWERED, SyncEnv, make_seam
from equipoise.envs.failures.row_checks import leaves
from equipoise.envs.infos import NoNumber
from equipoise.envs.spaces import action_spec, observation_spec
from equipoise.envs.worlds.door import Door
from equipoise.envs.worlds.protocol import Reader, Refused, plain, plain_rows
from equipoise.envs.worlds.seat import Seat
from equipoise.frames import BadFrame, Message
from equipoise.seeds import stream_seed
from equipoise.types import Array, TimeStep, Tree

# in which ``recv`` looks for messages of worlds, before its caller has its turn again
WAIT_S = 0.005


FLOAT32 = float(np.finfo(np.float32).max)


class WorldGone(RuntimeError):
    """The world of an episode was gone for longer than its grace, or had to go."""


class BegunAnew(RuntimeError):
    """The world began another episode before the last one had ended."""


class RemoteEnv(SyncEnv):
    """``TimeStep.taken`` has the actions that worlds report as taken, if ``TimeStep.differs`` from
    the sent ones.
    """

    def __init__(
        self,
        target: str,
        arguments: Mapping[str, object],
        *,
        streams: Array,
        seed: int,
        action_mask: str,
    ) -> None:
        self._door = Door(target, arguments)
        try:
            spaces = self._door.spaces
            super().__init__(
                observation=spaces.observation,
                action=spaces.action,
                streams=streams,
                action_mask=action_mask,
            )
        except BaseException:
            self._door.close()
            raise
        self._target, self._seed = target, seed
        spec, count = action_spec(spaces.action), len(streams)
        taken = tree.zeros(tree.prepend(spec, count))
        self._differs = np.zeros(count, np.bool_)
        self.ts = replace(self.ts, taken=taken, differs=self._differs)
        self._bounds = list(leaves(spaces.action, taken, "took"))
        self._observation = Reader(observation_spec(spaces.observation), self.ts.obs, "obs")
        self._taken = Reader(spec, taken, "took")
        self._seats = [Seat(spaces.frame_bytes) for _ in streams]
        # ``dealt`` of each seat when it last asked for a world
        self._wanted = [-1] * count
        self._playing = np.zeros(count, np.bool_)  # is an episode running, as the rows show it
        self._session = [0] * count  # which of its seat's sessions the last row was of
        # episodes that were aborted here and whose world has not heard of it
        self._lost = np.zeros(count, np.bool_)
        self._conns: list[Any] = []  # that the poll object is of
        self._polled: Any = None
        self._by_fd: dict[int, Seat] = {}
        self._beating = threading.Event()  # set: it is over
        self._beats: threading.Thread | None = None

    # ------------------------------------------------------------------------------------ as an Env

    def send(self, action: Tree, stream: Array) -> None:
        super().send(action, stream)
        for i, (seat, one) in enumerate(
            zip(self._seats, plain_rows(self.form, self.action), strict=True)
        ):
            if seat.asks:  # it is not between two episodes, and there is a world
                if self._lost[i]:
                    seat.lose()
                else:
                    seat.answer({"action": one})
        self._lost.fill(False)

    def recv(self) -> TimeStep | None:  # type: ignore[override]
        """Return the next rows; None while a world is still to answer."""
        if self._phase == ANSWERED:
            raise RuntimeError("recv: no action was sent")
        return super().recv() if self._listen() else None

    def fds(self) -> tuple[int, ...]:
        return (
            self._door.fileno(),
            *(seat.conn.fileno() for seat in self._seats if seat.conn is not None),
        )

    def _closes(self) -> list[tuple[int | None, Callable[[], object]]]:
        return [(None, self._leave)]

    def _leave(self) -> None:
        self._beating.set()
        if self._beats is not None:
            self._beats.join()
        for seat in self._seats:
            seat.disconnect()
        self._door.close()

    # --------------------------------------------------------------------------------------- worlds

    def _listen(self) -> bool:
        """Look for messages of worlds, for a moment -> is there a row of every stream?"""
        if self._beats is None:
            self._begin()
        wait_s, until = WAIT_S, time.monotonic() + WAIT_S
        while not self._ready():
            self._hear(self._poll().poll(1000 * wait_s))
            now = time.monotonic()
            self._look(now)  # after all was read: unread messages are no silence
            wait_s = until - now
            if wait_s <= 0:
                return self._ready()
        return True

    def _begin(self) -> None:
        for seat in self._seats:
            seat.heard = time.monotonic()  # a grace from now on for first connections
        self._look(time.monotonic())
        self._beats = threading.Thread(
            target=self._beat, name=f"beats of {self._target}", daemon=True
        )
        self._beats.start()

    def _beat(self) -> None:
        while not self._beating.wait(self._door.heartbeat_s):
            for seat in self._seats:
                seat.beat()

    def _ready(self) -> bool:
        """Has each stream a row, or no world for longer than a grace? At least one has a row."""
        some = False
        for seat in self._seats:
            if seat.rows:
                some = True
            elif not seat.away:
                return False
        return some

    def _look(self, now: float) -> None:
        """Give up the worlds that were silent for longer than their grace, and ask for others."""
        for i, seat in enumerate(self._seats):
            if not seat.rows and now - seat.heard > self._door.grace_s:
                seat.away = True
                if seat.session is not None:
                    seat.leave()
            if seat.session is None and self._wanted[i] != seat.dealt:
                self._wanted[i] = seat.dealt
                self._door.want(i, seat.dealt)

    def _poll(self) -> Any:
        conns = [seat.conn for seat in self._seats]
        if self._conns != conns or self._polled is None:
            self._conns, self._polled = conns, select.poll()
            self._by_fd = {
                seat.conn.fileno(): seat for seat in self._seats if seat.conn is not None
            }
            for fd in (self._door.fileno(), *self._by_fd):
                self._polled.register(fd, select.POLLIN)
        return self._polled

    def _hear(self, events: Sequence[tuple[int, int]]) -> None:
        door = False
        for fd, _ in events:
            if (seat := self._by_fd.get(fd)) is None:
                # after the others: a new connection may get a descriptor that was closed just now
                door = True
                continue
            try:
                seat.read()
            except Refused as refused:
                seat.refuse(refused)
        for one in self._door.read() if door else ():
            seat, stream = self._seats[one.seat], int(self.ts.stream[one.seat])
            seat.dealt += 1
            seat.connect(
                one.conn,
                one.session,
                one.name,
                stream=stream,
                seed=stream_seed(self._seed, stream, seat.begun),
                times={"grace_s": self._door.grace_s, "heartbeat_s": self._door.heartbeat_s},
            )

    # ----------------------------------------------------------------------------------------- rows

    def _reset(self) -> None:
        for i in range(len(self._seats)):
            message = self._next(i)
            self._playing[i] = message is not None
            self._session[i] = 0 if message is None else message["session"]

    def _step(self) -> None:
        ts = self.ts
        ended = np.logical_or(ts.terminated, ts.truncated).tolist()
        some_begin = False
        for i in range(len(self._seats)):
            message = self._next(i)
            begins = message is None or message.get("first", False)
            some_begin |= begins
            if begins and self._playing[i] and not ended[i]:
                self._count(i, message)
            self._playing[i] = message is not None
            self._session[i] = self._session[i] if message is None else message["session"]
            ts.first[i], ts.valid[i] = begins, not begins
            row: Mapping[str, Tree] = {} if begins or message is None else message
            reward = float(row.get("reward", 0.0))
            ts.reward[i] = math.copysign(math.inf, reward) if abs(reward) > FLOAT32 else reward
            ts.terminated[i], ts.truncated[i] = (
                row.get("terminated", False),
                row.get("truncated", False),
            )
        if not self.checks.fine(begins=some_begin):
            self._judge()

    def _next(self, i: int) -> Message | None:
        """A stream's next row, with its observation and action; None without a world."""
        seat, self._differs[i] = self._seats[i], False
        if seat.rows:
            message = seat.rows.popleft()
            try:
                self._observation(i, message.get("obs"))
                if not message.get("first", False):
                    self._take(i, message)
                return message
            except (BadFrame, NoNumber) as error:
                seat.refuse(Refused("observe", str(error)))
                seat.rows.clear()
        self._differs[i] = False
        self.checks.fill([i])
        return None

    def _take(self, i: int, message: Message) -> None:
        """The numbers and the action of a row that is no episode's first."""
        if self.infos is not None:
            info = message.get("info", {})
            self.infos.read_one(i, info if isinstance(info, Mapping) else {})
        if message.get("took") is None:
            return
        self._taken(i, message["took"])
        for one in self._bounds:
            if not one.within()[i].all():
                raise BadFrame(
                    f"{one.key}: expected an action of the space that was stated, got "
                    f"{plain(one.array[i])}"
                )
        pairs = zip(tree.leaves(self.ts.taken), tree.leaves(self.action), strict=True)
        self._differs[i] = any(
            not np.array_equal(taken[i], sent[i].astype(taken.dtype)) for taken, sent in pairs
        )

    def _count(self, i: int, message: Message | None) -> None:
        """Count an episode without an end. ``message``: the next one's beginning, if any."""
        if self.failures is None:
            return
        if message is not None and message["session"] == self._session[i]:
            self.failures.aborted(
                BegunAnew("the world began another episode before the last one had ended")
            )
        else:
            grace = (
                f"the world was gone for longer than its grace of {self._door.grace_s:g} s, or "
                "had to go"
            )
            self.failures.aborted(WorldGone(grace))

    def _abort(self, i: int, error: Exception) -> None:
        assert self.failures is not None
        if self.failures.ends_the_run(error):
            raise error
        self.failures.aborted(error)
        make_seam(self.ts, i)
        self._differs[i] = False
        self.checks.fill([i])
        self._playing[i], self._lost[i] = False, True

    def _record(self, i: int | None, error: Exception) -> None:
        """Write no capsule: the world cannot be brought back to where it was."""

    def _one(self, i: int | None) -> object:
        return self._target if i is None else f"{self._target} ({self._seats[i].name})"
