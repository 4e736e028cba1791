"""Device envs on a GPU: what no test on a CPU can see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import api
from equipoise.actors.forward import noise
from equipoise.api import training
from equipoise.device_envs import counter
from equipoise.device_envs.names import NAMES
from equipoise.learners.learner import Learner

pytestmark = pytest.mark.gpu


def ran(env: str, algorithm: str, out: Path, on: Any = "serial", **options: Any) -> list[str]:
    """Train on the GPU -> what was said meanwhile."""
    said = list[str]()
    made = api.program(
        env,
        algorithm,
        actors=1,
        envs_per_actor=64,
        unroll=8,
        steps=8192,
        device="cuda",
        recipe=False,
        evaluate_episodes=0,
        **options,
    )
    asked: Any = {"on": on, "out": out}
    with training.begun(made, None, asked, tell=said.append) as run:
        for _ in run:
            pass
    assert run.summary is not None and run.summary["status"] == "completed"
    return [*said, *run.summary["notes"]]


def test_random_numbers_have_the_bits_of_the_hosts() -> None:
    stream, start = np.arange(1000), np.arange(1000) * 7
    row = torch.from_numpy(start).cuda() + torch.arange(5, device="cuda")[:, None]
    drawn = counter.uniform(counter.key_of(3), torch.from_numpy(stream).cuda(), row, 2)
    assert np.array_equal(drawn.cpu().numpy(), noise.uniform(3, stream, start, 5, 2))


@pytest.mark.parametrize("name", NAMES)
def test_every_world_is_captured_as_a_graph(name: str, tmp_path: Path) -> None:
    assert not [text for text in ran(f"device:{name}", "impala", tmp_path) if "graphs:" in text]


def test_the_learner_reads_rows_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, devices = Learner.step, set[str]()

    def watched(self: Learner, batch: Any) -> Any:
        devices.add(batch.data.obs.device.type)
        return step(self, batch)

    monkeypatch.setattr(Learner, "step", watched)
    said = ran("device:cartpole", "ppo", tmp_path)
    assert devices == {"cuda"} and not [text for text in said if "the host's memory" in text]


@pytest.mark.parametrize(
    ("algorithm", "env"), [("dqn", "cartpole"), ("sac", "pendulum"), ("appo", "cartpole")]
)
@pytest.mark.parametrize("on", ["serial", "process"])
def test_other_ways_to_learn(algorithm: str, env: str, on: Any, tmp_path: Path) -> None:
    ran(f"device:{env}", algorithm, tmp_path, on)
