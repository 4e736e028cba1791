"""Sample Factory APPO, one epoch: env steps/s after the warm-up, learning included.

serial: batched sampling from one EnvPool, everything in one process; async: rollout workers with
Python envs, double-buffered, a learner process. Inputs and returns are not normalised (nor in the
others), which this peer would do by default.
"""

import tempfile

import common
import gymnasium as gym
import numpy as np

CASES = {  # (serial: envs, batch, rollout), (async: envs of both workers, batch, rollout), options
    "cartpole": (
        (256, 8192, 32),
        (256, 4096, 32),
        "--encoder_mlp_layers 64 64 --nonlinearity tanh --reward_scale 0.1",
    ),
    "halfcheetah": (
        (64, 4096, 64),
        (32, 1024, 64),
        "--encoder_mlp_layers 64 64 --nonlinearity tanh --adaptive_stddev False "
        "--policy_initialization torch_default --learning_rate 0.0003 --max_grad_norm 3.5",
    ),
    "pong": (
        (64, 1024, 32),
        (16, 1024, 32),
        "--encoder_conv_architecture convnet_atari --encoder_conv_mlp_layers 512 "
        "--nonlinearity relu --obs_scale 255 --env_frameskip 4 --summaries_use_frameskip False "
        "--max_grad_norm 0.5 "
        "--ppo_clip_ratio 0.1 --learning_rate 0.00025",
    ),
}
POOL = {"cartpole": "CartPole-v1", "halfcheetah": "HalfCheetah-v4", "pong": "Pong-v5"}
parser = common.options(__doc__, CASES, envs=0, rollout=0, batch=0)
parser.add_argument("mode", choices=["serial", "async"])
a = parser.parse_args()
envs, batch, rollout = CASES[a.case][a.mode == "async"]
a.envs, a.batch, a.rollout = a.envs or envs, a.batch or batch, a.rollout or rollout

OPTIONS = (
    "--algo APPO --device cpu --use_rnn False --recurrence 1 --with_vtrace False --kl_loss_coeff 0 "
    "--normalize_input False "
    "--normalize_returns False --save_every_sec 100000 --save_best_every_sec 100000 "
    "--restart_behavior overwrite "
    "--log_to_file False --decorrelate_experience_max_seconds 0 --train_for_env_steps 100000000000 "
    "--gamma 0.99 --num_epochs 1 "
    f"--rollout {a.rollout} --batch_size {a.batch} --num_batches_per_epoch "
    f"{1 if a.case == 'cartpole' else 2} "
)
MODES = {
    "serial": "--serial_mode True --async_rl False --batched_sampling True --num_workers 1 "
    "--num_envs_per_worker 1 "
    "--worker_num_splits 1",
    "async": f"--num_workers 2 --num_envs_per_worker {a.envs // 2} --worker_num_splits 2",
}


class Pool(gym.Env):
    """All envs of an EnvPool behind one step: a batched env in Sample Factory's sense."""

    def __init__(self, seed):
        import envpool

        self.pool = envpool.make(
            POOL[a.case], env_type="gymnasium", num_envs=a.envs, num_threads=1, seed=seed
        )
        self.num_agents, self.is_multiagent = a.envs, True
        self.observation_space, self.action_space = (
            self.pool.observation_space,
            self.pool.action_space,
        )
        if a.case == "halfcheetah":  # EnvPool gives float64
            shape = self.observation_space.shape
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.render_mode, self.metadata = None, {}

    def reset(self, **kwargs):
        obs, _ = self.pool.reset()
        return obs.astype(self.observation_space.dtype, copy=False), [{}] * self.num_agents

    def step(self, actions):
        actions = np.asarray(actions)
        if a.case == "halfcheetah":
            actions = actions.reshape(a.envs, -1).astype(np.float64)
        else:
            actions = actions.astype(np.int32).reshape(-1)
        obs, reward, terminated, truncated, _ = self.pool.step(actions)
        return (
            obs.astype(self.observation_space.dtype, copy=False),
            reward.astype(np.float32),
            terminated,
            truncated,
            {},
        )

    def render(self):
        pass

    def close(self):  # the pool goes with its process
        pass


class Stack(gym.wrappers.FrameStack):
    def observation(self, observation):
        return np.array(super().observation(observation))


def make(name, cfg=None, env_config=None, render_mode=None):
    if a.mode == "serial":
        return Pool(env_config.env_id if env_config is not None else 0)
    if a.case == "pong":
        return common.pong(Stack)
    # its Gymnasium has no v5
    return gym.make("CartPole-v1" if a.case == "cartpole" else "HalfCheetah-v4")


def main():
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner
    from signal_slot.signal_slot import EventLoopObject

    register_env(a.case, make)

    class Model(EventLoopObject):
        """Receives the learner's parameters when they are made; on a CPU they stay where every
        process sees them.
        """

        parameters = learner = None

        def keep(self, data):
            # None: the same process
            state = (
                data[1] if data[1] is not None else self.learner.learner.actor_critic.state_dict()
            )
            self.parameters = common.Parameters(
                (name, p) for name, p in state.items() if "normalizer" not in name
            )

    class Meter(AlgoObserver):
        model = None

        def on_connect_components(self, runner):
            self.model = Model(runner.event_loop, "keeper of the model")
            self.model.learner = runner.learners[0]
            runner.learners[0].model_initialized.connect(self.model.keep)

        def on_training_step(self, runner, iteration):
            updates = int(runner.buffer_mgr.policy_versions[0])
            if window.mark(sum(runner.env_steps.values()), updates):
                runner.cfg.train_for_env_steps = 0  # the end

    window, meter = common.Window(a), Meter()
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            "--env",
            a.case,
            "--train_dir",
            folder,
            "--experiment",
            "x",
            *OPTIONS.split(),
            *CASES[a.case][2].split(),
            *MODES[a.mode].split(),
        ]
        sf_parser, _ = parse_sf_args(argv)
        _, runner = make_runner(parse_full_cfg(sf_parser, argv))
        runner.register_observer(meter)
        runner.init()
        space, action = runner.env_info.obs_space["obs"], runner.env_info.action_space
        runner.run()
    pooled = a.mode == "serial"
    env = (
        f"envpool:{POOL[a.case]}"
        if pooled
        else {"pong": "ALE/Pong-v5", "halfcheetah": "HalfCheetah-v4"}.get(
            a.case, common.ENVS[a.case]
        )
    )
    skip, sticky = (4, 0.0) if a.case == "pong" else (1, None)
    common.emit(
        a,
        "sample-factory",
        window,
        meter.model.parameters,
        env=env,
        observation=space.shape,
        actions=int(getattr(action, "n", 0)) or int(action.shape[0]),
        minibatch=a.batch,
        frame_skip=skip,
        sticky=sticky,
    )


if __name__ == "__main__":
    main()
