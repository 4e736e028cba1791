"""Classic control."""

from __future__ import annotations

from collections.abc import Mapping

RECIPES: dict[tuple[str, str], Mapping[str, object]] = {
    # After rl-baselines3-zoo's tuned PPO (8 x 32, 20 epochs of one minibatch, lr 1e-3 and clip 0.2
    # linear, 1e5 steps).
    #
    # Deviations: 16 streams, 10 epochs of two minibatches, the schedules run over 5e5 steps;
    # orthogonal init as in CleanRL.
    ("CartPole-v1", "ppo"): {
        "policy.unroll": 32,
        "policy.batch": 16,
        "algorithm.gamma": 0.98,
        "algorithm.lambda_": 0.8,
        "algorithm.entropy": 0.0,
        "optimizer.learning_rate": 0.001,
        "optimizer.schedule": "linear",
        "algorithm.epochs": 10,
        "algorithm.minibatches": 2,
        "algorithm.clip": 0.2,
        "algorithm.anneal_clip": True,
        "placement.actors": 1,
        "placement.envs_per_actor": 16,
        "placement.max_lag": 0,
        "schedule.steps": 500_000,
    },
    # Found here: separate torsos and scaled rewards, or the value loss (values near 50) drowns the
    # policy's gradient in the clip. Four small steps a batch in place of a large one: with the
    # latter it forgot what it had learned (docs/results/forgetting.md).
    ("CartPole-v1", "impala"): {
        "policy.unroll": 20,
        "policy.batch": 16,
        "algorithm.gamma": 0.98,
        "algorithm.minibatches": 4,
        "algorithm.entropy": 0.001,
        "rewards.scale": 0.1,
        "optimizer.learning_rate": 0.00075,
        "optimizer.epsilon": 1e-4,
        "placement.actors": 2,
        "placement.envs_per_actor": 8,
        "placement.max_lag": 1,
        "schedule.steps": 500_000,
    },
    # Found here; the figures of CartPole's PPO if the two are alike.
    ("CartPole-v1", "appo"): {
        "policy.unroll": 32,
        "policy.batch": 16,
        "algorithm.gamma": 0.98,
        "algorithm.lambda_": 0.9,
        "algorithm.entropy": 0.0,
        "optimizer.learning_rate": 0.001,
        "algorithm.epochs": 4,
        "algorithm.minibatches": 2,
        "placement.actors": 2,
        "placement.envs_per_actor": 8,
        "placement.max_lag": 1,
        "schedule.steps": 500_000,
    },
    # After rl-baselines3-zoo's A2C (8 streams, unrolls of 5, RMSProp, no entropy, 5e5 steps).
    #
    # Deviations: four actors of eight streams each whose unrolls are an update each, whenever they
    # come.
    ("CartPole-v1", "a3c"): {
        "policy.unroll": 5,
        "policy.batch": 8,
        "algorithm.entropy": 0.0,
        "placement.actors": 4,
        "placement.envs_per_actor": 8,
        "placement.max_lag": None,
        "schedule.steps": 500_000,
    },
    # rl-baselines3-zoo's A2C: 8 streams, and the defaults. Deviation: the learning rate falls to 0
    # over the run.
    ("CartPole-v1", "a2c"): {
        "policy.unroll": 5,
        "policy.batch": 8,
        "optimizer.schedule": "linear",
        "placement.actors": 1,
        "placement.envs_per_actor": 8,
        "placement.max_lag": 0,
        "schedule.steps": 500_000,
    },
    # CleanRL's PPO for classic control, on 16 streams of 128 rows.
    ("Acrobot-v1", "ppo"): {
        "policy.unroll": 64,
        "policy.batch": 32,
        "algorithm.gamma": 0.99,
        "algorithm.lambda_": 0.95,
        "algorithm.entropy": 0.01,
        "optimizer.learning_rate": 0.001,
        "optimizer.schedule": "linear",
        "algorithm.epochs": 4,
        "algorithm.minibatches": 4,
        "algorithm.clip": 0.2,
        "placement.actors": 2,
        "placement.envs_per_actor": 16,
        "placement.max_lag": 0,
        "schedule.steps": 1_000_000,
    },
    ("Acrobot-v1", "impala"): {
        "policy.unroll": 20,
        "policy.batch": 16,
        "optimizer.learning_rate": 0.0015,
        "algorithm.entropy": 0.01,
        "placement.actors": 2,
        "placement.envs_per_actor": 8,
        "placement.max_lag": 1,
        "schedule.steps": 1_000_000,
    },
    # Acrobot's PPO with half of its batch, and a lag of one.
    ("Acrobot-v1", "appo"): {
        "policy.unroll": 64,
        "policy.batch": 16,
        "optimizer.learning_rate": 0.001,
        "algorithm.epochs": 4,
        "algorithm.minibatches": 4,
        "placement.actors": 2,
        "placement.envs_per_actor": 8,
        "placement.max_lag": 1,
        "schedule.steps": 1_000_000,
    },
    # Found here: a batch of two actors' unrolls and lr 2e-3 learn if an update for each alone, or
    # lr 7e-4, may not.
    ("Acrobot-v1", "a3c"): {
        "policy.unroll": 8,
        "policy.batch": 32,
        "algorithm.entropy": 0.01,
        "optimizer.learning_rate": 0.002,
        "placement.actors": 4,
        "placement.envs_per_actor": 16,
        "placement.max_lag": None,
        "schedule.steps": 1_000_000,
    },
    # After rl-baselines3-zoo's tuned DQN (256-256, lr 2.3e-3, batch 64, 128 updates to 256 steps,
    # 5e4 steps).
    #
    # Its target is copied between two such phases. Deviations: rounds of 64 steps of four streams
    # and 32 updates; double; the learning rate goes to 0 over 1e5 steps.
    ("CartPole-v1", "dqn"): {
        "policy.unroll": 16,
        "policy.batch": 64,
        "optimizer.learning_rate": 0.0023,
        "optimizer.schedule": "linear",
        "algorithm.epsilon": 0.04,
        "algorithm.epsilon_steps": 8_000,
        "algorithm.target_every": 128,
        "replay.capacity": 100_000,
        "replay.starts_at": 1_000,
        "replay.updates": 32,
        "placement.actors": 1,
        "placement.envs_per_actor": 4,
        "placement.max_lag": 1,
        "schedule.steps": 100_000,
    },
    # rl-baselines3-zoo's tuned SAC (64-64, lr 3e-4, batch 512, 32 updates to 32 steps, gamma
    # 0.9999, tau 0.01, temperature 0.1, generalised state-dependent exploration, 5e4 steps).
    #
    # Deviations: 512 steps before the first update for none.
    ("MountainCarContinuous-v0", "sac"): {
        "policy.unroll": 32,
        "policy.batch": 512,
        "algorithm.hidden": (64, 64),
        "algorithm.gamma": 0.9999,
        "algorithm.tau": 0.01,
        "optimizer.learning_rate": 0.0003,
        "algorithm.temperature": 0.1,
        "algorithm.learn_temperature": False,
        "algorithm.random_steps": 0,
        "algorithm.sde_every": 32,
        "algorithm.sde_log_std": -3.67,
        "replay.capacity": 50_000,
        "replay.starts_at": 512,
        "replay.updates": 32,
        "placement.actors": 1,
        "placement.envs_per_actor": 1,
        "placement.max_lag": 1,
        "schedule.steps": 50_000,
    },
    # rl-baselines3-zoo's tuned PPO (4 x 1024, 10 epochs of minibatches of 64, gamma 0.9, lr 1e-3,
    # generalised state-dependent exploration, 1e5 steps).
    ("Pendulum-v1", "ppo"): {
        "policy.unroll": 1_024,
        "policy.batch": 4,
        "algorithm.gamma": 0.9,
        "algorithm.lambda_": 0.95,
        "algorithm.clip": 0.2,
        "algorithm.entropy": 0.0,
        "algorithm.value": 1.0,
        "optimizer.learning_rate": 0.001,
        "optimizer.schedule": "constant",
        "algorithm.epochs": 10,
        "algorithm.minibatches": 64,
        "algorithm.sde_every": 4,
        "placement.actors": 1,
        "placement.envs_per_actor": 4,
        "placement.max_lag": 0,
        "schedule.steps": 100_000,
    },
    # After rl-baselines3-zoo's tuned QR-DQN (256-256, 10 quantiles, lr 2.3e-3, batch 64, 128
    # updates to 256 steps, 5e4 steps).
    #
    # Deviations: rounds of 64 steps of four streams and 32 updates; the learning rate goes to 0;
    # gradients are cut at 10.
    ("CartPole-v1", "qr_dqn"): {
        "policy.unroll": 16,
        "policy.batch": 64,
        "optimizer.learning_rate": 0.0023,
        "optimizer.schedule": "linear",
        "optimizer.max_grad_norm": 10.0,
        "algorithm.quantiles": 10,
        "algorithm.epsilon": 0.04,
        "algorithm.epsilon_steps": 8_000,
        "algorithm.target_every": 128,
        "replay.capacity": 100_000,
        "replay.starts_at": 1_000,
        "replay.updates": 32,
        "placement.actors": 1,
        "placement.envs_per_actor": 4,
        "placement.max_lag": 1,
        "schedule.steps": 50_000,
    },
    # Found here: half of the greatest entropy (of 0.98, as published, little of a policy is left
    # with two actions).
    ("CartPole-v1", "sac"): {
        "policy.unroll": 16,
        "policy.batch": 128,
        "optimizer.learning_rate": 0.001,
        "algorithm.target_entropy": 0.35,
        "algorithm.temperature": 0.2,
        "replay.capacity": 100_000,
        "replay.starts_at": 1_000,
        "replay.updates": 32,
        "placement.actors": 1,
        "placement.envs_per_actor": 4,
        "placement.max_lag": 1,
        "schedule.steps": 100_000,
    },
    # After rl-baselines3-zoo's SAC (256-256, lr 1e-3, batch 256, an update a step, 2e4 steps); a
    # round is four steps.
    ("Pendulum-v1", "sac"): {
        "policy.unroll": 1,
        "policy.batch": 256,
        "optimizer.learning_rate": 0.001,
        "algorithm.random_steps": 500,
        "replay.capacity": 100_000,
        "replay.starts_at": 500,
        "replay.updates": 4,
        "placement.actors": 1,
        "placement.envs_per_actor": 4,
        "placement.max_lag": 1,
        "schedule.steps": 20_000,
    },
    # After rl-baselines3-zoo's TD3 (lr 1e-3, noise 0.1, batch 256, an update a step, 2e4 steps).
    #
    # Deviations: 256-256 for 400-300, 1,000 steps before the first update for 10,000; a round is
    # four steps.
    ("Pendulum-v1", "td3"): {
        "policy.unroll": 1,
        "policy.batch": 256,
        "optimizer.learning_rate": 0.001,
        "algorithm.random_steps": 1_000,
        "replay.capacity": 100_000,
        "replay.starts_at": 1_000,
        "replay.updates": 4,
        "placement.actors": 1,
        "placement.envs_per_actor": 4,
        "placement.max_lag": 1,
        "schedule.steps": 20_000,
    },
    # sb3-contrib's defaults, which are TQC's here: lr 3e-4, an update a step of one stream. With
    # four streams it dips after 6,000 steps (docs/results/new-algorithms.md). rl-baselines3-zoo's
    # TQC has 64-64, lr 1e-3, generalised state-dependent exploration and 2e4 steps.
    ("Pendulum-v1", "tqc"): {
        "policy.unroll": 1,
        "policy.batch": 256,
        "algorithm.random_steps": 500,
        "replay.capacity": 100_000,
        "replay.starts_at": 500,
        "replay.updates": 1,
        "placement.actors": 1,
        "placement.envs_per_actor": 1,
        "placement.max_lag": 1,
        "schedule.steps": 10_000,
    },
    # After rl-baselines3-zoo's CrossQ (critics of 256-256, delay 2, batch 256, an update a step,
    # 2e4 steps).
    #
    # Deviations: 500 steps before the first update for 100; a round is four steps; 1e4 steps.
    ("Pendulum-v1", "crossq"): {
        "policy.unroll": 1,
        "policy.batch": 256,
        "algorithm.critic_hidden": (256, 256),
        "algorithm.delay": 2,
        "algorithm.random_steps": 500,
        "replay.capacity": 100_000,
        "replay.starts_at": 500,
        "replay.updates": 4,
        "placement.actors": 1,
        "placement.envs_per_actor": 4,
        "placement.max_lag": 1,
        "schedule.steps": 10_000,
    },
    # CartPole's DQN with Ape-X's ladder and priorities; two actors of eight streams, returns of
    # three steps.
    #
    # Deviations from Horgan et al. 2018: the final epsilon of DQN is that of a stream in the middle
    # of the ladder; the sizes.
    ("CartPole-v1", "apex_dqn"): {
        "policy.unroll": 4,
        "policy.batch": 64,
        "optimizer.learning_rate": 0.001,
        "optimizer.schedule": "linear",
        "algorithm.target_every": 128,
        "optimizer.max_grad_norm": 10.0,
        "replay.capacity": 100_000,
        "replay.starts_at": 1_000,
        "replay.updates": 32,
        "replay.selector": "prioritized",
        "placement.actors": 2,
        "placement.envs_per_actor": 8,
        "placement.max_lag": None,
        "schedule.steps": 100_000,
    },
}
