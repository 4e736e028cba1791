"""A small study whose strategy pauses trials, has them go on, and stops some, paused or training.
``python halves.py FOLDER`` carries one on, and prints a line for each thing that happens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from equipoise.studies import local
from equipoise.studies.executor import Executor, Job
from equipoise.studies.history import Decision, GoOn, History, Start, Stop, Trial
from equipoise.studies.local import LocalExecutor
from equipoise.studies.settings import StudySettings, write_study
from equipoise.studies.strategy import Plan
from equipoise.studies.study import Study

STEPS, TRIALS = 4096, 5


@dataclass(frozen=True)
class Halves:
    """Trains each trial to the half and the better ones to the end; the first that reaches the end
    stops the one that began last.
    """

    plan: Plan
    needs_results: ClassVar[bool] = True
    changes_settings: ClassVar[bool] = False

    def ask(self, history: History) -> list[Decision]:
        half, found = self.plan.steps // 2, list[Decision]()
        ended = [one for one in history if one.steps >= self.plan.steps]
        cut = [one for one in history if one.state == "stopped" and one.steps < half]
        if ended and not cut and history.training:
            found.append(Stop(trial=history.training[-1].name, reason="one has reached the end"))
        scores = sorted(first(one) for one in history if one.points)
        free = history.free
        for one in history.of("paused"):
            if one.steps >= self.plan.steps:
                continue
            if first(one) < scores[len(scores) // 2]:
                found.append(Stop(trial=one.name, reason="below the median"))
            elif free:
                free -= 1
                found.append(GoOn(trial=one.name, to=self.plan.steps, reason="of the better half"))
        for number in range(len(history.trials), self.plan.trials)[:free]:
            settings = self.plan.space.sample(self.plan.rng("trial", number))
            found.append(Start(trial=f"t{number}", settings=settings, to=half, reason="new"))
        return found


def first(trial: Trial) -> float:
    """The score at the half."""
    return trial.points[0].score if trial.points else 0.0


def made(folder: Path, trials: int = TRIALS, **options: Any) -> StudySettings:
    """Write a study down."""
    from equipoise import api  # not for the process of a study, which is killed often

    given: dict[str, Any] = {"actors": 1, "envs_per_actor": 8, "unroll": 16, "steps": STEPS}
    given |= {"checkpoint_every": 512, "evaluate_episodes": 0} | options
    program = api.program("CartPole-v1", "ppo", recipe=False, **given)
    settings = StudySettings(
        strategy="halves",
        space=("optimizer.learning_rate=log:1e-4..1e-2",),
        trials=trials,
        jobs=2,
    )
    folder.mkdir()
    write_study(folder, settings, program, "", {})
    return settings


command = local.command("serial", ())


def opened(
    folder: Path,
    settings: StudySettings,
    executor: Executor | None = None,
    heard: Callable[[object], object] = lambda event: None,
) -> Study:
    return Study(
        folder,
        settings,
        Halves(Plan(space=settings.parsed(), trials=settings.trials, steps=STEPS)),
        executor or LocalExecutor(command, settings.jobs),
        in_order=True,
        on_entry=lambda entry, history: heard(entry),
        on_progress=heard,
    )


def job(folder: Path, trial: str = "t0", to: int = 100) -> Job:
    """A job of a study that has no program."""
    (folder / "trials").mkdir(parents=True, exist_ok=True)
    return Job(trial=trial, study=folder, settings={}, seed=None, to=to, of=100)


if __name__ == "__main__":
    from equipoise.studies.settings import read_study

    FOLDER = Path(sys.argv[1])
    study = opened(FOLDER, read_study(FOLDER), heard=lambda event: print(event, flush=True))
    try:
        study.run()
    finally:
        study.close()
