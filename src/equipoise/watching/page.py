"""The application: the page, what changes as server-sent events, curves on demand, and moves of
versions with the token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

import equipoise
from equipoise.hints import hint
from equipoise.pages import colours
from equipoise.pages.responses import JSONResponse, Refused, encoded, read_json, refused
from equipoise.pages.static_files import StaticFiles
from equipoise.record.paths import VIDEOS
from equipoise.report.style import DASHES, STUDY
from equipoise.watching.guard import Guard
from equipoise.watching.runs import Folder, Watched
from equipoise.watching.versions import Versions

T = TypeVar("T")
EVERY_S = 0.5  # between two looks at the files while there are viewers
ALIVE_S = 10.0  # between two messages, so that a broken connection is noticed
MOST_VIEWERS = 64
MOST_CURVES = 32  # runs in one question
WRONG_S = 0.5  # that a wrong token waits


class Page:
    """The state behind the page. Files are read only while there is a viewer."""

    def __init__(
        self,
        folder: Folder,
        versions: Versions | None = None,
        *,
        host: str = "127.0.0.1",
        token: str = "",
        closed: bool,
    ) -> None:
        """``versions``: of a registry, if there is one (``watching/versions.py``); ``closed``:
        readers also need the token.
        """
        self.folder, self.versions = folder, versions
        self.viewers = 0
        # one thread reads files, so nothing is read twice at once
        self._hands = ThreadPoolExecutor(1, "files")
        self._looked = asyncio.Event()  # set at the end of each look, and replaced
        self._looking: asyncio.Task[None] | None = None
        self._closing = False
        self._static = StaticFiles("equipoise.watching", palette())
        routes = [
            Route("/", self._index),
            Route("/static/{name}", self._static.serve),
            Route("/api/events", self._events),
            Route("/api/run", self._run),
            Route("/api/curves", self._curves),
            Route("/api/settings", self._settings),
            Route("/api/clip", self._clip),
            Route("/api/registry", self._registry),
            Route("/api/enter", self._enter, methods=["POST"]),
            Route("/api/alias", self._alias, methods=["POST"]),
            Route("/api/rollback", self._rollback, methods=["POST"]),
        ]
        inside = Starlette(routes=routes, exception_handlers={Refused: refused})
        self.app = Guard(inside, host=host, token=token, closed=closed)

    def close(self) -> None:
        """End all streams; a viewer's browser asks again later."""
        self._closing = True
        self._looked.set()

    # ------------------------------------------------------------------------------------- the page

    async def _index(self, _: Request) -> Response:
        return self._static.served("index.html")

    async def _enter(self, request: Request) -> Response:
        body = await _body(request, {"token"})
        if not self.app.right(body["token"]):
            await asyncio.sleep(WRONG_S)
            return JSONResponse(
                {"error": "expected the token that 'equipoise watch' was given, got another"}, 401
            )
        response = JSONResponse({})
        self.app.let_in(request.headers, response)
        return response

    # ------------------------------------------------------------------------------- what is pushed

    async def _events(self, request: Request) -> Response:
        if self.viewers >= MOST_VIEWERS or self._closing:
            return JSONResponse({"error": f"expected at most {MOST_VIEWERS} viewers"}, 503)
        run, study = (request.query_params.get(name) for name in ("run", "study"))
        return StreamingResponse(
            self._stream(run, study),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    async def _stream(self, name: str | None, study: str | None) -> AsyncIterator[bytes]:
        self.viewers += 1
        try:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
            about = {
                "place": str(self.folder.place),
                "version": equipoise.__version__,
                "registry": self.versions is not None,
            }
            yield _event("hello", about)
            await self._do(self.folder.poll)
            seen = shown = -1
            marks: str | None = None
            silent = 0.0
            # a look that failed ends the streams, which come back
            while not self._closing and self._looking is not None:
                said = []
                if (revision := self.folder.revision) > seen:
                    news = await self._do(partial(self.folder.news, seen))
                    said.append(_event("runs", news | {"all": seen < 0}))
                    # the revision before the question, so that later changes are sent again
                    seen = revision
                if (
                    name is not None
                    and (run := self.folder.runs.get(name)) is not None
                    and run.revision > shown
                ):
                    shown = run.revision
                    said.append(_event("run", await self._do(run.told)))
                if (
                    study is not None
                    and (one := self.folder.studies.get(study)) is not None
                    and one.revision > shown
                ):
                    shown = one.revision
                    said.append(_event("study", await self._do(one.told)))
                if self.versions is not None and (now := self.versions.mark) != marks:
                    marks = now
                    said.append(_event("versions", {}))
                if said or silent >= ALIVE_S:
                    silent = 0.0
                    yield b"".join(said) or b": alive\n\n"
                silent += EVERY_S
                await self._looked.wait()
        finally:
            self.viewers -= 1

    async def _look(self) -> None:
        """Look at the files while there are viewers, and wake the streams."""
        try:
            while self.viewers and not self._closing:
                await self._do(self.folder.poll)
                if self.versions is not None:
                    await self._do(self.versions.poll)
                looked, self._looked = self._looked, asyncio.Event()
                looked.set()
                await asyncio.sleep(EVERY_S)
        finally:
            self._looking = None
            self._looked.set()
            self._looked = asyncio.Event()

    async def _do(self, what: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._hands, what)

    # ---------------------------------------------------------------------------- what is asked for

    async def _known(self, names: list[str]) -> list[Watched]:
        if self._looking is None or not all(name in self.folder.runs for name in names):
            await self._do(partial(self.folder.poll, scan=True))  # the last look may be old
        for name in names:
            if name not in self.folder.runs:
                raise Refused(
                    404, f"run: unknown {name[:200]!r}{hint(name[:200], list(self.folder.runs))}"
                )
        return [self.folder.runs[name] for name in names]

    async def _run(self, request: Request) -> Response:
        (run,) = await self._known([request.query_params.get("run", "")])
        return JSONResponse(await self._do(run.told))

    async def _curves(self, request: Request) -> Response:
        """The curves of some runs: all names of each run, and the points of the requested names."""
        runs = await self._known(request.query_params.getlist("run")[:MOST_CURVES])
        names, axis = request.query_params.getlist("y")[:16], request.query_params.get("x", "steps")

        def read(run: Watched) -> dict[str, Any]:
            curves = run.read_curves()
            return {"names": curves.names, "of": {name: curves.curve(name, axis) for name in names}}

        return JSONResponse({run.name: await self._do(partial(read, run)) for run in runs})

    async def _clip(self, request: Request) -> Response:
        """A video of a run that the page lists."""
        (run,) = await self._known([request.query_params.get("run", "")])
        name = request.query_params.get("name", "")
        if name not in run.clips:
            raise Refused(404, f"name: unknown clip {name[:200]!r}{hint(name[:200], [*run.clips])}")
        headers = {"Cache-Control": "no-store"}
        return FileResponse(run.path / VIDEOS / name, media_type="video/mp4", headers=headers)

    async def _settings(self, request: Request) -> Response:
        """The settings in which some runs differ, and the number of equal ones."""
        runs = await self._known(request.query_params.getlist("run")[:MOST_CURVES])
        keys = dict.fromkeys(key for run in runs for key in run.settings)
        found = {key: [run.settings.get(key) for run in runs] for key in keys}
        differ = {
            key: values for key, values in found.items() if len(set(values)) > 1 or len(runs) == 1
        }
        return JSONResponse(
            {
                "runs": [run.name for run in runs],
                "differ": differ,
                "alike": len(found) - len(differ),
            }
        )

    # ------------------------------------------------------------------------------------- versions

    async def _registry(self, _: Request) -> Response:
        if self.versions is None:
            raise Refused(404, "expected 'equipoise watch --registry DIR', got none")
        try:
            return JSONResponse(await self._do(self.versions.told))
        except (ValueError, OSError) as error:
            raise Refused(409, str(error)) from error

    async def _alias(self, request: Request) -> Response:
        return await self._move(
            request, {"policy", "alias", "version", "expect", "reason"}, "alias"
        )

    async def _rollback(self, request: Request) -> Response:
        return await self._move(request, {"policy", "expect", "reason"}, "rollback")

    async def _move(self, request: Request, keys: set[str], what: str) -> Response:
        """Move an alias for a caller with the token; the registry records it."""
        if self.versions is None:
            raise Refused(404, "expected 'equipoise watch --registry DIR', got none")
        if not self.app.says(request.headers):
            await asyncio.sleep(WRONG_S)
            raise Refused(
                401, "expected Authorization: Bearer TOKEN with the token of 'equipoise watch'"
            )
        body = await _body(request, keys)
        client = request.client.host if request.client else "?"
        try:
            # Not in the thread that reads files: a move hashes an artifact and may wait for
            # another's.
            to = await asyncio.to_thread(
                getattr(self.versions, what), where=f"by the page from {client}", **body
            )
        except (ValueError, OSError) as error:
            raise Refused(409, str(error)) from error
        return JSONResponse({"version": to})


async def _body(request: Request, keys: set[str]) -> dict[str, str]:
    """The texts of a request, exactly these keys."""
    body = await read_json(request)
    if (
        not isinstance(body, dict)
        or set(body) != keys
        or not all(isinstance(one, str) for one in body.values())
    ):
        raise Refused(400, f"body: expected a JSON object with the texts {', '.join(sorted(keys))}")
    return body


def _event(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encoded(data))


def palette() -> str:
    """The colours of the report, here with a choice of light or dark that a viewer can make."""
    lines = [
        f".s{i} {{ stroke: var(--s{i}); stroke-dasharray: {dash} }} .f{i} {{ fill: var(--s{i}) }}"
        for i, dash in enumerate(DASHES)
    ]
    return "\n".join(
        [
            colours.palette(),
            *lines,
            STUDY,
        ]
    )


def folder(place: Path, usual: Path | None = None) -> Folder:
    """The runs of a folder; ValueError without one, except for the ``usual`` folder, which the
    first run makes.
    """
    if not place.is_dir() and (place.exists() or place != usual):
        raise ValueError(
            f"{place}: expected a folder with runs, got {'a file' if place.exists() else 'none'}"
        )
    return Folder(place)
