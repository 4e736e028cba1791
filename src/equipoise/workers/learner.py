"""The learner (``learners/worker.py``): it takes batches and publishes new weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from equipoise import tree
from equipoise.experience.recorded.offline import Offline, RecordedRows
from equipoise.experience.replay.feed import Fresh, ReplayFeed
from equipoise.experience.replay.replay import Replay
from equipoise.experience.replay.sharded import Sharded
from equipoise.learners.curriculum import Curriculum
from equipoise.learners.execution import chosen
from equipoise.learners.lags import Lags
from equipoise.learners.learner import Learner
from equipoise.learners.meeting import Meeting, Seat, SharedMeeting, Solo
from equipoise.learners.opponents import OpponentPool
from equipoise.learners.worker import PARTS, LearnerWorker, PolicyLearner
from equipoise.plans.memory_needed import queue_plan
from equipoise.publishing import publish
from equipoise.record import statefile
from equipoise.rewards.step import scaled
from equipoise.seeds import policy_seed
from equipoise.sources.curricula import curriculum
from equipoise.sources.source import task_of
from equipoise.sums import ENV, parsed
from equipoise.types import (
    Algorithm,
    Array,
    Experience,
    Rewards,
    Trajectory,
    Tree,
    Worker,
    learning,
)
from equipoise.workers.kind import (
    Job,
    KeepingKind,
    LearningKind,
    Member,
    OwnsMemory,
    Queue,
    Site,
    Threaded,
    Wakes,
    Woken,
)
from equipoise.workers.shared import Shared

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint


class LearnerKind(LearningKind, OwnsMemory, Wakes, Threaded):
    """Kind of the learner. A lost learner is replaced if another learner holds its state
    (``Blueprint.replaceable``).

    If no learner is replaceable, all workers begin again from the newest checkpoint.
    """

    name = "learner"
    parts: ClassVar[tuple[str, ...]] = PARTS

    def count(self, blue: Blueprint) -> int:
        return blue.learners if blue.program.placement.text == "apart" else 0

    def memory(self, blue: Blueprint) -> Tree:
        return SharedMeeting.specs(blue.learners) if blue.learners > 1 else {}

    def build(self, job: Job, site: Site) -> Worker:
        return self.learner(job, site)

    def learner(self, job: Job, site: Site) -> LearnerWorker:
        """The worker that learns."""
        blue, shared, rank = job.blueprint, job.shared, job.index
        meeting = self._meeting(job, site)
        nets = blue.first_networks()
        past = {
            name: OpponentPool(
                role.frozen,
                shared.policies[name].weights,
                tree.named_tensors(nets[name]),
                seed=policy_seed(blue.program.schedule.seed, "past", name),
            )
            for name, role in blue.roles.items()
            if role.frozen is not None and rank == 0
        }
        learners = {name: blue.learner(name, nets[name], meeting.pool) for name in blue.learns}
        experiences = _experiences(blue, shared, site, rank, learners)
        lines = {
            name: _line(blue, name, learners[name], shared, experiences[name])
            for name in blue.learns
        }
        worker = LearnerWorker(
            lines,
            queue=site.queues[rank],
            meeting=meeting,
            replaceable=blue.replaceable,
            past=past,
            updates=blue.updates,
            record_every=blue.record_every,
            publishes=rank == min(shared.queues),
            clock=site.clock,
            lags=Lags(site.lags),
            record=site.record,
            gate=site.gate(
                every=blue.checkpoint_every,
                last=blue.updates,
                round_=blue.pace.updates,
                due=blue.examines,
            ),
        )
        if not job.life:
            site.load(worker)
            worker.begin()
        for line in worker.lines.values():
            learner = line.learner
            learner.pulse, learner.clock = site.pulse, site.clock  # a tick may last for minutes
            execution = chosen(
                learner.algorithm,
                learner.terms,
                learner.net,
                learner.rng,
                blue.program.placement,
                site.note,
            )
            learner.set_execution(execution)
        return worker

    def vital(self, blue: Blueprint, shared: Shared, index: int) -> bool:
        if not blue.replaceable:
            return True
        fresh = shared.own[self.name].views["fresh"]
        return all(fresh[other] for other in range(blue.learners) if other != index)

    def progress(self, blue: Blueprint, shared: Shared, index: int) -> float:
        return 0 if blue.learners == 1 else int(shared.own[self.name].views["done"][index])

    def lost(self, blue: Blueprint, shared: Shared, queues: Sequence[Queue], index: int) -> str:
        words = shared.own[self.name].views
        publish(words["fresh"], index, 1)
        publish(words["ready"], index, 0)
        queues[index].orphaned()
        publish(words["life"], 0, words["life"][0] + 1)
        return ""

    def wakes(self, blue: Blueprint, index: int, members: Sequence[Member]) -> Woken:
        """The other learners by their number, and its shards as ``Blueprint.shards`` has them."""
        found: dict[Hashable, Member] = {}
        for one in members:
            if isinstance(one.kind, LearningKind) and one.index != index:
                found[one.index] = one
            elif isinstance(one.kind, KeepingKind):
                shard = blue.shards[one.index]
                if shard[1] % blue.learners == index:
                    found[shard] = one
        return found

    def _meeting(self, job: Job, site: Site) -> Meeting:
        """The learner's way to the others."""
        blue = job.blueprint
        if blue.learners == 1:
            return Solo()
        bells = [site.bell(other) for other in range(blue.learners) if other != job.index]

        def ring() -> None:
            for bell in bells:
                bell()

        return SharedMeeting(
            job.shared.own[self.name].views,
            Seat(
                rank=job.index,
                size=blue.learners,
                first=min(job.shared.queues),
                address=blue.address,
                fresh=job.life > 0,
            ),
            ring=ring,
            pulse=site.pulse,
            at_once=site.at_once,
            summed=partial(site.clock.add, "all-reduce"),
            dump=statefile.dump,
            parse=statefile.parse,
        )


def _line(
    blue: Blueprint, name: str, learner: Learner, shared: Shared, experience: Experience
) -> PolicyLearner:
    policy, memory = learning(blue.program)[name], shared.policies[name]
    return PolicyLearner(
        learner=learner,
        experience=experience,
        batch=blue.batch(name),
        weights=memory.actor_weights,
        publish_every=policy.publish_every * blue.pace.updates,
        host=None if memory.device is None else memory.weights,
        collects=policy.replay is None and bool(learner.terms),
        max_lag=blue.program.placement.max_lag
        if blue.program.placement.partial_streams and policy.replay is None
        else None,
        curriculum=_curriculum(blue),
    )


def _curriculum(blue: Blueprint) -> Curriculum | None:
    """The choice of prompts, if the run makes one."""
    source, program = task_of(blue.program), blue.program
    if source is None or source.curriculum == "none":
        return None
    return curriculum(program, source, blue.spec.env, blocks=queue_plan(blue).blocks)


def _experiences(
    blue: Blueprint, shared: Shared, site: Site, rank: int, learners: Mapping[str, Learner]
) -> dict[str, Experience]:
    """The source that each policy samples from: the queue's rounds themselves, a replay that they
    feed, or a data set alone.
    """
    rounds = ReplayFeed(site.queues[rank], begins=blue.pace.begins, updates=blue.pace.updates)
    return {
        name: _experience(blue, name, shared, rounds, site, rank, learners[name])
        for name in blue.learns
    }


def _experience(
    blue: Blueprint,
    name: str,
    shared: Shared,
    rounds: ReplayFeed,
    site: Site,
    rank: int,
    learner: Learner,
) -> Experience:
    """The experience of one policy, of learner ``rank``; ``learner`` sees the rows that a replay
    keeps, and its encoder makes them.
    """
    policy, role, program = blue.policies[name], blue.roles[name], blue.program
    if policy.replay is None:
        return Fresh(rounds, name)
    gpu, several = program.placement.device != "cpu", len(blue.learns) > 1
    seed = replay_seed(blue, f"replay of learner {rank}" if rank else "replay", name)
    window, recorded = policy.algorithm.item_rows or policy.unroll, None
    file, room = (f"replay_{name}", f"policy_{name}") if several else ("replay", "")
    if blue.dataset is not None:
        stacks = role.spec.stacks
        recorded = RecordedRows(
            blue.dataset,
            policy.replay,
            row=role.row,
            window=window,
            stacks=stacks,
            pinned=gpu,
            pulse=site.pulse,
        )
    if name not in blue.replays:
        assert recorded is not None
        return Offline(recorded, seed=seed, updates=blue.schedule_updates, file=file)
    if name in shared.mailboxes:
        plan = blue.replay(name, rank)
        numbers = range(rank, plan.settings.shards * blue.learners, blue.learners)
        bells = [site.bell((name, number)) for number in numbers]
        return Sharded(
            plan,
            rounds,
            name,
            mailbox=shared.mailboxes[name][rank],
            seed=seed,
            wake=lambda shard: bells[shard](),
            file=file,
        )
    folder = Path(blue.segments) / Member(LearnerKind(), rank).folder / room
    return Replay(
        blue.replay(name, rank),
        rounds,
        name,
        seed=seed,
        prefetch=gpu or policy.replay.encodes,
        pinned=gpu,
        file=file,
        room=room,
        folder=folder,
        goals=blue.goals(name),
        recorded=recorded,
        priority=first_priority(blue, name),
        wrote=partial(site.clock.add, "insert"),
        keep=partial(_kept, learner),
    )


def _kept(learner: Learner, data: Trajectory) -> Trajectory:
    """The rows that a replay keeps of new ones [T, B]."""
    learner.collect(data)
    return data if learner.encoding is None else learner.encoding(data)


def replay_seed(blue: Blueprint, purpose: str, name: str) -> int:
    """A seed for a policy's replay; the replay of the only policy that learns has the same one
    whatever its name.
    """
    return policy_seed(
        blue.program.schedule.seed, purpose, name if len(blue.learns) > 1 else "main"
    )


def first_priority(blue: Blueprint, name: str) -> Callable[[Trajectory], Array | None] | None:
    """The priority of new items, if the algorithm gives one and the selector reads it."""
    policy = blue.policies[name]
    algorithm, settings, rewards = policy.algorithm, policy.replay, policy.rewards
    says = type(algorithm).priority is not Algorithm.priority
    if not says or settings is None or settings.selector != "prioritized":
        return None
    if any(product.names != (ENV,) for product in parsed(rewards.sum, "reward")):
        return None  # an actor does not know the other terms
    if rewards == Rewards():
        return algorithm.priority
    (product,) = parsed(rewards.sum, "reward")
    return lambda data: algorithm.priority(
        replace(data, reward=scaled(rewards, product.weight * data.reward))
    )
