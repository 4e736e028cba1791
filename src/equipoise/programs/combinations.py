"""Combinations: settings that exclude or need each other, as their fields declare (``Excludes``,
``Needs``).
"""

from __future__ import annotations

from collections.abc import Iterator

from equipoise.facts import as_text
from equipoise.programs import fields
from equipoise.types import Program


def combination_problems(program: Program) -> list[str]:
    """A sentence for each setting that does not go with another one."""
    return [
        problem for setting in fields.settings(program) for problem in _problems(program, setting)
    ]


def _problems(program: Program, setting: fields.Setting) -> Iterator[str]:
    fact = setting.fact
    for one in (*fact.reads, *fact.excludes, *fact.needs):
        fields.looked_up(program, setting, one)  # ValueError for a name that is misspelt
    if (
        setting.value == fact.default
        or not (fact.excludes or fact.needs)
        or fields.why_unread(program, setting)
    ):
        return
    for one in fact.excludes:
        _, value = fields.looked_up(program, setting, one)
        if one.by(value):
            usual, why = as_text(fact.default) or "none", one.why.format(as_text(value))
            yield f"{setting.key}: expected {usual} {why}, got {shown(setting.value)}"
    for need in fact.needs:
        path, value = fields.looked_up(program, setting, need)
        if not need.by(value):
            yield f"{setting.key}: expected {path} {need.why}, got {shown(value)}"


def shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else as_text(value)
