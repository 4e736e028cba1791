"""The quiescent cut: the run holds still between two versions, every worker writes its state, and the run goes on.

The learner withholds the batch that it has just learned from (``Gate``), so no slot becomes free and every actor ends up
BLOCKED between two unrolls. Then the actors write their files, then the learner its own and the queue's, then the driver
completes the checkpoint and releases the learner. At ``max_lag=0`` a run with cuts computes the same as one without.

Whoever keeps a replay's rows, the learner or the shards, only takes copies of what is small: its files, and the rows, are
written while the run goes on (``experience/journal.py``), and the checkpoint is completed after that. Until then there is no
other cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.actors.central import InferenceWorker
from equipoise.actors.stepper import EnvWorker
from equipoise.actors.worker import ActorWorker
from equipoise.experience.journal import Journal
from equipoise.experience.offline import Offline
from equipoise.experience.replay import Replay
from equipoise.experience.shard import Shard
from equipoise.experience.sharded import Sharded
from equipoise.learners.worker import LearnerWorker
from equipoise.runtime import checkpoint, statefile, stepping
from equipoise.runtime.checkpoint import (
    EXPERIENCE,
    LEARNER,
    WEIGHTS,
    Entry,
    Source,
    actor_file,
    inference_file,
    shard_file,
)
from equipoise.runtime.errors import CannotResume, Damaged
from equipoise.types import Worker


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

    With ``more`` others are written meanwhile; they come as a second one (``late``), which completes the checkpoint.
    """

    step: int
    version: int
    files: dict[str, Entry] = field(default_factory=dict)
    segments: dict[str, Entry] = field(default_factory=dict)
    error: str | None = None
    more: bool = False
    late: bool = False


def together(cut: Cut, written: Sequence[Mapping[str, Any]]) -> Cut:
    """What completes a cut: all that was written of it while the run went on (``saved``)."""
    files = {name: entry for said in written for name, entry in said.get("files", {}).items()}
    segments = {name: entry for said in written for name, entry in said.get("segments", {}).items()}
    error = next((said["error"] for said in written if "error" in said), None)
    return Cut(step=cut.step, version=cut.version, late=True, files=files, segments=segments, error=error)


def save_worker(place: Path, worker: Worker, index: int, queue: Any) -> dict[str, Entry] | None:
    """Write a worker's files into the checkpoint that is aside -> their entries for the manifest; None: see ``saved``.

    ``index``: of an actor or an inference worker.
    """
    if isinstance(worker, EnvWorker):
        return stepping.save(place, index, worker)
    if isinstance(worker, ActorWorker | InferenceWorker):
        name = actor_file(index) if isinstance(worker, ActorWorker) else inference_file(index)
        return checkpoint.add(place, name, statefile.dump(worker.state()))
    if isinstance(worker, Shard):
        (store,) = _stores(worker)
        _save_rows(place, store, dict)
        return None
    assert isinstance(worker, LearnerWorker)
    made = {
        LEARNER: statefile.dump(worker.state()),
        EXPERIENCE: statefile.dump(queue.state()),
        WEIGHTS: checkpoint.weights_bytes(worker.params()),
    }

    def write() -> dict[str, Entry]:
        return {name: entry for file, data in made.items() for name, entry in checkpoint.add(place, file, data).items()}

    for name, line in worker.lines.items():
        if isinstance(line.experience, Sharded | Offline):  # what is drawn next: the rows are the shards', or the data set's
            made[checkpoint.replay_file(name, worker.lines)] = statefile.dump(line.experience.state())
    stores = _stores(worker)
    for i, store in enumerate(stores):
        _save_rows(place, store, write if i == 0 else dict)
    return None if stores else write()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    """Rows that a worker keeps, which are saved while it goes on."""

    kept: Shard | Replay
    journal: Journal
    file: str  # of what is not rows
    folder: str  # of the segments, among those of the run; "" or with a slash at its end


def _stores(worker: Worker) -> list[_Store]:
    if isinstance(worker, Shard):
        assert worker.store.journal is not None
        name = checkpoint.shard_name(worker.index)
        return [_Store(kept=worker, journal=worker.store.journal, file=shard_file(worker.index), folder=f"{name}/")]
    found: list[_Store] = []
    if not isinstance(worker, LearnerWorker):
        return found
    for name, line in worker.lines.items():
        if isinstance(line.experience, Replay):
            assert line.experience.journal is not None
            room = checkpoint.replay_room(name, worker.lines)
            found.append(
                _Store(
                    kept=line.experience, journal=line.experience.journal, folder=f"{room}/" if room else "",
                    file=checkpoint.replay_file(name, worker.lines),
                )
            )  # fmt: skip
    return found


def _save_rows(place: Path, store: _Store, write: Callable[[], dict[str, Entry]]) -> None:
    """Begin to save a store; ``write`` writes what else there is."""
    state = store.kept.state()
    store.journal.begin(
        lambda chunks: write() | checkpoint.add(place, store.file, statefile.dump({"replay": state, "chunks": chunks}))
    )


def saved(worker: Worker) -> dict[str, Any] | None:
    """What became of the files that ``save_worker`` left to be written while the worker goes on, once: fields of a ``Cut``."""
    stores = _stores(worker)
    if any(store.journal.writes for store in stores):
        return None
    files, segments = dict[str, Entry](), dict[str, Entry]()
    for store, end in [(store, end) for store in stores if (end := store.journal.poll()) is not None]:
        if end.error is not None:
            return {"error": f"{type(end.error).__name__}: {end.error}"}
        files |= end.result
        segments |= {store.folder + name: entry for name, entry in end.segments.items()}
    return {"files": files, "segments": segments} if files else None


def journals_of(worker: Worker) -> list[Journal]:
    """The journals of the replays that a worker keeps."""
    return [store.journal for store in _stores(worker)]


def restored(name: str, worker: Worker) -> str | None:
    """What became of an actor's envs, for a person; None of others, and of envs that do not say."""
    envs = worker.envs if isinstance(worker, EnvWorker) else [worker.env] if isinstance(worker, ActorWorker) else []
    return stepping.restored(name, envs) if envs else None


def load_worker(source: Source, worker: Worker, index: int) -> None:
    """The inverse, of one worker that was just built; the queue and the weights are the driver's to load."""
    name = LEARNER
    try:
        if not isinstance(worker, Shard):
            if not isinstance(worker, LearnerWorker):
                name = inference_file(index) if isinstance(worker, InferenceWorker) else actor_file(index)
            worker.load(statefile.parse(source.read(name), source.path / name))
        lines = worker.lines if isinstance(worker, LearnerWorker) else {}
        for policy, line in lines.items():
            if isinstance(line.experience, Sharded | Offline):
                name = checkpoint.replay_file(policy, lines)
                line.experience.load(statefile.parse(source.read(name), source.path / name))
        for store in _stores(worker):
            name = store.file
            _load_rows(source, store)
    except Damaged:
        raise
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CannotResume.of(source.path / name, error) from error


def _load_rows(source: Source, store: _Store) -> None:
    state, folder = statefile.parse(source.read(store.file), source.path / store.file), store.folder
    store.kept.load(state["replay"])
    mine = {name.removeprefix(folder): entry for name, entry in source.segments.items() if name.startswith(folder)}
    store.journal.load(state["chunks"], mine, lambda name: source.read_segment(folder + name))
