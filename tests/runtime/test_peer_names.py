"""Names of Stable-Baselines3, CleanRL, RLlib and Sample Factory: each is answered with ours, wherever it is typed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise import api
from equipoise.cli import app
from equipoise.console.options import flags
from equipoise.programs.peer_names import PEER_NAMES, PEER_OPTIONS, key_of_peer
from equipoise.programs.settings import setting_types

NAMES = ("ppo", "impala", "appo", "a3c", "dqn", "r2d2", "apex_dqn", "sac", "td3", "tqc")


def settable(algorithm: str) -> set[str]:
    env = "Pendulum-v1" if algorithm in ("sac", "td3", "tqc") else "CartPole-v1"
    return set(setting_types(api.program(env, algorithm)))


def test_every_key_of_the_table_is_a_setting_of_ours() -> None:
    known = set().union(*(settable(name) for name in NAMES))
    keys = {one.partition(";")[0].partition("?")[0] for keys in PEER_NAMES for one in keys.split("|")}
    assert {key for key in keys if not key.startswith("env.")} <= known


def test_a_name_stands_once_and_is_none_of_ours() -> None:
    names = Counter(name for table in (PEER_NAMES, PEER_OPTIONS) for names in table.values() for name in names)
    assert [name for name, times in names.items() if times > 1] == []
    options = {name.replace("-", "_") for name in flags()}
    assert not options & names.keys()


@pytest.mark.parametrize(
    ("typed", "algorithm", "meant"),
    [
        ("lr", "ppo", "optimizer.learning_rate"), ("algorithm.lr", "ppo", "optimizer.learning_rate"),
        ("training.lr", "dqn", "optimizer.learning_rate"),
        ("n_steps", "ppo", "policy.unroll"), ("rollout_fragment_length", "impala", "policy.unroll"),
        ("ent_coef", "ppo", "algorithm.entropy"), ("ent_coef", "sac", "algorithm.temperature"),
        ("clip_range", "ppo", "algorithm.clip"), ("ppo_clip_ratio", "appo", "algorithm.clip"),
        ("total_timesteps", "ppo", "schedule.steps"), ("train_for_env_steps", "appo", "schedule.steps"),
        ("batch_size", "dqn", "policy.batch"), ("batch_size", "ppo", "algorithm.minibatches"),
        ("gae_lambda", "ppo", "algorithm.lambda_"), ("vf_loss_coeff", "impala", "algorithm.value"),
        ("num_sgd_iter", "ppo", "algorithm.epochs"), ("buffer_size", "sac", "replay.capacity"),
        ("learning-starts", "td3", "replay.starts_at"), ("target_network_frequency", "dqn", "algorithm.target_every"),
        ("exploration_fraction", "dqn", "algorithm.epsilon_steps"), ("policy_delay", "td3", "algorithm.delay"),
        ("num_env_runners", "ppo", "placement.actors"), ("num_envs", "ppo", "placement.envs_per_actor"),
        ("net_arch", "ppo", "algorithm.hidden"), ("norm_obs", "ppo", "algorithm.normalize_obs"),
        ("n_critics", "tqc", "algorithm.critics"), ("top_quantiles_to_drop_per_net", "tqc", "algorithm.drop"),
        ("rnn_size", "ppo", "algorithm.core_size"), ("frame_stack", "ppo", "env.stack_num"),
    ],
)  # fmt: skip
def test_a_setting_of_a_peer_is_answered_with_ours(typed: str, algorithm: str, meant: str) -> None:
    env = "Pendulum-v1" if algorithm in ("sac", "td3", "tqc") else "CartPole-v1"
    with pytest.raises(ValueError, match=f"unknown setting '{typed}'; it is '{meant}' here"):
        api.program(env, algorithm, settings=[f"{typed}=1"])


def test_what_the_algorithm_has_not_is_not_said() -> None:
    assert key_of_peer("buffer_size", settable("ppo")) == ("", "")
    assert key_of_peer("num_minibatches", settable("ppo"))[0] == "algorithm.minibatches"
    assert "not a share" in key_of_peer("exploration_fraction", settable("dqn"))[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("total_timesteps", "it is 'steps' here"), ("n_envs", "it is 'envs_per_actor' here"),
        ("n_steps", "it is 'unroll' here"),
        ("lr", "it is settings={'optimizer.learning_rate': 3} here"), ("tensorboard_log", "it is 'out' here"),
        ("learning_rate", "settings={'optimizer.learning_rate': 3}"), ("verbose", "it is 'quiet' here"),
    ],
)  # fmt: skip
def test_an_argument_of_a_peer_is_answered_with_ours(name: str, said: str) -> None:
    given: dict[str, Any] = {name: 3}
    with pytest.raises(TypeError) as caught:
        api.program("CartPole-v1", **given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--total-timesteps", "9"), "it is --steps here"), (("--num-envs", "9"), "it is --envs-per-actor here"),
        (("--lr", "9"), "it is the setting --set optimizer.learning_rate=... here"),
        (("--ent-coef", "9"), "it is the setting --set algorithm.entropy=... here"),
        (("--algorithm", "sac", "--ent-coef", "9"), "it is the setting --set algorithm.temperature=... here"),
        (("--algorithm", "dqn", "--buffer-size", "9"), "it is the setting --set replay.capacity=... here"),
        (("--algo", "dqn"), "it is --algorithm here"), (("--track",), "it is --wandb here"),
        (("--clip-range", "9"), "it is the setting --set algorithm.clip=... here"),
        (("--batch-size", "9"), "their number, not their size"),
    ],
)  # fmt: skip
def test_an_option_of_a_peer_is_answered_with_ours(typed: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["train", "CartPole-v1", *typed])
    assert result.exit_code == 2 and said in result.stderr, result.stderr
