"""A study: asks its strategy for decisions, records them, carries them out, and records results."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from equipoise.hints import raised, shortened
from equipoise.record import paths
from equipoise.studies.best import best
from equipoise.studies.executor import Executor, Job, Progress
from equipoise.studies.history import (
    Clone,
    Decision,
    End,
    Entry,
    History,
    Result,
    Start,
    Stop,
    Trial,
    check_decisions,
)
from equipoise.studies.journal import Journal, replayed
from equipoise.studies.settings import STUDY, TRIALS, StudySettings
from equipoise.studies.stopping import to_stop, write_process
from equipoise.studies.strategy import Strategy

POLL_S = 0.2
HOPELESS = 3  # trials: if the first ones all fail, the program is at fault


class Study:
    """One study in this process. A new ``Study`` of its folder goes on with one that was killed.

    ``in_order``: results are taken in the order of env steps and not in the order in which they
    arrive, so that the decisions of a study with several jobs do not depend on speed.
    """

    def __init__(
        self,
        folder: Path,
        settings: StudySettings,
        strategy: Strategy,
        executor: Executor,
        *,
        in_order: bool = False,
        on_entry: Callable[[Entry, History], object] = lambda entry, history: None,
        on_progress: Callable[[Progress], object] = lambda progress: None,
    ) -> None:
        self.folder, self.settings, self.strategy = folder, settings, strategy
        self._executor, self._in_order = executor, in_order
        self._on_entry, self._on_progress = on_entry, on_progress
        try:
            self._lock = paths.lock(folder)
        except ValueError:
            raise ValueError(
                f"{folder}: must be a study that no process runs, got one that another process "
                f"runs now; 'equipoise tune stop {folder}' stops it"
            ) from None
        try:
            write_process(folder)
            self._journal = Journal(folder)
        except BaseException:
            self._unlock()
            raise
        try:
            self.history = replayed(
                self._journal.entries,
                settings.jobs,
                self._journal.path,
                whole=settings.whole(strategy.plan.steps),
            )
            self._check_settings()
        except BaseException:
            self._journal.close()
            self._unlock()
            raise
        self._where = f"strategy {settings.strategy}"  # of errors in decisions
        self._arrived: dict[str, Result] = {}
        self._reached: dict[str, int] = {}  # env steps of trials that are training
        (folder / TRIALS).mkdir(exist_ok=True)

    def _check_settings(self) -> None:
        """ValueError for settings in the journal that no strategy can have chosen."""
        space = self.strategy.plan.space
        for trial in self.history:
            if trial.settings and not space.holds(trial.settings):
                raise ValueError(
                    f"{self._journal.path}: must have settings of the space in {STUDY}, got "
                    f"{shortened(repr(trial.settings))} of {trial.name}; restore both files"
                )

    def close(self) -> None:
        """Save the trials that are training, and end; the study can go on later."""
        self._executor.close()
        self._journal.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def run(self) -> History:
        """Go on to the end of the study -> its history. KeyboardInterrupt if ``stop_study`` of
        another process asks it to end.
        """
        for trial in self.history.training:
            self._executor.begin(self._job(trial))
        while self.history.end is None:
            if self._to_ask():
                decisions = self._asked()
                if decisions:
                    self._note(decisions, self._where)
                    self._carry_out(decisions)
                    continue
                if not self.history.training:
                    self._note([self._ended()])
                    break
            result = self._next_result()
            self._note([result])
            if self._hopeless():
                self._note([End(best=None, reason=f"the first trials all failed: {result.error}")])
        return self.history

    def _to_ask(self) -> bool:
        """Is the strategy asked now: at the start, after a result, or if nothing is training?"""
        entries = self._journal.entries
        return not entries or isinstance(entries[-1], Result | Stop) or not self.history.training

    def _asked(self) -> list[Decision]:
        history = self.history
        try:
            decisions = self.strategy.ask(history)
        except Exception as error:
            if ":" not in self.settings.strategy:
                raise
            raise ValueError(f"{self._where}: {raised(error)}") from error
        check_decisions(decisions, self._where)
        begun = [one for one in decisions if not isinstance(one, Stop)]
        if len(begun) > history.free:
            raise ValueError(
                f"{self._where}: must begin at most {history.free} trials now, got {len(begun)}"
            )
        space, steps = self.strategy.plan.space, self.strategy.plan.steps
        for one in begun:
            if one.to > steps:
                raise ValueError(
                    f"{self._where}: must train to at most {steps:,} env "
                    f"steps, got {one.to:,} for {one.trial}"
                )
            if isinstance(one, Start | Clone) and one.settings and not space.holds(one.settings):
                raise ValueError(
                    f"{self._where}: must choose settings of the space, got "
                    f"{one.settings} for {one.trial}"
                )
        # Stops come last, so that a batch that ends with one began nothing after it.
        stops = [one for one in decisions if isinstance(one, Stop)]
        known = history.trials
        if unknown := next((one.trial for one in stops if one.trial not in known), None):
            raise ValueError(
                f"{self._where}: must stop a trial that has begun, got {shortened(repr(unknown))}"
            )
        return [*(one for one in stops if known[one.trial].state in ("training", "paused")), *begun]

    def _note(self, entries: Sequence[Entry], where: str = "study") -> None:
        """Apply entries, which refuses those that cannot follow, and write them down."""
        try:
            for entry in entries:
                self.history.add(entry)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        self._journal.append(entries)
        for entry in entries:
            self._on_entry(entry, self.history)

    def _carry_out(self, decisions: list[Decision]) -> None:
        for one in decisions:
            if isinstance(one, Stop):
                self._executor.stop(one.trial)
                self._arrived.pop(one.trial, None)
            else:
                self._executor.begin(self._job(self.history.trials[one.trial]))

    def _job(self, trial: Trial) -> Job:
        return Job(
            trial=trial.name,
            study=self.folder,
            settings=trial.settings,
            seed=trial.seed,
            to=trial.target,
            of=self.strategy.plan.steps,
            source=trial.parent,
            source_steps=trial.parent_steps,
            keep_cut=self.strategy.changes_settings,
            url=self.settings.url,
        )

    def _next_result(self) -> Result:
        """Wait for the result that is next."""
        while True:
            if (name := self._deliverable()) is not None:
                self._reached.pop(name, None)
                result = self._arrived.pop(name)
                score = result.score
                return replace(
                    result, score=score if score is not None and math.isfinite(score) else None
                )
            if to_stop(self.folder):
                raise KeyboardInterrupt
            for event in self._executor.poll(POLL_S):
                trial = self.history.trials.get(event.trial)
                if trial is None or trial.state != "training":
                    continue  # it was stopped meanwhile
                if isinstance(event, Progress):
                    self._reached[event.trial] = event.steps
                    self._on_progress(event)
                else:
                    self._arrived[event.trial] = event

    def _deliverable(self) -> str | None:
        """The trial whose result is next: the first that arrived, or in order the one that ends
        first in env steps, once no other can end before it.
        """
        if not self._in_order:
            return next(iter(self._arrived), None)
        order = {name: place for place, name in enumerate(self.history.trials)}

        def at(trial: Trial, steps: int) -> tuple[int, int]:
            return trial.begun + max(steps - trial.begun_steps, 0), order[trial.name]

        trials = self.history.training
        arrived = [
            (at(one, self._arrived[one.name].steps), one.name)
            for one in trials
            if one.name in self._arrived
        ]
        others = [
            at(one, self._reached.get(one.name, one.begun_steps))
            for one in trials
            if one.name not in self._arrived
        ]
        if not arrived or any(other < min(arrived)[0] for other in others):
            return None
        return min(arrived)[1]

    def _hopeless(self) -> bool:
        if self.settings.suite:  # its trials have programs of their own
            return False
        trials = [one for one in self.history if one.state != "training"]
        return len(trials) >= HOPELESS and all(one.state == "failed" for one in trials)

    def _ended(self) -> End:
        if self.settings.suite:
            return End(best=None, reason="each cell has been trained")
        winner = best(self.history)
        if winner is None:
            return End(best=None, reason="no trial has a score")
        assert winner.score is not None
        return End(
            best=winner.name,
            reason=f"its score {winner.score:.6g} at {winner.steps:,} steps is the highest",
        )
