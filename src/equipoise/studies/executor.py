"""Executors: the places where the trials of a study run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from equipoise.studies.history import Result
from equipoise.studies.space import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One stretch of one trial. The same job again goes on from the trial's last checkpoint."""

    trial: str
    study: Path  # its directory
    settings: Settings  # of this trial, which replace those of the study's program
    seed: int | None
    to: int  # env steps
    of: int  # env steps of a whole trial: the length of its schedules
    source: str | None = None  # the trial that it is a clone of
    source_steps: int = 0  # env steps at which the clone was taken
    keep_cut: bool = False  # may another trial be cloned from the end of this stretch?
    trust: tuple[str, ...] = ()  # code that the user vouched for
    url: str = ""  # of the study, to which the trial is copied while it trains

    @property
    def directory(self) -> Path:
        return self.study / "trials" / self.trial

    @property
    def remote(self) -> str | None:
        """The URL of the trial."""
        return f"{self.url.rstrip('/')}/trials/{self.trial}" if self.url else None

    @property
    def log(self) -> Path:
        """The file for what the trial prints."""
        return self.directory.with_name(f"{self.trial}.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The env steps that a trial has reached."""

    trial: str
    steps: int


class Executor(Protocol):
    """Runs at most as many jobs at once as the study has. A job that is lost with its process or
    its machine is begun again here.
    """

    def begin(self, job: Job) -> None: ...
    # what has happened since the last call; waits a while for something to happen
    def poll(self, timeout_s: float) -> Sequence[Progress | Result]: ...
    # end a job now, saved; it has no result
    def stop(self, trial: str) -> None: ...
    # end all jobs, saved
    def close(self) -> None: ...
