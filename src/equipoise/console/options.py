"""Options and help of the settings of a run, made from the annotations of their fields.

A setting with a ``Flag`` is an option of ``train``, and of ``resume`` where a run that goes on may
change it. Each other one is listed with its ``--set`` key; with ``--algorithm NAME`` the help of
``train`` lists those of the algorithm as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from equipoise.console.help import Sections, plain_errors
from equipoise.facts import Fact, as_text, facts
from equipoise.programs.fields import rooms
from equipoise.types import LONG, OUT, WHAT, WHERE, Optimizer, ReplaySettings

__all__ = [
    "TrainHelp",
    "field_options",
    "read",
    "read_fields",
    "settings_options",
    "with_parameters",
]

SECTIONS = (WHAT, WHERE, LONG, OUT)


def flags() -> dict[str, tuple[Fact, str]]:
    """By the name of their option: the settings that have one, each with its ``--set`` key."""
    return {_name(fact): (fact, key) for key, fact in _all() if fact.flag is not None}


def _name(fact: Fact) -> str:
    assert fact.flag is not None
    return fact.flag.name or fact.name.replace("_", "-")


def _all() -> Iterator[tuple[str, Fact]]:
    for room, cls in rooms(replay=True):
        yield from ((f"{room}{name}", fact) for name, fact in facts(cls).items() if fact.help)


def _others() -> list[tuple[str, Fact]]:
    """The settings of every run that have no option."""
    return [
        (key, fact) for key, fact in _all() if fact.flag is None and not key.startswith("replay.")
    ]


def settings_options(
    *, resume: bool = False, only: Collection[str] = (), change: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with an option for each setting that has a flag; ``resume``: for those that a run
    may change as it goes on; ``only``: for those with these keys. ``change``: the help of
    ``--set``, which takes every other setting; "": the command declares ``--set`` itself.

    The command takes them as keywords, as texts, None where an option was not given. Options are
    grouped by their sections.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [
            one
            for one in signature.parameters.values()
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        made = [
            _option(name, fact)
            for name, (fact, key) in flags().items()
            if (not resume or fact.rule == "free") and (not only or key in only)
        ]
        both = sorted(
            (
                one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                for one in (*([_set(change)] if change else ()), *own, *made)
            ),
            key=_section,
        )

        return with_parameters(command, both)

    return decorate


def with_parameters(
    command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """A command that typer sees with these parameters."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        command(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # where typer looks
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _set(help_: str) -> inspect.Parameter:
    option = typer.Option("--set", metavar="KEY=VALUE", help=help_)
    return inspect.Parameter(
        "settings",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[list[str] | None, option],
    )


def option_of(fact: Fact) -> typer.models.OptionInfo:
    """The option of a setting with a ``Flag``, without its default."""
    assert fact.flag is not None
    option: typer.models.OptionInfo = typer.Option(
        f"--{_name(fact)}",
        metavar=fact.flag.metavar,
        help=fact.help,
        rich_help_panel=fact.flag.section or None,
    )
    return option


def _option(name: str, fact: Fact) -> inspect.Parameter:
    kind = Annotated[str | None, option_of(fact)]
    return inspect.Parameter(
        name.replace("-", "_"), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind
    )


def field_options(
    *classes: type[object], only: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with an option for each field with a ``Flag``, or those of ``only``, which it takes
    as keywords for ``read_fields``.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for one in signature.parameters.values()
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        made = [
            _field_option(fact)
            for cls in classes
            for fact in facts(cls).values()
            if fact.flag is not None and (not only or fact.name in only)
        ]
        arguments = [one for one in own if _section(one) < 0]
        others = [one for one in own if _section(one) >= 0]
        return with_parameters(command, [*arguments, *made, *others])

    return decorate


def _field_option(fact: Fact) -> inspect.Parameter:
    """An option whose default is that of the field, as a text."""
    assert fact.flag is not None
    name, default = _name(fact), fact.default
    kind: Any = str | None
    names = [f"--{name}"]
    if fact.kind is bool:
        kind, names = bool, [f"--{name}/--no-{name}"]
    elif isinstance(default, tuple):
        kind, default = list[str] | None, None
    elif default is dataclasses.MISSING:
        kind, default = str, inspect.Parameter.empty
    elif default is not None:
        kind, default = str, f"{default:g}" if isinstance(default, float) else str(default)
    metavar = None if kind is bool else fact.flag.metavar
    option = typer.Option(
        *names, metavar=metavar, help=fact.help, rich_help_panel=fact.flag.section or None
    )
    return inspect.Parameter(
        name.replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


def read_fields(cls: type[object], texts: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, read by the types of the fields of ``cls``; ValueError for a
    value out of its range.
    """
    from equipoise.files import parse_json
    from equipoise.programs.ranges import beyond
    from equipoise.programs.settings import convert

    found: dict[str, Any] = {}
    for fact in facts(cls).values():
        if fact.flag is None or (given := texts.get(_name(fact).replace("-", "_"))) is None:
            continue
        where = f"--{_name(fact)}"
        value = (
            parse_json(given.encode(), where)
            if fact.kind is Any
            else convert(given, fact.kind, where)
        )
        for number, limit in beyond(value, fact.annotated):
            raise ValueError(f"{where}: expected {limit}, got {number}")
        found[fact.name] = value
    return found


def _section(parameter: inspect.Parameter) -> int:
    """Arguments first, then the options by section, then those without one."""
    info = parameter.annotation.__metadata__[0]
    if isinstance(info, typer.models.ArgumentInfo):
        return -1
    return (
        SECTIONS.index(info.rich_help_panel) if info.rich_help_panel in SECTIONS else len(SECTIONS)
    )


def read(texts: Mapping[str, str | list[str] | None]) -> tuple[dict[str, Any], list[str]]:
    """The options that were given, read by the types of their fields -> fields of a run, and
    settings: those of ``--set`` first.
    """
    from equipoise.programs.settings import asked

    fields: dict[str, Any] = {}
    settings = list(texts.get("settings") or ())
    for name, (fact, key) in flags().items():
        if not isinstance(text := texts.get(name.replace("-", "_")), str):
            continue
        value = text if key.startswith("replay.") else asked(text, fact, f"--{name}")
        # None would be "not given"; an algorithm may have no replay
        if value is None or key.startswith("replay."):
            settings.append(f"{key}={text}")
        else:
            fields[name.replace("-", "_")] = value
    return fields, settings


def setting_named(option: str, algorithm: str | None = None) -> str | None:
    """The ``--set`` key of a setting without an option, for a user who typed one; also one of the
    ``algorithm``.
    """
    from equipoise.programs.program import algorithm_class

    name = option.lstrip("-").replace("-", "_")
    found = (
        key
        for key, fact in _all()
        if fact.flag is None and name == fact.name and not key.startswith("replay.")
    )
    if (key := next(found, None)) is None and algorithm is not None:
        # said when the rest of the line is right
        with contextlib.suppress(ValueError, ImportError):
            return f"algorithm.{name}" if name in facts(algorithm_class(algorithm)) else None
    return key


def peer_option(option: str, algorithm: str | None) -> str:
    """What there is here of what peers call so, for a user who typed it as an option; empty where
    it is not theirs.
    """
    from equipoise.programs.peer_names import is_of_peer, key_of_peer, option_of_peer, words_of_peer

    if ours := option_of_peer(option):
        return f"it is --{ours.replace('_', '-')} here"
    if not is_of_peer(option):
        return words_of_peer(option)
    from equipoise.programs.program import algorithm_class

    try:
        cls = algorithm_class(algorithm or "ppo")
    except (ValueError, ImportError):  # said when the rest of the line is right
        return ""
    known = {key for key, _ in _all() if cls.needs_replay or not key.startswith("replay.")}
    key, note = key_of_peer(option, known | {f"algorithm.{name}" for name in facts(cls)})
    flag = next((name for name, (_, of) in flags().items() if of == key), None)
    said = f"it is --{flag} here" if flag else f"it is the setting --set {key}=... here"
    return said + (f" ({note})" if note else "") if key else words_of_peer(option)


class TrainHelp(Sections):
    """Help that ends with the settings that have no option, and with an algorithm's where one is
    named.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["algorithm"] = _after("--algorithm", args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        named = ctx.meta.get("algorithm")
        for title, settings in _listed(named).items():
            with formatter.section(title):
                formatter.write_dl([(key, described(fact)) for key, fact in settings], col_max=28)
        if named is None:
            with formatter.indentation():
                formatter.write_text(
                    "With --algorithm NAME, --help lists the settings of that algorithm as well."
                )


def _after(option: str, args: list[str]) -> str | None:
    for at, word in enumerate(args):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and at + 1 < len(args):
            return args[at + 1]
    return None


def _listed(algorithm: str | None) -> dict[str, list[tuple[str, Fact]]]:
    others = _others()
    listed = {"Other settings, by --set KEY=VALUE": others}
    if algorithm is None:
        return listed
    listed = {
        title: [one for one in some if not one[0].startswith("optimizer.")]
        for title, some in listed.items()
    }
    from equipoise.programs.program import algorithm_class

    with plain_errors("equipoise train", debug=False):
        cls = algorithm_class(algorithm)
        listed[f"Settings of {algorithm}"] = [
            (f"algorithm.{name}", fact) for name, fact in facts(cls).items()
        ]
        listed[f"The optimizer of {algorithm}"] = [
            (
                f"optimizer.{name}",
                dataclasses.replace(fact, default=getattr(cls.default_optimizer, name)),
            )
            for name, fact in facts(Optimizer).items()
        ]
    if cls.needs_replay:
        listed["Settings of the replay"] = [
            (f"replay.{name}", fact) for name, fact in facts(ReplaySettings).items()
        ]
    return listed


def described(fact: Fact) -> str:
    """Help, values and default of a setting, in one text."""
    default = (
        ""
        if fact.default is dataclasses.MISSING or fact.default in ("", (), {})
        else f"default {as_text(fact.default)}"
    )
    values = "; ".join(part for part in (fact.limits, default) if part)
    return f"{fact.help} ({values})" if values else fact.help
