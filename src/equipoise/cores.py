"""How long this thread waited for a core: a busy machine must not look like slow work."""

from __future__ import annotations

import functools
import os


def run_delay_s() -> float:
    """The seconds that this thread was runnable without a core, from Linux's scheduler statistics; 0 elsewhere."""
    file = _schedstat(os.getpid())
    return 0.0 if file is None else int(os.pread(file, 64, 0).split()[1]) * 1e-9


@functools.cache
def _schedstat(pid: int) -> int | None:
    """The statistics file, open as long as the process lives: it is read around every wait."""
    try:
        return os.open(f"/proc/self/task/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
