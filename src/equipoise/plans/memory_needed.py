"""Memory that a run takes, summed up before anything is allocated, and the memory that this machine
has.

The sum is a lower bound: it leaves out an env's own memory, the memory of a backward pass, and the
interpreters. A run whose lower bound does not fit is refused in one sentence, with the parts of the
sum and the nearest setting that fits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from equipoise import tree
from equipoise.actors.forward.forward import KEPT_ROWS, KEPT_SLOTS
from equipoise.actors.inference.exchange import Exchange, PolicySizes
from equipoise.cores import cgroup_folders
from equipoise.envs import observation_spec
from equipoise.experience.layout import trajectory_specs
from equipoise.experience.queue.queue import Plan
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.learners.encoding import POOL
from equipoise.programs.fields import alter
from equipoise.programs.refusals import check
from equipoise.sources import kv_budget
from equipoise.sources.source import task_of
from equipoise.sources.text import texts_of
from equipoise.types import Algorithm, Policy, Program, RunSpec, Tree, learning

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint

MOST_STREAMS = 100  # of an evaluation
# bytes of the Python objects that hold the views of one row of an unroll, at least
ROW_OBJECTS = 600
WIDE = 1 << 26  # numbers in one layer: a network that may have more is counted before it is built
ENDLESS = 1 << 64  # bytes, of what has no size in 64 bits
# values below the largest one that are tried, since some settings have to divide others
NEARBY = 64
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
# by controller: version 2, version 1
CGROUP_FILES = {"": "memory.max", "memory": "memory.limit_in_bytes"}
TOO_LARGE = re.compile(
    r"allocate memory|out of memory|overflow|[Ss]torage size|too large", re.ASCII
)

# the parts of the sum, in bytes by name; ValueError if there is no such run
Size = int | tuple[int, ...]  # of a setting
Measure = Callable[[Program], dict[str, int]]


# -------------------------------------------------------------------------------------- the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Memory of this machine, in bytes; None if the system does not report it."""

    total: int | None
    free: int | None
    name: str = "this machine's memory"


def machine(root: Path = Path("/")) -> Machine:
    """The machine, or its cgroup if that has less. ``root``: where ``proc`` and ``sys`` are
    found.
    """
    facts = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE))
    total = int(facts["MemTotal"]) * 1024 if "MemTotal" in facts else _pages()
    free = None
    if "MemAvailable" in facts:
        free = (int(facts["MemAvailable"]) + int(facts.get("SwapFree", 0))) * 1024
    limit = min(_cgroup_limits(root), default=None)
    if limit is not None and (total is None or limit < total):
        return Machine(
            total=limit,
            free=free if free is None else min(free, limit),
            name="the memory limit of this cgroup",
        )
    return Machine(total=total, free=free)


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Limits of the process's control groups and of all groups around them."""
    for controller, file in CGROUP_FILES.items():
        for directory in cgroup_folders(controller, root):
            text = _text(directory / file).strip()
            if text.isdigit():  # "max" if there is no limit
                yield int(text)


def _text(path: Path) -> str:
    """A file of the system, or nothing if there is none (another system, a container without
    it).
    """
    return path.read_text() if path.is_file() and os.access(path, os.R_OK) else ""


def _pages() -> int | None:
    known = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None


# ------------------------------------------------------------------------------------------ the sum


def queue_plan(blue: Blueprint) -> Plan:
    """The queue of a learner, with the rows of the learning policies side by side."""
    block, groups = blue.program.placement.group_envs, blue.groups_of(0)
    return Plan(
        rows={name: role.row for name, role in blue.learns.items()},
        unroll=blue.unroll,
        batch=blue.round // blue.learners,
        block=block,
        envs=max(len(groups), 1) * block,
        max_lag=blue.program.placement.max_lag,
        span=block * len(blue.spec.env.agents),
        learners=blue.learners,
    )


def parts(blue: Blueprint, nets: Mapping[str, int]) -> dict[str, int]:
    """Bytes of everything that grows with a setting, by name. ``nets``: bytes of each policy's
    parameters and buffers.
    """
    program, plan, unroll = blue.program, queue_plan(blue), blue.unroll
    found = {
        "queue": plan.nbytes * blue.learners,
        "batches": 0,
        "replay": 0,
        "agents": 0,
        "networks": 0,
        "weights": 0,
        "evaluation": 0,
    }
    for name, policy in blue.policies.items():
        if policy.replay is not None:
            window = policy.algorithm.item_rows or unroll
            row = replace(blue.roles[name].kept, columns=1)
            # of all learners
            found["batches"] += tree.nbytes(trajectory_specs(row, window, policy.batch))
            images = dict(tree.items(blue.roles[name].row.obs))
            found["batches"] += POOL * sum(images[path].nbytes for path in blue.roles[name].latents)
        elif not plan.ordered and plan.per_batch > 1:
            found["batches"] = tree.nbytes(plan.gathered) * blue.learners
    for replay in blue.replays.values():
        each = replay.nbytes(replay.slots) - (_rows(replay) if replay.settings.file else 0)
        found["replay"] += each * blue.learners
    # whose views an agent keeps
    slots = min(-(-plan.blocks // max(plan.actors, 1)), max(KEPT_ROWS // unroll, KEPT_SLOTS))
    for role in blue.roles.values():
        row = role.row
        streams = program.actors * program.placement.envs_per_actor * len(role.places)
        # the env's rows, the agent's, counters
        width = 3 * _bytes(row.obs) + _bytes(row.action) + 2 * _bytes(row.state) + 64
        noise = 4 * unroll * role.noise.columns * slots
        found["agents"] += streams * (width + noise) + ROW_OBJECTS * unroll * slots * program.groups
        found["evaluation"] += (
            min(program.evaluation.episodes, MOST_STREAMS) * len(role.places) * width
        )
    if blue.inferences:
        sizes = exchange_sizes(blue)
        found["agents"] += tree.nbytes(Exchange.specs(policies=sizes, groups=program.groups))
    # each with a network, and a copy of the newest weights
    agents = blue.inferences or program.groups
    for name, role in blue.roles.items():
        copies = 1 + 2 + 2 * agents  # the first network, the evaluation's with its copy
        if role.frozen is None:
            # and, of several that may be replaced, all but the gradients again
            each = learner_copies(learning(program)[name])
            # of all that a learner keeps
            holders = 1 if program.placement.shard == "fsdp" else blue.learners
            copies += holders * (each + (each - 1 if blue.replaceable else 0))
        else:
            copies += role.frozen.pool
        found["networks"] += copies * nets[name]
        found["weights"] += 3 * nets[name]
    if (source := task_of(program)) is not None:
        rows = texts_of(program).at_once()
        found["keys and values"] = kv_budget.nbytes(program, source, blue.spec.env, rows)
    return found


def exchange_sizes(blue: Blueprint) -> dict[str, PolicySizes]:
    """The sizes of each policy's memory between env workers and inference workers."""
    program = blue.program
    return {
        name: PolicySizes(
            obs=role.row.obs,
            action=role.row.action,
            width=program.placement.group_envs * len(role.places),
            metrics=len(program.source.reported),
        )
        for name, role in blue.roles.items()
    }


def _bytes(specs: Tree) -> int:
    return sum(int(one.nbytes) for one in tree.leaves(specs))


def learner_copies(policy: Policy) -> int:
    """Parameters, gradients, the optimiser's numbers, the target network: how many times a
    network's bytes.
    """
    return (
        2 + (1 if policy.optimizer.name == "rmsprop" else 2) + (policy.algorithm.copied_every > 0)
    )


# ------------------------------------------------------------------------------------- the networks


def _hyper_parameters(algorithm: Algorithm) -> dict[str, Size]:
    """The fields of an algorithm that are numbers, or tuples of them: they may decide how much
    memory it takes.
    """
    fields = {one.name: getattr(algorithm, one.name) for one in dataclasses.fields(algorithm)}
    return {name: value for name, value in fields.items() if _number(value)}


def may_be_huge(algorithm: Algorithm, observation: int) -> bool:
    """May one layer of the algorithm's network have more numbers than ``WIDE``? ``observation``:
    numbers of a row.
    """
    widest = max(map(_number, _hyper_parameters(algorithm).values()), default=0)
    return max(widest, observation) * widest > WIDE


def networks(program: Program, spec: RunSpec, count: Callable[[str], int]) -> dict[str, int]:
    """Bytes of the learner's networks, counting networks that may be huge, before any is built;
    ``count``: of a policy's.
    """
    found = 0
    for name, policy in learning(program).items() if program.source.played is not None else ():
        observation = tree.leaves(observation_spec(spec.policies[name].observation))
        if may_be_huge(policy.algorithm, sum(math.prod(one.shape) for one in observation)):
            # it cannot be counted: building it shows the size
            with contextlib.suppress(ValueError):
                found += learner_copies(policy) * count(name)
    return {"networks": found}


def counted(build: Callable[[], nn.Module]) -> int:
    """Bytes of the parameters and buffers of a network, without allocating any; ValueError if only
    building it shows the number.
    """
    try:
        with torch.device("meta"):
            return nbytes(build())
    except Exception as error:  # a network of a user's may read numbers that are not there
        if TOO_LARGE.search(str(error)):
            return ENDLESS
        raise ValueError(
            f"expected a network that can be counted before it is built, got {error}"
        ) from error


def built(build: Callable[[], nn.Module]) -> nn.Module:
    """The network; ValueError if this machine lacks the room for a network that could not be
    counted before.
    """
    try:
        return build()
    except (RuntimeError, OverflowError) as error:
        if not TOO_LARGE.search(str(error)):
            raise
        raise ValueError(
            f"algorithm: expected a network that fits in {machine().name}, got {error}"
        ) from error


def nbytes(net: nn.Module) -> int:
    """Bytes of the parameters and buffers of a network."""
    return sum(one.numel() * one.element_size() for one in (*net.parameters(), *net.buffers()))


def disk(plan: ReplayPlan) -> list[str]:
    """The parts of a mapped replay that its disk has no room for."""
    if not plan.settings.file:
        return []
    path = Path(plan.settings.file).absolute()  # and what is there of it already
    free = shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free
    if (rows := _rows(plan)) <= free:
        return []
    return [
        f"replay.file: expected room for {rows:,} bytes in {plan.settings.file}, got {free:,} that "
        "are free"
    ]


def _rows(plan: ReplayPlan) -> int:
    return plan.layout.nbytes(slots=plan.slots, streams=plan.streams, unroll=plan.unroll)


# -------------------------------------------------------------------------------------- the refusal


def check_memory(program: Program, measure: Measure) -> None:
    """ValueError if the run does not fit: expected, got, the parts of the sum, the nearest setting
    that fits.
    """
    if (told := problem(program, measure, machine())) is not None:
        raise ValueError(told)


def problem(program: Program, measure: Measure, has: Machine) -> str | None:
    """The sentence of that refusal; None if the run fits."""
    found = measure(program)
    limit, name, needed = has.total, has.name, sum(found.values())
    if limit is None or needed <= limit:
        at_once = needed - found.get("replay", 0)  # a replay fills up later
        if has.free is None or at_once <= has.free:
            return None
        limit, name, needed = has.free, "the memory that is free now", at_once
    wanted = f"a run that fits in {name}, {size(limit)}"
    largest = sorted(
        (item for item in found.items() if item[1] > needed // 100), key=lambda item: -item[1]
    )
    told = (
        f"{size(needed, least=True)} "
        f"({', '.join(f'{part} {size(count)}' for part, count in largest)})"
    )
    for key, value, _, step, with_ in sorted(_candidates(program), key=lambda one: -one[2]):
        fits = _most(_number(value), step, partial(_fits, with_, measure, has))
        if fits:
            lower = (fits - step * n for n in range(NEARBY))
            fits = next(
                (
                    n
                    for n in (*lower, 1 << fits.bit_length() - 1)
                    if n > 0 and _works(with_(n), measure)
                ),
                fits,
            )
            shown = f"{value:,}" if isinstance(value, int) else str(list(value))
            inside = " in each place" if isinstance(value, tuple) else ""
            out = ""
            if key.startswith("replay."):
                out = "; or replay.file=DIR, which keeps the rows in a mapped file there"
            return (
                f"{key}: expected {wanted}, got {shown}, which takes {told}; the nearest that "
                f"fits is {fits:,}{inside}{out}"
            )
    return (
        f"expected {wanted}, got one that takes {told}; no setting alone makes it fit: lower "
        "several of them"
    )


def size(count: int, *, least: bool = False) -> str:
    """Bytes in words: "3.1 GiB"; ``least``: "at least 3.1 GiB"."""
    if count >= ENDLESS:
        return "more than 16 EiB"
    if least:
        return f"at least {size(count)}"
    power = min(int(math.log2(max(count, 1)) // 10), len(UNITS) - 1)
    return f"{int(count):,} bytes" if power == 0 else f"{count / 1024**power:,.1f} {UNITS[power]}"


def _number(value: object) -> int:
    """The largest whole number of a setting; 0 if it is something else."""
    numbers = [one for one in (value if isinstance(value, tuple) else (value,)) if type(one) is int]
    return max(numbers, default=0)


def _works(program: Program, measure: Measure) -> bool:
    """Return True if the program passes every other check."""
    try:
        check(program)
        measure(program)
    except ValueError:
        return False
    return True


def _fits(with_: Callable[[int], Program], measure: Measure, has: Machine, number: int) -> bool:
    try:
        found = measure(with_(number))
    except ValueError:  # too small a run for another reason, which ``_works`` sees
        return True
    free = math.inf if has.free is None else has.free
    return (
        sum(found.values()) <= (has.total or math.inf)
        and sum(found.values()) - found.get("replay", 0) <= free
    )


def _most(value: int, step: int, fits: Callable[[int], bool]) -> int:
    """The largest multiple of ``step`` below ``value`` that fits; 0 if there is none."""
    low, high = 0, value // step + 1  # in steps: ``low`` fits, ``high`` does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step


def _candidates(program: Program) -> Iterator[tuple[str, Size, int, int, Callable[[int], Program]]]:
    """Settings that the sum grows with: (key, its value, its weight, in steps of, the program with
    another value).

    The weight orders them: a setting with a large number is the likely cause.
    """
    # they have the unroll in common, and without a replay the batch
    policy, *_ = learning(program).values()
    envs = program.placement.envs_per_actor
    blocks = max(policy.batch // envs, 1)

    def everywhere(program: Program, change: Callable[[Policy], Policy]) -> Program:
        made = {name: change(one) for name, one in learning(program).items()}
        return replace(program, policies={**program.policies, **made})

    def with_batch(program: Program, number: int) -> Program:
        return everywhere(program, lambda one: replace(one, batch=number))

    def fewer_envs(number: int) -> Program:
        made = alter(program, envs_per_actor=number)
        return made if policy.replay is not None else with_batch(made, blocks * number)

    yield "actors", program.actors, program.actors, 1, lambda number: alter(program, actors=number)
    yield "envs_per_actor", envs, envs, 1, fewer_envs
    if program.placement.max_lag:
        yield (
            "max_lag",
            program.placement.max_lag,
            program.placement.max_lag,
            1,
            lambda number: alter(program, max_lag=number),
        )
    yield (
        "unroll",
        policy.unroll,
        policy.unroll,
        1,
        lambda number: everywhere(program, lambda one: replace(one, unroll=number)),
    )
    if (source := task_of(program)) is not None:
        yield (
            "source.samples_at_once",
            source.samples_at_once,
            source.samples_at_once,
            1,
            lambda number: replace(program, source=replace(source, samples_at_once=number)),
        )
    # a batch that was not given is one unroll of every stream
    batch, step = policy.batch, 1 if policy.replay else envs
    yield ("batch", batch, batch // max(program.actors, 1), step, partial(with_batch, program))
    for name, policy in learning(program).items():
        room = f"policies.{name}." if len(program.policies) > 1 else ""
        if policy.replay is not None:
            replay, smaller = policy.replay, partial(_smaller, program, name)
            if replay.memory:
                yield f"{room}replay.memory", replay.memory, replay.memory, 1, smaller
            else:
                yield f"{room}replay.capacity", replay.capacity, replay.capacity, 1, smaller
        for field, size in _hyper_parameters(policy.algorithm).items():
            if _number(size) > 1:
                with_ = partial(_narrower, program, name, field, size)
                yield f"{room}algorithm.{field}", size, _number(size), 1, with_


def _smaller(program: Program, name: str, number: int) -> Program:
    policy = learning(program)[name]
    replay = policy.replay
    assert replay is not None
    made = replace(replay, memory=number) if replay.memory else replace(replay, capacity=number)
    return replace(program, policies={**program.policies, name: replace(policy, replay=made)})


def _narrower(program: Program, name: str, field: str, value: Size, number: int) -> Program:
    policy = learning(program)[name]
    cut = tuple(min(one, number) for one in value) if isinstance(value, tuple) else number
    changed: dict[str, Any] = {field: cut}
    made = replace(policy, algorithm=replace(policy.algorithm, **changed))
    return replace(program, policies={**program.policies, name: made})
