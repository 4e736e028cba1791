"""Training, and going on with it: ``train``, ``resume``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from equipoise.api.playing import weights_of
from equipoise.api.programs import measurable, program, read_fields
from equipoise.api.sizing import fitted
from equipoise.files import is_url
from equipoise.programs.fields import alter
from equipoise.programs.program import differences
from equipoise.programs.refusals import check as check_program
from equipoise.programs.refusals import check_replays, check_resume
from equipoise.programs.settings import (
    Settings,
    apply_settings,
    convert,
    pairs,
)
from equipoise.record import checkpoint
from equipoise.record.directory import CLUSTER, RunDirectory
from equipoise.record.mirror import Mirror, fetch, there
from equipoise.record.paths import RUN
from equipoise.record.report import step_of
from equipoise.run.measure import choose
from equipoise.run.run import Run
from equipoise.run.starting import connected
from equipoise.types import AskedInference, On, Program

if TYPE_CHECKING:
    from equipoise.runtime.cluster.on_ray import RayNodes

InitWhat = Literal["weights", "learner"]

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
    inference: str | None = None,
    learners: int | str | None = None,
    tell: Callable[[str], object] = lambda text: None,
    cluster: Mapping[str, Any] | None = None,
    or_resume: bool = False,
    trust: Sequence[str] = (),
    **options: Any,
) -> Run:
    """Train and iterate over its reports: ``for report in eq.train("CartPole-v1"): ...``.

    ``options`` are those of ``program``. The run directory is ``run.directory``; ``run.close()`` after leaving the loop early
    stops the run, saves it and writes the summary. ``init_from`` is a run, or
    one of its checkpoints, whose weights are the first ones; with ``init_what`` "learner" the optimisers, target networks,
    statistics and the share of the schedule go on from there, too, and versions are counted from 0 again.
    ``tensorboard``: are event files written; ``wandb``: a Weights & Biases project that the run reports to as well.
    ``inference``: "local", "central", or "auto", which measures both for some seconds and says so to ``tell``; ``learners``:
    how many there are, or "auto", which measures 1, 2, 4, ... of them. ``cluster``: with ``on="ray"``, its settings by name:
    ``{"address": "auto", "home_actors": 0}`` (docs/cluster.md).

    ``out`` may be a URL (``s3://...``): the run then lies in runs/ and is copied to the URL as it goes on (docs/remote.md).
    ``or_resume``: go on with the run that is at ``out``, where there is one of the same program.
    """
    asked: AskedInference | None = None if inference is None else convert(inference, AskedInference, "inference")
    said = {"inference": asked, "learners": learners}
    auto = [name for name, value in said.items() if value == "auto"]
    options |= {name: value for name, value in said.items() if value not in (None, "auto")}
    besides = [*(["algorithm"] if algorithm is not None else []), *sorted(options)]
    if isinstance(env, Program) and besides:
        raise TypeError(f"a Program says everything itself; got {', '.join(besides)} besides")
    if isinstance(env, Program):
        made = env
    else:
        made = (measurable if asked == "auto" else program)(env, algorithm, **options)
        given = [*options, *(key for key, _ in pairs(options.get("settings", ())))]
        made, sizes = fitted(made, given, recipe=options.get("recipe", True))
        if sizes:
            tell(sizes)
    what: InitWhat = convert(init_what, InitWhat, "init_what")
    if init_from is None and what != "weights":
        raise ValueError(f"init_what={what}: expected init_from, the run or checkpoint that it is taken from, got none")
    weights = None if init_from is None else weights_of(init_from, whole=what == "learner")
    if weights is not None and what == "learner" and made.schedule.schedule_steps is None:
        made = alter(made, schedule_steps=checkpoint.read_meta(weights).get("schedule_steps"))
    chosen: dict[str, Any] = {}
    for setting in auto:
        made, record = choose(made, setting, on=on, tell=tell)
        chosen |= record
    url = out if is_url(out) else None
    if or_resume and out is None:
        raise ValueError("or_resume: expected out, the directory or URL where the run may be, got none")
    if out is not None and (there(url) if url is not None else (Path(out).expanduser() / RUN).is_file()):
        if or_resume:
            return resume(out, on=on, trust=trust, cluster=cluster, same=made)
        if url is not None:
            raise FileExistsError(f"{url}: expected no run there, got one; --or-resume goes on with it")
    chosen |= {} if url is None else {"mirror": url}
    nodes = connected(on, cluster or {})
    with _disconnected(nodes):
        return Run(
            made,
            on=on,
            out=None if out is None or url is not None else Path(out),
            weights=weights,
            learner=what == "learner",
            tensorboard=tensorboard,
            wandb=wandb,
            chosen=chosen,
            nodes=nodes,
        )


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
    **fields: Any,
) -> Run:
    """Go on with a run from its newest whole checkpoint; iterate over it as over ``train``.

    ``fields`` are settings by the names of their options and ``settings`` texts like
    ``"algorithm.entropy=0"`` that are to change: ``steps`` and ``stop_at`` extend a run that has ended (its schedules keep the
    length that they had). What the saved state would not fit is refused.

    ``trust``: modules and ``module:callable`` that a run from elsewhere may import. ``cluster``: as for ``train``; what is not
    said stays as it was.
    ``directory`` may be a URL; ``same``: the program that the run must have.
    Raises ``NothingToDo`` where the run is complete already.
    """
    url = directory if is_url(directory) else None
    run = RunDirectory.open(directory if url is None else fetch(url), trusted=trust)
    if same is not None and (other := differences(run.program, same)):
        said = ", ".join(f"{key} {was!r} (now {now!r})" for key, (was, now) in list(other.items())[:3])
        raise ValueError(f"{directory}: expected a run of the same program to go on with, got one with {said}")
    given = read_fields({key: value for key, value in fields.items() if value is not None}, run.program)
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
        raise NothingToDo(f"{run.path} is solved: nothing to do; --stop-at RETURN or more --steps goes on")
    if given.get("steps", at) < at:
        raise ValueError(f"{run.path}: steps: expected more than the {at:,} that are done, got {given['steps']:,}")
    if at >= made.schedule.steps and summary is not None:  # without one it was killed between its last step and its last word
        raise NothingToDo(f"{run.path} is complete at step {at:,}: nothing to do; --steps N beyond {at} goes on")
    where = on or run.run["on"]
    before = run.run.get(CLUSTER, {}) if where == "ray" else {}
    nodes = connected(where, {**before, **(cluster or {})})
    with _disconnected(nodes):
        going = Run(made, on=where, resume=run, source=source, nodes=nodes)
        if url is not None:  # a URL that only the fetched run.json names is not written to
            run.mirror = Mirror(run.path, url)
        return going
