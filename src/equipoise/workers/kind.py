"""The Protocol between runtimes and kinds of workers. Nothing here loads torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from equipoise.balance.shares import Shares, Side
from equipoise.clock import Clock
from equipoise.files import numbered
from equipoise.types import Array, Tree, Worker

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint
    from equipoise.workers.shared import Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of one worker."""

    blueprint: Blueprint
    shared: Shared
    index: int  # the worker's number within its kind
    life: int  # how many processes of this worker died after they had begun


W = TypeVar("W", bound=Worker)

# (number, of how many, work): True once all works are done
AtOnce = Callable[[int, int, Callable[[], object]], bool]


class Queue(Protocol):
    """A learner's queue, as far as the driver takes something back."""

    # the owner of these envs is verified dead; its open block counts as dropped
    def cancel(self, streams: Array) -> None: ...
    def orphaned(self) -> None: ...  # the learner is verified dead


class Site(Protocol):
    """The place of a worker, and the services that it may use there. Every runtime has its own."""

    title: str  # the worker's, e.g. "actor 3"
    clock: Clock  # of the parts of this worker's work
    # histograms of the age of what it learns from, by what is counted; {}: it learns nothing
    lags: Mapping[str, Array]
    # the queue of each learner, which rings the workers that may go on; None in a process without
    # torch
    queues: Any

    # from the checkpoint that the run goes on from; False: there is none
    def load(self, worker: Worker) -> bool: ...
    # a call wakes the worker that ``Wakes.wakes`` has by this key
    def bell(self, key: Hashable) -> Callable[[], object]: ...
    def note(self, text: str) -> None: ...  # add a note for the user
    # "at work": now and then in a build or a tick that may take minutes
    def pulse(self) -> None: ...
    # the learner's findings since its last record
    def record(self, record: Mapping[str, Any]) -> None: ...
    def cut(self) -> int: ...  # the number of the newest cut that workers save for; 0: none
    def gate(
        self, *, every: int, last: int, round_: int, due: Callable[[int], bool]
    ) -> Callable[[int], bool]: ...  # see runtime/cut.py
    # runs works of workers that take turns in one thread; None: they have processes
    @property
    def at_once(self) -> AtOnce | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of a worker, on its row of the board."""

    kind: str = ""
    parts: tuple[str, ...] = ()  # of its work (``clock.py``)
    lags: bool = False  # histograms of the age of the experience that it uses
    steps: bool = False  # its ticks are steps of envs: many, and alike
    nvtx: bool = False  # profilers are shown its parts


class Kind(ABC):
    """One kind of worker: a name, a place in the ring, and the runtimes' operations on workers of
    it. A kind has no state, and its instances must pickle.

    A subclass gives ``name``, ``count`` and ``build``. It inherits the traits below that apply to
    it; runtimes ask for a trait by its type.
    """

    # worker 3 is "NAME 3" in ps and in reports, and "NAME_3" in checkpoints; letters a to z
    name: ClassVar[str]
    side: ClassVar[Side] = "beside"  # of the ring, for reports; the trait sets it
    # of its work, each of which has a row of the board (``clock.py``)
    parts: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def count(self, blue: Blueprint) -> int:
        """How many workers of this kind a run has."""

    @abstractmethod
    def build(self, job: Any, site: Site) -> Worker:
        """Make the worker, at its place; ``site.load`` it if the run goes on from a
        checkpoint. ``job``: a ``Job``, or the result of ``Prepares.job``.
        """

    def progress(self, blue: Blueprint, shared: Shared, index: int) -> float:
        """A count that rises with the worker's progress and outlives its process. A process that
        adds 1 counts as working; failures before that count as one series.
        """
        return 0

    def lost(self, blue: Blueprint, shared: Shared, queues: Sequence[Queue], index: int) -> str:
        """Take back what a dead worker held. The driver calls it. Returns a sentence about what is
        lost for good, or "".
        """
        return ""


# Traits of some kinds.


class BeginsAnew:
    """A replacement never loads the checkpoint. Without this trait, it loads it again if the worker
    before it died without progress.
    """


class SamplingKind(Kind):
    """Steps envs or acts for them: its workers have groups of envs."""

    side: ClassVar[Side] = "sampling"
    alike: ClassVar[bool] = True  # its ticks are steps of envs: many, and alike
    # is its work counted in blocks of rows? Otherwise in the batches that it learns from
    in_blocks: ClassVar[bool] = True

    @abstractmethod
    def groups(self, blue: Blueprint, index: int) -> range:
        """The groups of envs that the worker steps or acts for."""

    def progress(self, blue: Blueprint, shared: Shared, index: int) -> float:
        """Pairs of unrolls of the slowest group: as the second begins the first is complete."""
        groups = self.groups(blue, index)
        rows = min((shared.actors[group].next_row for group in groups), default=0)
        return rows / (2 * blue.unroll)


class SteppingKind(SamplingKind):
    """Steps envs."""

    def groups(self, blue: Blueprint, index: int) -> range:
        return blue.groups(index)


class ServingKind(SamplingKind):
    """Acts for envs that workers of a ``SteppingKind`` step."""


class WritingKind(SamplingKind):
    """Reserves blocks of the queue for its groups."""

    def held(self, blue: Blueprint) -> int:
        """The most blocks of the queue that a worker writes side by side for one group of envs."""
        return 1

    def asks(self, blue: Blueprint) -> int:
        """The places that a worker without an open block asks for at once, on a machine without the
        queue. No other worker gets a place that this one asks for early.
        """
        return self.held(blue)

    def lost(self, blue: Blueprint, shared: Shared, queues: Sequence[Queue], index: int) -> str:
        for group in self.groups(blue, index):
            queues[blue.learner_of(group)].cancel(blue.streams(group))
        return super().lost(blue, shared, queues, index)


class ExchangingKind(SamplingKind):
    """Hands observations and actions over in the exchange; its workers spin before they sleep."""

    def lost(self, blue: Blueprint, shared: Shared, queues: Sequence[Queue], index: int) -> str:
        assert shared.exchange is not None
        shared.exchange.lost(self.groups(blue, index))
        return super().lost(blue, shared, queues, index)


class Unnumbered:
    """The first worker is called by the kind's name alone, as it may be the only one."""


class LearningKind(Kind, BeginsAnew, Unnumbered):
    """Learns from rows, whose age is measured. A learner saves last in a cut, as it holds the
    others still; it also saves its queue.
    """

    side: ClassVar[Side] = "learning"

    @abstractmethod
    def vital(self, blue: Blueprint, shared: Shared, index: int) -> bool:
        """Does the death of this worker restart all workers from the newest checkpoint?"""


class KeepingKind(Kind, BeginsAnew):
    """Keeps rows of a replay: worker k keeps the rows of ``Blueprint.shards[k]``."""

    side = "keeping"


class Prepares(ABC):
    """The driver prepares what a worker is built from."""

    @abstractmethod
    def job(self, blue: Blueprint, shared: Shared, index: int, life: int) -> object:
        """The argument of ``build``, in the place of a ``Job``; it must pickle."""


class Torchless(Prepares):
    """A process of this kind has no torch: a job must unpickle without it."""


class OwnsMemory(ABC):
    """The workers of this kind share memory of their own with the driver."""

    @abstractmethod
    def memory(self, blue: Blueprint) -> Tree:
        """Specs of that memory: ``Shared.own[name].views``, zeros at first."""


class Wakes(ABC):
    """A worker wakes other workers, besides the workers that the queue wakes."""

    @abstractmethod
    def wakes(self, blue: Blueprint, index: int, members: Sequence[Member]) -> Woken:
        """The workers that this one wakes, by the key that ``Site.bell`` takes. They are also woken
        when it dies. ``members``: of the whole run.
        """


class Waits(Generic[W]):
    """Waits for more than its doorbell."""

    def listens(self, worker: W) -> tuple[int, ...]:
        """File descriptors that wake the worker when they become readable, as its doorbell does."""
        return ()

    def patience(self, worker: W) -> float | None:
        """Seconds that the worker's next tick may wait; None: until its doorbell rings."""
        return None


class Threaded:
    """Computes with as many threads of torch as ``--threads`` sets; other kinds have one."""


class Movable:
    """The workers may be on another machine, all on the same; they get every policy's weights."""


class Placed(OwnsMemory):
    """Each worker may be on any machine, and reads neither weights nor rows. It shares words."""

    @abstractmethod
    def heard(self, words: Tree, index: int) -> tuple[Array, ...]:
        """The words of a worker that writing workers read, on every machine. The last is published
        after the others.
        """

    @abstractmethod
    def counted(self, words: Tree, index: int) -> tuple[Array, ...]:
        """The other words of that worker."""


class StandsIn:
    """Receives wake-ups meant for workers on other machines."""


Woken = Mapping[Hashable, "Member"]


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
        queue = numbered("experience", self.index)
        names = (self.file, queue) if isinstance(self.kind, LearningKind) else (self.file,)
        return tuple(f"{name}.safetensors" for name in names)

    @property
    def folder(self) -> str:
        """The folder of its rows within the run's replay, with a slash at the end unless it is
        empty.
        """
        return f"{self.file}/" if self._numbered else ""

    @property
    def _numbered(self) -> bool:
        return self.index > 0 or not isinstance(self.kind, Unnumbered)

    @property
    def measured(self) -> Measured:
        """The measurements of the worker."""
        kind = self.kind
        return Measured(
            kind=kind.name,
            parts=kind.parts,
            lags=isinstance(kind, LearningKind),
            steps=isinstance(kind, SamplingKind) and kind.alike,
        )

    def job(self, blue: Blueprint, shared: Shared, life: int = 0) -> object:
        """The argument that the worker is built from; the driver makes it."""
        if isinstance(self.kind, Prepares):
            return self.kind.job(blue, shared, self.index, life)
        return Job(blueprint=blue, shared=shared, index=self.index, life=life)

    def groups(self, blue: Blueprint) -> range:
        """The groups of envs that the worker steps or acts for."""
        kind = self.kind
        return kind.groups(blue, self.index) if isinstance(kind, SamplingKind) else range(0)

    def vital(self, blue: Blueprint, shared: Shared) -> bool:
        """``LearningKind.vital`` of the worker; False for one of another kind."""
        kind = self.kind
        return isinstance(kind, LearningKind) and kind.vital(blue, shared, self.index)

    def threads(self, blue: Blueprint) -> int:
        """Threads of torch."""
        return blue.program.placement.threads if isinstance(self.kind, Threaded) else 1

    def wakes(self, blue: Blueprint, members: Sequence[Member]) -> Woken:
        """``Wakes.wakes`` of the worker; {} for one of another kind."""
        kind = self.kind
        return kind.wakes(blue, self.index, members) if isinstance(kind, Wakes) else {}

    def shares(self, seconds: Shares) -> Shares:
        """The worker's seconds, with what a reader has to know of its kind."""
        kind = self.kind
        return replace(
            seconds, kind=kind.name, side=kind.side, serves=isinstance(kind, ServingKind)
        )


def stepped(blue: Blueprint, members: Iterable[Member]) -> set[int]:
    """The groups of envs that these workers step or act for."""
    return {group for one in members for group in one.groups(blue)}


def written(blue: Blueprint, members: Iterable[Member]) -> set[int]:
    """The groups whose rows these workers write."""
    return stepped(blue, (one for one in members if isinstance(one.kind, WritingKind)))


def held_at_once(blue: Blueprint, members: Iterable[Member]) -> int:
    """The most blocks that any of these workers writes side by side for one group of envs."""
    kinds = (one.kind for one in members)
    return max((kind.held(blue) for kind in kinds if isinstance(kind, WritingKind)), default=1)


def asked_at_once(blue: Blueprint, members: Iterable[Member]) -> int:
    """The most places that any of these workers asks for at once."""
    kinds = (one.kind for one in members)
    return max((kind.asks(blue) for kind in kinds if isinstance(kind, WritingKind)), default=1)


def crew(blue: Blueprint, kinds: Sequence[Kind]) -> tuple[Member, ...]:
    """All workers of a run, kind by kind; ValueError if two would have one name."""
    members = tuple(Member(kind, index) for kind in kinds for index in range(kind.count(blue)))
    titles = [member.title for member in members]
    for title in titles:
        if titles.count(title) > 1:
            raise ValueError(
                "kinds: expected workers with names of their own, got two that are called "
                f"{title!r}"
            )
    return members
