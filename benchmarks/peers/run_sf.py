"""Sample Factory APPO on CartPole-v1, MLP 64-64, one epoch: env steps/s after the warm-up, learning included.

serial: batched sampling from one EnvPool of 256 envs (its fastest way here); async: two rollout workers x 128 Python envs,
double-buffered.
"""

import argparse
import tempfile
import time

import gymnasium as gym
import numpy as np
from line import emit

parser = argparse.ArgumentParser()
parser.add_argument("mode", choices=["serial", "async"])
parser.add_argument("--seconds", type=float, default=30)
parser.add_argument("--warmup", type=float, default=10)
parser.add_argument("--envs", type=int, default=256)
parser.add_argument("--rollout", type=int, default=32)
parser.add_argument("--batch", type=int, default=0, help="0: 8192 serial, 4096 async")
a = parser.parse_args()
a.batch = a.batch or {"serial": 8192, "async": 4096}[a.mode]

OPTIONS = (
    "--algo APPO --device cpu --use_rnn False --recurrence 1 --with_vtrace False --kl_loss_coeff 0 "
    "--save_every_sec 100000 --save_best_every_sec 100000 --restart_behavior overwrite --log_to_file False "
    "--decorrelate_experience_max_seconds 0 --train_for_env_steps 100000000000 "
    "--encoder_mlp_layers 64 64 --nonlinearity tanh --gamma 0.99 --reward_scale 0.1 "
    f"--rollout {a.rollout} --batch_size {a.batch} --num_epochs 1 "
)
MODES = {
    "serial": "--serial_mode True --async_rl False --batched_sampling True --num_workers 1 --num_envs_per_worker 1 "
    "--worker_num_splits 1",
    "async": f"--num_workers 2 --num_envs_per_worker {a.envs // 2} --worker_num_splits 2",
}


class Pool(gym.Env):
    """All envs of an EnvPool behind one step: a batched env in Sample Factory's sense."""

    def __init__(self, seed):
        import envpool

        self.pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=a.envs, num_threads=1, seed=seed)
        self.num_agents, self.is_multiagent = a.envs, True
        self.observation_space, self.action_space = self.pool.observation_space, self.pool.action_space
        self.render_mode, self.metadata = None, {}

    def reset(self, **kwargs):
        obs, _ = self.pool.reset()
        return obs, [{}] * self.num_agents

    def step(self, actions):
        obs, reward, terminated, truncated, _ = self.pool.step(np.asarray(actions, dtype=np.int32).reshape(-1))
        return obs, reward.astype(np.float32), terminated, truncated, {}

    def render(self):
        pass

    def close(self):  # the pool goes with its process
        pass


def make(name, cfg=None, env_config=None, render_mode=None):
    if a.mode == "async":
        return gym.make("CartPole-v1")
    return Pool(env_config.env_id if env_config is not None else 0)


def main():
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    register_env("cartpole", make)
    marks, start = [], time.time()

    class Meter(AlgoObserver):
        def on_training_step(self, runner, iteration):
            now = time.time()
            if marks or now - start >= a.warmup:
                marks.append((now, sum(runner.env_steps.values())))
                if now - marks[0][0] >= a.seconds:
                    runner.cfg.train_for_env_steps = 0  # the end

    with tempfile.TemporaryDirectory() as folder:
        argv = ["--env", "cartpole", "--train_dir", folder, "--experiment", "x", *OPTIONS.split(), *MODES[a.mode].split()]
        sf_parser, _ = parse_sf_args(argv)
        _, runner = make_runner(parse_full_cfg(sf_parser, argv))
        runner.register_observer(Meter())
        runner.init()
        runner.run()
    (t0, s0), (t1, s1) = marks[0], marks[-1]
    emit("sample-factory", "sample-factory", (s1 - s0) / (t1 - t0), measured_s=round(t1 - t0, 1), **vars(a))


if __name__ == "__main__":
    main()
