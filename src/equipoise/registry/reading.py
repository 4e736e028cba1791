"""Reading a registry: its policies, their aliases and versions, and the facts of one version."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from equipoise.files import read_json
from equipoise.hints import hint
from equipoise.registry import artifacts, records, state
from equipoise.registry.artifacts import Incomplete
from equipoise.registry.records import ALIASES, MOVABLE, Record
from equipoise.registry.state import State
from equipoise.schema import Number, check

ABOUT = "registry.json"
SAYS = b'{"format": 1}\n'  # the contents of the file
POLICY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
# a folder that changed less long ago may change again without another time of its last change
SETTLED_NS = 1_000_000_000
SHORTEST = 6  # digits of a version that a caller must give


class RegistryReader:
    """A registry that is only read, as a server and a page do: it takes no lock, and the folder may
    be read-only.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """ValueError if ``path`` is no registry."""
        self.path = Path(path)
        about = self.path / ABOUT
        if not about.is_file():
            got = (
                "another folder"
                if self.path.is_dir()
                else "a file"
                if self.path.exists()
                else "nothing"
            )
            raise ValueError(
                f"{self.path}: expected a registry, got {got}; 'equipoise registry add' makes one"
            )
        check(read_json(about), {"format": Number(1, 1, whole=True)}, str(about))
        _no_link(self.path / "artifacts", self.path / "policies")
        self._read: dict[Path, dict[str, Any]] = {}  # contents of records, which never change
        # by policy, with the time of the last change of its folder
        self._states: dict[str, tuple[int, State]] = {}

    def names(self) -> Sequence[str]:
        """The policies that have versions, sorted."""
        return sorted(
            name
            for name in self.listing("policies")
            if POLICY.fullmatch(name) and self._has_versions(name)
        )

    def _has_versions(self, name: str) -> bool:
        """Does a policy have versions? False if its folder cannot be read,
        which ``verify`` names.
        """
        with suppress(ValueError, OSError):
            return bool(self.state(name).added)
        return False

    def state(self, name: str) -> State:
        """The versions and aliases of a policy by its records; it is not to be changed.

        One listing of a folder, or no listing while nothing was written there: a server asks a few
        times a second.
        """
        folder = self.audit_folder(name)
        try:
            changed_ns = folder.stat().st_ctime_ns  # no copy can set this one
        except (FileNotFoundError, NotADirectoryError):
            return State([])
        kept_ns, kept = self._states.get(name, (0, State([])))
        if kept_ns == changed_ns:
            return kept
        now = state.of(os.listdir(folder))
        if time.time_ns() - changed_ns > SETTLED_NS:
            self._states[name] = changed_ns, now
        return now

    def aliases(self, name: str) -> dict[str, str]:
        """The version of each alias of a policy that is set: champion, previous, candidate,
        shadow.
        """
        return self.known(name).aliases

    def versions(self, name: str) -> Sequence[str]:
        """The versions of a policy that are here, the newest first."""
        there = set(self.listing("artifacts"))
        return [version for version in self.known(name).newest_first() if version in there]

    def revision(self, name: str) -> str:
        """A text that changes when an alias of the policy is moved, here or by copying, and at
        nothing else.

        While nothing changes it costs a look at a folder and no listing, so a server may ask a few
        times a second.
        """
        return self.known(name).revision

    def resolve(self, name: str, which: str = "champion") -> tuple[str, Path]:
        """The version of an alias, or of the first digits of a version, and the folder of its
        artifact.

        ``Incomplete`` if its files are still being copied here: ask again. ValueError if there is
        none. The sizes of the files are looked at, but not their contents: the loader of the
        artifact checks them.
        """
        now = self.known(name)
        version = self.version_of(name, now, which)
        folder = self.artifact(version)
        try:
            artifacts.look(folder, version)
        except Incomplete:
            if now.is_removed(version) and not folder.exists():
                day = time.strftime("%Y-%m-%d", time.gmtime(now.removed[version].stamp / 1e6))
                raise ValueError(
                    f"{name}: expected a version that is here, got {version[:12]}: gc removed it "
                    f"on {day}"
                ) from None
            raise
        return version, folder

    def kind(self, version: str) -> str:
        """Return "policy", "reward model" or "language model"; "" for a version whose manifest
        cannot be read.
        """
        with suppress(ValueError, OSError):
            return artifacts.read_manifest(self.artifact(version)).kind
        return ""

    def list(self) -> dict[str, Any]:
        """For each policy its aliases, its revision, and its versions, the newest first, each with
        its aliases, its kind and its time.

        The time is when it was added, in seconds since 1970.
        """
        there = set(self.listing("artifacts"))
        found = {name: self.state(name) for name in self.names()}
        return {
            name: {
                "aliases": now.aliases,
                "revision": now.revision,
                "versions": [
                    {
                        "version": version,
                        "kind": self.kind(version),
                        "time": now.added[version].stamp / 1e6,
                        "aliases": now.aliases_of(version),
                    }
                    for version in now.newest_first()
                    if version in there
                ],
            }
            for name, now in found.items()
        }

    def show(self, name: str, which: str = "champion") -> dict[str, Any]:
        """The facts of one version: lineage, files (sizes in bytes), aliases, who added it and
        when.

        ``problem``: a sentence if a file is not there, or not of its size; None if all are.
        """
        now = self.known(name)
        version = self.version_of(name, now, which)
        said = self.contents(name, now.added[version])
        files, problem = {}, None
        try:
            files = {
                file: size
                for file, (_, size) in artifacts.look(self.artifact(version), version).files.items()
            }
        except (ValueError, OSError) as error:
            problem = records.in_utf8(str(error))
        return {
            "policy": name,
            "version": version,
            "kind": self.kind(version),
            "path": str(self.artifact(version)),
            "aliases": now.aliases_of(version),
            "lineage": said["lineage"],
            "added": said["time"],
            "who": said["who"],
            "reason": said["reason"],
            "files": files,
            "problem": problem,
        }

    def audit(self, name: str) -> Sequence[dict[str, Any]]:
        """Everything that was done to a policy or refused, the oldest first; a damaged record has a
        ``problem``.
        """
        found = []
        for record in self.known(name).records:
            about = {
                "record": record.name,
                "kind": record.kind,
                "version": record.version,
                "stamp": record.stamp,
            }
            try:
                found.append(about | self.contents(name, record))
            except (ValueError, OSError) as error:
                found.append(about | {"problem": records.in_utf8(str(error))})
        return found

    def conflicts(self, name: str) -> dict[str, Sequence[str | None]]:
        """Aliases that were moved in two copies of the registry, with the versions that they got
        there; the last one holds.

        The next move of the alias settles it.
        """
        now = self.known(name)
        found = {
            alias: [move.version for move in self.heads(name, now, alias)] for alias in MOVABLE
        }
        return {alias: versions for alias, versions in found.items() if len(set(versions)) > 1}

    # ---------------------------------------------------------------------- of the rooms that write

    def artifact(self, version: str) -> Path:
        """The folder of a version."""
        return self.path / "artifacts" / version

    def audit_folder(self, name: str) -> Path:
        """The folder of a policy's records; ValueError if ``name`` cannot be a policy's."""
        if not POLICY.fullmatch(name):
            got = repr(name) if len(name) <= 100 else f"{len(name):,} letters, {name[:20]!r}..."
            raise ValueError(
                "policy: expected a name of letters, digits, '.', '_' and '-', at most 100 of "
                f"them, got {got}"
            )
        folder = self.path / "policies" / name / "audit"
        _no_link(folder.parent, folder)
        return folder

    def listing(self, folder: str) -> Sequence[str]:
        """The names in a folder of the registry; none if there is no such folder yet."""
        try:
            return os.listdir(self.path / folder)
        except FileNotFoundError:
            return []

    def known(self, name: str) -> State:
        """The state of a policy that has versions; ValueError names the nearest."""
        now = self.state(name)
        if not now.added:
            raise ValueError(f"{self.path}: unknown policy {name!r}{hint(name, self.names())}")
        return now

    def version_of(self, name: str, now: State, which: str) -> str:
        """The version of an alias, or the version that begins with these digits."""
        if which in ALIASES:
            if (version := now.aliases.get(which)) is None:
                there = ", ".join(now.aliases) or "no alias"
                raise ValueError(
                    f"{name}: expected an alias that is set, got {which!r}; set: {there}"
                )
            if version not in now.added:
                raise Incomplete(
                    f"{name}: expected the record that adds {version}, got none; copy its registry "
                    "here again"
                )
            return version
        found = (
            [version for version in now.added if version.startswith(which)]
            if len(which) >= SHORTEST
            else []
        )
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(
                f"{name}: expected more digits of a version, got {which!r}, with which "
                f"{len(found)} begin"
            )
        newest = [version[:12] for version in now.newest_first()[:5]]
        raise ValueError(
            f"{name}: unknown version or alias {which!r}{hint(which, [*now.aliases, *newest])}"
        )

    def heads(self, name: str, now: State, alias: str) -> Sequence[Record]:
        """The moves of an alias that no other move followed."""
        moves = [record for record in now.records if record.alias == alias]
        read: dict[str, Mapping[str, Any]] = {}
        for move in moves:
            with suppress(ValueError, FileNotFoundError):  # ``verify`` names a damaged one
                read[move.name] = self.contents(name, move)
        return state.heads(moves, read)

    def contents(self, name: str, record: Record) -> dict[str, Any]:
        """The contents of a record; ValueError names the file where they are damaged."""
        path = self.audit_folder(name) / record.name
        if path not in self._read:
            self._read[path] = records.read(path.parent, record)
        return self._read[path]


def _no_link(*folders: Path) -> None:
    for folder in folders:
        if folder.is_symlink():
            raise ValueError(
                f"{folder}: expected a folder, got a link, which may lead out of the registry"
            )
