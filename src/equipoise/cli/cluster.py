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
        help="Which Ray cluster, with --on ray. auto: the one that RAY_ADDRESS names, or that runs "
        "on this machine. HOST:PORT: "
        "the one whose head is there. local (default): a new one on this machine, for this run "
        "alone.",
        rich_help_panel=WHERE,
    ),
]
ClusterSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        metavar="KEY=VALUE",
        help="How a run is placed, with --on ray; as often as you like. home_actors=N: so many "
        "actors on this machine, with "
        "the learner. labels=KEY=VALUE: only machines with that Ray label get actors. "
        "autoscale=true: wait for machines that "
        "are added. inference_at=home: with --inference central, this machine acts for the envs "
        "that others step. "
        "learners_at=actors, shards_at=actors: learners, or a replay's shards, go to the machines "
        "of their actors. "
        "link_deadline_s=5: when a silent machine counts as gone. They may change on a resume "
        "(docs/cluster.md).",
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
