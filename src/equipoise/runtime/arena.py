"""An arena: memory that things reserve one by one and that is allocated at once. Each thing is made
once its part is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from equipoise import tree
from equipoise.memory import Memory
from equipoise.runtime.ipc import Part
from equipoise.types import Tree

T = TypeVar("T")
M = TypeVar("M", bound=Memory)


class Arena:
    """Reservations, laid one behind the other."""

    def __init__(self) -> None:
        self._reserved: list[tuple[int, Callable[[Part], object]]] = []

    def reserve(self, specs: Tree, make: Callable[[Part], T]) -> Callable[[], T]:
        """Reserve memory for arrays of these specs -> what returns the thing that ``make`` made of
        it, after ``allocate``.
        """
        made: list[T] = []
        self._reserved.append((tree.nbytes(specs), lambda part: made.append(make(part))))
        return lambda: made[0]

    def allocate(self, memory: Callable[[str, int], M]) -> M:
        """Allocate all that is reserved, by a function of a name and a size in bytes, and make the
        things -> that memory.
        """
        whole, at = memory("run", sum(nbytes for nbytes, _ in self._reserved)), 0
        for nbytes, make in self._reserved:
            make(Part(whole, at, nbytes))
            at += nbytes
        return whole
