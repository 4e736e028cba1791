"""The actor of local inference (``actors/worker.py``): it steps envs and chooses actions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from equipoise.actors.partial import PartialActor
from equipoise.actors.worker import PARTS, ActorWorker
from equipoise.sources.source import source_of
from equipoise.types import stream_ids
from equipoise.workers.agents import agents, compile_torso
from equipoise.workers.env import env_seed, say_what_was_restored
from equipoise.workers.kind import Job, Site, SteppingKind, Waits, WritingKind

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint


class ActorKind(SteppingKind, WritingKind, Waits[ActorWorker]):
    """Steps envs and acts for them, with networks and weight handles of its own.

    A successor begins new episodes, with seeds of their own and a gap in its streams' row numbers.
    """

    name = "actor"
    parts = PARTS

    def count(self, blue: Blueprint) -> int:
        if blue.inferences or blue.rolls_out or source_of(blue.program).sampler != self.name:
            return 0
        return blue.program.actors

    def build(self, job: Job, site: Site) -> ActorWorker:
        blue, shared, index = job.blueprint, job.shared, job.index
        acts = agents(blue, index, shared, site.queues, site.clock)
        env = blue.make_env(
            streams=stream_ids(index, blue.program.placement.group_envs),
            seed=env_seed(blue, shared, index, job.life),
            failures=blue.failures(shared.actors[index], partial(site.clock.add, "reset")),
            metrics=blue.program.source.reported,
        )
        worker = (PartialActor if blue.program.placement.partial_streams else ActorWorker)(
            env, acts, site.clock
        )
        if job.life:
            acts.continue_after_gap()
        elif site.load(worker):
            say_what_was_restored(site, [worker.env])
        for name, one in acts.agents.items():
            streams = blue.program.placement.envs_per_actor * len(blue.roles[name].places)
            if (said := compile_torso(blue, name, one.net, streams)) is not None:
                site.note(said)
        return worker

    def listens(self, worker: ActorWorker) -> tuple[int, ...]:
        return worker.env.fds()
