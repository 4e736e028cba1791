"""Sources of a run's experience: envs, recorded rows, or a task for a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypedDict

from equipoise.facts import (
    FREE,
    Flag,
    Help,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Read,
)
from equipoise.types.rows import OnNonfinite

REMOTE = "remote:"  # begins the target of worlds outside, which connect to the run
# begins the target of an env that is a function on tensors (equipoise.device_envs)
DEVICE = "device:"
JAX = "jax:"  # begins that of an env written in JAX, stepped as a device env
# the sections of ``train --help``
WHAT, WHERE, LONG, OUT = "What to learn", "Where it runs", "How long", "What comes out"


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
            "Where the allowed actions stand: auto (the observation's key action_mask, if any), "
            "info, obs/KEY or none."
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

    on_nonfinite: Annotated[
        OnNonfinite,
        Help(
            "What happens at a nan or infinity from an env: stop the run, drop the episode, or "
            "clamp the value."
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
        Help("Numbers of the env's info to report: keys, or paths of keys such as episode/r."),
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
        Help("Learn from the recorded rows of a Minari data set alone, by its id or directory."),
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
    """Prompts of a task, answered by generators, judged by rewards. Steps are samples."""

    behaviour: ClassVar[str] = "equipoise.sources.text:Texts"

    task: Annotated[
        str,
        Help(
            "Prompts: a built-in task, a JSONL or parquet file, reasoning_gym:NAME or "
            "module:callable."
        ),
    ]
    arguments: Annotated[
        tuple[str, ...],
        Help(
            "Arguments of the task, as KEY=VALUE: settings of a data set of reasoning-gym, "
            "held_out=FILE of a file."
        ),
    ] = ()
    model: Annotated[
        str,
        Help(
            "The language model: tiny, llama:hidden_size=48,..., a directory with config.json and "
            "safetensors, or a hub id."
        ),
        Flag(WHAT, "MODEL"),
    ] = "tiny"
    reward: Annotated[
        str,
        Help("Functions that judge completions, as module:function[,...]. Empty: the task's own."),
        Flag(WHAT, "MODULE:FUNCTION"),
    ] = ""
    reward_weights: Annotated[
        tuple[float, ...], Help("Factors of the rewards, in their order. Empty: 1 each.")
    ] = ()
    reward_deadline_s: Annotated[
        PositiveFloat, Help("Seconds in which a reward has to judge a group."), FREE
    ] = 60.0
    chat_template_kwargs: Annotated[
        tuple[str, ...],
        Help(
            "Arguments of the model's chat template, as KEY=VALUE, such as enable_thinking=false; "
            "a row's column wins."
        ),
    ] = ()
    prompt_tokens: Annotated[
        PositiveInt, Help("Tokens of a prompt at most; longer ones are left out, and counted.")
    ] = 512
    completion_tokens: Annotated[
        NonNegativeInt,
        Help("Tokens of a completion at most. 0: as the task says, else 256."),
        Flag(WHAT, "N", name="max-completion-length"),
    ] = 0
    stop: Annotated[
        tuple[str, ...],
        Help("Texts that end a completion, beside the model's own end; they are part of it."),
    ] = ()
    samples_at_once: Annotated[
        PositiveInt, Help("Completions that a generator writes side by side."), FREE
    ] = 256
    on_update: Annotated[
        Literal["keep", "recompute", "finish"],
        Help(
            "What a generator does with running completions when new weights come: keep what it "
            "knows of them (the KV cache), "
            "compute that anew, or finish them first."
        ),
        FREE,
    ] = "keep"
    weights: Annotated[
        Literal["fp32", "bf16"],
        Help(
            "How generators and evaluations get the weights: bf16 is half as many bytes, rounded; "
            "the learner's stay fp32."
        ),
        FREE,
    ] = "fp32"
    weight_buffers: Annotated[
        int,
        Range(2, 16),
        Help("Versions that memory has room for: generators read one while others are written."),
        FREE,
    ] = 3

    @property
    def title(self) -> str:
        return self.task

    def stored(self) -> Stored:
        return {
            "dtype": "bfloat16" if self.weights == "bf16" else None,
            "buffers": self.weight_buffers,
        }


SOURCES = (EnvSource, RecordedSource, TaskSource)  # that are built in, and found by their fields
