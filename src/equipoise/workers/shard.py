"""The shard of a replay (``experience/replay/shard.py``): it keeps the rows of some actors and
draws from them for the learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.experience.replay.shard import PARTS, Shard
from equipoise.experience.replay.store import Store
from equipoise.workers.kind import Job, Kind, Member, Queue, Site
from equipoise.workers.learner import LearnerKind, first_priority, replay_seed

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint
    from equipoise.workers.shared import Shared


class ShardKind(Kind):
    """Keeps rows. A successor is empty."""

    name = "shard"
    side = "keeping"
    parts = PARTS
    reloads = False

    def count(self, blue: Blueprint) -> int:
        return len(blue.shards)

    def build(self, job: Job, site: Site) -> Shard:
        blue = job.blueprint
        policy, number = blue.shards[job.index]
        learner, mine = number % blue.learners, number // blue.learners
        plan, purpose = (
            blue.replay(policy, learner),
            f"replay shard {number}" + (f" incarnation {job.life}" if job.life else ""),
        )
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
            ring=site.bell(_learner(blue, number)),
            clock=site.clock,
        )
        site.load(worker)
        return worker

    def progress(self, blue: Blueprint, shared: Shared, index: int) -> int:
        policy, number = blue.shards[index]
        return shared.mailboxes[policy][number % blue.learners].inserted(number // blue.learners)

    def stride(self, blue: Blueprint) -> int:
        return 2

    def lost(self, blue: Blueprint, shared: Shared, queues: Sequence[Queue], index: int) -> str:
        policy, number = blue.shards[index]
        shared.mailboxes[policy][number % blue.learners].lost(number // blue.learners)
        return "its rows are lost"

    def wakes(self, blue: Blueprint, index: int) -> tuple[str, ...]:
        return (_learner(blue, blue.shards[index][1]),)


def _learner(blue: Blueprint, number: int) -> str:
    """The title of the learner that a policy's shard keeps rows for."""
    return Member(LearnerKind(), number % blue.learners).title
