"""The replay of a reward's capsule: the function is called again with the samples of then."""

from __future__ import annotations

import select
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.errors import RewardsFailed
from equipoise.language.scoring import capsules
from equipoise.language.scoring.functions import Part, RewardFunction
from equipoise.language.scoring.pool import ProcessScorer

DEADLINE_S = 60.0  # of a function without a deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The rewards of a function then and now."""

    reward: str
    then: str  # the error
    now: str  # the error; "": there is none
    given: Part | None  # the reward that it gives each sample now


def replay(path: Path, trusted: Sequence[str] = ()) -> Replayed:
    """Call a capsule's function again, with the same deadline; ``Untrusted`` if not vouched for."""
    capsule = capsules.read(path, tuple(trusted))
    scorer = ProcessScorer(
        [RewardFunction(capsule.reward)], deadline_s=capsule.deadline_s or DEADLINE_S
    )
    try:
        scorer.submit(0, capsule.samples)
        while not (scored := scorer.poll()):
            select.select(scorer.fds(), [], [], 0.1)
    except RewardsFailed as error:  # its module cannot be imported
        raise ValueError(f"{path}: {error}") from None
    finally:
        scorer.close()
    given = scored[0].parts.get(capsule.reward)
    return Replayed(reward=capsule.reward, then=capsule.error, now=scored[0].cause, given=given)
