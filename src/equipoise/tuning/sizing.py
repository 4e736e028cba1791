"""Sizes for a slow env, and for one of many agents: how many actors and envs, and how long unrolls.

The defaults are for envs of one agent and less than a millisecond a step. With 2 actors of 16 envs
and unrolls of 64 rows, an env of 100 ms a step would give its first batch after two minutes; one of
12 agents would make batches that take 12 times the memory and the learner's time. So an env is made
and stepped for a moment. The sizes that the user did not name follow from what was seen, and are a
part of the program that ``run.json`` keeps. A verdict advises another value of one size; if you set
that size, the other sizes stay fitted.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from equipoise import phases, recipes
from equipoise.cores import run_delay_s, usable
from equipoise.envs import make, scales
from equipoise.envs.base import SyncEnv
from equipoise.envs.check.drawn import Drawn
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.families.joint import Joint
from equipoise.envs.loop import LoopEnv
from equipoise.facts import values_of
from equipoise.hints import raised
from equipoise.programs.fields import alter
from equipoise.programs.program import algorithm_name
from equipoise.programs.refusals import check
from equipoise.types import Policy, Program, first_learning, learning

SLOW_STEP_S, SLOW_RESET_S = 0.005, 0.5  # an env beyond either is slow
MEASURE_S, STEPS = 1.0, 32  # the measurement ends after this time, or this number of steps
UPDATE_S = 5.0  # that the rows of a batch may take
SHORTEST = 16  # rows of an unroll
MOST_MINIBATCHES = 32
# an env that computes for less than this share of a step waits outside, and needs no core
WAITS = 0.5
MOST_WAITING = 8  # actors of an env that waits
PLACES = {"actors", "envs_per_actor"}  # a user who sets both has chosen the placement
OTHERS = {"updates", "starts_at", "inference"}  # a user who sets one of them has another plan
CUTS = {"minibatches", "policies"}  # a user who sets one may have chosen the minibatches


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a step and a reset of one env, the share this process computes, and agents."""

    step_s: float
    reset_s: float
    computes: float
    agents: int = 1
    # a sentence on observations that are too large for a network, though their space hides it
    scale: str = ""

    @property
    def slow(self) -> bool:
        return self.step_s >= SLOW_STEP_S or self.reset_s >= SLOW_RESET_S


def fitted(program: Program, given: Collection[str], *, recipe: bool) -> tuple[Program, str]:
    """As ``_fitted``; the sentence also names an env without a recipe in a family with recipes."""
    made, said = _fitted(program, given, recipe=recipe)
    return made, "\n".join(one for one in (untuned(program) if recipe else "", said) if one)


def untuned(program: Program) -> str:
    """A sentence if an Atari game has no recipe for its algorithm; "" for all else."""
    one = next(iter(learning(program).values()), None)
    if (
        program.source.played is None
        or one is None
        or not program.name.removeprefix("python:").startswith("ALE/")
    ):
        return ""
    algorithm = algorithm_name(type(one.algorithm))
    if recipes.find(program.name, algorithm) is not None:
        return ""
    tuned = sorted(f"{env} with {name}" for env, name in recipes.RECIPES if env.startswith("ALE/"))
    return (
        f"no recipe for {program.name} with {algorithm}: it begins with general defaults, which "
        f"are not tuned for Atari; there are recipes for {', '.join(tuned)}, and --save-config "
        "FILE writes the settings of one of these, to begin from"
    )


def _fitted(program: Program, given: Collection[str], *, recipe: bool) -> tuple[Program, str]:
    """The program with sizes that fit a slow env, and a sentence on them, or "".

    ``given``: names of options and keys of settings that the user set; ``recipe``: may a recipe lie
    under them. With ``max_lag=0`` no measurement may decide results; worlds outside connect later.
    """
    named = {key.rpartition(".")[2] for key in given}
    lockstep = "max_lag" in named and program.placement.max_lag == 0
    if lockstep or (recipe and recipes.find(program.name, _algorithm(program)) is not None):
        return program, ""
    one = first_learning(program)
    said = named >= PLACES or named & OTHERS
    if said or program.source.played is None or len(program.policies) > 1 or program.outside:
        return program, ""
    try:
        pace = measured(program)
    except NotMeasured as error:
        return program, str(error)
    if pace is None:
        return program, ""
    scale = "" if values_of(one.algorithm).get("normalize_obs") else pace.scale
    if not (pace.slow or (pace.agents > 1 and one.replay is None)):
        return program, scale
    made = _sized(program, one, pace, named)
    try:
        check(made)
    except ValueError:  # an algorithm that wants other sizes: its own
        return program, scale
    place, policy = made.placement, first_learning(made)
    if made == program:
        return program, scale
    why = (
        f"takes {_said(pace.step_s)} a step and {_said(pace.reset_s)} a reset"
        if pace.slow
        else f"has {pace.agents} agents"
    )
    sizes = {
        "actors": place.actors,
        "envs_per_actor": place.envs_per_actor,
        "unroll": policy.unroll,
        "batch": policy.batch,
    }
    shown = " ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in sizes.items() if name not in named
    )
    return made, f"{program.name} {why}, so the defaults are {shown}" + (
        f"\n{scale}" if scale else ""
    )


def _algorithm(program: Program) -> str:
    return algorithm_name(type(first_learning(program).algorithm))


class NotMeasured(Exception):
    """The error of an env that raises while it is measured; the run may never meet that again."""


def measured(program: Program) -> Pace | None:
    """Step one env for a moment; None if it cannot be made or ends its process.

    NotMeasured names any other error of the env.
    """
    phases.say(f"measuring an env of {program.name}")
    with contextlib.suppress(SystemExit), contextlib.ExitStack() as stack, _exits_raised():
        try:
            env: SyncEnv = make(program.env, streams=np.arange(1), seed=program.schedule.seed)
        except Exception:
            return None
        stack.callback(_close, env)
        try:
            return _pace(env, program.schedule.seed)
        except Exception as error:
            why = str(error) if isinstance(error, WrongValue) else raised(error)
            raise NotMeasured(
                f"{program.name} could not be measured, so no default is fitted to its pace: {why}"
            ) from error
    return None


def _close(env: SyncEnv) -> None:
    # closing is no part of the pace
    with contextlib.suppress(Exception):
        env.close()


def _pace(env: SyncEnv, seed: int) -> Pace:
    reset = _Spent()
    ts = env.recv()
    reset_s, reset_computed = reset.seconds()
    # members of the space that the mask allows, as a policy's actions are
    drawn = Drawn(env, STEPS, seed)
    stepping, until, steps = _Spent(), time.perf_counter() + MEASURE_S, 0
    while (
        steps < STEPS and time.perf_counter() < until and not (ts.terminated[0] or ts.truncated[0])
    ):
        env.send(drawn(steps, ts), ts.stream)
        ts = env.recv()
        steps += 1
    stepped_s, computed = stepping.seconds()
    computes = (reset_computed + computed) / (reset_s + stepped_s)
    agents, joint = _agents(env), isinstance(env, LoopEnv) and isinstance(env.envs[0], Joint)
    space, obs = (
        (env.spec.observation["agents"], ts.obs["agents"])  # type: ignore[index]
        if joint
        else (env.spec.observation, ts.obs)
    )
    return Pace(
        stepped_s / max(steps, 1),
        reset_s,
        computes,
        agents,
        scales.said(scales.large_seen(space, obs)),
    )


class _Spent:
    """CPU time of this thread from now on, without its waits for a core."""

    def __init__(self) -> None:
        self._began, self._late, self._computed = (
            time.perf_counter(),
            run_delay_s(),
            time.process_time(),
        )

    def seconds(self) -> tuple[float, float]:
        """Seconds in all, and seconds on a core."""
        wall = time.perf_counter() - self._began - (run_delay_s() - self._late)
        return max(wall, 1e-9), time.process_time() - self._computed


@contextlib.contextmanager
def _exits_raised() -> Iterator[None]:
    """Let an env's ``os._exit`` raise instead: it would end the command without a word."""

    def leave(status: int) -> NoReturn:
        raise SystemExit(status)

    before, os._exit = os._exit, leave
    try:
        yield
    finally:
        os._exit = before


def _agents(env: SyncEnv) -> int:
    one = env.envs[0] if isinstance(env, LoopEnv) else None
    return len(one.names) if isinstance(one, Joint) else 1


def _sized(program: Program, policy: Policy, pace: Pace, named: Set[str]) -> Program:
    place = program.placement
    actors, envs = place.actors, place.envs_per_actor
    if pace.slow and "actors" not in named:
        cores = usable()
        actors = min(MOST_WAITING, max(cores, 4)) if pace.computes < WAITS else cores
    if "envs_per_actor" not in named:
        # the envs of one actor are stepped and reset one after the other: more of them make nothing
        # faster
        if pace.slow:
            envs = 1 if pace.reset_s >= SLOW_RESET_S or pace.step_s >= 10 * SLOW_STEP_S else 4
        # each agent is a stream, as an env of one agent is
        envs = max(min(envs, place.envs_per_actor // pace.agents), 1)
    if policy.replay is not None:  # an update for each row, as for one env that is stepped alone
        rows = actors * envs * policy.unroll
        changed = replace(policy, replay=replace(policy.replay, updates=rows))
    else:
        longest = round(UPDATE_S / (pace.step_s * envs)) if pace.slow else policy.unroll
        unroll = policy.unroll if "unroll" in named else max(min(policy.unroll, longest), SHORTEST)
        changed = replace(
            policy, unroll=unroll, batch=policy.batch if "batch" in named else actors * envs
        )
        changed = changed if named & CUTS else cut(changed)
    (name,) = learning(program)
    sizes = {
        key: value
        for key, value in (("actors", actors), ("envs_per_actor", envs))
        if key not in named
    }
    return replace(alter(program, **sizes), policies={**program.policies, name: changed})


def cut(policy: Policy) -> Policy:
    """Cut a large batch into more minibatches, since a step of many rows learns little more."""
    algorithm = policy.algorithm
    if not algorithm.minibatch_rows:
        return policy
    rows, parts = policy.unroll * policy.batch, type(algorithm).minibatches
    most = min(MOST_MINIBATCHES, policy.batch, rows // algorithm.minibatch_rows)
    while 2 * parts <= most and rows % (2 * parts) == 0:
        parts *= 2
    return replace(policy, algorithm=replace(algorithm, minibatches=parts))


def _said(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1.0 else f"{seconds * 1e3:.0f} ms"
