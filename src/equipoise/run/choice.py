"""A choice: its record in ``run.json`` under ``choices``, what a resume keeps of it, and the choice
of how actors act.

The settings that may be ``auto`` are chosen in ``choices.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.actors.forward.choice import Acts, choose
from equipoise.actors.forward.forward import FORWARDS, can_round
from equipoise.files import LARGEST_JSON, parse_json, read_bounded
from equipoise.nets.compiled import pays
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.roles import network
from equipoise.record.schemas import RUN_SCHEMA
from equipoise.schema import check

Known = Mapping[str, Any]  # choices as run.json has them
KEY = "choices"  # of run.json: {name: a ``Choice`` as JSON}
# the name of the choice of how actors act; of several policies ``forward.POLICY``
FORWARD = "forward"
ASKS_AGAIN = {
    FORWARD: ("placement.precision", "placement.acting_precision", "placement.compile"),
    "precision": ("placement.device", "placement.compile", "placement.learners"),
    "threads": (
        "placement.device",
        "placement.compile",
        "placement.learners",
        "placement.precision",
    ),
}  # a resume that changes one of these settings makes the choice anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    value: Any
    why: str
    # what was measured, by value or combination
    measured: Mapping[str, float] = field(default_factory=dict)
    unit: str = ""  # of what was measured
    left_out: Sequence[str] = ()  # what there was no time to try

    def __str__(self) -> str:
        return f"{self.value}, since {self.why}"


def record(found: Mapping[str, Choice]) -> dict[str, dict[str, Any]]:
    """Choices as JSON."""
    return {name: dataclasses.asdict(choice) for name, choice in found.items()}


def read_choices(file: Path) -> Known:
    """A record from a file; ValueError that names the file and what is wrong in it."""
    found: Known = check(
        parse_json(read_bounded(file, LARGEST_JSON), file), RUN_SCHEMA[f"{KEY}?"], str(file)
    )
    return found


def kept(known: Known, changes: Collection[str]) -> dict[str, Any]:
    """The record without what a resume with these changes is told, or chooses anew."""
    return {
        name: choice
        for name, choice in known.items()
        if not _again(name, changes) and f"placement.{name}" not in changes
    }


def asked_again(known: Known, changes: Collection[str]) -> list[str]:
    """The settings that a resume chooses anew,
    since it changes what they depend on and not them.
    """
    return [
        name
        for name in known
        if _again(name, changes)
        and f"placement.{name}" not in changes
        and not name.startswith(FORWARD)
    ]


def _again(name: str, changes: Collection[str]) -> bool:
    return not set(ASKS_AGAIN.get(name.partition(".")[0], ())).isdisjoint(changes)


# ----------------------------------------------------------------------------------------- forwards


def forwards(blue: Blueprint, known: Known | None = None) -> dict[str, dict[str, Any]]:
    """Choose how each policy acts -> the record; ``known``: the choices that a resume keeps.

    ValueError where the weights cannot be rounded as the program says.
    """
    program, kept_ones, found = blue.program, known or {}, {}
    for policy, role in (
        blue.roles.items() if program.actors and program.source.played is not None else ()
    ):
        net, name = network(program, blue.spec, policy), _name(blue, policy)
        if blue.rolls_out:
            can_round(net, program.placement.acting_precision)
            found[name] = dataclasses.asdict(
                Choice(value="torch", why="the env is on the policy's device")
            )
            continue
        can_round(net, program.placement.acting_precision)
        if kept_ones.get(name, {}).get("value") in FORWARDS:
            found[name] = kept_ones[name]
            continue
        acts = Acts(
            role.algorithm,
            net,
            row=role.row,
            streams=program.placement.envs_per_actor * len(role.places),
            noise_columns=role.noise.columns,
            precision=program.placement.precision,
            acting=program.placement.acting_precision,
        )
        chosen = choose(
            acts,
            max_lag=program.placement.max_lag,
            compiled=program.placement.compile and pays(net),
            central=program.placement.inference == "central",
            partial=bool(program.placement.partial_streams),
        )
        took = {"torch": chosen.torch_us, "lean": chosen.lean_us}
        measured = {one: us for one, us in took.items() if us is not None}
        unit = "us for a row of an actor's streams" if measured else ""
        found[name] = dataclasses.asdict(
            Choice(value=chosen.forward, why=chosen.why, measured=measured, unit=unit)
        )
    return found


def forward_of(blue: Blueprint, found: Known) -> dict[str, str]:
    """{policy: a key of ``FORWARDS``} of a record."""
    return {
        policy: found[name]["value"]
        for policy in blue.roles
        if (name := _name(blue, policy)) in found
    }


def _name(blue: Blueprint, policy: str) -> str:
    return FORWARD if len(blue.roles) == 1 else f"{FORWARD}.{policy}"
