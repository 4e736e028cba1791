"""What users of Stable-Baselines3, CleanRL, RLlib and Sample Factory type wrong, and the hint that
each gets.

One table: who types it, the command line or the call, and what the answer must say.
"""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise import api
from equipoise.cli import app
from equipoise.console.options import flags
from equipoise.envs.making import resolve

SB3, CLEANRL, RLLIB, SF = "Stable-Baselines3", "CleanRL", "RLlib", "Sample Factory"
PEERS = {"sb3": SB3, "cleanrl": CLEANRL, "rllib": RLLIB, "sf": SF}
HERE = "tests.cli.test_wrong_inputs"


class Wrong(NamedTuple):
    name: str  # begins with the peer
    typed: str  # a command line, or an expression in Python
    said: str  # the answer has it

    @property
    def peer(self) -> str:
        return PEERS[self.name.partition(" ")[0]]


def program(rest: str) -> str:
    return f"api.program('CartPole-v1', {rest})"


TRAIN = "equipoise train CartPole-v1"
SETTINGS = [
    # Names of settings, as options of a command line.
    Wrong("sb3 --total-timesteps", f"{TRAIN} --total-timesteps 100000", "it is --steps here"),
    Wrong("sb3 --n-steps", f"{TRAIN} --n-steps 128", "it is --unroll here"),
    Wrong(
        "sb3 --n-steps of dqn",
        f"{TRAIN} --algorithm dqn --n-steps 3",
        "it is --n-step here",
    ),
    Wrong("sb3 --ent-coef", f"{TRAIN} --ent-coef 0.01", "it is --entropy here"),
    Wrong(
        "sb3 --ent-coef of sac",
        "equipoise train Pendulum-v1 --algorithm sac --ent-coef 0.1",
        "it is --temperature here",
    ),
    Wrong("sb3 --clip-range", f"{TRAIN} --clip-range 0.2", "it is --clip here"),
    Wrong(
        "sb3 --max-grad-norm", f"{TRAIN} --max-grad-norm 0.5", "--set optimizer.max_grad_norm=..."
    ),
    Wrong(
        "sb3 --buffer-size",
        f"{TRAIN} --algorithm dqn --buffer-size 100000",
        "--set replay.capacity=... here",
    ),
    Wrong(
        "sb3 --buffer-size of ppo",
        f"{TRAIN} --buffer-size 9",
        "it is 'replay.capacity' of algorithms with a replay, such",
    ),
    Wrong("sb3 --algo", f"{TRAIN} --algo ppo", "it is --algorithm here"),
    Wrong(
        "sb3 --env",
        "equipoise train --algorithm ppo --env CartPole-v1",
        "the env comes first and has no name",
    ),
    Wrong(
        "sb3 --env-kwargs",
        f"{TRAIN} --env-kwargs gravity:9",
        "an argument of the env is --set env.KEY=VALUE",
    ),
    Wrong("sb3 --tensorboard-log", f"{TRAIN} --tensorboard-log logs", "it is --out here"),
    Wrong(
        "cleanrl --env-id",
        "equipoise train --env-id CartPole-v1",
        "the env comes first and has no name",
    ),
    Wrong("cleanrl --num-envs", f"{TRAIN} --num-envs 8", "it is --envs-per-actor here"),
    Wrong("cleanrl --num-steps", f"{TRAIN} --num-steps 128", "it is --unroll here"),
    Wrong("cleanrl --update-epochs", f"{TRAIN} --update-epochs 4", "it is --epochs here"),
    Wrong("cleanrl --clip-coef", f"{TRAIN} --clip-coef 0.2", "it is --clip here"),
    Wrong("cleanrl --anneal-lr", f"{TRAIN} --anneal-lr", "--set optimizer.schedule=... here"),
    Wrong(
        "cleanrl --num-minibatches",
        f"{TRAIN} --num-minibatches 4",
        "it is --minibatches here",
    ),
    Wrong("cleanrl --track", f"{TRAIN} --track", "it is --report-to here"),
    Wrong("cleanrl --capture-video", f"{TRAIN} --capture-video", "equipoise evaluate DIR --video"),
    Wrong(
        "cleanrl --torch-deterministic",
        f"{TRAIN} --torch-deterministic",
        "with --max-lag 0 a seed gives the same bits",
    ),
    Wrong("rllib --run", f"{TRAIN} --run PPO", "it is --algorithm here"),
    Wrong("rllib --num-env-runners", f"{TRAIN} --num-env-runners 4", "it is --actors here"),
    Wrong("rllib --framework", f"{TRAIN} --framework torch", "there is PyTorch alone"),
    Wrong(
        "sf --train-for-env-steps", f"{TRAIN} --train-for-env-steps 100000", "it is --steps here"
    ),
    Wrong("sf --num-workers", f"{TRAIN} --num-workers 4", "it is --actors here"),
    Wrong(
        "sf --num-envs-per-worker",
        f"{TRAIN} --num-envs-per-worker 8",
        "it is --envs-per-actor here",
    ),
    Wrong("sf --rollout", f"{TRAIN} --rollout 32", "it is --unroll here"),
    Wrong(
        "sf --worker-num-splits",
        f"{TRAIN} --worker-num-splits 2",
        "with --inference central the envs of an actor are two",
    ),
    Wrong(
        "sf --policy-workers",
        f"{TRAIN} --policy-workers-per-policy 2",
        "--set placement.inference_workers=...",
    ),
    Wrong(
        "sf --async-rl",
        f"{TRAIN} --async-rl True",
        "it is --max-lag here (it is 0 where acting and learning take turns",
    ),
    Wrong("sf --serial-mode", f"{TRAIN} --serial-mode True", "--on serial runs all in one thread"),
    Wrong(
        "sf --with-vtrace", f"{TRAIN} --with-vtrace True", "--algorithm impala corrects by V-trace"
    ),
    Wrong("sf --batch-size", f"{TRAIN} --batch-size 512", "their number, not their size"),
    Wrong("sf --experiment", f"{TRAIN} --experiment first", "it is --out here"),
    Wrong("sf --use-rnn", f"{TRAIN} --use-rnn True", "it is --core here"),
    # The same as settings, and as arguments of Python.
    Wrong(
        "sb3 n_epochs=",
        program("settings=['n_epochs=4']"),
        "unknown setting 'n_epochs'; it is 'algorithm.epochs' here",
    ),
    Wrong(
        "sb3 gae_lambda=", program("settings=['gae_lambda=0.9']"), "it is 'algorithm.lambda_' here"
    ),
    Wrong("sb3 vf_coef=", program("settings=['vf_coef=1']"), "it is 'algorithm.value' here"),
    Wrong(
        "sb3 max_grad_norm=", program("settings=['max_grad_norm=1']"), "'optimizer.max_grad_norm'"
    ),
    Wrong("sb3 net_arch=", program("settings=['net_arch=64']"), "it is 'algorithm.hidden' here"),
    Wrong(
        "sb3 norm_obs=",
        program("settings=['norm_obs=true']"),
        "it is 'algorithm.normalize_obs' here",
    ),
    Wrong(
        "sb3 verbose=",
        program("settings=['verbose=1']"),
        "it is no setting but the option 'quiet' here",
    ),
    Wrong(
        "sb3 learning_starts=",
        program("'dqn', settings=['learning_starts=1']"),
        "it is 'replay.starts_at' here",
    ),
    Wrong(
        "sb3 train_freq=", program("'dqn', settings=['train_freq=4']"), "it is 'policy.unroll' here"
    ),
    Wrong(
        "sb3 gradient_steps=",
        program("'dqn', settings=['gradient_steps=1']"),
        "it is 'replay.updates' here",
    ),
    Wrong(
        "sb3 batch_size= of dqn",
        program("'dqn', settings=['batch_size=32']"),
        "it is 'policy.batch' here",
    ),
    Wrong(
        "sb3 batch_size= of ppo",
        program("settings=['batch_size=64']"),
        "'algorithm.minibatches' here (it is their number",
    ),
    Wrong(
        "sb3 exploration_fraction=",
        program("'dqn', settings=['exploration_fraction=.1']"),
        "not a share",
    ),
    Wrong(
        "sb3 top quantiles",
        "api.program('Pendulum-v1', 'tqc', settings={'top_quantiles_to_drop_per_net': 2})",
        "it is 'algorithm.drop' here",
    ),
    Wrong(
        "sb3 n_critics=",
        "api.program('Pendulum-v1', 'tqc', settings={'n_critics': 2})",
        "it is 'algorithm.critics' here",
    ),
    Wrong(
        "cleanrl policy_frequency=",
        "api.program('Pendulum-v1', 'td3', settings={'policy_frequency': 2})",
        "it is 'algorithm.delay' here",
    ),
    Wrong(
        "cleanrl target_network_frequency=",
        program("'dqn', settings=['target_network_frequency=9']"),
        "it is 'algorithm.target_every' here",
    ),
    Wrong(
        "rllib lr=",
        program("'dqn', settings=['training.lr=1']"),
        "it is 'optimizer.learning_rate' here",
    ),
    Wrong(
        "rllib train_batch_size=",
        program("settings=['train_batch_size=4000']"),
        "it is 'policy.batch' here",
    ),
    Wrong(
        "rllib rollout_fragment_length=",
        program("'impala', settings=['rollout_fragment_length=50']"),
        "'policy.unroll'",
    ),
    Wrong(
        "rllib num_rollout_workers=",
        program("settings=['num_rollout_workers=2']"),
        "it is 'placement.actors' here",
    ),
    Wrong(
        "rllib num_sgd_iter=",
        program("settings=['num_sgd_iter=4']"),
        "it is 'algorithm.epochs' here",
    ),
    Wrong(
        "rllib vf_loss_coeff=",
        program("'impala', settings=['vf_loss_coeff=1']"),
        "it is 'algorithm.value' here",
    ),
    Wrong(
        "sf ppo_clip_ratio=",
        program("'appo', settings=['ppo_clip_ratio=.1']"),
        "it is 'algorithm.clip' here",
    ),
    Wrong("sf rnn_size=", program("settings=['rnn_size=64']"), "it is 'algorithm.core_size' here"),
    Wrong(
        "sf env_framestack=", program("settings=['env_framestack=4']"), "it is 'env.stack_num' here"
    ),
    Wrong("sb3 total_timesteps", program("total_timesteps=9"), "it is 'steps' here"),
    Wrong("sb3 n_envs", program("n_envs=8"), "it is 'envs_per_actor' here"),
    Wrong("sb3 n_steps", program("n_steps=128"), "it is 'unroll' here"),
    Wrong(
        "sb3 learning_rate",
        program("learning_rate=3e-4"),
        "settings={'optimizer.learning_rate': 0.0003}",
    ),
    Wrong("sb3 tensorboard_log", program("tensorboard_log='logs'"), "it is 'out' here"),
    Wrong(
        "sb3 policy_kwargs",
        program("policy_kwargs={'net_arch': [64]}"),
        "--set algorithm.hidden=64,64",
    ),
    Wrong("sb3 callback", program("callback=print"), "callbacks=[...] takes objects"),
    Wrong(
        "rllib config", program("'ppo', config={'lr': 1e-3}"), "settings={'algorithm.gamma': 0.98}"
    ),
    Wrong("rllib lr", program("lr=1e-3"), "settings={'optimizer.learning_rate': 0.001}"),
]

ALGORITHMS = [
    Wrong("sb3 PPO", f"{TRAIN} --algorithm PPO", "unknown algorithm 'PPO'; did you mean 'ppo'?"),
    Wrong("sb3 A2C", program("'A2C'"), "did you mean 'a2c'?"),
    Wrong("sb3 QRDQN", program("'QRDQN'"), "did you mean 'qr_dqn'?"),
    Wrong(
        "sb3 RecurrentPPO",
        f"{TRAIN} --algorithm RecurrentPPO",
        "it is 'ppo' here, with --set algorithm.core=lstm",
    ),
    Wrong(
        "sb3 MaskablePPO",
        program("'MaskablePPO'"),
        "it is 'ppo' here: a mask that the env gives is taken",
    ),
    Wrong("sb3 TRPO", program("'TRPO'"), "it is not here; 'ppo' is nearest"),
    Wrong("sb3 DDPG", program("'DDPG'"), "it is not here; 'td3' is what became of it"),
    Wrong("sb3 HER", program("'HER'"), "--set replay.relabel=0.8"),
    Wrong(
        "sb3 MlpPolicy first",
        "api.program('MlpPolicy', 'CartPole-v1')",
        "that is an env, which comes first",
    ),
    Wrong(
        "sb3 policy=MlpPolicy",
        program("'ppo', policy='MlpPolicy'"),
        "a network is not named, it follows from the observ",
    ),
    Wrong(
        "sb3 --policy CnnPolicy",
        f"{TRAIN} --policy CnnPolicy",
        "a network is not named, it follows from the observations",
    ),
    Wrong(
        "sb3 --algorithm MlpPolicy",
        f"{TRAIN} --algorithm MlpPolicy",
        "a network is not named, it follows from the",
    ),
    Wrong(
        "cleanrl ppo_continuous_action", program("'ppo_continuous_action'"), "did you mean 'ppo'?"
    ),
    Wrong(
        "cleanrl ppo_atari_lstm",
        program("'ppo_atari_lstm'"),
        "it is 'ppo' here, with --set algorithm.core=lstm",
    ),
    Wrong(
        "cleanrl c51", program("'c51'"), "it is 'dqn' here, with --set algorithm.distribution=c51"
    ),
    Wrong(
        "cleanrl ppo alone",
        "equipoise train ppo",
        "env 'ppo': expected an env, got the name of an algorithm",
    ),
    Wrong(
        "cleanrl ppo first", "equipoise train ppo CartPole-v1", "an algorithm is --algorithm NAME"
    ),
    Wrong("rllib PPOConfig", program("'PPOConfig'"), "did you mean 'ppo'?"),
    Wrong("rllib APEX", program("'APEX'"), "it is 'apex_dqn' here"),
    Wrong("rllib IMPALA", program("'IMPALA'"), "did you mean 'impala'?"),
    Wrong("rllib MARWIL", program("'MARWIL'"), "'bc' learns from recorded rows"),
    Wrong("sf APPO", f"{TRAIN} --algorithm APPO", "did you mean 'appo'?"),
    Wrong(
        "sb3 a saved model",
        "equipoise evaluate ppo_cartpole.zip",
        "expected a run directory with a run.json",
    ),
    Wrong(
        "sf enjoy", "equipoise enjoy runs/first", "no such command 'enjoy'; it is 'evaluate' here"
    ),
    Wrong(
        "sf --device gpu",
        f"{TRAIN} --device gpu",
        "placement.device: expected cpu, cuda or cuda:N, got 'gpu'",
    ),
]

IDS = [
    Wrong("sb3 Pong-v5", "equipoise train Pong-v5", "did you mean 'ALE/Pong-v5'?"),
    Wrong(
        "sb3 PongNoFrameskip-v4",
        "equipoise train PongNoFrameskip-v4",
        "did you mean 'ALE/Pong-v5'?",
    ),
    Wrong(
        "cleanrl BreakoutNoFrameskip-v4", "resolve('BreakoutNoFrameskip-v4')", "'ALE/Breakout-v5'"
    ),
    Wrong("sb3 pong-v0", "resolve('pong-v0')", "did you mean 'ALE/Pong-v5'?"),
    Wrong(
        "sb3 BreakoutDeterministic-v4",
        "resolve('BreakoutDeterministic-v4')",
        "repeat_action_probability=0",
    ),
    Wrong("sb3 Breakout-ram-v4", "resolve('Breakout-ram-v4')", "It shows pixels"),
    Wrong(
        "sb3 FetchReach-v4",
        "equipoise train FetchReach-v4",
        "did you mean 'gymnasium_robotics:FetchReach-v4', after pip",
    ),
    Wrong("sb3 AntMaze", "resolve('AntMaze_UMaze-v5')", "'gymnasium_robotics:AntMaze_UMaze-v5'"),
    Wrong("sb3 PandaReach-v3", "resolve('PandaReach-v3')", "pip install 'panda-gym'"),
    Wrong(
        "sb3 gymnasium_robotics:",
        "resolve('gymnasium_robotics:FetchReach-v4')",
        "pip install 'gymnasium-robotics'",
    ),
    Wrong("sb3 highway", "resolve('highway-fast-v0')", "'highway_env:highway-fast-v0'"),
    Wrong("sb3 stocks-v0", "resolve('stocks-v0')", "'gym_anytrading:stocks-v0'"),
    Wrong("sb3 CrafterReward-v1", "resolve('CrafterReward-v1')", "old gym's interface"),
    Wrong(
        "sb3 LunarLanderContinuous-v2",
        "resolve('LunarLanderContinuous-v2')",
        "LunarLander-v3 with --set env.contin",
    ),
    Wrong("sb3 LunarLander-v2", "resolve('LunarLander-v2')", "did you mean 'LunarLander-v3'?"),
    Wrong("sb3 AntBulletEnv-v0", "resolve('AntBulletEnv-v0')", "Ant-v5"),
    Wrong(
        "cleanrl dm_control/",
        "equipoise train dm_control/cheetah-run-v0",
        "'shimmy:dm_control/cheetah-run-v0'",
    ),
    Wrong("cleanrl procgen", "resolve('procgen:procgen-coinrun-v0')", "it has old gym's interface"),
    Wrong("cleanrl bsuite/", "resolve('bsuite/catch-v0')", "'shimmy:bsuite/catch-v0'"),
    Wrong(
        "cleanrl popgym-",
        "resolve('popgym-RepeatFirstEasy-v0')",
        "'popgym:popgym-RepeatFirstEasy-v0'",
    ),
    Wrong(
        "cleanrl HalfCheetah-v3",
        "resolve('HalfCheetah-v3')",
        "unknown env id 'HalfCheetah-v3', which Gymnasium no longer has; did you mean "
        "'HalfCheetah-v5'?",
    ),
    Wrong(
        "cleanrl HalfCheetah-v4", "gymnasium_make('HalfCheetah-v4')", "upgrading to version `v5`"
    ),
    Wrong("cleanrl CartPole-v0", "gymnasium_make('CartPole-v0')", "upgrading to version `v1`"),
    Wrong("cleanrl Hopper-v2", "equipoise train Hopper-v2", "did you mean 'Hopper-v5'?"),
    Wrong(
        "rllib simple_spread_v3",
        "resolve('simple_spread_v3')",
        "mean 'mpe2.simple_spread_v3:parallel_env', after pip",
    ),
    Wrong(
        "cleanrl pistonball",
        "resolve('pettingzoo.butterfly.pistonball_v6')",
        "'pettingzoo:butterfly/pistonball-v6'?",
    ),
    Wrong("rllib CartPoal-v1", "resolve('CartPoal-v1')", "did you mean 'CartPole-v1'?"),
    Wrong(
        "rllib a class that there is not",
        "equipoise train gymnasium.envs.classic_control:CartPoleEnw",
        "unknown env 'CartPoleEnw' in module 'gymnasium.envs.classic_control'; did you mean "
        "'CartPoleEnv'?",
    ),
    Wrong(
        "rllib a module that there is not",
        "equipoise train my_envz:Mine",
        "unknown module 'my_envz' in env 'my_envz:Mine'",
    ),
    Wrong(
        "rllib a class without a module",
        f"equipoise train {HERE}.OldStep",
        f"{HERE}:OldStep, got no colon",
    ),
    Wrong(
        "sf a file",
        "equipoise train envs/mine.py",
        "expected a module as an import names it, such as envs.mine:make",
    ),
]

SPACES = [
    Wrong(
        "sb3 dqn with a Box",
        "equipoise train Pendulum-v1 --algorithm dqn",
        "expected a Discrete, since there is a value for each action, got Box(-2.0, 2.0, (1,), "
        "float32); sac and td3 take",
    ),
    Wrong(
        "sb3 td3 with a Discrete",
        f"{TRAIN} --algorithm td3",
        "td3 expected a Box, got Discrete(2); dqn and sac take a",
    ),
    Wrong(
        "sb3 sac with a MultiDiscrete",
        f"equipoise train {HERE}:Switches --algorithm sac",
        "sac expected a Box or a Discrete, got MultiDiscrete([2 2]); ppo and impala any of "
        "Discrete, MultiDiscrete",
    ),
    Wrong(
        "sb3 tqc with a Discrete", f"{TRAIN} --algorithm tqc", "tqc expected a Box, got Discrete(2)"
    ),
    Wrong("rllib a Text", f"equipoise train {HERE}:Speaks", "is not supported"),
    Wrong(
        "sb3 another dtype than declared",
        f"api.check('{HERE}:Floats', steps=20, seconds=9)",
        "expected uint8, got float64",
    ),
    Wrong(
        "sb3 another shape than declared",
        f"api.check('{HERE}:Column', steps=20, seconds=9)",
        "(2, 1)",
    ),
    Wrong(
        "cleanrl normalize_obs of images",
        f"equipoise train {HERE}:Floats --set algorithm.normalize_obs=true",
        "an MLP",
    ),
    Wrong(
        "sb3 old gym's step",
        f"api.check('{HERE}:OldStep', steps=20, seconds=9)",
        "old gym's interface",
    ),
    Wrong(
        "sb3 old gym's env",
        f"equipoise train {HERE}:OldEnv",
        "wrap it: shimmy.GymV21CompatibilityV0(env=OldEnv())",
    ),
    Wrong(
        "sb3 gym 0.26's env",
        f"equipoise train {HERE}:NewerEnv",
        "wrap it: shimmy.GymV26CompatibilityV0(env=NewerEnv())",
    ),
    Wrong(
        "sb3 an env that is made",
        "api.program(gymnasium.make('CartPole-v1'))",
        "must be what makes an env, since every",
    ),
    Wrong(
        "sb3 a check of it",
        "api.check(gymnasium.make('CartPole-v1'))",
        "got <TimeLimit<OrderEnforcing<Passive",
    ),
    Wrong(
        "sb3 a lambda",
        "api.program(lambda: gymnasium.make('CartPole-v1'))",
        "must be at the top of a module",
    ),
]

TABLE = [*SETTINGS, *ALGORITHMS, *IDS, *SPACES]


# -------------------------------------------------------------------------------- envs of the table


class Sound(gymnasium.Env[Any, Any]):
    observation_space: Any = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, bool(self.np_random.random() < 0.1), False, {}


class Switches(Sound):
    action_space = gymnasium.spaces.MultiDiscrete([2, 2])


class Speaks(Sound):
    observation_space = gymnasium.spaces.Text(8)


class Floats(Sound):
    """Says that it shows bytes."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.full((36, 36, 3), 0.5), {}

    def step(self, action: Any) -> Any:
        return np.full((36, 36, 3), 0.5), *super().step(action)[1:]


class Column(Sound):
    def step(self, action: Any) -> Any:
        return np.zeros((2, 1), np.float32), *super().step(action)[1:]


class OldStep(Sound):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class OldEnv:
    """As an env of package gym before 0.26, which need not be installed."""

    observation_space, action_space = Sound.observation_space, Sound.action_space

    def reset(self) -> Any:
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, False, {}


class NewerEnv(OldEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}


# ----------------------------------------------------------------------------------------- the test


def gymnasium_make(env_id: str) -> None:
    """The envs of an old id are those that a worker makes."""
    api.check(env_id, steps=10, seconds=5)


def answer(typed: str) -> str:
    """What a user reads: an error, findings, and warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if typed.startswith("equipoise "):
            words = shlex.split(typed)[1:]
            done = CliRunner().invoke(
                app,
                [*words, *(["--on", "serial"] if words[0] == "train" else [])],
                prog_name="equipoise",
            )
            assert done.exit_code == 2 and "Traceback" not in done.output, done.output
            said = done.stderr
        else:
            try:
                given = eval(
                    typed,
                    {"api": api, "eq": eq, "gymnasium": gymnasium, "resolve": resolve, **HELPERS},
                )
                said = (
                    ""
                    if given is None
                    else "\n".join(f"{f.what} {f.seen} {f.cost}" for f in given.findings)
                )
            except (ValueError, TypeError) as error:
                said = str(error)
    return said + "".join(str(one.message) for one in warned)


HELPERS = {"gymnasium_make": gymnasium_make}


@pytest.mark.parametrize("wrong", TABLE, ids=[wrong.name for wrong in TABLE])
def test_what_a_user_of_a_peer_types_wrong_gets_the_right_hint(
    wrong: Wrong, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for env_id in re.findall(r"[\w./-]+-v\d+", wrong.typed):
        if not str(getattr(gymnasium.registry.get(env_id), "entry_point", "")).startswith(
            ("gymnasium", "<function")
        ):
            # another test may have imported its package
            monkeypatch.delitem(gymnasium.registry, env_id, raising=False)
    assert wrong.said in answer(wrong.typed)
    assert {path.name for path in tmp_path.iterdir()} <= {"MUJOCO_LOG.TXT"}, (
        "and nothing of ours is left"
    )


def test_a_misspelt_word_where_a_number_may_stand_gets_the_word() -> None:
    assert "got 'aut'; did you mean 'auto'?" in answer(f"{TRAIN} --learners aut")


def test_the_table_has_rows_of_every_peer_and_names_no_row_twice() -> None:
    assert {wrong.peer for wrong in TABLE} == set(PEERS.values())
    assert (
        len({wrong.name for wrong in TABLE})
        == len({wrong.typed for wrong in TABLE})
        == len(TABLE)
        >= 40
    )


def test_no_row_is_a_name_of_ours() -> None:
    ours = {f"--{name}" for name in flags()}
    assert not {word for wrong in SETTINGS for word in wrong.typed.split() if word in ours}
