"""The versions of a registry as the page shows them, and the two moves that it makes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from equipoise.registry import Registry, RegistryReader
from equipoise.registry.records import in_utf8, user

EVERY_S = 1.0  # how often the registry is looked at while somebody watches
MOST_VERSIONS = 200  # of a policy, the newest ones
MOST_RECORDS = 200  # of an audit


class Versions:
    """Reads a registry, which takes no lock; only a move opens it to write."""

    def __init__(self, place: Path) -> None:
        """ValueError if there is no registry."""
        self._place, self._reader = place, RegistryReader(place)
        self._looked = -EVERY_S
        self.mark = ""  # a text that changes with what the page shows
        self.poll()

    def poll(self) -> None:
        if time.monotonic() - self._looked >= EVERY_S:
            self._looked = time.monotonic()
            try:
                states = {name: self._reader.state(name) for name in self._reader.names()}
            except (ValueError, OSError) as error:  # ``told`` reports it to the viewers
                self.mark = f"damaged: {error}"
                return
            self.mark = " ".join(
                f"{name} {len(now.records)} {now.records[-1].name}" for name, now in states.items()
            )

    def told(self) -> dict[str, Any]:
        """Each policy: aliases, versions with their lineage, the newest first, and the audit, the
        oldest first.
        """
        return {
            "path": str(self._place),
            "policies": [self._policy(name, found) for name, found in self._reader.list().items()],
        }

    def _policy(self, name: str, found: dict[str, Any]) -> dict[str, Any]:
        versions = [
            one | self._about(name, one["version"]) for one in found["versions"][:MOST_VERSIONS]
        ]
        audit = [
            {"time": one["stamp"] / 1e6, **{key: one.get(key) for key in AUDITED}}
            for one in list(self._reader.audit(name))[-MOST_RECORDS:]
        ]
        return {
            "name": name,
            "aliases": found["aliases"],
            "revision": found["revision"],
            "versions": versions,
            "audit": audit,
        }

    def _about(self, name: str, version: str) -> dict[str, Any]:
        try:
            said = self._reader.show(name, version)
        # a version whose record is damaged, or that is removed meanwhile
        except (ValueError, OSError) as error:
            return {"lineage": {}, "problem": in_utf8(str(error))}
        return {
            "lineage": said["lineage"],
            "who": said["who"],
            "reason": said["reason"],
            "problem": said["problem"],
            "size": sum(said["files"].values()),
        }

    # ---------------------------------------------------------------------------------------- moves

    def alias(
        self, *, policy: str, alias: str, version: str, expect: str, reason: str, where: str
    ) -> str:
        """Move an alias, if it is where the mover saw it ("": not set) -> the version; ValueError
        if it is elsewhere.
        """
        who = f"{user()}, {where}"
        moved = Registry(self._place).alias(
            policy, alias, version, expect=expect or None, reason=reason, who=who
        )
        assert moved is not None
        return moved

    def rollback(self, *, policy: str, expect: str, reason: str, where: str) -> str:
        """Make the previous champion the champion again, if the champion is the version that the
        mover saw -> the version.
        """
        return Registry(self._place).rollback(
            policy, expect=expect or None, reason=reason, who=f"{user()}, {where}"
        )


AUDITED = ("record", "kind", "version", "who", "reason", "alias", "from", "expected", "problem")
