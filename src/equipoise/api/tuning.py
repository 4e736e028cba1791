"""Studies from Python: ``tune``, and a study that goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from equipoise import trust as vouched
from equipoise.api.options import (
    FIELDS_OF_STUDY,
    Place,
    ProgramOptions,
    TuneOptions,
    check_shapes,
    expanded,
)
from equipoise.api.programs import Chosen, Env, configured, made_program
from equipoise.api.training import asked_for
from equipoise.files import is_url
from equipoise.hints import install
from equipoise.programs.config_file import write_config
from equipoise.programs.fields import alter
from equipoise.programs.program import differences, to_json
from equipoise.programs.refusals import check as check_program
from equipoise.programs.refusals import check_read, fixed, problems
from equipoise.programs.settings import apply_settings, convert, pairs
from equipoise.record.mirror import Store
from equipoise.run.starting import check_packages
from equipoise.studies.at_url import check_vacant, fetch_missing, take
from equipoise.studies.history import Entry, History, Trial
from equipoise.studies.local import LocalExecutor, command
from equipoise.studies.settings import (
    BEST,
    STUDY,
    StudySettings,
    check_trust,
    program_hash,
    read_hash,
    read_study,
    write_cluster,
    write_study,
)
from equipoise.studies.space import Space, Value, setting_texts
from equipoise.studies.strategies import strategy_of
from equipoise.studies.strategies.cells import Cells
from equipoise.studies.strategies.confirmed import Confirmed
from equipoise.studies.strategy import Plan, Strategy
from equipoise.studies.study import Study
from equipoise.studies.tuned import Tuned
from equipoise.tuning.choices import settled
from equipoise.types import Program

if TYPE_CHECKING:
    from equipoise.studies.executor import Executor, Progress

__all__ = ["Tuned", "tune"]

OF_STUDY = sorted(TuneOptions.__annotations__.keys() - ProgramOptions.__annotations__.keys())
OnEntry = Callable[[Entry, History], object]
PROCESS_BYTES = 300 << 20  # that a process with torch takes, at least


@expanded(TuneOptions)
def tune(
    env: Env | Program | None = None,
    algorithm: Chosen | None = None,
    *,
    space: Mapping[str, str | Sequence[Value]] | Sequence[str] = (),
    **options: Unpack[TuneOptions],
) -> Tuned:
    """Search for the settings with the highest score: many runs, some of which end early.

    The study is a directory whose trials are ordinary runs. A study that was killed goes on if the
    same call is made again with its ``out``.

    Args:
        env: As for ``train``.
        algorithm: As for ``train``.
        space: Settings to search, by key: ``{"optimizer.learning_rate": "log:1e-5..1e-2",
            "algorithm.gamma": [0.95, 0.99]}``.
        options: The study, and settings as for ``train``; each is listed below.

    Returns:
        The study.

    Raises:
        TypeError: An option is unknown.
        ValueError: A value cannot be, or two settings contradict each other.

    Example:
        >>> study = eq.tune("CartPole-v1", "ppo", space={"optimizer.learning_rate": [1e-3, 3e-3]},
        ...     strategy="grid", trials=2, confirm=0, **small)
        >>> len(study.trials), study.best.name
        (2, 'best.toml')
    """
    check_shapes(options)
    rest = {name: value for name, value in options.items() if name not in OF_STUDY}
    if isinstance(env, Program) and rest:
        raise TypeError(f"a Program says everything itself; got {', '.join(rest)} besides")
    program = (
        env
        if isinstance(env, Program)
        else made_program(env, algorithm, cast(ProgramOptions, rest), also=OF_STUDY)
    )
    given = {
        name: convert(value, FIELDS_OF_STUDY[name].kind, name)
        for name, value in options.items()
        if name in FIELDS_OF_STUDY and name != "strategy_settings"
    }
    settings = StudySettings(
        **given,
        strategy_settings=setting_texts(options.get("strategy_settings", ())),
        space=setting_texts(space),
        seed=program.schedule.seed,
        cluster=setting_texts(options.get("cluster") or {}),
    )
    asked, trust = asked_for(rest, options.get("settings", ())), options.get("trust", ())
    folder = opened(options.get("out"), settings, program, trust, asked=asked)
    from equipoise.console.study import StudyView  # it loads rich

    view = StudyView(settings, folder, quiet=not options.get("progress", True))
    try:
        return carried_on(
            folder,
            trust=trust,
            cluster=dict(pairs(settings.cluster)),
            on_entry=view.on_entry,
            on_progress=view.on_progress,
        )
    finally:
        view.close()


def opened(
    out: Place | None,
    settings: StudySettings,
    program: Program,
    trust: Sequence[str] = (),
    *,
    asked: Collection[str] = (),
    tell: Callable[[str], object] = lambda text: None,
) -> Path:
    """Check a new study and write its folder -> the folder. If the same study is there already, it
    goes on; ValueError for another one.

    What the program leaves open is measured once, for all trials. ``asked`` and ``tell``: as for
    ``settled``.
    """
    if is_url(out):
        raise ValueError(f"out: must be a directory on this machine, got {out}")
    check_packages(settings.on)
    if settings.url:
        Store(settings.url)  # it refuses a secret, which no file may hold
    strategy = strategy_from(settings, program, trust)
    program = checked(program, settings, strategy)
    name = program_hash(program)
    folder = _default(program) if out is None else Path(out).expanduser()
    if (folder / STUDY).is_file():
        was = read_study(folder)
        same = replace(was, jobs=settings.jobs, cluster=settings.cluster) == settings
        if not same or name != read_hash(folder):
            raise ValueError(
                f"{folder}: must be a new directory, or the same study that goes on; got another "
                f"study; 'equipoise tune resume {folder}' goes on with it"
            )
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder}: must be a new or empty directory, got one with files")
    if settings.url:
        check_vacant(settings.url)
    check_memory(program, settings)
    program, chosen = settled(program, on=settings.on, asked=asked, tell=tell)
    folder.mkdir(parents=True, exist_ok=True)
    write_study(folder, settings, program, name, chosen)
    return folder


def carried_on(
    folder: Path,
    *,
    trust: Sequence[str] = (),
    jobs: int | None = None,
    cluster: Mapping[str, object] | None = None,
    started: LocalExecutor | None = None,
    on_entry: OnEntry = lambda entry, history: None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
) -> Tuned:
    """Run a study to its end -> the study. Ctrl-C saves its trials. ``cluster``: settings of the
    Ray cluster that differ from those of before, and are kept.
    """
    settings = read_study(folder)
    check_trust(folder, settings, [*trust, *map(str, (cluster or {}).values())])
    if jobs is not None:
        settings = replace(settings, jobs=jobs)
    changed = setting_texts({**dict(pairs(settings.cluster)), **(cluster or {})})
    moves, settings = changed != settings.cluster, replace(settings, cluster=changed)
    if settings.url:
        take(settings.url, folder)
    program = None if settings.suite else configured(folder / STUDY, trust=trust)
    strategy = _cells(settings) if program is None else strategy_from(settings, program, trust)
    names = list(trust)
    if program is not None:  # the user typed its names, or vouched for the file
        names += [name for _, name in vouched.of_program(to_json(program))[0]]
    if started is not None:
        started.trust = names
    executor = started or executor_of(settings, program, names)
    study = Study(
        folder,
        settings,
        strategy,
        executor,
        in_order=program is not None and program.placement.max_lag == 0,
        on_entry=on_entry,
        on_progress=on_progress,
    )
    try:
        if moves:
            write_cluster(folder, changed)
        history = study.run()
    finally:
        study.close()
        if settings.url:
            fetch_missing(folder, settings.url, study.history)
    tuned = Tuned(directory=folder, history=history)
    if program is not None and tuned.best_trial is not None and len(strategy.plan.space):
        _write_best(folder, program, tuned.best_trial)
    return tuned


def executor_of(
    settings: StudySettings,
    program: Program | None,
    trust: Sequence[str] = (),
) -> Executor:
    """Return the executor of a study: processes of this machine, or actors of a Ray cluster."""
    starts, found = command(settings.on, trust), dict(pairs(settings.cluster))
    if settings.executor == "ray":
        from equipoise.programs.cluster import read_cluster

        read = read_cluster(found)
        if find_spec("ray") is None:
            raise ValueError(
                f"executor: must have the package ray for a Ray cluster, got none; {install('ray')}"
            )
        from equipoise.studies.on_ray import RayExecutor

        return RayExecutor(
            starts,
            settings.jobs,
            cluster=read,
            cores=1 if settings.on == "serial" or program is None else 1 + program.actors,
            gpus=int(program is not None and program.placement.device.startswith("cuda")),
        )
    if found and settings.on != "ray":
        raise ValueError(
            f"cluster: must be empty for trials on this machine, got {', '.join(found)}; use "
            "executor='ray'"
        )
    return LocalExecutor(starts, settings.jobs)


def _cells(settings: StudySettings) -> Strategy:
    """The strategy of a suite's study; its plan has the env steps of the longest cell."""
    plan = Plan(space=Space(), trials=settings.trials, steps=1, seed=settings.seed)
    cells = Cells(plan=plan, cells=settings.strategy_settings)
    return replace(cells, plan=replace(plan, steps=cells.steps))


def strategy_from(settings: StudySettings, program: Program, trust: Sequence[str] = ()) -> Strategy:
    """Return the strategy of a study, with the seeds that confirm its best settings at the end."""
    plan = Plan(
        space=settings.parsed(),
        trials=settings.trials,
        steps=program.schedule.steps,
        seed=settings.seed,
    )
    strategy = strategy_of(settings.strategy, plan, settings.strategy_settings, trusted=trust)
    return strategy if settings.confirm == 0 else Confirmed(inner=strategy, seeds=settings.confirm)


def checked(program: Program, settings: StudySettings, strategy: Strategy) -> Program:
    """Return the program of the trials; ValueError for a space or a strategy that it cannot have.

    Alarms end a trial: its settings do not learn.
    """
    space = settings.parsed()
    if settings.strategy != "seeds":
        program = alter(program, on_alarm="stop")
    for parameter in space:
        _check_parameter(program, parameter.key, parameter.grid(2), strategy.changes_settings)
    _check_corners(program, space)
    plays = program.evaluation.episodes > 0 or program.source.played is not None
    if strategy.needs_results and not plays:
        raise ValueError(
            f"strategy {settings.strategy}: must have results before the end of a trial, got a run "
            "that plays no episodes and has no evaluations; use --evaluate-episodes N"
        )
    return program


def _check_parameter(program: Program, key: str, values: Sequence[Value], changes: bool) -> None:
    if key in ("schedule.steps", "schedule.seed", "steps", "seed"):
        raise ValueError(
            f"space: must not contain {key}, which the study sets for each trial; use "
            f"--{key.rpartition('.')[2]}"
        )
    made = [apply_settings(program, [f"{key}={value}"]) for value in values]
    check_read(made[-1], [key])
    if not changes:
        return
    other = next((one for one in made if differences(program, one)), made[0])
    if kept := fixed(program, other):
        raise ValueError(
            f"space: must contain only settings that a resume can change, since this strategy "
            f"changes them while a trial goes on; got {', '.join(kept)}; try --strategy asha"
        )


def _check_corners(program: Program, space: Space) -> None:
    """A setting that is refused with its lowest and its highest values is refused now."""
    for share in (0.0, 1.0):
        settings = [f"{key}={value}" for key, value in space.at([share] * len(space)).items()]
        made = apply_settings(program, settings)
        if found := problems(made):
            where = ", ".join(settings)
            raise ValueError(f"space: at {where}: {found[0]}")


def check_memory(program: Program, settings: StudySettings) -> None:
    """ValueError if the trials that train at the same time do not fit in memory."""
    from equipoise.plans import memory_needed
    from equipoise.plans.beginning import Fresh
    from equipoise.plans.plan import plan_run
    from equipoise.tuning.choices import usual

    if settings.executor != "local" or program.outside:
        return
    blue = plan_run(usual(program), Fresh(out=None))
    arrays = sum(memory_needed.parts(blue, dict.fromkeys(blue.roles, 0)).values())
    processes = 1 if settings.on == "serial" else 2 + program.actors
    each, free = arrays + processes * PROCESS_BYTES, memory_needed.machine().free
    if free is not None and settings.jobs * each > free:
        raise ValueError(
            f"jobs: must be at most {max(free // each, 1):,} for the {memory_needed.size(free)} of "
            f"memory that are free, since a trial takes at least {memory_needed.size(each)}; got "
            f"{settings.jobs:,}"
        )


def _write_best(folder: Path, program: Program, best: Trial) -> None:
    if (folder / BEST).is_file():
        return
    made = apply_settings(program, [f"{key}={value}" for key, value in best.settings.items()])
    check_program(made)
    write_config(alter(made, on_alarm="warn"), folder / BEST)


def _default(program: Program) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", program.name).strip(".-")
    return Path("studies") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
