"""The memory of a process's own: without files, and without what it shares with other processes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def own_memory(pid: int) -> int | None:
    """Resident bytes of a process's own; None where it is gone, or where the system has no /proc."""
    with contextlib.suppress(OSError):
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()  # in pages
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") or None  # 0: it has ended
    return None
