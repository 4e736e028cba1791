"""Messages from workers to the driver, and from a runtime to its caller. A message is plain data:
``to_json`` crosses any pipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import get_args

from equipoise.record.checkpoint import Entry
from equipoise.record.report import Learned


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Learned):
    """The learner's measurements since its last record, with the episodes of all actors at that
    moment.
    """

    version: int
    at: float  # time.monotonic()
    # sent between two records, because time has passed: the next record covers these updates again
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence for the person."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The last word of a worker that raised."""

    error: str  # the exception's name
    text: str  # its traceback
    final: bool  # a successor would come to the same
    said: str = ""  # the exception's own words


@dataclass(frozen=True, slots=True, kw_only=True)
class CutBegun:
    """The learner holds still at this version: the other workers are to save."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The learner holds still at this version until the driver has its weights, since it is due to
    be evaluated.
    """

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A worker has written its files for a cut. ``more``: further files are written while it goes
    on, until ``Written``.
    """

    cut: int
    files: dict[str, Entry] = field(default_factory=dict)
    more: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The rest of a worker's files for a cut is written."""

    cut: int
    files: dict[str, Entry] = field(default_factory=dict)
    segments: dict[str, Entry] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The run holds still and these files are written. ``error``: why they could not be.

    With ``more`` others are written meanwhile; they come as a second one (``late``), which
    completes the checkpoint.
    """

    step: int
    version: int
    files: dict[str, Entry] = field(default_factory=dict)
    segments: dict[str, Entry] = field(default_factory=dict)
    error: str | None = None
    more: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """A worker on another machine sent this message, in its JSON form, to the driver there."""

    title: str
    said: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """The link to another machine is up, or down: ``how`` is the reason, and is empty while it is
    up.
    """

    site: str
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """All workers of a site have saved themselves for another machine. Their files are at home."""

    site: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A worker of another machine died, and is replaced there. Saves that it had not finished will
    never arrive.
    """

    how: str


Message = (
    Record
    | Note
    | Failed
    | CutBegun
    | Offered
    | Saved
    | Written
    | Cut
    | Relayed
    | Linked
    | HandedOver
    | Lost
)
_TYPES: dict[str, Callable[..., Message]] = {one.__name__: one for one in get_args(Message)}


def to_json(message: Message) -> dict[str, object]:
    """A message as a JSON object: its fields, and its name under "message"."""
    given = {one.name: getattr(message, one.name) for one in fields(message)}
    return {"message": type(message).__name__} | given


def from_json(data: Mapping[str, object]) -> Message:
    """Read a message; ValueError if it is no message."""
    given = dict(data)
    name = given.pop("message", None)
    if not isinstance(name, str) or name not in _TYPES:
        raise ValueError(f"message: expected one of {', '.join(_TYPES)}, got {name!r}")
    try:
        return _TYPES[name](**given)
    except TypeError as error:
        raise ValueError(
            f"message: expected the fields of a {name}, got {sorted(given)}"
        ) from error
