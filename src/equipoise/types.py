"""The nouns and the Protocols of the ring. Alignment is said here, and in no other place.

Letters used in every shape of the project: ``T`` time steps of an unroll, ``B`` streams (one stream is one sequence of
episodes), ``N`` rows of a minibatch. Nothing here imports torch, so that a worker that only steps envs stays small.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, cast

from equipoise.facts import (
    FREE,
    KEPT,
    Count,
    Flag,
    Fraction,
    Help,
    NonNegative,
    Positive,
    Range,
    Rate,
    Read,
    Share,
    Whole,
)  # fmt: skip

if TYPE_CHECKING:
    import gymnasium
    import numpy as np
    import torch
    from torch import Tensor, nn
    from torch.nn import Parameter

Array = Any  # a torch tensor or a numpy array; their union would have to be told apart at every use
Tree = Any  # Array | dict[str, Tree]: plain nested dicts, no container class to learn
Resume = Literal["exact", "replay", "restart"]
Precision = Literal["fp32", "medium", "bf16"]
Inference = Literal["local", "central"]
AskedInference = Literal["local", "central", "auto"]  # auto: whichever is measured to be faster
Acting = Literal["fp32", "bf16", "int8"]
OnNonfinite = Literal["stop", "drop", "clamp"]


class Tick(Enum):
    """What one bounded piece of work came to. The sum of the seconds spent in each is the balance of a run."""

    WORKED = "worked"
    STARVED = "starved"  # upstream is slower
    BLOCKED = "blocked"  # downstream is slower


# ----------------------------------------------------------------------------------------------------- envs and agents


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeStep:
    """What B streams say now.

    ``reward``, ``terminated``, ``truncated`` and ``valid`` are the outcome of the last action; ``obs`` and ``first`` are
    what the next action is chosen from. The arrays may be overwritten by the next ``recv``: a reader copies what it keeps.
    """

    obs: Tree  # [B, ...]
    reward: Array  # [B] float32, for the action just taken
    terminated: Array  # [B] bool, the MDP ended
    truncated: Array  # [B] bool, a clock cut it
    first: Array  # [B] bool, obs begins an episode: reset recurrent state
    valid: Array  # [B] bool, False: the action was ignored (reset row, aborted episode, absent agent, another stream's hold)
    stream: Array  # [B] int64, which streams these rows are
    info: Array | None = None  # [B, M] float64, the numbers of Program.metrics from the last step, nan where absent


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """An observation that is the last ``frames`` screens along its first axis, the newest last."""

    frames: int
    padding: Literal["zero", "first"]  # what stands before an episode's first: black, or that frame repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """What a network and a slot need to know of an env, for one policy."""

    observation: gymnasium.Space[Any]  # of one stream
    action: gymnasium.Space[Any]  # of one stream
    mask: tuple[str, ...] = ()  # the keys in the observation under which the allowed actions stand; (): all are allowed
    resume: Resume = "restart"
    frame_skip: int = 1  # frames = frame_skip * steps
    stacks: Mapping[str, Stack] = field(default_factory=dict)  # by the path of the observation's leaf, "" where it is one array
    notes: tuple[str, ...] = ()  # what an adapter could not keep, e.g. "truncation treated as termination"
    settings: str = ""  # what it was made with, in words, where a family has a spec of its own
    agents: tuple[str, ...] = ("",)  # of one env; agent a of env e is stream e * len(agents) + a
    places: tuple[int, ...] = (0,)  # which of them the policy acts for


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """The spec of an env, and the spec of each policy that acts in it."""

    env: EnvSpec  # what the policies have in common: agents, resume, frame_skip, notes, settings
    policies: Mapping[str, EnvSpec]


class Env(Protocol):
    """B streams, asynchronous by shape, synchronous by default.

    The first ``recv`` answers the reset that construction began (``first`` True, ``valid`` False). After a terminated or
    truncated row the next action of that stream is ignored and answered by the reset row (Gymnasium's NEXT_STEP). An env that
    resets in the same step shows that row's reset observation already, ``first`` and valid, where it terminated; where it was
    truncated the reset row comes with a row of all streams that nothing was done for: the others show theirs again, not valid.
    """

    spec: EnvSpec
    restarted: Array  # [B] bool, by the last load: their next action is ignored and answered by a reset row
    restarts: dict[int, str]  # {stream: why} of those
    resumed: dict[str, int]  # how many streams the last load brought back, by what was kept of them: a Resume each

    def send(self, action: Tree, stream: Array) -> None: ...
    def recv(self) -> TimeStep | None: ...  # None: not yet
    def state(self) -> Tree: ...
    def load(self, state: Tree) -> None: ...
    def close(self) -> None: ...


class DealtEnv(Protocol):
    """Envs whose streams are dealt to policies: every mapping has an entry for each policy, also where there is only one.

    The mapping that ``recv`` returns, and the time steps in it, are the same objects each time.
    """

    @property
    def spec(self) -> RunSpec: ...
    @property
    def restarts(self) -> dict[int, str]: ...  # as those of ``Env``
    @property
    def resumed(self) -> dict[str, int]: ...  # as that of ``Env``; envs are counted, however many agents they have
    def send(self, actions: Mapping[str, Tree]) -> None: ...  # for all streams
    def recv(self) -> Mapping[str, TimeStep] | None: ...  # None: not yet
    def state(self) -> Tree: ...
    def load(self, state: Tree) -> None: ...
    def close(self) -> None: ...


class Agent(Protocol):
    """One policy beside an env."""

    streams: Array  # [B] int64, those it acts for

    def observe(self, ts: TimeStep) -> None: ...  # record the outcome of the last action, submit the observation
    def action(self) -> Tree | Tick: ...  # [B, ...], or STARVED (no reply yet) / BLOCKED (no slot is free)
    def state(self) -> Tree: ...  # between two unrolls
    def load(self, state: Tree) -> None: ...
    def abandon_episodes(self) -> None: ...  # the env could not be restored: the next rows begin new episodes


# ---------------------------------------------------------------------------------------------------------- experience


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Row t: seen (``obs[t]``), done (``action[t]``), got (``reward[t]``). The next's ``obs[0]`` is this one's ``obs[T]``."""

    obs: Tree  # [T+1, B, ...], obs[T] only bootstraps
    first: Array  # [T+1, B] bool
    action: Tree  # [T, B, ...]
    behaviour: Tree  # [T, B, ...] what the corrections need, e.g. {"logp": [T, B]}
    reward: Array  # [T, B] float32, for action[t]
    mask: Array  # [T, B] bool, False: not a real row (a seam)
    bootstrap: Array  # [T, B] bool, may the value of obs[t+1] be used after this row
    version: Array  # [T, B] int64, the weights that chose action[t]
    state: Tree  # [B, ...] recurrent state before obs[0]
    context: Tree  # [B, ...] always {"stream", "start"}; start: the stream's row number of row 0

    def discount(self, gamma: float) -> Array:
        """[T, B], ``gamma`` where the value of the next observation may be used, else 0."""
        return gamma * self.bootstrap

    @property
    def shape(self) -> tuple[int, int]:
        """(T, B)."""
        return int(self.reward.shape[0]), int(self.reward.shape[1])


TRAJECTORY_ROWS = ("action", "behaviour", "reward", "mask", "bootstrap", "version")  # [T, B, ...]
TRAJECTORY_EDGES = ("obs", "first")  # [T+1, B, ...]
TRAJECTORY_STREAMS = ("state", "context")  # [B, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a learner's step consumes. A minibatch by rows has T = 1 and ``data.obs`` without the bootstrap row: [1, N, ...]."""

    data: Trajectory
    keys: Array  # [B, 2] int64, (row, generation) of each item; they go back to Experience.finish
    weight: Array  # [B] float32, 1 from a queue, the importance weight from prioritized replay
    targets: Tree  # [T, B] what Algorithm.targets computed once, else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where an unroll is written: preallocated views, filled in place."""

    keys: Array  # [E, 2] int64, (row, generation) of each env
    data: Trajectory


class Places(Protocol):
    """Where one policy of one actor writes its rows."""

    def reserve(self, streams: Array) -> Slot | None: ...  # taken when an unroll starts
    def commit(self, slot: Slot) -> None: ...
    def restart(self, slot: Slot) -> None: ...  # its env is lost: what was written counts as dropped, the slot is written anew


class Blocks(Protocol):
    """Where all policies of an actor write their rows: they reserve and commit one block together, a slot each."""

    def reserve(self, streams: Array) -> Mapping[str, Slot] | None: ...  # by the streams of the actor's envs
    def commit(self, slots: Mapping[str, Slot]) -> None: ...
    def restart(self, slots: Mapping[str, Slot]) -> None: ...


class Experience(Protocol):
    """What one policy learns from. Nothing blocks: None means "not yet", and only the runtime waits."""

    def sample(self, n: int) -> Batch | None: ...
    def learned(self, keys: Array, priority: Array | None) -> None: ...  # new priorities [n] of the items of a batch
    def finish(self, keys: Array) -> None: ...  # after publish: what the batch held may be written over
    def save(self, to: StateWriter) -> LateSave | None: ...  # what is kept besides the queue
    def restore(self, source: StateReader) -> None: ...
    def close(self) -> None: ...


class WeightStore(Protocol):
    def publish(self, version: int, params: Mapping[str, Tensor]) -> None: ...  # parameters and buffers
    def fetch(self, newer_than: int = -1) -> tuple[int, Mapping[str, Tensor]] | None: ...


class StateWriter(Protocol):
    """One worker's part of a checkpoint that is being written."""

    cut: int  # the number of the cut

    def put(self, state: Tree, name: str = "") -> None: ...  # copy a state, for the file ``name``; "": the worker's own file
    def put_weights(self, params: Mapping[str, Tensor]) -> None: ...  # copy the weights that can be played and begun from
    def write(self) -> dict[str, dict[str, Any]]: ...  # write what was put -> the files' sizes and hashes; from any thread


class StateReader(Protocol):
    """One worker's part of the checkpoint that a run goes on from."""

    def state(self, name: str = "") -> Tree: ...  # what was put under this name
    def segments(self) -> Mapping[str, Any]: ...  # the files that hold this worker's rows of a replay
    def segment(self, name: str) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEnd:
    """How a late save ended: its files and the segments that the checkpoint is to name, or an error."""

    result: Any = None  # files, by name
    segments: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None


class LateSave(Protocol):
    """What a worker writes of a checkpoint while it goes on."""

    def poll(self) -> SaveEnd | None: ...  # how it ended, once; None: not yet
    def wait(self, timeout_s: float) -> None: ...


class Worker(Protocol):
    """One part of the ring that does something. Nothing here waits: only a runtime does."""

    ready: Tick  # what ``tick`` says when the worker lies between two pieces of work and may be saved

    def tick(self) -> Tick: ...  # one bounded piece of work
    def save(self, to: StateWriter) -> LateSave | None: ...  # put the state there; LateSave: more is written meanwhile
    def load(self, source: StateReader) -> None: ...  # go on where a worker was saved; before the first tick
    def close(self) -> None: ...  # let go of envs, threads and files


# ---------------------------------------------------------------------------------------------------------- algorithms


class Pool(Protocol):
    """The learners that share a batch, each with some of its streams; every learner asks the same questions in the same order.

    A statistic over a whole batch is a function of sums, so that it is the same however many learners the batch is dealt to.
    """

    def sum(self, x: Tensor) -> Tensor: ...  # over all learners, element by element
    def max(self, x: Tensor) -> Tensor: ...


class Network(Protocol):
    """What a policy network offers; ``step`` and ``unroll`` agree (tested for every core)."""

    def initial_state(self, batch: int) -> Tree: ...  # [B, ...], {} for a feed-forward net
    def step(self, obs: Tree, first: Tensor, state: Tree) -> tuple[Any, Tree]: ...  # obs [B, ...] -> outputs [B, ...], state
    def unroll(
        self, obs: Tree, first: Tensor, state: Tree
    ) -> tuple[Any, Tree]: ...  # obs [T, B, ...] -> outputs [T, B, ...], state


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """Sums, not means, so that several learners and micro-batches add up exactly."""

    loss: Tensor  # [] sum over valid rows
    count: Tensor  # [] how many; the learner divides by the all-reduced count
    metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # name -> (sum, count), no gradient
    priority: Tensor | None = None  # [B]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """How gradients become steps. Each group of ``Algorithm.groups`` has an optimiser of its own with these settings."""

    name: Annotated[Literal["adam", "adamw", "rmsprop"], Help("Kind of the optimiser."), KEPT] = "adam"
    learning_rate: Annotated[Rate, Help("Learning rate where the schedule begins.")] = 3e-4
    rates: Annotated[
        Mapping[str, Rate],
        Help("Learning rates of single groups of parameters: optimizer.rates.actor=1e-4; others have learning_rate."),
    ] = field(default_factory=dict)
    schedule: Annotated[
        Literal["linear", "constant", "cosine"], Help("How the rates change: to 0 over schedule_steps (by default: steps).")
    ] = "linear"
    warmup: Annotated[Share, Help("Share of the schedule in which the rates rise from 0.")] = 0.0
    epsilon: Annotated[NonNegative, Help("Number added to the root of the second moment.")] = 1e-5
    betas: Annotated[
        tuple[Share, Share], Help("Smoothing constants of Adam's two moments."), Read("name", "rmsprop", unless=True)
    ] = (0.9, 0.999)
    decay: Annotated[Share, Help("Smoothing constant of RMSProp's second moment."), Read("name", "rmsprop")] = 0.99
    weight_decay: Annotated[
        NonNegative,
        Help("AdamW: share of the weights that a step of rate 1 takes; Adam, RMSProp: added to the gradient."),
    ] = 0.0
    max_grad_norm: Annotated[NonNegative, Help("The gradient of a group is scaled down to this norm. 0: never.")] = 0.5

    def rate(self, group: str, progress: float) -> float:
        """The learning rate of a group where the share ``progress`` of the schedule is done."""
        base = self.rates.get(group, self.learning_rate)
        if progress < self.warmup:
            return base * (progress / self.warmup)
        if self.schedule == "constant":
            return base
        done = (progress - self.warmup) / (1.0 - self.warmup) if self.warmup < 1.0 else 1.0
        return base * (1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done)))


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Hyper-parameters and pure functions; stateless, picklable, one readable file each.

    The fields here are those that the learner reads; a subclass adds its own and overrides the defaults. What a user should
    know of a field stands in its annotation (``equipoise.facts``); a subclass that redeclares one inherits what it leaves out.
    """

    has_target: ClassVar[bool] = False  # does it read ``target_net``
    needs_replay: ClassVar[bool] = False  # does it learn from the experience of other policies than the newest
    needs_dataset: ClassVar[bool] = False  # does it learn from what somebody else did
    default_optimizer: ClassVar[Optimizer] = Optimizer()  # what a Policy takes that is given none
    defaults: ClassVar[Mapping[str, Any]] = {}  # settings of a run with this algorithm, by their --set keys

    epochs: Annotated[Count, Help("Passes over a batch.")] = 1
    minibatches: Annotated[
        Count, Help("Parts of a pass, an optimiser step each: rows, or whole windows where there is a recurrent state.")
    ] = 1
    target_every: Annotated[
        Whole, Help("Updates from one copy of the network into the target network to the next. 0: there is no target network.")
    ] = 0
    tau: Annotated[
        Fraction,
        Help("How far a copy goes: 1 all the way, 0.005 for a soft target with target_every 1."),
        Read("target_every", why="there is no target network"),
    ] = 1.0

    @property
    def item_rows(self) -> int | None:
        """Rows of an item that the loss learns from, where a replay cuts them; None: whole unrolls."""
        return None

    @abstractmethod
    def network(self, spec: EnvSpec) -> nn.Module:
        """A fresh network; it satisfies ``Network``. The caller has seeded torch."""

    def groups(self, net: nn.Module) -> dict[str, list[Parameter]]:
        """One optimiser each; a step is taken for each group in this order."""
        return {"all": list(net.parameters())}

    def due(self, group: str, version: int) -> bool:
        """Is a step to be taken for this group in the update that follows ``version``? (TD3's actor: in every other one.)"""
        return True

    def followed(self, net: Any) -> nn.Module:
        """What the target network is a copy of: the network, or a part of it where that is all it is asked for (SAC)."""
        return net  # type: ignore[no-any-return]

    def explore(self, stream: Array, streams: int, step: int) -> Tree:
        """[B] epsilon, sigma and the like: ladders over streams and schedules over steps."""
        return {}

    @abstractmethod
    def act(self, net: Any, obs: Tree, first: Tensor, state: Tree, *, explore: Tree, noise: Tensor) -> tuple[Tree, Tree, Tree]:
        """obs [B, ...] -> action, behaviour, state.

        noise [B, k], uniform in (0, 1): one column an action dimension and, if ``explore`` returns anything, one more.
        """

    @abstractmethod
    def best(self, net: Any, obs: Tree, first: Tensor, state: Tree) -> tuple[Tree, Tree]:
        """The deterministic action that evaluation and serving use -> action [B, ...], state."""

    def priority(self, data: Trajectory) -> Array | None:
        """[N], of items as they enter a prioritized replay; None: the highest priority so far.

        ``data`` has the rows [item_rows, N] and no observations: what a priority needs of a network the actor has said in
        ``behaviour`` (Ape-X). An item enters with the commit of its last row.
        """
        return None

    def targets(self, net: Any, target_net: Any, data: Trajectory, *, rng: torch.Generator, pool: Pool) -> Tree:
        """[T, B], once per batch, without gradient (PPO's GAE). ``target_net`` is None unless ``target_every``.

        What is a statistic of the whole batch goes through ``pool``, since ``data`` may be one learner's part of it.
        """
        return {}

    def absorb(self, net: Any, data: Trajectory, memory: Tree, *, pool: Pool) -> Tree:
        """Let a batch enter the statistics that the network keeps in its buffers; once, after the batch's last optimiser step.

        So the statistics that a batch was acted and judged with are those of its version, and the next version has new ones.
        ``memory`` is what this method returned last, {} at first: what goes on from window to window and is no weight. The
        learner keeps it and saves it. No gradient is recorded.
        """
        return memory

    @abstractmethod
    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: torch.Generator
    ) -> LossOutput | None:
        """The loss of one minibatch for one group; None: skip this group now. ``step``: share of the schedule done, 0..1."""


# ------------------------------------------------------------------------------------------------------------- the run


WHAT, WHERE, LONG, OUT = "What to learn", "Where it runs", "How long", "What comes out"  # the sections of ``train --help``


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvFactory:
    """An env as data: a Gymnasium id, ``module:id`` or ``module:callable``, and its JSON arguments."""

    target: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    action_mask: Annotated[
        str,
        Help("Where the allowed actions stand: auto (the observation's key action_mask, if any), info, obs/KEY or none."),
        Flag(WHAT, "CHOICE"),
    ] = "auto"


Live = Read("source.dataset", "", why="there is no live experience")
Prioritized = Read("selector", "prioritized", why="nothing is prioritized")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where experience comes from: what the two kinds have in common."""

    on_nonfinite: Annotated[
        OnNonfinite,
        Help(
            "What nan or an infinity from an env ends: the run (stop), its episode (drop), or nothing (clamp makes it finite)."
        ),
        Flag(WHERE, "stop|drop|clamp"),
    ] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSource(Source):
    """Live experience: envs that actors step."""

    dataset: ClassVar[str] = ""  # no recorded rows alone

    env: EnvFactory
    metrics: Annotated[
        tuple[str, ...],
        Help("Numbers of the env's info to report: keys, or paths of keys such as episode/r."),
        Flag(OUT, "NAME[,NAME]"),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSource(Source):
    """Recorded experience alone: the rows of a data set. No env is stepped but for evaluation, and steps are updates."""

    metrics: ClassVar[tuple[str, ...]] = ()  # no env is stepped

    dataset: Annotated[
        str, Help("Learn from the recorded rows of a Minari data set alone, by its id or directory."), Flag(WHAT, "ID|DIR")
    ]
    env: EnvFactory | None = None  # that evaluation plays; None: no evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What is kept of a policy's rows, and how much is learned from them.

    A round is ``unroll`` fresh rows of every stream; ``updates`` updates of ``batch`` items follow it. Both together are the
    samples per insert: ``updates * batch / (unroll * streams)``.
    """

    capacity: Annotated[
        Count,
        Help("Rows that are kept, of all streams together."),
        Live,
        Read("memory", 0, why="as many rows are kept as fit"),
    ] = 1_000_000
    memory: Annotated[
        Whole,
        Help("Bytes of a replay's rows at most, such as 2GiB, instead of replay.capacity. 0: not set."),
        Live,
        Flag(WHAT, "BYTES", name="replay-memory"),
    ] = 0
    file: Annotated[
        str, Help("A directory for the rows, mapped into memory, where they are more than memory holds. Empty: memory.")
    ] = ""
    codec: Annotated[
        str,
        Help("How large leaves are encoded: delta, lz4 or zstd, or by path (obs/image=delta,obs/map=zstd). Empty: not."),
    ] = ""
    decode_threads: Annotated[
        Count,
        Help("Threads that decode the rows of a batch."),
        Read("codec", "", "none", unless=True, why="nothing is encoded"),
    ] = 2
    starts_at: Annotated[Whole, Help("Rows before the first update."), Live] = 1_000
    updates: Annotated[Count, Help("Updates of a round."), Live] = 1
    selector: Annotated[Literal["uniform", "prioritized", "fifo"], Help("How the items of a batch are chosen.")] = "uniform"
    alpha: Annotated[Share, Help("Power of a priority."), Prioritized] = 0.6
    epsilon: Annotated[NonNegative, Help("Number added to a priority, so that every item is seen again."), Prioritized] = 1e-6
    beta: Annotated[Share, Help("Power of the importance weights at first; linear to 1 over the run."), Prioritized] = 0.4
    relabel: Annotated[
        Share, Help("Goal envs: share of the items that are learned from as if another goal had been desired.")
    ] = 0.0
    strategy: Annotated[
        Literal["future", "final", "episode"],
        Help("Which of the goals that the episode achieved relabel draws from."),
        Read("relabel", why="no goal becomes another"),
    ] = "future"
    dataset: Annotated[
        str,
        Help("A Minari data set, by id or directory, whose rows are learned from as well. Empty: none."),
    ] = ""
    dataset_share: Annotated[
        Share, Help("Share of a batch that is the data set's."), Read("dataset", why="there is no data set"), Live
    ] = 0.5
    shards: Annotated[
        Count,
        Help("Workers that keep the rows, each of its own actors. 1: the learner's process keeps them."),
        Live,
    ] = 1

    @property
    def encodes(self) -> bool:
        """Are some rows, if they are large, kept encoded?"""
        return self.codec not in ("", "none")

    def recorded(self, batch: int) -> int:
        """Items of a batch that are a data set's, where there is one beside live experience."""
        return round(self.dataset_share * batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    algorithm: Algorithm
    optimizer: Optimizer = None  # type: ignore[assignment]  # None: the algorithm's default_optimizer
    unroll: Annotated[Count, Help("Steps of an env that go to the learner together."), Flag(WHAT, "T")]  # T
    batch: Annotated[
        Count,
        Help("Batch size. On policy: unrolls per update, a multiple of --envs-per-actor. With a replay: sampled items."),
        Flag(WHAT, "B"),
    ]
    replay: Replay | None = None  # None: a queue, and every row is learned from once
    publish_every: Annotated[Count, Help("Updates from one published version to the next; with a replay: rounds.")] = 1

    def __post_init__(self) -> None:
        given = cast("Optimizer | None", self.optimizer)
        object.__setattr__(self, "optimizer", given or self.algorithm.default_optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A policy that does not learn: it plays past versions of another, one at a time.

    Every ``every`` updates the version of then joins a pool, whose oldest leaves once it has ``pool``, and one of the pool is
    drawn, each with the same chance. At first it is version 0.
    """

    of: Annotated[str, Help("The policy whose past versions are played.")]
    every: Annotated[Count, Help("Updates from one version that joins the pool to the next.")] = 50
    pool: Annotated[Count, Help("Versions in the pool.")] = 10


Central = Read("inference", "central")
Overlapping = Read("max_lag", 0, unless=True, why="in lockstep each group of envs is acted for by itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What runs where, and how far acting and learning may be apart.

    ``max_lag`` stands here and not in the schedule: it decides with the actors and their envs how many unrolls are under way at
    once, so a reader of one needs the other.
    """

    actors: Annotated[
        Count,
        Help("Workers that step envs and choose actions."),
        Live,
        Flag(WHERE),
    ] = 1
    envs_per_actor: Annotated[Count, Help("Envs that an actor steps side by side."), Flag(WHERE)] = 16
    max_lag: Annotated[
        Whole | None,
        Help(
            "How many versions old experience may be: 0 is lockstep (reproducible), more lets actors "
            "and learner overlap, none is unbounded."
        ),
        Flag(WHERE, "K|none"),
    ] = 0
    learners: Annotated[Count, Help("Learners; more than one is not there yet.")] = 1
    inference: Annotated[
        Inference,
        Help(
            "Where actions are chosen: in each actor (local), or in workers for all of them (central). "
            "auto measures both for some seconds."
        ),
        Flag(WHERE, "local|central|auto"),
    ] = "local"
    inference_workers: Annotated[Count, Help("Inference workers; the actors are dealt to them evenly."), Central] = 1
    inference_batch: Annotated[
        Whole, Help("Streams that an inference worker acts for at once, at most. 0: all that wait."), Central, Overlapping, FREE
    ] = 0
    inference_wait_ms: Annotated[
        NonNegative,
        Help("How long an inference worker waits for half of its env groups before it acts. 0: act at once."),
        Central,
        Overlapping,
        FREE,
    ] = 0.0
    device: Annotated[str, Help("Device of the learner."), Flag(WHERE, "cpu|cuda[:N]"), FREE] = "cpu"
    precision: Annotated[
        Precision,
        Help(
            "Numbers of convolutions and matrix products, in learner and actors. On new processors medium pays for "
            "wide MLPs, bf16 for images."
        ),
        Flag(WHERE, "fp32|medium|bf16"),
        FREE,
    ] = "fp32"
    acting: Annotated[Acting, Help("Weights that actors act with are rounded to this; reports say what it changes."), FREE] = (
        "fp32"
    )
    compile: Annotated[bool, Help("Compile torsos of images with torch.compile: a minute at the start."), FREE] = False
    threads: Annotated[Count, Help("Learner threads (each actor uses one)."), Flag(WHERE), FREE] = 1
    deadline_s: Annotated[
        Positive,
        Help("A worker hangs that did nothing for so many seconds since its last tick: it is killed and replaced."),
        FREE,
    ] = 120.0
    give_up_s: Annotated[
        Positive, Help("End a run in which workers are killed from outside and nothing was learned for so many seconds."), FREE
    ] = 600.0

    @property
    def halves(self) -> int:
        """Groups of envs of an actor: under central inference one of them is stepped while the other is acted for."""
        return 2 if self.inference == "central" and self.envs_per_actor % 2 == 0 else 1

    @property
    def group_envs(self) -> int:
        """Envs of a group."""
        return self.envs_per_actor // self.halves


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long a run is, what it draws its random numbers from, and when it is saved."""

    steps: Annotated[
        Count,
        Help("Env steps in all, after frame skip, such as 500000, 500k or 1M; updates with --dataset."),
        Flag(LONG),
        FREE,
    ] = 500_000
    schedule_steps: Annotated[
        Count | None, Help("Env steps over which schedules run. none: steps, as the run began with."), FREE
    ] = None
    seed: Annotated[Whole, Help("Seed of every random number."), Flag(WHAT)] = 0
    checkpoint_every: Annotated[
        Whole | None,
        Help("Save the whole run that often. 0: at the end only. none: every two minutes."),
        Flag(OUT, "STEPS"),
        FREE,
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """When fresh episodes are played, how many, and the return that ends the run."""

    stop_at: Annotated[float | None, Help("Stop when evaluation reaches this mean return."), Flag(LONG, "RETURN"), FREE] = None
    episodes: Annotated[
        Whole, Help("Fresh episodes of an evaluation; 'evaluate' has --episodes."), Flag(LONG, name="evaluate-episodes"), FREE
    ] = 20
    every: Annotated[
        Count | None,
        Help("Evaluate that often, beside training. none: near --stop-at, and at the end."),
        Flag(LONG, "STEPS", name="evaluate-every"),
        FREE,
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A run as data: where experience comes from, what learns from it, what runs where, how long, and how it is judged.

    ``runtime.program`` writes it as JSON and reads it back, ``runtime.refusals`` says what cannot work. A setting without
    ``FREE`` is what a saved state is of: a run that goes on keeps it.
    """

    source: EnvSource | RecordedSource
    policies: Mapping[str, Policy | Frozen]  # usually one, "main"
    route: Mapping[str, str] = field(default_factory=dict)  # agent, or a pattern like "archer_*" -> policy; else it is "main"
    placement: Placement = Placement()
    schedule: Schedule = Schedule()
    evaluation: EvaluationSettings = EvaluationSettings()

    @property
    def env(self) -> EnvFactory:
        """The env that is stepped, or that evaluation plays; ValueError where there is none."""
        if self.source.env is None:
            raise ValueError("source.env: expected an env, got none: this run knows recorded rows alone")
        return self.source.env

    @property
    def name(self) -> str:
        """The env's target, or the data set where there is no env."""
        return self.source.dataset if self.source.env is None else self.source.env.target

    @property
    def actors(self) -> int:
        """Actors that run: none where rows are recorded."""
        return 0 if self.source.dataset else self.placement.actors

    @property
    def groups(self) -> int:
        """Groups of envs of the run: each is stepped together, writes one block of rows, and acts by the same weights."""
        return self.actors * self.placement.halves


def learning(program: Program) -> dict[str, Policy]:
    """The policies that learn, in the program's order."""
    return {name: policy for name, policy in program.policies.items() if isinstance(policy, Policy)}


def stream_ids(group: int, envs: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[E] int64, the envs of one group; where an env has one agent they are its streams."""
    import numpy as np

    return np.arange(group * envs, (group + 1) * envs, dtype=np.int64)


def agent_streams(envs: Array, agents: int = 1, places: Sequence[int] = (0,)) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[E * len(places)] int64, env by env: the streams of the agents at ``places`` among the ``agents`` of an env."""
    import numpy as np

    return (np.asarray(envs, np.int64)[:, None] * agents + np.asarray(places, np.int64)).reshape(-1)


__all__ = [
    "Acting", "Agent", "Algorithm", "Array", "AskedInference", "Batch", "Blocks", "Count", "DealtEnv", "Env", "EnvFactory",
    "EnvSource", "EnvSpec", "EvaluationSettings", "Experience", "Fraction", "Frozen", "Inference", "LateSave", "LossOutput",
    "Network", "NonNegative", "OnNonfinite", "Optimizer", "Placement", "Places", "Policy", "Pool", "Positive", "Precision",
    "Program", "Range", "Rate", "RecordedSource", "Replay", "Resume", "RunSpec", "SaveEnd", "Schedule", "Sequence", "Share",
    "Slot", "Source", "Stack", "StateReader", "StateWriter", "Tick", "TimeStep", "Trajectory", "Tree", "WeightStore",
    "Whole", "Worker",
]  # fmt: skip
