"""Rewards that learn from demonstrations in a data set: GAIL, and preferences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise import api
from equipoise.algorithms.ppo import PPO
from equipoise.envs.spaces import action_spec, observation_spec
from equipoise.experience.layout import RowSpec
from equipoise.experience.recorded import dataset as datasets
from equipoise.experience.recorded import offline
from equipoise.learners.learner import Learner
from equipoise.rewards.gail import GAIL
from equipoise.rewards.terms import Terms, built
from equipoise.tree import ArraySpec
from equipoise.types import EnvSpec, Rewards, Trajectory
from tests.algorithms.items import DISCRETE, batch, drawn, generator, network
from tests.rewards.preferences.test_loop import SMALL, SYNTHETIC, finish, program

pytestmark = pytest.mark.usefixtures("one_thread")
EPISODES, LONG = 6, 20
LAST = 3  # an action of DISCRETE


def recorded(folder: Path, spec: EnvSpec, *, seed: int = 0) -> str:
    """A data set of a policy that always takes one action."""
    rng, action, shape = np.random.default_rng(seed), spec.action, spec.observation.shape
    assert shape is not None
    last = action.high if isinstance(action, spaces.Box) else LAST

    def episodes() -> Iterator[datasets.Episode]:
        for _ in range(EPISODES):
            yield datasets.Episode(
                obs=rng.normal(size=(LONG + 1, *shape)).astype(np.float32) * 0.5,
                action=np.array([last] * LONG),
                reward=np.zeros(LONG),
                terminated=np.zeros(LONG, np.bool_),
                truncated=np.arange(LONG) == LONG - 1,
            )

    datasets.write(str(folder / "shown"), episodes(), observation=spec.observation, action=action)
    return str(folder / "shown")


def pendulum() -> EnvSpec:
    high = np.array([1.0, 1.0, 8.0], np.float32)
    return EnvSpec(
        observation=spaces.Box(-high, high), action=spaces.Box(-2.0, 2.0, (1,), np.float32)
    )


def shown(name: str, spec: EnvSpec) -> Iterator[Trajectory]:
    number = ArraySpec((), "int64")
    row = RowSpec(
        obs=observation_spec(spec.observation),
        action=action_spec(spec.action),
        behaviour={},
        state={},
        context={"stream": number, "start": number},
    )
    return offline.blocks(datasets.find(name), row, {}, rows=128, chunk=64)


def gail(folder: Path) -> Terms:
    name = recorded(folder, DISCRETE)
    settings = {"demonstrations": name, "learning_rate": 1e-2, "updates": 5}
    rewards = Rewards(sum="gail", terms={"gail": settings})
    terms = built(rewards, PPO(), DISCRETE, 5)
    for block in shown(name, DISCRETE):
        terms["gail"].demonstrate(block)
    return terms


def test_gail_pays_for_the_actions_of_the_demonstrations(tmp_path: Path) -> None:
    algorithm = PPO(hidden=(16,), epochs=1, minibatches=2)
    rewards = Rewards(sum="gail")
    made = Learner(
        algorithm,
        network(algorithm, DISCRETE, 0),
        rewards=rewards,
        terms=gail(tmp_path),
        schedule_updates=99,
        seed=3,
        batch=8,
    )
    for seed in range(60):
        data = drawn(DISCRETE, 6, 8, seed)
        logp = -torch.rand(data.shape, generator=generator(seed))
        made.step(batch(replace(data, behaviour={"logp": logp, "value": logp})))
    data = drawn(DISCRETE, 6, 8, 99)
    paid = made.terms["gail"].rewards(data).detach()
    last = data.action == LAST
    assert float(paid[last].mean()) > 1.5 * float(paid[~last].mean())


def test_every_row_of_a_data_set_is_shown_once(tmp_path: Path) -> None:
    term = gail(tmp_path)["gail"]
    assert isinstance(term, GAIL)
    assert len(term._shown) == EPISODES * LONG


@pytest.mark.parametrize("name", ["gail", "preferences"])
def test_a_data_set_of_another_env_is_refused(tmp_path: Path, name: str) -> None:
    other = recorded(tmp_path, DISCRETE)
    with pytest.raises(ValueError, match="that of the env, got"):
        api.start(
            "Pendulum-v1",
            "ppo",
            recipe=False,
            reward=name,
            settings=[f"reward.demonstrations={other}"]
            + [f"reward.store={tmp_path}/p"] * (name == "preferences"),
            out=tmp_path / "run",
        )


def test_gail_without_demonstrations_is_refused() -> None:
    with pytest.raises(ValueError, match="demonstrations: must be a data set, got none"):
        api.program("Pendulum-v1", "ppo", reward="gail")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gail", "preferences"])
def test_a_run_with_demonstrations_goes_on_to_the_same_bits(tmp_path: Path, name: str) -> None:
    data = f"reward.demonstrations={recorded(tmp_path, pendulum())}"

    def run(out: str, steps: int) -> str:
        if name == "preferences":
            made = program(tmp_path / f"store-{out}", steps, *SYNTHETIC, data)
        else:
            made = api.program(
                "tests.rewards.preferences.worlds:pendulum",
                "ppo",
                recipe=False,
                reward="gail",
                actors=1,
                envs_per_actor=4,
                unroll=16,
                steps=steps,
                evaluate_episodes=0,
                max_lag=0,
                settings=[data, SMALL[-1]],
            )
        return finish(api.start(made, on="serial", out=tmp_path / out))

    whole = run("whole", 384)
    run("half", 192)
    assert finish(api.start(resume=tmp_path / "half", steps=384)) == whole
