"""The shard of a replay (``experience/replay/shard.py``): it keeps the rows of some actors and
draws from them for the learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.experience.replay.shard import PARTS, Shard
from equipoise.experience.replay.store import Store
from equipoise.workers.kind import Job, KeepingKind, LearningKind, Member, Queue, Site, Wakes, Woken
from equipoise.workers.learner import first_priority, replay_seed

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint
    from equipoise.workers.shared import Shared


class ShardKind(KeepingKind, Wakes):
    """Keeps rows. A successor is empty."""

    name = "shard"
    parts = PARTS

    def count(self, blue: Blueprint) -> int:
        return len(blue.shards)

    def build(self, job: Job, site: Site) -> Shard:
        blue = job.blueprint
        policy, number = blue.shards[job.index]
        learner, mine = number % blue.learners, number // blue.learners
        plan = blue.replay(policy, learner)
        purpose = f"replay shard {number}" + (f" incarnation {job.life}" if job.life else "")
        store = Store(
            plan,
            seed=replay_seed(blue, purpose, policy),
            shard=mine,
            goals=blue.goals(policy),
            folder=Path(blue.segments) / Member(self, job.index).folder,
            priority=first_priority(blue, policy),
        )
        worker = Shard(
            plan,
            store,
            job.shared.mailboxes[policy][learner],
            mine,
            block=lambda place: site.queues[learner].block(place)[policy],
            wake=site.bell("learner"),
            clock=site.clock,
        )
        site.load(worker)
        return worker

    def progress(self, blue: Blueprint, shared: Shared, index: int) -> float:
        policy, number = blue.shards[index]
        mailbox = shared.mailboxes[policy][number % blue.learners]
        return mailbox.inserted(number // blue.learners) / 2

    def lost(self, blue: Blueprint, shared: Shared, queues: Sequence[Queue], index: int) -> str:
        policy, number = blue.shards[index]
        shared.mailboxes[policy][number % blue.learners].lost(number // blue.learners)
        return "its rows are lost"

    def wakes(self, blue: Blueprint, index: int, members: Sequence[Member]) -> Woken:
        rank = blue.shards[index][1] % blue.learners
        learners = (one for one in members if isinstance(one.kind, LearningKind))
        return {"learner": next(one for one in learners if one.index == rank)}
