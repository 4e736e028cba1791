"""A study as its files record it, for tables and figures: whether a process writes it or not."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from equipoise.files import LARGEST_JSON, parse_toml, read_bounded
from equipoise.record.described import algorithm_of, checked, env_of
from equipoise.record.live import STALE_S, read_live, state_of
from equipoise.studies.best import best, reached, worth
from equipoise.studies.history import Clone, End, Entry, History, Result, Stop, Trial
from equipoise.studies.importance import importance
from equipoise.studies.journal import JOURNAL, read_journal, replayed
from equipoise.studies.pareto import cost, front
from equipoise.studies.settings import STUDY, TRIALS, StudySettings, read_study
from equipoise.studies.space import Space, Value

HASHED = re.compile(r"\.[0-9a-f]{8}$")  # the end of a cell's name that had to change
StudyState = Literal["training", "interrupted", "ended"]


@dataclass(frozen=True, slots=True)
class Ancestor:
    """One trial of a chain of clones, with the settings that it changed: (before, after)."""

    trial: str
    parent: str | None
    steps: int  # env steps at which it was cloned
    changed: Mapping[str, tuple[Value | None, Value | None]]

    def __str__(self) -> str:
        if self.parent is None:
            return self.trial
        changes = changes_text(self.changed) or "unchanged"
        return f"{self.trial} from {self.parent} at step {self.steps:,}: {changes}"


@dataclass(frozen=True)
class RecordedStudy:
    """The settings, the journal and the results of a study, read once."""

    folder: Path
    settings: StudySettings
    env: str  # or the name of a suite
    algorithm: str  # "" for a suite
    entries: Sequence[Entry]
    history: History
    state: StudyState

    @property
    def title(self) -> str:
        if self.settings.suite:
            return f"suite {self.env}"
        env, algorithm = self.env.rpartition(":")[2], self.algorithm.rpartition(":")[2]
        return f"{self.settings.strategy} study of {env} with {algorithm}"

    @cached_property
    def space(self) -> Space:
        return self.settings.parsed()

    @cached_property
    def best(self) -> Trial | None:
        """The best trial; None for a suite, since scores of two envs cannot be compared."""
        return None if self.settings.suite else best(self.history)

    @property
    def steps(self) -> int:
        """Env steps of all trials; a clone's begin at its cut."""
        return sum(one.steps - one.parent_steps for one in self.history)

    @property
    def seconds(self) -> float:
        """Seconds of training, of all trials together."""
        return sum(one.seconds for one in self.history)

    @cached_property
    def ranked(self) -> list[Trial]:
        return ranked(self.history, by_env=bool(self.settings.suite))

    @cached_property
    def scored(self) -> list[Trial]:
        """The trials with a score, the best first, without trials that failed or raised alarms."""
        return [one for one in self.ranked if worth(one) > -math.inf]

    @cached_property
    def costs(self) -> dict[str, float]:
        """Core-seconds behind each trial, with its parent's up to the cut."""
        return {one.name: cost(self.history, one) for one in self.history}

    @cached_property
    def front(self) -> list[Trial]:
        """The Pareto front of score against core-seconds, the cheapest first."""
        return front(self.history)

    @cached_property
    def importance(self) -> dict[str, float] | None:
        return importance(self.history, self.space)

    @cached_property
    def members(self) -> list[Trial]:
        """The living members of a population, the best first; none without clones."""
        if all(one.parent is None for one in self.history):
            return []
        return [one for one in self.ranked if one.state not in ("stopped", "failed")]

    def ancestors(self, name: str) -> list[Ancestor]:
        """Return the chain of clones that ends with a trial, the first trial first."""
        trials = self.history.trials
        chain, trial = list[Ancestor](), trials[name]
        while trial.parent is not None:
            parent = trials[trial.parent]
            changes = changed(trial, parent)
            chain.append(Ancestor(trial.name, parent.name, trial.parent_steps, changes))
            trial = parent
        return [Ancestor(trial.name, None, 0, {}), *reversed(chain)]

    def rows(self) -> dict[str, int]:
        """Return the place of each trial in a population: a clone takes that of a stopped trial."""
        found, free, used = dict[str, int](), list[int](), 0
        for one in self.entries:
            if isinstance(one, Stop) and one.trial in found:
                free.append(found[one.trial])
            elif not isinstance(one, Result | End) and one.trial not in found:
                if isinstance(one, Clone) and free:
                    found[one.trial] = free.pop(0)
                else:
                    found[one.trial], used = used, used + 1
        return found

    def state_of(self, trial: Trial) -> str:
        return state_text(trial, self.history, at_work=self.state == "training")


def read_recorded(folder: Path) -> RecordedStudy:
    """Return a study by its files; nothing that they name is imported, and no lock is taken.
    ValueError in one sentence for a folder that is no study or a damaged one.
    """
    settings, file = read_study(folder), folder / STUDY
    try:
        steps = 0
        if settings.suite:  # each trial has a program of its own
            env, algorithm = settings.suite, ""
        else:
            table = _plain(parse_toml(read_bounded(file, LARGEST_JSON), file).get("program"))
            program = checked(table, file)
            env, algorithm = env_of(program), algorithm_of(program)
            given = program["schedule"].get("steps")
            steps = given if isinstance(given, int) else 0
        entries = read_journal(folder)
        whole = settings.whole(steps)
        history = replayed(entries, settings.jobs, folder / JOURNAL, whole=whole)
    except (TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ValueError(
            f"{folder}: must be a study that Equipoise wrote, got a damaged one ({error}); restore "
            f"its {STUDY} and {JOURNAL}"
        ) from None
    state = recorded_state(folder, history)
    return RecordedStudy(folder, settings, env, algorithm, entries, history, state)


def recorded_state(folder: Path, history: History) -> StudyState:
    """Return whether a study has ended, and if not whether a process writes it."""
    if history.end is not None:
        return "ended"
    return "training" if _is_written(folder, history, time.time()) else "interrupted"


def env_of_cell(name: str) -> str:
    """Return the env of a suite's cell, by the cell's name (``suite.cell_name``)."""
    return HASHED.sub("", name).rsplit(".", 2)[0]


def ranked(history: History, *, by_env: bool = False) -> list[Trial]:
    """Return all trials, the best of the search first; trials without a score and failed ones
    come last. ``by_env``: the cells of a suite, ranked within each env.
    """
    winner = None if by_env else best(history)
    most = max((reached(one) for one in history), default=0)

    def order(one: Trial) -> tuple[str, bool, bool, bool, int, float]:
        far = most if one.state == "done" else reached(one)
        has_none = worth(one) == -math.inf
        env = env_of_cell(one.name) if by_env else ""
        return env, one is not winner, has_none, one.role != "search", -far, -worth(one)

    return sorted(history, key=order)


def changed(trial: Trial, parent: Trial) -> dict[str, tuple[Value | None, Value | None]]:
    """Return the settings in which a clone differs from its parent: (before, after)."""
    keys = dict.fromkeys((*parent.settings, *trial.settings))
    pairs = {key: (parent.settings.get(key), trial.settings.get(key)) for key in keys}
    return {key: (before, after) for key, (before, after) in pairs.items() if before != after}


def state_text(trial: Trial, history: History, *, at_work: bool) -> str:
    """Return the state of a trial in a word; ``at_work``: does a process write the study?"""
    state: str = "completed" if history.is_whole(trial) else trial.state
    if state == "training" and not at_work:
        state = "interrupted"
    return state if trial.role == "search" else f"{state}, {trial.role}"


def value_text(value: Value | None) -> str:
    """Return a setting's value for a table: a number with four digits."""
    if isinstance(value, bool):
        return str(value).lower()
    return "—" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def changes_text(changes: Mapping[str, tuple[Value | None, Value | None]]) -> str:
    """Return what a clone changed: each setting with its value before and after."""
    return ", ".join(f"{key} {value_text(a)} → {value_text(b)}" for key, (a, b) in changes.items())


def _plain(value: object) -> object:
    """A table of TOML, in which "none" stands for no value."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if value == "none" else value


def _is_written(folder: Path, history: History, now: float) -> bool:
    """Is a process at the study? It is if a trial's process is alive or the journal is new."""
    journal = folder / JOURNAL
    if journal.exists() and now - journal.stat().st_mtime < STALE_S:
        return True
    for one in history.training:
        try:
            if state_of(read_live(folder / TRIALS / one.name), now) == "running":
                return True
        except (OSError, ValueError):  # none yet, or a damaged one
            continue
    return False
