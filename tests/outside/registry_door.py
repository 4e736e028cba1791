"""The door of the registry: artifacts and records that somebody else wrote, changed as a whole and
in their structure.

Each example adds a changed artifact beside good ones, or copies it in as a merge does, and changes
records. Every reader then works or refuses in one sentence, another policy stays usable, what is
printed has the lines that it should have, and a server serves the champion, follows it, and names
in its alarm what it does not serve.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import equipoise.cli.registry as commands
from equipoise.registry import Registry, records
from equipoise.serving.backend import load
from equipoise.serving.trial import Trial
from equipoise.serving.version import Version
from equipoise.serving.versions import Versions, _is_at_work
from equipoise.watching import versions as watching
from tests.artifacts import artifact
from tests.outside.harness import Door, Fault, Planted
from tests.registry.made import manifest
from tests.serving.broken import BREAK

REFUSED = (ValueError, OSError)
FILES = ("spec.json", "manifest.json", "record")
DAMAGE = (
    "none",
    "cut",
    "flip",
    "remove",
    "link",
    "pipe",
    "folder",
    "empty",
    "more",
    "twice",
    "unreadable",
)
ODD = [
    "\n  2026-11-28 09:00  champion 0",
    "\r",
    "\u2028",
    "\x85",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "\udce9",
    "",
    "x" * 300,
    "../x",
]
words = st.one_of(st.sampled_from(ODD), st.sampled_from(ODD), st.text(max_size=8)).map(
    lambda text: json.loads(json.dumps(text))
)
numbers = st.one_of(st.integers(-1, 3), st.sampled_from([1 << 31, 1 << 62, 10**300, 1e308, -0.0]))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)
edits = st.fixed_dictionaries(
    {
        "file": st.sampled_from(FILES),
        "walk": st.lists(st.integers(0, 12), max_size=7),
        "to": values,
        "remove": st.booleans(),
        # whether hashes and names are made to fit again, as by somebody who means it
        "whole": st.booleans(),
    }
)
examples = st.fixed_dictionaries(
    {
        "graph": st.sampled_from(["good", "good", "wrong shape", "nan weights", "custom operator"]),
        "edits": st.lists(edits, max_size=3),
        "damage": st.sampled_from(DAMAGE),
        "at": st.integers(0, 12),
        "alias": st.sampled_from(["candidate", "shadow", "previous"]),
        "reason": words,
        "copied": st.booleans(),
    }
)


@functools.cache
def template() -> tuple[Any, Path]:
    """A registry with the policies p and q, whose champions are good, and artifacts that are broken
    or not.
    """
    kept = tempfile.TemporaryDirectory(prefix="equipoise-registry-door-")
    place = Path(kept.name)
    to = Registry(place / "registry", create=True)
    for seed in (0, 1):
        made = artifact(place / f"good-{seed}", "mlp", seed)
        for name in ("p", "q"):
            to.alias(name, "champion", to.add(made, name, reason="first"))
    for how in ("good", "wrong shape", "nan weights", "custom operator"):
        made = artifact(place / how, "mlp", 2)
        if how != "good":
            BREAK[how](made)
    return kept, place


def attempt(example: dict[str, Any]) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="equipoise-registry-door-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(os, "fsync", lambda handle: None)  # a busy disk takes seconds for it
        patch.setattr("equipoise.serving.versions.OTHERS_S", 50.0)  # so does a busy machine to load
        place = Path(folder)
        shutil.copytree(
            template()[1] / "registry", place / "registry", copy_function=shutil.copyfile
        )
        shutil.copytree(
            template()[1] / example["graph"], place / "bad", copy_function=shutil.copyfile
        )
        _attempt(example, place)


def _attempt(example: dict[str, Any], place: Path) -> None:
    to = Registry(place / "registry")
    good = list(to.versions("p"))
    for edit in example["edits"]:
        if edit["file"] != "record":
            _edit(place / "bad" / edit["file"], edit)
    if example["damage"] not in ("none", "twice"):
        _damage(place / "bad", example)
    bad = _or_refused(lambda: to.add(place / "bad", "p", reason=example["reason"]))
    if bad is None and example["copied"]:
        bad = _copied(to, place / "bad")
    if bad is not None:
        alias = example["alias"]
        _write(to, "champion" if alias == "previous" else alias, bad, example["reason"])
        if alias == "previous":
            _write(to, "champion", good[0], "")
    audit = to.path / "policies" / "p" / "audit"
    for edit in example["edits"]:
        if edit["file"] == "record":
            name = sorted(os.listdir(audit))[example["at"] % len(os.listdir(audit))]
            _edit(audit / name, edit)
            if edit["whole"] and (audit / name).is_file():
                data = (audit / name).read_bytes()
                (audit / name).rename(
                    audit / f"{name[:-21]}{hashlib.sha256(data).hexdigest()[:16]}.json"
                )
    # a record that was copied by another name, and one that is no record
    if example["damage"] == "twice":
        name = sorted(os.listdir(audit))[example["at"] % len(os.listdir(audit))]
        other = "0" if name[-6] != "0" else "1"  # another number of the same moment
        shutil.copy(audit / name, audit / f"{name[:-6]}{other}.json")
        (audit / "x\nchampion").write_text("{}")
    _read(Registry(to.path))
    _serve(to.path)


def _edit(path: Path, edit: dict[str, Any]) -> None:
    """Set or remove the value to which a walk through the file leads."""
    try:
        root = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return
    at, last = root, None
    for step in edit["walk"]:
        keys = (
            list(at)
            if isinstance(at, dict)
            else list(range(len(at)))
            if isinstance(at, list)
            else []
        )
        if not keys:
            break
        last = at, keys[step % len(keys)]
        at = at[last[1]]
    if last is None:
        root = edit["to"]
    elif edit["remove"]:
        del last[0][last[1]]
    else:
        last[0][last[1]] = edit["to"]
    path.write_text(json.dumps(root))
    if edit["whole"] and path.name == "spec.json":
        manifest(path.parent)


def _damage(folder: Path, example: dict[str, Any]) -> None:
    names = sorted(os.listdir(folder))
    path = folder / names[example["at"] % len(names)]
    data, how = path.read_bytes(), example["damage"]
    if how == "more":
        (folder / "numpy.py").write_text("import os")
        if example["copied"]:
            manifest(folder)
        return
    if how in ("cut", "flip", "empty"):
        path.write_bytes(
            {"cut": data[: len(data) // 2], "flip": bytes([data[0] ^ 1]) + data[1:], "empty": b""}[
                how
            ]
        )
        return
    path.unlink()
    if how == "link":
        path.symlink_to("/etc/passwd")
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "unreadable":
        path.symlink_to(path.name)  # root may read everything, but not what leads to itself


def _copied(to: Registry, bad: Path) -> str:
    """The artifact as a copy of another registry brings it, with the record that adds it."""
    manifest = bad / "manifest.json"
    data = manifest.read_bytes() if manifest.is_file() else b""  # a pipe would be waited for
    version = hashlib.sha256(data).hexdigest()
    shutil.copytree(bad, to.artifact(version), symlinks=True, copy_function=_copy)
    _write(to, "added", version, "", lineage={})
    return version


def _copy(source: str, to: str) -> None:
    os.mkfifo(to) if not Path(source).is_file() else shutil.copy(source, to)


def _write(to: Registry, kind: str, version: str, reason: str, **details: Any) -> None:
    """A record as it is written elsewhere, by a version of the registry that checks less."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "check_letters", lambda *_: None)
        folder = to.audit_folder("p")
        records.write(
            folder, to.state("p").records, kind, version, who="x@y", reason=reason, details=details
        )


def _or_refused(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except REFUSED as error:
        if not str(error):
            raise Fault("a refusal without a sentence", type(error).__name__) from error
        return None


def _read(to: Registry) -> None:
    """Everything that looks at a registry, and what is printed and shown of it."""
    problems = to.verify()
    for name in ("p", "q"):
        about = {
            "policy": name,
            "aliases": to.aliases(name),
            "versions": to.versions(name),
            "conflicts": to.conflicts(name),
            "audit": to.audit(name),
        }
        _printed(commands._of_policy(about))
        for version in to.versions(name):
            if (shown := _or_refused(partial(to.show, name, version))) is not None:
                _printed(commands._of_version(shown))
            _or_refused(partial(to.resolve, name, version))
    _printed(problems)
    _or_refused(lambda: to.gc(dry=True))
    if to.resolve("q")[0] != to.aliases("q")["champion"]:
        raise Fault("another policy is not usable")
    page = watching.Versions(to.path).told()
    if [one["name"] for one in page["policies"]] != ["p", "q"]:
        raise Fault("the page lacks a policy")
    try:
        json.dumps(page, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Fault("the page is no UTF-8", str(error)) from None


def _printed(lines: Sequence[str]) -> None:
    # as the command finds it, also where a fault is planted
    shown = [vars(commands)["printable"](line) for line in lines]
    if len("\n".join(shown).splitlines()) != len(lines):
        raise Fault("a forged line", repr(lines))


def _serve(place: Path) -> None:
    """The champion answers and is followed, whatever the others are."""
    to = Registry(place)
    aliases = to.aliases("p")
    sound = {version for version in to.versions("p") if version in to.aliases("q").values()}

    class Within(Trial):
        """In this process: the door has no example that is endless or large."""

        def __call__(self, path: Path, version: str) -> None:
            if version not in sound:
                Version(load(path), batch=4).prove()

    versions = Versions(to, "p", batch=4, trial=Within())
    if aliases.get("champion") not in sound:
        _or_refused(versions.start)
        versions.stop(5)
        return
    versions.start()
    try:
        if any(map(_is_at_work, versions._attempts.values())):
            raise Fault("an alias is at work for ever", str(aliases))
        if versions.find(None).digest != aliases["champion"]:
            raise Fault("the champion is not served", str(versions.alarm))
        for alias in aliases.keys() - versions.now.by_alias.keys():
            if f"{alias}: " not in str(versions.alarm):
                raise Fault("an alias is not served and has no alarm", alias)
        other = next(version for version in sound if version != aliases["champion"])
        if (
            _or_refused(lambda: to.alias("p", "champion", other))
            and versions._load(to.aliases("p"))["champion"].digest != other
        ):
            raise Fault("the champion does not follow", str(versions.alarm))
    finally:
        versions.stop(5)


# ----------------------------------------------------------------------------------- planted faults


def narrow_except(patch: pytest.MonkeyPatch) -> None:
    """What fails in another way than by ValueError and OSError takes all aliases with it."""
    honest = Versions._load

    def load_all(self: Versions, aliases: Any) -> Any:
        found = honest(self, aliases)
        for one in self._attempts.values():
            if one.error is not None and not isinstance(one.error, REFUSED):
                raise one.error
        return found

    patch.setattr(Versions, "_load", load_all)


def newlines(patch: pytest.MonkeyPatch) -> None:
    """The audit prints a reason with its newlines."""
    patch.setattr(
        commands,
        "printable",
        lambda text: "".join(c if c.isprintable() or c in "\n\t" else repr(c) for c in text),
    )


def halves(patch: pytest.MonkeyPatch) -> None:
    """Halves of letters come out of a record as they went in."""
    patch.setattr(records, "in_utf8", lambda value: value)


def one_for_all(patch: pytest.MonkeyPatch) -> None:
    """A broken alias leaves the champion where it is."""
    honest = Versions._load

    def load_all(self: Versions, aliases: Any) -> Any:
        found = honest(self, aliases)
        return found if self.alarm is None else dict(self.now.by_alias)

    patch.setattr(Versions, "_load", load_all)


DOORS = [
    Door(
        name="registry",
        examples=examples,
        attempt=attempt,
        hang_s=60.0,
        growth_mb=16.0,
        quick=4,
        prepare=template,
    )
]
PLANTED = [
    Planted("only some errors cost one alias", "registry", narrow_except, ("Fail in", "Error in")),
    Planted("a newline in a reason", "registry", newlines, ("a forged line",)),
    Planted(
        "half of a letter in a record", "registry", halves, ("the page is no UTF-8", "Unicode")
    ),
    Planted(
        "a broken alias freezes the champion",
        "registry",
        one_for_all,
        ("the champion", "versions.py:start"),
    ),
]
