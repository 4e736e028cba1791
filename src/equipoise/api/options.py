"""The keyword parameters of Python's functions, as types that editors and type checkers read.

``python tools/python_options.py`` writes the lines between the marks from the fields of a run.
"""

from __future__ import annotations

import inspect
import os
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Literal, TypedDict, TypeVar

import numpy as np

from equipoise.api.settings_of_python import described, fields_of_python
from equipoise.programs.settings import Settings
from equipoise.run.callbacks import Callback
from equipoise.types import Algorithm, Frozen, On, Policy

__all__ = [
    "Fields",
    "Place",
    "ProgramOptions",
    "ResumeOptions",
    "Reward",
    "RunOptions",
    "StartOptions",
    "TrainOptions",
    "check_shapes",
    "expanded",
]

Place = str | os.PathLike[str]
# what judges completions: module:function, the function, or several of them
Reward = str | Callable[..., object] | Sequence[str | Callable[..., object]]
# what stands for a policy: the name of an algorithm, or more of it
Given = str | type[Algorithm] | Algorithm | Policy | Frozen
Function = TypeVar("Function", bound=Callable[..., object])


class Fields(TypedDict, total=False):
    """The settings of a run."""

    settings: Settings
    """Settings by key: ``{"algorithm.gamma": 0.98}``."""
    # <fields of a run>
    steps: int | None
    """Env steps in all, after frame skip, such as 500000, 500k or 1M; updates with --dataset
    (default: 500000)."""
    seed: int | None
    """Seed of every random number (default: 0)."""
    actors: int | Literal["auto"] | None
    """Workers that step envs and choose actions (default: 1)."""
    envs_per_actor: int | Literal["auto"] | None
    """Envs that an actor steps side by side (default: 16)."""
    action_mask: str | None
    """Where the allowed actions stand: auto (the observation's key action_mask, if any), info,
    obs/KEY or none (default: auto)."""
    dataset: str | None
    """Learn from the recorded rows of a Minari data set alone, by its id or directory."""
    model: str | None
    """The language model: tiny, llama:hidden_size=48,..., a directory with config.json and
    safetensors, or a hub id (default: tiny)."""
    reward: Reward | None
    """Functions that judge completions, as module:function[,...]. Empty: the task's own (default:
    none)."""
    max_completion_length: int | None
    """Tokens of a completion at most. 0: as the task says, else 256 (default: 0)."""
    unroll: int | None
    """Steps of an env that go to the learner together."""
    batch: int | None
    """Batch size. On policy: unrolls per update, a multiple of --envs-per-actor. With a replay:
    sampled items."""
    replay_memory: int | None
    """Bytes of a replay's rows at most, such as 2GiB, instead of replay.capacity. 0: not set
    (default: 0)."""
    on_nonfinite: Literal["stop", "drop", "clamp"] | None
    """What happens at a nan or infinity from an env: stop the run, drop the episode, or clamp the
    value (default: stop)."""
    max_lag: int | None
    """How many versions old experience may be: 0 is lockstep (reproducible), more lets actors and
    learner overlap, none is unbounded (default: 0)."""
    balance: Literal["off", "auto"] | None
    """auto: while the run goes on, fewer actors act and rows grow less old where that is as fast,
    and more where it is faster; actors and max_lag are the limits (default: off)."""
    learners: int | Literal["auto"] | None
    """Learners that share each batch, with actors of their own (default: 1)."""
    inference: Literal["local", "central"] | Literal["auto"] | None
    """Where actions are chosen: in each actor (local), or in workers for all of them (central)
    (default: local)."""
    partial_streams: int | None
    """An actor acts once so many of its streams have answered, for those; slow ones hold nobody
    up. 0: all of them (default: 0)."""
    device: str | Literal["auto"] | None
    """Device of the learner (default: cpu)."""
    precision: Literal["fp32", "medium", "tf32", "bf16", "fp16"] | Literal["auto"] | None
    """Numbers of convolutions and matrix products, in learner and actors. On new processors
    medium pays for wide MLPs, bf16 for images. tf32 and fp16 are for GPUs (default: fp32)."""
    threads: int | Literal["auto"] | None
    """Learner threads (each actor uses one) (default: 1)."""
    stop_at: float | None
    """Stop when an evaluation reaches this mean return, and another one of 100 episodes does, too
    (default: none)."""
    evaluate_episodes: int | None
    """Fresh episodes of an evaluation; 'evaluate' has --episodes (default: 20)."""
    on_alarm: Literal["warn", "stop"] | None
    """What an alarm does, a sign that the run goes nowhere: it is said, or it ends the run as
    well (default: warn)."""
    evaluate_every: int | None
    """Evaluate that often, beside training. none: near --stop-at, and at the end (default:
    none)."""
    metrics: Sequence[str] | None
    """Numbers of the env's info to report: keys, or paths of keys such as episode/r (default:
    none)."""
    checkpoint_every: int | None
    """Save the whole run that often. 0: at the end only. none: every two minutes (default:
    none)."""
    task: str | Callable[..., object] | None
    """Prompts: a built-in task, a JSONL or parquet file, reasoning_gym:NAME or
    module:callable."""
    arguments: Sequence[str] | None
    """Arguments of the task, as KEY=VALUE: settings of a data set of reasoning-gym, held_out=FILE
    of a file (default: none)."""
    reward_weights: Sequence[float] | None
    """Factors of the rewards, in their order. Empty: 1 each (default: none)."""
    reward_deadline_s: float | None
    """Seconds in which a reward has to judge a group (default: 60.0)."""
    chat_template_kwargs: Sequence[str] | None
    """Arguments of the model's chat template, as KEY=VALUE, such as enable_thinking=false; a
    row's column wins (default: none)."""
    prompt_tokens: int | None
    """Tokens of a prompt at most; longer ones are left out, and counted (default: 512)."""
    stop: Sequence[str] | None
    """Texts that end a completion, beside the model's own end; they are part of it (default:
    none)."""
    samples_at_once: int | None
    """Completions that a generator writes side by side (default: 256)."""
    on_update: Literal["keep", "recompute", "finish"] | None
    """What a generator does with running completions when new weights come: keep what it knows of
    them (the KV cache), compute that anew, or finish them first (default: keep)."""
    weights: Literal["fp32", "bf16"] | None
    """How generators and evaluations get the weights: bf16 is half as many bytes, rounded; the
    learner's stay fp32 (default: fp32)."""
    weight_buffers: int | None
    """Versions that memory has room for: generators read one while others are written (default:
    3)."""
    least_actors: int | None
    """Actors that act at least (default: 1)."""
    shard: Literal["none", "fsdp", "tensor"] | None
    """What each learner stores: the whole network (none), a slice of all parameters (fsdp), or a
    slice of wide layers (tensor) (default: none)."""
    gradient_checkpointing: bool | None
    """Keep no more than the inputs of a network's blocks for backward, and compute the rest anew
    there (default: false)."""
    inference_workers: int | None
    """Inference workers; the actors are dealt to them evenly (default: 1)."""
    inference_batch: int | None
    """Streams that an inference worker acts for at once, at most. 0: all that wait (default:
    0)."""
    inference_wait_ms: float | None
    """How long an inference worker waits for half of its env groups before it acts. 0: act at
    once (default: 0.0)."""
    acting_precision: Literal["fp32", "bf16", "int8"] | None
    """Weights that actors act with are rounded to this; reports say what it changes (default:
    fp32)."""
    compile: bool | None
    """Compile torsos of images, and their loss, with torch.compile: a minute at the start
    (default: false)."""
    graphs: bool | None
    """On a GPU: record whole updates of the learner as CUDA graphs, which are replayed (default:
    false)."""
    auto: Sequence[str] | None
    """Settings of these that are measured when the run begins, as --set placement.threads=auto
    says of one (default: none)."""
    deadline_s: float | None
    """Kill and replace a worker that did nothing for this many seconds (default: 120.0)."""
    give_up_s: float | None
    """End a run in which workers are killed from outside and nothing was learned for so many
    seconds (default: 600.0)."""
    trace_s: float | None
    """Seconds of its last work that each worker keeps for 'equipoise trace'. 0: none (default:
    0.0)."""
    nvtx: bool | None
    """Show the parts of each worker's work to NVIDIA's profilers, by NVTX. Needs a torch with
    CUDA (default: false)."""
    schedule_steps: int | None
    """Env steps over which schedules run. none: steps, as the run began with (default: none)."""
    publish_every: int | None
    """Updates from one published version to the next; with a replay: rounds (default: 1)."""
    # </fields of a run>


class ProgramOptions(Fields, total=False):
    """What is trained, and how."""

    env_kwargs: Mapping[str, object] | None
    """Arguments of the env, as for ``gymnasium.make``."""
    policies: Mapping[str, Given] | Sequence[str]
    """Several policies of an env of several agents, by name."""
    route: Mapping[str, str]
    """Which policy each agent has, by agent."""
    recipe: bool
    """Begin with the tuned settings for this env and algorithm, if any (default: true)."""


class RunOptions(ProgramOptions, total=False):
    """Where the run is, and what it writes."""

    on: On
    """serial: one thread. process: a process for each worker. ray: a cluster (default: process)."""
    out: Place | None
    """A new directory, or a URL (default: runs/ENV-ALGORITHM-SEED-TIME)."""
    callbacks: Sequence[Callback]
    """Objects that hear reports, evaluations and checkpoints, and may stop the run."""
    init_from: Place | None
    """A run, or a checkpoint, whose weights the run begins with."""
    init_what: Literal["weights", "learner"]
    """What ``init_from`` gives: weights, or the optimiser and the schedule also."""
    or_resume: bool
    """Resume the run at ``out`` if there is one."""
    tensorboard: bool
    """Write event files (default: true)."""
    wandb: str | None
    """A Weights & Biases project that the run also reports to."""
    cluster: Mapping[str, object] | None
    """Settings of the Ray cluster: ``{"address": "auto"}``."""
    trust: Sequence[str]
    """Modules and ``module:callable`` that a run from elsewhere may import."""


class StartOptions(RunOptions, total=False):
    """The parameters of ``start``."""

    resume: Place | None
    """The directory or URL of a run to go on with, in place of ``env``."""


class TrainOptions(RunOptions, total=False):
    """The parameters of ``train``."""

    progress: bool
    """Show the run while it trains (default: true)."""


class ResumeOptions(TypedDict, total=False):
    """The parameters of ``resume``: what a run that goes on may change."""

    settings: Settings
    """Settings by key: ``{"algorithm.entropy": 0}``."""
    on: On | None
    """Where the run goes on (default: where it ran before)."""
    callbacks: Sequence[Callback]
    """Objects that hear reports, evaluations and checkpoints, and may stop the run."""
    cluster: Mapping[str, object] | None
    """Settings of the Ray cluster that differ from those of before."""
    trust: Sequence[str]
    """Modules and ``module:callable`` that a run from elsewhere may import."""
    progress: bool
    """Show the run while it trains (default: true)."""
    # <fields of a resume>
    steps: int | None
    """Env steps in all, after frame skip, such as 500000, 500k or 1M; updates with --dataset
    (default: 500000)."""
    balance: Literal["off", "auto"] | None
    """auto: while the run goes on, fewer actors act and rows grow less old where that is as fast,
    and more where it is faster; actors and max_lag are the limits (default: off)."""
    learners: int | Literal["auto"] | None
    """Learners that share each batch, with actors of their own (default: 1)."""
    device: str | Literal["auto"] | None
    """Device of the learner (default: cpu)."""
    precision: Literal["fp32", "medium", "tf32", "bf16", "fp16"] | Literal["auto"] | None
    """Numbers of convolutions and matrix products, in learner and actors. On new processors
    medium pays for wide MLPs, bf16 for images. tf32 and fp16 are for GPUs (default: fp32)."""
    threads: int | Literal["auto"] | None
    """Learner threads (each actor uses one) (default: 1)."""
    stop_at: float | None
    """Stop when an evaluation reaches this mean return, and another one of 100 episodes does, too
    (default: none)."""
    evaluate_episodes: int | None
    """Fresh episodes of an evaluation; 'evaluate' has --episodes (default: 20)."""
    on_alarm: Literal["warn", "stop"] | None
    """What an alarm does, a sign that the run goes nowhere: it is said, or it ends the run as
    well (default: warn)."""
    evaluate_every: int | None
    """Evaluate that often, beside training. none: near --stop-at, and at the end (default:
    none)."""
    checkpoint_every: int | None
    """Save the whole run that often. 0: at the end only. none: every two minutes (default:
    none)."""
    reward_deadline_s: float | None
    """Seconds in which a reward has to judge a group (default: 60.0)."""
    samples_at_once: int | None
    """Completions that a generator writes side by side (default: 256)."""
    on_update: Literal["keep", "recompute", "finish"] | None
    """What a generator does with running completions when new weights come: keep what it knows of
    them (the KV cache), compute that anew, or finish them first (default: keep)."""
    weights: Literal["fp32", "bf16"] | None
    """How generators and evaluations get the weights: bf16 is half as many bytes, rounded; the
    learner's stay fp32 (default: fp32)."""
    weight_buffers: int | None
    """Versions that memory has room for: generators read one while others are written (default:
    3)."""
    least_actors: int | None
    """Actors that act at least (default: 1)."""
    shard: Literal["none", "fsdp", "tensor"] | None
    """What each learner stores: the whole network (none), a slice of all parameters (fsdp), or a
    slice of wide layers (tensor) (default: none)."""
    gradient_checkpointing: bool | None
    """Keep no more than the inputs of a network's blocks for backward, and compute the rest anew
    there (default: false)."""
    inference_batch: int | None
    """Streams that an inference worker acts for at once, at most. 0: all that wait (default:
    0)."""
    inference_wait_ms: float | None
    """How long an inference worker waits for half of its env groups before it acts. 0: act at
    once (default: 0.0)."""
    acting_precision: Literal["fp32", "bf16", "int8"] | None
    """Weights that actors act with are rounded to this; reports say what it changes (default:
    fp32)."""
    compile: bool | None
    """Compile torsos of images, and their loss, with torch.compile: a minute at the start
    (default: false)."""
    graphs: bool | None
    """On a GPU: record whole updates of the learner as CUDA graphs, which are replayed (default:
    false)."""
    auto: Sequence[str] | None
    """Settings of these that are measured when the run begins, as --set placement.threads=auto
    says of one (default: none)."""
    deadline_s: float | None
    """Kill and replace a worker that did nothing for this many seconds (default: 120.0)."""
    give_up_s: float | None
    """End a run in which workers are killed from outside and nothing was learned for so many
    seconds (default: 600.0)."""
    trace_s: float | None
    """Seconds of its last work that each worker keeps for 'equipoise trace'. 0: none (default:
    0.0)."""
    nvtx: bool | None
    """Show the parts of each worker's work to NVIDIA's profilers, by NVTX. Needs a torch with
    CUDA (default: false)."""
    schedule_steps: int | None
    """Env steps over which schedules run. none: steps, as the run began with (default: none)."""
    # </fields of a resume>


# defaults of parameters that are not fields of a run
DEFAULTS: Mapping[str, object] = {
    "settings": (),
    "policies": (),
    "callbacks": (),
    "trust": (),
    "recipe": True,
    "tensorboard": True,
    "progress": True,
    "or_resume": False,
    "on": "process",
    "init_what": "weights",
    # None is a value of it
    "max_lag": ...,
}


BOOLS = ("progress", "tensorboard", "recipe", "or_resume")
MAPPINGS = ("env_kwargs", "cluster")
PLACES = ("out", "init_from", "resume")


def check_shapes(options: Mapping[str, object]) -> None:
    """TypeError for an option of another shape that is no field of a run: a text in place of a bool
    or a list would be taken as it is.
    """
    for names, kinds, said in (
        (BOOLS, (bool, np.bool_), "True or False"),
        (MAPPINGS, (Mapping, NoneType), "a dict"),
        (PLACES, (str, os.PathLike, NoneType), "a path, as text or pathlib.Path"),
    ):
        for name in names:
            if name in options and not isinstance(options[name], kinds):
                raise TypeError(f"{name}: must be {said}, got {options[name]!r}")
    trust = options.get("trust", ())
    if isinstance(trust, str | bytes) or not isinstance(trust, Sequence):
        raise TypeError(f"trust: must be a list of modules such as ['my_envs'], got {trust!r}")


def expanded(options: type[object]) -> Callable[[Function], Function]:
    """Give a function whose last parameter is ``**options`` the signature, annotations and
    docstring that name each of them.
    """

    def decorate(function: Function) -> Function:
        kinds = typing.get_type_hints(options)
        own = [
            one
            for one in inspect.signature(function, eval_str=True).parameters.values()
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        defaults = dict(DEFAULTS) | ({"on": None} if options is ResumeOptions else {})
        named = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name),
                annotation=kind,
            )
            for name, kind in kinds.items()
        ]
        returns = typing.get_type_hints(function)["return"]
        signature = inspect.Signature([*own, *named], return_annotation=returns)
        function.__signature__ = signature  # type: ignore[attr-defined]  # where inspect looks
        function.__annotations__ = {
            one.name: one.annotation for one in signature.parameters.values()
        } | {"return": returns}
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_listed(kinds)}"
        return function

    return decorate


def _listed(names: Mapping[str, object]) -> str:
    """The fields of a run among the names, each with its help and default."""
    rows = [
        textwrap.fill(
            f"{name}: {described(fact)}",
            96,
            initial_indent="    ",
            subsequent_indent="        ",
        )
        for name, fact in fields_of_python().items()
        if name in names
    ]
    return "\n".join(["Settings of the run:", *rows])
