"""What can end a run from inside."""

from __future__ import annotations


class WorkerFailed(RuntimeError):
    """A worker raised or died; the run has ended."""

    def __init__(self, worker: str, reason: str, traceback_text: str = "") -> None:
        self.worker, self.reason, self.traceback_text = worker, reason, traceback_text
        super().__init__(f"{worker} {reason}" + (f"\n\n{traceback_text}" if traceback_text else ""))
