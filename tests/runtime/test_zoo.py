"""Every space: PPO on envs with drawn, nested spaces, through checkpoints, resumes and evaluations,
on both runtimes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import api, tree
from equipoise.envs import make
from equipoise.plans.plan import plan_run
from tests.envs.zoo import Zoo, program_mask, zoo_spaces

pytestmark = pytest.mark.few(2)  # all cases: make test-all

CASES = range(25)
SOME = [("serial", 2), ("process", 3), ("serial", 7)]  # nested both ways; more in the slow test
ROWS = 8 * 4  # of an update


def made(case: int, squash: bool, **options: Any) -> Any:
    return api.program(
        "tests.envs.zoo:Zoo",
        "ppo",
        env_kwargs={"case": case},
        action_mask=program_mask(case),
        actors=2,
        envs_per_actor=2,
        unroll=8,
        evaluate_episodes=2,
        seed=case,
        settings=["algorithm.epochs=2", f"algorithm.squash={squash}"],
        schedule_steps=3 * ROWS,
        **options,
    )


def finish(run: Any) -> Any:
    for _ in run:
        pass
    assert run.summary is not None
    return run.summary


def visit(on: Any, case: int, path: Path) -> None:
    observation, action, mask = zoo_spaces(case)
    squash = case % 2 == 1
    print(f"zoo case {case} on {on}, squash {squash}, mask {mask}:\n  {observation}\n  {action}")
    whole = finish(api.start(made(case, squash, steps=3 * ROWS), on=on, out=path / "whole"))
    assert whole["updates"] == 3 and not any(
        any(counts.values()) for counts in whole["failures"].values()
    )
    finish(api.start(made(case, squash, steps=2 * ROWS), on=on, out=path / "half"))
    resumed = finish(api.start(resume=path / "half", steps=3 * ROWS))
    assert resumed["updates"] == 3
    assert resumed["params_sha256"] == whole["params_sha256"]
    assert api.evaluate(path / "whole", episodes=3).episodes == 3
    the_dtypes_are_kept(case, plan_run(made(case, squash, steps=ROWS)))
    a_player_acts(case, path / "whole")


def the_dtypes_are_kept(case: int, blue: Any) -> None:
    env = make(blue.program.env, streams=np.arange(1), seed=0)
    env.recv()
    for path, spec in tree.items(blue.roles["main"].row.obs):
        space: Any = blue.spec.env.observation
        for key in tree.keys_of(path):
            space = (tree.branches(space) or {})[key]
        assert spec.dtype == (
            "float32" if np.issubdtype(space.dtype, np.floating) else str(space.dtype)
        ), path
        assert dict(tree.items(env.ts.obs))[path].dtype == spec.dtype


def a_player_acts(case: int, path: Path) -> None:
    player, env = api.load(path), Zoo(case)
    obs, _ = env.reset(seed=5)
    for _ in range(20):
        masked = {"obs": obs, "action_mask": flat_mask(env)} if env.choice == "info" else obs
        obs, _, terminated, truncated, _ = env.step(
            player.act(masked, deterministic=bool(env.left % 2))
        )
        if terminated or truncated:
            obs, _ = env.reset()


def flat_mask(env: Zoo) -> Any:
    from tests.envs.zoo import flat

    return flat(env.action_space, env.mask)


@pytest.mark.thorough
@pytest.mark.parametrize(("on", "case"), SOME)
def test_a_visit(on: str, case: int, tmp_path: Path) -> None:
    visit(on, case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("on", ["serial", "process"])
@pytest.mark.parametrize("case", CASES)
def test_the_whole_zoo(on: str, case: int, tmp_path: Path) -> None:
    visit(on, case, tmp_path)
