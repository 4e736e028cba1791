"""The inference worker of central inference (``actors/inference/central.py``): it acts for the envs
of many env workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.actors.inference.central import PARTS, Batching, InferenceWorker
from equipoise.actors.inference.joint import JointForward
from equipoise.workers.agents import agents, build_forward
from equipoise.workers.kind import (
    ExchangingKind,
    Job,
    Member,
    ServingKind,
    Site,
    SteppingKind,
    Waits,
    Wakes,
    Woken,
    WritingKind,
)

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint


class InferenceKind(ServingKind, WritingKind, ExchangingKind, Wakes, Waits[InferenceWorker]):
    """Acts for envs that env workers step. A successor begins new episodes. Torsos are not
    compiled, since batches vary.
    """

    name = "inference"
    parts = PARTS

    def count(self, blue: Blueprint) -> int:
        return blue.inferences

    def build(self, job: Job, site: Site) -> InferenceWorker:
        blue, shared, program = job.blueprint, job.shared, job.blueprint.program
        assert shared.exchange is not None
        forwards = {name: build_forward(JointForward, blue, name) for name in blue.roles}
        weights = {name: shared.policies[name].actor_weights.handle() for name in blue.roles}
        groups = self.groups(blue, job.index)
        routed = [
            agents(blue, group, shared, site.queues, site.clock, forwards, weights)
            for group in groups
        ]
        bells = [site.bell(group) for group in groups]
        worker = InferenceWorker(
            forwards,
            routed,
            shared.exchange,
            first=groups.start,
            wake=lambda group: bells[group - groups.start](),
            batching=Batching(
                alone=program.placement.max_lag == 0,
                most=program.placement.inference_batch,
                wait_s=program.placement.inference_wait_ms / 1000,
            ),
            clock=site.clock,
        )
        if job.life:
            for one in routed:
                one.continue_after_gap()
        else:
            site.load(worker)
        return worker

    def groups(self, blue: Blueprint, index: int) -> range:
        return blue.served(index)

    def wakes(self, blue: Blueprint, index: int, members: Sequence[Member]) -> Woken:
        """The worker that steps each of its groups."""
        mine = self.groups(blue, index)
        steppers = [one for one in members if isinstance(one.kind, SteppingKind)]
        return {group: one for one in steppers for group in one.groups(blue) if group in mine}

    def patience(self, worker: InferenceWorker) -> float | None:
        return worker.patience_s
