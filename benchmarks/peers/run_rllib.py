"""RLlib (its new API stack) IMPALA, APPO or PPO, one pass: env steps/s after the warm-up, learning
included.

The learner lives in the driver's process (no learner actors): the fastest on one machine. Env steps
are the fewer of those that were sampled and those that were trained on; a batch is made of whole
fragments (50 rows of every env of a runner), so it is larger than ``--batch``, and it has a row
more for the end of each. Its model has no ready-made Nature CNN: a last convolution of 7 x 7 over 7
x 7 is the layer of 512.
"""

import logging
import os

os.environ.setdefault("PYTHONWARNINGS", "ignore")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import common
import numpy as np

CASES = {  # runners, envs each, rows of an optimiser step
    "cartpole": (2, 64, 2000),
    "halfcheetah": (2, 16, 1024),
    "pong": (1, 8, 512),
    "sleepy": (16, 8, 640),
}
common.ENVS["sleepy"] = "CartPole-v1"
parser = common.options(__doc__, CASES, runners=0, envs=0, batch=0, fragment=0)
parser.add_argument("--algorithm", choices=["impala", "appo", "ppo"], default="impala")
a = parser.parse_args()
runners, envs, batch = CASES[a.case]
a.runners, a.envs, a.batch = a.runners or runners, a.envs or envs, a.batch or batch


def make_pong(config):
    """Its convolutions want float frames, channels last."""
    import gymnasium as gym

    env = common.pong(gym.wrappers.FrameStackObservation)
    space = gym.spaces.Box(0.0, 1.0, (84, 84, 4), np.float32)
    return gym.wrappers.TransformObservation(
        env, lambda o: np.moveaxis(o, 0, -1).astype(np.float32) / 255.0, space
    )


def make_sleepy(config):
    """Each step sleeps for 10 ms, and a runner steps its envs in turn."""
    import time

    import gymnasium as gym

    class Sleepy(gym.Wrapper):
        def step(self, action):
            time.sleep(0.01)
            return super().step(action)

    return Sleepy(gym.make("CartPole-v1"))


def learner_parameters(algorithm):
    return dict(algorithm.learner_group._learner.module["default_policy"].named_parameters())


def main():
    import ray
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(
        num_cpus=max(8, a.runners + 1),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    window = common.Window(a)
    register_env("pong", make_pong)
    register_env("sleepy", make_sleepy)
    net = dict(
        fcnet_hiddens=[64, 64],
        fcnet_activation="tanh",
        vf_share_layers=True,
        free_log_std=a.case == "halfcheetah",
    )
    if a.case == "pong":
        filters = [
            [32, 8, 4, "valid"],
            [64, 4, 2, "valid"],
            [64, 3, 1, "valid"],
            [512, 7, 1, "valid"],
        ]
        net = dict(conv_filters=filters, conv_activation="relu", vf_share_layers=True)
    one = dict(train_batch_size_per_learner=a.batch, lr=3e-4, gamma=0.99)
    if a.algorithm == "ppo":
        one |= dict(num_epochs=1, minibatch_size=a.batch)
    sampling = dict(num_env_runners=a.runners, num_envs_per_env_runner=a.envs)
    if a.fragment:
        sampling["rollout_fragment_length"] = a.fragment
    config = {"impala": IMPALAConfig, "appo": APPOConfig, "ppo": PPOConfig}[a.algorithm]()
    config = config.environment(
        a.case if a.case in ("pong", "sleepy") else common.ENVS[a.case]
    ).env_runners(**sampling)
    config = (
        config.rl_module(model_config=DefaultModelConfig(**net))
        .learners(num_learners=0)
        .training(**one)
    )
    config = config.debugging(seed=0, log_level="ERROR").reporting(
        min_time_s_per_iteration=0 if a.algorithm == "ppo" else 2
    )
    algorithm = config.build_algo()
    learner = algorithm.learner_group._learner
    parameters = common.Parameters(learner_parameters(algorithm))
    updates = 0

    def count(*_):
        nonlocal updates
        updates += 1

    for optimizer in learner._named_optimizers.values():
        optimizer.register_step_post_hook(count)
    over, marks = False, []
    while not over:
        result = algorithm.train()
        sampled = result["env_runners"].get("num_env_steps_sampled_lifetime", 0)
        trained = (
            result.get("learners", {})
            .get("__all_modules__", {})
            .get("num_env_steps_trained_lifetime", 0)
        )
        over = window.mark(sampled, updates)
        if window.first is not None:
            marks.append((sampled, trained))
    (t0, s0, u0), (t1, s1, u1) = window.first, window.last
    sampled, trained = (y - x for x, y in zip(marks[0], marks[-1]))
    window.last = (t1, s0 + min(sampled, trained), u1)
    skip, sticky = (4, 0.0) if a.case == "pong" else (1, None)
    module = learner.module["default_policy"]
    actions = module.action_space
    common.emit(
        a,
        "ray",
        window,
        parameters,
        env=common.ENVS[a.case],
        observation=module.observation_space.shape,
        actions=int(getattr(actions, "n", 0)) or int(actions.shape[0]),
        minibatch=trained / (u1 - u0),
        frame_skip=skip,
        sticky=sticky,
        after=learner_parameters(algorithm),
        sampled=sampled,
        trained=trained,
    )
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
