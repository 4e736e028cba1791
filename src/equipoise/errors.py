"""Errors that end a run."""

from __future__ import annotations

import contextlib
import errno
import re
import traceback
from pathlib import Path

from equipoise.deaths import Death

UNKNOWN = Death("", "")
LIMITS = {
    errno.EMFILE: (
        "more open files than this process may have",
        "raise that with 'ulimit -n', or use fewer actors",
    ),
    errno.ENFILE: ("more open files than this machine gives", "use fewer actors"),
    errno.EFBIG: (
        "a larger file than this process may write",
        "raise that with 'ulimit -f', or use --on serial",
    ),
    errno.ENOSPC: ("more room than this device has", "make room, or use --on serial"),
    errno.ENOMEM: (
        "more memory than this machine gives",
        "lower envs_per_actor, unroll, batch or max_lag",
    ),
}  # by errno: the missing resource and the remedy
# Exceptions with advice for the user in their message.
SPEAKING = (
    "NonFiniteUpdate",
    "NonFiniteLogits",
    "RewardsFailed",
    "PartnersFailed",
    "DifferentPrompts",
    "EngineFailed",
    "CannotResume",
    "Damaged",
    "Faulty",
)


class Final(Exception):
    """The error of a worker whose replacement would fail in the same way: it ends the run."""


class RewardsFailed(Final, RuntimeError):
    """The error of a run whose reward functions, or terms of their sum, fail."""


class WorkerFailed(RuntimeError):
    """A worker raised or died, and no successor mends it. ``final``: nor does beginning again from
    a checkpoint.

    ``vital``: a worker without which the whole ring begins again.
    """

    def __init__(
        self,
        worker: str,
        reason: str,
        traceback_text: str = "",
        *,
        death: Death = UNKNOWN,
        final: bool = False,
        vital: bool = False,
        cause: str = "",
    ) -> None:
        """``cause``: the name and the words of the exception that the worker raised."""
        self.cause = cause
        self.worker, self.reason, self.traceback_text, self.vital = (
            worker,
            reason,
            traceback_text,
            vital,
        )
        self.death, self.final = death, final
        super().__init__(f"{worker} {reason}" + (f"\n\n{traceback_text}" if traceback_text else ""))

    @property
    def sentence(self) -> str:
        """The exception's own words, if they tell the user the fix and the traceback adds nothing;
        else "".
        """
        found = [
            one.end()
            for one in re.finditer(
                rf"^equipoise\.(?:\w+\.)*(?:{'|'.join(SPEAKING)}): ",
                self.traceback_text,
                re.MULTILINE,
            )
        ]
        return self.traceback_text[found[-1] :].strip() if found else ""


def spoken(error: Exception) -> str:
    """The message of an error with advice for the user, wherever its worker ran; "" for another
    error.
    """
    if isinstance(error, WorkerFailed):
        return error.sentence
    kind = type(error)
    ours = kind.__module__.startswith("equipoise.")  # an env may have errors of the same name
    return str(error) if ours and kind.__name__ in SPEAKING else ""


def not_finite(error: Exception) -> str:
    """The message about a loss or gradient that was not finite, wherever the learner ran; "" for
    another error.
    """
    name = error.traceback_text if isinstance(error, WorkerFailed) else type(error).__name__
    return spoken(error) if SPEAKING[0] in name else ""


class CannotStart(OSError):
    """A run that this machine or account does not let begin: a limit of open files, of a file's
    size, of memory.
    """

    @classmethod
    def of(cls, error: OSError | MemoryError) -> CannotStart | None:
        """The sentence; None if no limit is the reason."""
        number = errno.ENOMEM if isinstance(error, MemoryError) else error.errno
        if number not in LIMITS:
            return None
        needs, instead = LIMITS[number]
        return cls(f"the run cannot start, since it needs {needs} ({error}); {instead}")


class DirectoryLost(OSError):
    """The directory of a run that trains was removed, renamed or replaced."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: the run ends, since its directory was removed, renamed or replaced while it "
            "trained; 'equipoise resume' goes on from a renamed one"
        )


class CannotResume(Final, ValueError):
    """A saved state that does not fit: a silent new beginning would lose it."""

    @classmethod
    def of(cls, file: Path, error: Exception) -> CannotResume:
        return cls(
            f"{file}: this run cannot go on from it: {type(error).__name__}: {error}; nothing was "
            "changed, and without "
            f"{file.parent.name} it goes on from the checkpoint before"
        )


class Damaged(CannotResume):
    """A file of a checkpoint that differs from its manifest: an older checkpoint may be whole."""


def forget_locals(error: BaseException | None) -> None:
    """Clear the local variables of this package's frames in a traceback: they hold a run's shared
    memory open while it is kept.

    The frames of an env or of a script keep theirs.
    """
    package, seen = str(Path(__file__).parent), set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename.startswith(package):
                with contextlib.suppress(RuntimeError):  # it still runs
                    frame.clear()
        error = error.__cause__ or error.__context__
