"""``equipoise serve``: a policy of a registry behind HTTP and a unix socket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.access import read_token
from equipoise.cli.app import Debug, Trust, app
from equipoise.console.help import Sections, plain_errors
from equipoise.console.options import field_options, read_fields
from equipoise.serving.settings import WHO, Rules, Settings

TOKEN = "EQUIPOISE_SERVE_TOKEN"


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise serve registry --policy cartpole
  equipoise serve registry --policy cartpole --uds /run/cartpole.sock
  equipoise serve registry --policy arm --deadline-ms 5 --safe-action '[0, 0]'
  equipoise serve registry --policy cartpole --host 0.0.0.0 --token-file token

Ask it:
  curl -d '{"obs": [0, 0, 0, 0]}' http://127.0.0.1:8000/v1/act""",
)
@field_options(Settings, Rules)
def serve(
    registry: Annotated[Path, typer.Argument(metavar="REGISTRY", help="Folder of the registry")],
    uds: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Unix socket to listen on too (framed msgpack)"),
    ] = None,
    decisions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="SQLite file of decisions, or none (default: NAME.decisions)",
        ),
    ] = None,
    trust: Trust = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"File with the token; else ${TOKEN} has it",
            rich_help_panel=WHO,
        ),
    ] = None,
    debug: Debug = False,
    **given: Any,
) -> None:
    """Serve the champion of a policy over HTTP.

    The paths are /v1/act, /v1/outcome, /v2 (Open Inference Protocol), /readyz, /metrics and
    /openapi.json. The process needs no torch and no env. If the champion changes in the registry,
    the server follows without losing a request, and an episode stays with its version. After
    SIGTERM it answers the open requests and ends.
    """
    with plain_errors("equipoise serve", debug):
        from equipoise.hints import install

        try:
            import onnxruntime  # noqa: F401
            import prometheus_client  # noqa: F401
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401

            from equipoise.serving import logs, server
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"'equipoise serve' needs {error.name}, which is not installed: {install('serve')}"
            ) from error
        from equipoise.registry import RegistryReader

        policy = given["policy"]
        settings = Settings(
            **read_fields(Settings, given),
            rules=Rules(**read_fields(Rules, given)),
            uds=uds,
            trusted=tuple(trust or ()),
            token=read_token(TOKEN, token_file, "--token-file"),
            decisions=None if decisions == "none" else Path(decisions or f"{policy}.decisions"),
        )
        logs.to_stderr()
        server.serve(
            RegistryReader(registry),
            settings,
            lambda places: print(f"serving {policy} at {' and '.join(places)}", flush=True),
        )
