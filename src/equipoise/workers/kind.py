"""The Protocol between runtimes and kinds of workers. Nothing here loads torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from equipoise.balance.shares import Shares, Side
from equipoise.clock import Clock
from equipoise.envs.failures.capsule import EnvFailed
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.infos import NoNumber
from equipoise.types import Array, Tree, Worker

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint
    from equipoise.workers.shared import Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of one worker."""

    blueprint: Blueprint
    shared: Shared
    index: int  # the worker's number among those of its kind
    life: int  # how many processes of this worker died after they had begun


# (number, of how many, work): True once all works are done
AtOnce = Callable[[int, int, Callable[[], object]], bool]


class Queue(Protocol):
    """A learner's queue, as far as the driver takes something back."""

    # the owner of these envs is verified dead; its open block counts as dropped
    def cancel(self, streams: Array) -> None: ...
    def orphaned(self) -> None: ...  # the learner is verified dead


class Site(Protocol):
    """The place where a worker runs, and what it may use there. Every runtime has its own."""

    title: str  # the worker's, e.g. "actor 3"
    clock: Clock  # of the parts of this worker's work
    # histograms of the age of what it learns from, by what is counted; {}: it learns nothing
    lags: Mapping[str, Any]
    # the queue of each learner, which rings the workers that may go on; None in a process without
    # torch
    queues: Any

    # from the checkpoint that the run goes on from; False: there is none
    def load(self, worker: Worker) -> bool: ...
    # a call wakes that worker; only for those in ``Kind.wakes``
    def bell(self, title: str) -> Callable[[], object]: ...
    def note(self, text: str) -> None: ...  # tell the person
    # "at work": now and then in a build or a tick that may take minutes
    def pulse(self) -> None: ...
    # what the learner found since its last record
    def record(self, record: Mapping[str, Any]) -> None: ...
    def cut(self) -> int: ...  # the number of the newest cut that workers save for; 0: none
    # the cut under way: (number, step, may learners save now?)
    def cutting(self) -> tuple[int, int, bool] | None: ...
    def board(self, title: str) -> Mapping[str, Any]: ...  # a worker's row of the board, as views
    # what a worker on another machine told its driver
    def relay(self, title: str, message: Mapping[str, Any]) -> None: ...
    # a machine's link is up, or down for a reason
    def linked(self, site: str, how: str) -> None: ...
    def gate(
        self, *, every: int, last: int, round_: int, due: Callable[[int], bool]
    ) -> Callable[[int], bool]: ...  # see runtime/cut.py
    # runs works of workers that take turns in one thread; None: they have processes
    @property
    def at_once(self) -> AtOnce | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is measured of a worker, on its row of the board."""

    kind: str = ""
    parts: tuple[str, ...] = ()  # of its work (``clock.py``)
    lags: bool = False  # histograms of the age of the experience that it uses
    steps: bool = False  # its ticks are steps of envs: many, and alike
    nvtx: bool = False  # profilers are shown its parts


class Kind(ABC):
    """One kind of worker: a name, a place in the ring, and what the runtimes do with workers of it.
    Kinds have no state.

    A subclass sets the fields in which it differs and says ``count`` and ``build``; its instances
    must pickle.
    """

    # worker 3 is "NAME 3" in ps and in reports, and "NAME_3" in checkpoints; letters a to z
    name: ClassVar[str]
    numbered: ClassVar[bool] = True  # False: the first is called NAME, as it may be the only one
    side: ClassVar[Side]  # of the ring
    serves: ClassVar[bool] = False  # acts for envs that workers of another kind step
    # False: its processes are forked from the server that has no torch
    torch: ClassVar[bool] = True
    # of its work, each of which has a row of the board (``clock.py``)
    parts: ClassVar[tuple[str, ...]] = ()
    stands_in: ClassVar[bool] = False  # receives wake-ups meant for workers on other machines
    writes: ClassVar[bool] = False  # reserves blocks of the queue for its ``groups``
    # its workers may be on another machine, all on the same; they get every policy's weights
    movable: ClassVar[bool] = False
    # a replacement loads the state again if the worker before it died without progress
    reloads: ClassVar[bool] = True
    # a replacement would fail in the same way
    final: ClassVar[tuple[type[Exception], ...]] = (EnvFailed, WrongValue, NoNumber)

    @abstractmethod
    def count(self, blue: Blueprint) -> int:
        """How many workers of this kind a run has."""

    @property
    def measured(self) -> Measured:
        """What is measured of a worker of this kind."""
        return Measured(
            kind=self.name,
            parts=self.parts,
            lags=self.side == "learning",
            steps=self.side == "sampling",
        )

    def job(self, blue: Blueprint, shared: Shared, index: int, life: int) -> Any:
        """What ``build`` is given, made by the driver; it must pickle, and without torch where
        ``torch`` is False.
        """
        return Job(blueprint=blue, shared=shared, index=index, life=life)

    @abstractmethod
    def build(self, job: Any, site: Site) -> Worker:
        """Make the worker, where it is to work; ``site.load`` it where the run goes on from a
        checkpoint.
        """

    def memory(self, blue: Blueprint) -> Tree:
        """Specs of memory that the workers of this kind share with the driver:
        ``Shared.own[name].views``, zeros at first.
        """
        return {}

    def progress(self, blue: Blueprint, shared: Shared, index: int) -> int:
        """A count that rises with the worker's progress. It outlives the worker's process."""
        return 0

    def stride(self, blue: Blueprint) -> int:
        """Progress after which a process of this kind counts as working; failures before that count
        as one series.
        """
        return 1

    def experience_files(self, index: int) -> tuple[str, ...]:
        """The files of a checkpoint that the worker writes besides its own,
        without their ending.
        """
        return ()

    def groups(self, blue: Blueprint, index: int) -> range:
        """The groups of envs that the worker steps or acts for."""
        return range(0)

    def held(self, blue: Blueprint) -> int:
        """The most blocks of the queue that a worker writes side by side for one group of envs."""
        return 1

    def lost(self, blue: Blueprint, shared: Shared, queues: Sequence[Queue], index: int) -> str:
        """Take back what a dead worker held. The driver calls it. Returns a sentence about what is
        lost for good, or "".
        """
        return ""

    def vital(self, blue: Blueprint, shared: Shared, index: int) -> bool:
        """Return True if the death of this worker restarts all workers from
        the newest checkpoint.
        """
        return False

    def wakes(self, blue: Blueprint, index: int) -> tuple[str, ...]:
        """Titles of the workers that this one wakes, beside those that the queue wakes. They are
        also woken when it dies.
        """
        return ()

    def threads(self, blue: Blueprint) -> int:
        """Threads of torch."""
        return 1

    def spins(self, blue: Blueprint) -> int:
        """The number of workers that spin before they sleep, including this one; 0: this kind does
        not spin.
        """
        return 0

    def listens(self, worker: Any) -> tuple[int, ...]:
        """File descriptors that wake the worker when they become readable, as its doorbell does."""
        return ()

    def patience(self, worker: Any) -> float | None:
        """Seconds that the worker's next tick may wait; None: until its doorbell rings."""
        return None


@dataclass(frozen=True, slots=True)
class Member:
    """One worker of a run."""

    kind: Kind
    index: int

    @property
    def title(self) -> str:
        """The name in ps, in reports and on the board."""
        return f"{self.kind.name} {self.index}" if self._numbered else self.kind.name

    @property
    def file(self) -> str:
        """The name of its file in a checkpoint, but for the ending."""
        return f"{self.kind.name}_{self.index}" if self._numbered else self.kind.name

    @property
    def files(self) -> tuple[str, ...]:
        """All files of a checkpoint that it writes, but for the rows of a replay."""
        return tuple(
            f"{name}.safetensors" for name in (self.file, *self.kind.experience_files(self.index))
        )

    @property
    def folder(self) -> str:
        """Where its rows lie among those of the run's replay, with a slash at the end unless it is
        empty.
        """
        return f"{self.file}/" if self._numbered else ""

    @property
    def _numbered(self) -> bool:
        return self.kind.numbered or self.index > 0

    def shares(self, seconds: Shares) -> Shares:
        """The worker's seconds, with what a reader has to know of its kind."""
        return replace(seconds, kind=self.kind.name, side=self.kind.side, serves=self.kind.serves)


def stepped(blue: Blueprint, members: Iterable[Member]) -> set[int]:
    """The groups of envs that these workers step or act for."""
    return {group for one in members for group in one.kind.groups(blue, one.index)}


def written(blue: Blueprint, members: Iterable[Member]) -> set[int]:
    """The groups whose rows these workers write."""
    return stepped(blue, (one for one in members if one.kind.writes))


def held_at_once(blue: Blueprint, members: Iterable[Member]) -> int:
    """The most blocks that any of these workers writes side by side for one group of envs."""
    return max((one.kind.held(blue) for one in members if one.kind.writes), default=1)


def crew(blue: Blueprint, kinds: Sequence[Kind]) -> tuple[Member, ...]:
    """All workers of a run, kind by kind; ValueError where two would have one name."""
    members = tuple(Member(kind, index) for kind in kinds for index in range(kind.count(blue)))
    titles = [member.title for member in members]
    for title in titles:
        if titles.count(title) > 1:
            raise ValueError(
                "kinds: expected workers with names of their own, got two that are called "
                f"{title!r}"
            )
    return members
