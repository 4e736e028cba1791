"""How fast a run would be with other settings: ``whatif``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Unpack

from equipoise.api.options import Fields, expanded
from equipoise.balance.calibrate import changed
from equipoise.balance.model import predict
from equipoise.balance.remedies import Prediction, bound, remedies, remedy
from equipoise.console.options import flags
from equipoise.hints import hint
from equipoise.programs.program import differences
from equipoise.programs.refusals import check
from equipoise.programs.settings import apply_settings, pairs
from equipoise.record.directory import RunDirectory
from equipoise.record.measured import measured
from equipoise.types import Program, learning

__all__ = ["Prediction", "whatif"]


@expanded(Fields)
def whatif(
    directory: str | os.PathLike[str], *, trust: Sequence[str] = (), **options: Unpack[Fields]
) -> Prediction:
    """Predict the speed and the lag of a run with other settings, from what its workers measured.

    A batch that does not fit other ``actors`` or ``envs_per_actor`` becomes one unroll of every
    stream, as in ``train``.

    Args:
        directory: A run that was trained with ``on="process"``.
        trust: Modules and ``module:callable`` that a run from elsewhere may import.
        options: Settings that change, as for ``train``; without any, suggestions are predicted.

    Returns:
        The prediction: ``prediction.change``, or ``prediction.remedies`` without changes.

    Raises:
        ValueError: The run measured too little, the settings cannot be, or the model does not
            cover one of them.

    Example:
        >>> eq.whatif("runs/NAME", actors=4).change.gain  # doctest: +SKIP
        1.7
    """
    settings = options.get("settings", ())
    given = {name: value for name, value in options.items() if name != "settings"}
    run = RunDirectory.open(Path(directory), trusted=trust)
    known = measured(run)
    asked = dict(
        [
            *(_setting(name, value) for name, value in given.items() if value is not None),
            *pairs(settings),
        ]
    )
    program = _with_batch(known.program, apply_settings(known.program, asked), asked)
    check(program)
    changes = {key: (was, now) for key, (was, now) in differences(known.program, program).items()}
    if not changes:
        found = remedies(known, allowed=check)
        return Prediction(
            measured=known.measured,
            now=known.outcome,
            asked=None,
            change=None,
            changes={},
            remedies=found,
        )
    asked_for = predict(changed(known, program))
    return Prediction(
        measured=known.measured,
        now=known.outcome,
        asked=asked_for,
        changes=changes,
        remedies=(),
        change=remedy(known, "", "", asked_for, most=bound(known, program)),
    )


def _with_batch(was: Program, now: Program, asked: Collection[str]) -> Program:
    """The program with a batch of one unroll of every stream, where the run's does not fit other
    actors or envs, as ``train`` has it; a batch that is asked for stays.
    """
    place = now.placement
    streams, before = (one.placement.actors * one.placement.envs_per_actor for one in (now, was))
    if streams == before or any(key.rpartition(".")[2] == "batch" for key in asked):
        return now
    room = float("inf") if place.max_lag is None else place.max_lag + 1
    policies = {
        name: dataclasses.replace(policy, batch=streams)
        for name, policy in learning(now).items()
        if policy.replay is None
        and (policy.batch % place.envs_per_actor or streams > policy.batch * room)
    }
    return dataclasses.replace(now, policies={**now.policies, **policies})


def _setting(name: str, value: object) -> tuple[str, object]:
    known = {option.replace("-", "_"): key for option, (_, key) in flags().items()}
    if name not in known:
        raise ValueError(f"whatif: unknown option {name!r}{hint(name, known)}")
    return known[name], value
