"""From a Blueprint to the parts of a ring. Every runtime builds with these functions; they differ in who holds which part."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise import tree
from equipoise.actors.agent import LocalAgent
from equipoise.actors.central import InferenceWorker
from equipoise.actors.episodes import Episodes, recent, recent_info
from equipoise.actors.exchange import Exchange
from equipoise.actors.forward import FORWARDS, Forward
from equipoise.actors.joint import JointForward
from equipoise.actors.rounding import Rounding, kind_of, told
from equipoise.actors.routed import PolicySlot, RoutedAgent, SharedBlock
from equipoise.actors.stepper import EnvWorker
from equipoise.actors.worker import ActorWorker
from equipoise.envs.goals import Goals
from equipoise.experience.nowhere import Nowhere
from equipoise.experience.offline import Offline, Shelf
from equipoise.experience.post import Post
from equipoise.experience.queue import Queue
from equipoise.experience.replay import Replay
from equipoise.experience.rounds import Fresh, Inbox, Rounds
from equipoise.experience.shard import Shard
from equipoise.experience.sharded import Sharded
from equipoise.experience.store import Store
from equipoise.experience.tokens import Channel
from equipoise.learners.past import Past
from equipoise.learners.worker import LearnerWorker, Line
from equipoise.nets import compiled
from equipoise.runtime import checkpoint, playable, statefile
from equipoise.runtime.begin import begin_from, new_learner
from equipoise.runtime.blueprint import Blueprint, goals, make_env, making, network, seed_of
from equipoise.runtime.board import Board
from equipoise.runtime.cut import Gate, load_worker
from equipoise.runtime.ipc import Part
from equipoise.runtime.memory import exchange_sizes, queue_plan
from equipoise.runtime.stepping import Group, Stepping
from equipoise.seeds import derive_seed
from equipoise.types import Algorithm, Array, Blocks, Experience, Places, Trajectory, WeightStore, learning, stream_ids
from equipoise.weights.device import DeviceWeights, Share
from equipoise.weights.store import WeightPlan, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """What the actors and the learner have of one policy, besides the queue of all."""

    weights: Weights
    episodes: Sequence[Episodes]  # one a group of envs
    learns: bool
    rounding: Sequence[Rounding] = ()  # one a group of envs, where acting is with rounded weights
    device: DeviceWeights | None = None  # what is acted with, where that is on the learner's device in another process

    @property
    def acting(self) -> Weights | DeviceWeights:
        """What whoever acts fetches."""
        return self.weights if self.device is None else self.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the two halves of a run share, laid over one memory."""

    board: Board
    queue: Queue
    rings: Mapping[str, Ring]  # by policy; those that learn come first
    posts: Mapping[str, Post] = field(default_factory=dict)  # by policy, of those whose replay has shards
    exchange: Exchange | None = None  # under central inference

    @property
    def episodes(self) -> list[Episodes]:
        """Of the policies that learn, of every actor."""
        return [one for ring in self.rings.values() if ring.learns for one in ring.episodes]

    @property
    def actors(self) -> Sequence[Episodes]:
        """One a group of envs: it holds what is counted of the group and not of a policy (rows, failures)."""
        return self._one.episodes

    @property
    def version(self) -> int:
        """The newest; -1 before the first."""
        return self._one.acting.version

    @property
    def _one(self) -> Ring:
        """The ring of any policy that learns, for what they have in common."""
        ring, *_ = self.rings.values()
        return ring


def first_networks(blue: Blueprint) -> dict[str, nn.Module]:
    """The networks that the run begins with."""
    nets = {name: network(blue.program, blue.spec, name) for name in blue.roles}
    if blue.weights is not None:
        playable.fill(nets, checkpoint.load(Path(blue.weights))[0], blue.weights)
    return nets


def lay_out(
    blue: Blueprint, memory: Callable[[str, int], Any], channel: Callable[[], Channel], share: Share | None = None
) -> tuple[Shared, Any]:
    """Allocate everything at once, deal all places and publish version 0 -> the parts, and the memory that holds them.

    ``share``: how whoever acts reaches memory of the learner's device; None: weights go through the memory of the host.
    """
    program, plan = blue.program, queue_plan(blue)
    rounds = [name for name, role in blue.roles.items() if program.acting != "fp32" and role.frozen is None]
    initial = {name: tree.named_tensors(net) for name, net in first_networks(blue).items()}
    weight_plans = {name: WeightPlan(params) for name, params in initial.items()}
    sizes = [tree.nbytes(Board.specs(blue.workers)), plan.nbytes]
    for name, weight_plan in weight_plans.items():
        sizes += [weight_plan.nbytes, *[tree.nbytes(Episodes.layout(program.metrics))] * program.groups]
        sizes += [tree.nbytes(Rounding.specs)] * program.groups * (name in rounds)
        sizes += [tree.nbytes(DeviceWeights.SPECS)] * (share is not None)
    sharded = {name: blue.replays[name] for name, _ in blue.shards}
    sizes += [tree.nbytes(Post.specs(replay, blue.batch(name))) for name, replay in sharded.items()]
    exchanged = exchange_sizes(blue) if blue.inferences else {}
    if exchanged:
        sizes.append(tree.nbytes(Exchange.specs(**exchanged)))
    whole = memory("run", sum(sizes))
    offsets = np.cumsum([0, *sizes])
    parts = iter([Part(whole, int(o), s) for o, s in zip(offsets, sizes, strict=False)])
    board = Board(blue.workers, next(parts))
    queue = Queue(plan, next(parts), free=[channel() for _ in range(plan.channels)], full=channel())
    rings = {}
    for name, role in blue.roles.items():
        weights = Weights(weight_plans[name], next(parts))
        columns = program.group_envs * len(role.places)
        episodes = [Episodes(columns, next(parts), program.metrics) for _ in range(program.groups)]
        rounding = [Rounding(next(parts)) for _ in range(program.groups if name in rounds else 0)]
        device = None if share is None else DeviceWeights(weight_plans[name], next(parts), weights, share)
        rings[name] = Ring(
            weights=weights, episodes=episodes, learns=role.frozen is None, rounding=rounding, device=device
        )  # fmt: skip
    posts = {name: Post(replay, blue.batch(name), next(parts)) for name, replay in sharded.items()}
    exchange = Exchange(next(parts), **exchanged) if exchanged else None
    shared = Shared(board=board, queue=queue, rings=rings, posts=posts, exchange=exchange)
    _fill(blue, shared, initial)
    return shared, whole


def _fill(blue: Blueprint, shared: Shared, initial: Mapping[str, Mapping[str, Tensor]]) -> None:
    """The queue and every weight store, as the run begins or goes on."""
    if blue.resume is None:
        shared.queue.fill()
        for name, ring in shared.rings.items():
            ring.weights.publish(0, initial[name])
        return
    source, file = blue.resume, checkpoint.EXPERIENCE
    shared.queue.load(statefile.parse(source.read(file), source.path / file))
    for name, mine in tree.parted(source.params(), shared.rings).items():
        shared.rings[name].weights.publish(source.version, mine)


def actor(blue: Blueprint, index: int, shared: Shared, blocks: Blocks, incarnation: int = 0) -> ActorWorker:
    """Actor ``index`` of the run, with its own envs, networks and weight handles.

    ``incarnation``: how many processes it had before that failed. A successor begins new episodes, with seeds of their own
    and a gap in its streams' row numbers.
    """
    program, envs = blue.program, stream_ids(index, blue.program.group_envs)
    agent = _agents(blue, index, shared, blocks)
    counted, seed = shared.actors[index], _env_seed(blue, shared, index, incarnation)
    env = make_env(program, streams=envs, seed=seed, failures=blue.failures(counted), metrics=program.metrics)
    worker = ActorWorker(env, agent)
    if incarnation:
        agent.succeed()
    elif blue.resume is not None:
        load_worker(blue.resume, worker, index)
    return worker


def _env_seed(blue: Blueprint, shared: Shared, group: int, incarnation: int) -> int:
    """Of a group of envs."""
    if not incarnation and (blue.resume is None or blue.spec.env.resume != "restart"):
        return blue.program.seed
    # With the row, since the count of incarnations begins anew with a resume, and no episode is to come a second time.
    where = f"version {shared.version}" + (f", row {shared.actors[group].next_row}" if incarnation else "")
    return derive_seed(blue.program.seed, f"incarnation {incarnation} from {where}")


def stepping(blue: Blueprint, index: int, shared: Shared, incarnation: int = 0) -> Stepping:
    """What the env worker of actor ``index`` does, under central inference; a successor begins new episodes."""
    program = blue.program
    assert shared.exchange is not None
    groups = [
        Group(
            number=g,
            envs=envs,
            streams={name: role.streams(envs) for name, role in blue.roles.items()},
            episodes=shared.actors[g],
        )
        for g, envs in ((g, stream_ids(g, program.group_envs)) for g in blue.groups(index))
    ]
    return Stepping(
        index=index, making=making(program), seed=_env_seed(blue, shared, groups[0].number, incarnation),
        failures=blue.failures(), groups=tuple(groups), exchange=shared.exchange, resume=None if incarnation else blue.resume,
    )  # fmt: skip


def inference(
    blue: Blueprint, index: int, shared: Shared, blocks: Blocks, incarnation: int = 0,
    ring: Callable[[int], object] = lambda group: None,
) -> InferenceWorker:  # fmt: skip
    """Inference worker ``index`` of the run; ``ring`` tells the env worker of a group. A successor begins new episodes."""
    program, groups = blue.program, blue.served(index)
    assert shared.exchange is not None
    forwards = {name: JointForward(**_acting(blue, name)) for name in blue.roles}
    weights = {name: shared.rings[name].acting.handle() for name in blue.roles}
    agents = [_agents(blue, g, shared, blocks, forwards, weights) for g in groups]
    worker = InferenceWorker(
        forwards, agents, shared.exchange, first=groups.start, ring=ring, alone=program.max_lag == 0,
        most=program.inference_batch, wait_s=program.inference_wait_ms / 1000,
    )  # fmt: skip
    if incarnation:
        for agent in agents:
            agent.succeed()
    elif blue.resume is not None:
        load_worker(blue.resume, worker, index)
    return worker


def _acting(blue: Blueprint, name: str) -> dict[str, Any]:
    """What a policy's forward is made of; under central inference it is on the learner's device."""
    program = blue.program
    return {
        "algorithm": blue.roles[name].algorithm, "net": network(program, blue.spec, name), "precision": program.precision,
        "acting": program.acting, "device": program.device if blue.inferences else "cpu",
    }  # fmt: skip


def _agents(
    blue: Blueprint, group: int, shared: Shared, blocks: Blocks, forwards: Mapping[str, Forward] = MappingProxyType({}),
    weights: Mapping[str, WeightStore] = MappingProxyType({}),
) -> RoutedAgent:  # fmt: skip
    """The policies of a group of envs. ``forwards``, ``weights``: what several groups use; empty: the group has its own."""
    block = SharedBlock(blocks, len(blue.learns))
    places = {name: PolicySlot(block, name) for name in blue.learns}
    agents = {
        name: _agent(blue, name, group, shared, places.get(name), forwards.get(name), weights.get(name)) for name in blue.roles
    }
    return RoutedAgent(agents)


def _agent(
    blue: Blueprint, name: str, group: int, shared: Shared, places: Places | None, forward: Forward | None = None,
    weights: WeightStore | None = None,
) -> LocalAgent:  # fmt: skip
    """``places``: where its rows go; None: nowhere. ``forward``, ``weights``: those of several agents; None: its own."""
    program, role, ring = blue.program, blue.roles[name], shared.rings[name]
    streams = role.streams(stream_ids(group, program.group_envs))
    return LocalAgent(
        forward=forward or FORWARDS[blue.forward.get(name, "torch")](**_acting(blue, name)),
        weights=weights or ring.acting.handle(),
        experience=Nowhere(role.row, blue.unroll, len(streams)) if places is None else places,
        episodes=ring.episodes[group], streams=streams,
        total_streams=program.actors * program.envs_per_actor * len(blue.spec.env.agents),
        envs=program.actors * program.envs_per_actor, unroll=blue.unroll,
        noise_columns=role.noise_columns, seed=derive_seed(program.seed, "actions"),
        rounding=ring.rounding[group] if ring.rounding else None,
    )  # fmt: skip


def shard(
    blue: Blueprint, index: int, shared: Shared, block: Callable[[int], Mapping[str, Trajectory]], incarnation: int = 0,
    answer: Callable[[], object] = lambda: None,
) -> Shard:  # fmt: skip
    """Shard ``index`` of the run's replays, empty after an ``incarnation`` that failed; ``answer`` tells the learner."""
    policy, number = blue.shards[index]
    plan, purpose = blue.replays[policy], f"replay shard {number}" + (f" incarnation {incarnation}" if incarnation else "")
    store = Store(
        plan, seed=_replay_seed(blue, purpose, policy), shard=number, goals=_goals(blue, policy),
        folder=Path(blue.directory) / checkpoint.SEGMENTS / checkpoint.shard_name(index),
        priority=_first_priority(blue, policy),
    )  # fmt: skip
    worker = Shard(
        plan, store, shared.posts[policy], number, block=lambda place: block(place)[policy], ring=answer, index=index
    )
    if blue.resume is not None and not incarnation:
        load_worker(blue.resume, worker, index)
    return worker


def learner(
    blue: Blueprint, shared: Shared, inbox: Inbox, send: Callable[[dict[str, Any]], None],
    pulse: Callable[[], object] = lambda: None, ask: Callable[[int], object] = lambda shard: None,
) -> LearnerWorker:  # fmt: skip
    """The learner of the run; ``send`` gets its records, each with the episodes of all actors, and {"cut": version}. ``pulse``
    is called now and then while it is built; ``ask`` tells a shard that something is asked of it.
    """
    program, several = blue.program, len(blue.roles) > 1

    def record(message: dict[str, Any]) -> None:
        count, mean, length = recent(shared.episodes)
        aborted = sum(int(one.failures[0]) for one in shared.actors)
        for name, ring in shared.rings.items() if several else ():
            _, of_policy, its_length = recent(ring.episodes)
            if of_policy is not None:
                message["metrics"] |= {f"{name}/return_mean": of_policy, f"{name}/length_mean": its_length}
        for name, ring in shared.rings.items():
            kind = kind_of(nets[name], blue.roles[name].row.action)
            said = told(ring.rounding, kind, message["version"])
            message["metrics"] |= {f"{name}/{key}": x for key, x in said.items()} if several else said
        send(
            message
            | {"at": time.monotonic(), "episodes": count, "return_mean": mean, "length_mean": length, "aborted": aborted}
            | {"info": recent_info(shared.episodes)}
        )

    nets = first_networks(blue)
    past = {
        name: Past(role.frozen, shared.rings[name].weights, tree.named_tensors(nets[name]), seed=seed_of(program, "past", name))
        for name, role in blue.roles.items()
        if role.frozen is not None
    }
    gate = Gate(
        shared.board.cut,
        every=blue.checkpoint_every,
        last=blue.updates,
        round_=blue.pace.updates,
        announce=lambda version: send({"cut": version}),
    )
    experiences = _experiences(blue, shared, inbox, pulse, ask, partial(shared.board.wrote, "learner"))
    worker = LearnerWorker(
        {name: _line(blue, name, nets[name], shared, experiences[name]) for name in blue.learns}, past=past,
        updates=blue.updates, record_every=blue.record_every, record=record, gate=gate,
    )  # fmt: skip
    if blue.resume is not None:
        load_worker(blue.resume, worker, -1)
    worker.begin()
    return worker


def _experiences(
    blue: Blueprint,
    shared: Shared,
    inbox: Inbox,
    pulse: Callable[[], object],
    ask: Callable[[int], object],
    wrote: Callable[[float], object],
) -> dict[str, Experience]:
    """What each policy samples from: the queue's rounds themselves, a replay that they feed, or a data set alone."""
    rounds = Rounds(inbox, begins=blue.pace.begins, updates=blue.pace.updates)
    return {name: _experience(blue, name, shared, rounds, pulse, ask, wrote) for name in blue.learns}


def _experience(
    blue: Blueprint,
    name: str,
    shared: Shared,
    rounds: Rounds,
    pulse: Callable[[], object],
    ask: Callable[[int], object],
    wrote: Callable[[float], object],
) -> Experience:
    """The experience of one policy."""
    policy, role, program = blue.policies[name], blue.roles[name], blue.program
    if policy.replay is None:
        return Fresh(rounds, name)
    seed, gpu = _replay_seed(blue, "replay", name), program.device != "cpu"
    window, shelf = policy.algorithm.item_rows or policy.unroll, None
    if blue.dataset is not None:
        stacks = role.spec.stacks
        shelf = Shelf(blue.dataset, policy.replay, row=role.row, window=window, stacks=stacks, pinned=gpu, pulse=pulse)
    if name not in blue.replays:
        assert shelf is not None
        return Offline(shelf, seed=seed, updates=blue.schedule_updates)
    if name in shared.posts:
        first = blue.shards.index((name, 0))
        return Sharded(
            blue.replays[name], rounds, name, post=shared.posts[name], seed=seed, ring=lambda shard: ask(first + shard)
        )
    return Replay(
        blue.replays[name], rounds, name, seed=seed, prefetch=gpu or policy.replay.encodes, pinned=gpu,
        folder=Path(blue.directory) / checkpoint.SEGMENTS / checkpoint.replay_room(name, blue.learns),
        goals=_goals(blue, name), shelf=shelf, priority=_first_priority(blue, name), wrote=wrote,
    )  # fmt: skip


def _replay_seed(blue: Blueprint, purpose: str, name: str) -> int:
    """A seed for a policy's replay; the replay of the only policy that learns has the same one whatever its name."""
    return seed_of(blue.program, purpose, name if len(blue.learns) > 1 else "main")


def _goals(blue: Blueprint, name: str) -> Goals | None:
    """What a store with hindsight asks, with an env of its own."""
    settings = blue.policies[name].replay
    return goals(blue.program) if settings is not None and settings.relabel else None


def _first_priority(blue: Blueprint, name: str) -> Callable[[Trajectory], Array | None] | None:
    """The priority of items as they enter, where the algorithm says one and the selector reads it."""
    algorithm, settings = blue.policies[name].algorithm, blue.policies[name].replay
    says = type(algorithm).priority is not Algorithm.priority
    return algorithm.priority if says and settings is not None and settings.selector == "prioritized" else None


def _line(blue: Blueprint, name: str, net: nn.Module, shared: Shared, experience: Experience) -> Line:
    policy, windows = learning(blue.program)[name], len(blue.roles[name].places)
    core = new_learner(
        blue.program, name, net, schedule_updates=blue.schedule_updates, seed=seed_of(blue.program, "learner", name),
        batch=policy.batch * windows,
    )  # fmt: skip
    if blue.before is not None and blue.weights is not None and blue.resume is None:
        begin_from(core, Path(blue.weights), name)
    ring = shared.rings[name]
    return Line(
        learner=core, experience=experience, batch=blue.batch(name), weights=ring.acting,
        publish_every=policy.publish_every * blue.pace.updates, host=None if ring.device is None else ring.weights,
    )  # fmt: skip


def close(worker: ActorWorker | EnvWorker | InferenceWorker | LearnerWorker | Shard) -> None:
    """What the worker has besides memory: envs and threads."""
    if isinstance(worker, EnvWorker):
        worker.close()
    elif isinstance(worker, ActorWorker):
        worker.env.close()
    elif isinstance(worker, Shard):
        worker.store.close()
    elif isinstance(worker, LearnerWorker):
        for line in worker.lines.values():
            if isinstance(line.experience, Replay):
                line.experience.close()


def compile_torsos(blue: Blueprint, worker: ActorWorker | EnvWorker | InferenceWorker | LearnerWorker | Shard) -> list[str]:
    """Compile a worker's torsos of images where the program says so; a note for each where that cannot be."""
    program, said = blue.program, []
    if not program.compile or isinstance(worker, Shard | EnvWorker | InferenceWorker):
        return []  # central inference acts for another number of rows each time
    for name, role in blue.roles.items():
        if isinstance(worker, LearnerWorker):
            if role.frozen is not None:
                continue
            core, policy = worker.lines[name].learner, learning(program)[name]
            net, device = core.net, core.device
            windows = policy.batch * len(role.places)
            rows = (policy.unroll + (not core.by_rows)) * windows // policy.algorithm.minibatches
        else:
            net, device, rows = worker.agent.agents[name].net, torch.device("cpu"), program.envs_per_actor * len(role.places)
        obs = tree.to(tree.torch_views(tree.zeros(tree.prepend(role.row.obs, rows))), device)
        learns = isinstance(worker, LearnerWorker)
        said.append(compiled.compile_torso(net, obs, precision=program.precision, gradient=learns))
    return [note for note in said if note]
