"""Experiment trackers of a run: ``--report-to KIND:NAME``, which threads of their own talk to."""

from __future__ import annotations

import importlib
import queue
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from equipoise.hints import hint, install, said
from equipoise.schema import Items, Schema, Text

KINDS: Mapping[str, str] = {  # and the package that each needs
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "otel": "opentelemetry.exporter.otlp.proto.http.metric_exporter",
}
MOST = 8  # trackers of a run
LONGEST = 200  # characters of a name
NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
WAITING = 1_000  # reports that wait for a slow tracker
BEGIN_S, END_S = 60.0, 30.0
Known = Mapping[str, str]  # of run.json: kind, name of a project, id of the run there
SCHEMA: Schema = Items(
    {"to": Text(among=tuple(KINDS)), "name": Text(LONGEST), "id": Text(16)}, MOST
)


class Tracker(Protocol):
    """One run at a tracker. Each method may raise what it likes, and may wait for a network."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add the numbers of one report; ``step``: env steps."""

    def completions(self, samples: Sequence[Mapping[str, object]], step: int) -> None:
        """Add a table of answers of an evaluation: prompt, completion, reward."""

    def finish(self, *, failed: bool) -> None:
        """Send what is waiting, and end the run there."""


@dataclass(frozen=True, slots=True)
class Begin:
    """What a tracker begins a run with, or continues it."""

    name: str  # of the project, or what the tracker calls it
    id: str  # of the run there, the same after a resume
    directory: Path  # of the run
    config: Mapping[str, object]  # the program


def read(text: str) -> dict[str, str]:
    """Return the part of run.json of ``KIND:NAME``, with a new id; ValueError if it is none."""
    kind, _, name = text.partition(":")
    if kind not in KINDS:
        wanted = ", ".join(f"{one}:NAME" for one in KINDS)
        raise ValueError(
            f"report_to: must be one of {wanted}, got {text[:LONGEST]!r}{hint(kind, tuple(KINDS))}"
        )
    if not name.strip():
        raise ValueError(f"report_to: must have a name after {kind}:, got {text[:LONGEST]!r}")
    if len(name) > LONGEST or not NAME.fullmatch(name):
        raise ValueError(
            f"report_to: must have a name of at most {LONGEST} printable characters after {kind}:, "
            f"got {text[:LONGEST]!r}"
        )
    load(kind)
    return {"to": kind, "name": name, "id": _new_id()}


def read_all(texts: str | Sequence[str]) -> list[dict[str, str]]:
    """Return the part of run.json of several; each pair of kind and name once."""
    asked = [texts] if isinstance(texts, str) else list(texts)
    if len(asked) > MOST:
        raise ValueError(f"report_to: must name at most {MOST} trackers, got {len(asked)}")
    if twice := sorted({one for one in asked if asked.count(one) > 1}):
        raise ValueError(f"report_to: must name each tracker once, got {twice[0]!r} twice")
    return [read(one) for one in asked]


def copied(known: Sequence[Known]) -> list[dict[str, str]]:
    """Return the same for a copy of the run, which is another run at each tracker."""
    return [{**one, "id": _new_id()} for one in known]


def load(kind: str) -> ModuleType:
    """Return the tracker's package; ImportError with the command that installs it."""
    try:
        return importlib.import_module(KINDS[kind])
    except Exception as error:  # a package that does not fit the others raises what it likes
        package = KINDS[kind].partition(".")[0]
        raise ImportError(
            f"--report-to {kind}:NAME needs the package {package}: {install(kind)} ({_told(error)})"
        ) from error


def _new_id() -> str:
    return secrets.token_hex(4)


def _check_id(text: str) -> None:
    """Raise ValueError for an id that no run of ours has: a tracker may take it for a query."""
    if not re.fullmatch("[0-9a-f]{8}", text):
        raise ValueError(f"report_to: must have an id of eight hexadecimal digits, got {text!r}")


def _told(error: BaseException) -> str:
    # a package's message may have lines and colours
    plain = "".join(one if one.isprintable() else " " for one in said(error))
    return f"{type(error).__name__}: {' '.join(plain.split())[:300]}"


class Trackers:
    """The trackers of a run. A report that a tracker has is not sent again after a resume.

    No call waits for a network, but the first and the last. A tracker that fails costs its own
    reports: the run goes on, and ``problems`` has a sentence.
    """

    def __init__(
        self,
        known: Sequence[Known],
        directory: Path,
        config: Mapping[str, object],
        *,
        told: int = -1,
    ) -> None:
        """``told``: the last step that the trackers have already. ValueError if one of them does
        not begin.
        """
        self._told, self._after = told, told
        self._links = list[_Link]()
        try:
            for one in known:
                _check_id(one["id"])
                begin = Begin(one["name"], one["id"], directory, config)
                self._links.append(_Link(one["to"], begin))
        except BaseException:
            self.close(failed=True)
            raise

    def log(self, values: Mapping[str, float], step: int) -> None:
        if step > self._after:
            self._told, sent = step, dict(values)
            for one in self._links:
                one.send(lambda tracker: tracker.log(sent, step))

    def completions(self, samples: Sequence[Mapping[str, object]], step: int) -> None:
        sent = list(samples)
        for one in self._links:
            one.send(lambda tracker: tracker.completions(sent, step))

    def rewind(self) -> None:
        """The run goes back: the trackers have its next steps, up to the last one."""
        self._after = self._told

    def problems(self) -> list[str]:
        """Return sentences on what was not sent, each once."""
        return [text for one in self._links for text in one.problems()]

    def close(self, *, failed: bool) -> list[str]:
        """End the runs there; return sentences on what was not sent."""
        for one in self._links:
            one.end(failed=failed)
        for one in self._links:
            one.join()
        return self.problems()


class _Link:
    """A thread that talks to one tracker."""

    def __init__(self, kind: str, begin: Begin) -> None:
        load(kind)
        self._where = f"{kind}:{begin.name}"
        self._jobs = queue.Queue[Callable[[Tracker], None] | None](WAITING)
        self._failed = False  # what the run ended with
        self._lost, self._causes = 0, list[str]()
        self._unsaid = list[str]()
        self._begun = Future[None]()
        self._thread = threading.Thread(
            target=self._work, args=(kind, begin), daemon=True, name=f"tracker {kind}"
        )
        self._thread.start()
        try:
            self._begun.result(BEGIN_S)
        except TimeoutError:
            raise ValueError(
                f"report_to {self._where}: no run began there within {BEGIN_S:.0f} s"
            ) from None
        except (Exception, SystemExit) as error:  # a package may raise anything
            raise ValueError(f"report_to {self._where}: no run begins: {_told(error)}") from error

    def send(self, job: Callable[[Tracker], None]) -> None:
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._missed(f"it is slower than the run, and {WAITING:,} reports wait")

    def problems(self) -> list[str]:
        said, self._unsaid = self._unsaid, []
        return said

    def end(self, *, failed: bool) -> None:
        self._failed = failed
        while True:
            try:
                self._jobs.put_nowait(None)
            except queue.Full:  # the end has to find a place
                self._missed(f"{WAITING:,} reports still waited at the end of the run")
                with suppress(queue.Empty):
                    self._jobs.get_nowait()
            else:
                return

    def join(self) -> None:
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._missed(f"{END_S:.0f} s after the end of the run were not enough")

    def _missed(self, cause: str) -> None:
        self._lost += 1
        if cause not in self._causes and len(self._causes) < 20:
            self._causes.append(cause)
            self._unsaid.append(f"warning: not all is reported to {self._where}: {cause}")

    def _work(self, kind: str, begin: Begin) -> None:
        try:
            module = importlib.import_module(f"{__package__}.{kind}_run")
            tracker = cast(Callable[[Begin], Tracker], module.begin)(begin)
        except BaseException as error:  # raised where the thread was made
            self._begun.set_exception(error)
            return
        self._begun.set_result(None)
        while True:
            job = self._jobs.get()
            try:
                if job is None:
                    tracker.finish(failed=self._failed)
                    return
                job(tracker)
            # a package may raise anything, or exit; the run goes on without it
            except BaseException as error:
                self._missed(_told(error))
                if job is None:
                    return
