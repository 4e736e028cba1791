"""Keeping a registry: the faults in it, and the files that may be removed from it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from equipoise.registry import artifacts, records
from equipoise.registry.artifacts import ASIDE, VERSION
from equipoise.registry.reading import ABOUT, POLICY, SAYS, RegistryReader
from equipoise.registry.records import Record

KEPT_S = 7 * 86_400.0  # how long a version stays that nothing names
LEFT_S = 3_600.0  # after this time without a change, an incomplete file has no owner any more


def wrong(registry: RegistryReader) -> list[str]:
    """A sentence for each thing that is wrong in a registry."""
    found, there, about = list[str](), set[str](), registry.path / ABOUT
    if (got := about.read_bytes()) != SAYS:
        found.append(f"{about}: expected {SAYS!r}, got {got[:100]!r}")
    for name in sorted(registry.listing("artifacts")):
        if VERSION.fullmatch(name) and _is_folder(registry.artifact(name)):
            there.add(name)
            found += artifacts.problems(registry.artifact(name), name)
        elif not name.startswith("."):
            found.append(f"{registry.artifact(name)}: expected only folders of versions")
    for name in sorted(registry.listing("policies")):
        place = registry.path / "policies" / name
        if not POLICY.fullmatch(name) or not _is_folder(place) or (place / "audit").is_symlink():
            found.append(f"{place}: expected only folders of policies, without links")
            continue
        try:
            folder, now = registry.audit_folder(name), registry.state(name)
        except (ValueError, OSError) as error:
            found.append(str(error))
            continue
        for record in now.records:
            try:
                records.read(folder, record)
            except (ValueError, OSError) as error:
                found.append(str(error))
        more = [
            other for other in registry.listing(f"policies/{name}/audit") if not Record.named(other)
        ]
        found += [
            f"{folder / other}: expected only records"
            for other in sorted(more)
            if not other.startswith(".")
        ]
        for version in now.added.keys() - there:
            if not now.is_removed(version):
                found.append(
                    f"{registry.artifact(version)}: expected a version of {name}, got nothing; "
                    "copy its registry again"
                )
        for alias, version in now.aliases.items():
            if version not in now.added:
                found.append(
                    f"{folder}: expected a record that adds {version}, which is {alias}, got none"
                )
            elif version not in there and now.is_removed(version):
                found.append(
                    f"{registry.artifact(version)}: expected a version, which is {alias} of "
                    f"{name}, got nothing"
                )
    return found


def collect(registry: RegistryReader, older_than_s: float, dry: bool, who: str | None) -> list[str]:
    """Remove versions that no alias and no lineage names, and the remains of killed processes ->
    the versions; the caller holds the lock.

    ValueError, and nothing is removed, if a record is damaged: it may name a version.
    """
    now_s = time.time()
    states = {
        name: registry.state(name)
        for name in registry.listing("policies")
        if POLICY.fullmatch(name)
    }
    there = {
        name
        for name in registry.listing("artifacts")
        if VERSION.fullmatch(name) and _is_folder(registry.artifact(name))
    }
    kept: set[str] = set()
    weights = list[tuple[object, str]]()  # of whole language models, which adapters name
    for name, state in states.items():
        kept.update(state.aliases.values())
        for record in state.records:
            if record.kind == "added" and record.version in there:
                lineage = dict(registry.contents(name, record)["lineage"])
                weights.append((lineage.pop("weights", None), record.version))
                kept.update(_texts(lineage))
                if now_s - record.stamp / 1e6 < older_than_s:
                    kept.add(record.version)
    kept.update(version for found, version in weights if found in kept)
    registered = {version for state in states.values() for version in state.added}
    gone = [
        version
        for version in sorted(there - kept)
        # one without a policy may be half copied
        if version in registered or _is_left(registry.artifact(version), now_s)
    ]
    if dry:
        return gone
    for version in gone:
        for name, state in states.items():
            if version in state.added and not state.is_removed(version):
                folder, before = registry.audit_folder(name), registry.state(name).records
                records.write(folder, before, "removed", version, who=who, reason="gc", details={})
        shutil.rmtree(artifacts.set_aside(registry.artifact(version)))
    _sweep(registry, now_s)
    return gone


def _sweep(registry: RegistryReader, now_s: float) -> None:
    """Remove the remains of killed processes: folders that were not whole yet, and files that had
    no name yet.
    """
    for name in registry.listing("artifacts"):
        if name.startswith(ASIDE) and _is_left(registry.artifact(name), now_s):
            shutil.rmtree(registry.artifact(name))
    folders = [
        registry.path,
        *(
            registry.audit_folder(name)
            for name in registry.listing("policies")
            if POLICY.fullmatch(name)
        ),
    ]
    for folder in folders:
        for path in folder.glob(".*.tmp"):
            if _is_left(path, now_s):
                path.unlink()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_left(path: Path, now_s: float) -> bool:
    """Was nothing done to it for so long? By the time of the last change, which a copy that keeps
    times does not carry over.
    """
    return now_s - os.lstat(path).st_ctime > LEFT_S


def _texts(value: Any) -> Iterator[str]:
    """The texts anywhere in a value from JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
