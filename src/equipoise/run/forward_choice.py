"""The choice of each policy's forward: made once when the run begins, written into ``run.json``, and kept by a resume."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from equipoise.actors.forward.choice import Acts, choose, is_compiled
from equipoise.actors.forward.forward import FORWARDS, can_round
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.roles import network

KEY = "forward"  # key of run.json
ASKS_AGAIN = (
    "placement.precision",
    "placement.acting_precision",
    "placement.compile",
)  # settings that may make another forward the faster one


def chosen(blue: Blueprint, run: Mapping[str, Any] | None = None, changes: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Choose forwards -> {policy: a ``Choice`` as JSON}; ``run`` is the run.json of a resumed run, with these settings changed.

    ValueError where the weights cannot be rounded as the program says.
    """
    program, known = blue.program, (run or {}).get(KEY, {})
    found: dict[str, dict[str, Any]] = {}
    for name, role in blue.roles.items() if program.actors else ():
        net = network(program, blue.spec, name)
        can_round(net, program.placement.acting_precision)
        if name in known and known[name]["forward"] in FORWARDS and not set(changes) & set(ASKS_AGAIN):
            found[name] = known[name]
            continue
        acts = Acts(
            role.algorithm, net, row=role.row, streams=program.placement.envs_per_actor * len(role.places),
            noise_columns=role.noise.columns, precision=program.placement.precision, acting=program.placement.acting_precision,
        )  # fmt: skip
        choice = choose(
            acts,
            max_lag=program.placement.max_lag,
            compiled=is_compiled(net, program.placement.compile),
            central=program.placement.inference == "central",
        )
        found[name] = dataclasses.asdict(choice)
    return found


def forwards(found: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return {policy: a key of ``FORWARDS``}."""
    return {name: choice["forward"] for name, choice in found.items()}
