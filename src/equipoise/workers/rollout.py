"""The rollout (``actors/rollout.py``): a device env and its policy on the learner's device, a whole
unroll a tick.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from equipoise.actors.agent import ActingParts, StreamNumbers
from equipoise.actors.capture import capture
from equipoise.actors.forward.forward import Forward
from equipoise.actors.rollout import PARTS, Rollout, SteppedEnv
from equipoise.actors.routed import PolicySlot, SharedBlock
from equipoise.device_envs.naming import make_device_env
from equipoise.experience.staged import Staged
from equipoise.seeds import derive_seed
from equipoise.types import Places, stream_ids
from equipoise.types.sources import DEVICE
from equipoise.workers.agents import build_forward
from equipoise.workers.env import env_seed, say_what_was_restored
from equipoise.workers.kind import Job, Site, SteppingKind, Threaded, WritingKind

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint


class RolloutKind(SteppingKind, WritingKind, Threaded):
    """Steps a device env and acts in it: one batch of many streams, as the learner has. A successor
    begins new episodes, as an actor's does.
    """

    name = "rollout"
    parts = PARTS
    alike = False  # a tick is an unroll

    def count(self, blue: Blueprint) -> int:
        return blue.program.actors if blue.rolls_out else 0

    def build(self, job: Job, site: Site) -> Rollout:
        blue, shared, index = job.blueprint, job.shared, job.index
        program, (name,) = blue.program, blue.learns
        role, memory = blue.roles[name], shared.policies[name]
        streams = role.streams(stream_ids(index, program.placement.group_envs))
        target = program.env.target
        forward = build_forward(Forward, blue, name)
        env = make_device_env(
            target.removeprefix(DEVICE),
            program.env.kwargs,
            streams=len(streams),
            device=forward.device,
        )
        places: Places = PolicySlot(SharedBlock(site.queues[blue.learner_of(index)], 1), name)
        if forward.device.type != "cpu":
            said = (
                f"{site.title}: rows go through the host's memory; with --on serial and no "
                "replay they stay on the device"
            )
            places = Staged(
                places,
                role.row,
                blue.unroll,
                len(streams),
                forward.device,
                partial(site.note, said),
            )
        envs = program.actors * program.placement.envs_per_actor
        worker = Rollout(
            SteppedEnv(
                env=env,
                name=target,
                seed=env_seed(blue, shared, index, job.life),
                observation=role.row.obs,
                note=site.note,
            ),
            acting=ActingParts(
                forward=forward,
                weights=memory.actor_weights.handle(),
                noise=role.noise,
                seed=derive_seed(program.schedule.seed, "actions"),
                rounding=memory.rounding[index] if memory.rounding else None,
            ),
            places=places,
            episodes=memory.episodes[index],
            streams=StreamNumbers(numbers=streams, total=envs, envs=envs),
            unroll=blue.unroll,
            clock=site.clock,
            capture=capture(
                forward.device,
                compile_rows=program.placement.compile,
                note=site.note,
                pure=env.exact and getattr(env, "traceable", True),
            ),
        )
        if job.life:
            worker.continue_after_gap()
        elif site.load(worker):
            say_what_was_restored(site, [worker])
        return worker
