"""Every setting of a Program, with its key for ``--set`` and the facts of its annotation."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, replace
from typing import Any, Literal

from equipoise.facts import AUTO, Fact, Read, as_text, facts, values_of
from equipoise.hints import hint
from equipoise.sums import ENV
from equipoise.types import (
    SOURCES,
    Frozen,
    Optimizer,
    Placement,
    Policy,
    Program,
    RecordedSource,
    ReplaySettings,
    Rewards,
    SourceSettings,
    TaskSource,
)

PARTS = ("algorithm", "optimizer", "rewards", "replay")  # of a policy; each has settings of its own

__all__ = [
    "PARTS",
    "Setting",
    "alter",
    "classes",
    "looked_up",
    "measurable",
    "named",
    "of",
    "of_terms",
    "parts",
    "replaced",
    "rooms",
    "settings",
    "shorts",
    "valued",
    "why_unread",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of one part of a Program."""

    key: str  # as differences and refusals name it
    names: tuple[str, ...]  # every key of it in ``--set``
    fact: Fact
    part: object  # the dataclass that has it
    room: str  # the place of the field: "placement.", "algorithm.", "policies.NAME.algorithm."
    rule: Literal["free", "kept"]  # of a resume

    @property
    def value(self) -> object:
        return getattr(self.part, self.fact.name)


def classes(kind: object) -> list[type[object]]:
    """The dataclasses that a field of this type may hold; [] for a plain value."""
    if kind is SourceSettings:
        return [*SOURCES]
    args = (
        typing.get_args(kind)
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
        else (kind,)
    )
    return [arg for arg in args if isinstance(arg, type) and dataclasses.is_dataclass(arg)]


def rooms(*, replay: bool = False) -> list[tuple[str, type[object]]]:
    """The dataclasses of every run (``replay``: a replay's also) with the start of their keys."""
    besides = [("replay.", ReplaySettings)] if replay else []
    return [
        *_below("", Program),
        ("policy.", Policy),
        ("optimizer.", Optimizer),
        ("rewards.", Rewards),
        *besides,
    ]


def _below(room: str, cls: type[object]) -> Iterator[tuple[str, type[object]]]:
    for name, fact in facts(cls).items():
        for part in classes(fact.kind):
            yield f"{room}{name}.", part
            yield from _below(f"{room}{name}.", part)


def shorts() -> dict[str, tuple[str, Fact]]:
    """Keys and facts of the run's settings by the names of their options: ``evaluate_every``."""
    return {
        (fact.flag.name if fact.flag and fact.flag.name else name).replace("-", "_"): (
            f"{room}{name}",
            fact,
        )
        for room, cls in _below("", Program)
        for name, fact in facts(cls).items()
        if fact.help
    }


def alter(program: Program, **changes: object) -> Program:
    """The program with settings changed by their names in ``shorts``, or env, policies, route."""
    keys = {name: key for name, (key, _) in shorts().items()} | {
        "env": "source.env",
        "policies": "policies",
        "route": "route",
    }
    return replaced(program, {keys[name]: value for name, value in changes.items()})


def replaced(program: Program, changes: Mapping[str, object]) -> Program:
    """The program with these changes, by key; ``source.dataset`` makes a recorded source."""
    rest = _with_auto(program, changes)
    if dataset := rest.pop("source.dataset", ""):
        source = RecordedSource(
            dataset=dataset, env=program.source.played, on_nonfinite=program.source.on_nonfinite
        )
        program = dataclasses.replace(program, source=source)
    if program.source.recorded and rest.pop("source.metrics", ()):
        raise ValueError(
            "source.metrics: cannot be set with source.dataset, since no env is stepped"
        )
    for key in rest:
        room, _, name = key.partition(".")
        if room == "source" and name.partition(".")[0] not in facts(type(program.source)):
            if name in facts(TaskSource):
                got = " and ".join(
                    sorted(
                        {
                            type(one.algorithm).__name__
                            for one in program.policies.values()
                            if isinstance(one, Policy)
                        }
                    )
                )
                raise ValueError(
                    f"{key}: expected an algorithm for text, such as grpo, got {got} on "
                    f"{program.name}"
                )
            raise ValueError(
                f"{key}: expected a run with another source, got one of {program.name}"
            )
    made: Program = _replaced(program, rest, "")
    return made


def _with_auto(program: Program, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Move each value ``auto`` into ``placement.auto``; another value takes its name from there."""
    room, auto = "placement.", tuple(changes.get("placement.auto", program.placement.auto))
    told = {name: changes[room + name] for name in measurable(program) if room + name in changes}
    asked = [name for name, value in told.items() if isinstance(value, str) and value == AUTO.word]
    rest = {key: value for key, value in changes.items() if key.removeprefix(room) not in asked}
    names = dict.fromkeys((*(name for name in auto if name not in told or name in asked), *asked))
    return rest | ({"placement.auto": tuple(names)} if told else {})


def measurable(program: Program) -> list[str]:
    """The settings of a placement that may be ``auto``."""
    return [name for name, fact in facts(type(program.placement)).items() if fact.auto]


def _replaced(part: Any, changes: Mapping[str, Any], room: str) -> Any:
    if part is None:
        raise ValueError(f"{room}{next(iter(changes))}: cannot be set without an env")
    plain = {key: value for key, value in changes.items() if "." not in key}
    for name in dict.fromkeys(key.partition(".")[0] for key in changes if "." in key):
        deep = {
            key.removeprefix(f"{name}."): value
            for key, value in changes.items()
            if key.startswith(f"{name}.")
        }
        plain[name] = _replaced(plain.get(name, getattr(part, name)), deep, f"{room}{name}.")
    return dataclasses.replace(part, **plain) if plain else part


def parts(program: Program) -> Iterator[tuple[str, object]]:
    """The parts of the run (source, its env, placement, ...), each with the start of its keys."""
    yield from _parts(program, "")


def _parts(part: object, room: str) -> Iterator[tuple[str, object]]:
    kinds = facts(type(part))
    for name, inner in values_of(part).items():
        if inner is not None and classes(kinds[name].kind):
            yield f"{room}{name}.", inner
            yield from _parts(inner, f"{room}{name}.")


def valued(program: Program, key: str, absent: object = None) -> object:
    """The value of a setting of the run, by its path; ``absent`` if its source lacks it."""
    value: object = program
    for name in key.split("."):
        value = getattr(value, name, absent)
    return value


def settings(program: Program) -> Iterator[Setting]:
    """The settings of the run, then of each policy, its algorithm, optimizer, rewards, replay."""
    for room, part in parts(program):
        yield from of(part, room)
    several = len(program.policies) > 1
    for name, policy in program.policies.items():
        room = f"policies.{name}." if several else ""
        learns = isinstance(policy, Policy)
        yield from _of(
            policy, room, ("", "policy.") if learns else (), skip=PARTS, first=room or "policy."
        )
        if isinstance(policy, Frozen):
            continue
        yield from _of(policy.algorithm, f"{room}algorithm.", ("algorithm.",), otherwise="free")
        yield from _of(policy.optimizer, f"{room}optimizer.", ("optimizer.",), otherwise="free")
        yield from _of(
            policy.rewards, f"{room}rewards.", ("rewards.",), skip=("terms",), otherwise="free"
        )
        for one in of_terms(policy):
            names = dict.fromkeys((room + one.key, *one.names))
            yield replace(one, key=room + one.key, names=tuple(names), room=room + one.room)
        if policy.replay is not None:
            yield from _of(policy.replay, f"{room}replay.", ("replay.",))


def of_terms(policy: Policy) -> Iterator[Setting]:
    """The settings of the terms of a policy's rewards; a name without the term's, if one term
    alone has it.
    """
    if policy.rewards.sum == ENV:
        return
    from equipoise.rewards.terms import made, settings_of  # it loads torch

    terms = made(policy.rewards)
    found = {name: settings_of(type(term)) for name, term in terms.items()}
    counts = Counter(field for one in found.values() for field in one)
    for name, several in found.items():
        for field, fact in several.items():
            key = f"reward.{name}.{field}"
            short = (f"reward.{field}",) if counts[field] == 1 else ()
            yield Setting(
                key=key,
                names=(key, *short),
                fact=fact,
                part=terms[name],
                room=f"reward.{name}.",
                rule=fact.rule or "free",
            )


def of(part: object, room: str) -> Iterator[Setting]:
    """The settings of one part of the run, without the settings of its own parts."""
    inside = [name for name, fact in facts(type(part)).items() if classes(fact.kind)]
    return _of(part, room, skip=(*inside, "target", "kwargs"))


def _of(
    part: object,
    room: str,
    also: tuple[str, ...] = (),
    *,
    skip: tuple[str, ...] = (),
    otherwise: Literal["free", "kept"] = "kept",
    first: str | None = None,
) -> Iterator[Setting]:
    for name, fact in facts(type(part)).items():
        if name not in skip:
            rooms = dict.fromkeys((room if first is None else first, room, *also))
            names = tuple(f"{one}{name}" for one in rooms)
            yield Setting(
                key=names[0],
                names=names,
                fact=fact,
                part=part,
                room=room,
                rule=fact.rule or otherwise,
            )


def named(program: Program, key: str) -> list[Setting]:
    """The settings that ``--set KEY`` changes: of several policies that learn, one each."""
    return [setting for setting in settings(program) if key in setting.names]


def why_unread(program: Program, setting: Setting) -> str:
    """Why nothing reads this setting with the other settings as they are; "" if the setting is
    read.
    """
    for read in setting.fact.reads:
        if isinstance(setting.part, Placement) and read.setting in setting.part.auto:
            continue  # it is not known yet
        path, value = looked_up(program, setting, read)
        if not read.by(value):
            state = f"{path}={as_text(value)}"
            return f"{read.why} ({state})" if read.why else f"{path} is {as_text(value)}"
    return ""


def looked_up(program: Program, setting: Setting, read: Read) -> tuple[str, object]:
    """The path and the value of the deciding setting: the same part's, else the Program's; "" if
    this kind of source lacks it. ValueError if no program has it.
    """
    if (mine := getattr(setting.part, read.setting, MISSING)) is not MISSING:
        return setting.room + read.setting, mine
    value = valued(program, read.setting, MISSING)
    if value is MISSING and not read.setting.startswith("source."):
        near = hint(read.setting, list(values_of(setting.part)))
        raise ValueError(
            f"{setting.key}: expected a field of the same class, or a path of the Program, in "
            f"{type(read).__name__}(...), got {read.setting!r}{near}"
        )
    return read.setting, "" if value is MISSING else value
