"""A study's URL: the mark of the study whose trials are there, and what its machines exchange.

The trials are copied to the URL while they train, so the machines of a cluster share no folder. The
study's own directory stays on the machine that carries the study on. It gets the small files of
each trial, for tables and pictures.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from equipoise.files import LARGEST_JSON, json_bytes, parse_json, parse_toml, read_bounded
from equipoise.record import paths
from equipoise.record.mirror import Store, fetch_small, plainly
from equipoise.record.summary import SUMMARY
from equipoise.studies.executor import Job
from equipoise.studies.history import History
from equipoise.studies.settings import CHOICES, PROGRAMS, STUDY, TRIALS

MARK = "study.json"
MOVES = ("jobs", "cluster")  # settings that may change while a study goes on
FOLDER = "equipoise-trials-"
LEFT_S = 3600.0  # after which the folder of an actor that was killed is removed
END_S = 30.0  # that the end of a study waits for the small files of its trials


def check_vacant(url: str) -> None:
    """FileExistsError if a URL holds the trials of a study; nothing is written."""
    store = Store(url)
    with plainly(url):
        if store.has(MARK) or store.names(TRIALS):
            raise FileExistsError(
                f"{url}: must be a URL without trials for a new study, got one with those of "
                "another; try a new URL, or 'equipoise tune resume' with that study's directory"
            )


def take(url: str, folder: Path) -> None:
    """Mark a URL as that of a study in its directory; ValueError if it is another study's."""
    data = parse_toml(read_bounded(folder / STUDY, LARGEST_JSON), folder / STUDY)["study"]
    asked = {key: value for key, value in data.items() if key not in MOVES}
    mine = hashlib.sha256(json_bytes(asked)).hexdigest()
    store = Store(url)
    with plainly(url):
        if not store.has(MARK):
            check_vacant(url)
            store.write(MARK, json_bytes({"study_sha256": mine, "folder": str(folder.absolute())}))
            return
        there = parse_json(store.read(MARK), f"{url}/{MARK}")
    if not isinstance(there, Mapping) or there.get("study_sha256") != mine:
        raise ValueError(
            f"{url}: must be the URL of the study {folder}, got one with the trials of another; "
            "try a new study with another URL"
        )


def files_of(job: Job) -> dict[str, bytes]:
    """Return the study's small files that a machine needs for a job, by their paths."""
    names = (STUDY, CHOICES, f"{PROGRAMS}/{job.trial}.json")
    return {
        name: read_bounded(job.study / name, LARGEST_JSON)
        for name in names
        if (job.study / name).is_file()
    }


class OwnFolder:
    """A folder of this machine in place of the study's, until ``close``."""

    def __init__(self) -> None:
        for path in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
            with suppress(OSError):  # another user's, or another process removes it
                old = time.time() - path.stat().st_mtime > LEFT_S
                if old and path.owner() == Path.home().owner() and not paths.is_locked(path):
                    shutil.rmtree(path)
        self.path = Path(tempfile.mkdtemp(prefix=FOLDER))
        self._lock = paths.lock(self.path)
        (self.path / TRIALS).mkdir()

    def write(self, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            (self.path / name).parent.mkdir(exist_ok=True)
            (self.path / name).write_bytes(data)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)


class SmallFiles:
    """Fetches the small files of trials on a thread, so that no store holds a study up."""

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[tuple[str, Path] | None] = queue.SimpleQueue()
        self._problems: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True, name="small files")
        self._thread.start()

    def fetch(self, url: str, directory: Path) -> None:
        """Fetch the files of the trial at ``url`` soon."""
        self._wanted.put((url, directory))

    def warn(self) -> None:
        """Warn of what could not be fetched so far."""
        while not self._problems.empty():
            warnings.warn(self._problems.get(), RuntimeWarning, stacklevel=2)

    def close(self) -> None:
        self._wanted.put(None)
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._problems.put(f"not all small files of the trials came in {END_S:.0f} s")
        self.warn()

    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            try:
                fetch_small(*wanted)
            except (OSError, ValueError) as error:
                self._problems.put(f"{wanted[1].name}: its small files did not come: {error}")


def fetch_missing(folder: Path, url: str, history: History) -> None:
    """Fetch the small files of the trials of which a study's directory has no end."""
    trials = [folder / TRIALS / trial.name for trial in history]
    missing = [one for one in trials if not (one / SUMMARY).is_file()]
    if missing:
        small = SmallFiles()
        for one in missing:
            small.fetch(f"{url.rstrip('/')}/{TRIALS}/{one.name}", one)
        small.close()
