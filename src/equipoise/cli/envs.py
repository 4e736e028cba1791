"""``equipoise envs``: the envs that are installed here, by the ids that 'train' takes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from typing import Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors
from equipoise.console.place import say

NEEDS_JAX = ("phys2d/", "tabular/")  # ids of Gymnasium's
UNKNOWN = "; see equipoise envs, and --import MODULE for ids that a module of yours registers"
SHOWN = 6  # ids of a group, where all groups are shown


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise envs                 the packages, and some ids of each
  equipoise envs cheetah         all ids with that text
  equipoise envs ALE/ --all      older versions, too
  equipoise envs jax:brax        ids of a library of JAX""",
)
def envs(
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="Text that the listed ids contain")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Include older versions of the ids")] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Module that registers further ids",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """List the envs that are installed here, by the ids that 'train' takes."""
    with plain_errors("equipoise envs", debug):
        groups = {name: _newest(ids, every) for name, ids in _installed(modules or ()).items()}
        if text is not None:
            wanted = text.lower()
            if "jax" in wanted:
                groups["jax"] = _of_jax()
            found = [
                env_id for ids in groups.values() for env_id in ids if wanted in env_id.lower()
            ]
            if not found:
                from equipoise.envs.foreign_ids import meant_by

                raise ValueError(
                    f"no env with {text!r} in its id is installed{meant_by(text) or UNKNOWN}"
                )
            print("\n".join(found))
            return
        for name, ids in groups.items():
            shown = ", ".join(ids[:SHOWN]) + (", ..." if len(ids) > SHOWN else "")
            line = f"{name} ({len(ids)}): {shown}"
            say(line, indent="    ")
        say("equipoise envs TEXT lists all ids with a text; module:callable is an env of your own")


def _installed(modules: Iterable[str]) -> dict[str, list[str]]:
    """Ids by the package that they come from."""
    import importlib

    import gymnasium

    from equipoise.device_envs.names import NAMES
    from equipoise.envs.hints import importable
    from equipoise.envs.making import FAMILIES, PETTINGZOO
    from equipoise.types.sources import DEVICE

    prefixes: dict[str, tuple[str, ...]] = {"equipoise": ("equipoise/",)}
    prefixes |= {family: begins for begins, family, _ in FAMILIES}
    for family in prefixes.keys() - {"equipoise"}:
        # What is not installed is not listed; ale_py greets on stderr.
        with contextlib.suppress(ImportError), contextlib.redirect_stderr(io.StringIO()):
            importlib.import_module(family)
    groups: dict[str, list[str]] = {"gymnasium": [], **{name: [] for name in prefixes}}
    jax = importable("jax")
    for env_id, spec in gymnasium.registry.items():
        group = next(
            (name for name, begins in prefixes.items() if env_id.startswith(begins)), "gymnasium"
        )
        # Packages register more, such as PongNoFrameskip-v4, which 'train' knows by another name.
        if env_id.startswith(NEEDS_JAX) and not jax:
            continue
        if group != "gymnasium" or not str(spec.entry_point).startswith(tuple(prefixes)):
            groups[group].append(env_id)
    for module in modules:
        before = set(gymnasium.registry)
        importlib.import_module(module)
        groups[module] = [
            f"{module}:{env_id}" for env_id in sorted(set(gymnasium.registry) - before)
        ]
    with contextlib.suppress(ImportError):
        from pettingzoo import parallel_registry

        groups["pettingzoo"] = [f"{PETTINGZOO}{env_id}" for env_id in sorted(parallel_registry)]
    groups["device"] = [f"{DEVICE}{name}" for name in sorted(NAMES)]
    return {name: ids for name, ids in groups.items() if ids}


def _of_jax() -> list[str]:
    """Ids of JAX's libraries, which take seconds to import."""
    from equipoise.envs.hints import explained

    with explained("jax:"):
        from equipoise.device_envs.jax_libraries import known

        return known()


def _newest(ids: Iterable[str], every: bool) -> list[str]:
    """The newest version of each id; all of them if ``every``."""
    from equipoise.envs.hints import version, versionless

    newest: dict[str, str] = {}
    for env_id in ids:
        key = env_id if every else versionless(env_id)
        if key not in newest or version(env_id) > version(newest[key]):
            newest[key] = env_id
    return sorted(newest.values())
