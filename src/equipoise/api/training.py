"""Runs that begin or go on, as iterators over their reports: ``start``."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from equipoise.api.draft import read_fields
from equipoise.api.options import (
    DEFAULTS,
    Place,
    ProgramOptions,
    ResumeOptions,
    RunOptions,
    StartOptions,
    check_shapes,
    expanded,
)
from equipoise.api.pinning import pinned, pinned_like, with_commit, with_whole_paths
from equipoise.api.playing import weights_of
from equipoise.api.programs import Chosen, Env, made_program
from equipoise.api.writing import reward_model
from equipoise.facts import AUTO, facts
from equipoise.files import is_url
from equipoise.hints import raised
from equipoise.naming import imported
from equipoise.plans.beginning import Fresh, FromWeights, Resumed
from equipoise.plans.plan import plan_run
from equipoise.programs.fields import alter
from equipoise.programs.program import differences
from equipoise.programs.refusals import check as check_program
from equipoise.programs.refusals import check_replays, check_resume, fixed
from equipoise.programs.settings import (
    Settings,
    apply_settings,
    convert,
    pairs,
)
from equipoise.record import checkpoint, cloned, paths
from equipoise.record.checkpoint import EXAMS, Source
from equipoise.record.directory import RunDirectory
from equipoise.record.mirror import fetch, holds
from equipoise.record.report import all_made, step_of
from equipoise.run.beginnings import Services
from equipoise.run.callbacks import Callback, Listeners
from equipoise.run.governing import check_on
from equipoise.run.run import Run
from equipoise.run.starting import connected
from equipoise.tuning import choice
from equipoise.tuning.choices import settled, usual
from equipoise.tuning.sizing import fitted
from equipoise.types import On, Placement, Program

if TYPE_CHECKING:
    from equipoise.runtime.cluster.on_ray import RayNodes

InitWhat = Literal["weights", "learner"]

# Settings that are measured if nobody names them, so that the same command may find other values.
MEASURED = {
    "actors",
    "envs_per_actor",
    "unroll",
    "batch",
    "minibatches",
    "updates",
    "inference",
    "learners",
}

__all__ = ["NothingToDo", "begun", "resumed", "start"]

# options of a run that are not its program's
OF_ORDER = sorted(RunOptions.__annotations__.keys() - ProgramOptions.__annotations__.keys())
# options of a resume that are not fields
OF_RESUME = ("settings", "on", "callbacks", "cluster", "trust", "progress")


def _silent(text: str) -> None: ...


@expanded(StartOptions)
def start(
    env: Env | Program | None = None,
    algorithm: Chosen | None = None,
    **options: Unpack[StartOptions],
) -> Run:
    """Start a run whose reports you iterate over: it trains while you ask for the next report.

    The run is a context manager: at the end of the ``with`` block it is saved and its workers stop.
    ``run.directory`` is its directory; ``run.summary`` is there once it has ended.

    Args:
        env: As for ``train``.
        algorithm: As for ``train``.
        options: Settings, as for ``train``, and ``resume``, a run to go on with in place of
            ``env``; each is listed below.

    Returns:
        The run, an iterator over its reports.

    Raises:
        TypeError: An option is unknown, or the env is an instance.
        ValueError: A value cannot be, or two settings contradict each other.
        NothingToDo: The run of ``resume`` is complete.

    Example:
        >>> with eq.start("CartPole-v1", **small) as run:
        ...     for report in run:
        ...         last = report
        >>> last.final, run.summary["status"]
        (True, 'completed')
    """
    if "resume" not in options or options["resume"] is None:
        rest: dict[str, object] = {**options}
        rest.pop("resume", None)
        return begun(env, algorithm, cast(RunOptions, rest))
    directory, more = options["resume"], {**options}
    del more["resume"]
    if env is not None or algorithm is not None:
        raise TypeError(
            f"resume={os.fspath(directory)!r}: must stand without env and algorithm, which the run "
            "has already"
        )
    return resumed(directory, cast(ResumeOptions, more))


def begun(
    env: Env | Program | None,
    algorithm: Chosen | None,
    options: RunOptions,
    *,
    tell: Callable[[str], object] = _silent,
    asked: Collection[str] = (),
    choices: Mapping[str, object] | None = None,
) -> Run:
    """The run that ``start`` and ``train`` begin.

    ``tell`` is called with sentences on what was chosen. ``asked``: names of settings for which a
    Program's ``auto`` is the user's word, so that they are measured for a short run also.
    ``choices``: what was measured for this Program before.
    """
    check_shapes(options)
    rest = {name: value for name, value in options.items() if name not in OF_ORDER}
    options = cast(RunOptions, {**dict.fromkeys(OF_ORDER), **DEFAULTS, **options})
    Listeners(options["callbacks"])  # a mistake in them is found before anything is made
    besides = [*(["algorithm"] if algorithm is not None else []), *sorted(rest)]
    init_from = options["init_from"]
    if isinstance(env, Program) and besides:
        raise TypeError(f"a Program says everything itself; got {', '.join(besides)} besides")
    if isinstance(env, Program):
        check_program(made := env)
    else:
        settings = options["settings"]
        made = made_program(env, algorithm, cast(ProgramOptions, rest), also=OF_ORDER)
        keys = [key for key, _ in pairs(settings)]
        asked = {*asked, *asked_for(rest, settings)}
        made, sizes = fitted(made, [*rest, *keys], recipe=options["recipe"])
        if sizes:
            tell(sizes)
        if init_from is not None:
            made = like_its_source(made, init_from, keys, tell)
    order = Order(
        on=options["on"],
        out=options["out"],
        init_from=init_from,
        init_what=options["init_what"],
        tensorboard=options["tensorboard"],
        report_to=options["report_to"],
        tell=tell,
        asked=asked,
        cluster=options["cluster"] or {},
        or_resume=options["or_resume"],
        trust=options["trust"],
        choices=choices or {},
        callbacks=options["callbacks"],
    )
    return run_of(made, order)


def made_callbacks(names: Sequence[str]) -> list[Callback]:
    """The callbacks that ``module:object`` names: objects, or classes, which are called without
    arguments.
    """
    made: list[Callback] = []
    for name in names:
        found = imported(name, "callback")
        if isinstance(found, type):
            try:
                found = found()
            except Exception as error:  # the class of a user may raise anything
                raise ValueError(
                    f"callback {name!r}: must be made without arguments, got {raised(error)}; name "
                    "an object of the module instead"
                ) from error
        try:
            Listeners([found])
        except TypeError as error:
            raise ValueError(f"callback {name!r}: {error}") from None
        made.append(cast(Callback, found))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The options of a run that are not settings of its program."""

    on: On
    out: str | os.PathLike[str] | None
    init_from: str | os.PathLike[str] | None
    init_what: str
    tensorboard: bool
    report_to: str | Sequence[str]
    tell: Callable[[str], object]
    asked: Collection[str]
    cluster: Mapping[str, object]
    or_resume: bool
    trust: Sequence[str]
    choices: Mapping[str, object]
    callbacks: Sequence[Callback] = ()
    mirror: str | None = None  # a URL that the run in the directory ``out`` is copied to


def run_of(made: Program, order: Order) -> Run:
    """The run of a checked program, or the run at ``out`` that it goes on with."""
    out, on, tell = order.out, order.on, order.tell
    if order.or_resume and out is None:
        raise ValueError(
            "or_resume: expected out, the directory or URL where the run may be, got none"
        )
    url = out if is_url(out) else None
    held, notes = "nothing" if out is None else holds(out), list[str]()
    if order.or_resume and held == "a run":
        assert out is not None
        return resumed(
            out,
            {
                "on": on,
                "trust": order.trust,
                "cluster": order.cluster,
                "callbacks": order.callbacks,
            },
            same=made,
            tell=tell,
        )
    if url is not None and not order.or_resume and held != "nothing":
        raise FileExistsError(
            f"{url}: expected no run there, got {held}; --or-resume goes on with it"
        )
    made = pinned(
        with_whole_paths(with_commit(made)), lambda folder: reward_model(folder, trust=order.trust)
    )
    made, beginning = _beginning(made, order, None if out is None or url is not None else Path(out))
    # a refusal comes before anything is measured or connected
    if (beginning.weights is not None or on == "ray") and not made.outside:
        if on == "ray" and beginning.out is not None and not order.or_resume:
            paths.check_vacant(beginning.out)
        plan_run(usual(made), beginning)
    made, chosen = settled(made, on=on, asked=order.asked, tell=tell, known=order.choices)
    check_on(made, on)
    nodes = connected(on, order.cluster)
    with _disconnected(nodes):
        if order.or_resume and held == "a beginning":
            kept = (
                "its files are replaced"
                if out is None or url
                else f"what it left is now in {paths.set_aside(Path(out))}"
            )
            notes = [
                f"{out}: a run ended there before its first checkpoint and begins anew; {kept}"
            ]
        services = Services(
            on=on,
            nodes=nodes,
            tensorboard=order.tensorboard,
            report_to=order.report_to,
            mirror=url or order.mirror,
            chosen={**order.choices, **chosen},
            notes=notes,
            callbacks=order.callbacks,
        )
        return Run(made, beginning, services)


def _beginning(
    made: Program, order: Order, out: Path | None
) -> tuple[Program, Fresh | FromWeights]:
    """The beginning of a new run, and its program, with a learner's schedule if it has none."""
    what: InitWhat = convert(order.init_what, InitWhat, "init_what")
    if order.init_from is None and what != "weights":
        raise ValueError(
            f"init_what={what}: expected init_from, the run or checkpoint that it is taken from, "
            "got none"
        )
    if order.init_from is None:
        return made, Fresh(out=out)
    weights = weights_of(order.init_from, whole=what == "learner")
    if what == "learner" and made.schedule.schedule_steps is None:
        check_program(
            made := alter(made, schedule_steps=checkpoint.read_meta(weights).get("schedule_steps"))
        )
    return made, FromWeights(weights=weights, learner=what == "learner", out=out)


def like_its_source(
    made: Program,
    weights: str | os.PathLike[str],
    given: Collection[str],
    tell: Callable[[str], object],
) -> Program:
    """The program of a run that begins with a cloned policy, with a network like that one's
    (``record/cloned.py``).

    ``weights``: a run, or a checkpoint; ``given``: keys of settings, which stay.
    """
    made, said = cloned.adopted(made, weights_of(weights), given)
    if said:
        check_program(made)
        tell(said)
    return made


def asked_for(options: Mapping[str, object], settings: Settings) -> list[str]:
    """The names of the settings that were given as ``auto``."""
    given = {**options, **{key.removeprefix("placement."): value for key, value in pairs(settings)}}
    return [
        name
        for name, fact in facts(Placement).items()
        if fact.auto
        and AUTO.word in (str(given.get(one, "")).lower() for one in (name, fact.option))
    ]


@contextlib.contextmanager
def _disconnected(nodes: RayNodes | None) -> Iterator[None]:
    """Disconnect from the cluster if no run begins."""
    try:
        yield
    except BaseException:
        if nodes is not None:
            nodes.disconnect()
        raise


class NothingToDo(ValueError):
    """The error of a resume whose run has reached its steps or its goal."""


def resumed(
    directory: Place,
    options: ResumeOptions,
    *,
    same: Program | None = None,
    tell: Callable[[str], object] = _silent,
    mirror: str | None = None,
) -> Run:
    """The run that goes on from the newest whole checkpoint of ``directory``, which may be a URL.

    What was chosen by measurement stays, unless a change makes it another choice, or it is ``auto``
    now. ``same``: the program of a command that is given again; more steps than the run has extend
    it. ``tell`` is called with sentences on what was chosen. ``mirror``: a URL that a run on this
    machine is copied to.
    """
    check_shapes(options)
    Listeners(callbacks := options.get("callbacks", ()))
    settings, trust = options.get("settings", ()), options.get("trust", ())
    cluster = options.get("cluster")
    fields = {name: value for name, value in options.items() if name not in OF_RESUME}
    with _local(directory) as path:
        run = RunDirectory.open(path, trusted=trust)
        given = read_fields(
            {key: value for key, value in fields.items() if value is not None},
            run.program,
            known=OF_RESUME,
        )
        more, notes = ({}, []) if same is None else _again(run.program, same, directory)
        given = {**given, **more}
        made = _changed(run.program, given, settings)
        made = pinned(made, lambda folder: reward_model(folder, trust=trust))
        source = run.whole_checkpoint()
        _check_unfinished(run, source, made, given, directory)
        where = options.get("on") or run.run["on"]
        check_on(made, where)
        again = choice.asked_again(run.run.get(choice.KEY, {}), differences(run.program, made))
        asked = {*asked_for(given, settings), *again}
        at = step_of(source.meta)
        made, chosen = settled(
            alter(made, **dict.fromkeys(again, AUTO.word)), on=where, asked=asked, tell=tell, at=at
        )
        before = run.cluster() if where == "ray" else {}
        if "address" not in (cluster or {}):
            run.check_cluster(before, trust)
        nodes = connected(where, {**before, **(cluster or {})})
        with _disconnected(nodes):
            # a URL that only the fetched run.json names is not written to
            mirror = directory if is_url(directory) else mirror
            services = Services(
                on=where,
                nodes=nodes,
                mirror=mirror,
                chosen=chosen,
                notes=notes,
                callbacks=callbacks,
            )
            return Run(made, Resumed(directory=run, source=source), services)


@contextlib.contextmanager
def _local(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """The directory itself, or a copy of the one at a URL, removed if no run begins."""
    if not is_url(directory):
        yield Path(directory)
        return
    fetched = fetch(directory)
    try:
        yield fetched
    except BaseException:
        shutil.rmtree(fetched, ignore_errors=True)
        raise


def _changed(was: Program, given: Mapping[str, object], settings: Settings) -> Program:
    """The program of a resume with its changes; ValueError for one that does not fit its state."""
    check_replays(was, [key for key, _ in pairs(settings)])
    made = apply_settings(alter(was, **given), settings)
    if made.schedule.steps != was.schedule.steps and made.schedule.schedule_steps is None:
        made = alter(made, schedule_steps=was.schedule.steps)
    if check_resume(was, made):
        check_program(made)
    return made


def _check_unfinished(
    run: RunDirectory,
    source: Source,
    made: Program,
    given: Mapping[str, Any],
    place: str | os.PathLike[str],
) -> None:
    """``NothingToDo`` if the run has reached its steps, ValueError if it is to reach fewer."""
    summary, at = run.summary(), step_of(source.meta)
    solved = (
        summary is not None
        and summary["status"] == "solved"
        and made.evaluation.stop_at == run.program.evaluation.stop_at
    )
    if solved and made.schedule.steps <= run.program.schedule.steps:
        raise NothingToDo(
            f"{place} is solved: nothing to do; --stop-at RETURN or more --steps goes on"
        )
    if given.get("steps", at) < at:
        raise ValueError(
            f"{place}: steps: expected more than the {at:,} that are done, got {given['steps']:,}"
        )
    # One that was killed or interrupted after its last step has still to make its last evaluation.
    ended = summary is not None and summary["status"] != "interrupted"
    owed = EXAMS in source.files and summary is not None and not all_made(summary)  # evaluations
    if at >= made.schedule.steps and ended and not owed:
        raise NothingToDo(
            f"{place} is complete at step {at:,}: nothing to do; --steps N beyond {at} goes on"
        )


def _again(
    was: Program, now: Program, place: str | os.PathLike[str]
) -> tuple[dict[str, int], list[str]]:
    """The changes by a command that is given again, which are more steps, and a note on settings
    that it does not change.

    ValueError if it is the command of another run.
    """
    now = pinned_like(now, was)
    other = differences(was, now)
    if refused := [key for key in fixed(was, now) if key.rpartition(".")[2] not in MEASURED]:
        said = ", ".join(f"{key} {other[key][0]!r} (now {other[key][1]!r})" for key in refused[:3])
        raise ValueError(
            f"{place}: expected a run of the same program to go on with, got one with {said}"
        )
    if now.schedule.schedule_steps is None:
        other.pop("schedule.schedule_steps", None)
    for name in ("auto", *now.placement.auto):  # what was chosen stays so
        other.pop(f"placement.{name}", None)
    more = {"steps": now.schedule.steps} if now.schedule.steps > was.schedule.steps else {}
    kept = [
        f"{key} {mine!r} (now {its!r})"
        for key, (mine, its) in other.items()
        if not (more and key == "schedule.steps")
    ]
    return more, [
        f"the run keeps {', '.join(kept)}; 'equipoise resume' changes what can be changed"
    ] if kept else []
