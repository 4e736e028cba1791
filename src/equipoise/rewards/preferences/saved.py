"""The memory of the guard in a checkpoint."""

from __future__ import annotations

from dataclasses import astuple, fields

import numpy as np

from equipoise.rewards.preferences.guard import Signs, State
from equipoise.schema import Array, Flag, count
from equipoise.types import Tree

SIGNS = len(fields(Signs))
SAVED = {  # the schema
    "look": count(),
    "recent": Array((None, SIGNS), "float64"),
    "unanswered": count(),
    "pulled": Array((None,), "int64"),
    "stopped": Flag(),
}


def saved(state: State) -> Tree:
    """Return a state as arrays and numbers."""
    recent = [astuple(one) for one in state.recent]
    return {
        "look": state.look,
        "recent": np.array(recent, np.float64).reshape(-1, SIGNS),
        "unanswered": state.unanswered,
        "pulled": np.array(state.pulled, np.int64),
        "stopped": state.stopped,
    }


def loaded(state: Tree) -> State:
    """Return the state that ``saved`` returned, once it fits the schema."""
    return State(
        look=state["look"],
        recent=tuple(_signs(one) for one in state["recent"].tolist()),
        unanswered=state["unanswered"],
        pulled=tuple(state["pulled"].tolist()),
        stopped=state["stopped"],
    )


def _signs(values: list[float]) -> Signs:
    """Return signs from their numbers in the order of the fields."""
    answers, accuracy, expected, compared, win_answers, win_model, ours, labelled, kl = values
    return Signs(
        answers=int(answers),
        accuracy=accuracy,
        expected=expected,
        compared=int(compared),
        win_answers=win_answers,
        win_model=win_model,
        deviation=ours,
        deviation_labelled=labelled,
        kl=kl,
    )
