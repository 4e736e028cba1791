"""The checks that Gymnasium, PettingZoo and Minari have for envs and data sets, run against what we
make.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from equipoise import api, envs
from equipoise.envs.families.turns import Seats, Turns, at_once

# The ruler counts its episodes, whatever the seed: it is a measure, and no world.
OURS: dict[str, dict[str, int]] = {
    "BitFlip": {"bits": 4},
    "Catch": {},
    "RepeatFirst": {"delay": 3},
    "TMaze": {"length": 4},
}
# What Gymnasium advises, and what is no rule: a spec, a picture, bounds that are finite and
# symmetric.
ADVICE = (
    ".*not initialised via.*",
    ".*render.*",
    ".*infinity.*",
    ".*not within.*normalized.*",
    ".*is not symmetric.*",
)


@pytest.mark.few(10)
@pytest.mark.parametrize("name", OURS)
def test_gymnasiums_check_has_nothing_to_say_of_our_envs(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for advice in ADVICE:
            warnings.filterwarnings("ignore", advice)
        check_env(getattr(envs, name)(**OURS[name]), skip_render_check=True)


@pytest.mark.few(10)
@pytest.mark.parametrize("name", OURS)
def test_our_vector_envs_keep_gymnasiums_contract(name: str) -> None:
    """Shapes, dtypes and spaces of a vector env; the same seed gives the same rows; NEXT_STEP: a
    reset follows each end.
    """
    made = getattr(envs, f"{name}Vector")

    def walk() -> list[Any]:
        env = made(num_envs=3, **OURS[name])
        assert isinstance(env, gymnasium.vector.VectorEnv)
        assert env.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.NEXT_STEP
        obs, _ = env.reset(seed=5)
        env.action_space.seed(1)
        rows, over = [copy.deepcopy(obs)], np.zeros(3, bool)
        for _ in range(40):
            obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            assert env.observation_space.contains(obs), (name, obs)
            assert np.shape(reward) == np.shape(terminated) == np.shape(truncated) == (3,)
            assert np.asarray(terminated).dtype == np.asarray(truncated).dtype == bool
            assert (
                not np.asarray(reward)[over].any() and not (terminated | truncated)[over].any()
            ), "a reset pays nothing"
            over = np.array(terminated | truncated)
            rows.append(copy.deepcopy((obs, reward)))
        env.close()
        return rows

    for one, other in zip(walk(), walk(), strict=True):
        np.testing.assert_equal(one, other)


@pytest.mark.few(10)
@pytest.mark.parametrize("kind", ["turns", "parallel", "seats", "seats of turns"])
def test_pettingzoos_parallel_test_has_nothing_to_say(kind: str) -> None:
    pytest.importorskip("pettingzoo")
    with warnings.catch_warnings(action="ignore"):
        from pettingzoo.classic import rps_v2, tictactoe_v3
        from pettingzoo.test import parallel_api_test

        env: Any = {
            "turns": lambda: Turns(tictactoe_v3.env()),
            "parallel": lambda: at_once(rps_v2.env),
            "seats": lambda: Seats(rps_v2.parallel_env()),
            "seats of turns": lambda: Seats(Turns(tictactoe_v3.env())),
        }[kind]()
        parallel_api_test(env, num_cycles=50)


def test_minari_reads_what_collect_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes, spaces and seeds as Minari has them, and its own tools (a split, a combination)
    work on them.
    """
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    run = api.start(
        api.program("CartPole-v1", "ppo", steps=500, seed=0, evaluate_episodes=0),
        out=tmp_path / "run",
        on="serial",
    )
    for _ in run:
        pass
    api.collect(tmp_path / "run", "outside/cart-v0", episodes=6)
    found = minari.load_dataset("outside/cart-v0")
    assert found.total_episodes == 6
    steps = 0
    for episode in found.iterate_episodes():
        count = len(episode.actions)
        assert len(episode.observations) == count + 1 and len(episode.rewards) == count
        assert episode.terminations[-1] or episode.truncations[-1]
        assert not episode.terminations[:-1].any() and not episode.truncations[:-1].any()
        assert all(found.observation_space.contains(row) for row in episode.observations)
        assert all(found.action_space.contains(row) for row in episode.actions)
        steps += count
    assert found.total_steps == steps
    one, two = minari.split_dataset(found, sizes=[4, 2], seed=0)
    assert (one.total_episodes, two.total_episodes) == (4, 2)
    assert found.recover_environment().spec.id == "CartPole-v1"
