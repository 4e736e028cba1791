"""A mirror: a run directory copied to a URL (fsspec: s3, file, memory and others) beside the run, and fetched from there.

A thread copies, one file at a time. A checkpoint's files and its replay's rows come first and its manifest last, so a reader of
the URL sees a whole checkpoint or none. A segment of rows grows here, so each length of it has a name of its own there. What
fails is told once per cause and tried again with the next checkpoint; the run goes on.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from equipoise.files import LARGEST_JSON, is_url, parse_json
from equipoise.hints import install
from equipoise.record import checkpoint
from equipoise.record.paths import RUN
from equipoise.record.summary import SUMMARY

ROOMS = ("checkpoints", "checkpoints/best")
SMALL = (RUN, checkpoint.SPEC, "metrics.jsonl", SUMMARY)
STEP = re.compile(r"step_\d{1,19}")
CHUNK = 8 << 20  # bytes read at once
END_S = 300.0  # that the end of a run waits for its mirror, at most


class Store:
    """The files at a URL."""

    def __init__(self, url: str) -> None:
        """ValueError that says what to install where the protocol has no package here."""
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise ValueError(f"{url}: expected the package fsspec, got none; {install('remote')}") from None
        try:
            self.fs, root = url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            raise ValueError(f"{url}: expected a package for this protocol, got none: {error}; {install('remote')}") from None
        except ValueError as error:
            raise ValueError(f"{url}: expected a URL such as s3://bucket/run, got: {error}") from None
        self.url, self.root = url, str(root).rstrip("/")

    def at(self, name: str) -> str:
        return f"{self.root}/{name}"

    def put(self, file: Path, name: str, size: int | None = None) -> None:
        """Copy a file, or its first ``size`` bytes; OSError where that many are not there afterwards."""
        size = file.stat().st_size if size is None else size
        self.fs.makedirs(self.at(name).rpartition("/")[0], exist_ok=True)
        left = size
        with file.open("rb") as source, self.fs.open(self.at(name), "wb") as target:
            while left and (data := source.read(min(CHUNK, left))):
                target.write(data)
                left -= len(data)
        if (there := self.fs.info(self.at(name))["size"]) != size:
            raise OSError(f"{self.url}/{name}: expected {size:,} bytes written, got {there:,}")

    def read(self, name: str, most: int = LARGEST_JSON) -> bytes:
        """The bytes of a small file; ValueError where it is larger than ``most``."""
        with self.fs.open(self.at(name), "rb") as file:
            data: bytes = file.read(most + 1)
        if len(data) > most:
            raise ValueError(f"{self.url}/{name}: expected at most {most:,} bytes, got more")
        return data

    def get(self, name: str, file: Path, most: int) -> None:
        """Copy a file here, of which no more than ``most`` bytes are taken."""
        file.parent.mkdir(parents=True, exist_ok=True)
        left = most
        with self.fs.open(self.at(name), "rb") as source, file.open("wb") as target:
            while left and (data := source.read(min(CHUNK, left))):
                target.write(data)
                left -= len(data)

    def names(self, room: str) -> list[str]:
        """The names of what lies in a folder."""
        try:
            found = self.fs.ls(self.at(room), detail=False)
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def remove(self, name: str) -> None:
        if self.fs.exists(self.at(name)):
            self.fs.rm(self.at(name), recursive=True)

    def steps(self, room: str) -> list[str]:
        """The checkpoints of a room that have a manifest, the newest first."""
        found = [name for name in self.names(room) if STEP.fullmatch(name)]
        whole = [name for name in found if self.fs.exists(self.at(f"{room}/{name}/{checkpoint.MANIFEST}"))]
        return sorted(whole, key=lambda name: int(name[5:]), reverse=True)


def there(url: str) -> bool:
    """Is a run with a whole checkpoint at this URL?"""
    store = Store(url)
    return bool(store.steps(ROOMS[0])) and bool(store.fs.exists(store.at(RUN)))


def _row_name(name: str, said: checkpoint.Entry) -> str:
    """The name of a segment's rows at the URL: that of this length of it."""
    return f"checkpoints/{checkpoint.SEGMENTS}/{name}.{said['sha256'][:24]}"


class Mirror:
    """The mirror of one run directory; the driver calls, a thread copies."""

    def __init__(self, directory: Path, url: str) -> None:
        self._store, self._directory = Store(url), directory
        self._state, self._wanted, self._done, self._over = threading.Condition(), 0, 0, False
        self._sent: dict[str, Any] = {}  # what lies at the URL: sizes and times of files, hashes of manifests
        self._told: set[str] = set()  # causes of failures
        self._warnings: list[str] = []
        self.failures, self.url = 0, url
        threading.Thread(target=self._work, daemon=True, name="mirror").start()

    def wake(self, tell: Callable[[str], object] = lambda text: None) -> None:
        """There is something new to copy; ``tell`` hears the warnings so far. Does not wait."""
        with self._state:
            self._wanted += 1
            said, self._warnings = self._warnings, []
            self._state.notify_all()
        for text in said:
            tell(text)

    def finish(self, deadline_s: float, tell: Callable[[str], object] = lambda text: None) -> bool:
        """Copy all that the directory has now -> is it all at the URL within ``deadline_s`` seconds?"""
        before, until = self.failures, time.monotonic() + deadline_s
        self.wake()
        with self._state:
            wanted = self._wanted
            in_time = self._state.wait_for(lambda: self._done >= wanted, max(until - time.monotonic(), 0.0))
            said, self._warnings = self._warnings, []
        if not in_time:
            said.append(f"warning: {self.url} does not hold all of the run: {deadline_s:.0f} s were not enough")
        for text in said:
            tell(text)
        return in_time and self.failures == before

    def close(self) -> None:
        """Copy the last lines of a finished run, for a moment, and end the thread."""
        if not self._over:
            self.finish(10.0)
        with self._state:
            self._over = True
            self._state.notify_all()

    def _work(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._over or self._wanted > self._done)
                if self._over:
                    return
                wanted = self._wanted
            try:
                self._copy()
            except Exception as error:  # a store raises what it likes; the run does not depend on it
                self.failures += 1
                cause = f"{type(error).__name__}: {str(error)[:300]}"
                if cause not in self._told and len(self._told) < 20:
                    self._told.add(cause)
                    with self._state:
                        self._warnings.append(f"warning: not copied to {self.url}, tried again later: {cause}")
            with self._state:
                self._done = wanted
                self._state.notify_all()

    def _copy(self) -> None:
        for name in SMALL:
            self._small(name)
        for room in ROOMS:
            here = self._directory / room
            steps = sorted((p for p in here.glob("step_*") if STEP.fullmatch(p.name)), key=lambda p: int(p.name[5:]))
            for path in reversed(steps):  # the newest first
                try:
                    self._checkpoint(room, path)
                except FileNotFoundError:
                    if path.is_dir():
                        raise  # else it was removed meanwhile, as old ones are
            self._tidy(room, {path.name for path in steps})

    def _small(self, name: str) -> None:
        file = self._directory / name
        if not file.is_file():
            if self._sent.get(name, "") is not None:
                self._store.remove(name)
                self._sent[name] = None
            return
        about = file.stat()
        if self._sent.get(name) != (about.st_mtime_ns, about.st_size):
            self._store.put(file, name, about.st_size)
            self._sent[name] = (about.st_mtime_ns, about.st_size)

    def _checkpoint(self, room: str, path: Path) -> None:
        name = f"{room}/{path.name}"
        data = (path / checkpoint.MANIFEST).read_bytes()
        if self._sent.get(name) == data:
            return
        manifest = f"{name}/{checkpoint.MANIFEST}"
        if self._store.fs.exists(self._store.at(manifest)):
            if self._store.read(manifest) == data:
                self._sent[name] = data
                return
            self._store.remove(manifest)  # another one of this step: its files are about to be replaced
        said = parse_json(data, path / checkpoint.MANIFEST)
        for segment, entry in said["segments"].items():
            rows = _row_name(segment, entry)
            if rows not in self._sent:
                self._store.put(self._directory / "checkpoints" / checkpoint.SEGMENTS / segment, rows, entry["size"])
                self._sent[rows] = True
        for file in said["files"]:
            self._store.put(path / file, f"{name}/{file}")
        self._store.put(path / checkpoint.MANIFEST, manifest)
        self._sent[name] = data

    def _tidy(self, room: str, kept: set[str]) -> None:
        """Remove the checkpoints and the rows that are no longer here, once a newer checkpoint is whole there."""
        if not kept.intersection(self._store.steps(room)):
            return
        for name in self._store.names(room):
            if STEP.fullmatch(name) and name not in kept:
                self._store.remove(f"{room}/{name}/{checkpoint.MANIFEST}")
                self._store.remove(f"{room}/{name}")
                self._sent.pop(f"{room}/{name}", None)
        if room == ROOMS[0]:
            named: set[str] = set()
            for step in self._store.steps(room):
                data = parse_json(self._store.read(f"{room}/{step}/{checkpoint.MANIFEST}"), step)
                named |= {_row_name(name, entry) for name, entry in data["segments"].items()}
            for rows in [key for key in self._sent if key.startswith(f"checkpoints/{checkpoint.SEGMENTS}/")]:
                if rows not in named:
                    self._store.remove(rows)
                    del self._sent[rows]


# --------------------------------------------------------------------------------------------------------------- fetching


@contextmanager
def local(place: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """A directory with the run, to read its policies: what a URL has is fetched into one that is removed again."""
    if not is_url(place):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        yield fetch(place, Path(folder), whole=False)


def fetch(url: str, into: Path | None = None, *, whole: bool = True) -> Path:
    """Copy a run from a URL -> its new directory here (in runs/, or in ``into``), with its newest checkpoint that is as its
    manifest says; ``whole``: one that a run can go on from. FileNotFoundError where there is none.
    """
    store = Store(url)
    skipped: list[str] = []
    if not store.fs.exists(store.at(RUN)):
        raise FileNotFoundError(f"{url}: expected a run with a {RUN}, got none; 'equipoise train ENV --out {url}' makes one")
    if into is None:
        into = Path("runs")
        into.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", store.root.rpartition("/")[2]).lstrip(".-") or "run"
    directory = Path(tempfile.mkdtemp(prefix=f"{stem}-", dir=into))
    for name in SMALL:
        if store.fs.exists(store.at(name)):
            store.get(name, directory / name, 1 << 40)
    for room in ROOMS:
        for step in store.steps(room):
            path = directory / room / step
            try:
                _fetch_checkpoint(store, room, path)
                if checkpoint.latest(path.parent, whole=whole and room == ROOMS[0], skipped=skipped) is not None:
                    break
            except (OSError, ValueError) as error:
                skipped.append(str(error))
    if whole and checkpoint.latest(directory / ROOMS[0], whole=True) is None:
        why = "".join(f"; {text}" for text in skipped[:3])
        raise FileNotFoundError(f"{url}: expected a whole checkpoint to go on from, got none{why}")
    return directory


def _fetch_checkpoint(store: Store, room: str, path: Path) -> None:
    """Copy one checkpoint; the names in its manifest are looked at before any file of it is opened."""
    path.mkdir(parents=True)
    name = f"{room}/{path.name}"
    (path / checkpoint.MANIFEST).write_bytes(store.read(f"{name}/{checkpoint.MANIFEST}"))
    files, segments = checkpoint.manifest(path)
    for file, said in files.items():
        store.get(f"{name}/{file}", path / file, said["size"] + 1)
    for segment, said in segments.items():
        store.get(_row_name(segment, said), path.parent / checkpoint.SEGMENTS / segment, said["size"])
