"""A run as data: the Program and its settings, apart from sources and algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, cast

from equipoise.facts import (
    AUTO,
    FREE,
    Excludes,
    Flag,
    Help,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Read,
    UnitInterval,
)
from equipoise.types.algorithm import Algorithm, Optimizer, Rewards
from equipoise.types.rows import ActingPrecision, Balance, Inference, Precision, Shard
from equipoise.types.sources import (
    LONG,
    OUT,
    REMOTE,
    WHAT,
    WHERE,
    EnvFactory,
    ReadsEnv,
    SourceSettings,
)

Prioritized = Read("selector", "prioritized", why="nothing is prioritized")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """The settings of a replay: how many rows are kept, and how much is learned from them.

    A round is ``unroll`` fresh rows of every stream; ``updates`` updates of ``batch`` items follow
    it. Both together are the samples per insert: ``updates * batch / (unroll * streams)``.
    """

    capacity: Annotated[
        PositiveInt,
        Help("Rows that are kept, of all streams together."),
        ReadsEnv,
        Read("memory", 0, why="as many rows are kept as fit"),
    ] = 1_000_000
    memory: Annotated[
        NonNegativeInt,
        Help(
            "Bytes of a replay's rows at most, such as 2GiB, instead of replay.capacity. 0: not "
            "set."
        ),
        ReadsEnv,
        Flag(WHAT, "BYTES", name="replay-memory"),
    ] = 0
    file: Annotated[
        str,
        Help(
            "A directory for the rows, mapped into memory, where they are more than memory holds. "
            "Empty: memory."
        ),
    ] = ""
    codec: Annotated[
        str,
        Help(
            "How large leaves are encoded: delta, lz4 or zstd, or by path "
            "(obs/image=delta,obs/map=zstd). Empty: not."
        ),
    ] = ""
    decode_threads: Annotated[
        PositiveInt,
        Help("Threads that decode the rows of a batch."),
        Read("codec", "", "none", unless=True, why="nothing is encoded"),
    ] = 2
    starts_at: Annotated[NonNegativeInt, Help("Rows before the first update."), ReadsEnv] = 1_000
    updates: Annotated[PositiveInt, Help("Updates of a round."), ReadsEnv] = 1
    selector: Annotated[
        Literal["uniform", "prioritized", "fifo"], Help("How the items of a batch are chosen.")
    ] = "uniform"
    alpha: Annotated[UnitInterval, Help("Power of a priority."), Prioritized] = 0.6
    epsilon: Annotated[
        NonNegativeFloat,
        Help("Number added to a priority, so that every item is seen again."),
        Prioritized,
    ] = 1e-6
    beta: Annotated[
        UnitInterval,
        Help("Power of the importance weights at first; linear to 1 over the run."),
        Prioritized,
    ] = 0.4
    relabel: Annotated[
        UnitInterval,
        Help(
            "Goal envs: share of the items that are learned from as if another goal had been "
            "desired."
        ),
    ] = 0.0
    strategy: Annotated[
        Literal["future", "final", "episode"],
        Help("Which of the goals that the episode achieved relabel draws from."),
        Read("relabel", why="no goal becomes another"),
    ] = "future"
    dataset: Annotated[
        str,
        Help(
            "A Minari data set, by id or directory, whose rows are learned from as well. Empty: "
            "none."
        ),
    ] = ""
    dataset_share: Annotated[
        UnitInterval,
        Help("Share of a batch that is the data set's."),
        Read("dataset", why="there is no data set"),
        ReadsEnv,
    ] = 0.5
    shards: Annotated[
        PositiveInt,
        Help(
            "Workers that keep the rows, each of its own actors. 1: the learner's process keeps "
            "them."
        ),
        ReadsEnv,
    ] = 1

    @property
    def encodes(self) -> bool:
        """Are some rows, if they are large, kept encoded?"""
        return self.codec not in ("", "none")

    def recorded(self, batch: int) -> int:
        """Items of a batch that are a data set's, if there is a data set next to live
        experience.
        """
        return round(self.dataset_share * batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    algorithm: Algorithm
    optimizer: Optimizer = None  # type: ignore[assignment]  # None: the algorithm's default_optimizer
    rewards: Rewards = field(default_factory=Rewards)
    # T
    unroll: Annotated[
        PositiveInt, Help("Steps of an env that go to the learner together."), Flag(WHAT, "T")
    ]
    batch: Annotated[
        PositiveInt,
        Help(
            "Batch size. On policy: unrolls per update, a multiple of --envs-per-actor. With a "
            "replay: sampled items."
        ),
        Flag(WHAT, "B"),
    ]
    replay: ReplaySettings | None = None  # None: a queue, and every row is learned from once
    publish_every: Annotated[
        PositiveInt, Help("Updates from one published version to the next; with a replay: rounds.")
    ] = 1

    def __post_init__(self) -> None:
        given = cast("Optimizer | None", self.optimizer)
        object.__setattr__(self, "optimizer", given or self.algorithm.default_optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A policy that does not learn: it plays past versions of another, one at a time.

    Every ``every`` updates the version of then joins a pool, whose oldest leaves once it has
    ``pool``, and one of the pool is drawn, each with the same chance. At first it is version 0.
    """

    of: Annotated[str, Help("The policy whose past versions are played.")]
    every: Annotated[
        PositiveInt, Help("Updates from one version that joins the pool to the next.")
    ] = 50
    pool: Annotated[PositiveInt, Help("Versions in the pool.")] = 10


Central = Read("inference", "central")
Engines = Excludes("source.task", why="with a task, whose generators write by engines")
Overlapping = Read(
    "max_lag", 0, unless=True, why="in lockstep each group of envs is acted for by itself"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The placement of workers, and the greatest distance between acting and learning.

    ``max_lag`` stands here and not in the schedule: it decides with the actors and their envs how
    many unrolls are under way at once, so a reader of either setting needs the other.
    """

    actors: Annotated[
        PositiveInt,
        Help("Workers that step envs and choose actions."),
        ReadsEnv,
        Flag(WHERE, "N|auto"),
        AUTO,
    ] = 1
    envs_per_actor: Annotated[
        PositiveInt, Help("Envs that an actor steps side by side."), Flag(WHERE, "N|auto"), AUTO
    ] = 16
    max_lag: Annotated[
        NonNegativeInt | None,
        Help(
            "How many versions old experience may be: 0 is lockstep (reproducible), more lets "
            "actors "
            "and learner overlap, none is unbounded."
        ),
        Flag(WHERE, "K|none"),
    ] = 0
    balance: Annotated[
        Balance,
        Help(
            "auto: while the run goes on, fewer actors act and rows grow less old where that is as "
            "fast, and more where it is "
            "faster; actors and max_lag are the limits."
        ),
        ReadsEnv,
        Flag(WHERE, "off|auto"),
        FREE,
        Excludes(
            "max_lag",
            0,
            why="in lockstep, whose runs are the same to the bit, or max_lag of at least 1",
        ),
        Excludes(
            "inference",
            "central",
            why="with inference=central, whose workers wait for groups of envs",
        ),
    ] = "off"
    least_actors: Annotated[
        PositiveInt, Help("Actors that act at least."), Read("balance", "auto"), FREE
    ] = 1
    learners: Annotated[
        PositiveInt,
        Help("Learners that share each batch, with actors of their own."),
        ReadsEnv,
        Flag(WHERE, "L|auto"),
        FREE,
        AUTO,
    ] = 1
    shard: Annotated[
        Shard,
        Help(
            "What each learner stores: the whole network (none), a slice of all parameters (fsdp), "
            "or a slice "
            "of wide layers (tensor)."
        ),
        Read("learners", 1, unless=True, why="one learner keeps all"),
        FREE,
        Excludes("compile", why="with placement.compile, whose graphs hold whole parameters"),
        Excludes(
            "precision",
            "fp16",
            why="with precision fp16, whose scale would differ between the learners",
        ),
    ] = "none"
    gradient_checkpointing: Annotated[
        bool,
        Help(
            "Keep no more than the inputs of a network's blocks for backward, and compute the rest "
            "anew there."
        ),
        FREE,
    ] = False
    inference: Annotated[
        Inference,
        Help(
            "Where actions are chosen: in each actor (local), or in workers for all of them "
            "(central)."
        ),
        Flag(WHERE, "local|central|auto"),
        AUTO,
        Engines,
    ] = "local"
    partial_streams: Annotated[
        NonNegativeInt,
        Help(
            "An actor acts once so many of its streams have answered, for those; slow ones hold "
            "nobody up. 0: all of them."
        ),
        ReadsEnv,
        Flag(WHERE),
        Engines,
        Excludes(
            "max_lag",
            0,
            why="in lockstep, in which the order of answers may change no bit (use max_lag=4)",
        ),
        Excludes(
            "inference",
            "central",
            why="with inference=central, whose groups of envs do not wait for each other",
        ),
        Excludes("compile", why="with compile, whose torso has one number of rows"),
    ] = 0
    inference_workers: Annotated[
        PositiveInt, Help("Inference workers; the actors are dealt to them evenly."), Central
    ] = 1
    inference_batch: Annotated[
        NonNegativeInt,
        Help("Streams that an inference worker acts for at once, at most. 0: all that wait."),
        Central,
        Overlapping,
        FREE,
    ] = 0
    inference_wait_ms: Annotated[
        NonNegativeFloat,
        Help(
            "How long an inference worker waits for half of its env groups before it acts. 0: act "
            "at once."
        ),
        Central,
        Overlapping,
        FREE,
    ] = 0.0
    device: Annotated[
        str, Help("Device of the learner."), Flag(WHERE, "cpu|cuda[:N]|auto"), FREE, AUTO
    ] = "cpu"
    precision: Annotated[
        Precision,
        Help(
            "Numbers of convolutions and matrix products, in learner and actors. On new processors "
            "medium pays for "
            "wide MLPs, bf16 for images. tf32 and fp16 are for GPUs."
        ),
        Flag(WHERE, "fp32|medium|tf32|bf16|fp16|auto"),
        FREE,
        AUTO,
    ] = "fp32"
    acting_precision: Annotated[
        ActingPrecision,
        Help("Weights that actors act with are rounded to this; reports say what it changes."),
        FREE,
        Engines,
        Excludes(
            "precision",
            "fp32",
            unless=True,
            why="with precision={}, which rounds in actors already",
        ),
    ] = "fp32"
    compile: Annotated[
        bool,
        Help(
            "Compile torsos of images, and their loss, with torch.compile: a minute at the start."
        ),
        FREE,
        Engines,
    ] = False
    graphs: Annotated[
        bool,
        Help("On a GPU: record whole updates of the learner as CUDA graphs, which are replayed."),
        FREE,
        Excludes("device", "cpu", why="with device=cpu, since CUDA graphs are of a GPU"),
        Excludes(
            "learners", 1, unless=True, why="with {} learners, whose sums a graph cannot wait for"
        ),
    ] = False
    threads: Annotated[
        PositiveInt,
        Help("Learner threads (each actor uses one)."),
        Flag(WHERE, "N|auto"),
        FREE,
        AUTO,
    ] = 1
    auto: Annotated[
        tuple[str, ...],
        Help(
            "Settings of these that are measured when the run begins, as --set "
            "placement.threads=auto says of one."
        ),
        FREE,
        Excludes("source.task", why="with a task, of which nothing is measured at the start"),
    ] = ()
    deadline_s: Annotated[
        PositiveFloat,
        Help("Kill and replace a worker that did nothing for this many seconds."),
        FREE,
    ] = 120.0
    give_up_s: Annotated[
        PositiveFloat,
        Help(
            "End a run in which workers are killed from outside and nothing was learned for so "
            "many seconds."
        ),
        FREE,
    ] = 600.0
    trace_s: Annotated[
        NonNegativeFloat,
        Help("Seconds of its last work that each worker keeps for 'equipoise trace'. 0: none."),
        FREE,
    ] = 0.0
    nvtx: Annotated[
        bool,
        Help(
            "Show the parts of each worker's work to NVIDIA's profilers, by NVTX. Needs a torch "
            "with CUDA."
        ),
        FREE,
        Excludes(
            "trace_s",
            why="with placement.trace_s={}, which keeps the same parts (remove one of them)",
        ),
    ] = False

    @property
    def halves(self) -> int:
        """Groups of envs of an actor: two if an actor steps a group during inference for the other
        group.
        """
        return 2 if self.inference == "central" and self.envs_per_actor % 2 == 0 else 1

    @property
    def group_envs(self) -> int:
        """Envs of a group."""
        return self.envs_per_actor // self.halves


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The length of a run, the seed of its random numbers, and the times of its checkpoints."""

    steps: Annotated[
        PositiveInt,
        Help(
            "Env steps in all, after frame skip, such as 500000, 500k or 1M; updates with "
            "--dataset."
        ),
        Flag(LONG),
        FREE,
    ] = 500_000
    schedule_steps: Annotated[
        PositiveInt | None,
        Help("Env steps over which schedules run. none: steps, as the run began with."),
        FREE,
    ] = None
    seed: Annotated[NonNegativeInt, Help("Seed of every random number."), Flag(WHAT)] = 0
    checkpoint_every: Annotated[
        NonNegativeInt | None,
        Help("Save the whole run that often. 0: at the end only. none: every two minutes."),
        Flag(OUT, "STEPS"),
        FREE,
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """When fresh episodes are played, how many, and the return or the alarm that ends the run."""

    stop_at: Annotated[
        float | None,
        Help(
            "Stop when an evaluation reaches this mean return, and another one of 100 episodes "
            "does, too."
        ),
        Flag(LONG, "RETURN"),
        FREE,
        Needs("episodes", why="of at least 1, since the evaluated return decides"),
    ] = None
    episodes: Annotated[
        NonNegativeInt,
        Help("Fresh episodes of an evaluation; 'evaluate' has --episodes."),
        Flag(LONG, name="evaluate-episodes"),
        FREE,
    ] = 20
    on_alarm: Annotated[
        Literal["warn", "stop"],
        Help(
            "What an alarm does, a sign that the run goes nowhere: it is said, or it ends the run "
            "as well."
        ),
        Flag(LONG, "warn|stop"),
        FREE,
    ] = "warn"
    every: Annotated[
        PositiveInt | None,
        Help("Evaluate that often, beside training. none: near --stop-at, and at the end."),
        Flag(LONG, "STEPS", name="evaluate-every"),
        FREE,
        Needs("episodes", why="of at least 1"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A run as data: the source of experience, its learning and placement, its length, and its
    evaluation.

    ``runtime.program`` writes it as JSON and reads it back, ``runtime.refusals`` lists the settings
    that cannot work. A setting without ``FREE`` is what a saved state is of: a run that goes on
    keeps it.
    """

    source: SourceSettings
    policies: Mapping[str, Policy | Frozen]  # usually one, "main"
    # agent, or a pattern like "archer_*" -> policy; else it is "main"
    route: Mapping[str, str] = field(default_factory=dict)
    placement: Placement = Placement()
    schedule: Schedule = Schedule()
    evaluation: EvaluationSettings = EvaluationSettings()

    @property
    def env(self) -> EnvFactory:
        """The env that is stepped, or that evaluation plays; ValueError if there is none."""
        if self.source.played is None:
            raise ValueError(
                "source.env: expected an env, got none: this run has recorded rows alone"
            )
        return self.source.played

    @property
    def outside(self) -> bool:
        """Are the envs worlds outside, which connect to the run?"""
        return self.source.played is not None and self.source.played.target.startswith(REMOTE)

    @property
    def name(self) -> str:
        """The env's target, or the task or the data set if there is no env."""
        return self.source.title

    @property
    def actors(self) -> int:
        """Actors that run: none if rows are recorded."""
        return 0 if self.source.recorded else self.placement.actors

    @property
    def groups(self) -> int:
        """Groups of envs in the run. Each writes one block of rows, by the same weights."""
        return self.actors * self.placement.halves


def first_learning(program: Program) -> Policy:
    """The first policy that learns."""
    return next(iter(learning(program).values()))


def learning(program: Program) -> dict[str, Policy]:
    """The policies that learn, in the program's order."""
    return {name: policy for name, policy in program.policies.items() if isinstance(policy, Policy)}
