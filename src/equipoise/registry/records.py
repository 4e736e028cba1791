"""Records: a file for each thing that was done to a policy, with the act in its name, and the
person and the reason in its contents.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.files import parse_json, plain, write_atomic
from equipoise.registry.artifacts import read_plain
from equipoise.schema import Anything, Each, Items, Maybe, Number, Schema, Text, check

MOVABLE = ("champion", "candidate", "shadow")
ALIASES = (*MOVABLE, "previous")
KINDS = ("added", "removed", "refused", "rollback", *MOVABLE)
NAME = re.compile(
    rf"(?P<stamp>\d{{16}})-(?P<kind>{'|'.join(KINDS)})-(?P<version>[0-9a-f]{{64}}|none)-(?P<digest>[0-9a-f]{{16}})\.json"
)
LATEST = 10**16 - 1  # microseconds since 1970 that a name has room for: the year 2286
LARGEST = 1 << 20  # bytes of a record
SCHEMA: Schema = {
    "format": Number(1, 1, whole=True),
    "stamp": Number(0, LATEST, whole=True),
    "kind": Text(among=KINDS),
    "version": Maybe(Text(64)),
    "who": Text(200),
    "time": Text(40),
    "reason": Text(10_000),
    "alias?": Text(among=ALIASES),
    "from?": Maybe(Text(64)),
    "expected?": Maybe(Text(64)),
    "after?": Items(Text(200)),
    "lineage?": Each(Anything()),
}


@dataclass(frozen=True, slots=True, order=True)
class Record:
    """The parts of a record's name. Records are ordered by their names, which begin with the
    time.
    """

    name: str
    stamp: int  # microseconds since 1970; later than that of every record which its writer saw
    kind: str  # one of KINDS
    version: str | None  # None: the alias was taken away

    @property
    def alias(self) -> str | None:
        """The alias that this record moves; ``previous`` follows the champion."""
        return {"rollback": "champion"}.get(self.kind, self.kind if self.kind in MOVABLE else None)

    @classmethod
    def named(cls, name: str) -> Record | None:
        """Read the name of a file; None if it is no record's, such as a file that is being written
        or copied.
        """
        if (found := NAME.fullmatch(name)) is None:
            return None
        version = found["version"]
        return cls(name, int(found["stamp"]), found["kind"], None if version == "none" else version)


def read(folder: Path, record: Record) -> dict[str, Any]:
    """The contents of a record; ValueError names the file where they are not what was written."""
    path = folder / record.name
    data = read_plain(path, LARGEST)
    if (got := _digest(data)) != (said := record.name.removesuffix(".json")[-16:]):
        raise ValueError(
            f"{path}: expected contents whose SHA-256 begins with {said}, got {got}: the file is "
            "damaged"
        )
    said_within = check(in_utf8(parse_json(data, path)), SCHEMA, str(path))
    if _name(said_within, data) != record.name:
        raise ValueError(
            f"{path}: expected the name {_name(said_within, data)}, by its contents, got "
            f"{record.name}"
        )
    return {"lineage": {}} | said_within if record.kind == "added" else dict(said_within)


def write(
    folder: Path,
    before: Sequence[Record],
    kind: str,
    version: str | None,
    *,
    who: str | None,
    reason: str,
    details: Mapping[str, Any],
) -> Record:
    """Add a record after the records of ``before``, in one rename; the caller holds the registry's
    lock.
    """
    newest = max((record.stamp for record in before), default=0)
    now_us = time.time_ns() // 1_000
    # a clock that goes back does not undo what was done later
    if (stamp := max(now_us, newest + 1)) > LATEST:
        raise ValueError(
            f"{folder}: expected records of times before the year 2286, got {max(before).name}"
        )
    said = {
        "format": 1,
        "stamp": stamp,
        "kind": kind,
        "version": version,
        "who": in_utf8(who or user())[:200],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_us / 1e6)),
        "reason": reason,
        **details,
    }
    check(said, SCHEMA, f"a record of {folder.parent.name}")
    check_letters(said, "")
    data = (json.dumps(plain(said), indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
    if len(data) > LARGEST:
        raise ValueError(
            f"a record of {folder.parent.name}: expected at most {LARGEST:,} bytes, got "
            f"{len(data):,}"
        )
    name = _name(said, data)
    write_atomic(folder / name, data)
    return Record(name, stamp, kind, version)


def user() -> str:
    """The user of this process, as USER@MACHINE."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def check_letters(value: Any, place: str) -> None:
    """ValueError for half of a character, which no file and no page can show: its terminal or
    caller has another encoding.
    """
    if isinstance(value, Mapping):
        for key, one in value.items():
            check_letters(key, place)
            check_letters(one, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for one in value:
            check_letters(one, place)
    elif isinstance(value, str) and in_utf8(value) != value:
        raise ValueError(
            f"{in_utf8(place)}: expected text in UTF-8, got {value[:200]!r}; use a terminal that "
            "has UTF-8"
        )


def in_utf8(value: Any) -> Any:
    """The value with halves of characters escaped, so that a record from elsewhere can be shown."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {in_utf8(key): in_utf8(one) for key, one in value.items()}
    return [in_utf8(one) for one in value] if isinstance(value, list) else value


def _name(said: Mapping[str, Any], data: bytes) -> str:
    return f"{said['stamp']:016}-{said['kind']}-{said['version'] or 'none'}-{_digest(data)}.json"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
