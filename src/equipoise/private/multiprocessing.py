"""Private names of Python's multiprocessing that cost no import besides ``multiprocessing``."""

from __future__ import annotations

from multiprocessing import process


def folder() -> str | None:
    """The folder of the sockets of this process's servers, if there is one: a process that ends at
    once has to remove it.

    Tried: 3.11. If it is gone: leave the folder; the system removes old ones from the temporary
    directory.
    """
    found: str | None = process.current_process()._config.get("tempdir")  # type: ignore[attr-defined]
    return found
