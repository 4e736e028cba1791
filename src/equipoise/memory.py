"""Memory of a run's arrays: a heap in one process, or a segment that processes share."""

from __future__ import annotations

import ctypes
import sys
from mmap import mmap
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Shareable = bytearray | memoryview | mmap
Buffer = bytes | Shareable | NDArray[np.uint8]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# bytes that glibc keeps, and its largest threshold for memory that comes from the kernel again
KEEP, LARGEST = 1 << 30, 32 << 20


class Memory(Protocol):
    """A writable buffer. The runtime's are shared between processes and travel as a handle."""

    @property
    def buffer(self) -> Shareable: ...


def keep_freed() -> None:
    """Ask libc to keep freed memory in this process, since a learner's temporaries come with every
    batch.

    Keeping memory saves page faults: 10 to 20 % of a learner step of an MLP at 8192 rows. Without
    Linux and glibc memory is returned as the platform likes.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another libc
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST)
    mallopt(M_TRIM_THRESHOLD, KEEP)
