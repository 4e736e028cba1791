"""The quiescent cut: the run holds still between two versions, every worker writes its state, and
the run goes on.

The learner withholds the batch that it has just learned from (``Gate``), so no slot becomes free
and every actor ends up BLOCKED between two unrolls. Then the other workers write their files, then
the learner its own and the queue's, then the driver completes the checkpoint and releases the
learner. At ``max_lag=0`` a run with cuts computes the same as one without.

A worker that keeps a replay's rows only takes copies of what is small: its files, and the rows, are
written while the run goes on (``experience/replay/journal.py``), and the checkpoint is completed
after that. Until then there is no other cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from equipoise.publishing import publish
from equipoise.record import checkpoint
from equipoise.record.checkpoint import Entry
from equipoise.runtime.messages import Cut, Saved, Written
from equipoise.runtime.workerfiles import word
from equipoise.types import Array
from equipoise.workers.kind import Member


class Gate:
    """After a version: is its batch withheld? It closes every ``every`` versions (0: never by
    itself), at the last one, and when the driver asks; and at a version that is ``due`` to be
    evaluated, until the driver has its weights.
    """

    def __init__(
        self,
        words: Mapping[str, Array],
        *,
        every: int,
        last: int,
        announce: Callable[[int], None],
        round_: int = 1,
        due: Callable[[int], bool] = lambda version: False,
        offer: Callable[[int], None] = lambda version: None,
    ) -> None:
        """``words``: the board's counters; ``announce``: called with the version once per cut;
        ``round_``: a cut comes after a multiple of this number of versions, when all written rows
        have been learned from. ``offer``: called once with each version that is ``due``.
        """
        self._due, self._offer, self._offered = due, offer, -1
        self._words, self._every, self._last, self._announce = words, every, last, announce
        self._round = round_
        self._passed = -1  # the version whose cut is over
        # a cut became due while the files of the previous one were being written
        self._late = False

    def __call__(self, version: int) -> bool:
        words = self._words
        if words["begun"][0] > words["released"][0]:
            return True
        if self._due(version) and words["examined"][0] < version:
            if self._offered != version:
                self._offered = version
                self._offer(version)
            return True
        if version == self._passed or version % self._round:
            return False
        self._late |= version >= self._last or (self._every > 0 and version % self._every == 0)
        if not self._late and words["asked"][0] <= words["begun"][0]:
            return False
        if words["begun"][0] > words["closed"][0]:
            return version >= self._last
        self._passed, self._late = version, False
        publish(words["begun"], 0, words["begun"][0] + 1)
        self._announce(version)
        return True


@dataclass(slots=True, kw_only=True)
class _Cutting:
    """A cut under way."""

    number: int
    step: int
    version: int
    # workers whose files are not written; empty once the cut is complete or given up
    missing: set[str]
    files: dict[str, Entry] = field(default_factory=dict)
    error: str | None = None
    late: set[str] = field(default_factory=set)  # workers that write on, from then on
    written: dict[str, Written] = field(default_factory=dict)  # the reports of the finished workers

    def give_up(self, error: str) -> None:
        self.error, self.missing = error, set()

    def result(self) -> Cut:
        # late writes of a cut that was given up are lost
        more = bool(self.late) and self.error is None
        return Cut(
            step=self.step, version=self.version, files=self.files, error=self.error, more=more
        )

    def rest(self) -> Cut | None:
        """The second part of the cut, once all late writes are done."""
        if not self.late <= self.written.keys():
            return None
        said = list(self.written.values())
        return Cut(
            step=self.step,
            version=self.version,
            late=True,
            files={name: entry for one in said for name, entry in one.files.items()},
            segments={name: entry for one in said for name, entry in one.segments.items()},
            error=next((one.error for one in said if one.error is not None), None),
        )


class CutCoordinator:
    """The order of saving in a cut, and its outcome. The inputs are the workers' messages; no
    runtime is used.

    One cut at a time: ``hold`` asks for it; ``begun`` comes from the learner; ``saved`` from every
    worker, workers that hold other workers still last; ``ready`` gives the cut, which the driver
    answers with ``release``; ``written`` comes later from workers with more to write, and makes a
    second, late cut ready.
    """

    def __init__(
        self,
        words: Mapping[str, Array],
        members: Sequence[Member],
        *,
        directory: Path,
        steps: Callable[[int], int],
        wake: Callable[[Sequence[str]], object] = lambda titles: None,
    ) -> None:
        """``words``: the counters that workers read (``board.py``); ``steps`` of a version, which
        name the checkpoint; ``wake`` is called with the titles of workers that are to look at the
        counters.
        """
        self._words, self._directory, self._steps, self.wake = words, directory, steps, wake
        self._first = [member.title for member in members if word(member) == "save"]
        self._last = [member.title for member in members if word(member) == "save_last"]
        self._cutting: _Cutting | None = None
        self._writing: _Cutting | None = None  # whose rest is written

    @property
    def under_way(self) -> bool:
        return self._cutting is not None

    def hold(self) -> None:
        """Ask for a cut after the next version."""
        publish(self._words["asked"], 0, self._words["begun"][0] + 1)

    def examined(self, version: int) -> None:
        """The driver has the weights of this version, which is due to be evaluated: the learner
        goes on.
        """
        publish(self._words["examined"], 0, version)
        self.wake(self._last)

    def begun(self, version: int, *, obstacle: str | None = None) -> None:
        """The learner holds still: the other workers save first. ``obstacle``: why there can be no
        cut now.
        """
        step, number = self._steps(version), int(self._words["begun"][0])
        self._cutting = cutting = _Cutting(
            number=number, step=step, version=version, missing={*self._first, *self._last}
        )
        if obstacle is not None:
            cutting.give_up(obstacle)
            return
        try:
            checkpoint.begin(self._directory, step)
        except OSError as error:
            cutting.give_up(str(error))
            return
        publish(self._words["step"], 0, step)
        self._let("save" if self._first else "save_last", number)

    def _let(self, counter: str, number: int) -> None:
        """Let the workers save that look at this counter."""
        publish(self._words[counter], 0, number)
        self.wake(self._first if counter == "save" else self._last)

    def saved(self, title: str, said: Saved) -> None:
        cutting = self._cutting
        # Given up before this worker was ready: its message must not be counted, least of all for
        # the next cut.
        if cutting is None or said.cut != cutting.number or title not in cutting.missing:
            return
        cutting.missing.discard(title)
        cutting.files |= said.files
        if said.more:
            cutting.late.add(title)
        cutting.error = cutting.error or said.error
        # it is their turn, unless there is no use
        if cutting.missing == set(self._last) and self._first:
            if cutting.error is not None:
                cutting.give_up(cutting.error)
            else:
                self._let("save_last", cutting.number)

    def written(self, title: str, said: Written) -> None:
        """Take in the rest of a worker's files, for the cut under way or the one before; not for
        one given up.
        """
        for cut in (self._cutting, self._writing):
            if cut is not None and said.cut == cut.number:
                cut.written[title] = said

    def lost(self, title: str, how: str) -> None:
        """A worker is dead: it writes no more."""
        if self._cutting is not None:
            self._cutting.give_up(f"{title} {how} meanwhile")
        if (writing := self._writing) is not None and title in writing.late:
            writing.written.setdefault(
                title, Written(cut=writing.number, error=f"{title} {how} meanwhile")
            )

    def ready(self) -> list[Cut]:
        """The cuts for the driver: a cut that is complete or given up, the rest of the one before,
        or nothing.
        """
        out = []
        if (cutting := self._cutting) is not None and not cutting.missing:
            out.append(cutting.result())
            self._cutting, self._writing = None, cutting if out[0].more else self._writing
        if (writing := self._writing) is not None and (rest := writing.rest()) is not None:
            out.append(rest)
            self._writing = None
        return out

    def release(self, cut: Cut) -> None:
        """The cut is complete, given up, or to be completed by a later one: the learner goes on."""
        words = self._words
        publish(words["released"], 0, words["begun"][0])
        if not cut.more:
            publish(words["closed"], 0, words["begun"][0])
        self.wake(self._last)
