"""Publishing: the one store by which a process signals other processes that its earlier stores may
be read. No process waits.

The proof, with every word that is published, is docs/inside/memory-order.md.
"""

from __future__ import annotations

import platform
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

# processors on which the stores of one core are seen in the order of the program
ORDERED = ("x86_64", "AMD64")


def publish(
    words: NDArray[np.int64],
    place: int | np.integer | slice | EllipsisType | NDArray[np.int64],
    value: int | NDArray[np.int64],
) -> None:
    """Store ``value`` in an int64 of shared memory: seen after all that this thread stored before,
    and before all after it.

    The store is an ordinary one, since the processors of ``ORDERED`` keep this order by themselves;
    processes on others are refused (``check_order``). A fence for another processor belongs here,
    one before the store and one after it.
    """
    words[place] = value


def check_order(on: str) -> None:
    """ValueError if processes are to share memory on a processor that may show their stores in
    another order.
    """
    if on != "serial" and (reason := unordered()):
        raise ValueError(
            f"on: expected serial, since {reason}, got {on}; try --on serial "
            "(docs/about/platforms.md)"
        )


def unordered(machine: str | None = None) -> str:
    """The reason why processes cannot share memory on this processor (or on ``machine``); "" if
    they can.
    """
    machine = platform.machine() if machine is None else machine
    if machine in ORDERED:
        return ""
    return (
        f"processes need a processor that keeps the order of stores ({' or '.join(ORDERED)}) "
        f"and this is {machine!r}"
    )
