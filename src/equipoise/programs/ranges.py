"""Values outside of the range or the choices that the annotation of their field names."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Union

from equipoise.facts import Range, facts, values_of


def out_of_range(instance: object, before: str = "") -> list[str]:
    """A sentence for each field of a dataclass whose value its annotation does not allow."""
    known = facts(type(instance))
    given = [(name, value, known[name]) for name, value in values_of(instance).items()]
    wrong = [
        f"{before}{name}: expected one of {', '.join(typing.get_args(fact.kind))}, got {value!r}"
        for name, value, fact in given
        if typing.get_origin(fact.kind) is Literal and value not in typing.get_args(fact.kind)
    ]
    return wrong + [
        f"{before}{name}: expected {limit}, got {found}"
        for name, value, fact in given
        for found, limit in beyond(value, fact.annotated)
    ]


def beyond(value: object, kind: object) -> Iterator[tuple[object, Range]]:
    """The numbers in a value outside of a range in its annotation, each with that range."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        if isinstance(value, int | float):
            yield from (
                (value, limit)
                for limit in args[1:]
                if isinstance(limit, Range) and value not in limit
            )
        yield from beyond(value, args[0])
    elif origin in (Union, types.UnionType):
        yield from (found for arg in args for found in beyond(value, arg))
    elif origin is tuple and isinstance(value, tuple):
        yield from (found for item in value for found in beyond(item, args[0]))
    elif origin is Mapping and isinstance(value, Mapping):
        yield from (found for item in value.values() for found in beyond(item, args[1]))
