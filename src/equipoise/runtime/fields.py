"""Every setting of a Program, with its key for ``--set`` and the facts that its annotation says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from equipoise.facts import Fact, Read, facts, said
from equipoise.types import EnvFactory, Frozen, Optimizer, Policy, Program, Replay

PARTS = ("algorithm", "optimizer", "replay")  # of a policy; each has settings of its own

__all__ = ["PARTS", "Setting", "named", "rooms", "settings", "why_unread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of one part of a Program."""

    key: str  # as differences and refusals name it
    names: tuple[str, ...]  # every key by which ``--set`` knows it
    fact: Fact
    part: Any  # the dataclass that has it
    room: str  # where that stands: "", "algorithm.", "replay.", "policies.NAME.algorithm."
    rule: Literal["free", "kept"]  # of a resume

    @property
    def value(self) -> Any:
        return getattr(self.part, self.fact.name)


def rooms(*, replay: bool = False) -> list[tuple[str, type[Any]]]:
    """The dataclasses that every run has, each with what its ``--set`` keys begin with; ``replay``: a replay's as well."""
    return [
        ("", Program),
        ("", EnvFactory),
        ("policy.", Policy),
        ("optimizer.", Optimizer),
        *([("replay.", Replay)] if replay else []),
    ]


def settings(program: Program) -> Iterator[Setting]:
    """All of them: the run's, then each policy's, its algorithm's, its optimizer's and its replay's."""
    yield from _of(program, "", skip=("env", "policies", "route"))
    yield from _of(program.env, "", skip=("target", "kwargs"))
    several = len(program.policies) > 1
    for name, policy in program.policies.items():
        room = f"policies.{name}." if several else ""
        learns = isinstance(policy, Policy)
        yield from _of(
            policy, room, ("", "policy.") if learns else (), skip=("algorithm", "optimizer", "replay"), first=room or "policy."
        )
        if isinstance(policy, Frozen):
            continue
        yield from _of(policy.algorithm, f"{room}algorithm.", ("algorithm.",), otherwise="free")
        yield from _of(policy.optimizer, f"{room}optimizer.", ("optimizer.",), otherwise="free")
        if policy.replay is not None:
            yield from _of(policy.replay, f"{room}replay.", ("replay.",))


def _of(
    part: Any,
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
            yield Setting(key=names[0], names=names, fact=fact, part=part, room=room, rule=fact.rule or otherwise)


def named(program: Program, key: str) -> list[Setting]:
    """The settings that ``--set KEY`` changes: of several policies that learn, one each."""
    return [setting for setting in settings(program) if key in setting.names]


def why_unread(program: Program, setting: Setting) -> str:
    """Why nothing reads this setting while the others are as they are; "" where something does."""
    for read in setting.fact.reads:
        path, value = _looked_up(program, setting, read)
        if not read.by(value):
            state = f"{path}={said(value)}"
            return f"{read.why} ({state})" if read.why else f"{path} is {said(value)}"
    return ""


def _looked_up(program: Program, setting: Setting, read: Read) -> tuple[str, Any]:
    """The path and the value of the setting that decides: the same part's, else the Program's."""
    if hasattr(setting.part, read.setting):
        return setting.room + read.setting, getattr(setting.part, read.setting)
    value: Any = program
    for name in read.setting.split("."):
        value = getattr(value, name)
    return read.setting, value
