"""From a Program to the parts of a ring. Every runtime builds with these functions; they differ in who holds which part."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from equipoise import tree
from equipoise.actors.agent import LocalAgent
from equipoise.actors.episodes import Episodes, recent, recent_info
from equipoise.actors.worker import ActorWorker
from equipoise.envs import action_spec, make, observation_spec
from equipoise.envs.capsule import Failures
from equipoise.experience.layout import RowSpec
from equipoise.experience.queue import Plan, Queue
from equipoise.experience.tokens import Channel
from equipoise.learners.learner import Learner
from equipoise.learners.worker import LearnerWorker
from equipoise.runtime import checkpoint, statefile
from equipoise.runtime.board import Board
from equipoise.runtime.cut import Gate, load_worker
from equipoise.runtime.ipc import Part
from equipoise.tree import ArraySpec
from equipoise.types import Algorithm, EnvSpec, Experience, Policy, Program, stream_ids, unroll_rows
from equipoise.weights.store import WeightPlan, Weights

RECORDS = 200  # records a run, at least one every RECORD_STEPS
RECORD_STEPS = 50_000
MOST_FAILURES = 3  # of one worker in a row, of one cause and without progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """A Program with everything that follows from it and from a look at its env; it travels to every worker."""

    program: Program
    spec: EnvSpec
    row: RowSpec
    noise_columns: int
    updates: int
    schedule_updates: int
    record_every: int  # updates
    checkpoint_every: int  # updates, 0: when the driver asks
    directory: str  # where checkpoints are written
    weights: str | None  # the checkpoint whose weights are the first ones
    resume: str | None  # the checkpoint that every worker goes on from
    capsules: str | None = None  # where env failures are written

    def failures(self, counts: Any = None) -> Failures:
        """What an env's failure costs in this run; ``counts`` [3] int64 are counted up."""
        made = Failures(on_nonfinite=self.program.on_nonfinite, capsules=Path(self.capsules) if self.capsules else None)
        return made if counts is None else replace(made, counts=counts)

    @property
    def policy(self) -> Policy:
        return self.program.policies["main"]

    @property
    def workers(self) -> tuple[str, ...]:
        return ("learner", *(f"actor {i}" for i in range(self.program.actors)))


def derive_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for one purpose: no two parts of a run draw from the same sequence."""
    words = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(2, np.uint32)
    return int(words[0]) << 31 | int(words[1]) >> 1


def network(program: Program, spec: EnvSpec) -> nn.Module:
    """The initial network of the run: the same bits wherever it is built."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(program.seed, "network"))
        return program.policies["main"].algorithm.network(spec)


def blueprint(program: Program, *, weights: Path | None = None, resume: Path | None = None) -> Blueprint:
    """Look at one stream of the env and at one action of the policy."""
    if program.device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"device: expected cpu, since this torch sees no GPU, got {program.device!r}")
    env = make(program.env, streams=np.arange(1), seed=program.seed)
    spec = env.spec
    env.close()
    policy = program.policies["main"]
    net: Any = network(program, spec)
    columns = noise_columns(policy.algorithm, spec.action)
    obs_row = observation_spec(spec.observation)
    state = net.initial_state(1)
    with torch.inference_mode():
        action, behaviour, after = policy.algorithm.act(
            net, tree.torch_views(tree.zeros(tree.prepend(obs_row, 1))), torch.ones(1, dtype=torch.bool), state,
            explore=policy.algorithm.explore(np.zeros(1, np.int64), program.actors * program.envs_per_actor, 0),
            noise=torch.full((1, columns), 0.5),
        )  # fmt: skip
    if (given := weights or resume) is not None:
        load_weights(net, given)  # refused now, before there is a directory
    wanted, got = tree.spec(state), tree.spec(after)
    if wanted != got:
        raise ValueError(f"expected act() to return a state like initial_state(): {wanted}, got {got}")
    row = RowSpec(
        obs=obs_row,
        action=_one(action),
        behaviour=_one(behaviour),
        state=_one(state),
        context={"stream": ArraySpec((), "int64"), "start": ArraySpec((), "int64")},
    )
    per_update = unroll_rows(policy)
    updates = -(-program.steps // per_update)
    schedule = -(-(program.schedule_steps or program.steps) // per_update)
    record_steps = min(program.steps // RECORDS, RECORD_STEPS)
    return Blueprint(
        program=program, spec=spec, row=row, noise_columns=columns, updates=updates, schedule_updates=schedule,
        record_every=max(record_steps // per_update, 1), checkpoint_every=-(-(program.checkpoint_every or 0) // per_update),
        directory="", weights=None if weights is None else str(weights), resume=None if resume is None else str(resume),
    )  # fmt: skip


def load_weights(net: nn.Module, source: Path) -> None:
    """The parameters of a checkpoint; ValueError naming the first that this network has otherwise."""
    params, _ = checkpoint.load(source)
    mine = tree.named_tensors(net)
    for name in sorted({*params, *mine}):
        shapes = [tuple(tensors[name].shape) if name in tensors else "none" for tensors in (mine, params)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{source}: parameter {name!r}: expected {shapes[0]} for this env and algorithm, got {shapes[1]}")
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(params[name])


def noise_columns(algorithm: Algorithm, action: gymnasium.Space[Any]) -> int:
    """Uniforms an action takes: one a dimension, and one for whether to explore where the algorithm does."""
    explores = bool(tree.leaves(algorithm.explore(np.zeros(1, np.int64), 1, 0)))
    return sum(int(math.prod(s.shape)) for s in tree.leaves(action_spec(action))) + explores


def _one(batch: Any) -> Any:
    return tree.map(lambda s: ArraySpec(s.shape[1:], s.dtype), tree.spec(batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the two halves of a ring share, laid over one memory."""

    board: Board
    queue: Queue
    weights: Weights
    episodes: Sequence[Episodes]


def first_network(blue: Blueprint) -> nn.Module:
    """The network that the run begins with."""
    net = network(blue.program, blue.spec)
    if blue.weights is not None:
        load_weights(net, Path(blue.weights))
    return net


def lay_out(blue: Blueprint, memory: Callable[[str, int], Any], channel: Callable[[], Channel]) -> tuple[Shared, Any]:
    """Allocate everything at once, deal all places and publish version 0 -> the parts, and the memory that holds them."""
    program, policy = blue.program, blue.policy
    streams = program.actors * program.envs_per_actor
    plan = Plan(
        row=blue.row, unroll=policy.unroll, batch=policy.batch, block=program.envs_per_actor, streams=streams,
        max_lag=program.max_lag,
    )  # fmt: skip
    initial = tree.named_tensors(first_network(blue))
    weight_plan = WeightPlan(initial)
    sizes = [tree.nbytes(Board.specs(blue.workers)), plan.nbytes, weight_plan.nbytes]
    sizes += [tree.nbytes(Episodes.layout(program.metrics))] * program.actors
    whole = memory("run", sum(sizes))
    offsets = np.cumsum([0, *sizes])
    parts = [Part(whole, int(o), s) for o, s in zip(offsets, sizes, strict=False)]
    queue = Queue(plan, parts[1], free=[channel() for _ in range(plan.channels)], full=channel())
    weights = Weights(weight_plan, parts[2])
    if blue.resume is None:
        queue.fill()
        weights.publish(0, initial)
    else:
        source = Path(blue.resume)
        queue.load(statefile.parse(checkpoint.read(source, checkpoint.EXPERIENCE)))
        params, meta = checkpoint.load(source)
        weights.publish(meta["version"], params)
    shared = Shared(
        board=Board(blue.workers, parts[0]), queue=queue, weights=weights,
        episodes=[Episodes(program.envs_per_actor, p, program.metrics) for p in parts[3:]],
    )  # fmt: skip
    return shared, whole


def actor(blue: Blueprint, index: int, shared: Shared, experience: Experience, incarnation: int = 0) -> ActorWorker:
    """Actor ``index`` of the run, with its own envs, network and weight handle.

    ``incarnation``: how many processes it had before that failed. A successor begins new episodes, with seeds of their own
    and a gap in its streams' row numbers.
    """
    program, policy = blue.program, blue.policy
    streams = stream_ids(index, program.envs_per_actor)
    agent = LocalAgent(
        algorithm=policy.algorithm, net=network(program, blue.spec), experience=experience, weights=shared.weights.handle(),
        episodes=shared.episodes[index], streams=streams, total_streams=program.actors * program.envs_per_actor,
        unroll=policy.unroll, rows_per_update=unroll_rows(policy), noise_columns=blue.noise_columns,
        seed=derive_seed(program.seed, "actions"),
    )  # fmt: skip
    seed = program.seed
    if incarnation or (blue.resume is not None and blue.spec.resume == "restart"):
        # With the row, since the count of incarnations begins anew with a resume, and no episode is to come a second time.
        where = f"row {shared.episodes[index].next_row}" if incarnation else f"version {shared.weights.version}"
        seed = derive_seed(seed, f"incarnation {incarnation} from {where}")
    failures = blue.failures(shared.episodes[index].failures)
    worker = ActorWorker(make(program.env, streams=streams, seed=seed, failures=failures, metrics=program.metrics), agent)
    if incarnation:
        agent.succeed()
    elif blue.resume is not None:
        load_worker(Path(blue.resume), worker, index)
    return worker


def learner(blue: Blueprint, shared: Shared, experience: Experience, send: Callable[[dict[str, Any]], None]) -> LearnerWorker:
    """The learner of the run; ``send`` gets its records, each with the episodes of all actors, and {"cut": version}."""
    program, policy = blue.program, blue.policy

    def record(message: dict[str, Any]) -> None:
        count, mean, length = recent(shared.episodes)
        aborted = sum(int(one.failures[0]) for one in shared.episodes)
        send(
            message
            | {"at": time.monotonic(), "episodes": count, "return_mean": mean, "length_mean": length, "aborted": aborted}
            | {"info": recent_info(shared.episodes)}
        )

    core = Learner(
        policy.algorithm, first_network(blue), device=program.device, schedule_updates=blue.schedule_updates,
        seed=derive_seed(program.seed, "learner"), batch=policy.batch,
    )  # fmt: skip
    gate = Gate(
        shared.board.cut, every=blue.checkpoint_every, last=blue.updates, announce=lambda version: send({"cut": version})
    )
    worker = LearnerWorker(
        core, experience, shared.weights, batch=policy.batch, updates=blue.updates, publish_every=policy.publish_every,
        record_every=blue.record_every, record=record, gate=gate,
    )  # fmt: skip
    if blue.resume is not None:
        load_worker(Path(blue.resume), worker, -1)
    return worker
