"""Sizes for a slow env: how many actors and envs, and how long unrolls, so that a first update comes within seconds.

The defaults are for envs of less than a millisecond a step. With 2 actors of 16 envs and unrolls of 64 rows, an env of 100 ms
a step would give its first batch after two minutes. One env is therefore made and stepped for a moment. Where it is slow, and
the user named none of these sizes, they follow from what was measured. They are a part of the program that ``run.json`` keeps.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from equipoise import phases, recipes
from equipoise.envs import make
from equipoise.envs.base import SyncEnv
from equipoise.programs.fields import alter
from equipoise.programs.program import algorithm_name
from equipoise.programs.refusals import check
from equipoise.types import Policy, Program, learning

SLOW_STEP_S, SLOW_RESET_S = 0.005, 0.5  # an env beyond either is slow
MEASURE_S, STEPS = 1.0, 32  # the measurement ends after so long, or so many steps
UPDATE_S = 5.0  # that the rows of a batch may take
SHORTEST = 16  # rows of an unroll
WAITS = 0.5  # an env that computes for less than this share of a step waits for something outside, and needs no core
MOST_WAITING = 8  # actors of an env that waits
SIZES = ("actors", "envs_per_actor", "unroll", "batch")


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a step and of a reset of one env, and the share of a step in which this process computes."""

    step_s: float
    reset_s: float
    computes: float

    @property
    def slow(self) -> bool:
        return self.step_s >= SLOW_STEP_S or self.reset_s >= SLOW_RESET_S


def fitted(program: Program, given: Collection[str], *, recipe: bool) -> tuple[Program, str]:
    """The program with sizes that fit a slow env, and a sentence on them; as it was, and "", where nothing is to be done.

    ``given``: what the user said, by the names of options and the keys of settings. ``recipe``: was one laid under that, if
    there is one? Nothing is done where they asked for ``max_lag=0``: then nothing that is measured may decide what is computed.
    """
    named = {key.rpartition(".")[2] for key in given}
    lockstep = "max_lag" in named and program.placement.max_lag == 0
    if lockstep or (recipe and recipes.find(program.name, _algorithm(program)) is not None):
        return program, ""
    one = next(iter(learning(program).values()))
    if program.source.env is None or len(program.policies) > 1 or named & {*SIZES, "updates", "starts_at", "inference"}:
        return program, ""
    if (pace := measured(program)) is None or not pace.slow:
        return program, ""
    made = _sized(program, one, pace)
    try:
        check(made)
    except ValueError:  # an algorithm that wants other sizes: its own
        return program, ""
    place, policy = made.placement, next(iter(learning(made).values()))
    return made, (
        f"{program.name} takes {_said(pace.step_s)} a step and {_said(pace.reset_s)} a reset, so the defaults are --actors "
        f"{place.actors} --envs-per-actor {place.envs_per_actor} --unroll {policy.unroll} --batch {policy.batch}"
    )


def _algorithm(program: Program) -> str:
    return algorithm_name(type(next(iter(learning(program).values())).algorithm))


def measured(program: Program) -> Pace | None:
    """Step one env for a moment; None where it cannot be, which the run will say."""
    phases.say(f"measuring an env of {program.name}")
    with contextlib.ExitStack() as stack, contextlib.suppress(Exception, SystemExit):  # the run meets the same, and says what
        env: SyncEnv = make(program.env, streams=np.arange(1), seed=program.schedule.seed)
        stack.callback(env.close)
        began = time.perf_counter()
        ts = env.recv()
        reset_s = time.perf_counter() - began
        began, computed, steps = time.perf_counter(), time.process_time(), 0
        while steps < STEPS and time.perf_counter() - began < MEASURE_S and not (ts.terminated[0] or ts.truncated[0]):
            env.send(env.form.zeros(), ts.stream)
            ts = env.recv()
            steps += 1
        wall = max(time.perf_counter() - began, 1e-9)
        return Pace(wall / max(steps, 1), reset_s, (time.process_time() - computed) / wall)
    return None


def _sized(program: Program, policy: Policy, pace: Pace) -> Program:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    actors = min(MOST_WAITING, max(cores, 4)) if pace.computes < WAITS else cores
    # The envs of one actor are stepped and reset one after the other: more of them make nothing faster.
    envs = 1 if pace.reset_s >= SLOW_RESET_S or pace.step_s >= 10 * SLOW_STEP_S else 4
    if policy.replay is not None:  # an update for each row, as where one env is stepped alone
        rows = actors * envs * policy.unroll
        changed = replace(policy, replay=replace(policy.replay, updates=rows))
    else:
        longest = round(UPDATE_S / (pace.step_s * envs))
        changed = replace(policy, unroll=max(min(policy.unroll, longest), SHORTEST), batch=actors * envs)
    (name,) = learning(program)
    return replace(alter(program, actors=actors, envs_per_actor=envs), policies={**program.policies, name: changed})


def _said(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1.0 else f"{seconds * 1e3:.0f} ms"
