"""The registry of a folder: add versions, move their aliases, find them, check them, and remove
what nothing names.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from equipoise.files import (
    LARGEST_JSON,
    parse_json,
    plain,
    read_bounded,
    sync_directory,
    write_atomic,
)
from equipoise.hints import hint, install
from equipoise.registry import artifacts, keeping, records
from equipoise.registry.artifacts import ASIDE, KINDS, KNOWN, MANIFEST, MODEL, OF_MODEL
from equipoise.registry.reading import ABOUT, SAYS, RegistryReader
from equipoise.registry.records import MOVABLE
from equipoise.registry.state import State
from equipoise.schema import described

LARGEST_MODEL = 2 << 30  # bytes; an ONNX file is one protobuf message, which cannot be larger
LOCK_S = 60.0  # how long to wait for another process that writes
ANY: Final = "any"  # the value of ``expect`` if any version may be replaced


class AliasMoved(ValueError):
    """An alias was not at the version that its mover expected: another one was faster."""


class Registry(RegistryReader):
    """A registry that can also be written. Every change takes the lock of the registry, and one
    rename makes it.
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = False) -> None:
        """``create``: make a registry if there is none, in a new or an empty folder."""
        about = Path(path) / ABOUT
        if create and not about.exists():
            _create(about)
        super().__init__(path)

    def add(
        self,
        artifact: str | os.PathLike[str],
        name: str,
        *,
        lineage: Mapping[str, Any] | None = None,
        reason: str = "",
        who: str | None = None,
        trial: Callable[[Path, str], None] | None = None,
    ) -> str:
        """Copy an artifact into the registry as a version of a policy, and return the version.

        ``lineage``: in addition to the lineage in the artifact's spec.json. An artifact that is
        here already is not copied again. ``trial``: called with the copy and the version before
        that is added; it raises a ValueError to refuse it.
        """
        source = Path(artifact)
        audit = self.audit_folder(name)
        if not source.is_dir():
            raise ValueError(
                f"{source}: expected the folder of an artifact, got "
                f"{'a file' if source.exists() else 'none'}"
            )
        manifest = artifacts.read_manifest(source)
        version, folder = manifest.version, self.artifact(manifest.version)
        folder.parent.mkdir(exist_ok=True)
        aside = folder.parent / f"{ASIDE}{secrets.token_hex(8)}"
        aside.mkdir()
        try:
            artifacts.copy(source, manifest, aside)
            if MODEL in manifest.files:
                _check_model(aside / MODEL, source / MODEL)
                if trial is not None:
                    _tried(trial, aside, source, version)
            if others := manifest.others():
                known = OF_MODEL if manifest.described in KINDS else KNOWN
                raise ValueError(
                    f"{source / MANIFEST}: files: expected no files but {', '.join(known)}, got "
                    f"{others[0]!r}"
                )
            said = plain(_lineage(aside / manifest.described) | dict(lineage or {}))
            records.check_letters({"reason": reason, "lineage": said}, "")
            with self.locked():
                if artifacts.problems(folder, version):
                    artifacts.place(aside, folder)
                if not audit.is_dir():
                    audit.mkdir(parents=True)
                    for new in (audit.parent, audit.parent.parent, self.path):
                        sync_directory(new)
                now = self.state(name)
                self._check_kind(name, manifest.kind)
                if now.is_removed(version) or self._added(name, now, version) != said:
                    records.write(
                        audit,
                        now.records,
                        "added",
                        version,
                        who=who,
                        reason=reason,
                        details={"lineage": said},
                    )
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return version

    def alias(
        self,
        name: str,
        alias: str,
        version: str | None,
        *,
        expect: str | None = ANY,
        reason: str = "",
        who: str | None = None,
    ) -> str | None:
        """Move an alias to a version, if it is at ``expect`` (None: not set), and return the
        version.

        ``version``: its first digits, or an alias; None takes the alias away, unless it is the
        champion. ``AliasMoved``, which the audit also records, if the alias is not at ``expect``.
        """
        check_alias(alias)
        if alias == "champion" and version is None:
            raise ValueError(
                "alias: expected a version for the champion, got none; another one can take its "
                "place"
            )
        with self.locked():
            now = self.known(name)
            to = None if version is None else self._whole(name, version)
            self._expect(name, now, alias, alias, to, expect, reason, who)
            if now.aliases.get(alias) != to:
                self._move(name, now, alias, to, reason, who)
            return to

    def rollback(
        self, name: str, *, expect: str | None = ANY, reason: str = "", who: str | None = None
    ) -> str:
        """Make the previous champion the champion again, if the champion is ``expect``, and return
        it.
        """
        with self.locked():
            now = self.known(name)
            to = self._whole(name, "previous")
            self._expect(name, now, "champion", "rollback", to, expect, reason, who)
            self._move(name, now, "rollback", to, reason, who)
            return to

    def _check_kind(self, name: str, kind: str) -> None:
        """ValueError if the newest version of this name is of another kind."""
        there = self.versions(name) if self.state(name).added else []
        if there and (got := self.kind(there[0])) not in (kind, ""):
            raise ValueError(
                f"{name}: must be a name of the kind {kind}, got one of the kind {got}; try "
                "another name"
            )

    def _added(self, name: str, now: State, version: str) -> Any:
        """The lineage with which a version was added; None if it was not, or if the record is
        damaged.
        """
        with suppress(ValueError):
            return (
                self.contents(name, now.added[version])["lineage"] if version in now.added else None
            )
        return None

    def _whole(self, name: str, which: str) -> str:
        """The version that is meant; ValueError if a file of it is damaged."""
        version, folder = self.resolve(name, which)
        for problem in artifacts.problems(folder, version):
            raise ValueError(problem)
        return version

    def _expect(
        self,
        name: str,
        now: State,
        alias: str,
        kind: str,
        to: str | None,
        expect: str | None,
        reason: str,
        who: str | None,
    ) -> None:
        """Refuse a move, with a record, if the alias is not at what its mover expects."""
        current = now.aliases.get(alias)
        if expect in (ANY, current):
            return
        expected = None if expect is None else self.version_of(name, now, expect)
        if expected == current:
            return
        details = {"alias": alias, "from": current, "expected": expected}
        records.write(
            self.audit_folder(name),
            now.records,
            "refused",
            to,
            who=who,
            reason=reason,
            details=details,
        )
        raise AliasMoved(
            f"{kind} of {name}: expected {alias} at {_short(expected)}, got {_short(current)}: it "
            "was moved meanwhile; look at "
            f"'equipoise registry show {name}', then try again"
        )

    def _move(
        self, name: str, now: State, kind: str, to: str | None, reason: str, who: str | None
    ) -> None:
        alias = "champion" if kind == "rollback" else kind
        after = [head.name for head in self.heads(name, now, alias)]
        details = {"alias": alias, "from": now.aliases.get(alias), "after": after}
        records.write(
            self.audit_folder(name), now.records, kind, to, who=who, reason=reason, details=details
        )

    def verify(self) -> Sequence[str]:
        """Check the hash of every file; a sentence for each thing that is wrong, which names the
        file. Nothing is changed.
        """
        return keeping.wrong(self)

    def gc(
        self, *, older_than_s: float = keeping.KEPT_S, dry: bool = False, who: str | None = None
    ) -> Sequence[str]:
        """Remove the versions that were added so long ago and that no alias and no lineage names,
        and return them.

        The remains of killed processes also go. ``dry``: remove nothing, and return what would go.
        """
        with self.locked():
            return keeping.collect(self, older_than_s, dry, who)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The lock of all writers of this registry, which the kernel undoes when this process ends,
        however.
        """
        handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            end = time.monotonic() + LOCK_S
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > end:
                    raise ValueError(
                        f"{self.path}: another process has been writing for {LOCK_S:.0f} s; try "
                        "again"
                    )
                time.sleep(0.005)
            self._states.clear()  # the new record follows from the present records
            yield
        finally:
            os.close(handle)


def check_alias(alias: str) -> None:
    """ValueError for a name that is no alias, or an alias that cannot be moved."""
    if alias == "previous":
        raise ValueError(
            "alias: expected one that can be moved, got 'previous', which follows the champion; "
            "see 'rollback'"
        )
    if alias not in MOVABLE:
        raise ValueError(f"alias: unknown alias {alias!r}{hint(alias, MOVABLE)}")


def _create(about: Path) -> None:
    folder = about.parent
    there = (
        [name for name in os.listdir(folder) if not name.startswith(".")] if folder.is_dir() else []
    )
    if there:  # a hidden file may be what a kill left of ours
        raise ValueError(
            f"{folder}: expected a registry, or an empty folder for a new one, got one with "
            f"{min(there)}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        got = "a file" if folder.is_file() else f"'{error.strerror}' at {error.filename}"
        raise OSError(
            f"{folder}: expected a folder for a registry, or a place to make one, got {got}"
        ) from None
    write_atomic(about, SAYS)


def _tried(trial: Callable[[Path, str], None], copied: Path, source: Path, version: str) -> None:
    try:
        trial(copied, version)
    except ValueError as error:
        raise ValueError(str(error).replace(str(copied), str(source))) from None


def _check_model(copied: Path, source: Path) -> None:
    """ValueError for a graph that reads other files or has operators of its own; it is read, and
    nothing of it is run.
    """
    try:
        from equipoise.edge import check_model
    except ImportError as error:
        raise ImportError(
            f"{source}: to check it takes onnxruntime ({error}): {install('serve')}"
        ) from error
    check_model(read_bounded(copied, LARGEST_MODEL), source)


def _lineage(spec: Path) -> dict[str, Any]:
    """An artifact's description of its own origin."""
    said = parse_json(read_bounded(spec, LARGEST_JSON), spec)
    about = said.get("artifact") if isinstance(said, dict) else None
    if spec.name in KINDS:
        about = said
    lineage = about.get("lineage", {}) if isinstance(about, dict) else {}
    if not isinstance(lineage, dict):
        raise ValueError(
            f"{spec}: artifact.lineage: expected a JSON object, got {described(lineage)}"
        )
    return lineage


def _short(version: str | None) -> str:
    return "no version" if version is None else version[:12]
