"""A trial whose run is copied to its study's URL, and goes on on any machine from what is there."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from equipoise.record import checkpoint
from equipoise.record.directory import CHECKPOINTS
from equipoise.record.mirror import END_S, Mirror, claim, fetch, reached
from equipoise.studies.executor import Job
from equipoise.studies.settings import TRIALS

STORE_S = 300.0  # that a store which fails is tried again, before the trial fails
LONGEST_PAUSE_S = 30.0

T = TypeVar("T")


def bring(job: Job) -> None:
    """Claim the URL of a trial, and fetch the trial from there unless this machine has it at least
    as far.
    """
    if (url := job.remote) is not None:
        _again_if_it_fails(lambda: _bring(job, url))


def _bring(job: Job, url: str) -> None:
    claim(url)
    if reached(url) <= reached(job.directory):
        return
    with TemporaryDirectory(dir=job.study) as folder:
        found = fetch(url, Path(folder))
        shutil.rmtree(job.directory, ignore_errors=True)
        found.rename(job.directory)


@contextmanager
def parent_of(job: Job) -> Iterator[Path]:
    """The run that a trial is a clone of, with the checkpoint of the cut: fetched from the URL if
    this machine does not have it.
    """
    assert job.source is not None
    here = job.study / TRIALS / job.source
    cuts = [at for at, path in checkpoint.steps(here / CHECKPOINTS) if path.is_dir()]
    if not job.url or job.source_steps in cuts:
        yield here
        return
    url = f"{job.url.rstrip('/')}/{TRIALS}/{job.source}"
    with TemporaryDirectory(dir=job.study) as folder:
        yield _again_if_it_fails(lambda: fetch(url, Path(folder), step=job.source_steps))


def copy_end(job: Job) -> None:
    """Wait until the URL has all of a trial that its directory has; OSError if a store fails for
    minutes.
    """
    if (url := job.remote) is not None:
        _again_if_it_fails(lambda: _copy_end(job, url))


def _copy_end(job: Job, url: str) -> None:
    mirror, why = Mirror(job.directory, url), list[str]()
    try:
        if not mirror.finish(END_S, why.append):
            raise OSError(f"{url}: must hold the end of the trial, got less: {' '.join(why)}")
    finally:
        mirror.close(last_s=0.0)


def _again_if_it_fails(act: Callable[[], T]) -> T:
    end, pause = time.monotonic() + STORE_S, 1.0
    while True:
        try:
            return act()
        except OSError:
            if time.monotonic() + pause > end:
                raise
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
