"""A run that learns from calls of agents, and begins with another run's policy or a model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from equipoise.api.options import ResumeOptions, RunOptions
from equipoise.api.programs import program
from equipoise.api.training import begun, resumed
from equipoise.programs.settings import apply_settings
from equipoise.record.directory import RunDirectory
from equipoise.record.paths import RUN
from equipoise.run.run import Run
from equipoise.sources.source import task_of
from equipoise.sources.text import texts_of
from equipoise.types import (
    PROXY,
    CallSource,
    On,
    Program,
    TaskSource,
    learning,
)

# settings of a task that a run of calls does not take over
OWN = (
    "task", "arguments", "reward", "reward_weights", "gold", "stop", "engine", "turns", "scorers",
    "history",
)  # fmt: skip


def proxy(
    of: str | os.PathLike[str],
    *,
    at: str | None = None,
    steps: int | None = None,
    out: str | os.PathLike[str] | None = None,
    settings: Sequence[str] = (),
    on: On | None = None,
    trust: Sequence[str] = (),
) -> Run:
    """Start a run that answers the calls of agents, and learns from them.

    It begins with the policy of a run on text, and has the run's algorithm if that learns from
    rewards, or else GRPO. A run of calls goes on.

    Args:
        of: A run, or a model as for ``model``: a directory or a hub id.
        at: PORT or HOST:PORT to listen at (default: 8000 on this machine, or the run's own).
        steps: Conversations to learn from (default: a million, or the run's own).
        out: The new run's directory.
        settings: Further settings, as ``KEY=VALUE``.
        on: The runtime.
        trust: Modules and ``module:callable`` that a run from elsewhere may import.

    Returns:
        The run, an iterator over its reports, as of ``start``.

    Raises:
        ValueError: A setting cannot be, or the run is none on text.
        OSError: The address is taken.

    Example:
        >>> eq.proxy("nothing")
        Traceback (most recent call last):
        ValueError: --model: expected a directory with config.json, ...
    """
    return answering(of, at, steps, settings, options_of(out, on, trust))


def answering(
    of: str | os.PathLike[str],
    at: str | None,
    steps: int | None,
    settings: Sequence[str],
    options: RunOptions,
    tell: Callable[[str], object] = lambda text: None,
) -> Run:
    """Start the run of ``proxy``. ``options``: its other arguments; ``tell``: called with sentences
    on what was chosen.
    """
    out, trust = options.get("out"), options.get("trust", ())
    place, given = Path(of).expanduser(), [one.partition("=")[::2] for one in settings]
    changes = {key.strip(): value for key, value in given}
    task = f"{PROXY}{at or 8000}"
    if not (place / RUN).is_file():
        made = program(task, "grpo", model=str(of), settings=settings, steps=steps or 1_000_000)
        return begun(made, None, options, tell=tell)
    was = RunDirectory.open(place, trusted=trust).program
    if isinstance(was.source, CallSource):
        if at is not None or out is not None:
            name = "at" if at is not None else "out"
            raise ValueError(
                f"{name}: must be left out with {of}, which learns from calls and goes on at "
                f"{was.source.task} in its directory, got {at or out}"
            )
        more: dict[str, object] = {"settings": list(settings), "trust": trust}
        more |= {"on": options["on"]} if "on" in options else {}
        more |= {} if steps is None else {"steps": steps}
        return resumed(place, cast(ResumeOptions, more), tell=tell)
    if (source := task_of(was)) is None:
        raise ValueError(
            f"{of}: must be a run on text, got one of {was.name}; try a run of grpo or sft"
        )
    made = apply_settings(_like(was, source, task, steps), changes)
    return begun(made, None, {**options, "init_from": place}, tell=tell)


def options_of(
    out: str | os.PathLike[str] | None, on: On | None, trust: Sequence[str]
) -> RunOptions:
    """Return the options of a run that are given."""
    found: dict[str, object] = {"out": out, "trust": trust}
    return cast(RunOptions, found | ({} if on is None else {"on": on}))


def _like(was: Program, source: TaskSource, task: str, steps: int | None) -> Program:
    """Return the program of calls with the model, the algorithm and the limits of a run."""
    spec = texts_of(was).text().spec
    fields = {
        one.name: getattr(source, one.name)
        for one in dataclasses.fields(source)
        if one.name not in OWN
    }
    fields |= {"completion_tokens": spec.completion, "prompt_tokens": spec.prompt}
    alphabet = (f"alphabet={spec.alphabet}",) if spec.alphabet else ()
    calls = CallSource(task=task, arguments=alphabet, **fields)
    (policy,) = learning(was).values()
    usual = program(task, "grpo", steps=steps or 1_000_000)
    if policy.algorithm.needs_pairs or not policy.algorithm.reads_rewards:
        return dataclasses.replace(usual, source=calls)
    place = dataclasses.replace(was.placement, actors=1, learners=1, text="apart", auto=())
    if was.placement.text == "together":  # its lag is 0 for that reason alone
        place = dataclasses.replace(place, max_lag=usual.placement.max_lag)
    return dataclasses.replace(
        was,
        source=calls,
        schedule=usual.schedule,
        evaluation=usual.evaluation,
        placement=place,
    )
