"""The state of a policy: its aliases and versions, as they follow from the names of its records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from equipoise.registry.records import Record


@dataclass(slots=True)
class State:
    """A policy as its records describe it.

    ``champions`` is a stack: a promotion puts the version on top, a rollback takes off what lies
    above the version to which it goes back. So ``previous`` is the version below the top, and a
    second rollback goes back further, not forth again.
    """

    records: list[Record]  # the oldest first
    champions: list[str] = field(default_factory=list)
    pointers: dict[str, str] = field(default_factory=dict)  # candidate and shadow
    # the newest record that added each version
    added: dict[str, Record] = field(default_factory=dict)
    removed: dict[str, Record] = field(default_factory=dict)  # the newest that removed one
    revision: str = ""  # changes when an alias is moved, here or by copying, and at nothing else

    @property
    def aliases(self) -> dict[str, str]:
        """The version of each alias that is set."""
        top = dict(zip(("champion", "previous"), reversed(self.champions), strict=False))
        return top | self.pointers

    def aliases_of(self, version: str) -> list[str]:
        """The aliases that a version has."""
        return [alias for alias, at in self.aliases.items() if at == version]

    def newest_first(self) -> list[str]:
        """The versions that were ever added, newest first."""
        return sorted(self.added, key=self.added.__getitem__, reverse=True)

    def is_removed(self, version: str) -> bool:
        """Was the version removed after it was last added? A copy from another registry may have
        brought its files back.
        """
        return version in self.removed and self.removed[version] > self.added[version]


def of(names: Iterable[str]) -> State:
    """The state in the names of a policy's records; other names are left out. The order of
    ``names`` does not matter.
    """
    state = State(sorted(record for name in names if (record := Record.named(name))))
    moves = "\n".join(record.name for record in state.records if record.alias)
    state.revision = hashlib.sha256(moves.encode()).hexdigest()[:16]
    for record in state.records:
        version = record.version
        if record.kind == "candidate" or record.kind == "shadow":
            state.pointers.pop(record.kind, None)
            if version is not None:
                state.pointers[record.kind] = version
        elif version is None or record.kind == "refused":
            continue
        elif record.kind == "added":
            state.added[version] = record
        elif record.kind == "removed":
            state.removed[version] = record
        else:
            if record.kind == "rollback":
                while state.champions and state.champions[-1] != version:
                    state.champions.pop()
            if state.champions[-1:] != [version]:
                state.champions.append(version)
    return state


def heads(moves: Sequence[Record], read: Mapping[str, Mapping[str, Any]]) -> list[Record]:
    """The moves of an alias that no other move followed: one, or several if it was moved in two
    copies of a registry.

    ``read``: the contents of the records, by name; a damaged record is missing.
    """
    followed = {name for move in moves for name in read.get(move.name, {}).get("after", ())}
    return [move for move in moves if move.name not in followed]
