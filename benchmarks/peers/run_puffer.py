"""PufferLib 3.0 PPO through its Gymnasium emulation, one pass: env steps/s after the warm-up,
learning included.
"""

import contextlib
import io
import os
import sys

import common
import gymnasium as gym
import numpy as np
import torch
from torch import nn

CASES = {  # envs, worker processes (0: none), rollout, minibatch, threads of torch
    "cartpole": (128, 0, 64, 4096, 1),
    "halfcheetah": (64, 2, 64, 2048, 1),
    "pong": (16, 2, 64, 1024, 2),
}
parser = common.options(__doc__, CASES, envs=0, rollout=0, batch=0, threads=0, epochs=1)
parser.add_argument("--workers", type=int, help="processes that step the envs; 0: none")
a = parser.parse_args()
sys.argv = sys.argv[:1]  # PufferLib reads it, too
envs, workers, rollout, batch, threads = CASES[a.case]
a.envs, a.rollout, a.batch, a.threads = (
    a.envs or envs,
    a.rollout or rollout,
    a.batch or batch,
    a.threads or threads,
)
a.workers = workers if a.workers is None else a.workers
# its Gymnasium has no v5
NAME = {"halfcheetah": "HalfCheetah-v4", "pong": "ALE/Pong-v5"}.get(a.case, common.ENVS[a.case])


def make_env(buf=None, seed=0, **kwargs):
    import pufferlib
    import pufferlib.emulation

    if a.case == "pong":
        env = common.pong(gym.wrappers.FrameStack)
    else:
        env = gym.make(NAME)
    if a.case == "halfcheetah":
        env = pufferlib.ClipAction(env)
    return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)


class Policy(nn.Module):
    def __init__(self, env):
        super().__init__()
        import pufferlib.pytorch

        init = pufferlib.pytorch.layer_init
        self.shape, space = env.single_observation_space.shape, env.single_action_space
        self.continuous = isinstance(space, gym.spaces.Box)
        actions = space.shape[0] if self.continuous else space.n
        if a.case == "pong":
            layers = [
                nn.Conv2d(4, 32, 8, 4),
                nn.ReLU(),
                nn.Conv2d(32, 64, 4, 2),
                nn.ReLU(),
                nn.Conv2d(64, 64, 3, 1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(3136, 512),
                nn.ReLU(),
            ]
        else:
            layers = [
                nn.Linear(int(np.prod(self.shape)), 64),
                nn.Tanh(),
                nn.Linear(64, 64),
                nn.Tanh(),
            ]
        self.torso = nn.Sequential(*(init(x) if hasattr(x, "weight") else x for x in layers))
        width = 512 if a.case == "pong" else 64
        self.policy, self.value = (
            init(nn.Linear(width, actions), std=0.01),
            init(nn.Linear(width, 1), std=1),
        )
        if self.continuous:
            self.log_std = nn.Parameter(torch.zeros(1, actions))

    def forward_eval(self, x, state=None):
        x = x.reshape(-1, *self.shape).float()
        hidden = self.torso(x / 255.0 if a.case == "pong" else x)
        out = self.policy(hidden)
        if self.continuous:
            out = torch.distributions.Normal(out, self.log_std.expand_as(out).exp())
        return out, self.value(hidden)

    def forward(self, x, state=None):
        return self.forward_eval(x, state)


def main():
    import pufferlib.vector
    from pufferlib import pufferl

    torch.set_num_threads(a.threads)
    window = common.Window(a)
    how = dict(backend=pufferlib.vector.Serial)
    if a.workers:
        how = dict(
            backend=pufferlib.vector.Multiprocessing, num_workers=a.workers, batch_size=a.envs
        )
    env = pufferlib.vector.make(make_env, num_envs=a.envs, **how)
    cfg = pufferl.load_config("default")["train"]
    minibatch = min(a.batch, a.envs * a.rollout)
    cfg.update(
        env=a.case,
        device="cpu",
        optimizer="adam",
        bptt_horizon=a.rollout,
        batch_size="auto",
        use_rnn=False,
        minibatch_size=minibatch,
        update_epochs=a.epochs,
        total_timesteps=10**9,
        learning_rate=3e-4,
        checkpoint_interval=10**9,
        compile=False,
    )
    updates = 0

    def count(*_):
        nonlocal updates
        updates += 1

    with contextlib.redirect_stdout(io.StringIO()):
        policy = Policy(env.driver_env)
        parameters = common.Parameters(policy.named_parameters())
        trainer = pufferl.PuffeRL(cfg, env, policy)
        trainer.optimizer.register_step_post_hook(count)
        while not window.mark(trainer.global_step, updates):
            trainer.evaluate()
            trainer.train()
    skip, sticky = (4, 0.0) if a.case == "pong" else (1, None)
    actions = policy.policy.out_features
    common.emit(
        a,
        "pufferlib",
        window,
        parameters,
        env=NAME,
        observation=policy.shape,
        actions=actions,
        minibatch=minibatch,
        frame_skip=skip,
        sticky=sticky,
    )
    env.close()
    os._exit(0)  # its helper threads would keep the process


if __name__ == "__main__":
    main()
