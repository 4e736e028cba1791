"""Versions of a policy: tried and loaded while the present one answers, swapped in between two
batches.

A thread checks several times a second whether an alias has moved. Each new version is tried in a
process of its own (``trial.py``), loaded and warmed up, all in a thread that no other version waits
for. Then the loop takes it with one assignment. A version that cannot be served costs only the
aliases that name it, with an alarm for each. An episode keeps its version until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from equipoise.hints import hint
from equipoise.registry.artifacts import KINDS
from equipoise.serving.backend import load
from equipoise.serving.messages import Refused
from equipoise.serving.settings import Backend, Rules
from equipoise.serving.shield import UnfitRules
from equipoise.serving.trial import Exceeded, Trial
from equipoise.serving.version import Version

log = logging.getLogger("equipoise.serving")
SERVED = ("champion", "candidate", "shadow", "previous")
POLL_S = 0.2
# after a version that could not be loaded: it may still be copied; twice as long after each further
# time,
RETRY_S = 1.0
RETRY_MOST_S = 60.0  # up to this, and at least
RETRY_TIMES = 10  # times what the attempt took, so that a hopeless version takes a tenth of a core
START_S = 120.0  # longest wait of a start for its champion, after which another version answers
# for versions that are still being loaded when a start has failed
STOP_S = 5.0
OTHERS_S = 5.0  # longest wait for the other aliases after that


class Source(Protocol):
    """The server's interface to a registry."""

    def revision(self, name: str) -> object: ...

    def aliases(self, name: str) -> Mapping[str, str]: ...

    def resolve(self, name: str, version: str) -> tuple[str, Path]: ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """The versions that aliases name now. If the champion is missing, ``reason`` is the reason, and
    its requests are refused.
    """

    by_alias: Mapping[str, Version]
    reason: str | None = None

    @property
    def champion(self) -> Version:
        """Raise Refused (503) if no version can answer."""
        if (found := self.by_alias.get("champion")) is None:
            raise Refused(503, f"expected a champion that can be served, got none: {self.reason}")
        return found

    @property
    def shadow(self) -> Version | None:
        shadow = self.by_alias.get("shadow")
        return None if shadow is self.by_alias.get("champion") else shadow


@dataclass(slots=True)
class Attempt:
    """Loading one version, in a thread of its own: at work while it has no version and no error."""

    gap_s: float  # to the next one if this one fails
    began: float = field(default_factory=time.monotonic)
    version: Version | None = None
    error: Exception | None = None
    problem: str | None = None  # the last attempt's problem
    again: float = 0.0  # when to try again, after an error


@dataclass
class Versions:
    """The versions that are served; ``start`` loads them, ``follow`` keeps up with the registry."""

    source: Source
    policy: str
    rules: Rules = field(default_factory=Rules)
    backend: Backend = "onnx"
    threads: int = 1
    trusted: Sequence[str] = ()
    batch: int = 64
    poll_s: float = POLL_S
    trial: Trial | None = None
    swaps: int = 0
    _thread: threading.Thread | None = None
    alarm: str | None = None  # which of the versions that aliases name is not served, and why

    def __post_init__(self) -> None:
        self.trial = self.trial or Trial(self.backend, self.trusted, self.batch)
        self.now = Loaded({})
        self._attempts: dict[str, Attempt] = {}  # by the targets of the aliases
        self._last: dict[str, Version] = {}  # the last served versions
        self._stop, self._wake = threading.Event(), threading.Event()
        self._loading: list[threading.Thread] = []  # a thread for each version that is tried

    def start(self) -> None:
        """Load the versions that the aliases name; ValueError without a champion, or if no version
        can be served.

        If the champion cannot be served, the previous version answers in its place. Without one its
        requests are refused.
        """
        self._seen = self.source.revision(self.policy)
        self._aliases = aliases = self.source.aliases(self.policy)
        if "champion" not in aliases:
            raise ValueError(
                f"{self.policy}: expected an alias 'champion', got "
                f"{', '.join(sorted(aliases)) or 'none'}; "
                f"'equipoise registry alias {self.policy} champion VERSION' sets it"
            )
        try:
            self.now = Loaded(self._load(aliases), self.alarm)
            if isinstance(unfit := self._attempts[aliases["champion"]].error, UnfitRules):
                raise ValueError(str(unfit))
            if not self.now.by_alias:
                raise ValueError(
                    f"{self.policy}: expected a version that can be served, got none: {self.alarm}"
                )
        except BaseException:
            self.stop(STOP_S)
            raise

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look for moved aliases; their versions are taken in the loop."""
        self._thread = threading.Thread(
            target=self._watch, args=(loop,), name="versions", daemon=True
        )
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """Look no more, end all trials, and wait for versions that are being loaded: the process
        would be aborted if it ended while a thread is inside onnxruntime.
        """
        end = time.monotonic() + within_s
        self._stop.set()
        self._wake.set()
        assert self.trial is not None
        self.trial.close()
        if self._thread is not None:
            self._thread.join(max(end - time.monotonic(), 0.0))
        for thread in self._loading:
            thread.join(max(end - time.monotonic(), 0.0))

    def _take(self, loaded: Loaded) -> None:
        before, self.now = self.now.by_alias.get("champion"), loaded
        if (champion := loaded.by_alias.get("champion")) is not before and champion is not None:
            self.swaps += 1
            log.info("swapped", extra={"from": before and before.digest, "to": champion.digest})

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self.trial is not None
        told: object = None
        while not self._stop.is_set():
            unread, moved = None, False
            try:
                revision = self.source.revision(self.policy)
                if revision != self._seen:
                    self._aliases, self._seen, moved = (
                        self.source.aliases(self.policy),
                        revision,
                        True,
                    )
            except Exception as error:  # of any kind: the served version goes on
                unread = f"registry: {_said(error)}"
            self._begin(self._aliases, moved)
            by_alias = self._settled(self._aliases, unread)
            if (by_alias, self.alarm) != told:
                told = by_alias, self.alarm
                # the loop is closed, which it may be at any moment
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._take, Loaded(by_alias, self.alarm))
            try:
                self.trial.prepare()
            # it ends, or the machine has no room for a process: the trial will report it
            except (ValueError, OSError) as error:
                log.debug("no process for the next trial", extra={"reason": str(error)})
            self._wake.wait(self.poll_s)
            self._wake.clear()

    def find(self, name: str | None) -> Version:
        """The champion, or the served version that an alias or (the beginning of) a digest names;
        Refused (404).
        """
        by_alias = self.now.by_alias
        if name is None or (name == "champion" and name not in by_alias):
            return self.now.champion
        if name in by_alias:
            return by_alias[name]
        digests = {version.digest: version for version in by_alias.values()}
        found = [
            version
            for digest, version in digests.items()
            if len(name) >= 8 and digest.startswith(name)
        ]
        if name in SERVED:
            raise Refused(
                404,
                f"version: expected an alias of {self.policy!r} that is set and served, got "
                f"{name!r}",
            )
        if len(found) != 1:
            known = [*by_alias, *(digest[:12] for digest in digests)]
            raise Refused(
                404,
                f"version: expected one that an alias of {self.policy!r} names, got "
                f"{name!r}{hint(name, known)}",
            )
        return found[0]

    def _load(self, aliases: Mapping[str, str]) -> dict[str, Version]:
        """Return the versions of the served aliases: wait for the champion, and a little for the
        rest.
        """
        self._begin(aliases, moved=True)
        began, champion = time.monotonic(), self._attempts[aliases["champion"]]
        while time.monotonic() < began + START_S and _is_at_work(champion):
            self._wait()
        end = time.monotonic() + OTHERS_S
        while time.monotonic() < end and any(map(_is_at_work, self._attempts.values())):
            self._wait()
        return self._settled(aliases)

    def _wait(self) -> None:
        self._wake.wait(self.poll_s)
        self._wake.clear()

    def _begin(self, aliases: Mapping[str, str], moved: bool) -> None:
        """Attempt what is named and neither loaded nor tried lately. ``moved``: an attempt that
        failed cheaply is tried again at once.
        """
        now, wanted = time.monotonic(), {aliases[alias] for alias in SERVED if alias in aliases}
        for one, attempt in list(self._attempts.items()):
            # to try that one again costs as much as before
            if one not in wanted and not isinstance(attempt.error, Exceeded):
                del self._attempts[one]
        for one in wanted:
            last = self._attempts.get(one)
            failed = last is not None and last.error is not None
            at_once = moved and not (failed and isinstance(last.error, Exceeded))  # type: ignore[union-attr]
            if last is None or (failed and (at_once or now >= last.again)):
                gap_s = RETRY_S if last is None or at_once else min(2 * last.gap_s, RETRY_MOST_S)
                attempt = self._attempts[one] = Attempt(
                    gap_s, problem=None if last is None else last.problem
                )
                thread = threading.Thread(
                    target=self._attempt,
                    args=(one, attempt),
                    name=f"version {one[:12]}",
                    daemon=True,
                )
                self._loading = [*(old for old in self._loading if old.is_alive()), thread]
                thread.start()

    def _attempt(self, version: str, attempt: Attempt) -> None:
        """Try and load a version; a failure of any kind is kept."""
        try:
            assert self.trial is not None
            digest, path = self.source.resolve(self.policy, version)
            for file, kind in KINDS.items():
                if (path / file).is_file():
                    raise ValueError(f"{path}: must be a policy, got a {kind}")
            self.trial(path, digest)
            model = load(path, self.backend, threads=self.threads, trusted=self.trusted)
            if model.version != digest:
                raise ValueError(f"{path}: expected version {digest}, got {model.version}")
            attempt.version = Version(model, self.rules, self.batch)
        except Exception as error:
            now = time.monotonic()
            attempt.again = now + max(
                attempt.gap_s, RETRY_TIMES * (now - attempt.began) * isinstance(error, Exceeded)
            )
            attempt.problem, attempt.error = _said(error), error
        self._wake.set()

    def _settled(self, aliases: Mapping[str, str], unread: str | None = None) -> dict[str, Version]:
        """The version to serve for each alias, by what is loaded now; sets the alarm.

        A champion that cannot be served leaves the last one in its place; at a start that is the
        previous one.
        """
        found: dict[str, Version] = {}
        wrong = [] if unread is None else [unread]
        serving = self._last.get("champion")
        for alias in SERVED:
            attempt = self._attempts.get(aliases.get(alias, ""))
            if attempt is None:
                continue
            version = attempt.version
            problem = attempt.problem if version is None else None
            whose = "the serving champion's" if alias == "champion" else "the champion's"
            if (
                version is not None
                and serving is not None
                and (problem := other_spaces(version, serving, whose))
            ):
                if alias in ("champion", "shadow"):
                    version = None
            elif version is None and problem is None:
                version = self._last.get(alias)  # until the new one is loaded
                if time.monotonic() > attempt.began + START_S:
                    problem = (
                        f"expected {aliases[alias][:12]} to load within {START_S:g} s; it is "
                        "still at work"
                    )
            if problem is not None:
                wrong.append(f"{alias}: {problem}")
            if alias == "champion":
                serving = version = version or serving
            if version is not None:
                found[alias] = version
        if "champion" not in aliases:
            wrong.append("champion: expected an alias that is set, got none")
        if (stand_in := serving or found.get("previous")) is not None:
            found = {"champion": stand_in, **found}
        self._last = found
        self._warn("; ".join(wrong) or None)
        return found

    def _warn(self, alarm: str | None) -> None:
        if alarm not in (None, self.alarm):
            log.error("a version cannot be served", extra={"policy": self.policy, "reason": alarm})
        self.alarm = alarm


def _is_at_work(attempt: Attempt) -> bool:
    return attempt.version is None and attempt.error is None


def other_spaces(one: Version, other: Version, whose: str) -> str | None:
    """Return a sentence if a version's spaces differ from those of current clients."""
    for what, mine, theirs in (
        ("observations", one.rows, other.rows),
        ("actions", one.action, other.action),
    ):
        if mine != theirs:
            return (
                f"expected {whose} {what}, {_spaces(theirs)}, got {_spaces(mine)}; serve "
                "another policy by another name"
            )
    return None


def _spaces(spaces: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{name}: {dtype} {list(shape)}" for name, (shape, dtype) in spaces.items())


def _said(error: Exception) -> str:
    """The message of a version's error, as one line of bounded length."""
    text = (
        str(error)
        if isinstance(error, ValueError | OSError) and str(error)
        else f"{type(error).__name__}: {error}"
    )
    return " ".join(text.split())[:1000]
