"""The measurements of a recorded run's workers: the model of its ring, from ``run.json`` and
``metrics.jsonl``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

from equipoise.balance.calibrate import Calibrated, beyond, calibrate
from equipoise.balance.shares import SECONDS, Shares, Side, add
from equipoise.record.directory import RunDirectory
from equipoise.record.report import METRICS
from equipoise.schema import Anything, Each, Flag, Items, Number, Schema, Text, check

NAMES = tuple(field.name for field in fields(Shares))
NUMBER = Number(-1e12, 1e12)
WORKER: Schema = dict.fromkeys(SECONDS, NUMBER) | {
    "parts": Each(NUMBER),
    "counts": Each(NUMBER),
    "kind": Text(100),
    "side": Text(among=get_args(Side)),
    "serves": Flag(),
    "*": Anything(),
}

SITE: Schema = {"machine": Text(100), "workers": Items(Text(100)), "*": Anything()}


def machines_of(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The machine, or else the site, of each worker that is not at home, by its title."""
    return {
        title: site["machine"] or name for name, site in sites.items() for title in site["workers"]
    }


def measured(run: RunDirectory) -> Calibrated:
    """Calibrate the model by the workers' numbers after the first update.

    ValueError if that is too little, or the model does not cover such runs (``calibrate.beyond``).
    """
    where = run.path / METRICS
    if run.run["on"] == "serial":
        raise ValueError(
            f"{run.path}: expected a run on processes, got one on serial, whose workers take "
            "turns; train with --on process (on='process') first"
        )
    if run.program.source.recorded:
        raise ValueError(
            f"{run.path}: expected a run with actors, got one that learns from recorded rows alone"
        )
    if run.program.placement.balance == "auto":
        raise ValueError(
            f"{run.path}: expected a run with --balance off, got one whose actors and lag changed "
            "meanwhile"
        )
    lines = [line for line in run.metrics() if not line.get("final") and "balance" in line]
    if not lines:
        raise ValueError(
            f"{where}: expected records, got none: the run ended, or was looked at, before its "
            "first one"
        )
    begun = next((number for number, line in enumerate(lines) if line["updates"]), len(lines)) + 1
    # the first report with an update includes the start of some worker
    later = lines[begun:] or lines[-1:]
    balance = _sum([_read(line["balance"], f"{where}, step {line['env_steps']}") for line in later])
    machines = machines_of(check(lines[-1].get("sites", {}), Each(SITE), f"{where}, sites"))
    if unknown := beyond(balance, machines):
        raise ValueError(
            f"{run.path}: expected a run whose actors alone are on other machines, got {unknown}"
        )
    found = calibrate(
        run.program, balance, cores=run.run.get("host", {}).get("cores", 1), machines=machines
    )
    if found is None:
        raise ValueError(
            f"{where}: expected records in which every worker did something, got too little; let "
            "the run go on"
        )
    if found.doubt:
        raise ValueError(f"{run.path}: expected a run that had its cores: {found.doubt}")
    return found


def _read(balance: object, where: str) -> dict[str, Shares]:
    for title, worker in balance.items() if isinstance(balance, Mapping) else ():
        if isinstance(worker, Mapping) and (
            missing := [name for name in NAMES if name not in worker]
        ):
            raise ValueError(
                f"{where}: expected what this version measures of {title}, got no {missing[0]}: "
                "another wrote it"
            )
    rows = check(balance, Each(WORKER), where)
    return {title: Shares(**{name: row[name] for name in NAMES}) for title, row in rows.items()}


def _sum(lines: Sequence[Mapping[str, Shares]]) -> dict[str, Shares]:
    """The seconds of several records; of the workers of the last one."""
    found = {}
    for title, last in lines[-1].items():
        total = add(line[title] for line in lines if title in line)
        found[title] = Shares(
            **{name: max(seconds, 0.0) for name, seconds in total.seconds.items()},
            parts=total.parts,
            counts=total.counts,
            kind=last.kind,
            side=last.side,
            serves=last.serves,
        )
    return found
