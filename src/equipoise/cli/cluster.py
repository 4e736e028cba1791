"""The options of a run over machines, which ``train`` and ``resume`` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from equipoise.types import WHERE

Address = Annotated[
    str | None,
    typer.Option(
        metavar="auto|HOST:PORT|local",
        help="With --on ray: the cluster that RAY_ADDRESS names or that runs here, the one at that address, or a new one "
        "on this machine. Default local.",
        rich_help_panel=WHERE,
    ),
]
ClusterSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        metavar="KEY=VALUE",
        help="With --on ray: home_actors=N on the learner's machine, labels=KEY=VALUE of machines for actors, autoscale=true, "
        "link_deadline_s=5. They are no part of the run's settings.",
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


def cluster_words(address: str | None, settings: Sequence[str] | None) -> list[str]:
    """Both options as they were typed, for another command."""
    return [
        *(["--address", address] if address is not None else []),
        *(w for one in settings or () for w in ("--cluster", one)),
    ]
