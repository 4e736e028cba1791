"""Protocols: the interfaces that envs, agents, experience, weight stores and workers offer each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from equipoise.types.rows import Array, Batch, EnvSpec, RunSpec, Slot, Tick, TimeStep, Tree

if TYPE_CHECKING:
    from torch import Tensor


class Env(Protocol):
    """B streams, asynchronous by shape, synchronous by default.

    The first ``recv`` answers the reset that construction began (``first`` True, ``valid`` False).
    After a terminated or truncated row the next action of that stream is ignored and answered by
    the reset row (Gymnasium's NEXT_STEP). An env that resets in the same step shows that row's
    reset observation already, ``first`` and valid, if it terminated. At a truncation one extra row
    is sent for all streams: the reset stream has its new observation, and the other streams repeat
    theirs with ``valid`` False.

    If streams answer some at a time (``TimeStep.answered``), the first ``recv`` still has the reset
    of all, and ``send`` takes the actions [n, ...] of any streams [n] that have answered.
    """

    spec: EnvSpec
    # [B] bool, by the last load: their next action is ignored and answered by a reset row
    restarted: Array
    restarts: dict[int, str]  # {stream: why} of those
    # how many streams the last load brought back, by what was kept of them: a Resume each
    resumed: dict[str, int]

    def send(self, action: Tree, stream: Array) -> None: ...
    def recv(self) -> TimeStep | None: ...  # None: not yet
    def state(self) -> Tree: ...
    def load(self, state: Tree) -> None: ...
    def close(self) -> None: ...


class DealtEnv(Protocol):
    """Envs whose streams are dealt to policies: every mapping has an entry for each policy, even if
    there is only one.

    The mapping that ``recv`` returns, and the time steps in it, are the same objects each time.
    """

    @property
    def spec(self) -> RunSpec: ...
    @property
    def restarts(self) -> dict[int, str]: ...  # as in ``Env``
    # as that of ``Env``; envs are counted, however many agents they have
    @property
    def resumed(self) -> dict[str, int]: ...
    # for all streams, or {"action", "stream"} of some
    def send(self, actions: Mapping[str, Tree]) -> None: ...
    def recv(self) -> Mapping[str, TimeStep] | None: ...  # None: not yet
    # descriptors that become readable when ``recv`` may answer, if it waits for any
    def fds(self) -> tuple[int, ...]: ...
    def state(self) -> Tree: ...
    def load(self, state: Tree) -> None: ...
    def close(self) -> None: ...


class Agent(Protocol):
    """The policy of one env."""

    streams: Array  # [B] int64, the streams that it acts for

    # record the outcome of the last action, submit the observation
    def observe(self, ts: TimeStep) -> None: ...
    # [B, ...], or STARVED (no reply yet) / BLOCKED (no slot is free)
    def action(self) -> Tree | Tick: ...
    def state(self) -> Tree: ...  # between two unrolls
    def load(self, state: Tree) -> None: ...
    # the env could not be restored: the next rows begin new episodes
    def abandon_episodes(self) -> None: ...


class Places(Protocol):
    """The places for the rows of one policy of one actor."""

    def reserve(self, streams: Array) -> Slot | None: ...  # taken when an unroll starts
    def commit(self, slot: Slot) -> None: ...
    # its env is lost: written rows count as dropped, the slot is written again
    def restart(self, slot: Slot) -> None: ...


class Blocks(Protocol):
    """The blocks of an actor's rows: one slot for each policy, reserved and committed together."""

    # by the streams of the actor's envs
    def reserve(self, streams: Array) -> Mapping[str, Slot] | None: ...
    def commit(self, slots: Mapping[str, Slot]) -> None: ...
    def restart(self, slots: Mapping[str, Slot]) -> None: ...


class HandedBlocks(Blocks, Protocol):
    """Blocks that an actor may hand to another actor while it writes them."""

    # to the actor of these streams, with the rows as they are
    def hand_over(self, slots: Mapping[str, Slot], streams: Array) -> None: ...
    # the blocks that were handed to the actor of these streams; ``known``: sequences that it has
    def handed(self, streams: Array, known: Collection[int]) -> list[Mapping[str, Slot]]: ...


class Experience(Protocol):
    """The experience of one policy. None means "not yet"; only the runtime waits."""

    def sample(self, n: int) -> Batch | None: ...
    # a preview of the next batch, to be read alone; None: unknown
    def coming(self) -> Batch | None: ...
    # new priorities [n] of the items of a batch
    def learned(self, keys: Array, priority: Array | None) -> None: ...
    # finish a batch whose learner died after it had learned from it
    def adopt(self, keys: Array) -> None: ...
    # after publish: the batch's memory may be written over
    def finish(self, keys: Array) -> None: ...
    def save(self, to: StateWriter) -> LateSave | None: ...  # the state besides the queue
    # the state that ``learners`` learners saved
    def restore(self, source: StateReader, learners: int) -> None: ...
    def close(self) -> None: ...


Look = tuple[int, Mapping[str, "Tensor"], Callable[[], bool]]
"""A version, its tensors, and whether they are still those: a publisher may have begun to rewrite them."""  # noqa: E501


class WeightStore(Protocol):
    @property
    def version(self) -> int: ...  # the newest; -1 before the first
    # parameters and buffers
    def publish(self, version: int, params: Mapping[str, Tensor]) -> None: ...
    def fetch(self, newer_than: int = -1) -> tuple[int, Mapping[str, Tensor]] | None: ...
    # as fetch, for a reader that copies at its own pace
    def look(self, newer_than: int = -1) -> Look | None: ...


Entry = dict[str, str | int]  # a file in the manifest of a checkpoint: {"sha256", "size"}


class StateWriter(Protocol):
    """One worker's part of a checkpoint that is being written."""

    cut: int  # the number of the cut

    # copy a state, for the file ``name``; "": the worker's own file
    def put(self, state: Tree, name: str = "") -> None: ...
    # copy the weights that can be played and begun from
    def put_weights(self, params: Mapping[str, Tensor]) -> None: ...
    # write what was put -> the files' sizes and hashes; from any thread
    def write(self) -> dict[str, Entry]: ...


class StateReader(Protocol):
    """One worker's part of the checkpoint that a run goes on from."""

    def state(self, name: str = "") -> Tree: ...  # the state that was put under this name
    # the files that hold this worker's rows of a replay
    def segments(self) -> Mapping[str, Entry]: ...
    def segment(self, name: str) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEnd:
    """How a late save ended: files and segments for the manifest, or an error."""

    files: Mapping[str, Entry] = field(default_factory=dict)  # by name
    segments: Mapping[str, Entry] = field(default_factory=dict)
    error: Exception | None = None


class LateSave(Protocol):
    """The part of a checkpoint that a worker writes while it goes on."""

    def poll(self) -> SaveEnd | None: ...  # how it ended, once; None: not yet
    def wait(self, timeout_s: float) -> None: ...


class Worker(Protocol):
    """One part of the ring that does something. Nothing here waits: only a runtime does."""

    # the result of ``tick`` between two pieces of work, when the worker may be saved
    ready: Tick

    def tick(self) -> Tick: ...  # one bounded piece of work
    # put the state there; LateSave: more is written meanwhile
    def save(self, to: StateWriter) -> LateSave | None: ...
    # go on where a worker was saved; before the first tick
    def load(self, source: StateReader) -> None: ...
    def close(self) -> None: ...  # let go of envs, threads and files


class Pool(Protocol):
    """The learners that share a batch, each with some of its streams; every learner asks the same
    questions in the same order.

    A statistic over a whole batch is a function of sums, so that it is the same however many
    learners the batch is dealt to.
    """

    def sum(self, x: Tensor) -> Tensor: ...  # over all learners, element by element
    def max(self, x: Tensor) -> Tensor: ...


class Network(Protocol):
    """The interface of a policy network; ``step`` and ``unroll`` agree (tested for every core)."""

    def initial_state(self, batch: int) -> Tree: ...  # [B, ...], {} for a feed-forward net
    # obs [B, ...] -> outputs [B, ...], state
    def step(self, obs: Tree, first: Tensor, state: Tree) -> tuple[object, Tree]: ...
    def unroll(
        self, obs: Tree, first: Tensor, state: Tree
    ) -> tuple[object, Tree]: ...  # obs [T, B, ...] -> outputs [T, B, ...], state
