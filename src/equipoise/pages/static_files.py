"""The files of a page, in memory: of its room, and of all pages."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from equipoise.hints import hint
from equipoise.pages.responses import JSONResponse

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class StaticFiles:
    """Files by name, each with its ETag."""

    def __init__(self, package: str, palette: str) -> None:
        """``package``: the room whose folder ``static`` has the files of the page; ``palette``: the
        content of palette.css.
        """
        found = {"palette.css": palette.encode()}
        for place in ("equipoise.pages", package):
            for file in (files(place) / "static").iterdir():
                if file.name.rpartition(".")[2] in TYPES:
                    found[file.name] = file.read_bytes()
        self._files = {
            name: (data, f'"{hashlib.sha256(data).hexdigest()[:20]}"')
            for name, data in found.items()
        }

    async def serve(self, request: Request) -> Response:
        """Serve the file that the route's ``name`` names."""
        return self.served(request.path_params["name"], request.headers.get("if-none-match"))

    def served(self, name: str, known: str | None = None) -> Response:
        if name not in self._files:
            return JSONResponse({"error": f"no such file{hint(name, list(self._files))}"}, 404)
        data, mark = self._files[name]
        headers = {"ETag": mark, "Cache-Control": "no-cache"}
        if known == mark:
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=TYPES[name.rpartition(".")[2]])
