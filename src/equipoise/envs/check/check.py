"""``check_env``: will training on this env go well, is it reproducible, and what does it cost?

Walks with one seed and one list of actions: the first is judged row by row and timed; a fresh env
must answer the same; the first env, seeded again, must begin again; two Python envs stepped in turn
must not notice each other; and in a vector env the action after an episode's end must not matter
(NEXT_STEP). The agents of a PettingZoo env act together in these walks, and PettingZoo's own test
of its rules follows.

Time: the first walk has ``FIRST_SHARE`` of it, and decides how many of its steps the other
walks can afford.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from types import TracebackType

import numpy as np
from gymnasium import spaces

from equipoise import tree
from equipoise.envs import final
from equipoise.envs.base import SyncEnv
from equipoise.envs.check import report as names
from equipoise.envs.check.agents import JointMasks, joint_actions, parallel_rules
from equipoise.envs.check.clock import Clock, OutOfTime, Tell
from equipoise.envs.check.compare import Comparisons
from equipoise.envs.check.endings import Endings
from equipoise.envs.check.findings import CLOCK, Broken, Findings, Flat, judge_row
from equipoise.envs.check.look import is_same_step, look
from equipoise.envs.check.places import env_frame, home_of, is_ours, line_of, of_error, words
from equipoise.envs.check.probe import (
    OUTCOMES,
    Probe,
    Rows,
    difference,
    global_generators,
    same,
    sample,
    set_global_generators,
)
from equipoise.envs.check.report import Report, Times
from equipoise.envs.check.wrappers import judge_statistics
from equipoise.envs.families.joint import Joint, NotParallel
from equipoise.envs.families.old_gym import OldGym
from equipoise.envs.hints import NotMade, UnsupportedSpace
from equipoise.envs.infos import paths
from equipoise.envs.loop import LoopEnv
from equipoise.envs.making import make
from equipoise.envs.masks import KEY
from equipoise.envs.spaces import observation_spec
from equipoise.types import Array, EnvFactory, Tree

STEPS = 1500  # beyond the time limits of most envs
SECONDS = 60.0  # of all probes together
FIRST_SHARE = 0.4  # of that, for the first walk
STREAMS = 2
KEPT_BYTES = 256 * 2**20  # most bytes of rows that are kept to compare walks
STALL_S, STALL_RATIO = 0.05, 20.0  # a 99th percentile beyond both is noted

REFUSED = "Training refuses this env."


def check_arguments(steps: int, seconds: float) -> None:
    """ValueError for numbers with which no check can be made."""
    if steps < 10:
        raise ValueError(f"steps: expected at least 10, got {steps}")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"seconds: expected a number above 0, got {seconds:g}")


def check_env(
    factory: EnvFactory,
    *,
    steps: int = STEPS,
    seed: int = 0,
    seconds: float = SECONDS,
    tell: Tell | None = None,
) -> Report:
    """Check an env with walks of ``steps`` each. ValueError and ImportError as from ``make``.

    Anything else that is wrong is a finding. Global random generators keep their state. The env is
    called in this process and may end it: ``supervise`` uses a child. ``seconds``: no call begins
    later; ``Report.left_out`` names what was skipped. ``tell`` hears of probes, calls and reports.
    """
    check_arguments(steps, seconds)
    before = global_generators()
    checking = _Check(factory, steps, seed, Clock(seconds, tell))
    try:
        with checking:
            checking.all()
        return checking.report()
    finally:
        set_global_generators(before)


class _Check:
    """A check under way; its findings so far make a report at any moment."""

    def __init__(self, factory: EnvFactory, steps: int, seed: int, clock: Clock) -> None:
        self.factory, self.steps, self.seed, self.clock = factory, steps, seed, clock
        self.made: list[SyncEnv] = []
        self.found = Findings()
        self.found.on_new = clock.news
        clock.report = lambda: self.report().json()
        self.facts: dict[str, str] = {}
        self.step_s: list[float] = []
        self.reset_s: list[float] = []
        self.streams = 1
        self.compared = self.reset_at = self.walked = 0  # steps
        self.walk_s = 0.0  # of the first walk
        self.short = ""  # the checks that the other walks had no time for
        self.joint: Joint | None = None
        self.left = list(names.PROBES)  # to be made
        self.why = ""

    def fresh(self) -> SyncEnv:
        """Make the env; its errors are findings; an error of ``make`` itself is raised."""
        self.clock.call("the constructor")
        try:
            made = make(self.factory, streams=np.arange(STREAMS), seed=self.seed)
        except UnsupportedSpace as error:
            self.found.error("a space is not supported", "the spaces", str(error), REFUSED)
            raise Broken from error
        except OldGym as error:
            self.found.error("old gym's interface", "the env", str(error), REFUSED)
            raise Broken from error
        except NotParallel as error:
            self.found.error("no parallel env as PettingZoo's are", "the env", str(error), REFUSED)
            raise Broken from error
        except (Exception, SystemExit) as error:
            told = not isinstance(error, NotMade)  # by hints.py, making.py and the like
            inner = error if told else error.__cause__ or error
            ours = told and is_ours(of_error(error)[-1].file)
            if not self.made and (ours or env_frame(of_error(inner)) is None):
                raise
            what, seen = (
                f"the env cannot be made: {type(inner).__name__}",
                f"{words(inner)} ({line_of(inner)})",
            )
            self.found.error(what, "the constructor", seen, REFUSED)
            raise Broken from error
        self.made.append(made)
        return made

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> bool:
        """Close every env that was made. An error of a call is a finding."""
        self.why = (
            names.BROKEN if kind is Broken else names.TIME_UP if kind is OutOfTime else self.why
        )
        self.clock.probe(names.CLOSING)
        while self.made:
            made = self.made.pop()
            self.clock.tell("call", "close()")
            try:
                made.close(raises=True)
            except (Exception, SystemExit) as closing:
                env = made.envs[0] if isinstance(made, LoopEnv) else None
                seen = f"{words(closing)} ({line_of(closing, env, 'close')})"
                self.found.note(
                    f"close() raises {type(closing).__name__}",
                    "close()",
                    seen,
                    "The env's resources may stay open.",
                )
        return kind in (Broken, OutOfTime)  # why is among the findings, or in the report

    def probe(self, made: SyncEnv, *, index: int = 0, watch: bool = False) -> Probe:
        masks = None if self.joint is None else JointMasks(self.joint, self.factory.action_mask)
        return Probe(
            made,
            self.found,
            self.clock,
            reset_at=self.reset_at,
            index=index,
            watch=watch,
            masks=masks,
        )

    def report(self) -> Report:
        left = list(self.left)
        if left and left[0] == names.FIRST and self.walked:
            left[0] = f"{names.FIRST} from step {self.walked + 1:,} on"
        left = [names.ALL] if names.MAKING in left else left + [self.short] * bool(self.short)
        return Report(
            target=self.factory.target,
            findings=self.found.all(),
            facts=dict(self.facts),
            streams=self.streams,
            step_s=Times.of(self.step_s) if self.step_s else None,
            reset_s=Times.of(self.reset_s) if self.reset_s else None,
            left_out=tuple(left),
            why=self.why if left else "",
        )

    def all(self) -> None:
        """Make every probe in time. Broken if the env goes no further, OutOfTime at the end."""
        self.judge_arguments()
        self.clock.probe(names.MAKING)
        began = time.monotonic()
        made = self.fresh()
        make_s = time.monotonic() - began
        self.joint = (
            made.envs[0] if isinstance(made, LoopEnv) and isinstance(made.envs[0], Joint) else None
        )
        self.facts = look(self.found, made, self.joint)
        self.compared = min(
            self.steps,
            KEPT_BYTES // max(tree.nbytes(observation_spec(made.spec.observation)) * STREAMS, 1),
        )
        self.reset_at = self.compared * 4 // 5
        probe = self.probe(made)
        self.streams = probe.streams
        self.clock.tell("home", home_of(probe.env))
        # running statistics outlast a reset
        running = judge_statistics(self.found, probe.env)
        unseeded = probe.seed is None or running
        next_step = not probe.python and not is_same_step(made)
        applies = {
            names.BESIDE: probe.python,
            names.ANEW: not unseeded,
            names.SEAMS: next_step,
            names.RULES: bool(self.joint),
        }
        self.left = [name for name in self.left if name != names.MAKING and applies.get(name, True)]
        space = made.spec.action
        drawn = (
            joint_actions(self.joint, self.steps, self.seed)
            if self.joint
            else sample(space, self.steps, probe.lead, self.seed)
        )
        rows, endings = self.first_walk(probe, drawn, same_step=is_same_step(made))
        if is_same_step(made):
            self.judge_finals(endings.finals, known=not made.spec.notes)
        self.found.closed = True  # the other walks see the same rows: nothing is counted twice
        if names.SEAMS in self.left and (not endings.seams or endings.glued):
            self.left.remove(names.SEAMS)
        self.afford(make_s)
        self.compare(probe, rows, tree.index(drawn, slice(self.compared)), endings, space)
        if self.joint is not None:
            self.clock.probe(names.RULES)
            joint, step_s = self.fresh().envs[0], float(np.mean(self.step_s))  # type: ignore[attr-defined]
            if why := parallel_rules(self.found, joint, self.clock, step_s):
                self.why = self.why or why
            else:
                self.left.remove(names.RULES)

    def judge_arguments(self) -> None:
        for name, value in self.factory.kwargs.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                seen = f"expected a JSON value, got {type(value).__name__} ({error})"
                self.found.error(
                    f"argument {name!r} is not JSON",
                    "the arguments",
                    seen,
                    "run.json cannot hold it: no run can start.",
                )

    def afford(self, make_s: float) -> None:
        """Set the steps of the other walks by the first walk's time; OutOfTime for none."""
        step_s = self.walk_s / max(self.walked, 1)
        walks = sum(
            {names.AGAIN: 1, names.BESIDE: 2, names.ANEW: 1, names.SEAMS: 1}.get(name, 0)
            for name in self.left
        )
        left_s = 0.8 * self.clock.left_s - make_s * len(self.left)
        steps = int(left_s / max(walks * step_s, 1e-9))
        full = min(self.compared, self.walked)
        if steps < 1 or full < 1:
            raise OutOfTime
        self.compared = min(full, steps)
        if self.compared < full:
            self.why = names.TIME_UP
            self.short = f"the walks after the first one from step {self.compared + 1:,} on"

    def compare(
        self, probe: Probe, rows: Rows, actions: Tree, endings: Endings, space: spaces.Space[object]
    ) -> None:
        """Make the walks that must give the first one's rows again."""
        walks = Comparisons(self.found, self.fresh, self.probe, self.compared)
        self.clock.probe(names.AGAIN, self.compared)
        if not walks.same_again(rows, actions):
            self.facts["seeds"] = "the same seed and actions give other rows"
            self.left.remove(names.AGAIN)
            if names.BESIDE in self.left or names.ANEW in self.left:
                self.why = self.why or "they would differ for the reason above"
            return
        self.left.remove(names.AGAIN)
        steps = f" ({self.compared:,} steps)" if self.short else ""
        self.facts["seeds"] = f"the same seed and actions give the same rows, bit for bit{steps}"
        one_episode = False
        if names.BESIDE in self.left:
            self.clock.probe(names.BESIDE, self.compared)
            one_episode = difference(rows, walks.side_by_side(rows, actions)) is None
            self.left.remove(names.BESIDE)
        if one_episode:
            self.facts["seeds"] = f"every seed gives the same rows{steps}"
        if names.ANEW in self.left:
            self.clock.probe(names.ANEW, self.compared)
            walks.begins_anew(probe, rows, actions, ignores=one_episode)
            self.left.remove(names.ANEW)
        if names.SEAMS in self.left:
            self.clock.probe(names.SEAMS, self.compared)
            walks.seams_ignore_actions(rows, actions, endings, space)
            self.left.remove(names.SEAMS)

    # ------------------------------------------------------------------------------------ the walks

    def first_walk(self, probe: Probe, actions: Tree, *, same_step: bool) -> tuple[Rows, Endings]:
        """Judge rows, neighbouring rows and times; return the rows for the other walks."""
        joint = self.joint is not None
        endings = Endings(
            self.found,
            probe.env,
            probe.space,
            streams=probe.streams,
            vector=not probe.python,
            same_step=same_step,
            joint=joint,
        )
        spaces_of = tree.named("obs", tree.parts(probe.space))
        rows: Rows = []
        seen: set[str] = set()  # names in its info
        before: Flat = {}  # the env's last answer
        held: Flat = {}  # a copy of that answer
        self.clock.probe(names.FIRST, self.steps)
        self.clock.share(FIRST_SHARE)
        probe.hurries = True
        began = time.monotonic()
        try:
            for answer in probe.walk(actions):
                (self.reset_s if answer.reset else self.step_s).append(answer.seconds)
                self.note_mask(answer, probe)
                self.judge_kept(before, held, answer.where)
                before = probe.observed(answer)
                judge_row(self.found, spaces_of, before, answer, probe.lead)
                probe.judge_masks(answer)
                held = probe.row(answer, before)
                if endings.steps <= self.compared:
                    rows.append((answer.where, held))
                if answer.reset:
                    endings.reset()
                else:
                    terminated, truncated, reward = (
                        numbers(held, place, probe.streams) for place in OUTCOMES
                    )
                    flags = terminated.astype(np.bool_), truncated.astype(np.bool_)
                    endings.step(answer.where, *flags, reward, answer.info)
                self.walked = endings.steps
                self.facts["episodes"] = endings.said()
                if isinstance(answer.info, Mapping):
                    seen.update(paths(answer.info))
            self.left.remove(names.FIRST)
        except OutOfTime:
            self.why = names.TIME_UP
        self.walk_s, self.reset_at, probe.hurries = time.monotonic() - began, probe.reset_at, False
        if seen:
            self.facts["info"] = (
                f"{', '.join(sorted(seen))} (--metrics reports those that are numbers)"
            )
        endings.judge(
            limited=names.FIRST in self.left or "settings" in self.facts
        )  # the specs of a family have the longest episode
        step_s = Times.of(self.step_s) if self.step_s else None
        if step_s is not None and step_s.p99 > max(STALL_S, STALL_RATIO * step_s.p50):
            said = (
                f"expected about {step_s.p50:.2g} s (the median), got {step_s.p99:.2g} s (the "
                "99th percentile)"
            )
            cost = (
                "Every stream of the worker waits for the slowest, and in lockstep the whole run."
            )
            self.found.note("some steps take far longer than most", "step()", said, cost)
        return rows, endings

    def note_mask(self, answer: Tree, probe: Probe) -> None:
        if (
            isinstance(answer.info, Mapping)
            and KEY in answer.info
            and self.factory.action_mask == "auto"
            and not probe.mask
        ):
            self.facts["action mask"] = (
                f"in info['{KEY}'], and not used: --set source.env.action_mask=info does"
            )

    def judge_finals(self, given: bool | None, *, known: bool) -> None:
        """Does a truncated SAME_STEP episode show its last observation? ``known``: it does."""
        if given is False:
            self.found.note(
                final.TRUNCATION,
                "the adapter",
                "expected info['final_obs'] in SAME_STEP, got none",
                CLOCK,
            )
            self.facts["autoreset"] = (
                "SAME_STEP without info['final_obs']: truncated, too, ends the return there"
            )
        elif given is None and not known:
            self.found.note(
                final.UNKNOWN, "the adapter", "no episode was truncated in the walk", CLOCK
            )

    def judge_kept(self, before: Flat, held: Flat, where: str) -> None:
        """Does what the env gave last still hold what it held?"""
        for place, value in before.items():
            if self.joint is not None and not place.startswith("obs/agents/"):
                continue  # our own part of a joint observation
            if isinstance(value, np.ndarray) and place in held and not same(held[place], value):
                seen = (
                    "expected the last observation to stay as it was, got other numbers in the "
                    "same memory"
                )
                cost = (
                    "Equipoise copies every row before the next step and learns the right thing; "
                    "code that keeps observations (a frame stack, a wrapper, your own) sees the "
                    "past change."
                )
                self.found.note(f"{place} is overwritten in place", where, seen, cost)


def numbers(row: Flat, place: str, streams: int) -> Array:
    """Numbers [B] of one outcome; 0 if the env gave nothing readable, which is a finding."""
    array = row.get(place, np.zeros(0))
    return array.reshape(-1) if array.size == streams else np.zeros(streams)
