"""Experiment trackers of a run, ``--report-to KIND:NAME``: a thread reports to each of them."""

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
from equipoise.record.completions import by_function
from equipoise.schema import Items, Schema, Text

KINDS: Mapping[str, str] = {  # the package of each kind
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "otel": "opentelemetry.exporter.otlp.proto.http.metric_exporter",
}
MOST = 8  # trackers of a run
LONGEST = 200  # characters of a name
WAITING = 1_000  # most reports that wait for a slow tracker
BEGIN_S, END_S = 60.0, 30.0  # most seconds of a wait at the beginning and at the end of a run
Known = Mapping[str, str]  # in run.json: "to" (the kind), "name" (of a project), "id" (of the run)
SCHEMA: Schema = Items(
    {"to": Text(among=tuple(KINDS)), "name": Text(LONGEST), "id": Text(16)}, MOST
)


class Tracker(Protocol):
    """One run at a tracker. A method may raise any error, and may wait for a network."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add the numbers of one report; ``step``: env steps."""

    def completions(self, samples: Sequence[Mapping[str, object]], step: int) -> None:
        """Add some answers of an evaluation as a table: prompt, completion, reward, and the
        reward of each function.
        """

    def finish(self, *, failed: bool) -> None:
        """Send all waiting reports, and end the run at the tracker."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The facts that a tracker begins or continues a run with."""

    name: str  # of the project, experiment or service
    id: str  # of the run at the tracker, the same after a resume
    directory: Path  # of the run
    config: Mapping[str, object]  # the program


def read(text: str) -> dict[str, str]:
    """Return ``KIND:NAME`` as run.json has it, with a new id; ValueError if it is wrong."""
    kind, _, name = text.partition(":")
    if kind not in KINDS:
        wanted = ", ".join(f"{one}:NAME" for one in KINDS)
        raise ValueError(
            f"report_to: must be one of {wanted}, got {text[:LONGEST]!r}{hint(kind, tuple(KINDS))}"
        )
    if not name.strip():
        raise ValueError(f"report_to: must have a name after {kind}:, got {text[:LONGEST]!r}")
    _check_name(kind, name)
    load(kind)
    return {"to": kind, "name": name, "id": _new_id()}


def read_all(texts: str | Sequence[str]) -> list[dict[str, str]]:
    """Return several ``KIND:NAME`` as run.json has them; ValueError if one comes twice."""
    asked = [texts] if isinstance(texts, str) else list(texts)
    if len(asked) > MOST:
        raise ValueError(f"report_to: must name at most {MOST} trackers, got {len(asked)}")
    if twice := sorted({one for one in asked if asked.count(one) > 1}):
        raise ValueError(f"report_to: must name each tracker once, got {twice[0]!r} twice")
    return [read(one) for one in asked]


def copied(known: Sequence[Known]) -> list[dict[str, str]]:
    """Return the trackers of a copied run: the same projects, with new ids."""
    return [{**one, "id": _new_id()} for one in known]


def load(kind: str) -> ModuleType:
    """Return the tracker's package; ImportError with the command that installs it."""
    try:
        return importlib.import_module(KINDS[kind])
    except Exception as error:  # a package that does not fit the others raises what it likes
        package = KINDS[kind].partition(".")[0]
        raise ImportError(
            f"--report-to {kind}:NAME needs the package {package}: {install(kind)} "
            f"({_described(error)})"
        ) from error


def _new_id() -> str:
    return secrets.token_hex(4)


def _check_name(kind: str, name: str) -> None:
    """Raise ValueError for a name that a terminal would obey, or that hides what it is."""
    if len(name) > LONGEST or not (name.isprintable() and name.strip()):
        raise ValueError(
            f"report_to: must have a name of at most {LONGEST} printable characters after {kind}:, "
            f"got {name[:LONGEST]!r}"
        )


def _check_id(text: str) -> None:
    """Raise ValueError for an id that ``read`` does not make: a tracker might run it as a query."""
    if not re.fullmatch("[0-9a-f]{8}", text):
        raise ValueError(f"report_to: must have an id of eight hexadecimal digits, got {text!r}")


def _described(error: BaseException) -> str:
    # a package's message may have lines and colours
    plain = "".join(one if one.isprintable() else " " for one in said(error))
    return f"{type(error).__name__}: {' '.join(plain.split())[:300]}"


def table(samples: Sequence[Mapping[str, object]]) -> tuple[list[str], list[list[object]]]:
    """Return the columns and the rows of samples: a column for each reward function."""
    flat = [by_function(one) for one in samples]
    columns = list(dict.fromkeys(name for one in flat for name in one))
    return columns, [[one.get(name) for name in columns] for one in flat]


class Trackers:
    """The trackers of a run. A resume does not send a report again.

    Only the first and the last call wait for a network. If a tracker fails, its own reports are
    lost: the run goes on, and ``problems`` has a sentence.
    """

    def __init__(
        self,
        known: Sequence[Known],
        directory: Path,
        config: Mapping[str, object],
        *,
        reported: int = -1,
    ) -> None:
        """``reported``: the last step that the trackers already have. ValueError if a tracker does
        not begin.
        """
        self._reported, self._after = reported, reported
        self._links = list[_Link]()
        try:
            for one in known:
                _check_id(one["id"])
                _check_name(one["to"], one["name"])
                begin = Begin(one["name"], one["id"], directory, config)
                self._links.append(_Link(one["to"], begin))
        except BaseException:
            self.close(failed=True)
            raise

    def log(self, values: Mapping[str, float], step: int) -> None:
        if step > self._after:
            self._reported, sent = step, dict(values)
            for one in self._links:
                one.send(lambda tracker: tracker.log(sent, step))

    def completions(self, samples: Sequence[Mapping[str, object]], step: int) -> None:
        sent = list(samples)
        for one in self._links:
            one.send(lambda tracker: tracker.completions(sent, step))

    def rewind(self) -> None:
        """Leave out the next steps, which the trackers already have, since the run goes back."""
        self._after = self._reported

    def problems(self) -> list[str]:
        """Return sentences on reports that were not sent, each once."""
        return [text for one in self._links for text in one.problems()]

    def close(self, *, failed: bool) -> list[str]:
        """End the runs at the trackers; return sentences on reports that were not sent."""
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
        self._failed = False  # did the run fail?
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
                f"report_to {self._where}: must begin a run within {BEGIN_S:.0f} s, got none; "
                "try again, or leave it out"
            ) from None
        except (Exception, SystemExit) as error:  # a package may raise anything
            raise ValueError(
                f"report_to {self._where}: must begin a run, got {_described(error)}"
            ) from error

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
            except queue.Full:  # make room for the end
                self._missed(f"{WAITING:,} reports still waited at the end of the run")
                with suppress(queue.Empty):
                    self._jobs.get_nowait()
            else:
                return

    def join(self) -> None:
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._missed(f"it did not end within {END_S:.0f} s after the run")

    def _missed(self, cause: str) -> None:
        self._lost += 1
        if cause not in self._causes and len(self._causes) < 20:
            self._causes.append(cause)
            self._unsaid.append(f"warning: not all is reported to {self._where}: {cause}")

    def _work(self, kind: str, begin: Begin) -> None:
        try:
            module = importlib.import_module(f"{__package__}.{kind}_run")
            tracker = cast(Callable[[Begin], Tracker], module.begin)(begin)
        except BaseException as error:  # ``__init__`` raises it
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
                self._missed(_described(error))
                if job is None:
                    return
