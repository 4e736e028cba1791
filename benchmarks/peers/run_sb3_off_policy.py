"""Stable-Baselines3 SAC on HalfCheetah-v5 or DQN on Pong: env steps/s after the warm-up, learning
included.

SAC: 4 envs, 4 updates of 256 a step of all. DQN: 8 envs, 2 updates of 32 a step of all, so one for
4 env steps; replay of 10^5 rows whose next observations are not stored twice. All else is the
library's default, which is the paper's.
"""

import common
import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

parser = common.options(__doc__, ["halfcheetah", "pong"], threads=1)
a = parser.parse_args()
STARTS = 1000  # env steps before the first update


class Meter(BaseCallback):
    """One mark a step of all envs and its updates, counted at the optimiser of the values."""

    over, updates = False, 0

    def __init__(self, optimizer):
        super().__init__()
        optimizer.register_step_post_hook(self.count)

    def count(self, *_):
        self.updates += 1

    def _on_rollout_start(self):
        self.over = window.mark(self.num_timesteps, self.updates)

    def _on_step(self):
        return not self.over


torch.set_num_threads(a.threads)
if a.case == "pong":
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    plain = dict(frameskip=1, repeat_action_probability=0.0)  # its own wrapper skips 4
    env = VecFrameStack(make_atari_env("ALE/Pong-v5", n_envs=8, seed=0, env_kwargs=plain), 4)
    model = DQN(
        "CnnPolicy",
        env,
        device="cpu",
        buffer_size=100_000,
        learning_starts=STARTS,
        batch_size=32,
        train_freq=1,
        gradient_steps=2,
        target_update_interval=1000,
        optimize_memory_usage=True,
        replay_buffer_kwargs=dict(handle_timeout_termination=False),
    )
    trained, optimizer, batch = list(model.q_net.named_parameters()), model.policy.optimizer, 32
else:
    env = make_vec_env(common.ENVS[a.case], n_envs=4, seed=0)
    model = SAC(
        "MlpPolicy",
        env,
        device="cpu",
        batch_size=256,
        learning_starts=STARTS,
        train_freq=1,
        gradient_steps=4,
    )
    nets = {"actor": model.actor, "critic": model.critic}
    trained = [
        (f"{name}.{p}", value) for name, net in nets.items() for p, value in net.named_parameters()
    ]
    trained.append(("log_ent_coef", model.log_ent_coef))
    optimizer, batch = model.critic.optimizer, 256
parameters = common.Parameters(trained)
window = common.Window(a)
model.learn(10**9, callback=Meter(optimizer), log_interval=10**6)
space = model.observation_space
actions = int(getattr(model.action_space, "n", 0)) or int(model.action_space.shape[0])
skip, sticky = (4, 0.0) if a.case == "pong" else (1, None)
common.emit(
    a,
    "stable-baselines3",
    window,
    parameters,
    env=common.ENVS[a.case],
    observation=space.shape,
    actions=actions,
    minibatch=batch,
    frame_skip=skip,
    sticky=sticky,
)
env.close()
