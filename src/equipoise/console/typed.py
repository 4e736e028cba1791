"""Checks of a command line before it is read: empty values, dashes that are no ``-``, and one
setting with two values are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from typer.core import TyperOption

Context: TypeAlias = Any  # a class that typer has inside, without a public name

HYPHEN = "-"
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # editors and pages put these in its place
MAY_BE_EMPTY = ("prompt",)  # names of parameters


def check_typed(ctx: Context, args: Sequence[str], keys: Callable[[str], str] | None) -> None:
    """End in a usage error for words that cannot be meant.

    ``keys``: the setting of an option, for a command that takes each setting once.
    """
    params = ctx.command.get_params(ctx)
    options = by_name(params)
    arguments = [param for param in params if param.param_type_name == "argument"]
    given: dict[str, str] = {}
    for name, value in _pairs(args, options):
        param = options.get(name)
        if not name and arguments:
            param = arguments.pop(0) if len(arguments) > 1 else arguments[0]
        if value == "" and param is not None and param.default != "":
            if param.name not in MAY_BE_EMPTY:
                shown = name or str(param.metavar or param.name).strip("[].")
                ctx.fail(f"{shown}: must not be empty, got ''.")
        elif not name and value[:1] in tuple(DASHES):
            meant = HYPHEN * 2 + value.lstrip(DASHES + HYPHEN)
            if keys is not None or meant.partition("=")[0] in options:
                ctx.fail(f"{value!r}: must begin with '-', got {value[0]!r}; try {meant!r}.")
        if param is None or keys is None or not name:
            continue
        key = value.partition("=")[0] if name == "--set" else keys(name)
        text = value.partition("=")[2] if name == "--set" else value
        if (name == "--set" or not param.multiple) and given.setdefault(key, text) != text:
            ctx.fail(f"{key}: must be given once, got {given[key]!r} and {text!r}; remove one.")


def by_name(params: Sequence[object]) -> dict[str, TyperOption]:
    """The options among the parameters of a command, by each of their names."""
    return {
        name: param
        for param in params
        if isinstance(param, TyperOption)
        for name in (*param.opts, *param.secondary_opts)
    }


def takes_value(option: TyperOption) -> bool:
    """Does a value follow this option?"""
    return not (getattr(option, "is_flag", False) or getattr(option, "count", False))


def _pairs(args: Sequence[str], options: Mapping[str, TyperOption]) -> Iterator[tuple[str, str]]:
    """(option, value) of each option that takes a value, and ("", word) of each other word."""
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, given, value = word.partition("=")
        param = options.get(name)
        if word == "--":
            yield from (("", one) for one in rest)
            return
        if param is None:
            if word[:1] != HYPHEN:
                yield "", word
        elif takes_value(param):
            if given:
                yield name, value
            elif rest:
                yield name, rest.pop(0)
