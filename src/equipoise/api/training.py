"""Training, and going on with it: ``start``, ``resume``."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from equipoise.api.draft import read_fields
from equipoise.api.playing import weights_of
from equipoise.api.programs import program
from equipoise.facts import AUTO, facts
from equipoise.files import is_url
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
from equipoise.record.directory import CLUSTER, RunDirectory
from equipoise.record.mirror import fetch, holds
from equipoise.record.report import all_made, step_of
from equipoise.run.beginnings import Services
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

__all__ = ["NothingToDo", "resume", "start"]


def start(
    env: str | Callable[..., object] | Program,
    algorithm: str | None = None,
    *,
    on: On = "process",
    out: str | os.PathLike[str] | None = None,
    init_from: str | os.PathLike[str] | None = None,
    init_what: str = "weights",
    tensorboard: bool = True,
    wandb: str | None = None,
    tell: Callable[[str], object] = lambda text: None,
    asked: Collection[str] = (),
    cluster: Mapping[str, object] | None = None,
    or_resume: bool = False,
    trust: Sequence[str] = (),
    choices: Mapping[str, object] | None = None,
    **options: Any,
) -> Run:
    """Train and iterate over its reports: ``for report in eq.start("CartPole-v1"): ...``.

    ``options`` are those of ``program``. The run directory is ``run.directory``; ``run.close()``
    after leaving the loop early stops the run, saves it and writes the summary. ``init_from`` is a
    run, or one of its checkpoints, whose weights are the first ones; with ``init_what`` "learner"
    the optimisers, target networks, statistics and the share of the schedule go on from there, too,
    and versions are counted from 0 again. ``tensorboard``: are event files written; ``wandb``: a
    Weights & Biases project that the run reports to as well. What is ``auto``, as precision and
    threads are where nobody says them, is measured first, for half a minute at most
    (docs/guides/choices.md); ``tell`` is told what is taken. ``asked``: names of settings for which
    the Program's ``auto`` was the user's word, so that they are measured for a short run, too.
    ``cluster``: with ``on="ray"``, its settings by name: ``{"address": "auto", "home_actors": 0}``
    (docs/guides/cluster.md). ``choices``: what was measured for this Program before, as
    ``run.json`` has it under that name, for the record of this run.

    ``out`` may be a URL (``s3://...``): the run then lies in runs/ and is copied to the URL as it
    goes on (docs/guides/remote.md). ``or_resume``: go on with the run that is at ``out``, where
    there is one of the same program.
    """
    besides = [*(["algorithm"] if algorithm is not None else []), *sorted(options)]
    if isinstance(env, Program) and besides:
        raise TypeError(f"a Program says everything itself; got {', '.join(besides)} besides")
    if isinstance(env, Program):
        check_program(made := env)
    else:
        settings = options.get("settings", ())
        made, keys = program(env, algorithm, **options), [key for key, _ in pairs(settings)]
        asked = {*asked, *asked_for(options, settings)}
        made, sizes = fitted(made, [*options, *keys], recipe=options.get("recipe", True))
        if sizes:
            tell(sizes)
        if init_from is not None:
            made = like_its_source(made, init_from, keys, tell)
    order = Order(
        on=on,
        out=out,
        init_from=init_from,
        init_what=init_what,
        tensorboard=tensorboard,
        wandb=wandb,
        tell=tell,
        asked=asked,
        cluster=cluster or {},
        or_resume=or_resume,
        trust=trust,
        choices=choices or {},
    )
    return run_of(made, order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What ``start`` is given besides the program."""

    on: On
    out: str | os.PathLike[str] | None
    init_from: str | os.PathLike[str] | None
    init_what: str
    tensorboard: bool
    wandb: str | None
    tell: Callable[[str], object]
    asked: Collection[str]
    cluster: Mapping[str, object]
    or_resume: bool
    trust: Sequence[str]
    choices: Mapping[str, object]


def run_of(made: Program, order: Order) -> Run:
    """The run of a checked program, or the one at ``out`` that it goes on with."""
    out, on, tell = order.out, order.on, order.tell
    if order.or_resume and out is None:
        raise ValueError(
            "or_resume: expected out, the directory or URL where the run may be, got none"
        )
    url = out if is_url(out) else None
    held, notes = "nothing" if out is None else holds(out), list[str]()
    if order.or_resume and held == "a run":
        assert out is not None
        return resume(out, on=on, trust=order.trust, cluster=order.cluster, same=made, tell=tell)
    if url is not None and not order.or_resume and held != "nothing":
        raise FileExistsError(
            f"{url}: expected no run there, got {held}; --or-resume goes on with it"
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
            wandb=order.wandb,
            mirror=url,
            chosen={**order.choices, **chosen},
            notes=notes,
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
        if fact.auto and str(given.get(name, "")).lower() == AUTO.word
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
    """A resume of a run that has reached what it was told to."""


def resume(
    directory: str | os.PathLike[str],
    *,
    on: On | None = None,
    settings: Settings = (),
    trust: Sequence[str] = (),
    cluster: Mapping[str, object] | None = None,
    same: Program | None = None,
    tell: Callable[[str], object] = lambda text: None,
    **fields: Any,
) -> Run:
    """Go on with a run from its newest whole checkpoint; iterate over it as over ``train``.

    ``fields`` are settings by the names of their options and ``settings`` texts like
    ``"algorithm.entropy=0"`` that are to change: ``steps`` and ``stop_at`` extend a run that has
    ended (its schedules keep the length that they had). What the saved state would not fit is
    refused. What was chosen by measurement stays, unless a change makes it another choice, or it is
    ``auto`` now; ``tell`` is told of that.

    ``trust``: modules and ``module:callable`` that a run from elsewhere may import. ``cluster``: as
    for ``train``; what is not said stays as it was. ``directory`` may be a URL. ``same``: the
    program of a command that is given again; more steps than the run has extend it. ValueError
    where it is another program. Raises ``NothingToDo`` where the run is complete already.
    """
    with _local(directory) as path:
        run = RunDirectory.open(path, trusted=trust)
        given = read_fields(
            {key: value for key, value in fields.items() if value is not None}, run.program
        )
        more, notes = ({}, []) if same is None else _again(run.program, same, directory)
        given = {**given, **more}
        made = _changed(run.program, given, settings)
        source = run.whole_checkpoint()
        _check_unfinished(run, source, made, given, directory)
        where = on or run.run["on"]
        check_on(made, where)
        again = choice.asked_again(run.run.get(choice.KEY, {}), differences(run.program, made))
        asked = {*asked_for(given, settings), *again}
        at = step_of(source.meta)
        made, chosen = settled(
            alter(made, **dict.fromkeys(again, AUTO.word)), on=where, asked=asked, tell=tell, at=at
        )
        before = run.run.get(CLUSTER, {}) if where == "ray" else {}
        nodes = connected(where, {**before, **(cluster or {})})
        with _disconnected(nodes):
            # a URL that only the fetched run.json names is not written to
            mirror = directory if is_url(directory) else None
            services = Services(on=where, nodes=nodes, mirror=mirror, chosen=chosen, notes=notes)
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
    owed = EXAMS in source.files and summary is not None and not all_made(summary)  # evaluations
    # a run without a summary was killed after its last step
    if at >= made.schedule.steps and summary is not None and not owed:
        raise NothingToDo(
            f"{place} is complete at step {at:,}: nothing to do; --steps N beyond {at} goes on"
        )


def _again(
    was: Program, now: Program, place: str | os.PathLike[str]
) -> tuple[dict[str, int], list[str]]:
    """What a command that is given again changes of its run, which is more steps, and a note on
    what it does not change.

    ValueError where it is the command of another run.
    """
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
