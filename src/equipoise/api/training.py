"""Training, and going on with it: ``train``, ``resume``."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from equipoise.api.draft import read_fields
from equipoise.api.playing import weights_of
from equipoise.api.programs import program
from equipoise.api.sizing import fitted
from equipoise.facts import AUTO, facts
from equipoise.files import is_url
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
from equipoise.record.checkpoint import EXAMS
from equipoise.record.directory import CLUSTER, RunDirectory
from equipoise.record.mirror import fetch, holds
from equipoise.record.report import all_made, step_of
from equipoise.run import choice
from equipoise.run.choices import settled, usual
from equipoise.run.governing import check_on
from equipoise.run.run import Run
from equipoise.run.starting import connected
from equipoise.types import On, Placement, Program

if TYPE_CHECKING:
    from equipoise.runtime.cluster.on_ray import RayNodes

InitWhat = Literal["weights", "learner"]

# Where no one names them they are measured, so that one command may find others when it is started again.
MEASURED = {"actors", "envs_per_actor", "unroll", "batch", "minibatches", "updates", "inference", "learners"}

__all__ = ["NothingToDo", "resume", "train"]


def train(
    env: str | Callable[..., Any] | Program,
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
    cluster: Mapping[str, Any] | None = None,
    or_resume: bool = False,
    trust: Sequence[str] = (),
    choices: Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Train and iterate over its reports: ``for report in eq.train("CartPole-v1"): ...``.

    ``options`` are those of ``program``. The run directory is ``run.directory``; ``run.close()`` after leaving the loop early
    stops the run, saves it and writes the summary. ``init_from`` is a run, or
    one of its checkpoints, whose weights are the first ones; with ``init_what`` "learner" the optimisers, target networks,
    statistics and the share of the schedule go on from there, too, and versions are counted from 0 again.
    ``tensorboard``: are event files written; ``wandb``: a Weights & Biases project that the run reports to as well.
    What is ``auto``, as precision and threads are where nobody says them, is measured first, for half a minute at most
    (docs/choices.md); ``tell`` is told what is taken. ``asked``: names of settings for which the Program's ``auto`` was the
    user's word, so that they are measured for a short run, too. ``cluster``: with ``on="ray"``, its settings by name:
    ``{"address": "auto", "home_actors": 0}`` (docs/cluster.md). ``choices``: what was measured for this Program before, as
    ``run.json`` has it under that name, for the record of this run.

    ``out`` may be a URL (``s3://...``): the run then lies in runs/ and is copied to the URL as it goes on (docs/remote.md).
    ``or_resume``: go on with the run that is at ``out``, where there is one of the same program.
    """
    besides = [*(["algorithm"] if algorithm is not None else []), *sorted(options)]
    if isinstance(env, Program) and besides:
        raise TypeError(f"a Program says everything itself; got {', '.join(besides)} besides")
    if isinstance(env, Program):
        made = env
    else:
        made, asked = program(env, algorithm, **options), {*asked, *asked_for(options, options.get("settings", ()))}
        given = [*options, *(key for key, _ in pairs(options.get("settings", ())))]
        made, sizes = fitted(made, given, recipe=options.get("recipe", True))
        if sizes:
            tell(sizes)
    if or_resume and out is None:
        raise ValueError("or_resume: expected out, the directory or URL where the run may be, got none")
    url = out if is_url(out) else None
    held, notes = "nothing" if out is None else holds(out), list[str]()
    if or_resume and held == "a run":
        assert out is not None
        return resume(out, on=on, trust=trust, cluster=cluster, same=made, tell=tell)
    if url is not None and not or_resume and held != "nothing":
        raise FileExistsError(f"{url}: expected no run there, got {held}; --or-resume goes on with it")
    what: InitWhat = convert(init_what, InitWhat, "init_what")
    if init_from is None and what != "weights":
        raise ValueError(f"init_what={what}: expected init_from, the run or checkpoint that it is taken from, got none")
    weights = None if init_from is None else weights_of(init_from, whole=what == "learner")
    if weights is not None and what == "learner" and made.schedule.schedule_steps is None:
        made = alter(made, schedule_steps=checkpoint.read_meta(weights).get("schedule_steps"))
    if weights is not None and not isinstance(env, Program):
        made = like_its_source(made, weights, [key for key, _ in pairs(options.get("settings", ()))], tell)
    if weights is not None and not made.outside:  # what does not fit is refused before anything is measured
        check_program(usual(made))
        plan_run(usual(made), weights=weights, learner=what == "learner")
    made, chosen = settled(made, on=on, asked=asked, tell=tell, known=choices or ())
    local = None if out is None or url is not None else Path(out)
    check_on(made, on)
    if on == "ray":  # to connect takes 20 s: what needs no cluster is found before
        if local is not None and not or_resume:
            paths.check_vacant(local)
        check_program(usual(made))
        plan_run(usual(made), weights=weights, learner=what == "learner")
    nodes = connected(on, cluster or {})
    with _disconnected(nodes):
        if or_resume and held == "a beginning":
            kept = "its files are replaced" if out is None or url else f"what it left is now in {paths.set_aside(Path(out))}"
            notes = [f"{out}: a run ended there before its first checkpoint and begins anew; {kept}"]
        return Run(
            made,
            on=on,
            out=local,
            weights=weights,
            learner=what == "learner",
            tensorboard=tensorboard,
            wandb=wandb,
            chosen={**(choices or {}), **chosen},
            nodes=nodes,
            mirror=url,
            notes=notes,
        )


def like_its_source(
    made: Program, weights: str | os.PathLike[str], given: Collection[str], tell: Callable[[str], object]
) -> Program:  # fmt: skip
    """The program of a run that begins with a cloned policy, with a network like that one's (``record/cloned.py``).

    ``weights``: a run, or a checkpoint; ``given``: keys of settings, which stay.
    """
    made, said = cloned.adopted(made, weights_of(weights), given)
    if said:
        tell(said)
    return made


def asked_for(options: Mapping[str, Any], settings: Settings) -> list[str]:
    """The names of the settings that were given as ``auto``."""
    given = {**options, **{key.removeprefix("placement."): value for key, value in pairs(settings)}}
    return [name for name, fact in facts(Placement).items() if fact.auto and str(given.get(name, "")).lower() == AUTO.word]


@contextlib.contextmanager
def _disconnected(nodes: RayNodes | None) -> Iterator[None]:
    """Disconnect from the cluster where a run does not come to be."""
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
    cluster: Mapping[str, Any] | None = None,
    same: Program | None = None,
    tell: Callable[[str], object] = lambda text: None,
    **fields: Any,
) -> Run:
    """Go on with a run from its newest whole checkpoint; iterate over it as over ``train``.

    ``fields`` are settings by the names of their options and ``settings`` texts like
    ``"algorithm.entropy=0"`` that are to change: ``steps`` and ``stop_at`` extend a run that has ended (its schedules keep the
    length that they had). What the saved state would not fit is refused. What was chosen by measurement stays, unless
    a change makes it another choice, or it is ``auto`` now; ``tell`` is told of that.

    ``trust``: modules and ``module:callable`` that a run from elsewhere may import. ``cluster``: as for ``train``; what is not
    said stays as it was.
    ``directory`` may be a URL. ``same``: the program of a command that is given again; more steps than the run has extend it.
    ValueError where it is another program. Raises ``NothingToDo`` where the run is complete already.
    """
    if not is_url(directory):
        return _resumed(Path(directory), directory, on, settings, trust, cluster, same, tell, fields)
    fetched = fetch(directory)
    try:
        return _resumed(fetched, directory, on, settings, trust, cluster, same, tell, fields)
    except BaseException:
        shutil.rmtree(fetched, ignore_errors=True)  # a copy
        raise


def _resumed(
    path: Path,
    place: str | os.PathLike[str],
    on: On | None,
    settings: Settings,
    trust: Sequence[str],
    cluster: Mapping[str, Any] | None,
    same: Program | None,
    tell: Callable[[str], object],
    fields: dict[str, Any],
) -> Run:
    """``resume`` the run in the directory ``path``, which is at ``place`` for the user."""
    run = RunDirectory.open(path, trusted=trust)
    given = read_fields({key: value for key, value in fields.items() if value is not None}, run.program)
    notes = list[str]()
    if same is not None:
        more, notes = _again(run.program, same, place)
        given |= more
    check_replays(run.program, [key for key, _ in pairs(settings)])
    made = apply_settings(alter(run.program, **given), settings)
    if made.schedule.steps != run.program.schedule.steps and made.schedule.schedule_steps is None:
        made = alter(made, schedule_steps=run.program.schedule.steps)
    check_resume(run.program, made)
    check_program(made)
    source, summary = run.whole_checkpoint(), run.summary()
    at = step_of(source.meta)
    solved = summary is not None and summary["status"] == "solved" and made.evaluation.stop_at == run.program.evaluation.stop_at
    if solved and made.schedule.steps <= run.program.schedule.steps:
        raise NothingToDo(f"{place} is solved: nothing to do; --stop-at RETURN or more --steps goes on")
    if given.get("steps", at) < at:
        raise ValueError(f"{place}: steps: expected more than the {at:,} that are done, got {given['steps']:,}")
    owed = EXAMS in source.files and summary is not None and not all_made(summary)  # evaluations
    # Without a summary it was killed between its last step and its last word.
    if at >= made.schedule.steps and summary is not None and not owed:
        raise NothingToDo(f"{place} is complete at step {at:,}: nothing to do; --steps N beyond {at} goes on")
    where = on or run.run["on"]
    check_on(made, where)
    again = choice.asked_again(run.run.get(choice.KEY, {}), differences(run.program, made))
    asked = asked_for(given, settings)
    made, chosen = settled(alter(made, **dict.fromkeys(again, AUTO.word)), on=where, asked=(*asked, *again), tell=tell, at=at)
    before = run.run.get(CLUSTER, {}) if where == "ray" else {}
    nodes = connected(where, {**before, **(cluster or {})})
    with _disconnected(nodes):
        # A URL that only the fetched run.json names is not written to.
        mirror = place if is_url(place) else None
        return Run(made, on=where, resume=run, source=source, chosen=chosen, nodes=nodes, mirror=mirror, notes=notes)


def _again(was: Program, now: Program, place: str | os.PathLike[str]) -> tuple[dict[str, int], list[str]]:
    """What a command that is given again changes of its run, which is more steps, and a note on what it does not change.

    ValueError where it is the command of another run.
    """
    other = differences(was, now)
    if refused := [key for key in fixed(was, now) if key.rpartition(".")[2] not in MEASURED]:
        said = ", ".join(f"{key} {other[key][0]!r} (now {other[key][1]!r})" for key in refused[:3])
        raise ValueError(f"{place}: expected a run of the same program to go on with, got one with {said}")
    if now.schedule.schedule_steps is None:
        other.pop("schedule.schedule_steps", None)
    for name in ("auto", *now.placement.auto):  # what was chosen stays so
        other.pop(f"placement.{name}", None)
    more = {"steps": now.schedule.steps} if now.schedule.steps > was.schedule.steps else {}
    kept = [f"{key} {mine!r} (now {its!r})" for key, (mine, its) in other.items() if not (more and key == "schedule.steps")]
    return more, [f"the run keeps {', '.join(kept)}; 'equipoise resume' changes what can be changed"] if kept else []
