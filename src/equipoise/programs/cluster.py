"""Settings of a cluster, which ``--cluster`` and a run from Python take by name. They are no part
of a Program, and may change on a resume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from equipoise.facts import Flag, Help, Range, facts
from equipoise.hints import hint
from equipoise.programs.ranges import beyond
from equipoise.types import WHERE

At = Literal["actors", "home"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """How a run is placed on the machines of a Ray cluster. *Home* is the learner's machine."""

    address: Annotated[
        str,
        Help(
            "Ray cluster; local starts a new one for this run",
            "auto: the cluster that RAY_ADDRESS names or that runs on this machine. "
            "HOST:PORT: the cluster with its head there. local: a new cluster on this "
            "machine.",
        ),
        Flag(WHERE, "auto|HOST:PORT|local"),
    ] = "local"
    home_actors: Annotated[
        Annotated[int, Range(0)] | None,
        Help("Actors on the learner's machine; none uses all that fit"),
    ] = None
    labels: Annotated[
        Mapping[str, str],
        Help("Ray labels of actor machines, as KEY=VALUE,KEY=VALUE"),
    ] = field(default_factory=dict)
    scorer_labels: Annotated[
        Mapping[str, str],
        Help("Ray labels of scorer machines, as KEY=VALUE,KEY=VALUE"),
    ] = field(default_factory=dict)
    autoscale: Annotated[bool, Help("Wait for machines that an autoscaler adds")] = False
    inference_at: Annotated[At, Help("Machines of central inference workers")] = "actors"
    learners_at: Annotated[
        At,
        Help(
            "Machines of all learners but the first",
            "actors: each learner runs with the actors that feed it.",
        ),
    ] = "home"
    shards_at: Annotated[
        At,
        Help(
            "Machines of the replay shards", "actors: each shard runs with the actors that feed it."
        ),
    ] = "home"
    # a machine sends a beat twice a second
    link_deadline_s: Annotated[
        float, Range(2, 3600), Help("Seconds of silence until a machine counts as lost")
    ] = 5.0


def read_cluster(given: Mapping[str, object]) -> Cluster:
    """Read settings of a cluster, given as texts or as values; ValueError in one line."""
    from equipoise.programs.settings import convert  # gymnasium: not for the help of a command

    known = facts(Cluster)
    values = {}
    for name, value in given.items():
        where = f"cluster.{name}"
        if name not in known:
            raise ValueError(f"cluster: got the unknown setting {name!r}{hint(name, known)}")
        if name in ("labels", "scorer_labels") and isinstance(value, str):
            value = _labels(value, where)
        values[name] = convert(value, known[name].kind, where)
        for number, limit in beyond(values[name], known[name].annotated):
            raise ValueError(f"{where}: expected {limit}, got {number}")
    return Cluster(**values)


def _labels(text: str, where: str) -> dict[str, str]:
    found = {}
    for one in text.split(","):
        key, equals, value = (part.strip() for part in one.partition("="))
        if not (key and equals and value):
            raise ValueError(
                f"{where}: expected KEY=VALUE, with commas between several, got {text!r}"
            )
        if key in found:
            raise ValueError(f"{where}: expected each label once, got {key!r} twice")
        found[key] = value
    return found
