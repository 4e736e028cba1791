"""Every algorithm learns over three nodes of a Ray cluster, all of its actors away from the
learner, with a bounded lag.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_machines import Machines, accounted, machines

from equipoise import api
from tests.runtime.test_learning import train
from tests.runtime.test_on_ray import AT

pytest.importorskip("ray", reason="Ray is not installed; make test-ray installs it")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]
CARTPOLE, PENDULUM = ("CartPole-v1", 475.0), ("Pendulum-v1", -200.0)
CASES: dict[str, tuple[tuple[str, float], str, dict[str, Any]]] = {
    "impala": (CARTPOLE, "impala", {}),
    "ppo": (CARTPOLE, "ppo", {}),
    "appo": (CARTPOLE, "appo", {}),
    "a3c": (CARTPOLE, "a3c", {}),
    "dqn": (CARTPOLE, "dqn", {}),
    "apex_dqn": (CARTPOLE, "apex_dqn", {}),
    "r2d2": (("equipoise/TMaze-v0", 3.8), "r2d2", {}),
    "sac": (PENDULUM, "sac", {}),
    "td3": (PENDULUM, "td3", {}),
    "shards": (CARTPOLE, "apex_dqn", {"settings": ["replay.shards=2"]}),
    "central": (
        CARTPOLE,
        "ppo",
        {"inference": "central", "settings": ["placement.inference_workers=2"]},
    ),
    "central at home": (CARTPOLE, "ppo", {"inference": "central"}),
    "two learners": (CARTPOLE, "ppo", {"learners": 2}),
}


@pytest.fixture(scope="module")
def there() -> Iterator[Machines]:
    with machines() as made:
        yield made


@pytest.mark.parametrize("name", CASES)
def test_an_algorithm_learns_on_three_nodes(name: str, there: Machines, tmp_path: Path) -> None:
    (env, goal), algorithm, options = CASES[name]
    made = api.program(env, algorithm).placement
    streams = made.actors * made.envs_per_actor
    actors = 4 if streams % 4 == 0 else made.actors  # as many streams as the recipe has
    sizes = {"actors": actors, "envs_per_actor": streams // actors, "max_lag": 1}
    summary = train(
        env,
        algorithm,
        "ray",
        0,
        tmp_path,
        stop_at=goal,
        cluster={**there.settings, **AT.get(name, {})},
        **sizes | options,
    )
    assert summary["status"] == "solved" and summary["evaluation"]["mean"] >= goal, summary
    if algorithm in ("impala", "ppo", "appo", "a3c"):  # with a replay the lag is the age of rows
        assert summary["lag"]["max"] <= 1
    assert accounted(summary["rows"])
    assert all(site["received"] > 0 for site in summary["sites"].values()) and summary["sites"]


def test_two_policies_learn_on_three_nodes(there: Machines, tmp_path: Path) -> None:
    """As on one machine (``test_policies.py``): a speaker that sees the goal, and a listener that
    hears it.
    """
    made = api.program(
        "tests.envs.games:Signal",
        policies={"speaker": "ppo", "listener": "ppo"},
        route={"speaker": "speaker", "listener": "listener"},
        actors=4,
        envs_per_actor=4,
        unroll=32,
        steps=16_000,
        seed=0,
        max_lag=1,
        settings=["optimizer.learning_rate=3e-3", "algorithm.entropy=0.02"],
    )
    with api.start(made, on="ray", cluster=there.settings, out=tmp_path / "run") as going:
        list(going)
    assert going.summary is not None and going.summary["evaluation"]["mean"] > 6.5, going.summary
    assert going.summary["lag"]["max"] <= 1 and accounted(going.summary["rows"])
