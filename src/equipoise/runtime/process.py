"""Every worker in its own process on one machine, over shared memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import time
import weakref
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

from equipoise.runtime import build, worker
from equipoise.runtime.build import Blueprint
from equipoise.runtime.errors import WorkerFailed
from equipoise.runtime.handles import SharedQueue
from equipoise.runtime.ipc import Bell, Lifeline, Outbox, PipeChannel, Segment

GRACE_S = 5.0  # from the stop word to SIGKILL


class ProcessRuntime:
    """Starts the workers, hands out their records, and ends with all of them or none."""

    def __init__(self, blue: Blueprint) -> None:
        self._blue = blue
        self.done = False
        self._channels: list[PipeChannel] = []
        self.shared, self._segment = build.lay_out(blue, Segment, self._channel)
        board = self.shared.board
        bells = [Bell(board.memory, board.flag_offset(name)) for name in blue.workers]
        queue = SharedQueue(self.shared.queue, learner=bells[0], actors=bells[1:])
        self._bells, self._lifeline = bells, Lifeline()
        self._outboxes = {name: Outbox() for name in blue.workers}
        context = multiprocessing.get_context("forkserver")
        self._processes: dict[str, Any] = {}
        self._finalizer = weakref.finalize(
            self, _end, board.stop, bells, self._processes,
            [self._segment, self._lifeline, *bells, *self._outboxes.values(), *self._channels],
        )  # fmt: skip
        try:
            with _without_main(blue):
                for i, (name, bell) in enumerate(zip(blue.workers, bells, strict=True)):
                    job = worker.Assignment(
                        name=name, index=i - 1, blueprint=blue, shared=self.shared, queue=queue, bell=bell,
                        outbox=self._outboxes[name], lifeline=self._lifeline,
                    )  # fmt: skip
                    process = context.Process(target=worker.main, args=(job,), name=f"equipoise {name}")
                    process.start()
                    self._processes[name] = process
        except BaseException:
            self.stop()
            raise

    def _channel(self) -> PipeChannel:
        self._channels.append(PipeChannel())
        return self._channels[-1]

    def advance(self, timeout_s: float) -> list[dict[str, Any]]:
        """Wait at most ``timeout_s`` for records -> those that came. Raises WorkerFailed once a worker is gone."""
        outboxes, processes = self._outboxes, self._processes
        watched: list[Any] = [box.read_fd for box in outboxes.values()] + [p.sentinel for p in processes.values()]
        connection.wait(watched, timeout_s)
        gone = [name for name, p in processes.items() if p.exitcode is not None]
        records = []
        for name, box in outboxes.items():
            for message in box.receive():
                if "error" in message:
                    processes[name].join(GRACE_S)
                    raise WorkerFailed(name, "raised an exception", message["error"])
                records.append(message)
                self.done = self.done or message["version"] >= self._blue.updates
        if gone:
            raise WorkerFailed(gone[0], _how(processes[gone[0]].exitcode))
        return records

    def stop(self) -> None:
        """End every worker; nothing is left when this returns."""
        self._finalizer()


def _end(stop: Any, bells: list[Bell], processes: dict[str, Any], resources: list[Any]) -> None:
    stop[0] = 1
    for bell in bells:
        bell.ring(always=True)
    deadline = time.monotonic() + GRACE_S
    for process in processes.values():
        process.join(max(deadline - time.monotonic(), 0.0))
    for process in processes.values():
        if process.exitcode is None:
            process.kill()  # also ends a stopped one
    for process in processes.values():
        process.join()
        process.close()
    for resource in resources:
        resource.close()


def _how(exitcode: int) -> str:
    if exitcode < 0:
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"exited with code {exitcode}"


@contextlib.contextmanager
def _without_main(blue: Blueprint) -> Iterator[None]:
    """Keep multiprocessing from importing the user's script into every worker, so that one without a guard works too.

    A worker needs the script only if the env or the algorithm was written in it.
    """
    main = sys.modules["__main__"]
    needed = blue.program.env.target.startswith("__main__:") or any(
        type(policy.algorithm).__module__ == "__main__" for policy in blue.program.policies.values()
    )
    hidden: dict[str, Any] = {} if needed else {k: main.__dict__.pop(k) for k in ("__file__", "__spec__") if k in main.__dict__}
    if not needed:
        main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
