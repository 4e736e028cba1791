"""What can end a run from inside."""

from __future__ import annotations

from pathlib import Path

from equipoise.runtime.deaths import Death

UNKNOWN = Death("", "")


class WorkerFailed(RuntimeError):
    """A worker raised or died, and no successor mends it. ``final``: nor does beginning again from a checkpoint."""

    def __init__(
        self, worker: str, reason: str, traceback_text: str = "", *, death: Death = UNKNOWN, final: bool = False
    ) -> None:
        self.worker, self.reason, self.traceback_text = worker, reason, traceback_text
        self.death, self.final = death, final
        super().__init__(f"{worker} {reason}" + (f"\n\n{traceback_text}" if traceback_text else ""))


class CannotResume(ValueError):
    """A saved state that does not fit: to begin anew in silence would lose it."""

    @classmethod
    def of(cls, file: Path, error: Exception) -> CannotResume:
        return cls(f"{file}: this run cannot go on from it: {type(error).__name__}: {error}")
