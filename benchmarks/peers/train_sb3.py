"""Stable-Baselines3 at its defaults: train an algorithm for a number of steps, then play 100
episodes with its best actions.

The value is the mean return of those; ``trained_at`` is the time.time() when training was over.
"""

import argparse
import json
import time

import stable_baselines3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

parser = argparse.ArgumentParser()
parser.add_argument("env")
parser.add_argument("--algorithm", required=True, choices=["ppo", "sac"])
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--episodes", type=int, default=100)
a = parser.parse_args()

model = getattr(stable_baselines3, a.algorithm.upper())("MlpPolicy", a.env, seed=a.seed)
model.learn(a.steps)
trained_at = time.time()
envs = make_vec_env(a.env, n_envs=10, seed=1_000_000 + a.seed)
mean, deviation = evaluate_policy(model, envs, n_eval_episodes=a.episodes, deterministic=True)
print(
    json.dumps(
        {
            "value": mean,
            "deviation": deviation,
            "trained_at": trained_at,
            "env_steps": model.num_timesteps,
        }
    )
)
