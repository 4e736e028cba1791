"""How fast a run would be with other settings: ``whatif``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from equipoise.balance.calibrate import changed
from equipoise.balance.model import predict
from equipoise.balance.remedies import Prediction, bound, remedies, remedy
from equipoise.console.options import flags
from equipoise.hints import hint
from equipoise.programs.program import differences
from equipoise.programs.refusals import check
from equipoise.programs.settings import Settings, apply_settings, pairs
from equipoise.record.directory import RunDirectory
from equipoise.record.measured import measured

__all__ = ["Prediction", "whatif"]


def whatif(
    directory: str | os.PathLike[str],
    *,
    settings: Settings = (),
    trust: Sequence[str] = (),
    **options: object,
) -> Prediction:
    """Predict steps/s, lag and shares of a run with other settings, from what its workers measured;
    without any, what helps.

    ``settings`` and ``options`` are as in ``train``. ValueError where the run measured too little,
    the settings cannot be, or the model does not know what one of them does.
    """
    run = RunDirectory.open(Path(directory), trusted=trust)
    known = measured(run)
    asked = dict([*(_setting(name, value) for name, value in options.items()), *pairs(settings)])
    program = apply_settings(known.program, asked)
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


def _setting(name: str, value: object) -> tuple[str, object]:
    known = {option.replace("-", "_"): key for option, (_, key) in flags().items()}
    if name not in known:
        raise ValueError(f"whatif: unknown option {name!r}{hint(name, known)}")
    return known[name], value
