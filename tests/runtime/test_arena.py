"""Memory by reservation: each thing lies in its own part, whatever is asked for first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from equipoise import tree
from equipoise.runtime.arena import Arena
from equipoise.runtime.ipc import Heap
from equipoise.tree import ArraySpec


def test_every_thing_has_memory_of_its_own() -> None:
    arena, sizes = Arena(), list[int]()
    specs = [{"a": ArraySpec((n,), "int64"), "b": ArraySpec((3,), "uint8")} for n in (1, 100, 7)]

    def views(one: dict[str, ArraySpec]) -> Callable[[], dict[str, Any]]:
        return arena.reserve(one, lambda part: tree.views(one, part.buffer))

    def allocated(name: str, size: int) -> Heap:
        sizes.append(size)
        return Heap(name, size)

    made = [views(one) for one in specs]
    whole = arena.allocate(allocated)
    assert sizes == [sum(map(tree.nbytes, specs))] == [len(whole.buffer)]
    for n in (2, 0, 1):  # in any order
        made[n]()["a"][:] = n + 1
        made[n]()["b"][:] = n + 1
    for n, one in enumerate(specs):
        assert (
            made[n]()["a"].tolist() == [n + 1] * one["a"].shape[0]
            and made[n]()["b"].tolist() == [n + 1] * 3
        )
        assert made[n]() is made[n]()


def test_a_thing_may_be_made_of_one_that_was_reserved_before() -> None:
    arena = Arena()
    first = arena.reserve(ArraySpec((2,), "int64"), lambda part: part)
    second = arena.reserve(ArraySpec((2,), "int64"), lambda part: (part, first()))
    arena.allocate(Heap)
    part, before = second()
    assert part is not before and before is first()


def test_nothing_is_there_before_the_memory_is() -> None:
    arena = Arena()
    thing = arena.reserve(ArraySpec((2,), "int64"), lambda part: part)
    with pytest.raises(IndexError):
        thing()
