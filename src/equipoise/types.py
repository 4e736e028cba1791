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
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    import gymnasium
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

    Where the streams of an env are dealt to several policies, whose spaces may differ, every field is a dict with a branch for
    each policy, and so are the action and the streams that ``Env.send`` takes.
    """

    obs: Tree  # [B, ...]
    reward: Array  # [B] float32, for the action just taken
    terminated: Array  # [B] bool, the MDP ended
    truncated: Array  # [B] bool, a clock cut it
    first: Array  # [B] bool, obs begins an episode: reset recurrent state
    valid: Array  # [B] bool, False: the action was ignored (reset row, aborted episode, absent agent, another stream's hold)
    stream: Array  # [B] int64, which streams these rows are
    info: Array | None = None  # [B, M] float64, the numbers of Program.metrics from the last step, nan where absent

    def of(self, policy: str) -> TimeStep:
        """The branch of one policy."""
        return TimeStep(**{name: getattr(self, name)[policy] for name in TimeStep.__slots__ if name != "info"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """An observation that is the last ``frames`` screens along its first axis, the newest last."""

    frames: int
    padding: Literal["zero", "first"]  # what stands before an episode's first: black, or that frame repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """What a network and a slot need to know of an env."""

    observation: gymnasium.Space[Any]  # of one stream; a Dict of such by policy where there are several
    action: gymnasium.Space[Any]  # the same
    mask: tuple[str, ...] = ()  # the keys in the observation under which the allowed actions stand; (): all are allowed
    resume: Resume = "restart"
    frame_skip: int = 1  # frames = frame_skip * steps
    stacks: Mapping[str, Stack] = field(default_factory=dict)  # by the path of the observation's leaf, "" where it is one array
    notes: tuple[str, ...] = ()  # what an adapter could not keep, e.g. "truncation treated as termination"
    settings: str = ""  # what it was made with, in words, where a family has a spec of its own
    agents: tuple[str, ...] = ("",)  # of one env; agent a of env e is stream e * len(agents) + a
    places: tuple[int, ...] = (0,)  # which of them the policy acts for
    dealt: Mapping[str, EnvSpec] = field(default_factory=dict)  # what each policy needs to know, where there are several

    def of(self, policy: str) -> EnvSpec:
        """What one policy needs to know."""
        return self.dealt.get(policy, self)


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


class Agent(Protocol):
    """All that an env ever talks to."""

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

    def of(self, policy: str) -> Batch:
        """The branch of one policy, where ``data`` and ``weight`` have one for each and an item is an env's."""
        data: Any = self.data
        columns = len(self.weight[policy]) // len(self.keys)
        return Batch(data=data[policy], keys=self.keys.repeat(columns, 0), weight=self.weight[policy], targets=self.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where an unroll is written: preallocated views, filled in place."""

    keys: Array  # [B, 2] int64
    data: Trajectory

    def of(self, policy: str) -> Slot:
        """The branch of one policy, where ``data`` has one for each and an item is an env's."""
        data: Any = self.data
        return Slot(keys=self.keys, data=data[policy])


class Places(Protocol):
    """What an actor needs of an experience."""

    def reserve(self, streams: Array) -> Slot | None: ...  # taken when an unroll starts
    def commit(self, slot: Slot) -> None: ...
    def restart(self, slot: Slot) -> None: ...  # its env is lost: what was written counts as dropped, the slot is written anew


class Experience(Places, Protocol):
    """Nothing blocks: None means "not yet", and only the runtime waits."""

    def cancel(self, streams: Array) -> None: ...  # their owner is verified dead; open slots count as dropped
    def sample(self, n: int) -> Batch | None: ...
    def learned(self, keys: Array, priority: Array | None) -> None: ...  # new priorities [n] of the items of a batch
    def finish(self, keys: Array) -> None: ...  # after publish: what the batch held may be written over
    def stats(self) -> dict[str, float]: ...
    def state(self) -> Tree: ...
    def load(self, state: Tree) -> None: ...


class WeightStore(Protocol):
    def publish(self, version: int, params: Mapping[str, Tensor]) -> None: ...  # parameters and buffers
    def fetch(self, newer_than: int = -1) -> tuple[int, Mapping[str, Tensor]] | None: ...


class Worker(Protocol):
    def tick(self) -> Tick: ...  # one bounded piece of work
    def state(self) -> Tree: ...
    def load(self, state: Tree) -> None: ...


# ---------------------------------------------------------------------------------------------------------- algorithms


@dataclass(frozen=True, slots=True)
class Range:
    """What numbers make sense, beside a field's type: ``Annotated[float, Range(0, 1)]``; ``runtime.refusals`` reads it."""

    low: float
    high: float = math.inf
    above: bool = False  # ``low`` itself makes no sense

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:g}"
        low = "more than" if self.above else "at least"
        if self.high == math.inf:
            return f"{low} {self.low:g}"
        return f"more than {self.low:g} and at most {self.high:g}" if self.above else f"{self.low:g} to {self.high:g}"


Share = Annotated[float, Range(0, 1)]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, above=True)]
Fraction = Annotated[float, Range(0, 1, above=True)]
Count = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]


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


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Hyper-parameters and five pure functions; stateless, picklable, one readable file each.

    The fields here are those that the learner reads; a subclass adds its own and overrides the defaults. A field's ``Range``
    says what numbers make sense: ``gamma: Share = 0.99``.
    """

    has_target: ClassVar[bool] = False  # does it read ``target_net``
    needs_replay: ClassVar[bool] = False  # does it learn from the experience of other policies than the newest
    needs_dataset: ClassVar[bool] = False  # does it learn from what somebody else did

    learning_rate: NonNegative = 3e-4
    anneal: bool = True  # learning rate linear to 0 over Program.schedule_steps
    optimizer: Literal["adam", "rmsprop"] = "adam"
    optimizer_epsilon: NonNegative = 1e-5
    optimizer_decay: Share = 0.99  # RMSProp's smoothing constant
    max_grad_norm: NonNegative = 0.5  # by the norm over a group, 0: off
    epochs: Count = 1
    minibatches: Count = 1  # per epoch; by rows for feed-forward nets, by streams for recurrent ones
    target_every: Whole = 0  # updates from one copy of the network into the target network to the next, 0: there is none
    tau: Fraction = 1.0  # how far a copy goes: 1 all the way, 0.005 as a soft target does

    @property
    def item_rows(self) -> int | None:
        """Rows of an item that the loss learns from, where a replay cuts them; None: whole unrolls."""
        return None

    def unread(self) -> dict[str, str]:
        """Fields that nothing reads while the others are as they are, each with the reason; a subclass adds its own."""
        found = {} if self.optimizer == "rmsprop" else {"optimizer_decay": f"the optimizer is {self.optimizer}"}
        return found if self.target_every else found | {"tau": "there is no target network (algorithm.target_every=0)"}

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

    def targets(self, net: Any, target_net: Any, data: Trajectory, *, rng: torch.Generator) -> Tree:
        """[T, B], once per batch, without gradient (PPO's GAE). ``target_net`` is None unless ``target_every``."""
        return {}

    def absorb(self, net: Any, data: Trajectory, memory: Tree) -> Tree:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvFactory:
    """An env as data: a Gymnasium id, ``module:id`` or ``module:callable``, and its JSON arguments."""

    target: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    action_mask: str = "auto"  # the observation's key "action_mask", if it has one; "info", "obs/KEY", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What is kept of a policy's rows, and how much is learned from them.

    A round is ``unroll`` fresh rows of every stream; ``updates`` updates of ``batch`` items follow it. Both together are the
    samples per insert: ``updates * batch / (unroll * streams)``.
    """

    capacity: Count = 1_000_000  # rows, of all streams together
    memory: Whole = 0  # bytes of rows at most, instead of ``capacity``; 0: as the capacity says
    file: str = ""  # a directory for the rows, mapped into memory, where they are more than memory holds; "": memory
    codec: str = ""  # how large leaves are encoded: "delta", "lz4" or "zstd", or by path, "obs/image=delta,obs/map=zstd"
    decode_threads: Count = 2  # that decode the rows of a batch
    starts_at: Whole = 1_000  # rows before the first update
    updates: Count = 1  # a round
    selector: Literal["uniform", "prioritized", "fifo"] = "uniform"
    alpha: Share = 0.6  # prioritized: the power of a priority
    epsilon: NonNegative = 1e-6  # prioritized: added to a priority, so that nothing is out for ever
    beta: Share = 0.4  # the power of the importance weights, linear to 1 over the run
    relabel: Share = 0.0  # goal envs: items that are learned from as if another goal had been desired
    strategy: Literal["future", "final", "episode"] = "future"  # relabel: which of the goals that the episode achieved
    dataset: str = ""  # a Minari data set, by id or directory, whose rows are learned from as well, and never overwritten
    dataset_share: Share = 0.5  # of a batch that is the data set's; where there are no actors all of it is
    shards: Count = 1  # workers that keep the rows, each of every so-many-th actor; 1: the learner's process keeps them itself

    def unread(self, actors: int) -> dict[str, str]:
        """As ``Algorithm.unread``, in a run with so many actors."""
        found = {"capacity": f"the rows are as many as fit in replay.memory={self.memory}"} if self.memory else {}
        if self.selector != "prioritized":
            found |= dict.fromkeys(("alpha", "beta", "epsilon"), f"nothing is prioritized (replay.selector={self.selector})")
        if not self.encodes:
            found["decode_threads"] = f"nothing is encoded (replay.codec={self.codec or 'none'})"
        if not self.relabel:
            found["strategy"] = "no goal becomes another (replay.relabel=0)"
        if not self.dataset:
            found["dataset_share"] = "there is no data set (replay.dataset)"
        if not actors:
            of_live = ("capacity", "memory", "starts_at", "updates", "dataset_share", "shards")
            found |= dict.fromkeys(of_live, "there is no live experience (actors=0)")
        return found

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
    unroll: Count  # T
    batch: Count  # envs' windows a learner step consumes (an env's is one of each of its agents); with a replay: items
    replay: Replay | None = None  # None: a queue, and every row is learned from once
    publish_every: Count = 1  # updates; with a replay: rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A policy that does not learn: it plays past versions of another, one at a time.

    Every ``every`` updates the version of then joins a pool, whose oldest leaves once it has ``pool``, and one of the pool is
    drawn, each with the same chance. At first it is version 0.
    """

    of: str  # the policy whose past it plays
    every: Count = 50  # updates
    pool: Count = 10  # versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A run as data. ``runtime.program`` writes it as JSON and reads it back, ``runtime.refusals`` says what cannot work."""

    env: EnvFactory
    policies: Mapping[str, Policy | Frozen]  # usually one, "main"
    route: Mapping[str, str] = field(default_factory=dict)  # agent, or a pattern like "archer_*" -> policy; else it is "main"
    actors: Whole = 1  # 0: none, and no env: replay.dataset is all there is, and ``steps`` are updates
    envs_per_actor: Count = 16
    learners: Count = 1
    inference: Inference = "local"  # who chooses actions: each actor, or workers of their own for all of them (central)
    inference_workers: Count = 1  # central: the actors are dealt to them as evenly as it goes
    inference_batch: Whole = 0  # central: streams that are acted for at once, at most; 0: all that wait
    inference_wait_ms: NonNegative = 0.0  # central: for half of the groups of envs to wait for actions; 0: acts for who waits
    max_lag: Whole | None = 0  # versions between the start of an unroll and its use; 0 lockstep, None free-running
    device: str = "cpu"
    precision: Precision = "fp32"  # of convolutions and matrix products, in learner and actors (nets/precision.py)
    acting: Acting = "fp32"  # weights that actors act with, rounded to this; what it changes is reported (actors/forward.py)
    compile: bool = False  # torsos of images with torch.compile: a minute at the start
    threads: Count = 1  # of the learner; an actor has one
    steps: Count = 500_000  # env steps after frame skip, rounded up to whole batches
    schedule_steps: Count | None = None  # None: steps; kept when a finished run is extended
    seed: Whole = 0
    stop_at: float | None = None  # evaluated return that ends the run
    evaluate_episodes: Whole = 20
    evaluate_every: Count | None = None  # env steps between evaluations beside training; None: near stop_at, and at the end
    deadline_s: Positive = 120.0  # a worker whose tick takes longer hangs: it is killed and replaced
    checkpoint_every: Whole | None = None  # env steps, rounded up to whole updates; 0: at the end only; None: every two minutes
    on_nonfinite: OnNonfinite = "stop"  # nan or an infinity from an env: end the run, its episode, or make it finite
    metrics: tuple[str, ...] = ()  # numbers of the env's info that are reported: keys, or paths of keys ("episode/r")

    @property
    def halves(self) -> int:
        """Groups of envs of an actor: under central inference one of them is stepped while the other is acted for."""
        return 2 if self.inference == "central" and self.envs_per_actor % 2 == 0 else 1

    @property
    def groups(self) -> int:
        """Of envs, in the run: each is stepped together, writes one block of rows, and acts by the same weights."""
        return self.actors * self.halves

    @property
    def group_envs(self) -> int:
        return self.envs_per_actor // self.halves


def learning(program: Program) -> dict[str, Policy]:
    """The policies that learn, in the program's order."""
    return {name: policy for name, policy in program.policies.items() if isinstance(policy, Policy)}


def stream_ids(group: int, envs: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[E] int64, the envs of one group; where an env has one agent they are its streams."""
    return np.arange(group * envs, (group + 1) * envs, dtype=np.int64)


def agent_streams(envs: Array, agents: int = 1, places: Sequence[int] = (0,)) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[E * len(places)] int64, env by env: the streams of the agents at ``places`` among the ``agents`` of an env."""
    return (np.asarray(envs, np.int64)[:, None] * agents + np.asarray(places, np.int64)).reshape(-1)


__all__ = [
    "Acting", "Agent", "Algorithm", "Array", "AskedInference", "Batch", "Count", "Env", "EnvFactory", "EnvSpec", "Experience",
    "Fraction", "Frozen", "Inference", "LossOutput", "Network", "NonNegative", "OnNonfinite", "Places", "Policy", "Positive",
    "Precision",
    "Program", "Range", "Replay", "Resume", "Sequence", "Share", "Slot", "Stack", "Tick", "TimeStep", "Trajectory", "Tree",
    "WeightStore", "Whole", "Worker",
]  # fmt: skip
