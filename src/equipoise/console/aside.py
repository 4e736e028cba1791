"""What the driver's process prints besides the view, such as an env of an evaluation, C libraries,
all workers of ``--on serial``.

That goes into ``logs/driver.log``, as the lines of worker processes go into theirs, so that nothing
hides the view.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.console.place import is_descriptor
from equipoise.console.unread import opened
from equipoise.runtime.process.log import STDERR, STDOUT, Log, log_of

if TYPE_CHECKING:
    from rich.console import Console

DRIVER = "driver"


@contextmanager
def prints_aside(directory: Path, console: Console) -> Iterator[Callable[[], None]]:
    """Send what this process prints to the driver's log in ``directory``; yield a function that
    keeps the log small.

    ``console`` and warnings print on. Nothing is sent elsewhere where stdout is no descriptor, as
    in a test or a notebook.
    """
    if not is_descriptor(sys.stdout, STDOUT) or not is_descriptor(sys.stderr, STDERR):
        yield _nothing
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {standard: os.dup(standard) for standard in (STDOUT, STDERR)}
    shown, showwarning = console.file, warnings.showwarning
    log = Log(log_of(str(directory), DRIVER))
    with (
        opened(os.dup(kept[STDOUT]), sys.stdout) as out,
        opened(os.dup(kept[STDERR]), sys.stderr) as err,
    ):

        def warned(
            message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any
        ) -> None:
            print(
                warnings.formatwarning(message, category, filename, lineno),
                end="",
                file=err,
                flush=True,
            )

        try:
            log.begin()
            console.file, warnings.showwarning = out, warned  # type: ignore[assignment]
            yield log.keep_small
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for standard, descriptor in kept.items():
                os.dup2(descriptor, standard)
                os.close(descriptor)
            console.file, warnings.showwarning = shown, showwarning
            # a run that could not start has no directory any more
            with suppress(FileNotFoundError):
                if not log.file.stat().st_size:
                    log.file.unlink()


@contextmanager
def unheard() -> Iterator[None]:
    """Drop what this process prints meanwhile,
    because it will be printed again where it is kept.
    """
    if not is_descriptor(sys.stdout, STDOUT) or not is_descriptor(sys.stderr, STDERR):
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {standard: os.dup(standard) for standard in (STDOUT, STDERR)}
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        for standard in kept:
            os.dup2(nothing, standard)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.close(nothing)
        for standard, descriptor in kept.items():
            os.dup2(descriptor, standard)
            os.close(descriptor)


def _nothing() -> None: ...
