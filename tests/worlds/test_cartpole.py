"""CartPole in another process, in Python and in JavaScript: ``ppo`` and ``dqn`` solve it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise import api

HERE = Path(__file__).parent
NODE = shutil.which("node")
SIZES = {"ppo": 8, "dqn": 4}  # worlds that train; one more plays evaluations
# The recipes of CartPole-v1, which another target does not find by itself.
RECIPES = ("ppo", "dqn")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("algorithm", RECIPES)
@pytest.mark.parametrize(
    "language",
    ["python", pytest.param("node", marks=pytest.mark.skipif(not NODE, reason="needs node"))],
)
def test_cartpole_in_another_process_is_solved(
    tmp_path: Path, language: str, algorithm: str
) -> None:
    from equipoise import recipes

    address = f"unix:{tmp_path / 'w'}"
    tuned = dict(recipes.find("CartPole-v1", algorithm) or {})
    settings = tuned | {
        "placement.envs_per_actor": SIZES[algorithm],
        "placement.actors": 1,
        "policy.publish_every": None,
    }
    # One world plays the hundred episodes that confirm, while the others train on: 50,000 steps of
    # each.
    steps = tuned["schedule.steps"]
    assert isinstance(steps, int)
    settings["schedule.steps"] = max(steps, 300_000)
    settings = {key: value for key, value in settings.items() if value is not None}
    command = (
        [sys.executable, HERE / "cartpole.py"]
        if language == "python"
        else [NODE, HERE / "cartpole.mjs"]
    )
    worlds = subprocess.Popen(
        [*map(str, command), address, str(SIZES[algorithm] + 1)], stderr=subprocess.PIPE, text=True
    )
    try:
        program = api.program(
            f"remote:{address}", algorithm, settings=settings, stop_at=475.0, seed=1
        )
        run = api.start(program, out=tmp_path / "run", tensorboard=False)
        for _ in run:
            pass
        assert run.summary is not None and run.summary["status"] == "solved", run.summary
        _, said = worlds.communicate(timeout=60)
        assert worlds.returncode == 0 and not said, said
    finally:
        worlds.kill()
        worlds.wait()
