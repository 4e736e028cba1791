"""Stable-Baselines3's tuned PPO (rl-baselines3-zoo, CartPole-v1) until solved by the rule of
../solve.py.

The value is the time.time() of the moment at which 100 fresh episodes had confirmed the 20 before
them; ``pass_at`` is that at which the 20 were over, ``evaluation_s`` what all evaluations up to
then took. The same run goes on, without evaluations, to the mean of the last 100 training episodes;
``train_rule_at`` is when that held, less the time of all evaluations.
"""

import argparse
import collections
import json
import time

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--threshold", type=float, default=475)
parser.add_argument("--episodes", type=int, default=20)
parser.add_argument("--confirm-episodes", type=int, default=100)
parser.add_argument(
    "--trigger-return",
    type=float,
    default=380,
    help="evaluate from when the training mean is that high",
)
parser.add_argument("--trigger-episodes", type=int, default=20)
parser.add_argument("--evaluate-every", type=int, default=5000, help="env steps")
parser.add_argument("--steps", type=int, default=1_000_000, help="give up after so many")
parser.add_argument(
    "--train-rule-steps",
    type=int,
    default=100_000,
    help="go on for the training rule at most so long",
)
parser.add_argument("--threads", type=int, default=1)
a = parser.parse_args()
torch.set_num_threads(a.threads)


class Rule(BaseCallback):
    """Looks once an iteration, between update and rollout, at the policy that the rollout would
    use.
    """

    def __init__(self):
        super().__init__()
        self.recent = collections.deque(maxlen=a.trigger_episodes)
        self.eval_env = make_vec_env("CartPole-v1", n_envs=20, seed=1_000_000 + a.seed)
        self.next, self.evaluations, self.evaluating_s = 0, 0, 0.0
        self.solved, self.train_rule = None, None

    def _on_step(self):
        self.recent.extend(
            info["episode"]["r"] for info in self.locals["infos"] if "episode" in info
        )
        over = (
            self.train_rule or self.num_timesteps > self.solved["env_steps"] + a.train_rule_steps
            if self.solved
            else False
        )
        return not over

    def _on_rollout_start(self):
        last = [e["r"] for e in self.model.ep_info_buffer]  # of the last 100 training episodes
        if self.train_rule is None and len(last) >= 100 and np.mean(last) >= a.threshold:
            self.train_rule = dict(train_rule_at=time.time() - self.evaluating_s)
        ready = len(self.recent) == a.trigger_episodes and np.mean(self.recent) >= a.trigger_return
        if self.solved is None and ready and self.num_timesteps >= self.next:
            self.next = self.num_timesteps + a.evaluate_every
            self.evaluate()

    def evaluate(self):
        self.evaluations += 1
        if self.play(a.episodes) < a.threshold:
            return
        passed = dict(pass_at=time.time(), evaluation_s=round(self.evaluating_s, 3))
        confirmed = self.play(a.confirm_episodes)
        if confirmed >= a.threshold:
            self.solved = dict(
                passed, solved_at=time.time(), env_steps=self.num_timesteps, confirmed=confirmed
            )

    def play(self, episodes):
        start = time.time()
        mean, _ = evaluate_policy(
            self.model, self.eval_env, n_eval_episodes=episodes, deterministic=True
        )
        self.evaluating_s += time.time() - start
        return mean


def linear(initial):
    """The zoo's lin_*: to 0 over 1e5 steps; here a tenth of it is kept, so that a late seed can
    still solve.
    """
    return lambda left: max(1.0 - (1.0 - left) * a.steps / 1e5, 0.1) * initial


model = PPO(
    "MlpPolicy",
    make_vec_env("CartPole-v1", n_envs=8, seed=a.seed),
    n_steps=32,
    batch_size=256,
    gae_lambda=0.8,
    gamma=0.98,
    n_epochs=20,
    ent_coef=0.0,
    learning_rate=linear(0.001),
    clip_range=linear(0.2),
    device="cpu",
    seed=a.seed,
)
rule = Rule()
model.learn(a.steps, callback=rule, log_interval=10**6)
if rule.solved is None:
    raise SystemExit(f"not solved within {model.num_timesteps} steps")
train_rule = rule.train_rule or dict(train_rule_at=None)
value = rule.solved.pop("solved_at")
print(
    json.dumps(
        {"value": value, "evaluations": rule.evaluations, **rule.solved, **train_rule, **vars(a)}
    )
)
