"""Programs for the tuners of others: ``trainable`` for Ray Tune, ``objective`` for Optuna."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from equipoise.api.trial import train_stretch
from equipoise.studies.executor import Job
from equipoise.studies.history import Result
from equipoise.studies.settings import TRIALS, StudySettings, write_study
from equipoise.studies.space import (
    Choice,
    Parameter,
    Settings,
    Space,
    Value,
    read_space,
    setting_texts,
)
from equipoise.types import On, Program

__all__ = ["objective", "trainable"]

RUN = "run"  # the name of the run in a checkpoint of Ray Tune
REPORTS = 10  # of a run, if nothing else is asked for


class OptunaTrial(Protocol):
    """The methods of ``optuna.Trial`` that are called here."""

    number: int

    def suggest_categorical(self, name: str, choices: Sequence[Value]) -> Value: ...
    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int: ...
    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float: ...
    def report(self, value: float, step: int) -> None: ...
    def should_prune(self) -> bool: ...
    def set_user_attr(self, key: str, value: str) -> None: ...


def trainable(
    program: Program, *, every: int | None = None, on: On = "serial", trust: Sequence[str] = ()
) -> Callable[[Mapping[str, Value]], None]:
    """Return a function for ``ray.tune.Tuner`` that trains the program with a config's settings.

    The config's keys are settings: ``{"optimizer.learning_rate": tune.loguniform(1e-4, 1e-2)}``.
    Each report has ``env_steps``, ``score`` (of the evaluation, else the mean return) and
    ``directory``, and a checkpoint, from which a trial goes on exactly; with another config (as
    PBT does) its settings change there.

    Args:
        program: As ``eq.program`` makes it.
        every: Env steps between two reports (default: a tenth of the run).
        on: As for ``train``.
        trust: As for ``train``.

    Returns:
        A function of a config.

    Example:
        >>> function = eq.studies.trainable(eq.program("CartPole-v1", "ppo"))
        >>> function.__name__
        'train'
    """

    def train(config: Mapping[str, Value]) -> None:
        from ray import tune

        folder = Path(tune.get_context().get_trial_dir()) / "equipoise"
        shutil.rmtree(folder, ignore_errors=True)
        if (checkpoint := tune.get_checkpoint()) is not None:
            with checkpoint.as_directory() as there:
                shutil.copytree(Path(there) / RUN, folder / TRIALS / RUN)
        for result in _stretches(program, dict(config), folder, every, on, trust):
            directory = folder / TRIALS / RUN
            with tempfile.TemporaryDirectory() as there:
                shutil.copytree(directory, Path(there) / RUN)
                tune.report(
                    {
                        "env_steps": result.steps,
                        "score": result.score,
                        "directory": str(directory),
                    },
                    checkpoint=tune.Checkpoint.from_directory(there),
                )

    return train


def objective(
    program: Program,
    space: Mapping[str, str | Sequence[Value]] | Sequence[str],
    *,
    every: int | None = None,
    out: str | Path | None = None,
    on: On = "serial",
    trust: Sequence[str] = (),
) -> Callable[[OptunaTrial], float]:
    """Return a function for ``optuna.study.Study.optimize`` that trains the program with settings
    of the space; its value is the score, which is to be maximised.

    Scores are reported with their env steps, and a trial that Optuna prunes ends, saved. The user
    attribute ``directory`` of a trial is its run.

    Args:
        program: As ``eq.program`` makes it.
        space: As for ``tune``.
        every: Env steps between two reports (default: a tenth of the run).
        out: Directory for the runs (default: a new one in studies/).
        on: As for ``train``.
        trust: As for ``train``.

    Returns:
        A function of a trial.

    Example:
        >>> function = eq.studies.objective(
        ...     eq.program("CartPole-v1", "ppo"), {"optimizer.learning_rate": "log:1e-4..1e-2"})
        >>> function.__name__
        'train'
    """
    found = read_space(setting_texts(space))

    def train(trial: OptunaTrial) -> float:
        import optuna

        where = Path("studies") if out is None else Path(out).expanduser()
        where.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"optuna-{trial.number}-", dir=where))
        trial.set_user_attr("directory", str(folder / TRIALS / RUN))
        score = None
        settings = suggested(trial, found)
        for result in _stretches(program, settings, folder, every, on, trust):
            score = result.score
            if score is not None:
                trial.report(score, step=result.steps)
            if trial.should_prune():
                raise optuna.TrialPruned(f"at {result.steps:,} env steps")
        if score is None:
            raise ValueError(
                "objective: must have a program whose runs have a score, got one without episodes "
                "and evaluations; use evaluate_episodes=N"
            )
        return score

    return train


def suggested(trial: OptunaTrial, space: Space) -> Settings:
    """Return the settings that an Optuna trial suggests for a space."""

    def one(parameter: Parameter) -> Value:
        if isinstance(parameter, Choice):
            return trial.suggest_categorical(parameter.key, parameter.values)
        low, high, log = parameter.low, parameter.high, parameter.scale == "log"
        if parameter.whole:
            return trial.suggest_int(parameter.key, round(low), round(high), log=log)
        return trial.suggest_float(parameter.key, low, high, log=log)

    return {parameter.key: one(parameter) for parameter in space}


def _stretches(
    program: Program,
    settings: Settings,
    folder: Path,
    every: int | None,
    on: On,
    trust: Sequence[str],
) -> Iterator[Result]:
    """Train the run of a folder from where it is to its end, with a result after each ``every``
    env steps; RuntimeError if it fails.
    """
    whole = program.schedule.steps
    every = max(whole // REPORTS, 1) if every is None else every
    if every < 1:
        raise ValueError(f"every: must be at least 1 env step, got {every:,}")
    folder.mkdir(parents=True, exist_ok=True)
    write_study(folder, StudySettings(strategy="outside"), program, "", {})
    steps = _steps(folder / TRIALS / RUN)
    while steps < whole:
        job = Job(
            trial=RUN,
            study=folder,
            settings=settings,
            seed=None,
            to=min(steps + every, whole),
            of=whole,
            source=RUN if steps else None,  # settings that changed are taken over, as by a clone
        )
        result = train_stretch(
            job, on=on, trust=trust, moved=lambda progress: None, stopped=lambda: False
        )
        if result is None:
            raise RuntimeError(f"{RUN}: must train to {job.to:,} env steps, got interrupted")
        if result.state == "failed":
            raise RuntimeError(result.error)
        yield result
        steps = result.steps
        if result.state == "done":
            return


def _steps(run: Path) -> int:
    """The env steps of a run so far."""
    from equipoise.record.directory import RunDirectory

    if not run.is_dir():
        return 0
    summary = RunDirectory.found(run).summary()
    return 0 if summary is None else int(summary["env_steps"])
