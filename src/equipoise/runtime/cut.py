"""The quiescent cut: the run holds still between two versions, every worker writes its state, and the run goes on.

The learner withholds the batch that it has just learned from (``Gate``), so no slot becomes free and every actor ends up
BLOCKED between two unrolls. Then the actors write their files, then the learner its own and the queue's, then the driver
completes the checkpoint and releases the learner. At ``max_lag=0`` a run with cuts computes the same as one without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.actors.worker import ActorWorker
from equipoise.experience.offline import Offline
from equipoise.experience.replay import Replay
from equipoise.learners.worker import LearnerWorker
from equipoise.runtime import checkpoint, statefile
from equipoise.runtime.checkpoint import EXPERIENCE, LEARNER, REPLAY, WEIGHTS, Entry, actor_file
from equipoise.types import Experience, Worker


class CannotResume(ValueError):
    """A saved state that does not fit: to begin anew in silence would lose it."""


class Gate:
    """After a version: is its batch withheld? It closes every ``every`` versions (0: never by itself), at the last one,
    and when the driver asks.
    """

    def __init__(self, words: Any, *, every: int, last: int, announce: Callable[[int], None], round_: int = 1) -> None:
        """``words``: the board's counters; ``announce``: called with the version once per cut; ``round_``: a cut comes after a
        multiple of so many versions, when nothing of what the actors wrote is still to be learned from.
        """
        self._words, self._every, self._last, self._announce, self._round = words, every, last, announce, round_
        self._passed = -1  # the version whose cut is over

    def __call__(self, version: int) -> bool:
        words = self._words
        if words["begun"][0] > words["released"][0]:
            return True
        if version == self._passed or version % self._round:
            return False
        due = version >= self._last or (self._every > 0 and version % self._every == 0)
        if not due and words["asked"][0] <= words["begun"][0]:
            return False
        self._passed = version
        words["begun"][0] += 1
        self._announce(version)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A cut whose files are written: the driver completes it and lets the run go on. ``error``: why it could not be written."""

    step: int
    version: int
    files: dict[str, Entry]
    error: str | None = None


def save_worker(place: Path, worker: Worker, index: int, experience: Experience) -> dict[str, Entry]:
    """Write the files of one worker into the checkpoint that is aside -> their entries for the manifest."""
    if isinstance(worker, LearnerWorker):
        return {
            **checkpoint.add(place, LEARNER, statefile.dump(worker.state())),
            **checkpoint.add(place, EXPERIENCE, statefile.dump(experience.state())),
            **_replay(place, worker.experience),
            **checkpoint.add(place, WEIGHTS, checkpoint.weights_bytes(worker.params())),
        }
    assert isinstance(worker, ActorWorker)
    return checkpoint.add(place, actor_file(index), statefile.dump(worker.state()))


def _replay(place: Path, experience: Experience) -> dict[str, Entry]:
    """The rows that a replay keeps, besides its queue; of a data set only what is drawn next."""
    if not isinstance(experience, Replay | Offline):
        return {}
    return checkpoint.add(place, REPLAY, statefile.dump(experience.state()))


def restored(name: str, worker: Worker) -> str | None:
    """What became of an actor's envs, for a person; None of a learner, and of envs that do not say."""
    if not isinstance(worker, ActorWorker) or not (counts := worker.env.resumed):
        return None
    said = f"{name}: {counts['exact']} envs exactly as they were, {counts['replay']} brought back by replay, "
    said += f"{counts['restart']} begin a new episode"
    return said + "".join(f" (stream {stream}: {why})" for stream, why in list(worker.env.restarts.items())[:1])


def load_worker(source: Path, worker: Worker, index: int) -> None:
    """The inverse, of one worker that was just built; the queue and the weights are the driver's to load."""
    name = LEARNER if isinstance(worker, LearnerWorker) else actor_file(index)
    try:
        worker.load(statefile.parse(checkpoint.read(source, name)))
        if isinstance(worker, LearnerWorker) and isinstance(worker.experience, Replay | Offline):
            name = REPLAY
            worker.experience.load(statefile.parse(checkpoint.read(source, name)))
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CannotResume(f"{source / name}: this run cannot go on from it: {type(error).__name__}: {error}") from error
