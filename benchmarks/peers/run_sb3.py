"""Stable-Baselines3 PPO on CartPole-v1, MLP 64-64, DummyVecEnv: env steps/s after the warm-up, learning included."""

import argparse
import time

import torch
from line import emit
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=30)
parser.add_argument("--warmup", type=float, default=6)
parser.add_argument("--envs", type=int, default=8)
parser.add_argument("--rollout", type=int, default=256)
parser.add_argument("--batch", type=int, default=2048)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--threads", type=int, default=1)
a = parser.parse_args()


class Meter(BaseCallback):
    """One mark an iteration, so that whole iterations are counted."""

    marks, over, start = [], False, time.time()

    def _on_rollout_start(self):
        now = time.time()
        if self.marks or now - self.start >= a.warmup:
            self.marks.append((now, self.num_timesteps))
            self.over = now - self.marks[0][0] >= a.seconds

    def _on_step(self):
        return not self.over


torch.set_num_threads(a.threads)
env = make_vec_env("CartPole-v1", n_envs=a.envs, seed=0)
policy = dict(net_arch=[64, 64])
model = PPO("MlpPolicy", env, n_steps=a.rollout, batch_size=a.batch, n_epochs=a.epochs, policy_kwargs=policy, device="cpu")
meter = Meter()
model.learn(10**9, callback=meter, log_interval=1000)
(t0, s0), (t1, s1) = meter.marks[0], meter.marks[-1]
emit("stable-baselines3", "stable-baselines3", (s1 - s0) / (t1 - t0), measured_s=round(t1 - t0, 1), **vars(a))
