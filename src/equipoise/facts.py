"""Facts about a setting, written in the annotation of its field, and the one function that reads
them.

    entropy: Annotated[float, Range(0), Help("Entropy coefficient")] = 0.0
    clip_obs: Annotated[
        float,
        Range(0, above=True),
        Help("Clip limit of normalised observations", "In deviations."),
        Read("normalize_obs"),
    ] = 10.0

The command line, ``--help``, ``--set``, JSON, refusals, resumes and the tables of the pages read
them from here. A subclass that redeclares a field inherits each fact that its own annotation leaves
out. Nothing here imports more than the standard library, so that ``--help`` answers at once.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

__all__ = [
    "AUTO",
    "FREE",
    "KEPT",
    "Auto",
    "Excludes",
    "Fact",
    "Flag",
    "Fraction",
    "Help",
    "Needs",
    "NonNegativeFloat",
    "NonNegativeInt",
    "OnResume",
    "PositiveFloat",
    "PositiveInt",
    "Range",
    "Rate",
    "Read",
    "UnitInterval",
    "as_text",
    "facts",
    "values_of",
]

UNSET = (None, 0, False, "")


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that make sense: ``Range(0, 1)``; ``above``: ``low`` itself makes no sense."""

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:g}"
        low = "more than" if self.above else "at least"
        if self.high == math.inf:
            return f"{low} {self.low:g}"
        return (
            f"more than {self.low:g} and at most {self.high:g}"
            if self.above
            else f"{self.low:g} to {self.high:g}"
        )


UnitInterval = Annotated[float, Range(0, 1)]
NonNegativeFloat = Annotated[float, Range(0)]
PositiveFloat = Annotated[float, Range(0, above=True)]
Fraction = Annotated[float, Range(0, 1, above=True)]
Rate = Annotated[float, Range(0, 10)]  # of learning: beyond it no update stays finite
PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]


@dataclass(frozen=True, slots=True)
class Help:
    """The meaning of a setting: a noun phrase of at most 60 characters, for one line of a help.

    ``more``: sentences that only a page and Python's help add, such as the meaning of each value.
    """

    text: str
    more: str = ""


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of ``equipoise train`` for this setting, in a section of its help; named like the
    field by default.
    """

    section: str
    metavar: str = "N"
    name: str = ""


@dataclass(frozen=True, slots=True)
class OnResume:
    """May a run that goes on change this setting? ``kept``: the saved state fits the old value
    alone.
    """

    rule: Literal["free", "kept"]


FREE, KEPT = OnResume("free"), OnResume("kept")


@dataclass(frozen=True, slots=True)
class Auto:
    """The value may be asked for as ``auto``:
    it is then chosen by measurement when the run begins.
    """

    word: str = "auto"


AUTO = Auto()


@dataclass(frozen=True, slots=True, init=False)
class Read:
    """The field is read only if ``setting`` has one of ``values``; without values: if it is set
    (not 0, false or None).

    ``setting`` is another attribute of the same dataclass, else a path from the Program.
    ``unless``: the other way round. ``why`` gives in words the reason why nothing reads the field
    otherwise.
    """

    setting: str
    values: tuple[Any, ...]
    unless: bool
    why: str

    def __init__(self, setting: str, *values: Any, unless: bool = False, why: str = "") -> None:
        for name, value in (("setting", setting), ("why", why)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "values", values or UNSET)
        object.__setattr__(self, "unless", unless or not values)

    def by(self, value: Any) -> bool:
        """Is the field read if ``setting`` has this value?"""
        return (
            any(
                value == one and isinstance(value, bool) == isinstance(one, bool)
                for one in self.values
            )
            != self.unless
        )

    def __str__(self) -> str:
        if self.values == UNSET:
            return f"if `{self.setting}` is set"
        if all(value in UNSET for value in self.values) and not self.unless:
            return f"if `{self.setting}` is not set"
        values = " or ".join(as_text(value) or "empty" for value in self.values)
        return (
            f"unless `{self.setting}={values}`" if self.unless else f"if `{self.setting}={values}`"
        )


class Excludes(Read):
    """The field keeps its default if ``setting`` has one of ``values``; without values: if that is
    set. Nothing else can work.

    ``why`` ends the sentence "KEY: expected DEFAULT ..., got VALUE"; ``{}`` in it stands for the
    value of ``setting``. A field that nothing reads excludes nothing.
    """

    __slots__ = ()


class Needs(Read):
    """If the field has not its default, ``setting`` has to have one of ``values``; without values:
    it has to be set.

    ``why`` ends the sentence "KEY: expected SETTING ..., got VALUE", with VALUE of
    ``setting``.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A setting: the type and the default of its field, and the facts of the annotation."""

    name: str
    kind: Any  # without the annotation's facts
    annotated: Any  # with them
    default: Any  # ``dataclasses.MISSING`` if there is none
    help: str
    more: str  # sentences that a page adds to the help
    reads: tuple[Read, ...]
    rule: Literal["free", "kept"] | None  # for a resume; None: not given
    flag: Flag | None
    auto: bool = False  # may it be measured when the run begins
    excludes: tuple[Excludes, ...] = ()
    needs: tuple[Needs, ...] = ()

    @property
    def option(self) -> str:
        """The name of its option on the command line, without the dashes."""
        return (self.flag and self.flag.name) or self.name.replace("_", "-")

    @property
    def limits(self) -> str:
        """The range in words, or the choices; "" if every value of the type makes sense."""
        ranges = dict.fromkeys(str(one) for one in _ranges(self.annotated))
        choices = dict.fromkeys(
            as_text(arg)
            for one in (self.kind, *typing.get_args(self.kind))
            for arg in _choices(one)
        )
        values = ", ".join((" or ".join(choices), *ranges) if choices else ranges)
        return f"{values} or {AUTO.word}" if self.auto and values else values


def as_text(value: Any) -> str:
    """A value as ``--set`` takes it."""
    if isinstance(value, tuple):
        return ",".join(map(as_text, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def facts(cls: type[Any]) -> dict[str, Fact]:
    """The init fields of a dataclass, in their order; ValueError for an annotation that cannot be
    read at run time.
    """
    return _facts(cls)  # type: ignore[arg-type]  # mypy: a type is not Hashable


def values_of(part: object) -> dict[str, Any]:
    """The values of a dataclass's init fields, by their names."""
    return {name: getattr(part, name) for name in facts(type(part))}


@cache
def _facts(cls: Any) -> dict[str, Fact]:
    plain = _hints(cls, extras=False)
    return {f.name: _fact(cls, f, plain[f.name]) for f in dataclasses.fields(cls) if f.init}


def _fact(cls: Any, field: dataclasses.Field[Any], kind: Any) -> Fact:
    said_by: dict[type[Any], list[Any]] = {}
    for base in cls.__mro__:  # the nearest class with a fact of a kind decides it
        if field.name in inspect.get_annotations(base):
            hint = _hints(base, extras=True)[field.name]
            given: dict[type[Any], list[Any]] = {}
            for fact in typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ():
                given.setdefault(type(fact), []).append(fact)
            said_by = given | said_by
    default = field.default_factory() if callable(field.default_factory) else field.default
    annotated = _hints(cls, extras=True)[field.name]
    for limit in said_by.get(Range, ()):
        if limit not in getattr(annotated, "__metadata__", ()):  # a base's
            annotated = Annotated[annotated, limit]
    return Fact(
        name=field.name,
        kind=kind,
        annotated=annotated,
        default=default,
        reads=tuple(said_by.get(Read, ())),
        help=next((one.text for one in said_by.get(Help, ())), ""),
        more=next((one.more for one in said_by.get(Help, ())), ""),
        flag=next(iter(said_by.get(Flag, ())), None),
        rule=next((one.rule for one in said_by.get(OnResume, ())), None),
        auto=Auto in said_by,
        excludes=tuple(said_by.get(Excludes, ())),
        needs=tuple(said_by.get(Needs, ())),
    )


@cache  # a class has many fields, and the command line waits for them
def _hints(cls: Any, *, extras: bool) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=extras)
    except NameError as error:
        raise ValueError(
            f"{cls.__module__}.{cls.__qualname__}: expected field annotations that can be read at "
            f"run time, got {error}; "
            "import that name outside TYPE_CHECKING"
        ) from error


def _ranges(kind: Any) -> Iterator[Range]:
    """The ranges in an annotation, however deep."""
    if typing.get_origin(kind) is Annotated:
        yield from (fact for fact in kind.__metadata__ if isinstance(fact, Range))
        kind = kind.__origin__
    for arg in typing.get_args(kind):
        yield from _ranges(arg)


def _choices(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
