"""The settings of a run that Python's functions take as keyword parameters, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING

from equipoise.facts import Fact, as_text, facts
from equipoise.programs.fields import shorts
from equipoise.types import SECTIONS, Policy, ReplaySettings, Rewards

__all__ = ["OF_POLICY", "REPLAY_MEMORY", "described", "fields_of_python"]

OF_POLICY = ("unroll", "batch", "publish_every")
REPLAY_MEMORY = "replay_memory"  # the one option whose setting is a replay's
FIRST = ("steps", "seed", "actors", "envs_per_actor")


def fields_of_python() -> Mapping[str, Fact]:
    """The fields by the names of their options: the commonest first, then those that are options of
    the command line, by section, then the others.
    """
    found = {name: fact for name, (_, fact) in shorts().items()}
    found |= {name: facts(Policy)[name] for name in OF_POLICY}
    found["reward"] = facts(Rewards)["sum"]
    found[REPLAY_MEMORY] = facts(ReplaySettings)["memory"]
    return dict(sorted(found.items(), key=lambda item: _place(*item)))


def _place(name: str, fact: Fact) -> tuple[int, int]:
    if name in FIRST:
        return -1, FIRST.index(name)
    section = fact.flag.section if fact.flag is not None else ""
    return (SECTIONS.index(section) if section in SECTIONS else len(SECTIONS)), 0


def described(fact: Fact) -> str:
    """The help of a field with its default; a recipe or an algorithm may have another one."""
    text, more = fact.help.removesuffix("."), f" {fact.more}" if fact.more else ""
    if fact.default is MISSING or "(default" in text:
        return f"{text}.{more}"
    return f"{text} (default: {as_text(fact.default) or 'none'}).{more}"
