"""``equipoise serve``: a policy of a registry, a run or an artifact behind HTTP and a unix socket,
or a language model behind HTTP.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.access import read_token
from equipoise.cli.app import Debug, Trust, app
from equipoise.console.help import Sections, plain_errors
from equipoise.console.options import field_options, read_fields
from equipoise.console.place import printable
from equipoise.facts import facts
from equipoise.files import is_url
from equipoise.serving.chat.settings import TextSettings
from equipoise.serving.settings import WHO, Rules, Settings

if TYPE_CHECKING:
    from equipoise.api.served import Served
    from equipoise.serving.chat.model import Model
    from equipoise.serving.versions import Source

TOKEN = "EQUIPOISE_SERVE_TOKEN"


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise serve runs/NAME    a first try, without a registry
  equipoise serve registry --policy cartpole
  equipoise serve registry --policy cartpole --uds /run/cartpole.sock
  equipoise serve registry --policy arm --deadline-ms 5 --safe-action '[0, 0]'
  equipoise serve registry --policy cartpole --host 0.0.0.0 --token-file token
  equipoise serve runs/NAME --context 1024    of a run on text: OpenAI's API
  equipoise serve model                       a folder with a language model
  equipoise serve adapter --base model        adapters alone, and their model

Ask it:
  curl -d '{"obs": [0, 0, 0, 0]}' http://127.0.0.1:8000/v1/act""",
)
@field_options(Settings, Rules, TextSettings)
def serve(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="REGISTRY|RUN|MODEL",
            help="Registry, run or artifact; or a language model's folder",
        ),
    ],
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
    """Serve the champion of a policy over HTTP, a run for a first try, or a language model.

    The paths are /v1/act, /v1/outcome, /v2 (Open Inference Protocol), /readyz, /metrics and
    /openapi.json. A run is exported into its folder 'served' at the first start. From a registry
    the process needs no torch and no env. If the champion changes in the registry, the server
    follows without losing a request, and an episode stays with its version. After SIGTERM it
    answers the open requests and ends.

    A language model answers at /v1/chat/completions, /v1/completions and /v1/models, as OpenAI's
    clients ask. Newer kept weights of its run are followed, and an answer is of one version.
    """
    with plain_errors("equipoise serve", debug):
        from equipoise.hints import install

        writes = _writes(folder, given.get("policy") or "")
        try:
            if not writes:
                import onnxruntime  # noqa: F401
            import prometheus_client  # noqa: F401
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401

            from equipoise.serving import logs, server
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"'equipoise serve' needs {error.name}, which is not installed: {install('serve')}"
            ) from error
        settings = Settings(
            **read_fields(Settings, given),
            rules=Rules(**read_fields(Rules, given)),
            uds=uds,
            trusted=tuple(trust or ()),
            token=read_token(TOKEN, token_file, "--token-file"),
        )
        server.guard_of(settings)
        logs.to_stderr()
        text = TextSettings(**read_fields(TextSettings, given))
        if writes:
            _serve_text(Path(folder).expanduser(), settings, text, decisions)
            return
        if odd := _changed(text):
            raise ValueError(
                f"{odd}: must be left out for a policy, got a value; {folder} is no language model"
            )
        source, policy, usual = _source(folder, settings)
        file = None if decisions == "none" else Path(decisions or usual)
        server.serve(
            source,
            replace(settings, policy=policy, decisions=file),
            lambda places: print(f"serving {policy} at {' and '.join(places)}", flush=True),
        )


def _writes(folder: str, policy: str) -> bool:
    """Return whether a folder is a run on text, a language model's files, or a registry in which
    ``policy`` is a language model.
    """
    from equipoise.files import read_json
    from equipoise.registry import RegistryReader
    from equipoise.registry.artifacts import KINDS, LANGUAGE, MANIFEST
    from equipoise.registry.reading import ABOUT

    if folder.startswith("registry:"):
        raise ValueError(
            f"{folder}: must be a registry's folder (equipoise serve DIR --policy NAME), a run or "
            "a model's folder, got a name"
        )
    place = Path(folder).expanduser()
    if policy and (place / ABOUT).is_file():
        registry = RegistryReader(place)
        newest = registry.versions(policy)[:1]
        return any(registry.kind(one) == KINDS[LANGUAGE] for one in newest)
    if (place / "run.json").is_file():
        run = read_json(place / "run.json")
        program = run.get("program") if isinstance(run, dict) else None
        source = program.get("source") if isinstance(program, dict) else None
        return isinstance(source, dict) and "task" in source
    if (place / "adapter_config.json").is_file() or (place / LANGUAGE).is_file():
        return True
    return (place / "config.json").is_file() and not (place / MANIFEST).is_file()


def _changed(settings: Rules | TextSettings) -> str:
    """Return the option of the first setting that is not its default; "" if there is none."""
    for fact in facts(type(settings)).values():
        if fact.flag is not None and asdict(settings)[fact.name] != fact.default:
            return f"--{fact.flag.name or fact.name.replace('_', '-')}"
    return ""


def _serve_text(place: Path, settings: Settings, text: TextSettings, decisions: str | None) -> None:
    """Serve a language model."""
    from equipoise.registry import RegistryReader
    from equipoise.registry.reading import ABOUT

    registered = (place / ABOUT).is_file()
    given = {"--uds": settings.uds, "--policy": not registered and settings.policy}
    odd = [name for name, value in given.items() if value] + [_changed(settings.rules)]
    if odd[0]:
        raise ValueError(f"{odd[0]}: must be left out for a language model, got one")
    usual = f"{settings.policy}.decisions" if registered else "none"
    file = None if (decisions or usual) == "none" else Path(decisions or usual)
    settings = replace(settings, decisions=file)
    print(f"loading {printable(str(place))} ...", file=sys.stderr)
    from equipoise.api.served_text import of_model, of_run
    from equipoise.api.text_versions import Registered, of_adapter
    from equipoise.serving.chat.server import serve as serve_text

    model: Model | Registered
    adapted = (place / "adapter_config.json").is_file()
    of_a_run = (place / "run.json").is_file()
    if text.base and not (registered or adapted or of_a_run):
        raise ValueError(f"--base: must be left out without adapters, got {text.base!r}")
    if registered and (text.version or text.name):
        odd_one = "--version" if text.version else "--model-name"
        raise ValueError(
            f"{odd_one}: must be left out for a registry, got a value; requests name a version, "
            f"such as {settings.policy}@candidate"
        )
    if registered:
        model = Registered(RegistryReader(place), settings.policy, text.base)
    elif of_a_run:
        model = of_run(place, text.version, text.name, settings.trusted, text.base)
    elif text.version:
        raise ValueError(f"--version: must be left out for a model's folder, got {text.version!r}")
    elif adapted:
        model = of_adapter(place, text.name, text.base)
    else:
        model = of_model(place, text.name)
    serve_text(
        model,
        settings,
        text,
        lambda url, one: print(f"serving {one.name} ({one.version}) at {url}/v1", flush=True),
    )


def _source(folder: str, settings: Settings) -> tuple[Source, str, Path]:
    """(Source of versions, name of the policy, default file of decisions) of a folder."""
    from equipoise.registry import RegistryReader
    from equipoise.registry.artifacts import MANIFEST, REWARD, SPEC
    from equipoise.registry.reading import ABOUT
    from equipoise.serving.alone import Alone

    place, policy = Path(folder).expanduser(), settings.policy or None
    if (place / ABOUT).is_file():
        registry = RegistryReader(place)
        if policy is None:
            names = registry.names()
            raise ValueError(
                f"--policy: must name a policy of {place}, got none; "
                + (f"try --policy {' or '.join(names)}" if names else "'registry add' adds one")
            )
        if any(registry.kind(one) == "reward model" for one in registry.versions(policy)[:1]):
            raise ValueError(
                f"--policy: must name a policy of {place}, got the reward model {policy!r}; "
                f"'equipoise train ENV --reward registry:{place}/{policy}' learns from it"
            )
        return registry, policy, Path(f"{policy}.decisions")
    from equipoise.record.paths import RUN, near_runs

    if (place / RUN).is_file():
        from equipoise.api.served import of_run

        shown = printable(folder)
        found = of_run(
            place,
            policy,
            graph=settings.backend == "onnx",
            trust=settings.trusted,
            begins=lambda name: print(f"exporting {name} of {shown} ...", file=sys.stderr),
        )
        kept = found.artifact.parent / f"{found.policy}.decisions"
        print(_told(folder, found), flush=True)
        if found.note:
            print(
                f"observations were made up, since there is no env to play: {found.note}",
                file=sys.stderr,
            )
    elif (place / REWARD).is_file():
        raise ValueError(
            f"{folder}: must be a policy, got a reward model; 'equipoise train ENV --reward "
            f"run:{folder}' learns from it"
        )
    elif (place / MANIFEST).is_file() and (place / SPEC).is_file():
        from equipoise.api.served import of_artifact

        found = of_artifact(place, policy)
        kept = Path(f"{found.policy}.decisions")
    else:
        got = (
            "a URL; try 'equipoise export URL DIR'"
            if is_url(folder)
            else f"{'another folder' if place.is_dir() else 'a file'}{near_runs(place)}"
            if place.exists()
            else f"nothing; 'equipoise registry add' makes a registry{near_runs(place)}"
        )
        raise ValueError(f"{folder}: must be a registry, a run or an artifact, got {got}")
    return Alone(found.artifact, found.version), found.policy, kept


def _word(path: str) -> str:
    """A path as a word of a shell's command, on one line: no option, and no control characters."""
    path = f"./{path}" if path.startswith("-") else path
    if path.isprintable():
        return shlex.quote(path)
    return "$'" + "".join(_escaped(c) for c in path) + "'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def _told(run: str, found: Served) -> str:
    """The line about the artifact of a run: its folder, and the commands for real use."""
    to = _word(str(found.artifact))
    which = f"{found.policy} of {printable(run)} (step {found.step:,})"
    done = f"exported {which} to" if found.fresh else f"{which} is in"
    again = "; the run goes on, so another start may have newer weights" if found.goes_on else ""
    return (
        f"{done} {to}{again}. No registry is kept, so this version stays until the end. "
        "For real use: equipoise registry add "
        f"{to} {found.policy} --alias champion && equipoise serve registry --policy {found.policy}"
    )
