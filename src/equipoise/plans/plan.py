"""Plan a run: look at one stream of its env and at one action of each policy, and refuse what
cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from equipoise import phases
from equipoise.experience.recorded import offline
from equipoise.experience.replay import codec
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.plans import begin
from equipoise.plans import memory_needed as memory
from equipoise.plans.beginning import FRESH, Beginning, Resumed
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.replays import codecs_of, pace_of, replays_of, room, too_small
from equipoise.plans.roles import learns_first, network, role_of, teacher
from equipoise.programs.limits import check_devices, check_nvtx
from equipoise.programs.refusals import refuse
from equipoise.programs.shard_refusals import block_problems
from equipoise.sources.source import source_of
from equipoise.types import Program, RunSpec, learning

RECORDS = 200  # records of a run; at least one every RECORD_STEPS
RECORD_STEPS = 50_000


def plan_run(program: Program, beginning: Beginning = FRESH) -> Blueprint:
    """Look at one stream of the env, at one action of each policy, and at the weights that the run
    begins with.
    """
    check_devices(program.placement)
    check_nvtx(program.placement)
    source = source_of(program)
    dataset = source.dataset()
    spec = source.spec(dataset)
    if isinstance(beginning, Resumed):  # before its weights, whose shapes may follow from the task
        source.check_same(beginning.directory.run, dataset, spec)
    memory.check_memory(program, lambda one: memory.networks(one, spec, partial(_count, one, spec)))
    phases.say("initialising the networks")
    nets = {
        name: memory.built(partial(network, program, spec, name)) for name in learns_first(program)
    }
    phases.say("laying out the run")
    roles = {name: role_of(program, spec, name, net) for name, net in nets.items()}
    before = beginning.fill(program, spec, nets)  # refused now, before there is a directory
    for name in learning(program):
        begin.terms(program, spec, name)  # likewise
    if dataset is not None:
        one = next(role for role in roles.values() if role.frozen is None)
        offline.look(dataset, one.row, one.spec.stacks)
    pace = pace_of(program, roles)
    updates = pace.versions(program.schedule.steps)
    schedule = pace.versions(program.schedule.schedule_steps or program.schedule.steps)
    problems, replays, codecs = [], dict[str, ReplayPlan](), dict[str, str]()
    if updates == 0:
        first, warmup = (pace.begins - 1) * pace.rows + 1, _warmup(program)
        problems.append(
            f"steps: expected at least {first:,}, so that an update follows "
            f"{warmup}replay.starts_at and a window's rows, got {program.schedule.steps:,}"
        )
    try:
        codecs, replays = codecs_of(program, roles), replays_of(program, spec, roles, pace)
    except ValueError as error:
        problems.append(str(error))
    for name, replay in replays.items():
        problems += [
            room(program, name) + problem
            for problem in (*too_small(replay, learning(program)[name]), *memory.disk(replay))
        ]
    problems += [
        room(program, name) + problem
        for name in learning(program)
        for problem in block_problems(program, nets[name])
    ]
    refuse(problems)
    codec.installed(codecs.values())
    record_steps = min(program.schedule.steps // RECORDS, RECORD_STEPS)
    blue = Blueprint(
        program=program,
        spec=spec,
        roles=roles,
        pace=pace,
        replays=replays,
        updates=updates,
        schedule_updates=schedule,
        record_every=max(record_steps // pace.rows, 1) * pace.updates,
        checkpoint_every=pace.between(program.schedule.checkpoint_every or 0),
        directory="",
        weights=None if beginning.weights is None else str(beginning.weights),
        before=before,
        resume=beginning.source,
        dataset=dataset,
        scoring=source.scoring(),
    )
    sizes = {name: memory.nbytes(net) for name, net in nets.items()}
    memory.check_memory(program, partial(_parts, blue, sizes))
    taken = sum(memory.parts(blue, sizes).values())
    phases.say(f"starting the workers of a run that takes {memory.size(taken)} of memory")
    return blue


def _warmup(program: Program) -> str:
    warms_up = any(one.algorithm.warmup_rows for one in learning(program).values())
    return "algorithm.encoder_rows, " if warms_up else ""


def _count(program: Program, spec: RunSpec, name: str) -> int:
    """Count the bytes of a network without building it."""
    return memory.counted(partial(network, program, spec, name))


def _parts(blue: Blueprint, sizes: Mapping[str, int], program: Program) -> dict[str, int]:
    """Count the bytes that such a program takes, by name; ValueError for an impossible program."""
    if program is blue.program:
        return memory.parts(blue, sizes)
    known = {
        name: teacher(program, name).algorithm == role.algorithm
        for name, role in blue.roles.items()
    }
    counts = {
        name: sizes[name] if same else _count(program, blue.spec, name)
        for name, same in known.items()
    }
    pace = pace_of(program, blue.roles)
    made = replace(
        blue, program=program, pace=pace, replays=replays_of(program, blue.spec, blue.roles, pace)
    )
    return memory.parts(made, counts)
