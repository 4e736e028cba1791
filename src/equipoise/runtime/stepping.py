"""The body of an env worker's process (``actors/stepper.py``), which never loads torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.actors.episodes import Episodes
from equipoise.actors.exchange import EnvSide, Exchange
from equipoise.actors.stepper import EnvWorker
from equipoise.envs import make
from equipoise.envs.capsule import EnvFailed, Failures
from equipoise.envs.checks import WrongValue
from equipoise.envs.infos import NoNumber
from equipoise.envs.pettingzoo import PettingZooEnv, dealt
from equipoise.runtime import checkpoint, statefile
from equipoise.runtime.checkpoint import Source
from equipoise.runtime.errors import CannotResume, Damaged
from equipoise.runtime.ipc import Bell
from equipoise.runtime.loop import Duty, Spin, live, loop, write
from equipoise.types import Array, DealtEnv, EnvFactory

# A successor would come to the same: the run ends.
FINAL = (EnvFailed, WrongValue, NoNumber, CannotResume)


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """How the envs of a run are made: what of its Program they need."""

    env: EnvFactory
    policies: tuple[str, ...]
    route: Mapping[str, str]
    metrics: tuple[str, ...]

    def __call__(self, *, streams: Array, seed: int, failures: Failures | None = None, metrics: Sequence[str] = ()) -> DealtEnv:
        """The envs of these numbers, their agents dealt to the policies; ``metrics``: those that are told."""
        env = make(self.env, streams=streams, seed=seed, failures=failures, metrics=metrics)
        parted = dealt(env, policies=self.policies, route=self.route)
        if self.metrics and isinstance(parted, PettingZooEnv):
            env.close()
            raise ValueError(f"metrics: expected a Gymnasium env, got one of the agents {', '.join(parted.spec.env.agents)}")
        return parted


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some envs of one worker that are stepped together."""

    number: int
    envs: Array  # [E] int64, their numbers
    streams: Mapping[str, Array]  # by policy, [B] int64
    episodes: Episodes  # which has the counts of failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepping:
    """What an env worker does."""

    index: int  # of the actor
    making: Making
    seed: int
    failures: Failures
    groups: tuple[Group, ...]
    exchange: Exchange
    resume: Source | None  # the checkpoint that it goes on from

    def build(self, *, ring: Callable[[], object] = lambda: None, cut: Callable[[], int] = lambda: 0) -> EnvWorker:
        """``ring``, ``cut``: as of ``EnvWorker``."""
        envs = []
        for group in self.groups:
            counted = replace(self.failures, counts=group.episodes.failures, causes=group.episodes.causes)
            envs.append(self.making(streams=group.envs, seed=self.seed, failures=counted, metrics=self.making.metrics))
        sides = [EnvSide(self.exchange, group.number, group.streams) for group in self.groups]
        worker = EnvWorker(envs, sides, ring=ring, cut=cut)
        if self.resume is not None:
            source, name = self.resume, checkpoint.actor_file(self.index)
            try:
                worker.load(statefile.parse(source.read(name), source.path / name))
            except Damaged:
                raise
            except (KeyError, ValueError, TypeError, RuntimeError) as error:
                raise CannotResume.of(source.path / name, error) from error
        return worker


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvAssignment(Duty):
    """Everything an env worker's process is given."""

    stepping: Stepping
    server: Bell  # of its inference worker
    workers: int  # that step or act, in the run


def main(job: EnvAssignment) -> None:
    """Run one env worker until the stop word or the end of the driver."""
    live(job, partial(_work, job), final=FINAL)


def _work(job: EnvAssignment) -> None:
    saving = job.board.cut["save_actors"]
    worker = job.stepping.build(ring=job.server.ring, cut=lambda: int(saving[0]))
    if job.stepping.resume is not None and (said := restored(job.name, worker.envs)):
        job.outbox.send({"note": said})

    def save_worker(cut: int) -> bool:
        return write(job, cut, lambda: save(aside(job), job.stepping.index, worker))

    loop(job, worker, job.board.meter(job.name), save=save_worker, spin=Spin(job.workers))
    worker.close()


def aside(job: Duty) -> Path:
    """Where the checkpoint is that is being written."""
    return checkpoint.aside(Path(job.directory), job.step)


def save(place: Path, index: int, worker: EnvWorker) -> dict[str, checkpoint.Entry]:
    """Write the state of an actor's envs into the checkpoint that is aside."""
    return checkpoint.add(place, checkpoint.actor_file(index), statefile.dump(worker.state()))


def restored(name: str, envs: list[Any]) -> str | None:
    """What became of an actor's envs, for a person; None of envs that do not say."""
    if not all(env.resumed for env in envs):
        return None
    exact, replay, restart = (sum(env.resumed[kind] for env in envs) for kind in ("exact", "replay", "restart"))
    said = f"{name}: {exact} envs exactly as they were, {replay} brought back by replay, {restart} begin a new episode"
    return said + "".join(f" (stream {stream}: {why})" for env in envs for stream, why in list(env.restarts.items())[:1])
