"""Sources of a run's experience: envs, recorded rows, or a task for a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal, TypedDict

from equipoise.facts import (
    FREE,
    KEPT,
    Flag,
    Help,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Read,
)
from equipoise.sums import models
from equipoise.types.rows import OnNonfinite

REMOTE = "remote:"  # begins the target of worlds outside, which connect to the run
# begins the target of an env that is a function on tensors (equipoise.device_envs)
DEVICE = "device:"
JAX = "jax:"  # begins that of an env written in JAX, stepped as a device env
PROXY = "proxy:"  # begins the task of a run that learns from the calls of agents
# the sections of ``train --help``
SECTIONS = WHAT, WHERE, LONG, OUT = "What to learn", "Where it runs", "How long", "What comes out"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvFactory:
    """An env as data: its target and its JSON arguments.

    A target is a Gymnasium id, ``module:id``, ``module:callable``, ``device:NAME`` or
    ``jax:LIBRARY/NAME``.
    """

    target: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    action_mask: Annotated[
        str,
        Help(
            "Action mask: auto, info, obs/KEY or none",
            "auto: the observation's key action_mask, if it has one.",
        ),
        Flag(WHAT, "CHOICE"),
    ] = "auto"

    @property
    def on_device(self) -> bool:
        """Is it stepped with the policy, on the policy's device?"""
        return self.target.startswith((DEVICE, JAX))


class Stored(TypedDict, total=False):
    """How the weights lie in memory for the workers that act: arguments of a ``WeightPlan``."""

    dtype: str | None
    buffers: int


ReadsEnv = Read("source.dataset", "", why="there is no live experience")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Settings of every source. The class that ``behaviour`` names does the work."""

    behaviour: ClassVar[str]  # a subclass of ``sources.source.Source``, as module:Class
    # the same for an algorithm that learns from pairs; "": it is no other one
    of_pairs: ClassVar[str] = ""

    on_nonfinite: Annotated[
        OnNonfinite,
        Help(
            "Reaction to nan or infinity from an env",
            "stop: end the run. drop: drop the episode. clamp: clamp the value.",
        ),
        Flag(WHERE, "stop|drop|clamp"),
    ] = "stop"

    @property
    def title(self) -> str:
        """The name of the env, the data set or the task."""
        raise NotImplementedError

    @property
    def played(self) -> EnvFactory | None:
        """The env that is stepped, or that evaluation plays; None: no env is."""
        return None

    @property
    def recorded(self) -> str:
        """The data set if recorded rows are all there is, so that no actor runs; else ""."""
        return ""

    @property
    def reported(self) -> tuple[str, ...]:
        """The numbers of the env's info that are reported."""
        return ()

    @property
    def reward_models(self) -> tuple[str, ...]:
        """The reward models among its rewards, as ``run:DIR``."""
        return ()

    def stored(self) -> Stored:
        """How the weights lie in memory for the workers that act."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSource(SourceSettings):
    """Live experience: envs that actors step."""

    behaviour: ClassVar[str] = "equipoise.sources.envs:Envs"

    env: EnvFactory
    metrics: Annotated[
        tuple[str, ...],
        Help("Env info to report: keys, or paths such as episode/r"),
        Flag(OUT, "NAME[,NAME]"),
    ] = ()

    @property
    def title(self) -> str:
        return self.env.target

    @property
    def played(self) -> EnvFactory:
        return self.env

    @property
    def reported(self) -> tuple[str, ...]:
        return self.metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSource(SourceSettings):
    """Recorded rows alone. An env only evaluates; steps are updates."""

    behaviour: ClassVar[str] = "equipoise.sources.recorded:Recorded"

    dataset: Annotated[
        str,
        Help("Minari data set to learn from alone, by id or directory"),
        Flag(WHAT, "ID|DIR"),
    ]
    env: EnvFactory | None = None  # that evaluation plays; None: no evaluation

    @property
    def title(self) -> str:
        return self.dataset if self.env is None else self.env.target

    @property
    def played(self) -> EnvFactory | None:
        return self.env

    @property
    def recorded(self) -> str:
        return self.dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource(SourceSettings):
    """Prompts of a task, answered by generators, graded by rewards. Steps are samples."""

    behaviour: ClassVar[str] = "equipoise.sources.text:Texts"
    of_pairs: ClassVar[str] = "equipoise.sources.preferences:Preferences"

    task: Annotated[
        str,
        Help(
            "Prompts: a task, FILE, module:callable or KIND:NAME",
        ),
    ]
    arguments: Annotated[
        tuple[str, ...],
        Help(
            "Arguments of the task, as KEY=VALUE[,...]",
            "They are settings of a reasoning-gym data set, or held_out=FILE for a file.",
        ),
    ] = ()
    model: Annotated[
        str,
        Help(
            "Language model: tiny, a directory or a hub id",
            "llama:hidden_size=48,... is a new model of that size. A directory has config.json "
            "and safetensors.",
        ),
        Flag(WHAT, "MODEL"),
    ] = "tiny"
    lora: Annotated[
        PositiveInt | None,
        Help(
            "Rank of low-rank adapters; none learns the whole model",
            "The model stays as it is. Only adapters are learned, published and saved.",
        ),
        Flag(WHAT, "RANK"),
        KEPT,
    ] = None
    lora_alpha: Annotated[
        PositiveFloat,
        Help("Scale of the adapters, divided by their rank"),
        Read("lora"),
        KEPT,
    ] = 16.0
    lora_targets: Annotated[
        tuple[str, ...],
        Help(
            "Linear layers with an adapter; empty adapts them all",
            "A layer is named by the end of its name, such as q_proj, or by a pattern: `*.mlp.*`.",
        ),
        Read("lora"),
        KEPT,
    ] = ()
    adapter: Annotated[
        str,
        Help(
            "Folder of an adapter to begin with, as peft writes it",
            "The folder has the rank, the scale and the layers, so leave out `lora`.",
        ),
        KEPT,
    ] = ""
    reward: Annotated[
        str,
        Help(
            "Reward functions, as module:function[,...]",
            "Empty uses the task's own functions. A weighted sum is 0.5*my:f+my:g. run:DIR is a "
            "reward model: a run of reward_model, or its export; registry:NAME@ALIAS a version.",
        ),
    ] = ""
    reward_weights: Annotated[
        tuple[float, ...], Help("Weights of the rewards, in order; empty weighs each by 1")
    ] = ()
    caution: Annotated[
        NonNegativeFloat,
        Help(
            "Deviations of the reward models taken off their mean",
            "Used if `reward` is a sum of two reward models or more.",
        ),
    ] = 0.0
    gold: Annotated[
        str,
        Help(
            "True reward, which only evaluations read; none turns it off",
            "Empty uses the task's own functions if `reward` has a reward model.",
        ),
    ] = ""
    reward_deadline_s: Annotated[
        PositiveFloat, Help("Seconds for a reward to grade a group"), FREE
    ] = 60.0
    scorers: Annotated[
        int,
        Range(0, 1024),
        Help(
            "Workers that call the rewards for all generators",
            "0: each generator has a process for them. With several machines scorers may have "
            "machines of their own.",
        ),
        FREE,
    ] = 0
    chat_template_kwargs: Annotated[
        tuple[str, ...],
        Help(
            "Arguments of the chat template, as KEY=VALUE[,...]",
            "An example is enable_thinking=false. A column of the row takes precedence.",
        ),
    ] = ()
    prompt_tokens: Annotated[
        PositiveInt,
        Help(
            "Longest prompt in tokens; longer ones are left out",
            "The run reports how many prompts are left out.",
        ),
    ] = 512
    completion_tokens: Annotated[
        NonNegativeInt,
        Help(
            "Longest completion in tokens; 0 uses the task's limit",
            "A task without a limit has 256.",
        ),
        Flag(WHAT, "N", name="max-completion-length"),
    ] = 0
    turns: Annotated[
        NonNegativeInt,
        Help(
            "Most turns of a conversation; 0 uses the task's limit",
            "A task of conversations without a limit has 8. Other tasks have no turns.",
        ),
    ] = 0
    turn_tokens: Annotated[
        NonNegativeInt,
        Help(
            "Longest turn in tokens; 0 uses the task's limit",
            "`completion_tokens` limits a whole conversation, with the answers.",
        ),
    ] = 0
    answer_bytes: Annotated[
        PositiveInt,
        Help(
            "Longest answer of a conversation's partner in bytes",
            "A longer answer ends the conversation, which is not learned from.",
        ),
    ] = 16_384
    step_deadline_s: Annotated[
        PositiveFloat, Help("Seconds for a conversation's partner to answer a turn"), FREE
    ] = 60.0
    history: Annotated[
        Literal["append", "render"],
        Help("Earlier turns as later ones read them"),
    ] = "append"
    stop: Annotated[
        tuple[str, ...],
        Help(
            "Texts that end a completion",
            "They are part of the completion. The model's own end also ends it.",
        ),
    ] = ()
    samples_at_once: Annotated[
        PositiveInt, Help("Completions that a generator writes at the same time"), FREE
    ] = 256
    curriculum: Annotated[
        Literal["none", "pass_rate"],
        Help(
            "Choice of the prompts that are drawn",
            "none: all of them in turn. pass_rate: prompts that about half of the samples solve "
            "are drawn more often than prompts that all or no samples solve.",
        ),
    ] = "none"
    curriculum_floor: Annotated[
        float,
        Range(0.01, 1),  # below, a walk over few prompts that are all solved takes long
        Help(
            "Least chance that a prompt is drawn when its turn comes",
            "A prompt that half of the samples solve is always drawn. 1 is the plain order.",
        ),
        Read("curriculum", "pass_rate"),
    ] = 0.1
    curriculum_decay: Annotated[
        float,
        Range(0, 0.999),
        Help("Share of a prompt's old pass rate that a new group leaves"),
        Read("curriculum", "pass_rate"),
    ] = 0.5
    pass_reward: Annotated[
        Annotated[float, Range(1e-9, 1e9)] | None,  # as the weights of rewards
        Help(
            "Reward of a sample that passes; none is the full sum",
            "The full sum is that of the rewards' weights. A smaller reward counts in part.",
        ),
        Read("curriculum", "pass_rate"),
    ] = None
    kv_tokens: Annotated[
        NonNegativeInt | Literal["auto"],
        Help(
            "Tokens in a generator's KV cache; 0 is room for each sample",
            "Samples take memory by their present length. If they grow beyond it, the youngest is "
            "given back and goes on later. auto: half of the free memory.",
        ),
        FREE,
    ] = 0
    engine: Annotated[
        str,
        Help(
            "Engine of generators: torch, or vllm:URL[,URL...]",
            "sim is for trials: it draws random tokens in the time of a device that this machine "
            "does not have, as in sim:step_s=0.02,median=100.",
        ),
        Flag(WHERE, "torch|vllm:URL"),
        FREE,
    ] = "torch"
    engine_token_file: Annotated[
        str,
        Help(
            "File with the token of the engine's servers",
            "Without it $EQUIPOISE_ENGINE_TOKEN is used. A server beyond this machine needs one.",
        ),
        FREE,
    ] = ""
    engine_versions: Annotated[
        tuple[str, ...],
        Help(
            "Accepted versions of vLLM; empty accepts the tested ones",
            "A version may be its first numbers: 0.33.",
        ),
        FREE,
    ] = ()
    engine_deadline_s: Annotated[
        PositiveFloat,
        Help(
            "Seconds for a server of the engine to answer or draw",
            "A server that takes longer, also to load weights, is not used until the next update.",
        ),
        FREE,
    ] = 120.0
    engine_folder: Annotated[
        str,
        Help(
            "Folder in which the engine's servers find weights",
            "It must have the same name for this machine and for the servers. Empty is the memory "
            "of this machine.",
        ),
        FREE,
    ] = ""
    on_update: Annotated[
        Literal["keep", "recompute", "finish"],
        Help(
            "Treatment of running completions at new weights",
            "keep: keep the KV cache. recompute: compute the cache again. finish: "
            "finish the completions first.",
        ),
        FREE,
    ] = "keep"
    weights: Annotated[
        Literal["fp32", "bf16"],
        Help(
            "Number format of the weights that generators get",
            "Evaluations get the same. bf16 takes half the bytes; the learner keeps fp32.",
        ),
        FREE,
    ] = "fp32"
    batch_invariant: Annotated[
        bool,
        Help(
            "Give a token the same log-probability bits in any batch",
            "Generators and the learner then agree to the bit; a run is slower. For our decoder "
            "on CPUs.",
        ),
    ] = False
    weight_buffers: Annotated[
        int,
        Range(2, 16),
        Help(
            "Versions of the weights that memory has room for",
            "Generators read one version while the learner writes others.",
        ),
        FREE,
    ] = 3

    @property
    def title(self) -> str:
        # a whole path is too long for the name of a folder
        return PurePath(self.task).name if self.task.startswith("/") else self.task

    @property
    def reward_models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*models(self.reward), *models(self.gold))))

    def stored(self) -> Stored:
        return {
            "dtype": "bfloat16" if self.weights == "bf16" else None,
            "buffers": self.weight_buffers,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSource(TaskSource):
    """Calls of agents to a chat endpoint, which the run's own engine answers.

    ``task`` is ``proxy:PORT`` or ``proxy:HOST:PORT``.
    """

    behaviour: ClassVar[str] = "equipoise.sources.calls:Calls"
    of_pairs: ClassVar[str] = ""
    # the web server, which is on a higher floor: as module:function
    server: ClassVar[str] = "equipoise.serving.proxy.server:start_server"

    conversations: Annotated[
        PositiveInt, Help("Most open conversations of agents; further ones get 429"), FREE
    ] = 10_000
    call_queue: Annotated[
        PositiveInt, Help("Most answers that wait or are drawn; further ones get 429"), FREE
    ] = 4096
    call_deadline_s: Annotated[
        PositiveFloat,
        Help(
            "Seconds for an answer to a call",
            "503 if it has not begun by then, with Retry-After, and else 504.",
        ),
        FREE,
    ] = 600.0
    reward_wait_s: Annotated[
        PositiveFloat,
        Help(
            "Seconds without a call until a conversation needs its reward",
            "Then it is dropped or, if `reward` has a function, graded.",
        ),
        FREE,
    ] = 600.0
    group_wait_s: Annotated[
        PositiveFloat,
        Help(
            "Seconds that a conversation waits for others of its group",
            "Then at least two conversations are a group, and one alone is dropped.",
        ),
        FREE,
    ] = 60.0


SOURCES = (
    EnvSource,
    RecordedSource,
    TaskSource,
    CallSource,
)  # that are built in, and found by their fields
