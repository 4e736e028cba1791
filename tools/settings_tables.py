"""Write the tables of settings into the pages, from the annotations of the fields: ``python
tools/settings_tables.py``.

A table stands between ``<!-- settings: NAME -->`` and ``<!-- end of settings -->``. NAME is an
algorithm, or a class as ``module:Class``; the table has the fields that the class itself declares
(``module:Class[inference_*]``: some of them). The table of an algorithm ends with how its optimizer
differs from that of its base. The numbers of a run (``record/series.py``) stand between ``<!--
series -->`` and ``<!-- end of series -->``. ``--check`` writes nothing and ends with 1 where a page
is not current.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from equipoise.algorithms._memory import Remembers
from equipoise.facts import UNSET, Fact, as_text, facts
from equipoise.programs import fields
from equipoise.programs.program import algorithm_class
from equipoise.record import series
from equipoise.rewards.term import RewardTerm
from equipoise.types import Learns, Optimizer, Rewards

ROOT = Path(__file__).parents[1]
SERIES = re.compile(r"(<!-- series -->\n).*?(<!-- end of series -->)", re.DOTALL)
COMBINATIONS = re.compile(r"(<!-- combinations -->\n).*?(<!-- end of combinations -->)", re.DOTALL)
TABLE = re.compile(r"(<!-- settings: (\S+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)


def current(text: str) -> str:
    """The page with its tables as they should be."""
    text = TABLE.sub(lambda found: found[1] + table(*named(found[2])) + found[3], text)
    text = SERIES.sub(lambda found: found[1] + numbers() + found[2], text)
    return COMBINATIONS.sub(lambda found: found[1] + combinations() + found[2], text)


def combinations() -> str:
    """What excludes or needs what: a row for each ``Excludes`` and ``Needs`` of a field."""
    rows = []
    for room, cls in fields.rooms(replay=True):
        for fact in facts(cls).values():
            for one in (*fact.excludes, *fact.needs):
                other = one.setting if "." in one.setting else room + one.setting
                values = " or ".join(f"`{as_text(value)}`" for value in one.values)
                state = (
                    "set"
                    if one.values == UNSET
                    else f"other than {values}"
                    if one.unless
                    else values
                )
                verdict = "needs" if one in fact.needs else "excludes"
                rows.append(
                    f"| `{room}{fact.name}` | {verdict} | `{other}` | {state} | "
                    f"{one.why.replace('{}', '...')} |"
                )
    return "\n".join(
        [
            "| setting, if changed | | other setting | if it is | the sentence |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def numbers() -> str:
    """The numbers of a run, a row each, and those with labels."""
    rows = [
        "| number | unit | | TensorBoard, W&B | Prometheus | live.json | summary.json | plot |",
        "|" + "---|" * 8,
    ]
    for one in series.SERIES:
        metric = f"equipoise_{one.metric}{'_total' * one.rises}" if one.metric else ""
        places = (one.scalar, metric, one.live, one.name * one.summary, one.curve)
        cells = [f"`{place}`" if place else "" for place in places]
        rows.append(f"| `{one.name}` | {one.unit} | {one.words} | {' | '.join(cells)} |")
    rows += ["", "| by labels, in Prometheus | labels | |", "|---|---|---|"]
    for family in series.FAMILIES:
        name = f"equipoise_{family.metric}{'_total' * family.rises}"
        rows.append(
            f"| `{name}` | {', '.join(f'`{label}`' for label in family.labels)} | {family.words} |"
        )
    return "\n".join([*rows, ""])


def named(name: str) -> tuple[type[Any], str]:
    """A class and the pattern of those of its fields that are meant."""
    name, _, pattern = name.removesuffix("]").partition("[")
    module, separator, attribute = name.partition(":")
    cls: type[Any] = (
        getattr(importlib.import_module(module), attribute) if separator else algorithm_class(name)
    )
    return cls, pattern or "*"


def table(cls: type[Any], pattern: str = "*") -> str:
    """The settings that a class declares, or declares again with another default."""
    own = inspect.get_annotations(cls)
    shown = [
        fact
        for name, fact in facts(cls).items()
        if name in own and fact.help and fnmatch(name, pattern)
    ]
    kept = issubclass(cls, Learns | Optimizer | Rewards | RewardTerm | Remembers)
    rows = [row(fact, kept=kept) for fact in shown]
    if issubclass(cls, Learns) and cls is not Learns and "default_optimizer" in vars(cls):
        rows += [row(fact, kept=True) for fact in optimizers(cls)]
    return "\n".join(["| setting | default | values | |", "|---|---|---|---|", *rows, ""])


def optimizers(cls: type[Learns]) -> Iterator[Fact]:
    """The settings of the optimizer that an algorithm has otherwise than its base."""
    base, own = inspect.getmro(cls)[1].default_optimizer, cls.default_optimizer  # type: ignore[attr-defined]
    for name, fact in facts(Optimizer).items():
        if getattr(base, name) != getattr(own, name):
            yield dataclasses.replace(fact, name=f"optimizer.{name}", default=getattr(own, name))


def row(fact: Fact, *, kept: bool) -> str:
    """``kept``: name what a resume keeps; else what it may change."""
    default = (
        ""
        if fact.default is dataclasses.MISSING or fact.default in ("", (), {})
        else as_text(fact.default)
    )
    parts = [f"{fact.help.removesuffix('.')}.", *([fact.more] if fact.more else [])]
    if fact.reads:
        parts.append(f"Used {' and '.join(map(str, fact.reads))}.")
    if fact.flag is not None:
        parts.append(f"`--{fact.flag.name or fact.name.replace('_', '-')}`.")
    if kept and fact.rule == "kept":
        parts.append("A resume keeps it.")
    elif not kept and fact.rule == "free":
        parts.append("A resume may change it.")
    return (
        f"| `{fact.name}` | {default} | {fact.limits} | "
        f"{' '.join(parts).replace('|', chr(92) + '|')} |"
    )


def pages() -> list[Path]:
    return [
        page
        for page in sorted(ROOT.glob("docs/**/*.md"))
        if any(one.search(page.read_text()) for one in (TABLE, COMBINATIONS, SERIES))
    ]


def main() -> None:
    stale = [page for page in pages() if current(page.read_text()) != page.read_text()]
    if "--check" not in sys.argv:
        for page in stale:
            page.write_text(current(page.read_text()))
    print("\n".join(str(page.relative_to(ROOT)) for page in stale) or "every table is current")
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
