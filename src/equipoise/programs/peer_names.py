"""The names of Stable-Baselines3, CleanRL, RLlib and Sample Factory, for the hint after an unknown
name: of settings, options, algorithms and networks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

# Our key, or several of which the first that a program has is meant -> the names that peers have
# for it. Compared without case, with "_" for "-", and by what follows the last dot. A sentence
# after ";" says how the value differs.
PEER_NAMES: dict[str, tuple[str, ...]] = {
    # the run
    "schedule.steps": (
        "total_timesteps",
        "n_timesteps",
        "timesteps",
        "timesteps_total",
        "num_env_steps_sampled_lifetime",
        "total_steps",
        "train_for_env_steps",
        "num_env_steps",
        "total_env_steps",
        "num_timesteps",
        "stop_timesteps",
        "max_steps",
    ),
    "schedule.seed": ("debug_seed", "random_seed"),
    "schedule.checkpoint_every": (
        "save_freq",
        "checkpoint_frequency",
        "checkpoint_freq",
        "save_every_sec",
        "save_every",
    ),
    "evaluation.every": ("eval_freq", "evaluation_interval", "eval_interval", "eval_every"),
    "evaluation.episodes": (
        "n_eval_episodes",
        "eval_episodes",
        "evaluation_duration",
        "num_eval_episodes",
    ),
    "evaluation.stop_at": (
        "reward_threshold",
        "target_reward",
        "stop_reward",
        "episode_reward_mean",
        "target_return",
    ),
    "placement.actors": (
        "num_workers",
        "num_env_runners",
        "num_rollout_workers",
        "n_workers",
        "num_actors",
        "n_actors",
        "n_jobs",
        "workers",
    ),
    "placement.envs_per_actor": (
        "n_envs",
        "num_envs",
        "num_envs_per_worker",
        "num_envs_per_env_runner",
        "num_environments",
        "nenvs",
    ),
    "placement.learners": ("num_learners", "num_learner_workers"),
    "placement.max_lag": ("max_policy_lag", "max_requests_in_flight_per_env_runner"),
    "placement.max_lag; it is 0 where acting and learning take turns, and more where they overlap": (  # noqa: E501
        "async_rl",
    ),
    "placement.device": ("cuda", "use_cuda", "num_gpus", "num_gpus_per_learner", "gpu"),
    "placement.precision": ("mixed_precision", "amp", "use_amp", "bf16"),
    "placement.threads": ("torch_threads", "num_threads", "n_threads", "torch_num_threads"),
    "placement.compile": ("torch_compile", "use_compile"),
    "source.env.action_mask": ("masking", "action_masking", "use_masking", "masked_actions"),
    # a policy
    # of off-policy algorithms the steps of a return
    "algorithm.n_step?replay|policy.unroll": ("n_steps",),
    "policy.unroll": (
        "num_steps",
        "rollout",
        "rollout_length",
        "rollout_fragment_length",
        "horizon",
        "unroll_length",
        "train_freq",
        "train_frequency",
    ),
    "policy.batch": ("train_batch_size", "train_batch_size_per_learner", "batch_length"),
    "policy.publish_every": ("broadcast_interval", "update_weights_every"),
    # the optimizer
    "optimizer.learning_rate": (
        "lr",
        "adam_lr",
        "step_size",
        "policy_lr",
        "actor_lr",
        "critic_lr",
        "q_lr",
        "pi_lr",
        "qf_lr",
        "vf_lr",
    ),
    "optimizer.schedule": (
        "anneal_lr",
        "lr_schedule",
        "lr_scheduler",
        "use_linear_lr_decay",
        "learning_rate_schedule",
    ),
    "optimizer.warmup": ("lr_warmup", "warmup_updates"),
    "optimizer.epsilon": ("adam_eps", "adam_epsilon", "rms_prop_eps", "optimizer_eps", "opt_eps"),
    "optimizer.betas": ("adam_betas", "adam_beta1", "adam_beta2"),
    "optimizer.name": ("opt_type", "optimizer_class", "use_rms_prop"),
    "optimizer.max_grad_norm": (
        "grad_clip",
        "clip_grad",
        "max_grad",
        "gradient_clip",
        "clip_grad_norm",
    ),
    "optimizer.weight_decay": ("l2_reg", "adam_weight_decay"),
    # algorithms
    "algorithm.gamma": ("discount", "discount_factor", "discounting"),
    "algorithm.lambda_": ("gae_lambda", "lambda", "lam", "td_lambda", "gae_lam"),
    "algorithm.clip": (
        "clip_range",
        "clip_param",
        "clip_coef",
        "ppo_clip_ratio",
        "clip_ratio",
        "eps_clip",
        "clip_epsilon",
    ),
    "algorithm.value_clip": ("clip_range_vf", "vf_clip_param", "ppo_clip_value", "clip_vloss"),
    "algorithm.entropy|algorithm.temperature": (
        "ent_coef",
        "ent_coeff",
        "entropy_coef",
        "entropy_coeff",
        "exploration_loss_coeff",
        "entropy_weight",
    ),
    "algorithm.temperature": ("initial_alpha", "init_temperature", "alpha"),
    "algorithm.learn_temperature": ("autotune", "auto_alpha", "automatic_entropy_tuning"),
    "algorithm.value": (
        "vf_coef",
        "vf_loss_coeff",
        "value_loss_coeff",
        "value_coef",
        "critic_coef",
        "baseline_cost",
    ),
    "algorithm.normalize_advantage": (
        "norm_adv",
        "normalize_advantages",
        "standardize_advantages",
        "advantage_norm",
    ),
    # text: TRL, verl, OpenRLHF
    "source.prompt_tokens": ("max_prompt_length", "prompt_max_len", "max_prompt_len"),
    "source.completion_tokens": ("max_response_length", "generate_max_len", "max_new_tokens"),
    "source.reward": ("reward_funcs", "reward_fn", "custom_reward_function"),
    "algorithm.epochs": (
        "n_epochs",
        "num_epochs",
        "update_epochs",
        "num_sgd_iter",
        "ppo_epochs",
        "k_epochs",
        "noptepochs",
        "num_iterations",
    ),
    "algorithm.minibatches": (
        "num_minibatches",
        "n_minibatches",
        "nminibatches",
        "num_batches_per_epoch",
        "num_mini_batch",
    ),
    "policy.batch?replay|algorithm.minibatches; it is their number, not their size": (
        "batch_size",
        "minibatch_size",
        "mini_batch_size",
        "sgd_minibatch_size",
    ),
    "algorithm.normalize_obs": (
        "norm_obs",
        "normalize_input",
        "normalize_observations",
        "obs_norm",
        "observation_filter",
        "vec_normalize",
    ),
    "algorithm.clip_obs": ("obs_clip", "clip_observations"),
    "algorithm.target_every": (
        "target_update_interval",
        "target_network_update_freq",
        "target_network_frequency",
        "target_update_freq",
    ),
    "algorithm.tau": ("polyak", "polyak_tau", "soft_update_tau"),
    "algorithm.n_step": ("nstep", "n_step_return", "n_step_returns", "multi_step"),
    "algorithm.double": ("double_q", "double_dqn"),
    "algorithm.atoms": ("num_atoms", "n_atoms"),
    "algorithm.quantiles": ("n_quantiles", "num_quantiles"),
    "algorithm.critics": ("n_critics", "num_critics"),
    "algorithm.drop": ("top_quantiles_to_drop_per_net", "top_quantiles_to_drop"),
    "algorithm.epsilon_start": (
        "exploration_initial_eps",
        "start_e",
        "initial_epsilon",
        "eps_start",
    ),
    "algorithm.epsilon": ("exploration_final_eps", "end_e", "final_epsilon", "eps_end"),
    "algorithm.epsilon_steps; it is a number of env steps, not a share": (
        "exploration_fraction",
        "epsilon_timesteps",
        "eps_decay",
        "epsilon_decay",
        "exploration_timesteps",
    ),
    "algorithm.delay": ("policy_delay", "policy_frequency", "policy_freq"),
    "algorithm.noise": (
        "action_noise",
        "exploration_noise",
        "act_noise",
        "noise_std",
        "expl_noise",
    ),
    "algorithm.target_noise": ("target_policy_noise", "policy_noise"),
    "algorithm.noise_clip": ("target_noise_clip",),
    "algorithm.sde_every; it is a number of steps, 0 for none": (
        "use_sde",
        "sde_sample_freq",
        "gsde",
        "use_gsde",
    ),
    "algorithm.random_steps": (
        "num_steps_random",
        "random_timesteps",
        "start_steps",
        "initial_random_steps",
    ),
    "algorithm.clip_rho": ("vtrace_clip_rho_threshold", "vtrace_rho", "rho_bar"),
    "algorithm.clip_c": ("vtrace_c", "c_bar"),
    "algorithm.clip_pg_rho": ("vtrace_clip_pg_rho_threshold",),
    "algorithm.kl": ("kl_coeff", "kl_loss_coeff", "use_kl_loss", "kl_target"),
    "algorithm.hidden": (
        "net_arch",
        "hidden_sizes",
        "hidden_size",
        "fcnet_hiddens",
        "encoder_mlp_layers",
        "hidden_layers",
        "mlp_layers",
    ),
    "algorithm.activation": ("activation_fn", "fcnet_activation", "nonlinearity"),
    "algorithm.shared": (
        "actor_critic_share_weights",
        "vf_share_layers",
        "share_features_extractor",
    ),
    "algorithm.torso": (
        "features_extractor_class",
        "features_extractor",
        "encoder_conv_architecture",
        "cnn",
        "conv_filters",
    ),
    "algorithm.core": (
        "use_lstm",
        "use_rnn",
        "rnn_type",
        "recurrent",
        "lstm",
        "gru",
        "use_attention",
        "gtrxl",
    ),
    "algorithm.core_size": (
        "lstm_hidden_size",
        "rnn_size",
        "lstm_cell_size",
        "rnn_hidden_size",
        "attention_dim",
    ),
    "algorithm.core_layers": ("attention_num_transformer_units", "rnn_num_layers", "n_lstm_layers"),
    "algorithm.core_heads": ("attention_num_heads",),
    "algorithm.core_window": (
        "attention_memory_inference",
        "attention_memory_training",
        "memory_length",
    ),
    "algorithm.log_std|algorithm.sde_log_std": ("log_std_init", "initial_stddev", "init_log_std"),
    # rewards
    "rewards.scale": ("reward_scale", "rew_scale", "reward_scaling"),
    "rewards.clip": ("clip_reward", "clip_rewards", "reward_clip", "rew_clip"),
    "rewards.normalize": (
        "norm_reward",
        "normalize_returns",
        "normalize_reward",
        "normalize_rewards",
        "return_norm",
    ),
    # the replay
    "replay.capacity": (
        "buffer_size",
        "replay_size",
        "replay_buffer_size",
        "buffer_capacity",
        "rb_size",
        "replay_capacity",
    ),
    "replay.starts_at": (
        "learning_starts",
        "num_steps_sampled_before_learning_starts",
        "warmup_steps",
        "start_timesteps",
        "min_replay_size",
    ),
    "replay.updates": (
        "gradient_steps",
        "training_intensity",
        "utd_ratio",
        "utd",
        "update_to_data",
        "replay_ratio",
    ),
    "replay.selector": ("prioritized_replay", "prioritized", "per", "replay_buffer_class"),
    "replay.alpha": ("prioritized_replay_alpha", "per_alpha"),
    "replay.beta": ("prioritized_replay_beta", "per_beta", "prioritized_replay_beta0"),
    "replay.epsilon": ("prioritized_replay_eps", "per_eps"),
    "replay.relabel": ("n_sampled_goal", "her", "her_ratio", "goal_selection_strategy"),
    # the env
    "env.frameskip": ("frame_skip", "env_frameskip", "frameskip"),
    "env.stack_num": ("frame_stack", "framestack", "env_framestack", "n_stack", "num_stack"),
    "env.max_episode_steps": (
        "max_episode_steps",
        "max_ep_len",
        "max_episode_length",
        "episode_length",
        "time_limit",
    ),
    "env.render_mode": ("render_mode",),
}

# The same for what is an option of ``train`` and an argument of ``eq.train``, and no setting of a
# program.
PEER_OPTIONS: dict[str, tuple[str, ...]] = {
    "out": (
        "tensorboard_log",
        "log_dir",
        "logdir",
        "save_path",
        "save_dir",
        "train_dir",
        "experiment",
        "exp_name",
        "storage_path",
        "output_dir",
        "run_name",
        "name",
    ),
    "algorithm": ("algo", "alg", "agent", "run"),
    "wandb": ("track", "wandb_project_name", "wandb_project", "with_wandb", "wandb_entity"),
    "quiet": ("verbose", "verbosity", "silent"),
    "init_from": (
        "load",
        "load_path",
        "trained_agent",
        "restore",
        "pretrained",
        "checkpoint_path",
        "load_checkpoint",
    ),
}

# What there is instead -> names of what is neither a setting nor an option here.
PEER_WORDS: dict[str, tuple[str, ...]] = {
    "the env comes first and has no name: equipoise train ENV": (
        "env",
        "env_id",
        "env_name",
        "gym_id",
        "environment",
    ),
    "a network is not named, it follows from the observations; --set algorithm.torso=... takes "
    "another": (
        "policy",
        "policy_class",
        "policy_type",
    ),
    "--set algorithm.hidden=64,64 and algorithm.activation=relu shape a network": (
        "policy_kwargs",
        "model_config",
    ),
    "settings={'algorithm.gamma': 0.98} takes them all, --set algorithm.gamma=0.98 one": (
        "config",
        "hyperparams",
        "hyperparameters",
        "training",
    ),
    "an argument of the env is --set env.KEY=VALUE": ("env_kwargs", "env_config"),
    "a function of yours wraps the env: equipoise train my_envs:make_env": (
        "wrapper_class",
        "env_wrapper",
        "wrappers",
    ),
    "each actor is a process of its own, and --on serial has one for all": (
        "vec_env_cls",
        "vec_env_type",
        "vec_env",
    ),
    "--on serial runs all in one thread": ("serial_mode", "local_mode"),
    "--algorithm impala corrects by V-trace, and appo clips as well": ("with_vtrace", "vtrace"),
    "there is nothing to set: with --inference central the envs of an actor are two groups by "
    "themselves": ("worker_num_splits",),
    "an actor chooses its own actions; with --inference central --set "
    "placement.inference_workers=... does": ("policy_workers_per_policy",),
    "tokens are drawn from the whole distribution in training, since a cut one has no ratio to the "
    "learner's": (
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "algorithm.top_k",
        "algorithm.top_p",
        "algorithm.min_p",
        "algorithm.repetition_penalty",
    ),
    "a video is made after training: equipoise evaluate DIR --video": (
        "capture_video",
        "save_video",
        "record_video",
    ),
    "with --max-lag 0 a seed gives the same bits every time": (
        "torch_deterministic",
        "deterministic",
    ),
    "in Python a run is a loop over its reports, which does what callbacks do": (
        "callback",
        "callbacks",
    ),
    "there is PyTorch alone": ("framework",),
    "it is algorithm.num_generations of an algorithm for text": (
        "n_samples_per_prompt",
        "rollout_n",
    ),
    "it is algorithm.beta of an algorithm for text": ("kl_loss_coef", "kl_coef", "init_kl_coef"),
    "there is one engine for text, in torch": (
        "engine",
        "use_vllm",
        "vllm_mode",
        "vllm",
        "sglang",
        "use_sglang",
    ),
    "all weights of a model are learned, there is no LoRA": (
        "lora",
        "lora_rank",
        "lora_r",
        "lora_alpha",
        "lora_dropout",
        "use_lora",
        "use_peft",
        "peft_config",
        "load_in_4bit",
    ),
}

# Names of commands and scripts -> ours.
PEER_COMMANDS = {
    "enjoy": "evaluate",
    "play": "evaluate",
    "test": "evaluate",
    "rollout": "evaluate",
    "learn": "train",
}

# What it is here -> names of algorithms, as ``_plain`` leaves them. Names in quotes are algorithms
# of ours.
PEER_ALGORITHMS: dict[str, tuple[str, ...]] = {
    "it is 'ppo' here, with --set algorithm.core=lstm": ("recurrentppo", "ppolstm", "ppornn"),
    "it is 'ppo' here: a mask that the env gives is taken by every algorithm (--action-mask)": (
        "maskableppo",
        "ppomask",
    ),
    "it is 'dqn' here, with --set algorithm.distribution=c51": (
        "c51",
        "categoricaldqn",
        "distributionaldqn",
    ),
    "it is 'dqn' here, with --set algorithm.distribution=c51, algorithm.dueling=true and "
    "replay.selector=prioritized": (
        "rainbow",
        "rainbowdqn",
    ),
    "it is 'dqn' here, with --set algorithm.dueling=true": ("duelingdqn",),
    "it is 'dqn' here": ("doubledqn", "ddqn", "simpleq", "dqnper"),
    "it is 'sac' here, which takes a Discrete as well": ("discretesac", "sacdiscrete", "sacd"),
    "it is 'apex_dqn' here": ("apex",),
    "it is 'impala' here": ("vtrace", "torchbeast", "monobeast", "polybeast"),
    "it is --set replay.relabel=0.8 here, of 'dqn', 'sac', 'td3' and others with a replay": (
        "her",
        "hindsight",
    ),
    "it is not here; 'td3' is what became of it": ("ddpg", "apexddpg"),
    "it is not here; 'ppo' is nearest": ("trpo", "ppg", "rpo", "npg", "reinforce", "pg", "acktr"),
    "it is not here: no algorithm learns from pairs; 'grpo' learns from rewards and 'sft' from "
    "completions": (
        "dpo",
        "kto",
        "orpo",
        "ipo",
        "simpo",
        "cpo",
        "rm",
        "reward",
        "bco",
    ),
    "it is not here; 'bc' learns from recorded rows": (
        "marwil",
        "cql",
        "iql",
        "crr",
        "gail",
        "airl",
    ),
    "a network is not named, it follows from the observations; --set algorithm.torso=... takes "
    "another": (
        "mlppolicy",
        "cnnpolicy",
        "multiinputpolicy",
        "mlplstmpolicy",
        "cnnlstmpolicy",
        "multiinputlstmpolicy",
    ),
}
# Parts of the name of a file or a class that say for which envs or machines it is.
BESIDES = frozenset(
    [
        "continuous",
        "action",
        "atari",
        "envpool",
        "jax",
        "xla",
        "multigpu",
        "procgen",
        "pettingzoo",
        "ma",
        "py",
    ]
)


def is_of_peer(name: str) -> bool:
    """Does a peer call a setting so?"""
    return any(_short(name) in names for names in PEER_NAMES.values())


def key_of_peer(name: str, known: Collection[str]) -> tuple[str, str]:
    """(our key, how its value differs) of what peers call ``name``; ("", "") where none of the
    ``known`` keys is meant.
    """
    short = _short(name)
    for keys, names in PEER_NAMES.items():
        if short not in names:
            continue
        for one in keys.split("|"):
            whole, _, note = one.partition("; ")
            key, _, only_with = whole.partition("?")
            if (key in known or key.startswith("env.")) and (
                not only_with or f"{only_with}.capacity" in known
            ):
                return key, note
    return "", ""


def option_of_peer(name: str) -> str:
    """Our option for what peers call ``name``; "" where there is none."""
    return next((option for option, names in PEER_OPTIONS.items() if _short(name) in names), "")


def words_of_peer(name: str) -> str:
    """What there is here in place of what peers call ``name``, in words; "" where it is not theirs.

    It is asked where ``key_of_peer`` knows no key: so a setting of a replay is one that the
    algorithm has not.
    """
    short = _short(name)
    if key := next(
        (key for key, names in PEER_NAMES.items() if key.startswith("replay.") and short in names),
        "",
    ):
        return f"it is {key!r} of algorithms with a replay, such as dqn and sac"
    return _said(short, PEER_WORDS)


def algorithm_of_peer(name: str, known: Collection[str]) -> str:
    """The end of an error about the algorithm that peers call ``name``; "" where it is not theirs.
    ``known``: ours.
    """
    plain = _plain(name)
    if ours := next((one for one in known if one.replace("_", "") == plain), ""):
        return f"; did you mean {ours!r}?"
    if said := _said(plain, PEER_ALGORITHMS):
        return f"; {said}."
    return (
        "; that is an env, which comes first: equipoise train ENV --algorithm ppo."
        if re.search(r"-v\d+$", name)
        else ""
    )


def _said(name: str, table: Mapping[str, tuple[str, ...]]) -> str:
    return next((said for said, names in table.items() if name in names), "")


def _plain(name: str) -> str:
    """``ppo_continuous_action`` and ``PPOConfig`` are ``ppo``."""
    parts = (part for part in re.split(r"[^a-z0-9]+", name.lower()) if part not in BESIDES)
    return "".join(parts).removesuffix("config").removesuffix("trainer")


def _short(name: str) -> str:
    return name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()
