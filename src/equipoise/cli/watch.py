"""``equipoise watch``: one live page of runs and versions."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from equipoise.access import is_local, read_token
from equipoise.cli.app import Debug, app
from equipoise.cli.runs import PLACE
from equipoise.console.help import Sections, plain_errors

PORT = 8420
NICE = 5  # runs on the same machine go first


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise watch
  equipoise watch runs/five --port 9000
  equipoise watch --registry policies
  EQUIPOISE_WATCH_TOKEN=... equipoise watch --host 0.0.0.0""",
)
def watch(
    place: Annotated[
        Path, typer.Argument(metavar="[RUNS]", help="Folder with runs, or one run")
    ] = PLACE,
    registry: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Registry whose versions the page shows and moves"),
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 takes a free one")
    ] = PORT,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address to listen on; other machines need a token"),
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token; else $EQUIPOISE_WATCH_TOKEN or random",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Show runs and versions on a live page in a browser; Ctrl-C ends it.

    The page reads files only. A viewer on another machine needs the token, and so does a move of a
    version.
    """
    with plain_errors("equipoise watch", debug):
        from equipoise.hints import install

        try:
            from equipoise.watching.page import Page, folder
            from equipoise.watching.server import Server
        except ImportError as error:
            raise ImportError(
                f"a page needs starlette and uvicorn: {install('serve')} ({error})"
            ) from error
        from equipoise.listening import listen
        from equipoise.watching.guard import TOKEN, check_host
        from equipoise.watching.versions import Versions

        given = read_token(TOKEN, token_file, "--token-file")
        check_host(host, given)
        word = given or secrets.token_urlsafe(16)
        versions = None if registry is None else Versions(registry)
        page = Page(
            folder(place, PLACE), versions, host=host, token=word, closed=not is_local(host)
        )
        listener = listen(host, port)
        os.nice(NICE)
        at = f"[{host}]" if ":" in host else host
        print(
            f"watching {place} at http://{at}:{listener.getsockname()[1]}/ (Ctrl-C ends it)",
            flush=True,
        )
        if registry is not None and given is None:
            print(f"token, to move a version: {word}", flush=True)
        Server(page).run([listener])
