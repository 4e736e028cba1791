"""The settings of a run as keyword parameters of Python's functions.

``python tools/python_options.py`` writes the lines between the marks from the fields of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

from equipoise.programs.settings import Settings

# rewards to learn from: a sum as text, a term or a function of your own, or several
Reward = str | Callable[..., object] | Sequence[str | Callable[..., object]]


class Fields(TypedDict, total=False):
    """The settings of a run."""

    settings: Settings
    """Settings by key: ``{"algorithm.gamma": 0.98}``."""
    # <fields of a run>
    steps: int | None
    """Env steps in all, such as 500k or 1M (default: 500000). They count after frame skip. With
    `--dataset` they are updates, and on text they are samples."""
    seed: int | None
    """Seed of every random number (default: 0)."""
    actors: int | Literal["auto"] | None
    """Workers (actors) that step envs (default: 1). With local inference they also choose the
    actions."""
    envs_per_actor: int | Literal["auto"] | None
    """Envs per actor (default: 16)."""
    action_mask: str | None
    """Action mask: auto, info, obs/KEY or none (default: auto). auto: the observation's key
    action_mask, if it has one."""
    dataset: str | None
    """Minari data set to learn from alone, by id or directory."""
    model: str | None
    """Language model: tiny, a directory or a hub id (default: tiny). llama:hidden_size=48,... is
    a new model of that size. A directory has config.json and safetensors."""
    lora: int | None
    """Rank of low-rank adapters; none learns the whole model (default: none). The model stays as
    it is. Only adapters are learned, published and saved."""
    reward: Reward | None
    """Rewards to learn from, such as env+0.5*rnd (default: env). env: the env's own. Others are
    built in, or module:Class of your own. Scale, clip and normalisation act on the sum. On text:
    module:function[,...]."""
    max_completion_length: int | None
    """Longest completion in tokens; 0 uses the task's limit (default: 0). A task without a limit
    has 256."""
    unroll: int | None
    """Rollout length in env steps."""
    batch: int | None
    """Batch size, in rollouts or items. On policy: unrolls per update, a multiple of
    `--envs-per-actor`. With a replay: sampled items."""
    replay_memory: int | None
    """Replay size in bytes, such as 2GiB; 0 uses capacity (default: 0). It replaces
    `replay.capacity`."""
    on_nonfinite: Literal["stop", "drop", "clamp"] | None
    """Reaction to nan or infinity from an env (default: stop). stop: end the run. drop: drop the
    episode. clamp: clamp the value."""
    engine: str | None
    """Engine of generators: torch, or vllm:URL[,URL...] (default: torch). sim is for trials: it
    draws random tokens in the time of a device that this machine does not have, as in
    sim:step_s=0.02,median=100."""
    max_lag: int | None
    """Staleness limit in policy versions; 0 is lockstep (default: 0). A run in lockstep is
    reproducible. A higher limit lets actors and learner overlap. none sets no limit."""
    balance: Literal["off", "auto"] | None
    """Automatic adaptation of actors and staleness (default: off). With auto fewer actors act, on
    fresher rows, if that is as fast; more actors act, on older rows, if that is faster. `actors`
    and `max_lag` are the limits."""
    placement: Literal["apart", "together", "elastic"] | Literal["auto"] | None
    """Workers that generate text: apart, together, elastic or auto (default: apart). together:
    each learner generates and then learns. elastic: learners that wait also generate, if that
    pays. auto measures which of the first two is faster."""
    learners: int | Literal["auto"] | None
    """Learners that share each batch (default: 1). Each learner has actors of its own."""
    inference: Literal["local", "central"] | Literal["auto"] | None
    """Inference in each actor (local) or in workers (central) (default: local)."""
    partial_streams: int | None
    """Env answers that an actor waits for; 0 waits for all (default: 0). It then acts for the
    envs that have answered, so slow envs do not delay the others."""
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
    metrics: Sequence[str] | None
    """Env info to report: keys, or paths such as episode/r (default: none)."""
    checkpoint_every: int | None
    """Env steps between checkpoints; 0 saves at the end only (default: none). none saves every
    two minutes."""
    task: str | Callable[..., object] | None
    """Prompts: a task, FILE, module:callable or KIND:NAME."""
    arguments: Sequence[str] | None
    """Arguments of the task, as KEY=VALUE[,...] (default: none). They are settings of a
    reasoning-gym data set, or held_out=FILE for a file."""
    lora_alpha: float | None
    """Scale of the adapters, divided by their rank (default: 16.0)."""
    lora_targets: Sequence[str] | None
    """Linear layers with an adapter; empty adapts them all (default: none). A layer is named by
    the end of its name, such as q_proj, or by a pattern: `*.mlp.*`."""
    adapter: str | None
    """Folder of an adapter to begin with, as peft writes it (default: none). The folder has the
    rank, the scale and the layers, so leave out `lora`."""
    reward_weights: Sequence[float] | None
    """Weights of the rewards, in order; empty weighs each by 1 (default: none)."""
    caution: float | None
    """Deviations of the reward models taken off their mean (default: 0.0). Used if `reward` is a
    sum of two reward models or more."""
    gold: str | None
    """True reward, which only evaluations read; none turns it off (default: none). Empty uses the
    task's own functions if `reward` has a reward model."""
    reward_deadline_s: float | None
    """Seconds for a reward to grade a group (default: 60.0)."""
    scorers: int | None
    """Workers that call the rewards for all generators (default: 0). 0: each generator has a
    process for them. With several machines scorers may have machines of their own."""
    chat_template_kwargs: Sequence[str] | None
    """Arguments of the chat template, as KEY=VALUE[,...] (default: none). An example is
    enable_thinking=false. A column of the row takes precedence."""
    prompt_tokens: int | None
    """Longest prompt in tokens; longer ones are left out (default: 512). The run reports how many
    prompts are left out."""
    turns: int | None
    """Most turns of a conversation; 0 uses the task's limit (default: 0). A task of conversations
    without a limit has 8. Other tasks have no turns."""
    turn_tokens: int | None
    """Longest turn in tokens; 0 uses the task's limit (default: 0). `completion_tokens` limits a
    whole conversation, with the answers."""
    answer_bytes: int | None
    """Longest answer of a conversation's partner in bytes (default: 16384). A longer answer ends
    the conversation, which is not learned from."""
    step_deadline_s: float | None
    """Seconds for a conversation's partner to answer a turn (default: 60.0)."""
    history: Literal["append", "render"] | None
    """Earlier turns as later ones read them (default: append)."""
    stop: Sequence[str] | None
    """Texts that end a completion (default: none). They are part of the completion. The model's
    own end also ends it."""
    samples_at_once: int | None
    """Completions that a generator writes at the same time (default: 256)."""
    curriculum: Literal["none", "pass_rate"] | None
    """Choice of the prompts that are drawn (default: none). none: all of them in turn. pass_rate:
    prompts that about half of the samples solve are drawn more often than prompts that all or no
    samples solve."""
    curriculum_floor: float | None
    """Least chance that a prompt is drawn when its turn comes (default: 0.1). A prompt that half
    of the samples solve is always drawn. 1 is the plain order."""
    curriculum_decay: float | None
    """Share of a prompt's old pass rate that a new group leaves (default: 0.5)."""
    pass_reward: float | None
    """Reward of a sample that passes; none is the full sum (default: none). The full sum is that
    of the rewards' weights. A smaller reward counts in part."""
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
    batch_invariant: bool | None
    """Give a token the same log-probability bits in any batch (default: false). Generators and
    the learner then agree to the bit; a run is slower. For our decoder on CPUs."""
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
    inference_workers: int | None
    """Inference workers (default: 1). The actors are divided among them evenly."""
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
    publish_every: int | None
    """Updates between published versions (default: 1). With a replay: rounds."""
    # </fields of a run>
