"""``equipoise serve``: a policy of a registry behind HTTP and a unix socket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.access import read_token
from equipoise.cli.app import Debug, Trust, app
from equipoise.console.help import Sections, plain_errors

WHO, HOW, SAFE = "Who may ask", "Limits", "When the shield takes the place of the policy"
TOKEN = "EQUIPOISE_SERVE_TOKEN"
TRIAL_TIME, TRIAL_MEMORY = "20", "1073741824"  # s and bytes, as in serving/trial.py


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
def serve(
    registry: Annotated[Path, typer.Argument(metavar="REGISTRY", help="A folder that 'equipoise registry' made.")],
    policy: Annotated[str, typer.Option(metavar="NAME", help="The policy to serve.")],
    port: Annotated[str, typer.Option(metavar="N", help="TCP port; 0 takes a free one, none listens on no port.")] = "8000",
    uds: Annotated[Path | None, typer.Option(metavar="PATH", help="Listen on a unix socket too (framed msgpack).")] = None,
    decisions: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Where decisions and outcomes are kept (SQLite), or none. Default NAME.decisions."),
    ] = None,
    observations: Annotated[bool, typer.Option(help="Keep observations beside their decisions.")] = True,
    backend: Annotated[str, typer.Option(metavar="onnx|torch", help="torch: for policies that ONNX cannot say.")] = "onnx",
    trust: Trust = None,
    threads: Annotated[str, typer.Option(metavar="N", help="Threads of the model.")] = "1",
    batch: Annotated[str, typer.Option(metavar="N", help="Most rows that the model gets at once.")] = "64",
    seed: Annotated[str | None, typer.Option(metavar="N", help="Seed of exploring actions. Default: random.")] = None,
    host: Annotated[
        str, typer.Option(help="Address; any but this machine's own needs a token.", rich_help_panel=WHO)
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"File with the token that requests must carry, or set {TOKEN}.", rich_help_panel=WHO
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name by which callers call this server.", rich_help_panel=WHO)
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="An origin whose web pages may ask.", rich_help_panel=WHO)
    ] = None,
    session_timeout: Annotated[
        str, typer.Option(metavar="S", help="An episode without requests ends.", rich_help_panel=HOW)
    ] = "600",
    max_sessions: Annotated[str, typer.Option(metavar="N", help="Open episodes.", rich_help_panel=HOW)] = "10000",
    max_body: Annotated[str, typer.Option(metavar="BYTES", help="Of a request.", rich_help_panel=HOW)] = "8388608",
    max_connections: Annotated[
        str, typer.Option(metavar="N", help="Of HTTP, and of the socket.", rich_help_panel=HOW)
    ] = "1024",
    request_timeout: Annotated[str, typer.Option(metavar="S", help="For a request to arrive.", rich_help_panel=HOW)] = "10",
    drain: Annotated[str, typer.Option(metavar="S", help="For answers after SIGTERM.", rich_help_panel=HOW)] = "10",
    trial_time: Annotated[
        str, typer.Option(metavar="S", help="Processor time of a new version's trial.", rich_help_panel=HOW)
    ] = TRIAL_TIME,
    trial_memory: Annotated[
        str, typer.Option(metavar="BYTES", help="Memory of a new version's trial.", rich_help_panel=HOW)
    ] = TRIAL_MEMORY,
    deadline_ms: Annotated[
        str | None, typer.Option(metavar="MS", help="Latest answer, unless a request says another.", rich_help_panel=SAFE)
    ] = None,
    low: Annotated[
        str | None, typer.Option(metavar="JSON", help="Lowest action, a number or a list.", rich_help_panel=SAFE)
    ] = None,
    high: Annotated[str | None, typer.Option(metavar="JSON", help="Highest action.", rich_help_panel=SAFE)] = None,
    margin: Annotated[
        str | None,
        typer.Option(
            metavar="X",
            help="How far observations may be out of their quantiles, times the quantiles' range.",
            rich_help_panel=SAFE,
        ),
    ] = None,
    fallback: Annotated[
        str,
        typer.Option(
            metavar="best|safe",
            help="Take the policy's best action if it passes, or always the safe one.",
            rich_help_panel=SAFE,
        ),
    ] = "best",
    safe_action: Annotated[
        str | None, typer.Option(metavar="JSON", help="Default: mid of the space, or the first action.", rich_help_panel=SAFE)
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve the champion of a policy: /v1/act and /v1/outcome, /v2 (Open Inference Protocol), /readyz, /metrics, /openapi.json.

    The process needs no torch and no env. An alias that moves in the registry is followed without losing a request; an
    episode stays with its version. SIGTERM: answers what was asked, then ends.
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
        from equipoise.serving.shield import Rules

        rules = Rules(
            low=_json(low, "--low"), high=_json(high, "--high"), safe=_json(safe_action, "--safe-action"),
            margin=None if margin is None else _number(margin, "--margin"),
            fallback=_one_of(fallback, ("best", "safe"), "--fallback"),
        )  # fmt: skip
        settings = server.Settings(
            policy=policy, host=host, port=None if port == "none" else _count(port, "--port", least=0, most=65535), uds=uds,
            token=read_token(TOKEN, token_file, "--token-file"), hosts=tuple(allow_host or ()),
            origins=tuple(allow_origin or ()), backend=_one_of(backend, ("onnx", "torch"), "--backend"),
            threads=_count(threads, "--threads"),
            batch=_count(batch, "--batch", most=4096),
            seed=None if seed is None else _count(seed, "--seed", least=0, most=(1 << 62) - 1),
            decisions=None if decisions == "none" else Path(decisions or f"{policy}.decisions"), observations=observations,
            session_timeout_s=_number(session_timeout, "--session-timeout"),
            most_sessions=_count(max_sessions, "--max-sessions"), trusted=tuple(trust or ()),
            most_body=_count(max_body, "--max-body"), most_connections=_count(max_connections, "--max-connections"),
            request_s=_number(request_timeout, "--request-timeout"), drain_s=_number(drain, "--drain"),
            trial=limits(trial_time, trial_memory),
            deadline_ms=None if deadline_ms is None else _number(deadline_ms, "--deadline-ms"), rules=rules,
        )  # fmt: skip
        logs.to_stderr()
        server.serve(
            RegistryReader(registry), settings, lambda places: print(f"serving {policy} at {' and '.join(places)}", flush=True)
        )


def limits(time_s: str, memory: str) -> tuple[float, int]:
    """Seconds of processor time and bytes of memory that a trial may take."""
    return _number(time_s, "--trial-time"), _count(memory, "--trial-memory", least=1 << 20, most=1 << 50)


def _count(text: str, where: str, *, least: int = 1, most: int = 1 << 31) -> int:
    from equipoise.programs.settings import convert

    number: int = convert(text, int, where)
    if not least <= number <= most:
        raise ValueError(f"{where}: expected a number from {least} to {most}, got {number}")
    return number


def _number(text: str, where: str) -> float:
    from equipoise.programs.settings import convert

    number: float = convert(text, float, where)
    if not 0 < number < 1e9:
        raise ValueError(f"{where}: expected a number above 0, got {text}")
    return number


def _one_of(text: str, known: tuple[str, ...], where: str) -> Any:
    from equipoise.hints import hint

    if text not in known:
        raise ValueError(f"{where}: expected {' or '.join(known)}, got {text!r}{hint(text, known)}")
    return text


def _json(text: str | None, where: str) -> Any:
    from equipoise.files import parse_json

    return None if text is None else parse_json(text.encode(), where)
