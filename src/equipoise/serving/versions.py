"""Versions of a policy: loaded from the registry by a thread of their own, swapped in between two batches.

The thread looks several times a second whether an alias has moved. It loads, checks and warms up the new version while the old
one answers; then the loop takes it with one assignment. An episode keeps its version until it ends.
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
from typing import Any, Protocol

import numpy as np

from equipoise.hints import hint
from equipoise.serving.backend import Backend, Model, load
from equipoise.serving.messages import Refused
from equipoise.serving.sessions import States
from equipoise.serving.shield import Rules, Shield

log = logging.getLogger("equipoise.serving")
Array = np.ndarray[Any, np.dtype[Any]]
SERVED = ("champion", "candidate", "shadow", "previous")
POLL_S = 0.2
RETRY_S = 1.0  # after a version that could not be loaded: it may still be copied; twice as long after each further time,
RETRY_MOST_S = 60.0  # up to this
INLINE_S = 1e-4  # a run of one row below this is done in the event loop: a thread would cost more
INLINE_BATCH_S = 1e-3  # and so must be a run of a whole batch
TIMED = 15  # runs that are timed


class Source(Protocol):
    """What the server asks of a registry."""

    def revision(self, name: str) -> Any: ...

    def aliases(self, name: str) -> Mapping[str, str]: ...

    def resolve(self, name: str, version: str) -> tuple[str, Path]: ...


class Version:
    """A loaded version: its model, its shield, its episodes' states, and arrays in which batches are put together."""

    def __init__(self, model: Model, rules: Rules, batch: int) -> None:
        self.model, self.digest = model, model.version
        self.shield = Shield(rules, model.spec)
        self.states = States(initial := model.initial(1))
        self.recurrent = bool(initial)
        self.episodes = 0  # open ones, of which this version is the main or the shadow
        about = model.spec["artifact"]["rows"]
        self.rows = {name: (tuple(one["shape"]), np.dtype(one["dtype"])) for name, one in about.items()}
        forms = model.spec["artifact"]["action"]
        self.action = {name: (tuple(one["shape"]), np.dtype(one["dtype"])) for name, one in forms.items()}
        self._arrays = {name: np.zeros((batch, *shape), dtype) for name, (shape, dtype) in self.rows.items()}
        self.inline = self._seconds(1) < INLINE_S and self._seconds(batch) < INLINE_BATCH_S

    def stack(self, parts: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
        """Rows of several requests as one batch, in arrays that the next call overwrites."""
        if len(parts) == 1:
            return parts[0]
        found = {}
        for name, whole in self._arrays.items():
            at = 0
            for part in parts:
                x = part[name]
                whole[at : at + len(x)] = x
                at += len(x)
            found[name] = whole[:at]
        return found

    def _seconds(self, count: int) -> float:
        """The time of the fastest run of ``count`` rows: of one that nothing else on the machine disturbed."""
        rows = {name: np.zeros((count, *shape), dtype) for name, (shape, dtype) in self.rows.items()}
        rows |= {name: np.ones_like(rows[name]) for name, _ in self.shield.masks}
        state, flags, took = self.model.initial(count), np.ones(count, bool), []
        for _ in range(TIMED):
            began = time.perf_counter()
            self.model.run(rows, flags, state, None, flags)
            took.append(time.perf_counter() - began)
        return min(took)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The versions that aliases name now."""

    by_alias: Mapping[str, Version]
    revision: Any = None

    @property
    def champion(self) -> Version:
        return self.by_alias["champion"]

    @property
    def shadow(self) -> Version | None:
        shadow = self.by_alias.get("shadow")
        return None if shadow is self.champion else shadow


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
    swaps: int = 0
    _thread: threading.Thread | None = None
    alarm: str | None = None  # which of the versions that aliases name is not served, and why

    def start(self) -> None:
        """Load what the aliases name now; ValueError where there is no champion, or where it cannot be served."""
        self._known: dict[str, Version] = {}
        self._serves: Version | None = None  # the champion, whose observations and actions the next one has to have
        revision = self.source.revision(self.policy)
        aliases = self.source.aliases(self.policy)
        if "champion" not in aliases:
            raise ValueError(
                f"{self.policy}: expected an alias 'champion', got {', '.join(sorted(aliases)) or 'none'}; "
                f"'equipoise registry alias {self.policy} champion VERSION' sets it"
            )
        self.now = Loaded(self._load(aliases), revision)
        self._serves = self.now.champion
        self._stop = threading.Event()

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look for moved aliases; their versions are taken in the loop."""

        def take(loaded: Loaded) -> None:
            before, self.now = self.now, loaded
            if before.champion is not loaded.champion:
                self.swaps += 1
                log.info("swapped", extra={"from": before.champion.digest, "to": loaded.champion.digest})

        def watch() -> None:
            seen, gap_s, again = self.now.revision, RETRY_S, time.monotonic() + RETRY_S
            while not self._stop.wait(self.poll_s):
                try:
                    revision = self.source.revision(self.policy)
                    if revision == seen and (self.alarm is None or time.monotonic() < again):
                        continue
                    gap_s = min(2 * gap_s, RETRY_MOST_S) if revision == seen else RETRY_S
                    seen, again = revision, time.monotonic() + gap_s
                    aliases = self.source.aliases(self.policy)
                    loaded = Loaded(self._load(aliases), revision)
                except Exception as error:  # the old version serves on, whatever is wrong with the new one
                    self._warn(f"champion: {error}")
                    continue
                with contextlib.suppress(RuntimeError):  # the loop has been closed, which may be at any moment
                    loop.call_soon_threadsafe(take, loaded)

        self._thread = threading.Thread(target=watch, name="versions", daemon=True)
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """Look no more; a version that is being loaded is waited for so long, and its daemon thread then left behind."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(within_s)

    def find(self, name: str | None) -> Version:
        """The champion, or the served version that an alias or (the beginning of) a digest names; Refused (404)."""
        by_alias = self.now.by_alias
        if name is None:
            return by_alias["champion"]
        if name in by_alias:
            return by_alias[name]
        digests = {version.digest: version for version in by_alias.values()}
        found = [version for digest, version in digests.items() if len(name) >= 8 and digest.startswith(name)]
        if len(found) != 1:
            known = [*by_alias, *(digest[:12] for digest in digests)]
            raise Refused(404, f"version: expected one that an alias of {self.policy!r} names, got {name!r}{hint(name, known)}")
        return found[0]

    def _load(self, aliases: Mapping[str, str]) -> dict[str, Version]:
        """The served aliases' versions; those that are loaded already are kept, with their episodes.

        A champion that cannot be served is an error. Another version that cannot is left out, with an alarm.
        """
        by_alias: dict[str, Version] = {}
        wrong = []
        for alias in (alias for alias in SERVED if alias in aliases):
            try:
                found = by_alias[alias] = self._version(aliases[alias])
                if alias == "shadow":
                    same_spaces(found, by_alias["champion"], "the champion's")
                elif alias == "champion" and self._serves is not None:
                    same_spaces(found, self._serves, "the serving champion's")
            except (ValueError, OSError) as error:
                if alias == "champion":
                    raise
                by_alias.pop(alias, None)
                wrong.append(f"{alias}: {error}")
        self._known = {version.digest: version for version in by_alias.values()}
        self._warn("; ".join(wrong) or None)
        return by_alias

    def _warn(self, alarm: str | None) -> None:
        if alarm not in (None, self.alarm):
            log.error("a version cannot be served", extra={"policy": self.policy, "reason": alarm})
        self.alarm = alarm

    def _version(self, version: str) -> Version:
        digest, path = self.source.resolve(self.policy, version)
        if digest not in self._known:
            model = load(path, self.backend, threads=self.threads, trusted=self.trusted)
            if model.version != digest:
                raise ValueError(f"{path}: expected version {digest}, got {model.version}")
            self._known[digest] = Version(model, self.rules, self.batch)
        return self._known[digest]


def same_spaces(one: Version, other: Version, whose: str) -> None:
    """ValueError where a version takes other observations, or gives other actions: whoever asks now knows the old ones."""
    for what, mine, theirs in (("observations", one.rows, other.rows), ("actions", one.action, other.action)):
        if mine != theirs:
            raise ValueError(
                f"expected {whose} {what}, {_said(theirs)}, got {_said(mine)}; serve another policy by another name"
            )


def _said(spaces: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> str:
    return ", ".join(f"{name}: {dtype} {list(shape)}" for name, (shape, dtype) in spaces.items())
