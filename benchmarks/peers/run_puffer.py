"""PufferLib 3.0 PPO on CartPole-v1 through its Gymnasium emulation, serial, MLP 64-64: env steps/s after the warm-up."""

import argparse
import contextlib
import io
import os
import sys
import time

import gymnasium as gym
import torch
from line import emit
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=30)
parser.add_argument("--warmup", type=float, default=6)
parser.add_argument("--envs", type=int, default=128)
parser.add_argument("--rollout", type=int, default=64)
parser.add_argument("--batch", type=int, default=4096, help="minibatch")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--threads", type=int, default=1)
a = parser.parse_args()
sys.argv = sys.argv[:1]  # PufferLib reads it, too


def make_env(buf=None, seed=0, **kwargs):
    import pufferlib.emulation

    return pufferlib.emulation.GymnasiumPufferEnv(env=gym.make("CartPole-v1"), buf=buf, seed=seed)


class Policy(nn.Module):
    def __init__(self, env):
        super().__init__()
        import pufferlib.pytorch

        init = pufferlib.pytorch.layer_init

        def mlp(outputs):
            return nn.Sequential(
                init(nn.Linear(4, 64)), nn.Tanh(), init(nn.Linear(64, 64)), nn.Tanh(), init(nn.Linear(64, outputs))
            )

        self.policy, self.value = mlp(env.single_action_space.n), mlp(1)

    def forward_eval(self, x, state=None):
        x = x.reshape(-1, 4).float()
        return self.policy(x), self.value(x)

    def forward(self, x, state=None):
        return self.forward_eval(x, state)


def main():
    import pufferlib.vector
    from pufferlib import pufferl

    torch.set_num_threads(a.threads)
    env = pufferlib.vector.make(make_env, num_envs=a.envs, backend=pufferlib.vector.Serial)
    cfg = pufferl.load_config("default")["train"]
    cfg.update(
        env="cartpole",
        device="cpu",
        optimizer="adam",
        bptt_horizon=a.rollout,
        batch_size="auto",
        use_rnn=False,
        minibatch_size=min(a.batch, a.envs * a.rollout),
        update_epochs=a.epochs,
        total_timesteps=10**9,
        learning_rate=3e-4,
        checkpoint_interval=10**9,
        compile=False,
    )
    marks, start = [], time.time()
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = pufferl.PuffeRL(cfg, env, Policy(env.driver_env))
        while not marks or marks[-1][0] - marks[0][0] < a.seconds:
            trainer.evaluate()
            trainer.train()
            if marks or time.time() - start >= a.warmup:
                marks.append((time.time(), trainer.global_step))
    (t0, s0), (t1, s1) = marks[0], marks[-1]
    emit("pufferlib", "pufferlib", (s1 - s0) / (t1 - t0), measured_s=round(t1 - t0, 1), **vars(a))
    env.close()
    os._exit(0)  # its helper threads would keep the process


if __name__ == "__main__":
    main()
