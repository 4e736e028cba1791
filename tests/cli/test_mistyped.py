"""What a mistyped command line is answered: the right name or no name, never a wrong one."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from equipoise.cli import app

# option -> the options and settings that the answer may name; "": it names none
PPO = {
    # typing mistakes
    "--gama": "--gamma",
    "--clop": "--clip",
    "--entrpy": "--entropy",
    "--epoch": "--epochs",
    "--minibatch": "--minibatches",
    "--stepz": "--steps",
    "--actor": "--actors",
    "--sed": "--seed",
    "--unrol": "--unroll",
    "--maxlag": "--max-lag",
    "--norecipe": "--no-recipe",
    "--evaluate-evry": "--evaluate-every",
    "--chekpoint-every": "--checkpoint-every",
    "--acting-precision": "placement.acting_precision",
    # other meanings: no name is right
    "--min-lag": "",
    "--xyzzy": "",
    "--lora-rank": "--lora",
    "--curriculum": "source.curriculum",
    "--population": "",
    "--tune": "",
    "--sweep": "",
    "--deploy": "",
    "--kl-beta": "",
    "--max-prompts": "",
    # Stable-Baselines3
    "--total-timesteps": "--steps",
    "--n-envs": "--envs-per-actor",
    "--n-steps": "--unroll",
    "--n-epochs": "--epochs",
    "--batch-size": "--minibatches",
    "--gae-lambda": "--lambda",
    "--clip-range": "--clip",
    "--clip-range-vf": "--value-clip",
    "--ent-coef": "--entropy",
    "--vf-coef": "--value",
    "--max-grad-norm": "optimizer.max_grad_norm",
    "--net-arch": "--hidden",
    "--activation-fn": "--activation",
    "--log-std-init": "--log-std",
    "--eval-freq": "--evaluate-every",
    "--n-eval-episodes": "--evaluate-episodes",
    "--save-freq": "--checkpoint-every",
    "--tensorboard-log": "--out",
    "--sde-sample-freq": "--sde-every",
    "--normalize-advantages": "--normalize-advantage",
    # CleanRL
    "--num-envs": "--envs-per-actor",
    "--num-steps": "--unroll",
    "--anneal-lr": "optimizer.schedule",
    "--num-minibatches": "--minibatches",
    "--update-epochs": "--epochs",
    "--norm-adv": "--normalize-advantage",
    "--clip-coef": "--clip",
    "--clip-vloss": "--value-clip",
    "--track": "--report-to",
    "--exp-name": "--out",
    # RLlib
    "--num-env-runners": "--actors",
    "--num-envs-per-env-runner": "--envs-per-actor",
    "--num-learners": "--learners",
    "--rollout-fragment-length": "--unroll",
    "--train-batch-size": "--batch",
    "--num-sgd-iter": "--epochs",
    "--entropy-coeff": "--entropy",
    "--vf-loss-coeff": "--value",
    "--clip-param": "--clip",
    "--vf-clip-param": "--value-clip",
    "--grad-clip": "optimizer.max_grad_norm",
    "--fcnet-hiddens": "--hidden",
    "--evaluation-interval": "--evaluate-every",
    "--broadcast-interval": "policy.publish_every",
    # Sample Factory
    "--train-for-env-steps": "--steps",
    "--num-workers": "--actors",
    "--rollout": "--unroll",
    "--max-policy-lag": "--max-lag",
    "--ppo-clip-ratio": "--clip",
    "--exploration-loss-coeff": "--entropy",
    "--value-loss-coeff": "--value",
    "--rnn-size": "--core-size",
    "--reward-scale": "rewards.scale",
    "--reward-clip": "rewards.clip",
    # PufferLib and TorchRL
    "--bptt-horizon": "--unroll",
    "--adam-beta1": "optimizer.betas",
    "--total-frames": "--steps",
    "--num-collectors": "--actors",
    "--entropy-eps": "--entropy",
    "--clip-epsilon": "--clip",
    "--lmbda": "--lambda",
    "--num-cells": "--hidden",
    # TRL, verl and OpenRLHF
    "--cliprange": "--clip",
    "--num-ppo-epochs": "--epochs",
    "--lr-warmup-steps": "optimizer.warmup",
    "--save-steps": "--checkpoint-every",
    "--use-wandb": "--report-to",
    "--resume-from-checkpoint": "--init-from",
}
DQN = {
    "--clip": "--algorithm",  # it names the algorithms that have it
    "--clip-range": "--clip",
    "--batch-size": "--batch",
    "--target-update-interval": "--target-every",
    "--exploration-final-eps": "--epsilon",
    "--exploration-fraction": "--epsilon-steps",
    "--buffer-size": "replay.capacity",
    "--learning-starts": "replay.starts_at",
    "--replay-memory-size": "replay.capacity",
}
COMMANDS = {
    "trian": "train",
    "evalute": "evaluate",
    "play": "evaluate",
    "enjoy": "evaluate",
    "learn": "train",
    "tune": "",
    "deploy": "",
    "sweep": "",
    "list": "runs",
    "rollout": "evaluate",
}


def answer(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2, (words, result.output)
    return re.sub(r"See '.*?'\.$", "", " ".join(result.stderr.split()))


def named(said: str, typed: str) -> set[str]:
    """The options and settings that an answer names, besides what was typed."""
    found = re.findall(r"--[a-z][a-z0-9-]*|\b[a-z]+\.[a-z_]+\b(?==)", said)
    return set(found) - {typed, "--set"}


@pytest.mark.thorough
@pytest.mark.parametrize(("algorithm", "table"), [("ppo", PPO), ("dqn", DQN)])
def test_a_mistyped_option_is_answered_by_the_right_name_or_by_none(
    algorithm: str, table: dict[str, str]
) -> None:
    wrong = {}
    for typed, right in table.items():
        said = answer("train", "CartPole-v1", "--algorithm", algorithm, typed, "1")
        if named(said, typed) - {"--algorithm"} != ({right} - {"", "--algorithm"}):
            wrong[typed] = (right, said)
    assert wrong == {}


def test_a_mistyped_command_is_answered_by_the_right_name_or_by_none() -> None:
    wrong = {}
    for typed, right in COMMANDS.items():
        said = answer(typed, "CartPole-v1")
        if not (f"'{right}'" in said if right else "did you mean" not in said):
            wrong[typed] = (right, said)
    assert wrong == {}


def test_the_tables_are_of_forty_and_fifty_names() -> None:
    assert len(PPO) + len(DQN) + len(COMMANDS) >= 90
