"""The journal of a study: every decision with its reason, and every result, a line each, on the
disk before anything follows from it.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from equipoise.files import append_whole, parse_json, plain, read_bounded, sync_directory
from equipoise.schema import (
    Anything,
    Each,
    Either,
    Flag,
    Items,
    Maybe,
    Number,
    Schema,
    Text,
    check,
    described,
)
from equipoise.studies.history import (
    Clone,
    End,
    Entry,
    GoOn,
    History,
    Result,
    Start,
    Stop,
)

JOURNAL = "journal.jsonl"
LARGEST = 256 << 20  # bytes
KINDS: dict[str, type[Entry]] = {
    "start": Start,
    "go_on": GoOn,
    "stop": Stop,
    "clone": Clone,
    "result": Result,
    "end": End,
}
NAMES = {cls: name for name, cls in KINDS.items()}
STEPS, WORDS, NAMED = Number(0, 1 << 62, whole=True), Text(1 << 20), Text(100)
LINE: Schema = {
    "n": Anything(),
    "kind": Anything(),
    "left?": Number(0, 1 << 20, whole=True),
    "measured?": {"*": Number()},
    "*": Anything(),  # of a later version
}
DECIDED: Schema = {"trial": NAMED, "reason": WORDS} | LINE
SETTINGS = Each(Either((Number(), Text(1000), Flag())), 64)
SCHEMAS: dict[type[Entry], Schema] = {
    Start: {
        "settings": SETTINGS,
        "to": STEPS,
        "seed?": Maybe(Number(0, (1 << 63) - 1, whole=True)),
        "role?": Text(among=("search", "confirm")),
    }
    | DECIDED,
    GoOn: {"to": STEPS} | DECIDED,
    Stop: DECIDED,
    Clone: {"source": NAMED, "settings": SETTINGS, "to": STEPS} | DECIDED,
    Result: {
        "trial": NAMED,
        "steps": STEPS,
        "state": Text(among=("paused", "done", "failed")),
        "score?": Maybe(Number()),
        "alarms?": Items(Text(1000), 1000),
        "error?": WORDS,
    }
    | LINE,
    End: {"best": Maybe(NAMED), "reason": WORDS} | LINE,
}
MEASURED = ("seconds", "core_seconds")  # they differ between two runs of the same study


class Journal:
    """The journal of one study, to read and to append to."""

    def __init__(self, folder: Path) -> None:
        """Read what is there. A last line that a kill cut off is removed: nothing followed from
        it.
        """
        self.path = folder / JOURNAL
        self.entries, whole = _read(self.path)
        new = not self.path.exists()
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 it stays open
        if not new:
            os.ftruncate(self._file.fileno(), whole)
        else:
            sync_directory(folder)

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries that belong together; they are on the disk when this returns, or none is.

        A kill in between leaves the first few lines, which the next reader leaves out.
        """
        if not self.path.exists() or not os.path.samefile(self.path, self._file.fileno()):
            raise ValueError(
                f"{self.path}: must stay where it is while its study runs, got it moved or removed"
            )
        first, at = len(self.entries), time.time()
        lines = [
            line_of(entry, first + place, at, left=len(entries) - place - 1)
            for place, entry in enumerate(entries)
        ]
        append_whole(self._file, b"".join(lines), self.path)
        os.fsync(self._file.fileno())
        self.entries += entries

    def close(self) -> None:
        self._file.close()


def read_journal(folder: Path) -> list[Entry]:
    """Return the entries of a study's journal, whether a process writes it now or not; ValueError
    with the line for a damaged one.
    """
    return _read(folder / JOURNAL)[0]


def replayed(
    entries: Iterable[Entry], jobs: int, where: Path | str = JOURNAL, *, whole: int = 0
) -> History:
    """Return the history that the entries make; ValueError with the line for one that cannot
    follow those before it. ``whole``: the env steps of a whole trial, if they are known.
    """
    history = History(jobs=jobs, whole=whole)
    for number, entry in enumerate(entries, 1):
        try:
            history.add(entry)
        except ValueError as error:
            raise ValueError(f"{where}, line {number}: {error}") from None
    return history


def line_of(entry: Entry, number: int, at: float, left: int = 0) -> bytes:
    """Return the line of an entry: its kind, its fields, what was measured, a checksum.

    ``left``: number of entries that follow and belong to it.
    """
    given: dict[str, object] = plain(asdict(entry))
    measured = {"at": round(at, 3)} | {name: given.pop(name) for name in MEASURED if name in given}
    data = {"n": number, "kind": NAMES[type(entry)], **given, "left": left, "measured": measured}
    text = json.dumps(data, allow_nan=False)
    return f'{text[:-1]}, "crc": {zlib.crc32(text.encode())}}}\n'.encode()


def decided(entries: Sequence[Entry]) -> list[dict[str, object]]:
    """Return the entries without what was measured: equal for two runs of the same study."""
    return [
        {"kind": NAMES[type(entry)]}
        | {name: value for name, value in asdict(entry).items() if name not in MEASURED}
        for entry in entries
    ]


def _read(path: Path) -> tuple[list[Entry], int]:
    """The entries of the whole lines, and the bytes of these lines."""
    if not path.exists():
        return [], 0
    data, entries, whole, at = read_bounded(path, LARGEST), list[Entry](), 0, 0
    lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
    batch: list[Entry] = []
    for number, line in enumerate(lines, 1):
        entry, left = _entry(line.rstrip(b"\n"), number, path)
        batch.append(entry)
        at += len(line)
        if left == 0:
            entries += batch
            batch, whole = [], at
    return entries, whole


def _entry(line: bytes, number: int, path: Path) -> tuple[Entry, int]:
    """The entry of a line, and how many follow that belong to it."""
    where = f"{path}, line {number}"
    text, comma, crc = line.rpartition(b', "crc": ')
    if not comma or crc != b"%d}" % zlib.crc32(text + b"}"):
        raise ValueError(
            f"{where}: must be a line that Equipoise wrote, got a damaged one; restore the file, "
            f"or cut it before this line, and the study goes on from there"
        )
    data = parse_json(text + b"}", path, number)
    if not isinstance(data, dict):
        raise ValueError(f"{where}: must be an object, got {described(data)}")
    kind = data.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None or data.get("n") != number - 1:
        raise ValueError(
            f"{where}: must be entry {number - 1} of a kind in {', '.join(KINDS)}, got entry "
            f"{data.get('n')} of kind {kind!r}"
        )
    check(data, SCHEMAS[cls], where)
    given = {**data, **data.get("measured", {})}
    given = {one.name: given[one.name] for one in fields(cls) if one.name in given}
    if "alarms" in given:
        given["alarms"] = tuple(given["alarms"])
    return cls(**given), int(data.get("left", 0))
