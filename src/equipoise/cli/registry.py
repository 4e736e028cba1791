"""``equipoise registry``: versions of policies in a folder, their aliases, and what was done to
them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, fail, plain_errors
from equipoise.console.mistakes import OneLineErrors
from equipoise.console.options import field_options, read_fields
from equipoise.console.place import printable
from equipoise.serving.settings import TRIAL, Settings

if TYPE_CHECKING:
    from equipoise.registry import Registry

PLACE = Path("registry")
SHOWN = 10  # versions and records that 'show' prints, the newest ones

registry = typer.Typer(
    name="registry",
    cls=OneLineErrors,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Keep versions of policies, with aliases.",
    epilog="""Examples:
  equipoise registry add artifact cartpole --alias champion
  equipoise registry show cartpole
  equipoise registry rollback cartpole --reason "falls on slopes"
  equipoise serve registry --policy cartpole""",
)
app.add_typer(registry)


def _names(context: typer.Context, incomplete: str) -> list[str]:
    """The policies that begin with what was typed, for a shell."""
    from equipoise.registry import RegistryReader

    try:
        return [
            name
            for name in RegistryReader(context.params.get("at") or PLACE).names()
            if name.startswith(incomplete)
        ]
    except (ValueError, OSError):
        return []


def _versions(context: typer.Context, incomplete: str) -> list[str]:
    """The aliases and the newest versions of the policy that was typed, for a shell."""
    from equipoise.registry import RegistryReader

    try:
        reader, name = RegistryReader(context.params.get("at") or PLACE), context.params["name"]
        known = [*reader.aliases(name), *(version[:12] for version in reader.versions(name))]
        return [one for one in known if one.startswith(incomplete)]
    except (ValueError, OSError, KeyError):
        return []


def _aliases(incomplete: str) -> list[str]:
    return [alias for alias in ("champion", "candidate", "shadow") if alias.startswith(incomplete)]


At = Annotated[
    Path,
    typer.Option(
        "--registry",
        metavar="DIR",
        help="Folder of the registry (default: registry)",
        show_default=False,
    ),
]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the policy or model", autocompletion=_names)
]
Which = Annotated[
    str,
    typer.Argument(
        metavar="VERSION",
        help="Alias, or first digits of a version",
        autocompletion=_versions,
    ),
]
Expect = Annotated[
    str | None,
    typer.Option(
        metavar="VERSION",
        help="Version that the alias must name now, or none",
    ),
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Reason, for the audit")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]


@registry.command(
    cls=Sections,
    epilog="""Examples:
  equipoise export runs/NAME artifact
  equipoise registry add artifact cartpole
  equipoise registry add runs/NAME speed-reward
  equipoise registry add runs/NAME writer    the model of a run on text
  equipoise registry add adapter writer --base model
  equipoise registry add artifact cartpole --alias champion --reason "475 in evaluation\"""",
)
@field_options(Settings, only=TRIAL)
def add(
    artifact: Annotated[
        Path,
        typer.Argument(metavar="ARTIFACT", help="Export, language model, or run with a model"),
    ],
    name: Name,
    alias: Annotated[
        str | None,
        typer.Option(
            metavar="ALIAS", help="Alias to move to the new version", autocompletion=_aliases
        ),
    ] = None,
    base: Annotated[
        str, typer.Option(metavar="DIR", help="Folder of the model that adapters belong to")
    ] = "",
    reason: Reason = "",
    as_json: Json = False,
    at: At = PLACE,
    debug: Debug = False,
    **given: Any,
) -> None:
    """Add an artifact to the registry, as a version of NAME.

    A run of --reward preferences or of reward_model is its newest reward model. A run on text is
    its language model, or its adapters alone, which name their base by its hash. A missing registry
    is created. The version is a hash of the whole artifact. An artifact that the
    registry already has is not copied again. A graph is first tried on recorded observations, in a
    process of its own.
    """
    with plain_errors("equipoise registry add", debug):
        from equipoise.registry import Registry, check_alias
        from equipoise.serving.trial import Trial

        if alias is not None:
            check_alias(alias)
        limits = read_fields(Settings, given)
        to = Registry(at, create=True)
        trial = Trial(cpu_s=limits["trial_s"], memory=limits["trial_memory"])
        try:
            with _gathered(artifact, to, base) as folder:
                version = to.add(folder, name, reason=reason, trial=trial)
        finally:
            trial.close()
        if alias is not None:
            to.alias(name, alias, version, reason=reason)
        if as_json:
            _print(
                {"policy": name, "version": version, "aliases": to.state(name).aliases_of(version)}
            )
        else:
            print(f"{name} {version[:12]}: added" + (f", and {alias} now" if alias else ""))


@contextmanager
def _gathered(artifact: Path, to: Registry, base: str) -> Iterator[Path]:
    """Yield the folder of an artifact: the given one, or one that is made of a run or a model."""
    from equipoise.record.paths import RUN
    from equipoise.registry.artifacts import LANGUAGE, MANIFEST

    artifact = artifact.expanduser()
    model = any((artifact / one).is_file() for one in (RUN, "config.json", "adapter_config.json"))
    if (artifact / LANGUAGE).is_file() or (model and not (artifact / MANIFEST).is_file()):
        from equipoise.api.text_versions import gathered
        from equipoise.api.writing import reward_model

        with gathered(artifact, to, base=base) as folder:
            yield reward_model(artifact) if folder is None else folder
        return
    if base:
        raise ValueError(f"--base: must be left out without adapters, got {base!r}")
    yield artifact


@registry.command(
    "list",
    cls=Sections,
    epilog="""Examples:
  equipoise registry list
  equipoise registry list --registry /mnt/policies --json""",
)
def list_(as_json: Json = False, at: At = PLACE, debug: Debug = False) -> None:
    """List the policies and the reward models, their versions and their aliases."""
    with plain_errors("equipoise registry list", debug):
        from equipoise.console.columns import columns
        from equipoise.console.place import width_of
        from equipoise.registry import ALIASES, RegistryReader

        found = RegistryReader(at).list()
        if as_json:
            _print(found)
            return
        body = [
            (
                name,
                str(len(about["versions"])),
                *(_short(about["aliases"].get(alias)) for alias in ALIASES),
                next((one["kind"] for one in about["versions"]), "") or "-",
            )
            for name, about in found.items()
        ]
        head = ("name", "versions", *ALIASES, "kind")
        print(
            "\n".join(columns(head, body, left=1, width=width_of(sys.stdout)))
            if body
            else "no policies"
        )


@registry.command(
    cls=Sections,
    epilog="""Examples:
  equipoise registry show cartpole
  equipoise registry show cartpole champion
  equipoise registry show cartpole 3f2a91 --json""",
)
def show(
    name: Name,
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="[VERSION]",
            help="Alias, or first digits of a version",
            autocompletion=_versions,
        ),
    ] = None,
    as_json: Json = False,
    at: At = PLACE,
    debug: Debug = False,
) -> None:
    """Show a policy, or one version of it.

    For a policy, print aliases, the newest versions and the last records; --json has all versions
    and the whole audit. For a version, print lineage, files and aliases.
    """
    with plain_errors("equipoise registry show", debug):
        from equipoise.registry import RegistryReader

        reader = RegistryReader(at)
        if which is not None:
            said = reader.show(name, which)
            _print(said) if as_json else _print_lines(_of_version(said))
            return
        about = {
            "policy": name,
            "aliases": reader.aliases(name),
            "revision": reader.revision(name),
        } | {
            "versions": reader.versions(name),
            "conflicts": reader.conflicts(name),
            "audit": reader.audit(name),
        }
        _print(about) if as_json else _print_lines(_of_policy(about))


@registry.command(
    cls=Sections,
    epilog="""Examples:
  equipoise registry alias cartpole champion 3f2a91
  equipoise registry alias cartpole champion candidate --expect 77b0c2
  equipoise registry alias cartpole shadow none""",
)
def alias(
    name: Name,
    alias: Annotated[
        str,
        typer.Argument(
            metavar="ALIAS", help="Alias: champion, candidate or shadow", autocompletion=_aliases
        ),
    ],
    which: Annotated[
        str,
        typer.Argument(
            metavar="VERSION",
            help="Alias or first digits of a version; none removes the alias",
            autocompletion=_versions,
        ),
    ],
    expect: Expect = None,
    reason: Reason = "",
    at: At = PLACE,
    debug: Debug = False,
) -> None:
    """Move an alias to a version.

    A server of the policy takes the new champion between two batches, and the old champion becomes
    previous. With --expect (six digits or more, or none for an alias that is not set) the exit code
    is 1 if the alias has moved meanwhile.
    """
    with plain_errors("equipoise registry alias", debug):
        from equipoise.registry import Registry

        to = Registry(at)
        version = _moved(
            lambda **given: to.alias(name, alias, None if which == "none" else which, **given),
            "alias",
            expect,
            reason,
        )
        print(f"{name} {_short(version)}: {alias} now" if version else f"{name}: no {alias} now")


@registry.command(
    cls=Sections,
    epilog="""Examples:
  equipoise registry rollback cartpole
  equipoise registry rollback cartpole --expect 3f2a91 --reason "falls on slopes\"""",
)
def rollback(
    name: Name, expect: Expect = None, reason: Reason = "", at: At = PLACE, debug: Debug = False
) -> None:
    """Make the previous champion the champion again.

    The next rollback goes back further. With --expect the exit code is 1 if the champion is another
    version.
    """
    with plain_errors("equipoise registry rollback", debug):
        from equipoise.registry import Registry

        to = Registry(at)
        print(
            f"{name} "
            f"{_short(_moved(lambda **given: to.rollback(name, **given), 'rollback', expect, reason))}: "  # noqa: E501
            "champion again"
        )


@registry.command(
    cls=Sections,
    epilog="""Examples:
  equipoise registry verify
  equipoise registry verify --registry /mnt/policies --json""",
)
def verify(as_json: Json = False, at: At = PLACE, debug: Debug = False) -> None:
    """Compare every file with its hash.

    The exit code is 1 if a file is damaged, missing or not expected.
    """
    with plain_errors("equipoise registry verify", debug):
        from equipoise.registry import Registry

        to = Registry(at)
        wrong = to.verify()
        conflicts = {name: found for name in to.names() if (found := to.conflicts(name))}
        if as_json:
            _print({"problems": wrong, "conflicts": conflicts})
        else:
            _print_lines(
                [
                    *wrong,
                    *(
                        line
                        for name, found in conflicts.items()
                        for line in _conflicts(name, found)
                    ),
                ]
            )
            if not wrong:
                print("every file is as it was written")
    sys.exit(1 if wrong else 0)


@registry.command(
    cls=Sections,
    epilog="""Examples:
  equipoise registry gc --dry
  equipoise registry gc --older-than 30 --yes""",
)
def gc(
    older_than: Annotated[
        str,
        typer.Option(
            metavar="DAYS",
            help="Least age in days of a removed version (default: 7)",
            show_default=False,
        ),
    ] = "7",
    dry: Annotated[
        bool, typer.Option("--dry", help="Print what would be removed; remove nothing")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without a question")] = False,
    as_json: Json = False,
    at: At = PLACE,
    debug: Debug = False,
) -> None:
    """Remove versions without an alias, after a question.

    A version in the lineage of another one also stays. The audit keeps a record of each removal.
    """
    with plain_errors("equipoise registry gc", debug):
        from equipoise.console.place import in_ci
        from equipoise.programs.settings import convert
        from equipoise.registry import Registry

        to, after_s = Registry(at), 86_400 * float(convert(older_than, float, "--older-than"))
        if not after_s >= 0:
            raise ValueError(
                f"--older-than: expected a number of days of at least 0, got {older_than!r}"
            )
        found = to.gc(older_than_s=after_s, dry=True)
        if found and not dry and not yes:
            if not sys.stdin.isatty() or in_ci() or as_json:
                raise ValueError("gc: expected --yes, since there is nobody to ask, or --dry")
            print("\n".join(found))
            if input(f"Remove {_count(found)} for good? [y/N] ").strip().lower() not in (
                "y",
                "yes",
            ):
                fail("nothing was removed", "equipoise registry gc", code=1)
        if not dry:
            found = to.gc(older_than_s=after_s)
        if as_json:
            _print({"dry": dry, "versions": found})
        else:
            print(
                "\n".join([*found, f"{_count(found)} {'would be removed' if dry else 'removed'}"])
            )


# ----------------------------------------------------------------------------------------- printing


def _moved(move: Any, command: str, expect: str | None, reason: str) -> str | None:
    """Move an alias, with exit code 1 if another one was faster."""
    from equipoise.registry import AliasMoved

    given: dict[str, Any] = {"reason": reason}
    if expect is not None:
        given["expect"] = None if expect == "none" else expect
    try:
        version: str | None = move(**given)
    except AliasMoved as error:
        fail(str(error), f"equipoise registry {command}", code=1)
    return version


def _print(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _print_lines(lines: list[str]) -> None:
    from equipoise.console.place import say

    for line in lines:
        say(printable(line))


def _short(version: str | None) -> str:
    return "-" if version is None else version[:12]


def _count(versions: Sequence[str]) -> str:
    return f"{len(versions)} version{'' if len(versions) == 1 else 's'}"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _of_policy(about: dict[str, Any]) -> list[str]:
    aliases: dict[str, list[str]] = {}
    for alias, version in about["aliases"].items():
        aliases.setdefault(version, []).append(alias)
    lines = [f"{about['policy']}: {_count(about['versions'])}, the newest first"]
    shown = [
        version
        for place, version in enumerate(about["versions"])
        if place < SHOWN or version in aliases
    ]
    lines += [
        f"  {version[:12]}  {', '.join(aliases.get(version, []))}".rstrip() for version in shown
    ]
    lines += _conflicts(about["policy"], about["conflicts"])
    lines.append(
        f"what was done, the last {min(SHOWN, len(about['audit']))} of {len(about['audit'])}:"
    )
    for one in about["audit"][-SHOWN:]:
        what = (
            one["kind"]
            if one["kind"] != "refused"
            else f"refused for {one.get('alias', 'an alias')}"
        )
        said = one.get("problem") or " ".join(part for part in (one["who"], one["reason"]) if part)
        lines.append(f"  {_when(one['stamp'] / 1e6)}  {what} {_short(one['version'])}  {said}")
    return lines


def _of_version(said: dict[str, Any]) -> list[str]:
    lines = [
        f"{said['policy']} {said['version']}"
        + (f"  ({', '.join(said['aliases'])})" if said["aliases"] else "")
    ]
    lines += [
        f"  {key}: {said[key]}" for key in ("kind", "added", "who", "reason", "path") if said[key]
    ]
    lines += [
        f"  {key}: {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in said["lineage"].items()
    ]
    lines += [f"  {name}: {size:,} bytes" for name, size in said["files"].items()]
    return [*lines, f"  problem: {said['problem']}"] if said["problem"] else lines


def _conflicts(name: str, found: dict[str, Any]) -> list[str]:
    return [
        f"note: {alias} of {name} was moved in two copies of this registry, to "
        f"{' and to '.join(map(_short, versions))}; the "
        "last one holds, and the next move of the alias settles it"
        for alias, versions in found.items()
    ]
