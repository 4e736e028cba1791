"""Atari, tuned for the wall time of two cores, which learner and actors share: so an update is one
pass or two.
"""

from __future__ import annotations

from collections.abc import Mapping

RECIPES: dict[tuple[str, str], Mapping[str, object]] = {
    # After the paper and Cleanba (T=20 x 32, lr 6e-4 linear, entropy 0.01, value 0.5, gamma 0.99),
    # with many more updates.
    #
    # Deviations: two passes of eight minibatches over a batch, since two cores make few steps; Adam
    # for RMSProp, lr 4e-4 throughout; the loss is a mean, so the norm is cut at 0.5 and not at 40;
    # no sticky actions, which Cleanba has; rewards unclipped, since Pong pays 1; 32 streams on two
    # actors.
    ("ALE/Pong-v5", "impala"): {
        "env.repeat_action_probability": 0.0,
        "policy.unroll": 20,
        "policy.batch": 32,
        "optimizer.learning_rate": 0.0004,
        "optimizer.schedule": "constant",
        "algorithm.entropy": 0.01,
        "algorithm.value": 0.5,
        "optimizer.max_grad_norm": 0.5,
        "algorithm.gamma": 0.99,
        "algorithm.epochs": 2,
        "algorithm.minibatches": 8,
        "placement.actors": 2,
        "placement.envs_per_actor": 16,
        "placement.max_lag": 1,
        "schedule.steps": 10_000_000,
    },
    # After CleanRL's PPO for Atari (8 x 128, 4 minibatches and epochs, lr 2.5e-4 linear, clip 0.1,
    # entropy 0.01).
    #
    # Deviations: 32 streams of 64 rows, 8 minibatches, 3 epochs, lr 4e-4 throughout, rewards
    # unclipped, a lag of 1.
    ("ALE/Pong-v5", "ppo"): {
        "env.repeat_action_probability": 0.0,
        "policy.unroll": 64,
        "policy.batch": 32,
        "algorithm.gamma": 0.99,
        "algorithm.lambda_": 0.95,
        "algorithm.clip": 0.1,
        "algorithm.entropy": 0.01,
        "algorithm.value": 0.5,
        "optimizer.learning_rate": 0.0004,
        "optimizer.schedule": "constant",
        "algorithm.epochs": 3,
        "algorithm.minibatches": 8,
        "optimizer.max_grad_norm": 0.5,
        "placement.actors": 2,
        "placement.envs_per_actor": 16,
        "placement.max_lag": 1,
        "schedule.steps": 10_000_000,
    },
    # After CleanRL's and the zoo's DQN (batch 32, an update in four steps, lr 1e-4, target 250
    # updates, epsilon to 0.01).
    #
    # Deviations: double; a replay of 1e5 rows; eight streams; epsilon falls over 2.5e5 steps.
    ("ALE/Pong-v5", "dqn"): {
        "env.repeat_action_probability": 0.0,
        "policy.unroll": 4,
        "policy.batch": 32,
        "optimizer.learning_rate": 0.0001,
        "algorithm.epsilon": 0.01,
        "algorithm.epsilon_steps": 250_000,
        "algorithm.target_every": 250,
        "replay.capacity": 100_000,
        "replay.starts_at": 10_000,
        "replay.updates": 8,
        "placement.actors": 1,
        "placement.envs_per_actor": 8,
        "placement.max_lag": 1,
        "schedule.steps": 10_000_000,
    },
    # Pong's DQN with Ape-X's ladder and priorities; two actors of eight streams, returns of three
    # steps.
    #
    # Deviations from Horgan et al. 2018: 16 streams for 360, batch 32 for 512, an update in eight
    # steps, Adam and lr 1e-4, a replay of 1e5 rows, a target of 1,000 updates, norms cut at 10; the
    # ladder after 5e4 steps of falling epsilon.
    ("ALE/Pong-v5", "apex_dqn"): {
        "env.repeat_action_probability": 0.0,
        "policy.unroll": 4,
        "policy.batch": 32,
        "optimizer.learning_rate": 0.0001,
        "algorithm.epsilon_steps": 50_000,
        "algorithm.target_every": 1_000,
        "optimizer.max_grad_norm": 10.0,
        "replay.capacity": 100_000,
        "replay.starts_at": 10_000,
        "replay.updates": 8,
        "replay.selector": "prioritized",
        "placement.actors": 2,
        "placement.envs_per_actor": 8,
        "placement.max_lag": None,
        "schedule.steps": 3_000_000,
    },
}
