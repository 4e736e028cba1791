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

from equipoise.api.fields import Fields, Reward
from equipoise.api.settings_of_python import described, fields_of_python
from equipoise.facts import facts
from equipoise.programs.settings import Settings
from equipoise.run.callbacks import Callback
from equipoise.studies.settings import StudySettings
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
    "TuneOptions",
    "check_shapes",
    "expanded",
]

Place = str | os.PathLike[str]
# a policy: the name of its algorithm, a class, an instance, or the whole policy
Given = str | type[Algorithm] | Algorithm | Policy | Frozen
Function = TypeVar("Function", bound=Callable[..., object])


class ProgramOptions(Fields, total=False):
    """What is trained, and how."""

    env_kwargs: Mapping[str, object] | None
    """Arguments of the env, as for ``gymnasium.make``."""
    policies: Mapping[str, Given] | Sequence[str]
    """Several policies of an env of several agents, by name."""
    route: Mapping[str, str]
    """Name of the policy of each agent, by agent."""
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
    """Parts to take from ``init_from``: the weights, or with ``learner`` the optimiser and the
    schedule also (default: weights)."""
    or_resume: bool
    """Resume the run at ``out`` if there is one (default: false)."""
    tensorboard: bool
    """Write event files (default: true)."""
    report_to: str | Sequence[str]
    """Experiment trackers, such as ``wandb:PROJECT``; also mlflow, trackio and otel."""
    cluster: Mapping[str, object] | None
    """Settings of the Ray cluster: ``{"address": "auto"}``."""
    trust: Sequence[str]
    """Modules and ``module:callable`` that a run from elsewhere may import."""


class StartOptions(RunOptions, total=False):
    """The parameters of ``start``."""

    resume: Place | None
    """Directory or URL of a run to go on with, in place of ``env``."""


class TrainOptions(RunOptions, total=False):
    """The parameters of ``train``."""

    progress: bool
    """Show the run while it trains (default: true)."""


class TuneOptions(ProgramOptions, total=False):
    """The parameters of ``tune``."""

    trials: int
    """Settings to try; members of a population (default: 20)."""
    jobs: int
    """Trials at the same time (default: 1)."""
    strategy: str
    """Strategy; 'tune strategies' lists them (default: asha)."""
    strategy_settings: Mapping[str, object] | Sequence[str]
    """Settings of the strategy: ``{"reduction": 4}``."""
    confirm: int
    """Fresh seeds to train the best settings on at the end (default: 3)."""
    out: Place | None
    """The study's directory (default: studies/ENV-ALGORITHM-TIME)."""
    on: On
    """One thread, or processes, for each trial (default: serial)."""
    executor: Literal["local", "ray"]
    """Trials on this machine, or on a Ray cluster (default: local)."""
    url: str
    """URL for copies of the trials; no shared folder is needed (default: none)."""
    cluster: Mapping[str, object] | None
    """Settings of the Ray cluster: ``{"address": "auto"}``."""
    trust: Sequence[str]
    """Modules and ``module:callable`` that a study from elsewhere may import."""
    progress: bool
    """Show the study while it trains (default: true)."""


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
    """Env steps in all, such as 500k or 1M (default: 500000). They count after frame skip. With
    `--dataset` they are updates, and on text they are samples."""
    engine: str | None
    """Engine of generators: torch, or vllm:URL[,URL...] (default: torch). sim is for trials: it
    draws random tokens in the time of a device that this machine does not have, as in
    sim:step_s=0.02,median=100."""
    balance: Literal["off", "auto"] | None
    """Automatic adaptation of actors and staleness (default: off). With auto fewer actors act, on
    fresher rows, if that is as fast; more actors act, on older rows, if that is faster. `actors`
    and `max_lag` are the limits."""
    learners: int | Literal["auto"] | None
    """Learners that share each batch (default: 1). Each learner has actors of its own."""
    device: str | Literal["auto"] | None
    """Device of the learner (default: cpu)."""
    precision: Literal["fp32", "medium", "tf32", "bf16", "fp16"] | Literal["auto"] | None
    """Number format of network computations (default: fp32). It applies to convolutions and
    matrix products, in learner and actors. On new processors medium pays for wide MLPs, bf16 for
    images. tf32 and fp16 are for GPUs."""
    threads: int | Literal["auto"] | None
    """Learner threads (each actor uses one) (default: 1)."""
    stop_at: float | None
    """Mean return at which the run stops (default: none). An evaluation has to reach it, and then
    another evaluation of 100 episodes."""
    evaluate_episodes: int | None
    """Episodes per evaluation ('evaluate' has --episodes) (default: 20)."""
    on_alarm: Literal["warn", "stop"] | None
    """Reaction to an alarm, a sign that learning fails (default: warn). warn: print it. stop:
    print it and end the run."""
    evaluate_every: int | None
    """Env steps between evaluations (default: none). none evaluates near the goal of `--stop-at`,
    and at the end."""
    checkpoint_every: int | None
    """Env steps between checkpoints; 0 saves at the end only (default: none). none saves every
    two minutes."""
    reward_deadline_s: float | None
    """Seconds for a reward to grade a group (default: 60.0)."""
    scorers: int | None
    """Workers that call the rewards for all generators (default: 0). 0: each generator has a
    process for them. With several machines scorers may have machines of their own."""
    step_deadline_s: float | None
    """Seconds for a conversation's partner to answer a turn (default: 60.0)."""
    samples_at_once: int | None
    """Completions that a generator writes at the same time (default: 256)."""
    kv_tokens: int | Literal["auto"] | None
    """Tokens in a generator's KV cache; 0 is room for each sample (default: 0). Samples take
    memory by their present length. If they grow beyond it, the youngest is given back and goes on
    later. auto: half of the free memory."""
    engine_token_file: str | None
    """File with the token of the engine's servers (default: none). Without it
    $EQUIPOISE_ENGINE_TOKEN is used. A server beyond this machine needs one."""
    engine_versions: Sequence[str] | None
    """Accepted versions of vLLM; empty accepts the tested ones (default: none). A version may be
    its first numbers: 0.33."""
    engine_deadline_s: float | None
    """Seconds for a server of the engine to answer or draw (default: 120.0). A server that takes
    longer, also to load weights, is not used until the next update."""
    engine_folder: str | None
    """Folder in which the engine's servers find weights (default: none). It must have the same
    name for this machine and for the servers. Empty is the memory of this machine."""
    on_update: Literal["keep", "recompute", "finish"] | None
    """Treatment of running completions at new weights (default: keep). keep: keep the KV cache.
    recompute: compute the cache again. finish: finish the completions first."""
    weights: Literal["fp32", "bf16"] | None
    """Number format of the weights that generators get (default: fp32). Evaluations get the same.
    bf16 takes half the bytes; the learner keeps fp32."""
    weight_buffers: int | None
    """Versions of the weights that memory has room for (default: 3). Generators read one version
    while the learner writes others."""
    conversations: int | None
    """Most open conversations of agents; further ones get 429 (default: 10000)."""
    call_queue: int | None
    """Most answers that wait or are drawn; further ones get 429 (default: 4096)."""
    call_deadline_s: float | None
    """Seconds for an answer to a call (default: 600.0). 503 if it has not begun by then, with
    Retry-After, and else 504."""
    reward_wait_s: float | None
    """Seconds without a call until a conversation needs its reward (default: 600.0). Then it is
    dropped or, if `reward` has a function, graded."""
    group_wait_s: float | None
    """Seconds that a conversation waits for others of its group (default: 60.0). Then at least
    two conversations are a group, and one alone is dropped."""
    least_actors: int | None
    """Fewest actors that act (default: 1)."""
    shard: Literal["none", "fsdp", "tensor"] | None
    """Part of the network that each learner stores (default: none). none: the whole network.
    fsdp: a slice of all parameters. tensor: a slice of wide layers."""
    gradient_checkpointing: bool | None
    """Recompute activations in backward to save memory (default: false). Only the inputs of a
    network's blocks are stored."""
    inference_batch: int | None
    """Most streams per inference batch; 0 takes all waiting (default: 0)."""
    inference_wait_ms: float | None
    """Wait in ms for half of the env groups; 0 turns it off (default: 0.0)."""
    acting_precision: Literal["fp32", "bf16", "int8"] | None
    """Number format of the weights that actors act with (default: fp32). Reports show what the
    rounding changes."""
    compile: bool | None
    """Compile image torsos and their loss with torch.compile (default: false). It takes a minute
    at the start."""
    graphs: bool | None
    """Record learner updates as CUDA graphs (GPU only) (default: false)."""
    auto: Sequence[str] | None
    """Placement settings to measure when the run begins (default: none)."""
    deadline_s: float | None
    """Seconds without work until a worker is replaced (default: 120.0)."""
    give_up_s: float | None
    """Seconds without learning after which a failing run ends (default: 600.0). The run ends only
    if workers are killed from outside."""
    trace_s: float | None
    """Seconds of work kept for 'equipoise trace'; 0 is off (default: 0.0)."""
    nvtx: bool | None
    """Mark each worker's work with NVTX for NVIDIA's profilers (default: false). It needs a torch
    with CUDA."""
    schedule_steps: int | None
    """Env steps of the schedules; none uses the run's steps (default: none). A resume with other
    `--steps` does not change them."""
    # </fields of a resume>


# defaults of parameters that are not fields of a run
DEFAULTS: Mapping[str, object] = {
    "settings": (),
    "policies": (),
    "callbacks": (),
    "report_to": (),
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


# help of the parameters that are no fields of a run: the texts below their types above
OWN: Mapping[str, str] = {
    "settings": """Settings by key: ``{"algorithm.gamma": 0.98}``.""",
    "env_kwargs": "Arguments of the env, as for ``gymnasium.make``.",
    "policies": "Several policies of an env of several agents, by name.",
    "route": "Name of the policy of each agent, by agent.",
    "recipe": "Begin with the tuned settings for this env and algorithm, if any (default: true).",
    "resume": "Directory or URL of a run to go on with, in place of ``env``.",
    "on": "serial: one thread. process: a process for each worker. ray: a cluster (default: "
    "process).",
    "out": "A new directory, or a URL (default: runs/ENV-ALGORITHM-SEED-TIME).",
    "callbacks": "Objects that hear reports, evaluations and checkpoints, and may stop the run.",
    "init_from": "A run, or a checkpoint, whose weights the run begins with.",
    "init_what": "Parts to take from ``init_from``: the weights, or with ``learner`` the optimiser "
    "and the schedule also (default: weights).",
    "or_resume": "Resume the run at ``out`` if there is one (default: false).",
    "tensorboard": "Write event files (default: true).",
    "report_to": "Experiment trackers, such as ``wandb:PROJECT``; also mlflow, trackio and otel.",
    "cluster": """Settings of the Ray cluster: ``{"address": "auto"}``.""",
    "trust": "Modules and ``module:callable`` that a run from elsewhere may import.",
    "progress": "Show the run while it trains (default: true).",
}
OWN_OF_RESUME: Mapping[str, str] = {
    "settings": """Settings by key: ``{"algorithm.entropy": 0}``.""",
    "on": "Where the run goes on (default: where it ran before).",
    "cluster": "Settings of the Ray cluster that differ from those of before.",
}

FIELDS_OF_STUDY = {
    name: fact
    for name, fact in facts(StudySettings).items()
    if name in TuneOptions.__annotations__ and fact.help
}
OWN_OF_TUNE: Mapping[str, str] = {
    name: described(fact) for name, fact in FIELDS_OF_STUDY.items()
} | {
    "strategy_settings": """Settings of the strategy: ``{"reduction": 4}``.""",
    "out": "The study's directory (default: studies/ENV-ALGORITHM-TIME).",
    "trust": "Modules and ``module:callable`` that a study from elsewhere may import.",
    "progress": "Show the study while it trains (default: true).",
}

BOOLS = ("progress", "tensorboard", "recipe", "or_resume")
MAPPINGS = ("env_kwargs", "cluster")
PLACES = ("out", "init_from", "resume")
LISTS = {  # of texts
    "trust": "modules such as ['my_envs']",
    "report_to": "trackers such as ['wandb:PROJECT']",
    "policies": "texts such as ['main=ppo'], or a dict of policies by name",
}


def check_shapes(options: Mapping[str, object]) -> None:
    """Raise TypeError for a wrong type among the options that are no fields of a run: a text in
    place of a bool or a list would pass unseen.
    """
    for names, kinds, said in (
        (BOOLS, (bool, np.bool_), "True or False"),
        (MAPPINGS, (Mapping, NoneType), "a dict"),
        (PLACES, (str, os.PathLike, NoneType), "a path, as text or pathlib.Path"),
    ):
        for name in names:
            if name in options and not isinstance(options[name], kinds):
                raise TypeError(f"{name}: must be {said}, got {options[name]!r}")
    for name in PLACES:
        check_place(options.get(name), name)
    for name, said in LISTS.items():
        value = options.get(name, ())
        if name == "policies" and isinstance(value, Mapping):
            continue
        if name == "report_to" and isinstance(value, str):  # one tracker
            continue
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise TypeError(f"{name}: must be a list of {said}, got {value!r}")
        for one in value:
            if not isinstance(one, str):
                raise TypeError(f"{name}: must be a list of {said}, got {one!r} in it")


def check_flags(**flags: object) -> None:
    """TypeError for an argument that is no bool: a text such as "no" would be taken as true."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name}: must be True or False, got {value!r}")


def check_place(place: object, name: str) -> None:
    """TypeError for a path of bytes, ValueError for one that no file system has: an empty one would
    be the working directory.
    """
    if isinstance(place, os.PathLike):
        place = os.fspath(place)
    if isinstance(place, bytes):
        raise TypeError(f"{name}: must be a path, as text or pathlib.Path, got {place!r}")
    if isinstance(place, str) and (not place or "\0" in place):
        raise ValueError(
            f"{name}: must be a path without NUL, got {place!r}"
            if place
            else f"{name}: must be a path, got an empty text; '.' is the working directory"
        )


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
        own_help, defaults = {**OWN}, {**DEFAULTS}
        if options is ResumeOptions:
            own_help, defaults = {**OWN, **OWN_OF_RESUME}, {**DEFAULTS, "on": None}
        elif options is TuneOptions:
            own_help = {**OWN, **OWN_OF_TUNE}
            defaults = {
                **DEFAULTS,
                **{name: fact.default for name, fact in FIELDS_OF_STUDY.items()},
            }
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
        function.__doc__ = (
            f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_listed(kinds, own_help)}"
        )
        return function

    return decorate


def _listed(names: Mapping[str, object], own: Mapping[str, str]) -> str:
    """Each of the names with its help: what is of the call, and then the fields of a run."""
    return "\n".join(
        [
            "Other parameters:",
            *(_filled(name, text) for name, text in own.items() if name in names),
            "",
            "Settings of the run:",
            *(
                _filled(name, described(fact))
                for name, fact in fields_of_python().items()
                if name in names
            ),
        ]
    )


def _filled(name: str, text: str) -> str:
    return textwrap.fill(f"{name}: {text}", 96, initial_indent="    ", subsequent_indent="        ")
