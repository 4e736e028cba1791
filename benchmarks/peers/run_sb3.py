"""Stable-Baselines3 PPO, DummyVecEnv, one pass: env steps/s after the warm-up,
learning included.
"""

import common
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack
from torch import nn

parser = common.options(__doc__, common.ENVS, envs=8, rollout=0, batch=0, epochs=1, threads=0)
parser.add_argument("--subproc", action="store_true", help="an env a process")
a = parser.parse_args()
rollout, batch, threads = {
    "cartpole": (256, 2048, 1),
    "halfcheetah": (256, 2048, 1),
    "pong": (128, 256, 2),
}[a.case]
a.rollout, a.batch, a.threads = a.rollout or rollout, a.batch or batch, a.threads or threads


class Torso(BaseFeaturesExtractor):
    """64-64 tanh, of policy and value: as in all the others here; half the work of this peer's two
    towers.
    """

    def __init__(self, space):
        super().__init__(space, 64)
        self.layers = nn.Sequential(
            nn.Linear(space.shape[0], 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()
        )

    def forward(self, x):
        return self.layers(x)


class Meter(BaseCallback):
    """One mark an iteration. (Its ``_n_updates`` counts epochs, so steps are counted at the
    optimiser.)
    """

    over, updates = False, 0

    def _on_training_start(self):
        self.model.policy.optimizer.register_step_post_hook(self.count)

    def count(self, *_):
        self.updates += 1

    def _on_rollout_start(self):
        self.over = window.mark(self.num_timesteps, self.updates)

    def _on_step(self):
        return not self.over


torch.set_num_threads(a.threads)
vec = SubprocVecEnv if a.subproc else DummyVecEnv
skip, sticky = (4, 0.0) if a.case == "pong" else (1, None)
if __name__ == "__main__":
    if a.case == "pong":
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        plain = dict(frameskip=1, repeat_action_probability=0.0)  # its own wrapper skips 4
        env = VecFrameStack(
            make_atari_env("ALE/Pong-v5", n_envs=a.envs, seed=0, vec_env_cls=vec, env_kwargs=plain),
            4,
        )
        settings = dict(policy="CnnPolicy", learning_rate=2.5e-4, clip_range=0.1, ent_coef=0.01)
    else:
        env = make_vec_env(common.ENVS[a.case], n_envs=a.envs, seed=0, vec_env_cls=vec)
        settings = dict(
            policy="MlpPolicy", policy_kwargs=dict(features_extractor_class=Torso, net_arch=[])
        )
    model = PPO(
        env=env, n_steps=a.rollout, batch_size=a.batch, n_epochs=a.epochs, device="cpu", **settings
    )
    parameters = common.Parameters(model.policy.named_parameters())
    window, meter = common.Window(a), Meter()
    model.learn(10**9, callback=meter, log_interval=10**6)
    space = model.observation_space
    actions = int(getattr(model.action_space, "n", 0)) or int(model.action_space.shape[0])
    common.emit(
        a,
        "stable-baselines3",
        window,
        parameters,
        env=common.ENVS[a.case],
        observation=space.shape,
        actions=actions,
        minibatch=min(a.batch, a.envs * a.rollout),
        frame_skip=skip,
        sticky=sticky,
    )
    env.close()
