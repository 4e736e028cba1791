"""``equipoise label``: a page on which people compare the clips or texts of a store."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors

PORT = 8421


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise label preferences
  equipoise label preferences --annotator ann --annotator ben --host 0.0.0.0""",
)
def label(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Folder of the store")],
    annotator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Person who gets a link, once each (default: you)"),
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 takes a free one")
    ] = PORT,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with your token; else $EQUIPOISE_LABEL_TOKEN or random",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve a page on which people compare two clips or two texts; Ctrl-C ends it.

    Each new annotator gets a link, which is printed once. Your own link shows the progress and the
    agreement.
    """
    with plain_errors("equipoise label", debug):
        from equipoise.hints import install

        try:
            from equipoise import web
            from equipoise.labeling import links
            from equipoise.labeling.page import TOKEN, Page
        except ImportError as error:
            raise ImportError(
                f"a page needs starlette and uvicorn: {install('serve')} ({error})"
            ) from error
        from equipoise.access import read_token
        from equipoise.feedback import Store
        from equipoise.listening import listen

        token = read_token(TOKEN, token_file, "--token-file") or secrets.token_urlsafe(16)
        with Store.open(store) as opened:
            listener = listen(host, port)
            at = links.address(host, listener.getsockname()[1])
            print(f"labelling {store} at {at} (Ctrl-C ends it)")
            for line in links.lines(opened, at, annotator or []):
                print(line)
            print(f"progress: {at}owner#token={token}", flush=True)
            page = Page(opened, host=host, token=token)
            try:
                web.Server(web.config(page.app)).run([listener])
            finally:
                page.close()
