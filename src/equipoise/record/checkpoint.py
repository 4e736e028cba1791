"""Checkpoints: safetensors and JSON with a manifest of hashes, written aside, synced, renamed last;
never pickle.

A *whole* checkpoint holds the state of every worker, so that a run can go on from it; one with
weights alone can be played and begun from. Several processes write into one that is aside (each the
files of its own state), one completes it.

The rows of a replay are not in it: they lie in segments next to the checkpoints
(``experience/replay/journal.py``), which several name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.errors import Damaged
from equipoise.experience.replay import journal
from equipoise.files import (
    json_bytes,
    open_plain,
    parse_json,
    read_json,
    sync_directory,
    write_synced,
)
from equipoise.record import statefile
from equipoise.schema import Anything, Maybe, Number, Schema, Text, check

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, META, SPEC, MANIFEST = "weights.safetensors", "meta.json", "spec.json", "manifest.json"
LEARNER, DRIVER = "learner.safetensors", "driver.json"
EXAMS = "evaluations.safetensors"  # weights that are still to be evaluated
REPLAY = "replay.safetensors"
REQUIRED = {WEIGHTS, META}
ARTIFACT = {
    WEIGHTS,
    SPEC,
    "policy.onnx",
    "edge.py",
}  # files of an exported policy, which is read like a checkpoint of weights alone
# each worker has its own, and each of several replays
KNOWN = re.compile(r"[a-z]\w*\.safetensors|(meta|spec|driver)\.json")
# ".step_N.old": its writer was killed while it replaced step_N
STEP = re.compile(r"\.?step_(\d+)(\.old)?")
# the folder of rows next to the checkpoints, with a folder for each shard and each of several
# policies
SEGMENTS = "replay"
SEGMENT = re.compile(rf"([a-z]\w*/)?{journal.NAME.pattern}")
Entry = dict[str, Any]  # of the manifest: {"sha256", "size"}
COUNT = Number(0, (1 << 63) - 1, whole=True)
ENTRY_SCHEMA: Schema = {"sha256": Text(64), "size": COUNT}
META_SCHEMA: Schema = {
    "version": COUNT,
    "env_steps": COUNT,
    "status?": Text(100),
    "schedule_steps?": COUNT,
    "evaluation?": Maybe({"mean": Maybe(Number()), "*": Anything()}),
    "*": Anything(),
}


def params_sha256(params: Mapping[str, Tensor]) -> str:
    """One number for a set of parameters: sorted names, dtypes, shapes and bytes."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(params):
        tensor = params[name].detach().cpu().contiguous()
        # As JSON, so that no two different headers are written alike.
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------ writing


def weights_bytes(params: Mapping[str, Tensor]) -> bytes:
    """Parameters as safetensors; cloned, since safetensors refuses views of one buffer."""
    import safetensors.torch

    return safetensors.torch.save(
        {name: tensor.detach().cpu().clone().contiguous() for name, tensor in params.items()}
    )


def begin(directory: Path, step: int) -> Path:
    """A new place aside for checkpoint ``step``, after what killed writers left is tidied."""
    if step < 0:
        raise ValueError(f"step: expected at least 0, got {step}")
    if not directory.is_dir():
        directory.mkdir(parents=True)
        sync_directory(directory.parent)
    _tidy(directory)
    place = aside(directory, step)
    place.mkdir()
    return place


def aside(directory: Path, step: int) -> Path:
    return directory / f".step_{step}.new"


def add(place: Path, name: str, data: bytes) -> dict[str, Entry]:
    """Write one file of a checkpoint that is aside -> {name: entry}. From any process."""
    assert KNOWN.fullmatch(name), name
    write_synced(place / name, data)
    return {name: {"sha256": _sha256(data), "size": len(data)}}


def read_aside(directory: Path, step: int, name: str) -> bytes:
    """The bytes of a file in the checkpoint that is still aside."""
    return (aside(directory, step) / name).read_bytes()


def complete(
    directory: Path,
    step: int,
    files: Mapping[str, Entry],
    segments: Mapping[str, Entry] | None = None,
) -> Path:
    """Give the checkpoint that is aside its manifest and its name ``directory/step_N``, at once.

    ``segments``: the segments next to it that hold its replay's rows.
    """
    target, place, old = (
        directory / f"step_{step}",
        aside(directory, step),
        directory / f".step_{step}.old",
    )
    write_synced(
        place / MANIFEST,
        json_bytes({"step": step, "files": dict(files), "segments": dict(segments or {})}),
    )
    sync_directory(place)
    try:
        if target.is_dir():  # the same step again: rename cannot replace a directory that has files
            target.rename(old)
        place.rename(target)
    except BaseException:
        if old.is_dir() and not target.is_dir():
            old.rename(target)
        raise
    sync_directory(directory)
    shutil.rmtree(old, ignore_errors=True)
    return target


def abandon(directory: Path, step: int) -> None:
    """Remove what is aside."""
    shutil.rmtree(aside(directory, step), ignore_errors=True)


def save(
    directory: Path,
    step: int,
    params: Mapping[str, Tensor],
    meta: Mapping[str, object],
    spec: Mapping[str, object] | None = None,
) -> Path:
    """A checkpoint of weights alone, ``directory/step_N``; ``spec`` is what plays them."""
    place = begin(directory, step)
    try:
        files = add(place, WEIGHTS, weights_bytes(params)) | add(place, META, json_bytes(meta))
        files |= {} if spec is None else add(place, SPEC, json_bytes(spec))
        return complete(directory, step, files)
    except BaseException:
        abandon(directory, step)
        raise


def retain(
    directory: Path, last: int, *, upto: int | None = None, known: Source | None = None
) -> None:
    """Keep the newest ``last`` checkpoints up to step ``upto``, the pinned ones up to there, and
    the segments that they name.

    Not while a replay's rows are written. ``known``: a checkpoint whose manifest was read already.
    """
    if upto is not None:
        cut(directory, upto)
    for step, path in steps(directory)[last:]:
        _remove_unpinned(path, pin_of(directory, step))
    rows = [file for file in (directory / SEGMENTS).rglob("*") if file.is_file()]
    named: set[str] = set()
    for _, path in steps(directory) if rows else ():
        with contextlib.suppress(OSError, ValueError):  # a damaged one, from which no run can go on
            named |= (
                known.segments.keys()
                if known is not None and path == known.path
                else segments(path).keys()
            )
    for file in rows:
        name = file.relative_to(directory / SEGMENTS).as_posix()
        if SEGMENT.fullmatch(name) and name not in named:
            file.unlink(missing_ok=True)


def cut(directory: Path, upto: int) -> None:
    """Remove the checkpoints after step ``upto``. ``retain`` removes what only they named."""
    for step, path in steps(directory):
        if step > upto:
            pin_of(directory, step).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def pin_of(directory: Path, step: int) -> Path:
    """The file whose presence keeps checkpoint ``step`` from ``retain``."""
    return directory / f"pin_{step}"


def _remove_unpinned(path: Path, pin: Path) -> None:
    """Remove a checkpoint that is not pinned.

    It loses its name before the pin is looked for, since ``pin`` looks for the name after it wrote
    the pin: whichever is first, a checkpoint that was pinned stays.
    """
    if pin.exists():
        return
    gone = path.with_name(f".{path.name.removeprefix('.')}.gone")
    with contextlib.suppress(OSError):
        path.rename(gone)
        if pin.exists():
            gone.rename(path)
    shutil.rmtree(gone, ignore_errors=True)


def copied(path: Path, folder: Path) -> Path:
    """Copy a checkpoint, and the rows that it names, into another folder of checkpoints -> its path
    there.

    Files of a checkpoint never change, so the copies are hard links where the file system has them.
    FileNotFoundError if the checkpoint is removed meanwhile, ValueError if it is damaged. No
    directory is synced.
    """
    files, named = manifest(path)
    target = folder / path.name.removeprefix(".").removesuffix(".old")
    pairs = [(path / name, target / name) for name in (*files, MANIFEST)]
    pairs += [(path.parent / SEGMENTS / name, folder / SEGMENTS / name) for name in named]
    for source, made in pairs:
        made.parent.mkdir(parents=True, exist_ok=True)
        _link(source, made)
    _verified(target, rows=True)
    return target


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without hard links
        with open_plain(source) as file, target.open("xb") as made:
            shutil.copyfileobj(file, made)
            made.flush()
            os.fsync(made.fileno())


def _tidy(directory: Path) -> None:
    """Finish what a killed writer began: put an old one without a new one back, remove others."""
    for path in directory.glob(".step_*"):
        target = directory / path.stem.removeprefix(".")
        if path.suffix == ".old" and not target.is_dir():
            path.rename(target)
        else:
            shutil.rmtree(path, ignore_errors=True)


# ------------------------------------------------------------------------------------------ reading


def latest(
    directory: Path, *, whole: bool = False, skipped: list[str] | None = None
) -> Path | None:
    """The newest undamaged checkpoint; ``whole``: one to go on from, with a replay's rows.

    ``skipped`` gets a sentence for each newer one that is damaged.
    """
    for _, path in steps(directory):
        try:
            files = _verified(path, rows=whole)
        except (OSError, ValueError) as error:
            if skipped is not None:
                skipped.append(str(error))
            continue
        if not whole or LEARNER in files:
            return path
    return None


def steps(directory: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder with their steps, the newest first."""
    if not directory.is_dir():
        return []
    matches = [
        (match, path) for path in directory.iterdir() if (match := STEP.fullmatch(path.name))
    ]
    found = sorted([(int(match[1]), not match[2], path) for match, path in matches], reverse=True)
    return [(step, path) for step, _, path in found]


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(params, meta) of a checkpoint; ValueError naming a file that its manifest contradicts."""
    return statefile.parse_weights(read(path, WEIGHTS), path / WEIGHTS), read_meta(path)


def read_meta(path: Path) -> dict[str, Any]:
    """The description that a checkpoint, or an exported policy, has of itself."""
    if META not in manifest(path)[0]:
        said = parse_json(read(path, SPEC), path / SPEC)
        lineage = check(
            said,
            {
                "artifact": {"lineage": {"step": COUNT, "*": Anything()}, "*": Anything()},
                "*": Anything(),
            },
            str(path / SPEC),
        )
        return {
            "version": 0,
            "env_steps": lineage["artifact"]["lineage"]["step"],
            "status": "exported",
        }
    meta: dict[str, object] = check(
        parse_json(read(path, META), path / META), META_SCHEMA, str(path / META)
    )
    return meta


def read(path: Path, name: str) -> bytes:
    """One file of a checkpoint, read once, so that what was verified is what is used."""
    files, _ = manifest(path)
    if name not in files:
        raise ValueError(f"{path}: expected a file {name} in its manifest, got {sorted(files)}")
    return _content(path / name, files[name])


def identity(path: Path) -> str:
    """The hash of the manifest, and so of all files, of a checkpoint or an exported policy."""
    return _sha256((path / MANIFEST).read_bytes())


def segments(path: Path) -> dict[str, Entry]:
    """The segments that hold the rows of a checkpoint's replay."""
    return manifest(path)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint that a run goes on from; it travels to every worker.

    The driver verifies the files that it needs and keeps them. A worker verifies its own: a
    ``Damaged`` one ends it, and the run goes on from an older checkpoint.
    """

    path: Path
    files: Mapping[str, Entry]
    segments: Mapping[str, Entry]  # that hold the rows of its replay
    meta: Mapping[str, Any]
    kept: dict[str, bytes] = field(default_factory=dict, repr=False)

    def has(self, name: str) -> bool:
        """Can ``read`` return the file?"""
        return name in self.kept or name in self.files

    def read(self, name: str) -> bytes:
        """The bytes of a file, checked against the manifest."""
        if name in self.kept:
            return self.kept[name]
        if name not in self.files:
            raise ValueError(
                f"{self.path}: expected a file {name} in its manifest, got {sorted(self.files)}"
            )
        return _content(self.path / name, self.files[name])

    def read_segment(self, name: str) -> bytes:
        """The part of a segment that the manifest names, which may have grown since."""
        return _content(self.path.parent / SEGMENTS / name, self.segments[name], grows=True)

    def params(self) -> dict[str, Tensor]:
        """The weights of every policy."""
        return statefile.parse_weights(self.read(WEIGHTS), self.path / WEIGHTS)

    @property
    def version(self) -> int:
        return int(self.meta["version"])

    def __reduce__(self) -> tuple[object, ...]:
        """Travel without what the driver keeps."""
        return partial(
            Source, path=self.path, files=self.files, segments=self.segments, meta=self.meta
        ), ()


class SourceInHand(Source):
    """A checkpoint of which some files came along, to a machine that cannot read the others."""

    def read(self, name: str) -> bytes:
        """The bytes of a file that came along."""
        if name not in self.kept:
            raise ValueError(f"{self.path}: expected a file of {sorted(self.kept)}, got {name}")
        return self.kept[name]

    def __reduce__(self) -> tuple[object, ...]:
        made = partial(
            SourceInHand,
            path=self.path,
            files={},
            segments=self.segments,
            meta=self.meta,
            kept=self.kept,
        )
        return made, ()


def choose(directory: Path, *, passed: Collection[Path] = (), skipped: list[str]) -> Source | None:
    """The newest whole checkpoint that is not ``passed``, with the files that the driver needs.

    All sizes are verified here, other files by workers. ``skipped``: as of ``latest``.
    """
    for _, path in steps(directory):
        if path in passed:
            continue
        try:
            files, named = manifest(path)
            if LEARNER not in files:
                continue
            for name, said in files.items():
                _size(path / name, said)
            for name, said in named.items():
                _size(path.parent / SEGMENTS / name, said, grows=True)
            used = [
                name
                for name in files
                if name in (META, WEIGHTS, DRIVER, EXAMS) or name.startswith("experience")
            ]
            kept = {name: _content(path / name, files[name]) for name in used}
            meta = check(parse_json(kept[META], path / META), META_SCHEMA, str(path / META))
        except (OSError, ValueError) as error:
            skipped.append(str(error))
        else:
            return Source(path=path, files=files, segments=named, meta=meta, kept=kept)
    return None


def _verified(path: Path, *, rows: bool) -> dict[str, Entry]:
    files, named = manifest(path)
    for name, said in files.items():
        _content(path / name, said)
    for name, said in named.items() if rows else ():
        try:
            _content(path.parent / SEGMENTS / name, said, grows=True)
        except ValueError as error:
            raise ValueError(f"{path}: rows of its replay are lost: {error}") from None
    return files


def manifest(path: Path) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """The files and the segments."""
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path}: expected a checkpoint directory, such as RUN/checkpoints/step_1000, got none"
        )
    said = read_json(path / MANIFEST)
    files = said.get("files") if isinstance(said, dict) else None
    # Only names known here are opened: a manifest from elsewhere cannot point out of its directory.
    if not isinstance(files, dict) or not (
        (files.keys() >= REQUIRED and all(map(KNOWN.fullmatch, files)))
        or {WEIGHTS, SPEC} <= files.keys() <= ARTIFACT
    ):
        raise ValueError(
            f"{path / MANIFEST}: expected the files {sorted(REQUIRED)} and those of workers, got "
            f"{files!r}"
        )
    named = said.get("segments", {})
    if not isinstance(named, dict) or not all(SEGMENT.fullmatch(name) for name in named):
        raise ValueError(
            f"{path / MANIFEST}: expected segments such as 'segment_1.rows', got {named!r}"
        )
    for name, entry in (files | named).items():
        check(entry, ENTRY_SCHEMA, f"{path / MANIFEST}: {name}")
    return files, named


def _content(file: Path, said: Entry, *, grows: bool = False) -> bytes:
    """The verified bytes of a file; ``grows``: more may follow them."""
    _size(file, said, grows=grows)
    try:
        with file.open("rb") as opened:
            data = opened.read(said["size"])
    except (OSError, MemoryError) as error:
        raise Damaged(
            f"{file}: expected {said['size']:,} bytes that can be read, got "
            f"{str(error) or 'no memory for them'}"
        ) from error
    if (sha256 := _sha256(data)) != said["sha256"]:
        raise Damaged(
            f"{file}: expected sha256 {said['sha256']} as in the manifest, got {sha256}; it is "
            "damaged"
        )
    return data


def _size(file: Path, said: Entry, *, grows: bool = False) -> None:
    """``Damaged`` unless it is a plain file of the size in the manifest."""
    if file.is_symlink() or not file.is_file():
        raise Damaged(f"{file}: expected a plain file, got none")
    size, expected = os.path.getsize(file), said["size"]
    if size < expected or (size > expected and not grows):
        raise Damaged(
            f"{file}: expected {expected} bytes as in the manifest, got {size}; the file is damaged"
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
