"""A mirror: a run directory copied to a URL (fsspec: s3, file, memory and others) during the run,
and fetched from there.

A thread copies, one file at a time. A checkpoint's files and its replay's rows come first and its
manifest last, so a reader of the URL sees either a whole checkpoint or no checkpoint. A segment of
rows grows here, so each length of it has a name of its own there. The URL is listed each time:
files of an earlier process there are used, or removed. A pinned checkpoint stays there even if this
directory has its pin alone, as a fetched run does. A failure is reported once per cause and tried
again with the next checkpoint; the run goes on.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal, TypeVar

from equipoise.envs.failures.capsule import ARRAYS, RECORD
from equipoise.files import LARGEST_JSON, is_url, json_bytes, parse_json, read_bounded
from equipoise.hints import install
from equipoise.record import checkpoint
from equipoise.record.paths import CAPSULES, RUN
from equipoise.record.summary import SUMMARY

ROOMS = ("checkpoints", "checkpoints/best")
ROWS_ROOM = f"{ROOMS[0]}/{checkpoint.SEGMENTS}"
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)  # of a run on text
SMALL = (
    RUN,
    checkpoint.SPEC,
    "metrics.jsonl",
    SUMMARY,
    *(f"tokenizer/{name}" for name in TOKENIZER),
)
STEP, PIN = re.compile(r"step_\d{1,19}"), re.compile(r"pin_\d{1,19}")
WRITER = "writer.json"  # the process that alone writes to a URL, if one has claimed it
# "_row_name" makes them
ROWS = re.compile(rf"{ROWS_ROOM}/{checkpoint.SEGMENT.pattern}\.[0-9a-f]{{24}}(\.part)?")
SECRET = re.compile(r"://[^/@]*:.*@|^https?://[^/]*@|\?.*=")  # user:password@, token@, ?signature=
# stores without folders; an object is whole or not there
OBJECTS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl"}
CHUNK = 8 << 20  # bytes read at once
PART = 96 << 20  # bytes sent at once: a segment of a replay's rows
MOST_CAPSULES = 100  # that are copied
TRIES = 5  # at a file that is replaced while it is read
END_S = 300.0  # the longest time that the end of a run waits for its mirror

T = TypeVar("T")


class Store:
    """The files at a URL."""

    def __init__(self, url: str) -> None:
        """ValueError for a URL with a secret in it, and where the protocol has no package here."""
        if SECRET.search(url):  # the message does not repeat it
            raise ValueError(
                f"{url.partition('://')[0]}://...: expected a URL without a password, key or "
                "token, since run.json and logs would show it, got one with; give it by the "
                "environment (such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) or by fsspec's "
                "configuration in ~/.config/fsspec"
            )
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise ValueError(
                f"{url}: expected the package fsspec, got none; {install('remote')}"
            ) from None
        try:
            self.fs, root = url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            raise ValueError(
                f"{url}: expected a package for this protocol, got none: {error}; "
                f"{install('remote')}"
            ) from None
        except ValueError as error:
            raise ValueError(
                f"{url}: expected a URL such as s3://bucket/run, got: {error}"
            ) from None
        self.url, self.root = url, str(root).rstrip("/")
        protocols = (
            {self.fs.protocol} if isinstance(self.fs.protocol, str) else set(self.fs.protocol)
        )
        self._folders = not protocols & OBJECTS

    def at(self, name: str) -> str:
        return f"{self.root}/{name}"

    def has(self, name: str) -> bool:
        return bool(self.fs.exists(self.at(name)))

    def put(self, file: Path, name: str, size: int | None = None) -> None:
        """Copy a file, or its first ``size`` bytes, whole or not at all; else OSError."""
        size = file.stat().st_size if size is None else size
        path = self.at(name)
        aside = f"{path}.part" if self._folders else path
        if self._folders:
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        left = size
        with file.open("rb") as source, self.fs.open(aside, "wb", block_size=PART) as target:
            while left and (data := source.read(min(CHUNK, left))):
                target.write(data)
                left -= len(data)
        if (there := self.fs.info(aside)["size"]) != size:
            raise OSError(f"{self.url}/{name}: expected {size:,} bytes written, got {there:,}")
        if self._folders:
            self.fs.mv(aside, path)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, whole or not at all."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            self.put(Path(file.name), name)

    def read(self, name: str, most: int = LARGEST_JSON) -> bytes:
        """The bytes of a small file; ValueError if it is larger than ``most``."""
        data = self._taken(name, lambda source: source.read(most + 1))
        if len(data) > most:
            raise ValueError(f"{self.url}/{name}: expected at most {most:,} bytes, got more")
        return data

    def get(self, name: str, file: Path, most: int) -> None:
        """Copy a file here, of which no more than ``most`` bytes are taken."""
        file.parent.mkdir(parents=True, exist_ok=True)

        def copy(source: IO[bytes]) -> None:
            left = most
            with file.open("wb") as target:
                while left and (data := source.read(min(CHUNK, left))):
                    target.write(data)
                    left -= len(data)

        self._taken(name, copy)

    def _taken(self, name: str, take: Callable[[IO[bytes]], T]) -> T:
        """Take from a file. A run may replace it meanwhile, which each store reports by an error of
        its own (S3: ``PreconditionFailed``): try again, and raise OSError if that does not help.
        """
        for left in reversed(range(TRIES)):
            try:
                with self.fs.open(self.at(name), "rb") as source:
                    return take(source)
            except (OSError, ValueError):
                raise
            except Exception as error:
                if not left:
                    raise OSError(
                        f"{self.url}/{name}: expected a file to read, got {type(error).__name__}: "
                        f"{error}"
                    ) from error
        raise AssertionError("the last try returns or raises")

    def names(self, room: str) -> list[str]:
        """The names of what lies in a folder."""
        try:
            found = self.fs.ls(self.at(room), detail=False)
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def rows(self) -> dict[str, int]:
        """The rows of replays: names and sizes, also of what was cut short."""
        found = self.fs.find(self.at(ROWS_ROOM), detail=True)
        names = {path.removeprefix(f"{self.root}/"): about["size"] for path, about in found.items()}
        return {name: size for name, size in names.items() if ROWS.fullmatch(name)}

    def remove(self, name: str) -> None:
        if self.has(name):
            self.fs.rm(self.at(name), recursive=True)

    def steps(self, room: str) -> list[str]:
        """The checkpoints of a room that have a manifest, the newest first."""
        found = [name for name in self.names(room) if STEP.fullmatch(name)]
        whole = [name for name in found if self.has(f"{room}/{name}/{checkpoint.MANIFEST}")]
        return sorted(whole, key=lambda name: int(name[5:]), reverse=True)

    def whole_steps(self) -> list[str]:
        """The checkpoints that a run can go on from, the newest first."""
        found = self.steps(ROOMS[0])
        return [step for step in found if self.has(f"{ROOMS[0]}/{step}/{checkpoint.LEARNER}")]


@contextmanager
def plainly(url: str) -> Iterator[None]:
    """Turn errors of a store's own package (no credentials) into an OSError with the URL."""
    try:
        yield
    except (OSError, ValueError):
        raise
    except Exception as error:
        raise OSError(
            f"{url}: expected a store that answers, got {type(error).__name__}: {error}"
        ) from error


Held = Literal["nothing", "a beginning", "a run"]


def holds(place: str | os.PathLike[str]) -> Held:
    """The kind of a path or a URL: "a run" has a whole checkpoint, or has reached its end."""
    if is_url(place):
        store = Store(place)
        with plainly(place):
            return _held(store.has, store.read, store.steps(ROOMS[0]))
    folder = Path(place).expanduser()
    steps = [
        path.name
        for path in (folder / ROOMS[0]).glob("*step_*")
        if checkpoint.STEP.fullmatch(path.name)
    ]
    return _held(
        lambda name: (folder / name).is_file(),
        lambda name: read_bounded(folder / name, LARGEST_JSON),
        steps,
    )


def _held(has: Callable[[str], bool], read: Callable[[str], bytes], steps: list[str]) -> Held:
    if not has(RUN):
        return "nothing"
    if any(has(f"{ROOMS[0]}/{step}/{checkpoint.LEARNER}") for step in steps):
        return "a run"
    with suppress(OSError, ValueError):  # none, or a damaged one
        said = parse_json(read(SUMMARY), SUMMARY)
        if isinstance(said, dict) and said.get("status") in ("completed", "solved"):
            return "a run"
    return "a beginning"


def reached(place: str | os.PathLike[str]) -> int:
    """The step of the newest whole checkpoint of a run at a path or a URL; -1 if there is none."""
    if is_url(place):
        store = Store(place)
        with plainly(place):
            return max((int(name[5:]) for name in store.whole_steps()), default=-1)
    found = checkpoint.steps(Path(place) / ROOMS[0])
    return max((at for at, path in found if (path / checkpoint.LEARNER).exists()), default=-1)


_CLAIMED: dict[str, bytes] = {}  # by URL: what this process wrote there to claim it


def claim(url: str) -> None:
    """Make this process the only one whose mirrors write to ``url``, until another one claims it.

    A mirror of a process that was given up as lost, and is not, then stops.
    """
    word = json_bytes({"writer": secrets.token_hex(8)})
    with plainly(url):
        Store(url).write(WRITER, word)
    _CLAIMED[url] = word


def _row_name(name: str, said: checkpoint.Entry) -> str:
    """The name at the URL of a segment's rows at this length."""
    return f"{ROWS_ROOM}/{name}.{said['sha256'][:24]}"


class Mirror:
    """The mirror of one run directory; the driver calls, a thread copies."""

    def __init__(self, directory: Path, url: str) -> None:
        self._store, self._directory = Store(url), directory
        self._state, self._wanted, self._done, self._over = threading.Condition(), 0, 0, False
        # the files at the URL: sizes and times of files, hashes of manifests
        self._sent: dict[str, object] = {}
        self._told: set[str] = set()  # causes of failures
        self._warnings: list[str] = []
        self._claim = _CLAIMED.get(url)
        self.failures, self.url = 0, url
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")
        self._thread.start()

    def wake(self, tell: Callable[[str], object] = lambda text: None) -> None:
        """There is something new to copy; ``tell`` hears the warnings so far. Does not wait."""
        with self._state:
            self._wanted += 1
            said, self._warnings = self._warnings, []
            self._state.notify_all()
        for text in said:
            tell(text)

    def finish(self, deadline_s: float, tell: Callable[[str], object] = lambda text: None) -> bool:
        """Copy all that the directory has now; return whether that took at most ``deadline_s``."""
        before, until = self.failures, time.monotonic() + deadline_s
        self.wake()
        with self._state:
            wanted = self._wanted
            in_time = self._state.wait_for(
                lambda: self._done >= wanted, max(until - time.monotonic(), 0.0)
            )
            said, self._warnings = self._warnings, []
        if not in_time:
            said.append(
                f"warning: {self.url} does not hold all of the run: {deadline_s:.0f} s were not "
                "enough"
            )
        for text in said:
            tell(text)
        return in_time and self.failures == before

    def close(self, last_s: float = 10.0) -> None:
        """Copy a run's last lines, for at most ``last_s`` seconds (0: none), and end the thread."""
        if last_s and not self._over:
            self.finish(last_s)
        with self._state:
            self._over = True
            self._state.notify_all()
        self._thread.join(1.0)  # a thread that waits for a store is left to it

    def _work(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._over or self._wanted > self._done)
                if self._over:
                    return
                wanted = self._wanted
            try:
                self._copy()
            # a store raises what it likes; the run does not depend on it
            except Exception as error:
                self.failures += 1
                cause = f"{type(error).__name__}: {str(error)[:300]}"
                if cause not in self._told and len(self._told) < 20:
                    self._told.add(cause)
                    with self._state:
                        self._warnings.append(
                            f"warning: not copied to {self.url}, tried again later: {cause}"
                        )
            with self._state:
                self._done = wanted
                self._state.notify_all()

    def _copy(self) -> None:
        self._check_claim()
        # A summary there says that the last checkpoint is there: it comes last, and goes first.
        ended = (self._directory / SUMMARY).is_file()
        for name in SMALL:
            if name != SUMMARY or not ended:
                self._small(name)
        rows = self._store.rows()
        # here and there, with the rows that each names
        whole: dict[str, dict[str, set[str]]] = {room: {} for room in ROOMS}
        for room, steps in whole.items():
            here = [
                path
                for path in (self._directory / room).glob("step_*")
                if STEP.fullmatch(path.name)
            ]
            for path in sorted(here, key=lambda p: int(p.name[5:]), reverse=True):
                try:
                    steps[path.name] = self._checkpoint(room, path, rows)
                except FileNotFoundError:
                    if path.is_dir():
                        raise  # else it was removed meanwhile, as old ones are
        pins = {path.name for path in (self._directory / ROOMS[0]).glob("pin_*")}
        for pin in pins:
            if f"{ROOMS[0]}/{pin}" not in self._sent:
                self._store.write(f"{ROOMS[0]}/{pin}", b"")
                self._sent[f"{ROOMS[0]}/{pin}"] = True
        if ended:
            self._small(SUMMARY)
        self._check_claim()
        self._tidy(whole, rows, pins)
        self._capsules()

    def _check_claim(self) -> None:
        """OSError if another process has claimed the URL since."""
        if self._claim is not None and self._store.read(WRITER) != self._claim:
            raise OSError(f"{self.url}: must be written by this process alone, got another writer")

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

    def _checkpoint(self, room: str, path: Path, rows: dict[str, int]) -> set[str]:
        """Copy a new checkpoint -> the names of its rows at the URL; ``rows`` are there already."""
        name = f"{room}/{path.name}"
        data = (path / checkpoint.MANIFEST).read_bytes()
        said = parse_json(data, path / checkpoint.MANIFEST)
        segments = {
            _row_name(segment, entry): (segment, entry["size"])
            for segment, entry in said["segments"].items()
        }
        if self._sent.get(name) == data:
            return set(segments)
        manifest = f"{name}/{checkpoint.MANIFEST}"
        if self._store.has(manifest):
            if self._store.read(manifest) == data:
                self._sent[name] = data
                return set(segments)
            # another one of this step: its files are about to be replaced
            self._store.remove(manifest)
        for row_name, (segment, size) in segments.items():
            if rows.get(row_name) != size:
                self._store.put(self._directory / ROWS_ROOM / segment, row_name, size)
                rows[row_name] = size
        for file in said["files"]:
            self._store.put(path / file, f"{name}/{file}")
        self._store.put(path / checkpoint.MANIFEST, manifest)
        self._sent[name] = data
        return set(segments)

    def _tidy(
        self, whole: dict[str, dict[str, set[str]]], rows: dict[str, int], pins: set[str]
    ) -> None:
        """Remove checkpoints that are gone here and not pinned, pins that are gone here, and rows
        that no whole checkpoint names.
        """
        if not whole[ROOMS[0]]:
            return
        for room, steps in whole.items():
            for name in self._store.names(room):
                if PIN.fullmatch(name) and name not in pins:
                    self._store.remove(f"{room}/{name}")
                    self._sent.pop(f"{room}/{name}", None)
                elif STEP.fullmatch(name) and name not in steps:
                    if room == ROOMS[0] and f"pin_{name[5:]}" in pins:
                        steps[name] = self._rows_of(f"{room}/{name}/{checkpoint.MANIFEST}")
                        continue
                    self._store.remove(f"{room}/{name}/{checkpoint.MANIFEST}")
                    self._store.remove(f"{room}/{name}")
                    self._sent.pop(f"{room}/{name}", None)
        for row_name in rows.keys() - set().union(*whole[ROOMS[0]].values()):
            self._store.remove(row_name)

    def _rows_of(self, manifest: str) -> set[str]:
        """The names at the URL of the rows of a checkpoint that is only there."""
        if not self._store.has(manifest):
            return set()
        said = parse_json(self._store.read(manifest), manifest)
        return {_row_name(segment, entry) for segment, entry in said["segments"].items()}

    def _capsules(self) -> None:
        """Copy the first capsules, each with its record last; a capsule that is there already
        stays.
        """
        found = sorted(path.parent for path in (self._directory / CAPSULES).glob(f"[!.]*/{RECORD}"))
        for path in found[:MOST_CAPSULES]:
            name = f"{CAPSULES}/{path.name}"
            if name not in self._sent:
                for file in () if self._store.has(f"{name}/{RECORD}") else (ARRAYS, RECORD):
                    self._store.put(path / file, f"{name}/{file}")
                self._sent[name] = True


# ----------------------------------------------------------------------------------------- fetching


@contextmanager
def local(place: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """A directory with the run; of a URL a fetched copy, which is removed again."""
    if not is_url(place):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        yield fetch(place, Path(folder), whole=False)


def fetch(
    url: str, into: Path | None = None, *, whole: bool = True, step: int | None = None
) -> Path:
    """Copy a run from a URL -> its new directory in ``into`` (or runs/), with its newest undamaged
    checkpoint, or that of ``step``; ``whole``: one to go on from, and the pins of the others.
    FileNotFoundError if there is none.
    """
    store = Store(url)
    with plainly(url):
        return _fetch(store, into, whole, step)


def fetch_small(url: str, directory: Path) -> None:
    """Fetch the small files of the run at a URL that differ here, each whole."""
    store = Store(url)
    with plainly(url):
        for name in SMALL:
            if store.has(name):
                file = directory / name
                aside = file.with_name(f".{file.name}.part")
                store.get(name, aside, 1 << 40)
                aside.replace(file)


def _fetch(store: Store, into: Path | None, whole: bool, step_wanted: int | None) -> Path:
    url, skipped = store.url, list[str]()
    if not store.has(RUN):
        raise FileNotFoundError(
            f"{url}: expected a run with a {RUN}, got none; 'equipoise train ENV --out {url}' "
            "makes one"
        )
    if into is None:
        into = Path("runs")
        into.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", store.root.rpartition("/")[2]).lstrip(".-") or "run"
    directory = Path(tempfile.mkdtemp(prefix=f"{stem}-", dir=into))
    for name in SMALL:
        if store.has(name):
            store.get(name, directory / name, 1 << 40)
    for room in ROOMS:
        one = step_wanted is not None and room == ROOMS[0]
        for step in [f"step_{step_wanted}"] if one else store.steps(room):
            path = directory / room / step
            try:
                _fetch_checkpoint(store, room, path)
                if (
                    checkpoint.latest(
                        path.parent, whole=whole and room == ROOMS[0], skipped=skipped
                    )
                    is not None
                ):
                    break
            except (OSError, ValueError) as error:
                skipped.append(str(error))
    if whole and checkpoint.latest(directory / ROOMS[0], whole=True) is None:
        why = "".join(f"; {text}" for text in skipped[:3])
        raise FileNotFoundError(f"{url}: expected a whole checkpoint to go on from, got none{why}")
    for name in store.names(ROOMS[0]) if whole else ():
        if PIN.fullmatch(name):
            (directory / ROOMS[0] / name).touch()
    return directory


def _fetch_checkpoint(store: Store, room: str, path: Path) -> None:
    """Copy one checkpoint; the manifest's names are checked before a file is opened."""
    path.mkdir(parents=True)
    name = f"{room}/{path.name}"
    (path / checkpoint.MANIFEST).write_bytes(store.read(f"{name}/{checkpoint.MANIFEST}"))
    files, segments = checkpoint.manifest(path)
    for file, said in files.items():
        store.get(f"{name}/{file}", path / file, said["size"] + 1)
    for segment, said in segments.items():
        store.get(
            _row_name(segment, said), path.parent / checkpoint.SEGMENTS / segment, said["size"]
        )
