"""The quiescent cut: the run holds still between two versions, every worker writes its state, and the run goes on.

The learner withholds the batch that it has just learned from (``Gate``), so no slot becomes free and every actor ends up
BLOCKED between two unrolls. Then the actors write their files, then the learner its own and the queue's, then the driver
completes the checkpoint and releases the learner. At ``max_lag=0`` a run with cuts computes the same as one without.

Where there is a replay the learner only takes copies of what is small: its files, and the rows, are written while the run goes
on (``experience/journal.py``), and the checkpoint is completed after that. Until then there is no other cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.actors.worker import ActorWorker
from equipoise.experience.journal import Journal
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
        self._late = False  # one was due while the files of the last were being written

    def __call__(self, version: int) -> bool:
        words = self._words
        if words["begun"][0] > words["released"][0]:
            return True
        if version == self._passed or version % self._round:
            return False
        self._late |= version >= self._last or (self._every > 0 and version % self._every == 0)
        if not self._late and words["asked"][0] <= words["begun"][0]:
            return False
        if words["begun"][0] > words["closed"][0]:
            return version >= self._last
        self._passed, self._late = version, False
        words["begun"][0] += 1
        self._announce(version)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A cut: the run holds still and these files are written. ``error``: why they could not be.

    With ``more`` the learner's are written meanwhile; they come as a second one (``late``), which completes the checkpoint.
    """

    step: int
    version: int
    files: dict[str, Entry] = field(default_factory=dict)
    segments: dict[str, Entry] = field(default_factory=dict)
    error: str | None = None
    more: bool = False
    late: bool = False


def save_worker(place: Path, worker: Worker, index: int, experience: Experience) -> dict[str, Entry] | None:
    """Write a worker's files into the checkpoint that is aside -> their entries for the manifest; None: see ``saved``."""
    if isinstance(worker, ActorWorker):
        return checkpoint.add(place, actor_file(index), statefile.dump(worker.state()))
    assert isinstance(worker, LearnerWorker)
    made = {
        LEARNER: statefile.dump(worker.state()),
        EXPERIENCE: statefile.dump(experience.state()),
        WEIGHTS: checkpoint.weights_bytes(worker.params()),
    }

    def write() -> dict[str, Entry]:
        return {name: entry for file, data in made.items() for name, entry in checkpoint.add(place, file, data).items()}

    replay = worker.experience
    if isinstance(replay, Offline):
        made[REPLAY] = statefile.dump(replay.state())  # what is drawn next: the rows are the data set's
    if not isinstance(replay, Replay):
        return write()
    state = replay.state()
    journal_of(worker).begin(
        lambda chunks: write() | checkpoint.add(place, REPLAY, statefile.dump({"replay": state, "chunks": chunks}))
    )
    return None


def saved(worker: Worker) -> dict[str, Any] | None:
    """What became of the files that ``save_worker`` left to be written while the learner goes on, once: fields of a ``Cut``."""
    assert isinstance(worker, LearnerWorker)
    if (end := journal_of(worker).poll()) is None:
        return None
    if end.error is not None:
        return {"error": f"{type(end.error).__name__}: {end.error}"}
    return {"files": end.result, "segments": end.segments}


def journal_of(worker: LearnerWorker) -> Journal:
    """Of one with a replay."""
    assert isinstance(worker.experience, Replay) and worker.experience.journal is not None
    return worker.experience.journal


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
        experience = worker.experience if isinstance(worker, LearnerWorker) else None
        if isinstance(experience, Replay | Offline):
            name = REPLAY
            state = statefile.parse(checkpoint.read(source, name))
            if isinstance(experience, Offline):
                experience.load(state)
                return
            assert isinstance(worker, LearnerWorker)
            experience.load(state["replay"])
            segments = checkpoint.segments(source)
            journal_of(worker).load(state["chunks"], segments, lambda name: checkpoint.read_segment(source, name))
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CannotResume(f"{source / name}: this run cannot go on from it: {type(error).__name__}: {error}") from error
