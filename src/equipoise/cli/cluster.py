"""The options of a run over machines, which ``train`` and ``resume`` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from equipoise.console.options import option_of
from equipoise.facts import facts
from equipoise.programs.cluster import Cluster
from equipoise.types import WHERE

Address = Annotated[str | None, option_of(facts(Cluster)["address"])]
ClusterSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        metavar="KEY=VALUE",
        help="Setting of the cluster, such as home_actors=0; repeatable",
        rich_help_panel=WHERE,
    ),
]


def cluster_settings(address: str | None, settings: Sequence[str] | None) -> dict[str, Any]:
    """Read both options -> settings by name; ValueError for a text that is no KEY=VALUE."""
    found: dict[str, Any] = {} if address is None else {"address": address}
    for text in settings or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--cluster: expected KEY=VALUE, such as home_actors=0, got {text!r}")
        found[key.strip()] = value.strip()
    return found
