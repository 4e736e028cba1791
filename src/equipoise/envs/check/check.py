"""``check_env``: will training on this env go well, is it reproducible, and what does it cost?

Walks with one seed and one list of actions: the first is judged row by row and timed; a fresh env must answer the same; the
first env, seeded again, must begin anew; two Python envs stepped in turn must not notice each other; and in a vector env
the action after an episode's end must not matter (NEXT_STEP).
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise import tree
from equipoise.envs import final
from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.base import SyncEnv
from equipoise.envs.check.endings import Endings
from equipoise.envs.check.findings import (
    CLOCK,
    Broken,
    Finding,
    Findings,
    Flat,
    Severity,
    bounds,
    judge_row,
    judge_spaces,
    leaves,
)
from equipoise.envs.check.probe import OUTCOMES, Probe, Rows, difference, global_generators, same, sample, set_global_generators
from equipoise.envs.families.joint import Joint
from equipoise.envs.hints import UnsupportedSpace
from equipoise.envs.infos import paths
from equipoise.envs.loop import LoopEnv
from equipoise.envs.making import make
from equipoise.envs.masks import KEY
from equipoise.envs.spaces import observation_spec
from equipoise.types import Array, EnvFactory, Tree

STEPS = 1500  # beyond the time limits of most envs
STREAMS = 2
KEPT_BYTES = 256 * 2**20  # most bytes of rows that are kept to compare walks
STALL_S, STALL_RATIO = 0.05, 20.0  # a 99th percentile beyond both is noted

IRREPRODUCIBLE = (
    "Two runs of the same seed differ, also at --max-lag 0; a resume cannot go on bit by bit, and what went wrong once cannot "
    "be played again."
)
HELD = (
    "SAME_STEP: terminated, also with truncated, ends the return there; truncated alone keeps the value after it, and all "
    "streams of a worker wait a row for that"
)
RESUMES = {
    "exact": "exact: an episode goes on where it was, bit for bit",
    "replay": "replay: an episode is played again up to where it was",
    "restart": "restart: the run goes on, with a new episode in each env",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of one kind of call."""

    mean: float
    p50: float
    p99: float
    max: float
    count: int

    @classmethod
    def of(cls, seconds: list[float]) -> Times:
        p50, p99 = np.quantile(seconds, (0.5, 0.99)).tolist()
        return cls(mean=float(np.mean(seconds)), p50=p50, p99=p99, max=max(seconds), count=len(seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    target: str
    findings: tuple[Finding, ...]  # errors first
    facts: dict[str, str]  # in reading order
    step_s: Times | None = None
    reset_s: Times | None = None  # None, too, where a vector env resets within its steps
    streams: int = 1  # streams that one call steps

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)


def check_env(factory: EnvFactory, *, steps: int = STEPS, seed: int = 0) -> Report:
    """Check an env with walks of ``steps`` each. ValueError and ImportError as from ``make`` (unknown id, wrong argument).

    Anything else that is wrong with the env is a finding. The global random generators are left as they were.
    """
    if steps < 10:
        raise ValueError(f"steps: expected at least 10, got {steps}")
    before = global_generators()
    try:
        with contextlib.ExitStack() as stack:
            checking = _Check(factory, steps, seed, stack)
            with contextlib.suppress(Broken):  # why is among the findings
                checking.all()
            return checking.report()
    finally:
        set_global_generators(before)


class _Check:
    """A check under way; its findings so far make a report at any moment."""

    def __init__(self, factory: EnvFactory, steps: int, seed: int, stack: contextlib.ExitStack) -> None:
        self.factory, self.steps, self.seed, self.stack = factory, steps, seed, stack
        self.found = Findings()
        self.facts: dict[str, str] = {}
        self.step_s: list[float] = []
        self.reset_s: list[float] = []
        self.streams = 1
        self.compared = self.reset_at = 0  # steps

    def fresh(self) -> SyncEnv:
        made = self.stack.enter_context(contextlib.closing(make(self.factory, streams=np.arange(STREAMS), seed=self.seed)))
        if isinstance(made, LoopEnv) and isinstance(made.envs[0], Joint):
            raise ValueError(
                f"{self.factory.target}: expected an env of one agent, got {', '.join(made.envs[0].names)}; PettingZoo "
                "checks its own: pettingzoo.test.parallel_api_test(env)"
            )
        return made

    def probe(self, made: SyncEnv, *, index: int = 0, watch: bool = False) -> Probe:
        return Probe(made, self.found, reset_at=self.reset_at, index=index, watch=watch)

    def report(self) -> Report:
        return Report(
            target=self.factory.target, findings=self.found.all(), facts=self.facts, streams=self.streams,
            step_s=Times.of(self.step_s) if self.step_s else None,
            reset_s=Times.of(self.reset_s) if self.reset_s else None,
        )  # fmt: skip

    def all(self) -> None:
        for name, value in self.factory.kwargs.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                seen = f"expected a JSON value, got {type(value).__name__} ({error})"
                self.found.error(
                    f"argument {name!r} is not JSON", "the arguments", seen, "run.json cannot hold it: no run can start."
                )
        try:
            made = self.fresh()
        except UnsupportedSpace as error:
            self.found.error("a space is not supported", "the spaces", str(error), "Training refuses this env.")
            return
        self.look(made)
        self.compared = min(self.steps, KEPT_BYTES // max(tree.nbytes(observation_spec(made.spec.observation)) * STREAMS, 1))
        self.reset_at = self.compared * 4 // 5
        probe = self.probe(made)
        self.streams = probe.streams
        actions = sample(made.spec.action, self.steps, probe.lead, self.seed)
        rows, endings = self.first_walk(probe, actions, same_step=is_same_step(made))
        if is_same_step(made):
            self.judge_finals(endings.finals, known=not made.spec.notes)
        self.found.closed = True  # the other walks see the same rows: nothing is counted twice
        actions = tree.index(actions, slice(self.compared))
        if not self.same_again(rows, actions):
            self.facts["seeds"] = "the same seed and actions give other rows"
            return  # the walks that follow would differ for this reason alone
        self.facts["seeds"] = "the same seed and actions give the same rows, bit for bit"
        one_episode = probe.python and difference(rows, self.side_by_side(rows, actions)) is None
        if one_episode:
            self.facts["seeds"] = "every seed gives the same rows"
        if probe.seed is not None:
            self.begins_anew(probe, rows, actions, ignores=one_episode)
        if endings.seams and not endings.glued:
            self.seams_ignore_actions(rows, actions, endings, made.spec.action)

    # --------------------------------------------------------------------------------------------------- before any step

    def look(self, made: SyncEnv) -> None:
        """Look at what is known without a step: spaces, the adapter's notes, what has to reach a worker process."""
        found, spec = self.found, made.spec
        judge_spaces(found, spec.observation, spec.action)
        for name, space in (("observation_space", spec.observation), ("action_space", spec.action)):
            try:
                ForkingPickler.dumps(space)  # as it goes to a worker process; nothing of it is read from a file
            except (PicklingError, AttributeError, TypeError) as error:
                cost = "Only --on serial can train on it: every worker process needs the spaces."
                found.error(f"{name} cannot be pickled", name, f"expected a space that can be sent, got: {error}", cost)
        for note in spec.notes:
            if note != final.UNKNOWN:  # the walk tells
                cost = "It concerns only the rows that it names."
                found.note(note, "the adapter", "what an env of this kind does", cost)
        self.facts["observation"] = "; ".join(
            described(space) if place == "obs" else f"{place.removeprefix('obs/')} {described(space)}"
            for place, space in leaves(spec.observation)
        )
        self.facts["action"] = "; ".join(
            f"{place.partition('/')[2]} {described(space, cast=False)}".lstrip()
            for place, space in leaves(spec.action, "action")
        )
        if spec.mask:
            self.facts["action mask"] = "/".join(("obs", *spec.mask))
        self.facts["autoreset"] = (
            HELD
            if is_same_step(made)
            else "NEXT_STEP: terminated, also with truncated, ends the return there; truncated alone keeps the value after it"
        )
        self.facts["resume"] = RESUMES[spec.resume]
        if spec.settings:
            self.facts["settings"] = spec.settings

    # ---------------------------------------------------------------------------------------------------------- the walks

    def first_walk(self, probe: Probe, actions: Tree, *, same_step: bool) -> tuple[Rows, Endings]:
        """Judge single rows, neighbouring rows and times; return the rows that other walks are compared with."""
        endings = Endings(self.found, probe.env, streams=probe.streams, vector=not probe.python, same_step=same_step)
        spaces_of = dict(leaves(probe.space))
        rows: Rows = []
        names: set[str] = set()  # in its info
        before: Flat = {}  # the env's last answer
        held: Flat = {}  # a copy of that answer
        for answer in probe.walk(actions):
            (self.reset_s if answer.reset else self.step_s).append(answer.seconds)
            if isinstance(answer.info, dict) and KEY in answer.info and self.factory.action_mask == "auto" and not probe.mask:
                self.facts["action mask"] = f"in info['{KEY}'], and not used: --set source.env.action_mask=info does"
            self.judge_kept(before, held, answer.where)
            before = probe.observed(answer)
            judge_row(self.found, spaces_of, before, answer, probe.lead)
            held = probe.row(answer, before)
            if endings.steps <= self.compared:
                rows.append((answer.where, held))
            if answer.reset:
                endings.reset()
            else:
                terminated, truncated, reward = (numbers(held, place, probe.streams) for place in OUTCOMES)
                endings.step(answer.where, terminated.astype(np.bool_), truncated.astype(np.bool_), reward, answer.info)
            self.facts["episodes"] = endings.said()
            if isinstance(answer.info, dict):
                names.update(paths(answer.info))
        if names:
            self.facts["info"] = f"{', '.join(sorted(names))} (--metrics reports those that are numbers)"
        endings.judge(limited="settings" in self.facts)  # those of a family say how long an episode may be
        step_s = Times.of(self.step_s)
        if step_s.p99 > max(STALL_S, STALL_RATIO * step_s.p50):
            seen = f"expected about {step_s.p50:.2g} s (the median), got {step_s.p99:.2g} s (the 99th percentile)"
            cost = "Every stream of the worker waits for the slowest, and in lockstep the whole run."
            self.found.note("some steps take far longer than most", "step()", seen, cost)
        return rows, endings

    def judge_finals(self, given: bool | None, *, known: bool) -> None:
        """Does a truncated episode of a SAME_STEP env show its last observation? ``known``: it does, no look needed."""
        if given is False:
            self.found.note(final.TRUNCATION, "the adapter", "expected info['final_obs'] in SAME_STEP, got none", CLOCK)
            self.facts["autoreset"] = "SAME_STEP without info['final_obs']: truncated, too, ends the return there"
        elif given is None and not known:
            self.found.note(final.UNKNOWN, "the adapter", "no episode was truncated in the walk", CLOCK)

    def judge_kept(self, before: Flat, held: Flat, where: str) -> None:
        """Does what the env gave last still hold what it held?"""
        for place, value in before.items():
            if isinstance(value, np.ndarray) and place in held and not same(held[place], value):
                seen = "expected the last observation to stay as it was, got other numbers in the same memory"
                cost = (
                    "Equipoise copies every row before the next step and learns the right thing; what keeps observations "
                    "(a frame stack, a wrapper, code of yours) sees the past change."
                )
                self.found.note(f"{place} is overwritten in place", where, seen, cost)

    def same_again(self, rows: Rows, actions: Tree) -> bool:
        """Compare with a fresh env, given the same seed and actions."""
        probe = self.probe(self.fresh(), watch=True)
        parted = difference(rows, probe.rows(actions))
        severity: Severity = "note" if getattr(probe.env.spec, "nondeterministic", False) else "error"  # it may say so itself
        if probe.touched:
            seen = "expected numbers from self.np_random only, got another state of np.random or random after the call"
            cost = f"The envs of a worker share that generator, and nothing seeds it. {IRREPRODUCIBLE}"
            self.found.add(severity, "a global random generator is used", probe.touched, seen, cost)
        elif parted is not None:
            call = parted.where.partition(" ")[0]
            known = {"reset(seed)": "reset ignores the seed", "reset()": "reset() without a seed takes a new generator"}
            what = known.get(call, "the same seed and actions give other rows")
            self.found.add(severity, what, parted.where, parted.what, IRREPRODUCIBLE)
        return parted is None

    def side_by_side(self, rows: Rows, actions: Tree) -> Rows:
        """Two envs stepped in turn, as a worker does it, both with the same actions; returns the second's rows."""
        made = self.fresh()
        one, other = self.probe(made), self.probe(made, index=1)
        ours: Rows = []
        theirs: Rows = []
        walk = other.walk(actions)
        for answer in one.walk(actions):
            observed = one.observed(answer)
            ours.append((answer.where, one.row(answer, observed)))
            if (next_to_it := next(walk, None)) is None:  # it had fewer resets
                break
            theirs.append((next_to_it.where, other.row(next_to_it, other.observed(next_to_it))))
            if shared := difference(ours[-1:], [(answer.where, one.row(answer, observed))]):
                cost = "Every stream of a worker is told the last one's observation: training learns from wrong rows."
                self.found.error("two envs share the memory of their observations", answer.where, shared.what, cost)
                return theirs
        if parted := difference(rows, ours):
            cost = "The streams of a worker are not independent, and their rows depend on how many there are."
            self.found.error("another env changes what this one does", parted.where, parted.what, cost)
        return theirs

    def begins_anew(self, probe: Probe, rows: Rows, actions: Tree, *, ignores: bool) -> None:
        """Compare with the first env, used by now and seeded again."""
        if (parted := difference(rows, probe.rows(actions))) is None:
            return
        if ignores:
            cost = "Every stream of the run plays the same episodes: more envs bring no more experience."
            self.found.error("reset ignores the seed", parted.where, parted.what, cost)
        else:
            cost = "An episode depends on those before it, so it can be neither evaluated nor played again by itself."
            self.found.error("reset(seed) does not begin anew", parted.where, parted.what, cost)

    def seams_ignore_actions(self, rows: Rows, actions: Tree, endings: Endings, space: Any) -> None:
        """Check that NEXT_STEP ignores the action after an end: other actions there must give the same rows."""
        others = tree.map(np.array, actions)
        for step, stream in endings.seams:
            if step < self.compared:
                put_other(space, others, (step, stream))
        probe = self.probe(self.fresh())
        if parted := difference(rows, probe.rows(others)):
            cost = "NEXT_STEP, as its metadata says, is not what it does: the first step of every episode is thrown away."
            self.found.error("the action after an end is not ignored", parted.where, parted.what, cost)


def described(space: Any, *, cast: bool = True) -> str:
    if isinstance(space, spaces.Discrete):
        return f"Discrete of {space.n}" + (f" from {space.start}" if space.start else "")
    if isinstance(space, spaces.MultiDiscrete):
        return f"MultiDiscrete of {space.nvec.tolist()}" + (f" from {space.start.tolist()}" if space.start.any() else "")
    if isinstance(space, spaces.MultiBinary):
        return f"MultiBinary {tuple(space.shape)}"
    said = f"Box {tuple(space.shape)} {space.dtype}"
    return said + (", cast to float32 at every step" if cast and space.dtype == np.float64 else "")


def is_same_step(made: SyncEnv) -> bool:
    return isinstance(made, GymnasiumEnv) and made.same_step


def numbers(row: Flat, place: str, streams: int) -> Array:
    """Numbers [B] of one outcome; 0 where the env gave nothing readable (which is a finding already)."""
    array = row.get(place, np.zeros(0))
    return array.reshape(-1) if array.size == streams else np.zeros(streams)


def put_other(space: Any, actions: Tree, at: tuple[int, int]) -> None:
    """Replace the action ``at`` (step, stream) by another one."""
    if (inner := tree.branches(space)) is not None:
        for key, one in inner.items():
            put_other(one, actions[key], at)
    elif isinstance(space, spaces.Box):
        finite, action = np.isfinite(space.low) & np.isfinite(space.high), actions[at]
        actions[at] = np.where(finite, space.low + space.high - action, -action)
    else:
        least, most = bounds(space)
        actions[at] = np.where(actions[at] == most, least, actions[at] + 1)
