"""Options and help of the settings of a run, made from the annotations of their fields.

A setting with a ``Flag`` is an option of ``train``, and of ``resume`` where a run that goes on may
change it. Each other one is listed with its ``--set`` key; with ``--algorithm NAME`` the help of
``train`` lists those of the algorithm as well.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperOption

from equipoise.console.help import Formatter, Sections, plain_errors, with_default
from equipoise.console.short_help import (
    SHORT,
    SHORT_END,
    SHORT_END_OF_TUNE,
    SHORT_OF_TUNE,
    TEXT,
    Short,
)
from equipoise.console.typed import Context
from equipoise.facts import Fact, as_text, facts
from equipoise.programs.cluster import Cluster
from equipoise.programs.fields import rooms
from equipoise.sums import ENV
from equipoise.types import SECTIONS, Algorithm, Optimizer, ReplaySettings

__all__ = [
    "OwnOptions",
    "TrainHelp",
    "field_options",
    "read",
    "read_fields",
    "settings_options",
    "with_parameters",
]

HELP_ALL = "--help-all"


def flags() -> dict[str, tuple[Fact, str]]:
    """By the name of their option: the settings that have one, each with its ``--set`` key."""
    return {_name(fact): (fact, key) for key, fact in _all() if fact.flag is not None}


def _name(fact: Fact) -> str:
    assert fact.flag is not None
    return fact.option


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
    ``--set``, which takes every other setting of the run that the command is given, whose settings
    are the defaults; "": the command declares ``--set`` itself.

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
            _option(name, fact, default="the run's" if change else "")
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


def option_of(fact: Fact, default: str = "") -> typer.models.OptionInfo:
    """The option of a setting with a ``Flag``, without its default; ``default`` names another one
    in the help.
    """
    assert fact.flag is not None
    option: typer.models.OptionInfo = typer.Option(
        f"--{_name(fact)}",
        metavar=fact.flag.metavar,
        help=phrase(fact, default),
        rich_help_panel=fact.flag.section or None,
    )
    return option


def _option(name: str, fact: Fact, *, default: str) -> inspect.Parameter:
    kind = Annotated[str | None, option_of(fact, default)]
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
    elif default == "":
        kind, default = str | None, None
    elif default is not None:
        kind, default = str, f"{default:g}" if isinstance(default, float) else str(default)
    metavar = None if kind is bool else fact.flag.metavar
    option = typer.Option(
        *names,
        metavar=metavar,
        help=fact.help.removesuffix("."),
        rich_help_panel=fact.flag.section or None,
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
    """Arguments first, then the options by section, then options without a section."""
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


def setting_named(option: str) -> str | None:
    """The ``--set`` key of a run's setting without an option, for a user who typed its name as one.

    None if an algorithm has a field of that name: the user may have meant that.
    """
    from equipoise.console.own_options import algorithms_having

    name = option.lstrip("-").replace("-", "_")
    found = (
        key
        for key, fact in _all()
        if fact.flag is None and name == fact.name and not key.startswith("replay.")
    )
    key = next(found, None)
    return None if key is None or algorithms_having(option) else key


def peer_option(option: str, algorithms: Sequence[str]) -> str:
    """The counterpart of another library's ``option``, in words; "" if it has none."""
    from equipoise.console.own_options import (
        LEARNING_RATE,
        algorithms_having,
        option_name,
        own_fields,
        with_replay,
    )
    from equipoise.programs.peer_names import key_of_peer, keys_of_peer, option_of_peer
    from equipoise.programs.peer_names import words_of_peer as words

    if ours := option_of_peer(option):
        return f"it is --{ours.replace('_', '-')} here"
    if not (keys := keys_of_peer(option)):
        return words(option)
    replay = with_replay(algorithms)
    known = {key for key, _ in _all() if replay or not key.startswith("replay.")}
    fields = {f"algorithm.{field}" for field, _ in own_fields(algorithms).values()}
    key, note = key_of_peer(option, known | fields)
    more = f" ({note})" if note else ""
    flag = next((name for name, (_, of) in flags().items() if of == key), None)
    if key == LEARNING_RATE:
        flag = "lr"
    elif (
        key.startswith("algorithm.") and (own := option_name(key.partition(".")[2])) not in flags()
    ):
        flag = own
    if key:
        return (f"it is --{flag} here" if flag else f"it is --set {key}=... here") + more
    if said := words(option):
        return said
    field = next((one for one in keys if one.startswith("algorithm.")), "")
    own = option_name(field.partition(".")[2])
    there = algorithms_having(own)
    return f"it is --{own} of {listed(there)}" if there else ""


def listed(names: Sequence[str]) -> str:
    """Names as a text: ``a, b and c``."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


class OwnOptions(Sections):
    """A command that takes the fields of the named algorithm as options."""

    @staticmethod
    def key_of(option: str) -> str:
        """The ``--set`` key of an option, or the option."""
        found = flags().get(option.removeprefix("--"))
        return option if found is None else found[1]

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        from equipoise.console.own_options import as_settings
        from equipoise.console.typed import by_name, takes_value

        typed = list(args)
        takes = {name: takes_value(param) for name, param in by_name(self.get_params(ctx)).items()}
        ctx.meta["typed"] = typed
        if not {"--help", "-h", HELP_ALL} & set(args):
            try:
                args = as_settings(self.name or "", args, takes)
            except ValueError as error:
                ctx.fail(str(error))
        return super().parse_args(ctx, args)


class TrainHelp(OwnOptions):
    """Help of ``train``: the short one, and with ``--help-all`` each option and each setting."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        from equipoise.console.own_options import after, named_algorithms

        ctx.meta["all"] = HELP_ALL in args
        ctx.meta["reward"] = "+".join(after("--reward", args)) or ENV
        named = {"--algorithm", "--policy", "--config"} & {one.partition("=")[0] for one in args}
        ctx.meta["algorithms"] = named_algorithms("train", args, ()) if named else []
        return super().parse_args(ctx, ["--help" if one == HELP_ALL else one for one in args])

    def format_help_text(self, ctx: Context, formatter: Formatter) -> None:
        if ctx.meta["all"]:
            super().format_help_text(ctx, formatter)

    def format_options(self, ctx: Context, formatter: Formatter) -> None:
        whole = ctx.meta["all"]
        classes = _classes(ctx.meta["algorithms"])
        on_text = any(cls.needs_task for cls in classes.values())
        if not on_text:
            ctx.meta["hidden"] = {
                name.replace("-", "_") for name, (_, key) in flags().items() if _is_of_text(key)
            }
        if whole:
            super().format_options(ctx, formatter)
        else:
            from equipoise.console.typed import by_name

            own = by_name(self.get_params(ctx))
            short = self.short()[0]
            for title, some in (short | TEXT if on_text else short).items():
                with formatter.section(title):
                    formatter.write_dl(
                        [
                            (name, text or _help_of(own[_first(name)], ctx))
                            for name, text in some.items()
                        ]
                    )
        records = _records(classes, on_text=on_text, whole=whole)
        if whole and not on_text:
            records |= _of_terms(ctx.meta["reward"])
        for title, several in records.items():
            with formatter.section(title):
                formatter.write_dl(several, col_max=28)

    def format_epilog(self, ctx: Context, formatter: Formatter) -> None:
        if ctx.meta["all"]:
            if "hidden" in ctx.meta:
                formatter.write("\nWith --reward env+rnd it lists the settings of rnd.\n")
                formatter.write("\nWith --algorithm grpo, --help-all lists the settings of text.\n")
            super().format_epilog(ctx, formatter)
        else:
            formatter.write(f"\n{self.short()[1]}\n")

    def short(self) -> tuple[Short, str]:
        """Return the sections of the short help, and its end."""
        return SHORT, SHORT_END


class TuneHelp(TrainHelp):
    """Help of ``tune start``: that of ``train``, with the options of a study."""

    def short(self) -> tuple[Short, str]:
        return SHORT_OF_TUNE, SHORT_END_OF_TUNE


def _first(option: str) -> str:
    """The first name of an option, without its value: "-q" of "-q, --quiet"."""
    return re.split("[ ,]", option)[0]


def _records(
    classes: Mapping[str, type[Algorithm]], *, on_text: bool, whole: bool
) -> dict[str, list[tuple[str, str]]]:
    """The settings of a help that are no options of the command, by the title of their section."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, cls in classes.items():
        found[f"Options of {name}"] = [_own_record(fact) for fact in facts(cls).values()]
        if whole:
            rates = cls.default_optimizer
            found[f"Settings of the optimizer of {name}, by --set KEY=VALUE"] = [
                (f"optimizer.{key}", described(fact, getattr(rates, key)))
                for key, fact in facts(Optimizer).items()
            ]
            if cls.needs_replay:
                found[f"Settings of the replay of {name}, by --set KEY=VALUE"] = [
                    (f"replay.{key}", described(fact))
                    for key, fact in facts(ReplaySettings).items()
                ]
    if whole:
        found["Other settings, by --set KEY=VALUE"] = [
            (key, described(fact))
            for key, fact in _others()
            if not (classes and key.startswith("optimizer.")) and (on_text or not _is_of_text(key))
        ]
        found["Settings of a Ray cluster, by --cluster KEY=VALUE"] = [
            (key, described(fact)) for key, fact in facts(Cluster).items() if fact.flag is None
        ]
    return found


def _of_terms(text: str) -> dict[str, list[tuple[str, str]]]:
    """The settings of the terms of a sum of rewards, by the title of their section."""
    if text == ENV:
        return {}  # without the import, which loads torch
    from equipoise.rewards.terms import name_of, settings_of, term_classes

    with plain_errors("equipoise train", debug=False):
        found = {name_of(word, cls): settings_of(cls) for word, cls in term_classes(text).items()}
    return {
        f"Settings of {name} in the reward, by --set KEY=VALUE": [
            (f"reward.{name}.{key}", described(fact)) for key, fact in several.items()
        ]
        for name, several in found.items()
        if several
    }


def _is_of_text(key: str) -> bool:
    """Do only runs on text read this setting?"""
    return key.startswith("source.")


def _help_of(option: TyperOption, ctx: Context) -> str:
    """The help of an option, with its default."""
    record = option.get_help_record(ctx)
    assert record is not None, "no option of the short help is hidden"
    return with_default(record[1])


def _classes(names: Sequence[str]) -> dict[str, type[Algorithm]]:
    if not names:
        return {}  # without the import, which loads numpy
    from equipoise.programs.program import algorithm_class

    with plain_errors("equipoise train", debug=False):
        return {name: algorithm_class(name) for name in names}


def _own_record(fact: Fact) -> tuple[str, str]:
    from equipoise.console.own_options import option_name

    name = option_name(fact.name)
    if name in flags():  # the option of the run wins
        return f"--set algorithm.{fact.name}=X", f"{described(fact)} (--{name} is the run's)"
    return f"--{name} {_metavar(fact)}", described(fact)


def _metavar(fact: Fact) -> str:
    if fact.kind is bool:
        return "BOOL"
    kinds = {fact.kind, *typing.get_args(fact.kind)}
    return "N" if int in kinds and float not in kinds else "X" if float in kinds else "VALUE"


def phrase(fact: Fact, default: str = "") -> str:
    """Help and default of an option: "Noun phrase (default: X)"; ``default`` names another X."""
    if fact.default is dataclasses.MISSING:
        default = default or "the algorithm's"
    if default:
        return f"{fact.help.removesuffix('.')} (default: {default})"
    return described(fact, limits=False)


def described(fact: Fact, default: object = dataclasses.MISSING, *, limits: bool = True) -> str:
    """Help, values and default of a setting, in one text."""
    default = fact.default if default is dataclasses.MISSING else default
    shown = (
        ""
        if default is dataclasses.MISSING or default in ("", (), {})
        else f"default: {as_text(default)}"
    )
    values = "; ".join(part for part in (fact.limits if limits else "", shown) if part)
    said = fact.help.removesuffix(".")
    return f"{said} ({values})" if values else said
