"""Bytes that an env step costs between machines, and how many actors a run may have. Nothing is
measured: every figure is computed from the queue's plan of a real Program, the table of messages
and the limits that a run is held against.

    python benchmarks/bytes_per_step.py [--env ALE/Pong-v5] [--steps-per-actor 500] [--sites 10]

An unroll of an actor costs four kinds of messages: it asks for a place, gets one, sends what it
counts, and sends its rows. Besides there are weights: a site asks for a version that a grant names,
so at most each version goes to each site. The headers of ZeroMQ, of its encryption and of TCP are
not counted. Of a stack of frames the newest one crosses, as where no episode begins. With inference
at the learner there are no places and no weights: rows of one step go to home, and actions come
back.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

from equipoise import api
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.experience.queue.unstacked import BlockPacker
from equipoise.plans.memory_needed import queue_plan
from equipoise.plans.plan import plan_run
from equipoise.programs.limits import check_processes
from equipoise.runtime import build
from equipoise.runtime.cluster.frames import HEAD
from equipoise.runtime.cluster.parts import parts
from equipoise.runtime.cluster.proxy_worker import stacks_of
from equipoise.runtime.cluster.stepping import RemoteEnvs
from equipoise.runtime.ipc import Heap
from equipoise.types import Program
from equipoise.workers.kind import crew
from equipoise.workers.kinds import KINDS

ACTORS = (100, 1_000, 10_000)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "IMPALA": ("impala", {}),
    "Ape-X": ("apex_dqn", {}),
    "SEED": ("impala", {"inference": "central"}),
}
AT_HOME = "SEED, at home"


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes, per env step where nothing else is said."""

    unroll: int  # env steps of one env
    envs: int  # of a block
    rows: float
    counted: float  # statistics
    asked: float  # wants and grants
    weights: int  # of one version, to one site

    @property
    def step(self) -> float:
        return self.rows + self.counted + self.asked


def cost(program: Program) -> Cost:
    """What one env step of this Program costs, by kinds of messages."""
    blue = plan_run(program)
    plan, members = queue_plan(blue), crew(blue, KINDS)
    shared, board, _ = build.lay_out(blue, KINDS, Heap, LocalChannel)
    titles = {one.title for one in members if 0 in one.groups(blue)}
    places = parts(blue, shared, {title: board.row(title) for title in titles}, members).values()
    counted = [
        one.part.nbytes + HEAD
        for one in places
        if one.group == 0 or (one.group is None and one.of(titles))
    ]
    steps = plan.unroll * plan.block
    policies, crossing = shared.policies.values(), BlockPacker(plan, stacks_of(blue))
    return Cost(
        unroll=plan.unroll,
        envs=plan.block,
        rows=(crossing.least + HEAD) / steps,
        counted=sum(counted) / steps,
        asked=(2 * HEAD + 8 * len(policies)) / steps,
        weights=sum(one.weights.plan.flat + HEAD for one in policies),
    )


def cost_at_home(program: Program) -> Cost:
    """The same with ``--cluster inference_at=home``."""
    blue = plan_run(program)
    shared, _, _ = build.lay_out(blue, KINDS, Heap, LocalChannel)
    assert shared.exchange is not None
    plan, remote = queue_plan(blue), RemoteEnvs(shared.exchange, 0, stacks_of(blue))
    rows, asked = remote.rows.least + HEAD, remote.actions.nbytes + HEAD
    return Cost(
        unroll=plan.unroll,
        envs=plan.block,
        rows=rows / plan.block,
        counted=0.0,
        asked=asked / plan.block,
        weights=0,
    )


def allowed(env: str, algorithm: str, actors: int, **options: Any) -> str:
    """The error of a run with so many actors; empty where there is none."""
    try:
        check_processes(
            api.program(env, algorithm, recipe=False, actors=actors, max_lag=1, **options)
        )
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--envs-per-actor", type=int, default=4)
    parser.add_argument(
        "--steps-per-actor",
        type=float,
        default=500.0,
        help="env steps/s of an actor: an assumption",
    )
    parser.add_argument("--sites", type=int, default=10, help="machines with actors")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    print(
        f"{given.env}, {given.envs_per_actor} envs an actor, --max-lag 1, no recipe; bytes an env "
        "step\n"
    )
    print(
        f"{'':20} {'unroll':>6} {'rows':>9} {'counted':>8} {'asked':>6} {'sum':>9} "
        f"{'a version':>12}"
    )
    costs: dict[str, Cost] = {}
    for name, (algorithm, options) in CASES.items():
        program = api.program(
            given.env,
            algorithm,
            recipe=False,
            actors=2,
            envs_per_actor=given.envs_per_actor,
            max_lag=1,
            **options,
        )
        costs[name] = cost(program)
        if options:
            costs[AT_HOME] = cost_at_home(program)
    for name, one in costs.items():
        parts_of_it = f"{one.rows:9,.1f} {one.counted:8,.1f} {one.asked:6,.2f} {one.step:9,.1f}"
        print(f"{name:20} {one.unroll:6} {parts_of_it} {one.weights:12,}")
        found[name] = {"bytes_per_step": one.step, "version_bytes": one.weights}
    print(
        f"\nInto home at {given.steps_per_actor:,.0f} env steps/s an actor (assumed), and whether "
        "a run may have so many:\n"
    )
    for name in costs:
        algorithm, options = CASES[name.partition(",")[0]]
        for actors in ACTORS:
            rate = found[name]["bytes_per_step"] * actors * given.steps_per_actor
            why = allowed(
                given.env, algorithm, actors, envs_per_actor=given.envs_per_actor, **options
            )
            print(
                f"{name:20} {actors:6,} actors {rate / 1e6:12,.1f} MB/s {rate * 8 / 1e9:9,.2f} "
                f"Gbit/s  {why or 'yes'}"
            )
            found[name][str(actors)] = {"MB_per_s": rate / 1e6, "refused": why}
    print(f"\nOut of home for one version to each of {given.sites} sites:\n")
    for name, one in costs.items():
        print(f"{name:20} {one.weights * given.sites / 1e6:9,.1f} MB")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
