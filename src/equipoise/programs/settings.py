"""``KEY=VALUE`` settings and JSON values, read by the type annotation of the field that they are
for.

A value that does not fit is an error with the expected type and the given value; an unknown key is
an error that names the nearest. Nothing is ever guessed or dropped.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal, Union

import numpy as np

from equipoise.envs.hints import FALSE_WORDS, TRUE_WORDS
from equipoise.facts import AUTO, Fact, facts, values_of
from equipoise.hints import hint, nearest, shortened
from equipoise.programs import fields
from equipoise.programs.peer_names import key_of_peer, option_of_peer, words_of_peer
from equipoise.types import EnvFactory, Frozen, Policy, Program, learning

POLICY_KEYS = ("unroll", "batch", "publish_every")
NONE_WORDS = ("none", "null")
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9} | {
    f"{prefix}{byte}": base**power
    for byte, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate(("k", "m", "g", "t"), start=1)
}
# also for an int beyond all floats, and for brackets without end
MISFITS = (ValueError, TypeError, OverflowError, RecursionError)

Settings = Iterable[str] | Mapping[str, Any]  # "KEY=VALUE" each, or {KEY: VALUE}


def pairs(settings: Settings) -> list[tuple[str, object]]:
    """(key, value) of each; the value is still a text, or a mapping's value."""
    if isinstance(settings, str):
        raise ValueError(
            "settings: expected a list such as ['algorithm.gamma=0.98'], or a dict, got the text "
            f"{settings!r}"
        )
    if isinstance(settings, Mapping):
        if odd := [key for key in settings if not isinstance(key, str)]:
            raise TypeError(
                f"settings: keys must be texts such as 'algorithm.gamma', got {odd[0]!r}"
            )
        return list(settings.items())
    if not isinstance(settings, Iterable):
        raise TypeError(
            "settings: must be a list such as ['algorithm.gamma=0.98'], or a dict, got "
            f"{settings!r}"
        )
    return [_split(setting) for setting in settings]


def apply_settings(program: Program, settings: Settings) -> Program:
    """The program with ``KEY=VALUE`` applied, later ones over earlier ones.

    Keys are paths, such as ``placement.*`` and ``algorithm.*`` (docs/reference/settings.md).
    ``policy.*`` or a bare name is unroll, batch or publish_every; ``env.*`` an argument of the env;
    ``route.AGENT`` an agent's policy; ``optimizer.rates.GROUP`` an entry of a mapping.
    ``policies.NAME.*`` sets one of several policies, and a key without it all that learn.
    """
    given = pairs(settings)
    # the terms of a sum decide which settings there are
    sums, given = _parted(given, lambda key: key.endswith("rewards.sum"))
    if sums and given:
        program = apply_settings(program, dict(sums))
    given = given or sums
    kinds, runs = setting_types(program), dict(fields.shorts().values())
    in_policies: dict[str, dict[str, object]] = {name: {} for name in program.policies}
    in_program: dict[str, Any] = {}
    env: dict[str, object] = {}
    route: dict[str, str] = {}
    for key, text in given:
        room, _, name = key.partition(".")
        if room == "env" and name.isidentifier():
            env[name] = convert(text, Any, key)
        elif room == "route" and name:
            route[name] = convert(text, str, key)
        elif (kind := _kind(key, kinds)) is None:
            raise ValueError(
                f"unknown setting {key!r}{_other_hint(key, kinds, program) or hint(key, kinds)}"
            )
        elif targets := _targets(program, key):
            for policy, short in targets:
                in_policies[policy][short] = convert(
                    text, _kind(short, policy_types(program.policies[policy])), key
                )
        else:
            in_program[key] = (
                asked(text, runs[key], key) if key in runs else convert(text, kind, key)
            )
    if any(in_policies.values()):
        policies = program.policies.items()
        in_program["policies"] = {
            name: _with(policy, in_policies[name]) for name, policy in policies
        }
    if env:
        in_program["source.env.kwargs"] = {**program.env.kwargs, **env}
    if route:
        in_program["route"] = {**program.route, **route}
    return fields.replaced(program, in_program) if in_program else program


def _other_hint(key: str, kinds: Collection[str], program: Program) -> str:
    """Words on an unknown key that means something here or elsewhere; "" for others."""
    return _nested_hint(key) or _term_hint(key, program) or _peer_hint(key, kinds)


def _nested_hint(key: str) -> str:
    """The path of the setting whose option has the name ``key``, in words; "" if there is no such
    setting.
    """
    if key == "algorithm":
        return (
            "; a run begins with its algorithm and keeps it: --algorithm NAME, and --set "
            "algorithm.KEY=VALUE for its settings"
        )
    if key == "reward":
        return "; it is 'rewards.sum', and of a run on text 'source.reward'"
    path, _ = fields.shorts().get(key.replace("-", "_"), ("", None))
    return f"; it is {path!r}" if path else ""


def _parted(
    given: Sequence[tuple[str, object]], first: Callable[[str], bool]
) -> tuple[list[tuple[str, object]], list[tuple[str, object]]]:
    """The settings whose keys are ``first``, and the others."""
    return [one for one in given if first(one[0])], [one for one in given if not first(one[0])]


def _term_hint(key: str, program: Program) -> str:
    """How to have the term that a key names, in words; "" for another key, or if it is there."""
    room, _, name = key.partition(".")
    name, _, field = name.partition(".")
    if room != "reward" or not field:
        return ""
    sums = [policy.rewards.sum for policy in learning(program).values()]
    if any(name in text for text in sums):
        return ""
    return f"; {name!r} is no term of the reward {sums[0]!r}: try --reward {sums[0]}+{name}"


def _peer_hint(key: str, known: Collection[str]) -> str:
    """The name that other libraries' ``key`` has here, in words; "" for an unknown one."""
    ours, note = key_of_peer(key, known)
    if ours:
        return f"; it is {ours!r} here" + (f" ({note})" if note else "")
    if "." not in key and (option := option_of_peer(key)):
        return f"; it is no setting but the option {option!r} here"
    words = words_of_peer(key)
    return f"; {words}" if words else ""


def _targets(program: Program, key: str) -> list[tuple[str, str]]:
    """The policies that a key belongs to, each with the key within it."""
    if key.startswith("policies."):
        _, name, short = key.split(".", 2)
        return [(name, short)]
    short = key.removeprefix("policy.")
    return [
        (name, short)
        for name, policy in learning(program).items()
        if _kind(short, policy_types(policy)) is not None
    ]


def _kind(key: str, kinds: Mapping[str, object]) -> object:
    """The type of a setting, also of a mapping's entry (``optimizer.rates.actor``); else None."""
    field, _, entry = key.rpartition(".")
    whole = kinds.get(field)
    if key not in kinds and entry and typing.get_origin(whole) is Mapping:
        return typing.get_args(whole)[1]
    return kinds.get(key)


def _with(policy: Policy | Frozen, changes: Mapping[str, Any]) -> Policy | Frozen:
    plain = {key: value for key, value in changes.items() if "." not in key}
    parts = values_of(policy)
    for room in fields.PARTS:
        if deep := {
            key.removeprefix(f"{room}."): changes[key]
            for key in changes
            if key.startswith(f"{room}.")
        }:
            for key in [key for key in deep if "." in key]:  # an entry of a mapping
                name, _, entry = key.partition(".")
                deep[name] = {
                    **deep.get(name, values_of(parts[room])[name]),
                    entry: deep.pop(key),
                }
            # a recipe's ``memory`` would decide instead of the given capacity
            if room == "replay" and "capacity" in deep:
                deep = {"memory": 0} | deep
            plain[room] = dataclasses.replace(parts[room], **deep)
    made = dataclasses.replace(policy, **plain)
    terms = {key: value for key, value in changes.items() if key.startswith("reward.")}
    if isinstance(made, Policy) and (terms or "rewards" in plain):
        made = with_terms(made, terms)
    return made


def with_terms(policy: Policy, changes: Mapping[str, object]) -> Policy:
    """The policy with all settings of its terms: those of ``changes`` by their keys, those that it
    has, else the defaults.
    """
    terms: dict[str, dict[str, object]] = {}
    for one in fields.of_terms(policy):
        _, term, field = one.key.split(".")
        given = [changes[name] for name in one.names if name in changes]
        terms.setdefault(term, {})[field] = given[-1] if given else one.value
    made = dataclasses.replace(policy, rewards=dataclasses.replace(policy.rewards, terms=terms))
    heads = 1 + sum(bool(one.get("head")) for one in terms.values())
    if values_of(made.algorithm).get("value_heads", heads) == heads:
        return made
    algorithm = dataclasses.replace(made.algorithm, value_heads=heads)  # type: ignore[call-arg]
    return dataclasses.replace(made, algorithm=algorithm)


def check_env_given_once(settings: Settings, kwargs: Mapping[str, object] | None) -> None:
    """ValueError if ``env.KEY=VALUE`` and the env's ``kwargs`` differ in an argument."""
    for key, text in pairs(settings):
        room, _, name = key.partition(".")
        if (
            room == "env"
            and kwargs
            and name in kwargs
            and (now := convert(text, Any, key)) != kwargs[name]
        ):
            raise ValueError(
                f"{name}: expected to be given once, got {kwargs[name]!r} in env_kwargs and, by "
                f"the setting {key}, {now!r}"
            )


def env_of(
    target: str, settings: Settings, kwargs: Mapping[str, object] | None = None
) -> EnvFactory:
    """The env with settings of ``env.KEY`` and ``source.env.action_mask``, the only ones here."""
    check_env_given_once(settings, kwargs)
    arguments = dict(kwargs or {})
    mask: dict[str, str] = {}
    for key, text in pairs(settings):
        room, _, name = key.partition(".")
        if room == "env" and name.isidentifier():
            arguments[name] = convert(text, Any, key)
        elif key == "source.env.action_mask":
            mask["action_mask"] = convert(text, str, key)
        else:
            raise ValueError(
                f"unknown setting {key!r}; settings here are the env's: env.KEY=VALUE, "
                "source.env.action_mask=CHOICE"
            )
    return EnvFactory(target=target, kwargs=arguments, **mask)


def _split(setting: str) -> tuple[str, str]:
    if not isinstance(setting, str):
        raise TypeError(
            f"settings: must hold texts such as 'algorithm.gamma=0.98', got {setting!r}"
        )
    key, separator, text = setting.partition("=")
    if not separator or not key.strip():
        raise ValueError(f"setting {setting!r}: expected KEY=VALUE, such as algorithm.gamma=0.98")
    return key.strip(), text.strip()


def setting_types(program: Program) -> dict[str, object]:
    """The type of each key that ``apply_settings`` takes, besides ``env.*`` and ``route.*``."""
    # also settings of other kinds of sources
    run = {key: fact.kind for key, fact in fields.shorts().values()}
    return run | {
        name: setting.fact.kind for setting in fields.settings(program) for name in setting.names
    }


def policy_types(policy: Policy | Frozen) -> dict[str, object]:
    """The settings of a policy."""
    if isinstance(policy, Frozen):
        return field_types(Frozen)
    parts = values_of(policy)
    kinds = {
        f"{room}.{name}": kind
        for room in fields.PARTS
        if (settings := parts[room]) is not None
        for name, kind in field_types(type(settings)).items()
    }
    kinds |= {name: one.fact.kind for one in fields.of_terms(policy) for name in one.names}
    return kinds | {name: kind for name, kind in field_types(Policy).items() if name in POLICY_KEYS}


def field_types(cls: type[object]) -> dict[str, object]:
    """The init fields of a dataclass and their types."""
    return {name: fact.kind for name, fact in facts(cls).items()}


# ------------------------------------------------------------------------------------------- values


def convert(value: object, kind: object, where: str, more: str = "") -> Any:
    """A text or a JSON value as ``kind``; ValueError naming ``where`` if it does not convert.

    ``more``: what may stand there besides, such as " or auto".
    """
    try:
        return _converter(kind)(value.item() if isinstance(value, np.generic) else value)
    except MISFITS as error:
        reason = f" ({error})" if isinstance(error, _Reason) else ""
        raise ValueError(
            f"{where}: expected {describe(kind)}{more}, got {shortened(repr(value), 200)}{reason}"
        ) from None


def asked(value: object, fact: Fact, where: str) -> object:
    """``convert`` to a setting's type, or ``auto`` if it may be measured."""
    if not (fact.auto and isinstance(value, str)):
        return convert(value, fact.kind, where)
    if value.lower() == AUTO.word:
        return AUTO.word
    if nearest(value, [AUTO.word]):
        raise ValueError(
            f"{where}: expected {describe(fact.kind)} or auto, got {value!r}; did you mean 'auto'?"
        )
    return convert(value, fact.kind, where, " or auto")


def at_least(value: object, where: str, least: int = 1) -> int:
    """A whole number from a text; ValueError for one below ``least``."""
    number: int = convert(value, int, where)
    if number < least:
        raise ValueError(f"{where}: expected at least {least}, got {number}")
    return number


def describe(kind: object) -> str:
    """A type in the words of a user."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return f"a list of ({describe(args[0])}), such as " + (
            """one,two or ["one"]""" if args[0] is str else "64,64"
        )
    if origin is tuple:
        return (
            f"{len(args)} values ({', '.join(describe(arg) for arg in args)}) with commas between"
        )
    words = (
        (float, "a number"),
        (int, "a whole number"),
        (bool, "true or false"),
        (str, "a text"),
        (type(None), "none"),
        (Any, "a value"),
    )
    if (origin or kind) in (dict, Mapping):
        return "a JSON object"
    return next((text for one, text in words if one is kind), str(kind))


class _Reason(ValueError):
    """A refusal whose message gives more than the expected type."""


def _converter(kind: object) -> Callable[[object], object]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return partial(_union, args)
    if origin is Literal:
        return partial(_literal, args)
    if kind is tuple or origin is tuple:
        return partial(_tuple, args)
    if kind is Any:
        return _anything
    if isinstance(kind, type) and kind in _SCALARS:
        return _SCALARS[kind]
    if kind in (dict, Mapping) or origin in (dict, Mapping):
        return partial(_mapping, args)
    raise _Reason(
        f"a field of type {kind} cannot be set from text or JSON; use numbers, texts, Literal, "
        "tuple or None"
    )


def _union(args: Sequence[object], value: object) -> object:
    # None first, since "none" is also a text
    for kind in sorted(args, key=lambda arg: arg is not type(None)):
        try:
            return _converter(kind)(value)
        except MISFITS:
            continue
    raise ValueError


def _literal(args: Sequence[object], value: object) -> object:
    for arg in args:
        if value == arg and isinstance(value, bool) == isinstance(arg, bool):
            return arg
        if isinstance(value, str) and value.lower() == str(arg).lower():
            return arg
    if (near := nearest(str(value), [str(arg) for arg in args])) is None:
        raise ValueError
    raise _Reason(f"did you mean {near!r}?")


def _tuple(args: Sequence[object], value: object) -> tuple[object, ...]:
    if isinstance(value, str) and (given := _json_list(value)) is not None:
        value = given
    elif isinstance(value, str):
        inside = value.strip()
        if value and not inside:
            raise _Reason('only blanks; a list in JSON has them, such as ["\\n"]')
        if inside[:1] + inside[-1:] in ("()", "[]"):
            inside = inside[1:-1]
        value = [part.strip() for part in inside.split(",")]
        # "64," and "": Python's text after a tuple's only value, and of the empty tuple
        if value[-1] == "":
            value.pop()
    if not isinstance(value, list | tuple):
        raise ValueError
    if not args:
        args = (Any, Ellipsis)
    kinds = [args[0]] * len(value) if len(args) == 2 and args[1] is Ellipsis else list(args)
    if len(kinds) != len(value):
        raise _Reason(f"{len(value)} values")
    return tuple(_converter(kind)(item) for kind, item in zip(kinds, value, strict=True))


def _json_list(text: str) -> list[object] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _none(value: object) -> None:
    if value is not None and not (isinstance(value, str) and value.lower() in NONE_WORDS):
        raise ValueError


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in TRUE_WORDS + FALSE_WORDS:
        return value.lower() in TRUE_WORDS
    raise ValueError


def whole(value: object) -> int:
    """64, 500_000, 1e6, 500k, 2.3M, 2GB (10^9) or 2GiB (2^30); ValueError if it is not whole."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    text, large = str(value), False
    suffix = next((s for s in (text[-n:].lower() for n in (3, 2, 1)) if s in SUFFIXES), "")
    try:  # Decimal, since 2.3 * 10**6 is not whole as a float
        number = Decimal(text.removesuffix(text[len(text) - len(suffix) :])) * SUFFIXES.get(
            suffix, 1
        )
        if abs(number) < 2**63 and number == int(number):
            return int(number)
        if abs(number) >= 2**63 and number.is_finite():
            large = True
    except (ArithmeticError, ValueError):  # no number, infinity, nan
        pass
    raise _Reason(
        f"the largest is {2**63 - 1}" if large else "64, 500k, 1M, 500MiB and 2GB are some"
    )


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    number = float(value)  # "inf" is welcome: a clip that is off; JSON has no other way to write it
    if number != number:
        raise ValueError
    return number


def _str(value: object) -> str:
    if isinstance(value, type) and value.__module__ == "__main__":
        raise _Reason(f"put the class into a file and write 'FILE:{value.__qualname__}'")
    if isinstance(value, type):
        raise _Reason(f"write '{value.__module__}:{value.__qualname__}'")
    if not isinstance(value, str):
        raise ValueError
    return value


def _mapping(args: Sequence[object], value: object) -> dict[str, object]:
    value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise ValueError
    read = _converter(args[1] if args else Any)
    return {_str(key): read(item) for key, item in value.items()}


def _anything(value: object) -> object:
    """JSON, or one of Python's True, False and None, else the text itself."""
    if not isinstance(value, str):
        return value
    words = {
        "True": True,
        "False": False,
        "None": None,
        "none": None,
        "NaN": "NaN",
        "Infinity": "Infinity",
    }
    if value in words:
        return words[value]
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


_SCALARS: dict[type, Callable[[object], object]] = {
    float: _float,
    int: whole,
    bool: _bool,
    str: _str,
    type(None): _none,
}
