"""A runtime is one file: with it a run has the bits of the others,
its checkpoints and its resume.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from tests.runtime.in_memory import InMemory

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", "ppo", {"batch": 8}),
    "central": (
        "CartPole-v1",
        "impala",
        {"batch": 8, "inference": "central", "inference_workers": 2},
    ),
    "replay": ("CartPole-v1", "dqn", {"batch": 16, "settings": ["replay.starts_at=64"]}),
}


def run(name: str, out: Path, **options: Any) -> Any:
    env, algorithm, given = CASES[name]
    going = api.start(
        env,
        algorithm,
        on="serial",
        out=out,
        recipe=False,
        actors=2,
        envs_per_actor=4,
        unroll=8,
        max_lag=0,
        **{"evaluate_episodes": 0, "steps": 640} | given | options,
    )
    for _ in going:
        pass
    return going.summary


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_a_runtime_of_one_file_trains_and_resumes_to_the_bits_of_the_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = run(name, tmp_path / "serial")
    begun = list[InMemory]()

    def start(blue: Any, on: Any, kinds: Any, nodes: Any) -> InMemory:
        begun.append(InMemory(blue, kinds, seed=len(begun)))
        return begun[-1]

    monkeypatch.setattr("equipoise.run.run.start", start)
    there = run(name, tmp_path / "memory")
    assert there["params_sha256"] == here["params_sha256"]
    run(name, tmp_path / "half", steps=320, schedule_steps=640)
    going = api.start(resume=tmp_path / "half", steps=640)
    for _ in going:
        pass
    assert len(begun) == 3 and going.summary is not None
    assert going.summary["params_sha256"] == here["params_sha256"]
