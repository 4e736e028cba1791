"""The things that a run begins with, besides its program: its services, and its directory, which is
new or goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import trust
from equipoise.envs.check.info_probe import unseen
from equipoise.plans import spec
from equipoise.plans.beginning import Beginning, Resumed
from equipoise.plans.blueprint import Blueprint
from equipoise.programs.program import differences
from equipoise.record.directory import CLUSTER, CLUSTER_PROOF, RunDirectory
from equipoise.record.report import step_of
from equipoise.tuning import choice
from equipoise.tuning.forward import forwards
from equipoise.types import On
from equipoise.workers.kind import Kind
from equipoise.workers.kinds import KINDS

if TYPE_CHECKING:
    from equipoise.runtime.cluster.on_ray import RayNodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Where a run's workers are, and where its record goes besides its directory."""

    on: On = "process"
    kinds: Sequence[Kind] = KINDS  # of workers that the run is made of
    # with on="ray": the machines of the cluster, which the run leaves at its end
    nodes: RayNodes | None = None
    tensorboard: bool = True  # are event files written; a resume keeps it
    report_to: str | Sequence[str] = ()  # trackers; a resume keeps them
    mirror: str | None = None  # a URL that the run is copied to
    # the record of what was measured for the program
    chosen: choice.Known = field(default_factory=dict)
    notes: Sequence[str] = ()  # sentences that the first report tells
    callbacks: Sequence[object] = ()  # of a user: see ``callbacks.py``


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The directory of a run that begins, and its record of the beginning."""

    files: RunDirectory
    forward: choice.Known  # the record of how each policy acts
    # of a run that goes on: {setting: [before, now]}
    changes: Mapping[str, list[Any]] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def opened(blue: Blueprint, beginning: Beginning, services: Services) -> Opened:
    """Make the directory of a run, or write again into the directory of the resumed run."""
    if isinstance(beginning, Resumed):
        return _gone_on(blue, beginning, services)
    return _made(blue, beginning.out, services)


def _made(blue: Blueprint, out: Path | None, services: Services) -> Opened:
    program = blue.program
    metrics = program.source.reported
    warnings = unseen(program.env, metrics, seed=program.schedule.seed) if metrics else []
    forward = forwards(blue)
    said: dict[str, object] = {"env_notes": list(blue.notes)}
    if services.mirror is not None:
        said["mirror"] = services.mirror
    files = RunDirectory.create(
        out,
        program,
        on=services.on,
        tensorboard=services.tensorboard,
        report_to=services.report_to,
        spec=spec.to_json(blue),
        mirror=services.mirror,
        extra=spec.described(blue) | _extra(blue, {**services.chosen, **forward}, services) | said,
    )
    return Opened(files=files, forward=forward, warnings=warnings)


def _gone_on(blue: Blueprint, beginning: Resumed, services: Services) -> Opened:
    files, program = beginning.directory, blue.program
    spec.check_reward_models(files.run, program)
    changes = differences(files.program, program)
    known = choice.kept(files.run.get(choice.KEY, {}), changes)
    forward = forwards(blue, known)
    files.go_on(
        program,
        on=services.on,
        step=step_of(beginning.source.meta),
        changes=changes,
        mirror=services.mirror,
        extra=_extra(blue, {**known, **services.chosen, **forward}, services),
        spec=spec.to_json(blue),
        source=beginning.source,
    )
    return Opened(files=files, forward=forward, changes=changes)


def _extra(blue: Blueprint, choices: choice.Known, services: Services) -> dict[str, object]:
    """The part of ``run.json`` on the choices and the cluster."""
    said: dict[str, object] = {choice.KEY: choices}
    if services.nodes is not None:
        said[CLUSTER] = settings = services.nodes.settings(blue, services.kinds)
        if names := trust.of_cluster(settings):
            said[CLUSTER_PROOF] = trust.sign(names, settings, make=True)
    return said
