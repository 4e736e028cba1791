"""The reports of a run: records and numbers of the moment become reports, and the summary at its
end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from equipoise.balance import remedies
from equipoise.balance.alarms import Alarms
from equipoise.balance.calibrate import calibrate
from equipoise.balance.remedies import Remedy
from equipoise.balance.shares import Shares, less
from equipoise.balance.text_verdict import TextRun, text_verdict
from equipoise.balance.verdict import NOTHING_YET, STARTING, WAITING, Setup, Verdict, verdict
from equipoise.cores import usable
from equipoise.errors import not_finite
from equipoise.plans.blueprint import Blueprint
from equipoise.programs.refusals import check
from equipoise.record.measured import machines_of
from equipoise.record.report import (
    Evaluating,
    Evaluation,
    Learned,
    Measured,
    Report,
    repeated_fields,
)
from equipoise.run import alarming
from equipoise.run.evaluation_schedule import gave_up
from equipoise.run.forgetting import Evaluations
from equipoise.run.parts import aborted, lags_of, more, tokens, without_time
from equipoise.runtime.messages import Record
from equipoise.runtime.stats import RunStats
from equipoise.schema import Anything, Each, Items, Maybe, Number, Row, Schema, Text
from equipoise.sources.source import source_of
from equipoise.types import CallSource, Program

MOST_NOTES = 200  # of a run
ENDLESS = 10_000  # steps of an env after which a missing end of an episode is worth a word
RECORDED_S = 8.0  # a recorded report at least this often: a run that is killed loses no more
# how often the model is asked what would help, unless that took more than a hundredth of it
ADVICE_S = 10.0
# the speed between two records means nothing any more once the last record is this old
STALE_S = 8.0
NOTHING = Record(
    version=0,
    at=0.0,
    lag_mean=0.0,
    lag_max=0,
    metrics={},
    episodes=0,
    return_mean=None,
    length_mean=None,
    aborted=0,
    info={},
)


class Reporter:
    """Turns records and the numbers of the moment into reports, and sums them up at the end."""

    def __init__(
        self, blue: Blueprint, stats: Callable[[], RunStats], began: float, on: str
    ) -> None:
        self._blue, self._stats, self._began, self._on = blue, stats, began, on
        self._settled: dict[str, Shares] | None = None
        self._balance, self._lags = self._shares(), dict(self._stats().lags)
        self._since: tuple[float, int] = (began, 0)  # time and version of the last record
        self._record = NOTHING
        self._partial: Record | None = None  # the learner's numbers since the last record
        self._rate = 0.0
        self._lag_sum, self._lag_updates, self._lag_max = 0.0, 0, 0
        self._evaluations = Evaluations()
        self._fresh: deque[Evaluation] = deque()  # that no recorded report has yet
        self._solved_at: float | None = None
        self._ended: float | None = None
        self._remedies: tuple[Remedy, ...] | None = None  # None: the model has nothing to go by
        # the bottleneck by the model; None: not asked yet
        self._cause: str | None = None
        self._advice_s = ADVICE_S
        # when all were at work: until then actors load what they had counted
        self._first: dict[str, Shares] | None = None
        # the moment of the last advice, and the shares of then
        self._advised: tuple[float, dict[str, Shares]] = (began, {})
        # as it runs at the moment, and without what the governor tries
        self._program = self._kept = blue.program
        # workers that do nothing; shares of the last change
        self._paused, self._changed = frozenset[str](), self._balance
        self._room = source_of(blue.program).room()
        self._alarms = Alarms(alarming.limits(blue))
        # raised before the checkpoint that this goes on from
        self._alarms_before: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._fresh_notes: list[str] = []
        self.reported_at = self.recorded_at = began

    @property
    def began(self) -> float:
        return self._began

    @property
    def step(self) -> int:
        """In what ``Program.schedule.steps`` counts."""
        return self._blue.pace.steps(self._record.version)

    @property
    def hopeless(self) -> bool:
        """Does an alarm end the run? An alarm before the checkpoint that it goes on from does not
        count.
        """
        return self._blue.program.evaluation.on_alarm == "stop" and bool(self._alarms.raised)

    def govern(self, program: Program, paused: Collection[str], kept: Program) -> None:
        """Report as this Program from now on, with these workers paused. ``kept``: the program
        without the change on trial.
        """
        self._program, self._paused, self._kept = program, frozenset(paused), kept
        # earlier measurements have no meaning for it
        self._advised = time.monotonic(), self._shares()
        self._changed = self._advised[1]
        self._remedies = self._cause = None

    def failed(self, error: Exception) -> None:
        """Note what ends the run, if that is an alarm: an update that was not finite."""
        if said := not_finite(error):
            wall_s = time.monotonic() - self._began
            self.note(f"warning: {self._alarms.failed(said, step=self.step, wall_s=wall_s).text}")

    def evaluated(self, evaluation: Evaluation | None, solved: bool) -> None:
        if evaluation is not None and evaluation.episodes:
            self._fresh.append(evaluation)
            if (warning := self._evaluations.enter(evaluation)) is not None:
                self.note(warning)
            self._probe(evaluation)
        elif evaluation is not None:
            self.note(f"warning: evaluation: {gave_up(self._blue.program.evaluation.episodes)}")
        if solved:
            self._solved_at = time.monotonic() - self._began

    def _probe(self, evaluation: Evaluation) -> None:
        """Check for an exploited reward, if evaluations have a learned and a true reward."""
        if not source_of(self._blue.program).writes:
            return  # an env may have numbers of these names
        last = alarming.probe(evaluation)
        best = None if self._evaluations.best is None else alarming.probe(self._evaluations.best)
        if last is None or best is None:
            return
        wall_s = time.monotonic() - self._began
        if (alarm := self._alarms.evaluated(best, last, wall_s)) is not None:
            self.note(f"warning: {alarm.text}")

    def note(self, text: str) -> None:
        """Add a note for the user to the next report and to the summary; the same text appears
        once.
        """
        if text not in self._notes and len(self._notes) < MOST_NOTES:
            self._notes.append(text)
            self._fresh_notes.append(text)

    def state(self) -> dict[str, object]:
        return {
            "wall_s": time.monotonic() - self._began,
            "record": without_time(self._record),
            "lag": [self._lag_sum, self._lag_updates, self._lag_max],
            "evaluations": self._evaluations.state(),
            "notes": self._notes,
            "alarms": self._all_alarms(),
        }

    def schema(self, version: int) -> Schema:
        """The schema of ``load``'s argument, from a checkpoint of this version."""
        count, mean = Number(0, 1 << 53, whole=True), Maybe(Number())
        return {
            "wall_s": Number(0, 1e12),
            "record": {
                "version": Number(0, version, whole=True),
                "lag_mean": Number(0, 1 << 53),
                "lag_max": count,
                "metrics": Each(mean),
                "episodes": count,
                "return_mean": mean,
                "length_mean": mean,
                "aborted": count,
                "info": Each(mean),
            },
            "lag": Row((Number(0, 1e300), Number(0, version, whole=True), count)),
            "evaluations": Evaluations.schema(version),
            "notes": Items(Text(), MOST_NOTES),
            "alarms": Items(
                {name: Text() for name in ("name", "owner", "evidence", "action")}
                | {"*": Anything()},
                MOST_NOTES,
            ),
        }

    def load(self, state: Mapping[str, Any], best: Evaluation | None = None) -> None:
        """Go on from a state that fits ``schema``."""
        self._began -= state["wall_s"]
        self._record = Record(**state["record"] | {"at": time.monotonic()})
        self._since = (self._record.at, self._record.version)
        self._lag_sum, self._lag_updates, self._lag_max = state["lag"]
        self._evaluations.load(state["evaluations"])
        if best is not None:
            self._evaluations.remember(best)
        self._notes, self._alarms_before = list(state["notes"]), list(state["alarms"])

    def settle(self) -> None:
        """Training is over: from here on time counts no more."""
        self._ended, self._settled = time.monotonic(), self._shares()

    @property
    def settled(self) -> bool:
        return self._settled is not None

    @property
    def due(self) -> bool:
        """Has the last recorded report grown old, while time counts?"""
        return time.monotonic() - self.recorded_at >= RECORDED_S and not self.settled

    @property
    def untold(self) -> bool:
        """Is there an evaluation that no recorded report has?"""
        return bool(self._fresh)

    @property
    def noted(self) -> bool:
        """Is there a note that no report has?"""
        return bool(self._fresh_notes)

    def heard(self, record: Record) -> None:
        """Keep a partial record for the reports until the next whole one."""
        self._partial = record

    def report(
        self,
        record: Record | None = None,
        *,
        timed: bool = False,
        final: bool = False,
        evaluating: Evaluating | None = None,
    ) -> Report:
        """A report of a learner's record, or of the moment, in which an evaluation may be under
        way.

        ``timed``: one of the moment that is recorded, since records are far apart. ``final``: the
        last one.
        """
        now = time.monotonic()
        recorded = record is not None or timed or final
        if record is not None:
            self._partial = None
            at, version = self._since
            updates = record.version - version
            self._rate = updates / max(record.at - at, 1e-9)
            self._since = (record.at, record.version)
            self._lag_sum += record.lag_mean * updates
            self._lag_updates += updates
            self._lag_max = max(self._lag_max, record.lag_max)
            self._record = record
        stats = self._stats()
        shares = self._settled or dict(stats.workers)
        balance = {name: less(shares[name], self._balance[name]) for name in shares}
        if final:  # nothing comes after it: of the whole run, as in the summary
            balance = shares
        elif recorded:
            self._balance = shares
        lags = lags_of(stats.lags, {} if final else self._lags)
        if recorded:
            self._lags = dict(stats.lags)
        self._look_for_ends(stats)
        if self._first is None and not stats.phases and not self.settled:
            self._first = self._balance = shares
            self._advised = now, shares
        if (
            self._first is not None
            and not self.settled
            and now - self._advised[0] >= self._advice_s
        ):
            then, self._advised = self._advised[1], (now, shares)
            self._ask_the_model(stats, shares, then)
            self._advice_s = max(ADVICE_S, 100 * (time.monotonic() - now))
        # An evaluation in a report that is not written comes again in the next written report.
        fresh = self._fresh[0] if self._fresh else None
        if recorded and self._fresh:
            self._fresh.popleft()
        notes, self._fresh_notes = tuple(self._fresh_notes), []
        self.reported_at = now
        if recorded:
            self.recorded_at = now
        r, pace, rate = self._record, self._blue.pace, self._rate
        # the learner may be far beyond its last record, and the actors beyond that
        if record is None and not final:
            r = self._of_the_moment(stats)
            age = max(now - self._since[0], 1e-9)
            if not rate or age > STALE_S:
                rate = (r.version - self._since[1]) / age
        version = r.version
        steps_per_s = rate * pace.rows / pace.updates
        if not version:  # nothing is learned yet: the speed of the envs
            steps_per_s = stats.taken / max(now - self._began, 1e-9)
        left = self._blue.updates - version
        starts = stats.phases and not stats.taken and not final
        judged = STARTING if starts else self._judged(stats, balance)
        report = Report(
            **self._reached(version, now, judged),
            **repeated_fields(Learned, r),
            **repeated_fields(Measured, stats),
            steps_per_s=0.0 if pace.offline else steps_per_s,
            updates_per_s=rate,
            tokens_per_s=tokens(r.metrics, steps_per_s),
            balance=balance,
            remedies=self._remedies or (),
            remaining_s=left / rate if rate > 0 and not final else None,
            governor=self._governed(self._program),
            evaluating=evaluating,
            evaluation=fresh if not final else self._evaluations.last,
            notes=notes,
            recorded=recorded,
            timed=timed,
            final=final,
            lags=lags,
            usage={name: one._asdict() for name, one in stats.usage.items()},
        )
        for alarm in self._alarms.look(alarming.moment(report, stats)):
            self.note(f"warning: {alarm.text}")
        return replace(report, alarms=tuple(self._alarms.raised))

    def _all_alarms(self) -> list[dict[str, Any]]:
        return [*self._alarms_before, *map(asdict, self._alarms.raised)][-MOST_NOTES:]

    def _look_for_ends(self, stats: RunStats) -> None:
        """Note once that no episode has ended for very long."""
        if stats.episodes == 0 and stats.ticks and min(stats.ticks) >= ENDLESS:
            self.note(
                f"warning: no episode has ended within {ENDLESS:,} steps of each env, so there is "
                "no return; if the env has no end, set one with --set env.max_episode_steps=N, "
                "or let its step return truncated"
            )

    def _of_the_moment(self, stats: RunStats) -> Record:
        """A record of this moment, with the learner's own numbers as last reported."""
        told = self._partial or self._record
        return replace(
            told,
            version=max(told.version, stats.version),
            episodes=stats.episodes,
            return_mean=stats.return_mean,
            length_mean=stats.length_mean,
            aborted=aborted(stats),
            info=stats.info,
        )

    def _shares(self) -> dict[str, Shares]:
        return self._settled or dict(self._stats().workers)

    def _ask_the_model(
        self, stats: RunStats, shares: dict[str, Shares], then: Mapping[str, Shares]
    ) -> None:
        """Look for what would help, by what was measured since ``then``."""
        if self._on == "serial":  # a single thread has no balance
            return
        if self._program.placement.text == "elastic":  # its learners are generators at times
            return
        machines = machines_of({name: asdict(site) for name, site in stats.sites.items()})
        since = {
            name: less(shares[name], then[name]) for name in shares if name not in self._paused
        }
        known = calibrate(self._program, since, cores=usable(), machines=machines)
        if known is not None and known.doubt:
            self._remedies = self._cause = None
        elif known is not None:
            self._remedies = tuple(remedies.remedies(known, allowed=self._allowed))
            self._cause = remedies.cause(known)

    def _allowed(self, program: Program) -> None:
        """ValueError for a Program that cannot be, or that differs in what the governor sees to."""
        check(program)
        now, other = self._program.placement, program.placement
        if self._governs and (now.actors, now.max_lag) != (other.actors, other.max_lag):
            raise ValueError("the governor changes actors and max_lag itself")

    @property
    def _governs(self) -> bool:
        return self._blue.program.placement.balance == "auto"

    @property
    def _calls(self) -> bool:
        """Does the run wait for agents to call?"""
        return isinstance(self._program.source, CallSource)

    def _judged(self, stats: RunStats, balance: dict[str, Shares]) -> Verdict:
        return WAITING if self._calls and not stats.taken else self._verdict(stats, balance)

    def _verdict(self, stats: RunStats, balance: dict[str, Shares]) -> Verdict:
        if self._governs:  # numbers before the last change have no meaning now
            balance = {name: less(now, self._changed[name]) for name, now in self._shares().items()}
        placed = {name: one for name, one in balance.items() if name not in self._paused}
        advice = None if self._remedies is None else remedies.advice(self._remedies)
        found = verdict(
            placed,
            Setup(
                max_lag=self._program.placement.max_lag,
                cores=None if stats.sites else usable(),
                one_thread=self._on == "serial",
                offline=self._blue.pace.offline,
                threads=self._program.placement.threads,
                envs=self._program.placement.envs_per_actor,
                paid=None if not self._blue.replays else self._blue.pace.updates,
            ),
            advice=advice,
            cause=self._cause,
        )
        if self._room is None:
            return found
        place = self._program.placement
        text_run = TextRun(
            group=place.group_envs,
            length=stats.length_mean,
            room=self._room,
            max_lag=place.max_lag,
            lent=stats.lent,
            together=place.text == "together",
            kv_load=self._record.metrics.get("kv/load"),
            given_back=self._record.metrics.get("kv/given_back", 0.0),
        )
        return text_verdict(found, placed, text_run, advice=advice)

    def _governed(self, program: Program) -> dict[str, int | None] | None:
        """How many actors act, and the bound on lag; None if nothing is changed meanwhile."""
        if not self._governs:
            return None
        return {"actors": program.placement.actors, "max_lag": program.placement.max_lag}

    def _acting(self) -> dict[str, object]:
        """How actors act, by policy, and the effect of rounded weights, as it was last measured."""
        program, metrics = self._blue.program, self._record.metrics
        said = {
            name: x
            for name, x in metrics.items()
            if name.startswith("acting/") or "/acting/" in name
        }
        acts = self._blue.roles if program.actors else ()
        forward = {name: self._blue.forward.get(name, "torch") for name in acts}
        return {"weights": program.placement.acting_precision, "forward": forward, "error": said}

    def _reached(self, version: int, now: float, judged: Verdict) -> dict[str, Any]:
        """The part that a report and the summary share of a version."""
        steps = self._blue.pace.env_steps(version)
        return {
            "wall_s": (self._ended or now) - self._began,
            "env_steps": steps,
            "updates": version,
            "frames": steps * self._blue.spec.env.frame_skip,
            "solved_at_s": self._solved_at,
            "cause": judged.cause,
            "verdict": judged.sentence,
        }

    def summary(self, status: str, version: int) -> dict[str, Any]:
        """The part of ``summary.json`` on the weights of ``version``, but for their hash."""
        balance = self._shares()
        e, stats = self._evaluations.last, self._stats()
        if self._first is not None and not self._governs:  # else the whole run was not one Program
            self._ask_the_model(stats, balance, self._first)
        began = stats.taken or self._blue.pace.offline or self._calls
        judged = self._judged(stats, balance) if began else NOTHING_YET
        # Between its last record and its end a whole run takes steps that are not learned from; an
        # ended run was in the middle.
        r = (
            self._of_the_moment(stats)
            if status in ("alarmed", "interrupted", "failed")
            else self._record
        )
        reached = self._reached(version, time.monotonic(), judged)
        return {
            "status": status,
            **reached,
            "taken": stats.taken,
            "steps_per_s": reached["env_steps"] / reached["wall_s"],
            "updates_per_s": version / reached["wall_s"],
            "episodes": r.episodes,
            "return_mean": r.return_mean,
            "info": r.info,
            "evaluation": None
            if e is None
            else {"mean": e.mean, "std": e.std, "episodes": e.episodes} | more(e),
            "best_evaluation": self._evaluations.summary(),
            "lag": {"mean": self._lag_sum / max(self._lag_updates, 1), "max": self._lag_max}
            | lags_of(stats.lags, {}),
            "acting": self._acting(),
            "balance": {name: asdict(s) for name, s in balance.items()},
            "remedies": [one.to_json() for one in self._remedies or ()],
            "rows": dict(stats.rows),
            "notes": self._notes,
            "alarms": self._all_alarms(),
            "governor": self._governed(self._kept),
            "lending": {
                "lent": stats.lent,
                "switches": stats.switches,
                "handed_over": stats.handed_over,
            }
            if self._program.placement.text == "elastic"
            else None,
            "failures": {name: dict(counts) for name, counts in stats.failures.items()},
            "aborted": dict(stats.aborted),
            "printed": {name: lines for name, (lines, _) in stats.printed.items()},
            "sites": {name: asdict(site) for name, site in stats.sites.items()},
            "refused": dict(stats.refused),
        }
