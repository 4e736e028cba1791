"""Every worker in its own process on one machine, over shared memory; an actor that fails is replaced."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import signal
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from equipoise.runtime import build, checkpoint, forkserver, stepping, worker
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.checkpoint import Entry
from equipoise.runtime.cut import Cut, together
from equipoise.runtime.deaths import Death, Streak
from equipoise.runtime.errors import WorkerFailed
from equipoise.runtime.handles import SharedQueue
from equipoise.runtime.hangs import Watch
from equipoise.runtime.ipc import Bell, Lifeline, Outbox, Pipe, PipeChannel, Segment
from equipoise.types import learning
from equipoise.weights.device import CudaIpc, Share

GRACE_S = 5.0  # from the stop word to SIGKILL
STACK_S = 3.0  # for a worker that hangs to say where
LOAD_S = 3600.0  # instead, where episodes may have to be played again
START_S = 60.0  # for imports and the making of envs, before the deadline of a tick begins
RAISED = "raised an exception"
LOOK_S = 1.0  # how often the driver looks for workers that hang


def shared_device(blue: Blueprint) -> Share | None:
    """How those that act reach the memory of the learner's GPU; None where they act elsewhere, or it cannot be shared."""
    on_wsl = "microsoft" in platform.release().lower()  # which has no CUDA IPC
    return CudaIpc() if blue.inferences and blue.program.device != "cpu" and not on_wsl else None


@dataclass(slots=True, kw_only=True)
class _Cutting:
    """A cut under way."""

    number: int
    step: int
    version: int
    missing: int  # workers whose files are not written; 0 once it is complete or given up
    files: dict[str, Entry] = field(default_factory=dict)
    error: str | None = None
    late: list[str] = field(default_factory=list)  # workers that write on, from then on
    written: dict[str, dict[str, Any]] = field(default_factory=dict)  # what those of them say that are done

    def result(self) -> Cut:
        more = bool(self.late) and self.error is None  # what is written of one that is given up is for nobody
        return Cut(step=self.step, version=self.version, files=self.files, error=self.error, more=more)

    def rest(self) -> Cut | None:
        """Once all of them are done."""
        if any(name not in self.written for name in self.late):
            return None
        return together(self.result(), list(self.written.values()))


@dataclass(slots=True, kw_only=True)
class _Child:
    """A worker and the process that it has now."""

    name: str
    kind: worker.Kind
    index: int  # of the actor or the shard
    bell: Bell
    outbox: Outbox
    stack: Pipe
    process: Any = None
    watch: Watch | None = None  # of that process
    incarnation: int = 0  # processes before that had begun to act
    replaced: int = 0
    said: str = ""  # the traceback that it sent
    error: str = ""  # its exception's name
    final: bool = False  # and whether a successor would come to the same
    streak: Streak = field(default_factory=Streak)  # progress is an unroll completed, or taken in
    rows: int = 0  # of each stream, or that were taken in, when it was started
    start_at: float | None = None  # when its successor is to start

    def close(self) -> None:
        self.outbox.close()
        self.stack.close()


class ProcessRuntime:
    """Starts the workers, hands out their records, replaces actors and shards that fail, and ends with all of them or none.

    A failure of the learner, or of another worker that dies again and again (``deaths.py``), raises ``WorkerFailed``.
    """

    def __init__(self, blue: Blueprint) -> None:
        self._blue = blue
        self._cutting: _Cutting | None = None
        self._writing: _Cutting | None = None  # whose rest is written
        self._out: list[dict[str, Any] | Cut] = []
        self._channels: list[PipeChannel] = []
        self.shared, self._segment = build.lay_out(blue, Segment, self._channel, shared_device(blue))
        board = self.shared.board
        # Learned to the end, and saved; at the start if it was killed before its last word.
        self.done = self.shared.version >= blue.updates
        self._lifeline = Lifeline()
        bells = [Bell(board.memory, board.flag_offset(name)) for name in blue.workers]
        actors, inferences = blue.program.actors, blue.inferences
        envs, servers, shards = bells[1 : 1 + actors], bells[1 + actors :][:inferences], bells[1 + actors + inferences :]
        self._queue = SharedQueue(
            self.shared.queue, learner=bells[0], actors=servers or envs, shards=shards,
            envs=[bell for bell in envs for _ in range(blue.program.halves)] if inferences else (),
        )  # fmt: skip
        self._servers = servers
        kinds: list[tuple[worker.Kind, int]] = [("learner", 0), *(("env" if inferences else "actor", i) for i in range(actors))]
        kinds += [*(("inference", i) for i in range(inferences)), *(("shard", k) for k in range(len(blue.shards)))]
        self._children = [
            _Child(name=name, kind=kind, index=index, bell=bell, outbox=Outbox(), stack=Pipe())
            for name, (kind, index), bell in zip(blue.workers, kinds, bells, strict=True)
        ]
        self._learner, self._others = self._children[0], self._children[1:]
        self._looked = time.perf_counter()
        self._version, self._learned_at = -1, time.monotonic()  # the newest version that was seen, and when it was
        self._reconciling = False  # the queue may not yet be certain of what a dead actor held
        self._finalizer = weakref.finalize(
            self, _end, board.stop, self._children, [self._segment, self._lifeline, *bells, *self._channels]
        )
        try:
            for child in self._children:
                self._start(child)
        except BaseException:
            self.stop()
            raise

    def _channel(self) -> PipeChannel:
        self._channels.append(PipeChannel())
        return self._channels[-1]

    def _start(self, child: _Child) -> None:
        """Give the worker a process."""
        child.start_at, child.said, child.rows = None, "", self._rows(child)
        duty: dict[str, Any] = {
            "name": child.name, "board": self.shared.board, "bell": child.bell, "outbox": child.outbox, "stack": child.stack,
            "lifeline": self._lifeline, "directory": self._blue.directory, "resume": self._blue.resume is not None,
            "saved": int(self.shared.board.cut["save_learner" if child.kind == "learner" else "save_actors"][0]),
        }  # fmt: skip
        start_s = START_S + (worker.COMPILE_S if self._blue.program.compile else 0.0)
        self.shared.board.touch(child.name, start_s if self._blue.resume is None else LOAD_S)
        process: Any
        if child.kind == "env":
            steps = build.stepping(self._blue, child.index, self.shared, child.incarnation)
            server = self._servers[self._blue.server(steps.groups[0].number)]
            envs = stepping.EnvAssignment(stepping=steps, server=server, workers=self._blue.acting_workers, **duty)
            process = forkserver.EnvProcess(target=stepping.main, args=(envs,), name=f"equipoise {child.name}")
        else:
            job = worker.Assignment(
                kind=child.kind, index=child.index, incarnation=child.incarnation, blueprint=self._blue, shared=self.shared,
                queue=self._queue, **duty,
            )  # fmt: skip
            context = multiprocessing.get_context("forkserver")
            process = context.Process(target=worker.main, args=(job,), name=f"equipoise {child.name}")
        try:
            with _without_main(self._blue):
                forkserver.start(process)
        except forkserver.ServerEnded as error:
            raise WorkerFailed(child.name, str(error), final=True) from error
        child.process, child.watch = process, Watch(process.pid, time.perf_counter())

    def _rows(self, child: _Child) -> int:
        """What an actor's streams have come to: its next unroll begins there; of a shard, how many it took in."""
        if child.kind == "shard":
            policy, number = self._blue.shards[child.index]
            return self.shared.posts[policy].inserted(number) * self._blue.unroll
        return min((self.shared.actors[group].next_row for group in self._groups(child)), default=0)

    def _groups(self, child: _Child) -> range:
        """Of envs, that the worker steps or acts for."""
        if child.kind == "inference":
            return self._blue.served(child.index)
        return self._blue.groups(child.index) if child.kind in ("actor", "env") else range(0)

    # ------------------------------------------------------------------------------------------------------ as it runs

    def ask(self) -> None:
        """For a cut after the next version."""
        words = self.shared.board.cut
        words["asked"][0] = words["begun"][0] + 1

    def release(self, cut: Cut) -> None:
        """It is complete, given up, or to be completed by a later one: go on."""
        words = self.shared.board.cut
        words["released"][0] = words["begun"][0]
        if not cut.more:
            words["closed"][0] = words["begun"][0]
            self.done = cut.version >= self._blue.updates
        self._learner.bell.ring(always=True)

    def advance(self, timeout_s: float) -> list[dict[str, Any] | Cut]:
        """Wait at most ``timeout_s`` for what workers say -> their records, cuts and notes. May raise ``WorkerFailed``."""
        now = time.perf_counter()
        if (version := self.shared.version) != self._version:
            self._version, self._learned_at = version, time.monotonic()
        for child in self._others:
            if child.start_at is not None and now >= child.start_at:
                self._start(child)
        alive = [child for child in self._children if child.start_at is None]
        waits = [child.start_at - now for child in self._children if child.start_at is not None]
        watched: list[Any] = [c.outbox.read_fd for c in alive] + [c.process.sentinel for c in alive]
        connection.wait(watched, max(min([timeout_s, *waits]), 0.0))
        for child in alive:
            ended = child.process.exitcode is not None  # before reading: then nothing can follow
            for message in child.outbox.receive():
                self._take(child, message)
            if ended:
                raised = child.process.exitcode >= 0 and bool(child.said)
                self._lost(child, Death(RAISED, child.error) if raised else Death.of(child.process.exitcode))
        self._look_for_hangs()
        if self._reconciling:
            self._reconciling = not self._queue.reconcile()
        if self._cutting is not None and self._cutting.missing == 0:
            self._out.append(self._cutting.result())
            self._writing, self._cutting = self._cutting if self._cutting.result().more else None, None
        if self._writing is not None and (rest := self._writing.rest()) is not None:
            self._out.append(rest)
            self._writing = None
        out, self._out = self._out, []
        return out

    def _take(self, child: _Child, message: dict[str, Any]) -> None:
        if "saved" in message:  # which may have an "error" of its own
            self._note_saved(child, message)
        elif "written" in message:
            self._note_written(child, message)
        elif "error" in message:
            child.said, child.error, child.final = message["error"], message["type"], message["final"]
        elif "cut" in message:
            self._begin_cut(message["cut"])
        elif "note" in message:
            self._out.append(message)
        else:
            self._out.append(message)

    # ------------------------------------------------------------------------------------------------------- supervision

    def _look_for_hangs(self) -> None:
        """SIGKILL for a worker that hangs (``hangs.py`` says when); it is asked for its stack before."""
        now = time.perf_counter()
        if now - self._looked < LOOK_S:
            return
        # The driver itself may have been stopped, and its workers with it: they get a whole deadline from then on.
        overslept, self._looked = now - self._looked > 10 * LOOK_S, now
        for child in self._children:
            if child.start_at is not None or child.process.exitcode is not None:
                continue
            assert child.watch is not None
            if overslept:
                self.shared.board.touch(child.name)
            elif how := child.watch.look(now, self.shared.board.touched(child.name), self._blue.program.deadline_s):
                stack = self._ask_for_stack(child)
                child.process.kill()  # also ends a stopped one
                child.process.join()
                child.said = stack
                said = how + ("" if stack else " and does not answer signals")
                self._lost(child, Death(said, said.partition(" for ")[0]))

    def _ring_beside(self, child: _Child) -> None:
        """Wake those with whom the worker exchanged rows and actions."""
        if child.kind == "env":
            self._servers[self._blue.server(self._groups(child)[0])].ring()
        else:
            for group in self._groups(child):
                self._queue.acted(group)

    def _ask_for_stack(self, child: _Child) -> str:
        """Where the worker is, from its faulthandler; empty where it does not answer."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.process.pid, signal.SIGUSR1)
        text = b""
        while connection.wait([child.stack.read_fd], STACK_S if not text else 0.1):
            text += os.read(child.stack.read_fd, 65536)
        return text.decode(errors="replace")

    def _lost(self, child: _Child, death: Death) -> None:
        """A process is verified dead: take back what it had reserved, and plan its successor."""
        progress = self._rows(child) >= child.rows + 2 * self._blue.unroll  # the second one was begun
        child.streak.add(death, progress=progress)
        how = death.how
        if child.kind == "learner" or child.final:
            raise WorkerFailed(child.name, how, child.said, death=death, final=child.final)
        if self._cutting is not None:
            self._cutting.error, self._cutting.missing = f"{child.name} {how} meanwhile", 0
        if self._writing is not None and child.name in self._writing.late:
            self._writing.written.setdefault(child.name, {"error": f"{child.name} {how} meanwhile"})
        if child.kind == "shard":
            policy, number = self._blue.shards[child.index]
            self.shared.posts[policy].lost(number)
            self._learner.bell.ring()
        else:
            groups = self._groups(child)
            if child.kind != "env":  # whose rows were written by others
                for group in groups:
                    self._queue.cancel(self._blue.streams(group))
                self._reconciling = True
            if self.shared.exchange is not None:
                self.shared.exchange.lost(groups)
                self._ring_beside(child)
        if why := child.streak.hopeless(death, learned_at=self._learned_at, give_up_s=self._blue.program.give_up_s):
            raise WorkerFailed(child.name, f"{how}, {why}", child.said, death=death)
        # Who acts and was lost before it had loaded its state does so again; that of others is lost with them.
        if child.kind in ("env", "shard") or self._blue.resume is None or self._rows(child) > 0:
            child.incarnation += 1
        child.replaced += 1
        child.start_at = time.perf_counter() + child.streak.backoff_s
        self.shared.board.touch(child.name, child.streak.backoff_s)  # nobody is at work meanwhile
        child.process.join()
        child.process.close()
        child.process = None
        child.close()
        child.outbox, child.stack = Outbox(), Pipe()
        where = f"\n{child.said.rstrip()}" if child.said else ""
        how += "; its rows are lost" if child.kind == "shard" else ""
        self._out.append({"note": f"warning: {child.name} {how}; replaced, for the {ordinal(child.replaced)} time{where}"})

    # --------------------------------------------------------------------------------------------------------------- cuts

    def _begin_cut(self, version: int) -> None:
        """The learner holds still: the others write their files, and it does after them."""
        directory, step = Path(self._blue.directory), self._blue.pace.steps(version)
        words = self.shared.board.cut
        number = int(words["begun"][0])
        self._cutting = cutting = _Cutting(number=number, step=step, version=version, missing=len(self._children))
        waiting = [child.name for child in self._children if child.start_at is not None]
        if waiting or self._reconciling:  # which empties the channel of free slots for a moment: nobody would hold still
            cutting.error, cutting.missing = f"{waiting[0] if waiting else 'an actor'} is being replaced", 0
            return
        try:
            checkpoint.begin(directory, step)
        except OSError as error:
            cutting.error, cutting.missing = str(error), 0
            return
        words["step"][0] = step
        words["save_actors"][0] = number
        for child in self._others:
            child.bell.ring(always=True)
        if not self._others:
            self._let_learner_save(cutting)

    def _note_saved(self, child: _Child, message: dict[str, Any]) -> None:
        cutting = self._cutting
        # Given up before this worker was ready: what it says must not be counted, least of all for the next cut.
        if cutting is None or cutting.missing == 0 or message["saved"] != cutting.number:
            return
        cutting.missing -= 1
        cutting.files |= message.get("files", {})
        cutting.late += [child.name] if message.get("more") else []
        cutting.error = cutting.error or message.get("error")
        if cutting.missing == 1:  # all others have: it is the learner's turn, unless there is no use
            if cutting.error is not None:
                cutting.missing = 0
                return
            self._let_learner_save(cutting)

    def _let_learner_save(self, cutting: _Cutting) -> None:
        self.shared.board.cut["save_learner"][0] = cutting.number
        self._learner.bell.ring(always=True)

    def _note_written(self, child: _Child, message: dict[str, Any]) -> None:
        """Of the cut under way, where a shard is done before the learner, or of the last; not of one that was given up."""
        for cut in (self._cutting, self._writing):
            if cut is not None and message["written"] == cut.number:
                cut.written[child.name] = message

    def stop(self) -> None:
        """End every worker; nothing is left when this returns."""
        self._finalizer()


def _end(stop: Any, children: list[_Child], resources: list[Any]) -> None:
    stop[0] = 1
    living = [child for child in children if child.process is not None]
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


@contextlib.contextmanager
def _without_main(blue: Blueprint) -> Iterator[None]:
    """Keep multiprocessing from importing the user's script into every worker, so that one without a guard works too.

    A worker needs the script only if the env or the algorithm was written in it.
    """
    main = sys.modules["__main__"]
    needed = blue.program.env.target.startswith("__main__:") or any(
        type(policy.algorithm).__module__ == "__main__" for policy in learning(blue.program).values()
    )
    hidden: dict[str, Any] = {} if needed else {k: main.__dict__.pop(k) for k in ("__file__", "__spec__") if k in main.__dict__}
    if not needed:
        main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
