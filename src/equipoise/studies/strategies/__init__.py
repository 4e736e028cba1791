"""Strategies of a study, one file each: which trials begin, go on, stop and are cloned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import cast

from equipoise import trust
from equipoise.facts import as_text, facts
from equipoise.hints import hint
from equipoise.naming import imported
from equipoise.programs.ranges import out_of_range
from equipoise.programs.settings import convert, pairs
from equipoise.studies.strategy import Plan, Strategy

HERE = "equipoise.studies.strategies"
NEEDED = ("ask", "needs_results", "changes_settings")
STRATEGIES = {  # imported with their first use
    "seeds": f"{HERE}.seeds:Seeds",
    "random": f"{HERE}.random_search:RandomSearch",
    "grid": f"{HERE}.grid:Grid",
    "asha": f"{HERE}.asha:ASHA",
    "median": f"{HERE}.median:MedianStopping",
    "optuna": f"{HERE}.by_optuna:ByOptuna",
    "cost_aware": f"{HERE}.cost_aware:CostAware",
    "pbt": f"{HERE}.pbt:PBT",
    "pb2": f"{HERE}.pb2:PB2",
}


def described() -> list[str]:
    """Return the strategies, each with its first sentence and its settings, as lines of text."""
    lines: list[str] = []
    for name in STRATEGIES:
        cls = strategy_class(name)
        first = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"{name:10} {first}")
        for key, fact in facts(cls).items():
            if key != "plan":
                lines.append(f"             {key}={as_text(fact.default)}: {fact.help}")
    return lines


def strategy_class(name: str, trusted: Sequence[str] = ()) -> type[Strategy]:
    """Return the class of a strategy: one of ``STRATEGIES``, or a trusted "module:Class".

    Raises:
        ValueError: for an unknown name, or a class that is no strategy.
        Untrusted: for a class of a module that is not trusted; nothing is imported.
    """
    known = name.replace("-", "_").lower()
    if known not in STRATEGIES:
        if not trust.is_class_name(name):
            raise ValueError(f"strategy: unknown name {name!r}{hint(name, STRATEGIES)}")
        trust.check([("strategy", name)], None, None, trusted, "study")
    found = imported(STRATEGIES.get(known, name), "strategy")
    if not (isinstance(found, type) and is_dataclass(found) and "plan" in facts(found)):
        raise ValueError(
            f"strategy {name!r}: must be a dataclass with a field 'plan', got {found!r}; try "
            f"deriving it from {HERE}.base:Base"
        )
    there = {*dir(found), *facts(found)}
    if lacking := next((one for one in NEEDED if one not in there), None):
        raise ValueError(
            f"strategy {name!r}: must have {lacking}, got none; try deriving it from "
            f"{HERE}.base:Base"
        )
    return cast("type[Strategy]", found)


def strategy_of(
    name: str, plan: Plan, settings: Sequence[str] = (), trusted: Sequence[str] = ()
) -> Strategy:
    """Return a strategy with settings such as "reduction=4"; ValueError for an unknown or
    impossible one. ``trusted``: modules whose classes may be imported by "module:Class".
    """
    cls = strategy_class(name, trusted)
    known = {key: fact for key, fact in facts(cls).items() if key != "plan"}
    given: dict[str, object] = {}
    for key, text in pairs(settings):
        if key not in known:
            raise ValueError(f"strategy {name}: unknown setting {key!r}{hint(key, known)}")
        given[key] = convert(text, known[key].kind, f"{name}.{key}")
    make: type = cls
    strategy: Strategy = make(plan=plan, **given)
    if wrong := out_of_range(strategy, f"{name}."):
        raise ValueError(wrong[0])
    return strategy
