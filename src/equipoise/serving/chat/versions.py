"""The versions of a language model in a registry: each has an engine of its own, and a request
names its version, or an alias.

The champion is loaded at the start. If it changes, the next one is loaded beside it, and new
requests go there at once. Open answers finish with their own version, whose engine is then closed.
Another version is loaded by the first request that names it, and is closed after ``IDLE_S`` without
one.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Mapping
from typing import Protocol

from equipoise.hints import said
from equipoise.serving.chat.model import Model
from equipoise.serving.chat.served_model import ServedModel
from equipoise.serving.chat.service import FOLLOW_S, Service
from equipoise.serving.chat.settings import TextSettings
from equipoise.serving.chat.wire import Denied
from equipoise.serving.store import Store

log = logging.getLogger("equipoise.serving")
DIGITS = 12  # of a version, in names
MOST = 4  # versions that are loaded at a time, those that end their answers included
IDLE_S = 60.0  # a version besides the champion is closed after this time without a request
AGAIN_S = 5.0  # a version that does not load is tried again after this time
CHAMPION = "champion"


class Source(Protocol):
    """The server's interface to the versions of one name."""

    name: str

    def revision(self) -> object: ...

    def aliases(self) -> Mapping[str, str]: ...

    def load(self, version: str) -> Model: ...


class VersionedService(Service):
    """A service whose requests name a version."""

    def __init__(
        self,
        source: Source,
        settings: TextSettings,
        *,
        rows: int,
        seed: int,
        deadline_s: float,
        store: Store | None = None,
    ) -> None:
        """Load the champion. A running event loop is needed. ValueError or OSError without a
        champion that can be served.
        """
        self._source = source
        self._revision, self._aliases = source.revision(), dict(source.aliases())
        if CHAMPION not in self._aliases:
            known = ", ".join(sorted(self._aliases)) or "none"
            raise ValueError(
                f"{source.name}: must have an alias 'champion', got {known}; 'equipoise registry "
                f"alias {source.name} champion VERSION' sets it"
            )
        self._champion = self._aliases[CHAMPION]
        super().__init__(
            source.load(self._champion),
            settings,
            rows=rows,
            seed=seed,
            deadline_s=deadline_s,
            store=store,
            engines=2,
        )
        self._served = {self._champion: self.served}
        self._used = dict[str, float]()  # when a request last named a version besides the champion
        self._loads = dict[str, asyncio.Task[ServedModel]]()
        self._failed = dict[str, tuple[float, str]]()  # when a version did not load, and why
        self._unread_registry = ""
        self.swaps = 0

    # ------------------------------------------------------------------------------------ requests

    def versions(self) -> dict[str, str]:
        """Return the version of each name that a request may have."""
        name, found = self._source.name, {self._source.name: self._champion}
        for alias, version in self._aliases.items():
            version = self._champion if alias == CHAMPION else version
            found |= dict.fromkeys((alias, f"{name}@{alias}"), version)
            found |= dict.fromkeys(
                (version, version[:DIGITS], f"{name}@{version[:DIGITS]}"), version
            )
        return found | {name: self._champion}

    @property
    def names(self) -> list[str]:
        return list(self.versions())

    def described(self) -> dict[str, str]:
        """Return the models of ``/v1/models``, with the version of each."""
        name, found = self._source.name, self.versions()
        shown = [name, *(f"{name}@{alias}" for alias in self._aliases)]
        return {one: found[one][:DIGITS] for one in shown}

    async def find(self, name: str) -> ServedModel:
        version = self.versions().get(name)
        if version is None:  # the alias moved since the request was read
            raise Denied(
                404, f"model: must be a version that an alias names, got {name!r}", "model",
                "model_not_found",
            )  # fmt: skip
        if version != self._champion:
            self._used[version] = time.monotonic()
        if (served := self._served.get(version)) is not None:
            return served
        at, why = self._failed.get(version, (0.0, ""))
        if why and time.monotonic() < at + AGAIN_S:
            raise _unfit(name, why)
        try:
            # a caller that leaves does not end the load
            served = await asyncio.shield(self._loading(version))
        except Exception as error:  # also of torch, such as a lack of memory
            raise _unfit(name, said(error)) from None
        if version not in self._served:
            raise _unfit(name, "one that no alias names any more")
        return served

    # ---------------------------------------------------------------------------------- the engines

    def _loading(self, version: str) -> asyncio.Task[ServedModel]:
        if (task := self._loads.get(version)) is None:
            task = self._loads[version] = asyncio.ensure_future(self._load(version))
            task.add_done_callback(lambda task: self._loaded(version, task))
        return task

    def _loaded(self, version: str, task: asyncio.Task[ServedModel]) -> None:
        self._loads.pop(version, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            why = f"{version[:DIGITS]}: {said(error)}"
            if self._failed.get(version, (0.0, ""))[1] != why:
                log.warning("a version cannot be served", extra={"why": why})
            self._failed[version] = time.monotonic(), why
        else:
            self._failed.pop(version, None)

    async def _load(self, version: str) -> ServedModel:
        if len(self._served) + len(self._loads) > MOST:
            await self._close_idle(0.0)
        if len(self._served) + len(self._loads) > MOST:
            raise ValueError(
                f"must have at most {MOST} versions loaded, got one more; try again when their "
                "answers have ended"
            )
        model = await self._run(self._loader, functools.partial(self._source.load, version))
        served = await self._run(self._loader, functools.partial(self._made, model))
        served.writer.start()
        self._served[version] = served
        log.info("loaded", extra={"model": self._source.name, "version": version[:DIGITS]})
        return served

    def _made(self, model: Model) -> ServedModel:
        return ServedModel(
            model, self._settings, self._loop, rows=self.rows, seed=self._seed, engines=2
        )

    async def _close_idle(self, idle_s: float) -> None:
        """Close versions without open answers that no request named for ``idle_s``, and those that
        no alias names.
        """
        now, named = time.monotonic(), set(self._aliases.values())
        for version, served in list(self._served.items()):
            unused = version not in named or now - self._used.get(version, -1e9) >= idle_s
            if served is self.served or served.open or not unused:
                continue
            del self._served[version]
            self.closed_tokens += served.writer.drawn
            await self._run(self._loader, served.close)
            log.info("closed", extra={"model": self._source.name, "version": version[:DIGITS]})

    async def follow(self) -> None:
        """Keep up with the registry: a new champion takes the next request."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self._run(self._loader, self._read)
                self._unread_registry = ""
            except (ValueError, OSError) as error:
                if (why := f"registry: {said(error)}") != self._unread_registry:
                    log.warning("the registry cannot be read", extra={"why": why})
                self._unread_registry = why
            wanted = self._aliases.get(CHAMPION, self._champion)
            at, why = self._failed.get(wanted, (0.0, ""))
            if wanted != self._champion and not (why and time.monotonic() < at + AGAIN_S):
                await self._swap(wanted)
            await self._close_idle(IDLE_S)

    def _read(self) -> None:
        revision = self._source.revision()
        if revision != self._revision:
            self._aliases, self._revision = dict(self._source.aliases()), revision
            self._failed = {}  # what was missing may have come

    async def _swap(self, version: str) -> None:
        served = self._served.get(version)
        if served is None:
            try:
                served = await self._loading(version)
            except Exception:  # of any kind
                return  # ``_loaded`` keeps the reason, which is an alarm
        before, self._champion, self.served = self._champion, version, served
        self.swaps += 1
        log.info("swapped", extra={"from": before[:DIGITS], "to": version[:DIGITS]})

    def close(self) -> None:
        for task in list(self._loads.values()):
            task.cancel()
        for served in self._served.values():
            if served is not self.served:
                served.close()
        super().close()

    # ------------------------------------------------------------------------------------ the state

    @property
    def drawn(self) -> int:
        return self.closed_tokens + sum(one.writer.drawn for one in self._served.values())

    @property
    def live(self) -> int:
        return sum(one.writer.live for one in self._served.values())

    @property
    def _alarms(self) -> list[str]:
        named = {version: alias for alias, version in self._aliases.items()}
        unfit = [
            f"{named[one]}: {why}" for one, (_, why) in list(self._failed.items()) if one in named
        ]
        return [one for one in (*super()._alarms, self._unread_registry, *unfit) if one]

    def state(self) -> dict[str, object]:
        return super().state() | {
            "versions": {alias: version[:DIGITS] for alias, version in self._aliases.items()},
            "loaded": [version[:DIGITS] for version in self._served],
        }


def _unfit(name: str, why: str) -> Denied:
    return Denied(503, f"model: {name}: must be a version that can be served, got {why}", "model")
