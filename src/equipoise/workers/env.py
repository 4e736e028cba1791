"""The env worker of central inference (``actors/inference/stepper.py``): it steps the envs of an
actor, and never loads torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from equipoise.actors.episodes import Episodes
from equipoise.actors.inference.exchange import EnvSide, Exchange
from equipoise.actors.inference.stepper import PARTS, EnvWorker
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.maker import EnvMaker
from equipoise.seeds import derive_seed
from equipoise.types import Array, stream_ids
from equipoise.workers.kind import (
    BeginsAnew,
    ExchangingKind,
    Member,
    ServingKind,
    Site,
    SteppingKind,
    Torchless,
    Wakes,
    Woken,
)

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint
    from equipoise.workers.shared import Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some envs of one worker that are stepped together."""

    number: int
    envs: Array  # [E] int64, their numbers
    streams: Mapping[str, Array]  # by policy, [B] int64
    episodes: Episodes  # holds the counts of failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepping:
    """The work of one env worker."""

    env_maker: EnvMaker
    seed: int
    failures: Failures
    groups: tuple[Group, ...]
    exchange: Exchange


class EnvKind(SteppingKind, ExchangingKind, Torchless, Wakes, BeginsAnew):
    """Steps the envs of one actor; an inference worker chooses the actions. With an env worker that
    dies, the inference worker's memory of these episodes is dropped.
    """

    name = "actor"
    parts = PARTS

    def count(self, blue: Blueprint) -> int:
        return blue.program.actors if blue.inferences else 0

    def job(self, blue: Blueprint, shared: Shared, index: int, life: int) -> Stepping:
        assert shared.exchange is not None
        groups = [
            Group(
                number=g,
                envs=envs,
                streams={name: role.streams(envs) for name, role in blue.roles.items()},
                episodes=shared.actors[g],
            )
            for g, envs in (
                (g, stream_ids(g, blue.program.placement.group_envs)) for g in blue.groups(index)
            )
        ]
        return Stepping(
            env_maker=blue.env_maker,
            seed=env_seed(blue, shared, groups[0].number, life),
            failures=blue.failures(),
            groups=tuple(groups),
            exchange=shared.exchange,
        )

    def build(self, job: Stepping, site: Site) -> EnvWorker:
        envs = []
        for group in job.groups:
            failures, causes = group.episodes.failures, group.episodes.causes
            counted = replace(
                job.failures,
                counts=failures,
                causes=causes,
                resetting=partial(site.clock.add, "reset"),
            )
            envs.append(
                job.env_maker(
                    streams=group.envs,
                    seed=job.seed,
                    failures=counted,
                    metrics=job.env_maker.metrics,
                )
            )
        sides = [EnvSide(job.exchange, group.number, group.streams) for group in job.groups]
        worker = EnvWorker(envs, sides, wake=site.bell("server"), cut=site.cut, clock=site.clock)
        if site.load(worker):
            say_what_was_restored(site, worker.envs)
        return worker

    def wakes(self, blue: Blueprint, index: int, members: Sequence[Member]) -> Woken:
        first = blue.groups(index)[0]
        servers = (one for one in members if isinstance(one.kind, ServingKind))
        return {"server": next(one for one in servers if first in one.groups(blue))}


def env_seed(blue: Blueprint, shared: Shared, group: int, life: int) -> int:
    """The seed of a group's envs: another one if episodes cannot go on, since no episode may come a
    second time.
    """
    if not life and (blue.resume is None or blue.spec.env.resume != "restart"):
        return blue.program.schedule.seed
    # the checkpoint's facts are the same on a machine with a newer version
    if not life and blue.resume is not None:
        where = f"version {blue.resume.version}"
    else:  # with the row, since the count of lives begins again with a resume
        where = f"version {shared.version}, row {shared.actors[group].next_row}"
    return derive_seed(blue.program.schedule.seed, f"incarnation {life} from {where}")


class Resumes(Protocol):
    """Envs that a resume brought back, or that began new episodes."""

    @property
    def restarts(self) -> Mapping[int, str]: ...  # {stream: why} of the streams that began again
    @property
    def resumed(self) -> Mapping[str, int]: ...  # by "exact", "replay" and "restart"


def say_what_was_restored(site: Site, envs: Sequence[Resumes]) -> None:
    """Add a note on the fate of a worker's envs in a resume, for envs with that information."""
    if not all(env.resumed for env in envs):
        return
    exact, replay, restart = (
        sum(env.resumed[kind] for env in envs) for kind in ("exact", "replay", "restart")
    )
    said = (
        f"{site.title}: {exact} envs exactly as they were, {replay} brought back by replay, "
        f"{restart} begin a new episode"
    )
    site.note(
        said
        + "".join(
            f" (stream {stream}: {why})"
            for env in envs
            for stream, why in list(env.restarts.items())[:1]
        )
    )
