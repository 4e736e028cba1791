"""Artifacts in the registry: the schema of a manifest, and copying and checking the files that it
names.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from equipoise.files import json_bytes, parse_json, sync_directory, write_synced
from equipoise.schema import Each, Number, Schema, Text, check

MANIFEST = "manifest.json"
SPEC = "spec.json"
MODEL = "policy.onnx"
# files of an artifact: a numpy.py would be imported by edge.py
KNOWN = (SPEC, MODEL, "weights.safetensors", "edge.py")
# the files that make an artifact a reward model, or a language model
REWARD, LANGUAGE = "reward_model.json", "language_model.json"
KINDS = {REWARD: "reward model", LANGUAGE: "language model"}
# ends of the names of the other files of these: data alone
OF_MODEL = (".json", ".safetensors", ".txt", ".jinja", ".model")
ASIDE = ".aside-"  # the prefix of a folder before it is whole, and while it is removed
LARGEST_MANIFEST = 1 << 20  # bytes
MOST_FILES = 256
LARGEST_FILE = 1 << 40  # bytes
PIECE = 1 << 20  # bytes that are read at a time
VERSION = re.compile(r"[0-9a-f]{64}")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
SCHEMA: Schema = {
    "format": Number(1, 1, whole=True),
    "files": Each(
        {"sha256": Text(64), "size": Number(0, LARGEST_FILE, whole=True)}, most=MOST_FILES
    ),
}


class Incomplete(ValueError):
    """A version whose files are not all here, or not of the size in its manifest: a copy is not
    finished, or failed.
    """


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of an artifact, as (SHA-256 in hex, size in bytes) by name."""

    data: bytes
    files: dict[str, tuple[str, int]]

    @property
    def version(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def kind(self) -> str:
        """The kind of the artifact: "policy", "reward model" or "language model"."""
        return KINDS.get(self.described, "policy")

    @property
    def described(self) -> str:
        """The file that describes the artifact and its lineage."""
        return next((name for name in KINDS if name in self.files), SPEC)

    def others(self) -> list[str]:
        """Return the files that no artifact of this kind has."""
        if self.described in KINDS:
            return sorted(name for name in self.files if not name.endswith(OF_MODEL))
        return sorted(self.files.keys() - set(KNOWN))

    @property
    def size(self) -> int:
        """Bytes of the artifact."""
        return len(self.data) + sum(size for _, size in self.files.values())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an artifact; ValueError if it is no manifest, names a file outside of the
    folder, or is too large.
    """
    path = folder / MANIFEST
    data = read_plain(path, LARGEST_MANIFEST)
    said = check(parse_json(data, path), SCHEMA, str(path))
    for name, about in said["files"].items():
        if not FILE_NAME.fullmatch(name) or name == MANIFEST:
            raise ValueError(
                f"{path}: files: expected names of files next to it, such as 'policy.onnx', got "
                f"{name!r}"
            )
        if not VERSION.fullmatch(about["sha256"]):
            raise ValueError(
                f"{path}: files.{name}.sha256: expected 64 hexadecimal digits, got "
                f"{about['sha256']!r}"
            )
    if not {SPEC, *KINDS} & said["files"].keys():
        raise ValueError(
            f"{path}: files: expected {SPEC!r} among them, got {', '.join(said['files']) or 'none'}"
        )
    return Manifest(
        data, {name: (about["sha256"], about["size"]) for name, about in said["files"].items()}
    )


def write_manifest(folder: Path) -> Manifest:
    """Write the manifest of the files in a folder, onto the disk, and return it."""
    files = {}
    for path in sorted(one for one in folder.iterdir() if one.is_file()):
        with opened(path) as (handle, size):
            digest = hashlib.sha256()
            for piece in _pieces(handle):
                digest.update(piece)
        files[path.name] = {"sha256": digest.hexdigest(), "size": size}
    write_synced(folder / MANIFEST, json_bytes({"format": 1, "files": files}))
    sync_directory(folder)
    return read_manifest(folder)


@contextmanager
def opened(path: Path) -> Iterator[tuple[int, int]]:
    """A plain file for reading, as (descriptor, size in bytes); ValueError for a link, and for what
    is no file.
    """
    try:
        # nonblock: a pipe is refused, not waited for
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise Incomplete(f"{path}: expected a file, got none") from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(
            f"{path}: expected a plain file, got a link, which may lead out of its folder"
        ) from None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"{path}: expected a plain file, got another kind of file")
        yield handle, about.st_size
    finally:
        os.close(handle)


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a plain file that is no link; ValueError if it holds more than ``most``."""
    with opened(path) as (handle, size):
        if size > most:
            raise ValueError(f"{path}: expected at most {most:,} bytes, got {size:,}")
        return b"".join(_pieces(handle))


def copy(source: Path, manifest: Manifest, to: Path) -> None:
    """Copy the files of an artifact into an empty folder, onto the disk, the manifest last;
    ValueError names a wrong one.
    """
    for name in manifest.files:
        new = os.open(to / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _read_through(source / name, manifest.files[name], copy_to=new)
            os.fsync(new)
        finally:
            os.close(new)
    write_synced(to / MANIFEST, manifest.data)
    sync_directory(to)


def place(whole: Path, folder: Path) -> None:
    """Give a whole folder its name; if a half copied or damaged folder has the name, replace its
    files one by one.
    """
    if folder.is_symlink():
        raise ValueError(
            f"{folder}: expected a folder, got a link, which may lead out of the registry"
        )
    if folder.exists():
        for name in sorted(os.listdir(whole)):
            (whole / name).replace(folder / name)
        sync_directory(folder)
    else:
        whole.rename(folder)
        sync_directory(folder.parent)


def set_aside(folder: Path) -> Path:
    """Take a version away in one step: a reader sees it as a whole, or not at all."""
    return folder.rename(folder.with_name(f"{ASIDE}{secrets.token_hex(8)}"))


def look(folder: Path, version: str) -> Manifest:
    """The manifest of a version whose files are all there, by their sizes; ``Incomplete`` or
    ValueError if they are not.

    Their contents are for ``problems``, and for what loads them.
    """
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise ValueError(f"{folder}: expected a folder, got a link or a file")
    except FileNotFoundError:
        raise Incomplete(
            f"{folder}: expected the version {version[:12]}, got nothing; copy its registry here "
            "again"
        ) from None
    manifest = read_manifest(folder)
    if manifest.version != version:
        raise ValueError(
            f"{folder / MANIFEST}: expected the SHA-256 {version}, got {manifest.version}: the "
            "file is damaged"
        )
    for name, (_, size) in manifest.files.items():
        path = folder / name
        try:
            about = path.lstat()
        except FileNotFoundError:
            raise Incomplete(
                f"{path}: expected a file of {size:,} bytes, got none; copy its registry here again"
            ) from None
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(
                f"{path}: expected a plain file, got another kind of file, such as a link"
            )
        if about.st_size != size:
            raise Incomplete(
                f"{path}: expected {size:,} bytes, got {about.st_size:,}; copy its registry here "
                "again"
            )
    return manifest


def problems(folder: Path, version: str) -> list[str]:
    """A sentence for each file of a version that differs from its manifest, and for each that the
    manifest does not name.
    """
    try:
        manifest = read_manifest(folder)
    except (ValueError, OSError) as error:
        return [str(error)]
    if manifest.version != version:
        return [f"{folder / MANIFEST}: expected the SHA-256 {version}, got {manifest.version}"]
    found = []
    for name, about in manifest.files.items():
        try:
            _read_through(folder / name, about)
        except (ValueError, OSError) as error:
            found.append(str(error))
    more = sorted(set(os.listdir(folder)) - {MANIFEST, *manifest.files})
    return found + [f"{folder / name}: expected only files that {MANIFEST} names" for name in more]


def _read_through(path: Path, about: tuple[str, int], copy_to: int | None = None) -> None:
    """Read a file to its end, and copy it to a descriptor; ValueError if it differs from the
    manifest.
    """
    sha256, size = about
    with opened(path) as (handle, got):
        if got != size:
            raise Incomplete(f"{path}: expected {size:,} bytes, got {got:,}")
        digest = hashlib.sha256()
        for piece in _pieces(handle):
            digest.update(piece)
            left = memoryview(piece if copy_to is not None else b"")
            while left and copy_to is not None:
                left = left[os.write(copy_to, left) :]
    if digest.hexdigest() != sha256:
        raise ValueError(
            f"{path}: expected the SHA-256 {sha256}, got {digest.hexdigest()}: the file is damaged"
        )


def _pieces(handle: int) -> Iterator[bytes]:
    while piece := os.read(handle, PIECE):
        yield piece
