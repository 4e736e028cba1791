"""Rewards that workers of their own call, on whatever machine: the settings of a task for them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.language.scoring.functions import RewardFunction, functions
from equipoise.sources.prompts import Text
from equipoise.types import TaskSource

if TYPE_CHECKING:
    from equipoise.language.scoring.remote import RemoteScorer, Scorers
    from equipoise.language.scoring.server import Scoring


def unread(source: TaskSource) -> str:
    """Return the problem of scorers in a run that reads no rewards."""
    return f"source.scorers: must be 0 for an algorithm that reads no rewards, got {source.scorers}"


def scoring(source: TaskSource, text: Text) -> Scoring:
    """Make what the run's scorers are given, with keys of the run; ValueError if it cannot have
    any.
    """
    if not (names := source.reward or text.task.reward):
        raise ValueError(
            "source.scorers: must be 0 for a task whose partner gives all rewards, got "
            f"{source.scorers}; name a reward, or leave it out"
        )
    if find_spec("zmq") is None:
        raise ValueError(
            f"source.scorers: must be 0 without pyzmq, got {source.scorers}; try pip install "
            "'equipoise[ray]'"
        )
    from equipoise.language.scoring.server import Scoring

    return Scoring(
        functions=tuple(functions(names)),
        deadline_s=source.reward_deadline_s,
        workers=source.scorers,
    )


def remote(
    source: TaskSource,
    named: Sequence[RewardFunction],
    scorers: Scorers,
    capsules: Path | None,
) -> RemoteScorer:
    """Return a scorer that asks the run's scorers."""
    from equipoise.language.scoring.remote import RemoteScorer

    return RemoteScorer(
        named,
        scorers,
        deadline_s=source.reward_deadline_s,
        capsules=capsules,
        caution=source.caution,
    )
