"""The application: the page of annotators, the page of the owner, and their requests."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from equipoise import feedback
from equipoise.access import same
from equipoise.feedback import CHOICES, DiskFull, Question, Store
from equipoise.feedback.items import HASH
from equipoise.labeling.clips import packed
from equipoise.labeling.desk import Desk
from equipoise.labeling.progress import Progress
from equipoise.pages.colours import palette
from equipoise.pages.guard import Guard, cookie_name, read_cookie
from equipoise.pages.responses import JSONResponse, Refused, read_json, refused
from equipoise.pages.static_files import StaticFiles
from equipoise.schema import MOST, Number, Schema, Text, check

T = TypeVar("T")
TOKEN = "EQUIPOISE_LABEL_TOKEN"  # the environment variable with the owner's token
COOKIE, OWNER = "equipoise_label", "equipoise_label_owner"
COOKIE_S = 30 * 86_400  # that a browser keeps a cookie
WRONG_S = 0.5  # that a wrong token waits
LONGEST_S = 7 * 86_400.0  # of an answer, as in the store
NO_LINK = "This link does not work here; ask for a new one."
ENTRY = {"token": Text(4096)}
ANSWER = {
    "lease": Number(1, MOST, whole=True),
    "choice": Text(among=CHOICES),
    "latency_s": Number(0, LONGEST_S),
}
UNDO = {"row": Number(1, MOST, whole=True)}


class Page:
    """The state behind both pages. One thread uses the store, another one reads clips."""

    def __init__(self, store: Store, *, host: str = "127.0.0.1", token: str) -> None:
        """``token``: of the owner, who sees the progress."""
        self._store, self._token = store, token
        self._desk, self._progress = Desk(store), Progress(store)
        self._writer = ThreadPoolExecutor(1, "store")
        self._reader = ThreadPoolExecutor(1, "clips")
        self._printed = set[str]()  # broken items whose reason was printed
        static = StaticFiles("equipoise.labeling", palette())

        async def labelling(_: Request) -> Response:
            return static.served("index.html")

        async def owner(_: Request) -> Response:
            return static.served("owner.html")

        routes = [
            Route("/", labelling),
            Route("/owner", owner),
            Route("/static/{name}", static.serve),
            Route("/api/enter", self._enter, methods=["POST"]),
            Route("/api/question", self._question),
            Route("/api/answer", self._answer, methods=["POST"]),
            Route("/api/undo", self._undo, methods=["POST"]),
            Route("/api/clip/{hash}", self._clip),
            Route("/api/owner", self._enter_owner, methods=["POST"]),
            Route("/api/progress", self._told),
        ]
        self.app = Entrances(
            Starlette(routes=routes, exception_handlers={Refused: refused}), host=host
        )

    def close(self) -> None:
        """End the threads; the store stays open."""
        self._reader.shutdown()
        self._writer.shutdown()
        self._desk.close()

    # ----------------------------------------------------------------------------------- annotators

    async def _enter(self, request: Request) -> Response:
        token = (await _body(request, ENTRY))["token"]
        if await self._do(partial(self._store.annotator_of, token)) is None:
            await asyncio.sleep(WRONG_S)
            raise Refused(401, NO_LINK)
        return _with_cookie(request, COOKIE, token)

    def _annotator(self, request: Request) -> str:
        """Return the name of the annotator who sent a request; in the thread of the store."""
        token = read_cookie(request.headers, COOKIE)
        name = None if token is None else self._store.annotator_of(token)
        if name is None:
            raise Refused(401, NO_LINK)
        return name

    async def _question(self, request: Request) -> Response:
        return JSONResponse(await self._do(partial(self._ask, request)), headers=NO_STORE)

    def _ask(self, request: Request) -> dict[str, object]:
        name = self._annotator(request)
        asked = self._desk.ask(name)
        own, open_ = self._desk.counts(name)
        token = read_cookie(request.headers, COOKIE) or ""
        return {
            "name": name,
            # names this annotator of this store in what the browser keeps
            "id": hashlib.sha256(f"label {token}".encode()).hexdigest()[:16],
            "question": None
            if asked is None
            else {"lease": asked.lease} | self._shown(asked.question),
            "last": self._desk.last_row(name),
            "answered": own,
            "open": open_,
        }

    def _shown(self, question: Question) -> dict[str, object]:
        """A question without anything by which an annotator could tell one policy from another."""
        query = question.query
        item = self._text if query.kind == "text" else _clip_item
        return {
            "kind": query.kind,
            "prompt": None if query.prompt is None else self._text(query.prompt),
            "left": item(question.left),
            "right": item(question.right),
        }

    def _text(self, hash_: str) -> dict[str, object]:
        try:
            return {"text": self._store.text(hash_)}
        except ValueError as error:
            return {"problem": self._broken("text", hash_, error)}

    def _broken(self, kind: str, hash_: str, error: Exception) -> str:
        """Return what an annotator reads in place of an item. The reason, which has a path of this
        machine, is printed once for the owner.
        """
        if hash_ not in self._printed:
            self._printed.add(hash_)
            print(f"equipoise label: {error}", file=sys.stderr, flush=True)
        return f"This {kind} is damaged or has nothing to show; answer Cannot tell."

    async def _answer(self, request: Request) -> Response:
        body = await _body(request, ANSWER)

        def answer() -> int:
            name = self._annotator(request)
            return self._desk.answer(name, body["lease"], body["choice"], float(body["latency_s"]))

        return JSONResponse({"row": await self._do(answer)})

    async def _undo(self, request: Request) -> Response:
        row = (await _body(request, UNDO))["row"]
        await self._do(lambda: self._desk.undo(self._annotator(request), row))
        return JSONResponse({"undone": row})

    async def _clip(self, request: Request) -> Response:
        await self._do(partial(self._annotator, request))
        hash_ = request.path_params["hash"]
        if not HASH.fullmatch(hash_):
            raise Refused(404, "clip: must be a SHA-256 in 64 hexadecimal digits")
        zipped = "gzip" in request.headers.get("accept-encoding", "")

        def read() -> bytes:
            data = packed(self._store.segment(hash_))
            return gzip.compress(data, 1, mtime=0) if zipped else data

        try:
            data = await asyncio.get_running_loop().run_in_executor(self._reader, read)
        except (ValueError, OSError) as error:
            raise Refused(422, self._broken("clip", hash_, error)) from error
        headers = {"Cache-Control": "private, max-age=86400, immutable"}
        if zipped:
            headers["Content-Encoding"] = "gzip"
        return Response(data, media_type="application/octet-stream", headers=headers)

    # ------------------------------------------------------------------------------------ the owner

    async def _enter_owner(self, request: Request) -> Response:
        token = (await _body(request, ENTRY))["token"]
        if not same(token, self._token):
            await asyncio.sleep(WRONG_S)
            raise Refused(401, NO_LINK)
        return _with_cookie(request, OWNER, token)

    async def _told(self, request: Request) -> Response:
        if not same(read_cookie(request.headers, OWNER) or "", self._token):
            raise Refused(401, NO_LINK)
        await self._do(self._progress.read)
        return JSONResponse(await asyncio.to_thread(self._progress.told), headers=NO_STORE)

    async def _do(self, what: Callable[[], T]) -> T:
        """Do something with the store in its thread; its errors become refusals."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._writer, what)
        except feedback.Refused as error:
            raise Refused(409, str(error)) from error
        except DiskFull as error:
            raise Refused(507, str(error)) from error
        except (OSError, sqlite3.Error) as error:
            raise Refused(503, str(error)) from error
        except ValueError as error:
            raise Refused(500, str(error)) from error


class Entrances(Guard):
    """Links on other pages may open both pages; neither has data of the store."""

    entries = ("/", "/owner")


NO_STORE = {"Cache-Control": "no-store"}


def _clip_item(hash_: str) -> dict[str, object]:
    return {"clip": hash_}


def _with_cookie(request: Request, cookie: str, token: str) -> Response:
    response = JSONResponse({})
    name = cookie_name(request.headers, cookie)
    response.set_cookie(name, token, max_age=COOKIE_S, httponly=True, samesite="strict", path="/")
    return response


async def _body(request: Request, schema: Schema) -> dict[str, Any]:
    try:
        return dict(check(await read_json(request), schema, "body"))
    except ValueError as error:
        raise Refused(400, str(error)) from None
