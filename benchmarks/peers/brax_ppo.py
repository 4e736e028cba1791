"""Brax's own PPO on one of Brax's envs, with the settings of its training notebook for ant but
fewer streams; prints JSON.
"""

import argparse
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
from brax import envs
from brax.training.agents.ppo import train as ppo

parser = argparse.ArgumentParser()
for name, kind, value in (
    ("name", str, "ant"),
    ("backend", str, "spring"),
    ("streams", int, 512),
    ("unroll", int, 5),
    ("rows", int, 40_960),
    ("minibatches", int, 32),
    ("epochs", int, 4),
    ("steps", int, 4_000_000),
    ("evaluations", int, 10),
    ("seed", int, 0),
):
    parser.add_argument(f"--{name}", type=kind, default=value)
a = parser.parse_args()
# Brax 0.14 calls it; JAX 0.10 has it no longer.
jax.device_put_replicated = lambda tree, devices: jax.tree.map(
    lambda x: jnp.stack([x] * len(devices)), tree
)
found: list[tuple[int, float, float]] = []


def seen(steps: int, metrics: Any) -> None:
    found.append(
        (steps, float(metrics["eval/episode_reward"]), float(metrics["eval/episode_reward_std"]))
    )
    print(json.dumps(found[-1]), flush=True)


began = time.perf_counter()
ppo.train(
    envs.get_environment(a.name, backend=a.backend),
    a.steps,
    num_envs=a.streams,
    episode_length=1000,
    unroll_length=a.unroll,
    batch_size=a.rows // a.unroll // a.minibatches,
    num_minibatches=a.minibatches,
    num_updates_per_batch=a.epochs,
    learning_rate=3e-4,
    entropy_cost=1e-2,
    discounting=0.97,
    gae_lambda=0.95,
    clipping_epsilon=0.3,
    reward_scaling=10.0,
    normalize_observations=True,
    deterministic_eval=True,
    num_evals=a.evaluations,
    seed=a.seed,
    progress_fn=seen,
)
print(json.dumps({"evaluations": found, "wall_s": time.perf_counter() - began}))
