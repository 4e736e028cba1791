"""A run as data: the Program and its settings, apart from sources and algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, cast

from equipoise.facts import (
    AUTO,
    FREE,
    KEPT,
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
from equipoise.sums import models
from equipoise.types.algorithm import Algorithm, Optimizer, Rewards
from equipoise.types.rows import (
    ActingPrecision,
    Balance,
    Inference,
    Precision,
    Shard,
    TextPlacement,
)
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
        Help("Replay size in rows, over all streams"),
        ReadsEnv,
        Read("memory", 0, why="as many rows are kept as fit"),
    ] = 1_000_000
    memory: Annotated[
        NonNegativeInt,
        Help(
            "Replay size in bytes, such as 2GiB; 0 uses capacity", "It replaces `replay.capacity`."
        ),
        ReadsEnv,
        Flag(WHAT, "BYTES", name="replay-memory"),
    ] = 0
    file: Annotated[
        str,
        Help(
            "Directory for rows beyond memory; empty uses memory",
            "The rows are mapped into memory.",
        ),
    ] = ""
    codec: Annotated[
        str,
        Help(
            "Encoding of large leaves: delta, lz4 or zstd; empty is off",
            "One codec for all leaves, or by path: obs/image=delta,obs/map=zstd.",
        ),
    ] = ""
    decode_threads: Annotated[
        PositiveInt,
        Help("Threads that decode a batch"),
        Read("codec", "", "none", unless=True, why="nothing is encoded"),
    ] = 2
    starts_at: Annotated[NonNegativeInt, Help("Rows before the first update"), ReadsEnv] = 1_000
    updates: Annotated[PositiveInt, Help("Updates per round of fresh rows"), ReadsEnv] = 1
    selector: Annotated[Literal["uniform", "prioritized", "fifo"], Help("Sampling of items")] = (
        "uniform"
    )
    alpha: Annotated[UnitInterval, Help("Exponent of priorities"), Prioritized] = 0.6
    epsilon: Annotated[
        NonNegativeFloat,
        Help("Constant added to each priority", "It keeps the chance of every item above 0."),
        Prioritized,
    ] = 1e-6
    beta: Annotated[
        UnitInterval,
        Help(
            "Initial exponent of importance weights; rises to 1", "It rises linearly over the run."
        ),
        Prioritized,
    ] = 0.4
    relabel: Annotated[
        UnitInterval,
        Help("Share of items relabelled with another goal (HER)", "It needs a goal env."),
    ] = 0.0
    strategy: Annotated[
        Literal["future", "final", "episode"],
        Help("Source of relabelled goals in an episode"),
        Read("relabel", why="no goal becomes another"),
    ] = "future"
    dataset: Annotated[
        str,
        Help("Minari data set to mix in, by id or directory; empty is off"),
    ] = ""
    dataset_share: Annotated[
        UnitInterval,
        Help("Share of a batch from the data set"),
        Read("dataset", why="there is no data set"),
        ReadsEnv,
    ] = 0.5
    shards: Annotated[
        PositiveInt,
        Help(
            "Workers that store rows; 1 uses the learner's process",
            "Each worker has the rows of its own actors.",
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
    unroll: Annotated[PositiveInt, Help("Rollout length in env steps"), Flag(WHAT, "T")]
    batch: Annotated[
        PositiveInt,
        Help(
            "Batch size, in rollouts or items",
            "On policy: unrolls per update, a multiple of `--envs-per-actor`. With a "
            "replay: sampled items.",
        ),
        Flag(WHAT, "B"),
    ]
    replay: ReplaySettings | None = None  # None: a queue, and every row is learned from once
    publish_every: Annotated[
        PositiveInt, Help("Updates between published versions", "With a replay: rounds.")
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

    of: Annotated[str, Help("Policy to play past versions of")]
    every: Annotated[PositiveInt, Help("Updates between versions that join the pool")] = 50
    pool: Annotated[PositiveInt, Help("Versions in the pool")] = 10


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
        Help(
            "Workers (actors) that step envs", "With local inference they also choose the actions."
        ),
        ReadsEnv,
        Read("text", "together", unless=True, why="each learner generates"),
        Flag(WHERE, "N|auto"),
        AUTO,
    ] = 1
    envs_per_actor: Annotated[PositiveInt, Help("Envs per actor"), Flag(WHERE, "N|auto"), AUTO] = 16
    max_lag: Annotated[
        NonNegativeInt | None,
        Help(
            "Staleness limit in policy versions; 0 is lockstep",
            "A run in lockstep is reproducible. A higher limit lets actors and learner overlap. "
            "none sets no limit.",
        ),
        Flag(WHERE, "K|none"),
    ] = 0
    balance: Annotated[
        Balance,
        Help(
            "Automatic adaptation of actors and staleness",
            "With auto fewer actors act, on fresher rows, if that is as fast; more actors act, "
            "on older rows, if that is faster. `actors` and `max_lag` are the limits.",
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
        PositiveInt, Help("Fewest actors that act"), Read("balance", "auto"), FREE
    ] = 1
    text: Annotated[
        TextPlacement,
        Help(
            "Workers that generate text: apart, together, elastic or auto",
            "together: each learner generates and then learns. elastic: learners that wait also "
            "generate, if that pays. auto measures which of the first two is faster.",
        ),
        Read("source.task", why="it places the generators of a task"),
        Flag(WHERE, "PLAN", name="placement"),
        KEPT,
        AUTO,
    ] = "apart"
    learners: Annotated[
        PositiveInt,
        Help("Learners that share each batch", "Each learner has actors of its own."),
        ReadsEnv,
        Flag(WHERE, "L|auto"),
        FREE,
        AUTO,
    ] = 1
    shard: Annotated[
        Shard,
        Help(
            "Part of the network that each learner stores",
            "none: the whole network. fsdp: a slice of all parameters. tensor: a "
            "slice of wide layers.",
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
            "Recompute activations in backward to save memory",
            "Only the inputs of a network's blocks are stored.",
        ),
        FREE,
    ] = False
    inference: Annotated[
        Inference,
        Help("Inference in each actor (local) or in workers (central)"),
        Flag(WHERE, "local|central|auto"),
        AUTO,
        Engines,
    ] = "local"
    partial_streams: Annotated[
        NonNegativeInt,
        Help(
            "Env answers that an actor waits for; 0 waits for all",
            "It then acts for the envs that have answered, so slow envs do not delay the others.",
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
        PositiveInt, Help("Inference workers", "The actors are divided among them evenly."), Central
    ] = 1
    inference_batch: Annotated[
        NonNegativeInt,
        Help("Most streams per inference batch; 0 takes all waiting"),
        Central,
        Overlapping,
        FREE,
    ] = 0
    inference_wait_ms: Annotated[
        NonNegativeFloat,
        Help("Wait in ms for half of the env groups; 0 turns it off"),
        Central,
        Overlapping,
        FREE,
    ] = 0.0
    device: Annotated[
        str, Help("Device of the learner"), Flag(WHERE, "cpu|cuda[:N]|auto"), FREE, AUTO
    ] = "cpu"
    precision: Annotated[
        Precision,
        Help(
            "Number format of network computations",
            "It applies to convolutions and matrix products, in learner and actors. "
            "On new processors medium pays for wide MLPs, bf16 for images. tf32 and "
            "fp16 are for GPUs.",
        ),
        Flag(WHERE, "fp32|medium|tf32|bf16|fp16|auto"),
        FREE,
        AUTO,
    ] = "fp32"
    acting_precision: Annotated[
        ActingPrecision,
        Help(
            "Number format of the weights that actors act with",
            "Reports show what the rounding changes.",
        ),
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
            "Compile image torsos and their loss with torch.compile",
            "It takes a minute at the start.",
        ),
        FREE,
        Engines,
    ] = False
    graphs: Annotated[
        bool,
        Help("Record learner updates as CUDA graphs (GPU only)"),
        FREE,
        Excludes("device", "cpu", why="with device=cpu, since CUDA graphs are of a GPU"),
        Excludes(
            "learners", 1, unless=True, why="with {} learners, whose sums a graph cannot wait for"
        ),
    ] = False
    threads: Annotated[
        PositiveInt,
        Help("Learner threads (each actor uses one)"),
        Flag(WHERE, "N|auto"),
        FREE,
        AUTO,
    ] = 1
    auto: Annotated[
        tuple[str, ...],
        Help("Placement settings to measure when the run begins"),
        FREE,
    ] = ()
    deadline_s: Annotated[
        PositiveFloat,
        Help("Seconds without work until a worker is replaced"),
        FREE,
    ] = 120.0
    give_up_s: Annotated[
        PositiveFloat,
        Help(
            "Seconds without learning after which a failing run ends",
            "The run ends only if workers are killed from outside.",
        ),
        FREE,
    ] = 600.0
    trace_s: Annotated[
        NonNegativeFloat,
        Help("Seconds of work kept for 'equipoise trace'; 0 is off"),
        FREE,
    ] = 0.0
    nvtx: Annotated[
        bool,
        Help(
            "Mark each worker's work with NVTX for NVIDIA's profilers",
            "It needs a torch with CUDA.",
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
            "Env steps in all, such as 500k or 1M",
            "They count after frame skip. With `--dataset` they are updates, and on "
            "text they are samples.",
        ),
        Flag(LONG),
        FREE,
    ] = 500_000
    schedule_steps: Annotated[
        PositiveInt | None,
        Help(
            "Env steps of the schedules; none uses the run's steps",
            "A resume with other `--steps` does not change them.",
        ),
        FREE,
    ] = None
    seed: Annotated[NonNegativeInt, Help("Seed of every random number"), Flag(WHAT)] = 0
    checkpoint_every: Annotated[
        NonNegativeInt | None,
        Help(
            "Env steps between checkpoints; 0 saves at the end only",
            "none saves every two minutes.",
        ),
        Flag(OUT, "STEPS"),
        FREE,
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """When fresh episodes are played, how many, and the return or the alarm that ends the run."""

    stop_at: Annotated[
        float | None,
        Help(
            "Mean return at which the run stops",
            "An evaluation has to reach it, and then another evaluation of 100 episodes.",
        ),
        Flag(LONG, "RETURN"),
        FREE,
        Needs("episodes", why="of at least 1, since the evaluated return decides"),
    ] = None
    episodes: Annotated[
        NonNegativeInt,
        Help("Episodes per evaluation ('evaluate' has --episodes)"),
        Flag(LONG, name="evaluate-episodes"),
        FREE,
    ] = 20
    on_alarm: Annotated[
        Literal["warn", "stop"],
        Help(
            "Reaction to an alarm, a sign that learning fails",
            "warn: print it. stop: print it and end the run.",
        ),
        Flag(LONG, "warn|stop"),
        FREE,
    ] = "warn"
    every: Annotated[
        PositiveInt | None,
        Help(
            "Env steps between evaluations",
            "none evaluates near the goal of `--stop-at`, and at the end.",
        ),
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
    def reward_models(self) -> tuple[str, ...]:
        """The trained reward models that its rewards name, as ``run:DIR``."""
        sums = [policy.rewards.sum for policy in learning(self).values()]
        return (*self.source.reward_models, *(name for text in sums for name in models(text)))

    @property
    def actors(self) -> int:
        """Actors that run: none if rows are recorded, one in each learner if they are together;
        both kinds in an elastic run.
        """
        place = self.placement
        if self.source.recorded:
            return 0
        if place.text == "together":
            return place.learners
        return place.actors + (place.learners if place.text == "elastic" else 0)

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
