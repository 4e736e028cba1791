"""The processes of workers on one machine: started, listened to, replaced when they die or hang,
and ended together.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from types import MappingProxyType
from typing import TYPE_CHECKING

from equipoise import phases
from equipoise.deaths import Death, Streak
from equipoise.errors import WorkerFailed
from equipoise.plans.blueprint import Blueprint
from equipoise.runtime.board import Board
from equipoise.runtime.ipc import Bell, Lifeline, Outbox, Pipe, Ringer
from equipoise.runtime.messages import Failed, Message, Note, from_json
from equipoise.runtime.process import forkserver, worker
from equipoise.runtime.process.hangs import Watch
from equipoise.runtime.process.log import Logs
from equipoise.runtime.process.main_module import WithMain, hidden, shipped
from equipoise.runtime.session import Closes
from equipoise.runtime.stats import RunStats
from equipoise.runtime.usage import DRIVER, Usages
from equipoise.runtime.workerfiles import word
from equipoise.types import Array
from equipoise.workers.kind import BeginsAnew, ExchangingKind, Member, StandsIn, Torchless
from equipoise.workers.shared import Shared

if TYPE_CHECKING:
    from equipoise.runtime.process.handles import SharedQueue, SiteSlots

GRACE_S = 5.0  # from the stop word to SIGKILL
STACK_S = 3.0  # for a hanging worker to write its stack
LOAD_S = 3600.0  # instead, if episodes may have to be played again
START_S = 60.0  # for imports and the making of envs, before the deadline of a tick begins
RAISED = "raised an exception"
LOOK_S = 1.0  # how often the driver looks for workers that hang


@dataclass(slots=True, kw_only=True)
class _Child:
    """A worker and the process that it has now."""

    member: Member
    bell: Bell
    outbox: Outbox
    stack: Pipe
    running: BaseProcess | None = None
    pid: int = 0  # its number while it lives
    watch: Watch | None = None  # watches that process
    life: int = 0  # earlier processes that had begun
    replaced: int = 0
    said: str = ""  # its traceback
    error: str = ""  # its exception's name
    cause: str = ""  # and its own words
    final: bool = False  # a successor would fail in the same way
    streak: Streak = field(default_factory=Streak)
    progress: float = 0  # progress when it was started
    log_from: int = 0  # bytes of its log when it was started
    start_at: float | None = None  # when its successor is to start

    @property
    def name(self) -> str:
        return self.member.title

    @property
    def process(self) -> BaseProcess:
        assert self.running is not None, f"{self.name} has no process"
        return self.running

    def close(self) -> None:
        self.outbox.close()
        self.stack.close()


@dataclass(frozen=True, slots=True)
class Died:
    """A worker's process is verified dead. The driver plans its successor."""

    how: str


class Crew:
    """Some workers of a run, each in a process of its own, over memory that they share with this
    process.

    A failure of a worker that is vital (``LearningKind.vital``), or of another that dies again and
    again (``deaths.py``), raises ``WorkerFailed`` in ``poll``; then, as at any time, ``stop`` ends
    all of them.
    """

    def __init__(
        self,
        blue: Blueprint,
        members: Sequence[Member],
        shared: Shared,
        board: Board,
        resources: Sequence[Closes] = (),
        *,
        run: Sequence[Member],
        lives: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """``resources`` are closed with the crew, after the last process has ended. ``lives``: by
        title, how many processes of a worker had begun before. ``run``: the members of the whole
        run.
        """
        self._blue, self._shared, self._board, self._run = blue, shared, board, run
        self._said: list[tuple[str, Message | Died]] = []  # by title
        self._lifeline = Lifeline()
        self.bells = {
            member.title: Bell(board.memory, board.flag_offset(member.title)) for member in members
        }
        stand_ins = [self.bells[one.title] for one in members if isinstance(one.kind, StandsIn)]
        # rung for workers that are not in this crew
        self.elsewhere: Ringer | None = stand_ins[0] if stand_ins else None
        self._children = [
            _Child(
                member=member,
                bell=self.bells[member.title],
                outbox=Outbox(),
                stack=Pipe(),
                life=lives.get(member.title, 0),
            )
            for member in members
        ]
        self._logs, self._usages = Logs(blue.logs), Usages()
        self._code = shipped(blue.program)
        self._queues: Sequence[SharedQueue | SiteSlots] = ()
        self._looked = time.perf_counter()
        # the newest version that was seen, and when it was
        self._version, self.learned_at = -1, time.monotonic()
        self._finalizer = weakref.finalize(
            self,
            _end,
            board.stop,
            self._children,
            [*resources, self._lifeline, *self.bells.values()],
        )

    def start(self, queues: Sequence[SharedQueue | SiteSlots]) -> None:
        """Give every worker its process. ``queues``: of each learner, as the workers see it, or its
        stand-in here.
        """
        self._queues = queues
        try:
            for child in self._children:
                self._start(child)
        except BaseException:
            self.stop()
            raise

    @property
    def absent(self) -> list[str]:
        """The workers that have no process now, since they are being replaced."""
        return [child.name for child in self._children if child.start_at is not None]

    @property
    def moving(self) -> bool:
        return False

    def obstacle(self) -> str | None:
        return f"{self.absent[0]} is being replaced" if self.absent else None

    def measured(self, now: RunStats) -> RunStats:
        """Add what workers print, and CPU and memory of their processes and the driver's."""
        pids = {child.name: child.pid for child in self._children if child.pid}
        return replace(
            now, printed=self._logs.printed(), usage=self._usages({DRIVER: os.getpid()} | pids)
        )

    def _start(self, child: _Child) -> None:
        """Give the worker a process."""
        blue, member = self._blue, child.member
        has_torch = not isinstance(member.kind, Torchless)
        child.start_at, child.said, child.cause = None, "", ""
        child.progress = self._progress(child)
        child.log_from = self._logs.size(child.name)
        start_s = START_S + (worker.COMPILE_S if blue.program.placement.compile else 0.0)
        self._board.touch(child.name, start_s if blue.resume is None else LOAD_S)
        self._board.say(child.name, "its process begins")  # until the worker itself reports more
        assignment = worker.Assignment(
            name=child.name,
            board=self._board,
            bell=child.bell,
            outbox=child.outbox,
            stack=child.stack,
            lifeline=self._lifeline,
            member=member,
            job=member.job(blue, self._shared, child.life),
            queues=self._queues if has_torch else None,
            bells={
                key: self._bell(one.title) for key, one in member.wakes(blue, self._run).items()
            },
            resume=None if child.life else blue.resume,
            directory=blue.directory,
            saved=int(self._board.cut[word(member)][0]),
            threads=member.threads(blue),
            spins=blue.acting_workers if isinstance(member.kind, ExchangingKind) else 0,
            compiles=blue.program.placement.compile,
            logs=blue.logs,
        )
        made: type[BaseProcess] = (
            multiprocessing.get_context("forkserver").Process
            if has_torch
            else forkserver.EnvProcess
        )
        given = assignment if self._code is None else WithMain(assignment, self._code)
        process = made(target=worker.main, args=(given,), name=f"equipoise {child.name}")
        try:
            with hidden():
                forkserver.start(process)
        except forkserver.ServerEnded as error:
            raise WorkerFailed(child.name, str(error), final=True) from error
        assert process.pid is not None
        child.running, child.pid = process, process.pid
        child.watch = Watch(process.pid, time.perf_counter())

    def _bell(self, title: str) -> Ringer:
        found = self.bells.get(title, self.elsewhere)
        assert found is not None, f"no queue or stand-in for {title}"
        return found

    def _progress(self, child: _Child) -> float:
        return child.member.kind.progress(self._blue, self._shared, child.member.index)

    # ----------------------------------------------------------------------------------- as it runs

    def poll(self, timeout_s: float, *others: int) -> list[tuple[str, Message | Died]]:
        """Wait at most ``timeout_s`` for messages of workers, or for a descriptor among ``others``
        -> by their titles.
        """
        now = time.perf_counter()
        if (version := self._shared.version) != self._version:
            self._version, self.learned_at = version, time.monotonic()
        for child in self._children:
            if child.start_at is not None and now >= child.start_at:
                self._start(child)
        alive = [child for child in self._children if child.start_at is None]
        waits = [child.start_at - now for child in self._children if child.start_at is not None]
        watched: list[int] = (
            [c.outbox.read_fd for c in alive] + [c.process.sentinel for c in alive] + list(others)
        )
        connection.wait(watched, max(min([timeout_s, *waits]), 0.0))
        for child in alive:
            code = child.process.exitcode  # before reading: if it has ended nothing can follow
            for message in child.outbox.receive():
                self._take(child, from_json(message))
            if code is not None:
                raised = code >= 0 and bool(child.said)
                self._lost(child, Death(RAISED, child.error) if raised else Death.of(code))
        self._look_for_hangs()
        said, self._said = self._said, []
        return said

    def _take(self, child: _Child, message: Message) -> None:
        """Take in a worker's message."""
        if isinstance(message, Failed):
            child.said, child.error, child.final = message.text, message.error, message.final
            child.cause = message.error
            if message.said:
                child.cause = f"{message.error.rpartition('.')[2]}: {message.said}"
        else:
            self._said.append((child.name, message))

    # ---------------------------------------------------------------------------------- supervision

    def _look_for_hangs(self) -> None:
        """Kill workers that hang (by the rules of ``hangs.py``), after asking for their stack."""
        now = time.perf_counter()
        if now - self._looked < LOOK_S:
            return
        # The driver itself may have been stopped, and its workers with it: they get a whole
        # deadline from then on.
        overslept, self._looked = now - self._looked > 10 * LOOK_S, now
        for child in self._children:
            if child.start_at is not None or child.process.exitcode is not None:
                continue
            assert child.watch is not None
            if overslept:
                self._board.touch(child.name)
            elif how := child.watch.look(
                now, self._board.touched(child.name), self._blue.program.placement.deadline_s
            ):
                stack = self._ask_for_stack(child)
                child.process.kill()  # also ends a stopped one
                child.process.join()
                child.said = stack
                said = how + ("" if stack else " and does not answer signals")
                self._lost(child, Death(said, said.partition(" for ")[0]))

    def _ask_for_stack(self, child: _Child) -> str:
        """Return the worker's stack from its faulthandler; empty if it does not answer."""
        assert child.pid, "0 is the whole group"
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGUSR1)
        text = b""
        while connection.wait([child.stack.read_fd], STACK_S if not text else 0.1):
            text += os.read(child.stack.read_fd, 65536)
        return text.decode(errors="replace")

    def _lost(self, child: _Child, death: Death) -> None:
        """A process is verified dead: take back what it had reserved, and plan its successor."""
        kind, index = child.member.kind, child.member.index
        progress = self._progress(child) >= child.progress + 1
        child.streak.add(death, progress=progress)
        how = death.how
        if not child.said and (last := self._logs.tail(child.name, child.log_from)):
            child.said = f"the last lines of {self._logs.file(child.name)}:\n{last}"
        vital = child.member.vital(self._blue, self._shared)
        if vital or child.final:
            raise WorkerFailed(
                child.name,
                how,
                child.said,
                death=death,
                final=child.final,
                vital=vital,
                cause=child.cause,
            )
        lost = kind.lost(self._blue, self._shared, self._queues, index)
        self._said.append((child.name, Died(how)))
        for one in child.member.wakes(self._blue, self._run).values():
            self._bell(one.title).ring(always=True)
        if why := child.streak.hopeless(
            death, learned_at=self.learned_at, give_up_s=self._blue.program.placement.give_up_s
        ):
            raise WorkerFailed(
                child.name, f"{how}, {why}", child.said, death=death, cause=child.cause
            )
        # A worker that was lost before it had loaded its state does so again.
        if isinstance(kind, BeginsAnew) or self._blue.resume is None or self._progress(child) > 0:
            child.life += 1
        child.replaced += 1
        child.start_at = time.perf_counter() + child.streak.backoff_s
        self._board.touch(child.name, child.streak.backoff_s)  # no process is at work meanwhile
        child.process.join()
        child.process.close()
        child.running, child.pid = None, 0
        child.close()
        child.outbox, child.stack = Outbox(), Pipe()
        where = f"\n{child.said.rstrip()}" if child.said else ""
        how += f"; {lost}" if lost else ""
        text = (
            f"warning: {child.name} {how}; replaced, for the {ordinal(child.replaced)} time{where}"
        )
        self._said.append((child.name, Note(text=text)))

    def stop(self) -> None:
        """End every worker; nothing is left when this returns."""
        phases.ending("ending the workers")
        self._finalizer()
        for child in self._children:
            child.pid = 0
        phases.ending("")


def ring(bells: Mapping[str, Bell], names: Sequence[str], *, always: bool = True) -> None:
    """Wake these workers; not ``always``: only sleeping workers."""
    for name in names:
        bells[name].ring(always=always)


def _end(stop: Array, children: list[_Child], resources: list[Closes]) -> None:
    stop[0] = 1
    living = [child for child in children if child.running is not None]
    for child in living:
        child.bell.ring(always=True)
    deadline = time.monotonic() + GRACE_S
    for child in living:
        child.process.join(max(deadline - time.monotonic(), 0.0))
    for child in living:
        if child.process.exitcode is None:
            child.process.kill()  # also ends a stopped one
    for child in living:
        child.process.join()
        child.process.close()
    for resource in (*children, *resources):
        resource.close()


def ordinal(n: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(n % 10 if n % 100 not in (11, 12, 13) else 0, "th")
    return f"{n}{suffix}"
