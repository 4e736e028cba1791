"""A run that begins from the learner of another one goes on to the same bits, where its experience
is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from typer.testing import CliRunner

from equipoise import api, cli, tree
from equipoise.algorithms.crossq import CrossQ
from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.td3 import TD3
from equipoise.algorithms.tqc import TQC
from equipoise.learners.learner import Learner
from equipoise.record import statefile
from tests.algorithms.items import BOX, DISCRETE, batch, drawn, network

UNROLL, ENVS, UPDATES = 8, 4, 8


class Round(gymnasium.Env[Any, Any]):
    """Episodes as long as an unroll, which all go the same way:
    each batch is like the one before.
    """

    observation_space = spaces.Box(-9, 9, (3,), np.float32)
    action_space = spaces.Discrete(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.seen(), {}

    def seen(self) -> Any:
        return np.array([np.sin(self.t), np.cos(self.t), self.t / UNROLL], np.float32)

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.seen(), float(self.t % 3), self.t == UNROLL - 1, False, {}


BOTH_NORMALIZED = ["algorithm.normalize_obs=true", "rewards.normalize=true"]


def train(out: Path, updates: int, **options: Any) -> Any:
    run = api.start(
        "tests.runtime.test_begin:Round",
        "ppo",
        recipe=False,
        on="serial",
        out=out,
        steps=updates * UNROLL * ENVS,
        unroll=UNROLL,
        actors=1,
        envs_per_actor=ENVS,
        evaluate_episodes=0,
        checkpoint_every=UPDATES // 2 * UNROLL * ENVS,
        settings=[*BOTH_NORMALIZED, "algorithm.minibatches=2", "optimizer.schedule=linear"],
        **options,
    )
    for _ in run:
        pass
    assert run.summary is not None
    return run.summary


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(a run, the hash of its weights at the end)."""
    path = tmp_path_factory.mktemp("whole") / "run"
    return path, train(path, UPDATES)["params_sha256"]


@pytest.mark.thorough
def test_from_a_learner_a_run_goes_on_to_the_bits_of_the_other(
    whole: tuple[Path, str], tmp_path: Path
) -> None:
    path, wanted = whole
    half = path / "checkpoints" / f"step_{UPDATES // 2 * UNROLL * ENVS}"
    options = {"init_from": half, "init_what": "learner"}
    summary = train(tmp_path / "a", UPDATES // 2, **options)
    assert summary["params_sha256"] == wanted and summary["updates"] == UPDATES // 2
    alone = train(tmp_path / "b", UPDATES // 2, init_from=half)
    assert alone["params_sha256"] != wanted
    # a run that began so can be begun from again
    quarter = train(tmp_path / "c", UPDATES // 4, **options)
    assert quarter["params_sha256"] != wanted
    again = train(tmp_path / "d", UPDATES // 4, init_from=tmp_path / "c", init_what="learner")
    assert again["params_sha256"] == wanted


def test_what_cannot_be_begun_from_is_refused(whole: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = whole
    with pytest.raises(ValueError, match="init_what: expected .*'all'"):
        train(tmp_path / "a", 2, init_from=path, init_what="all")
    with pytest.raises(ValueError, match="init_what=learner: expected init_from"):
        train(tmp_path / "a", 2, init_what="learner")
    with pytest.raises(
        ValueError,
        match=r"learner.safetensors: expected a learner that this run can begin from; groups.all",
    ):
        api.start(
            "tests.runtime.test_begin:Round",
            "ppo",
            recipe=False,
            out=tmp_path / "a",
            on="serial",
            actors=1,
            init_from=path,
            init_what="learner",
            settings=[
                "algorithm.normalize_obs=true",
                "rewards.normalize=true",
                "optimizer.name=rmsprop",
            ],
        )
    assert not (tmp_path / "a").exists()


def test_a_schedule_that_is_over_is_told(whole: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = whole
    summary = train(tmp_path / "a", 2, init_from=path, init_what="learner")
    assert any("the schedules have come to their end" in note for note in summary["notes"])


def test_the_command_line_begins_from_a_learner(whole: tuple[Path, str], tmp_path: Path) -> None:
    path, wanted = whole
    half = path / "checkpoints" / f"step_{UPDATES // 2 * UNROLL * ENVS}"
    answer = CliRunner().invoke(
        cli.app,
        [
            "train",
            "tests.runtime.test_begin:Round",
            "--no-recipe",
            "--on",
            "serial",
            "--out",
            str(tmp_path / "a"),
            "--steps",
            str(UPDATES // 2 * UNROLL * ENVS),
            "--unroll",
            str(UNROLL),
            "--actors",
            "1",
            "--envs-per-actor",
            str(ENVS),
            "--evaluate-episodes",
            "0",
            "--set",
            "algorithm.normalize_obs=true",
            "--set",
            "rewards.normalize=true",
            "--set",
            "algorithm.minibatches=2",
            "--set",
            "optimizer.schedule=linear",
            "--init-from",
            str(half),
            "--init-what",
            "learner",
            "--quiet",
        ],
    )
    assert answer.exit_code == 0, answer.output
    assert wanted in (tmp_path / "a" / "summary.json").read_text()


LEARNERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "dqn": lambda: (DQN(hidden=(16,), target_every=3), DISCRETE),
    "td3": lambda: (TD3(hidden=(16,)), BOX),
    "tqc": lambda: (TQC(hidden=(16,)), BOX),
    "crossq": lambda: (CrossQ(hidden=(16,), critic_hidden=(16,)), BOX),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_the_same_batches_make_the_same_versions(name: str) -> None:
    """Five updates, and three that another learner goes on with: at other shares of targets and of
    delayed steps.
    """
    algorithm, spec = LEARNERS[name]()
    rows = algorithm.item_rows or 4
    batches = [batch(drawn(spec, rows, 6, seed)) for seed in range(8)]

    def made(seed: int) -> Learner:
        return Learner(
            algorithm, network(algorithm, spec, seed), schedule_updates=8, seed=seed, batch=6
        )

    one = made(0)
    for given in batches[:5]:
        one.step(given)
    other = made(1)
    other.adopt(statefile.parse(statefile.dump(one.state())))
    assert (other.version, other.updates) == (0, 5)
    for given in batches[5:]:
        one.step(given)
        other.step(given)
        for (path, a), (_, b) in zip(
            tree.items(dict(one.params())), tree.items(dict(other.params())), strict=True
        ):
            assert torch.equal(a, b), path
    assert (one.version, other.version, other.progress) == (8, 3, 1.0)
