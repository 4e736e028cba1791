"""A cloned policy goes on in PPO, SAC and TD3: it acts as it did, and stays as it is until its new
value says something.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import equipoise as eq
from equipoise import api, tree
from equipoise.algorithms.bc import BC
from equipoise.api import training
from equipoise.api.playing import weights_of
from equipoise.plans.beginning import FromWeights
from equipoise.plans.plan import plan_run
from equipoise.record import checkpoint, cloned

pytest.importorskip("minari")
pytest.importorskip("h5py")


class Pulling(gym.Env[Any, Any]):
    """Ten steps of a point in a Box, or with two actions."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, discrete: bool = False) -> None:
        self.action_space = (
            spaces.Discrete(2) if discrete else spaces.Box(-2.0, 4.0, (1,), np.float32)
        )

    def _obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return self._obs(), -100.0 + float(np.sum(action)), False, self.at == 10, {}


ENV = "tests.runtime.test_cloned:Pulling"


@pytest.fixture(
    scope="module",
    params=[{}, {"squash": True}, {"discrete": True}],
    ids=["box", "squashed", "discrete"],
)
def clone(request: Any, tmp_path_factory: Any) -> tuple[Path, dict[str, Any]]:
    """A run of bc, and the env's settings."""
    path, monkeypatch = tmp_path_factory.mktemp("clone"), pytest.MonkeyPatch()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path / "minari"))
    env = ["env.discrete=true"] if "discrete" in request.param else []
    small: dict[str, Any] = {
        "actors": 1,
        "envs_per_actor": 8,
        "unroll": 8,
        "batch": 8,
        "steps": 64,
        "evaluate_episodes": 0,
    }
    finish(api.start(ENV, "ppo", on="serial", out=path / "first", settings=env, **small))
    eq.collect(path / "first", "some/data-v0", episodes=8)
    bc = [
        f"algorithm.squash={str('squash' in request.param).lower()}",
        "algorithm.hidden=24,16",
        *env,
    ]
    run = api.start(
        ENV,
        "bc",
        on="serial",
        out=path / "clone",
        dataset="some/data-v0",
        steps=40,
        batch=16,
        evaluate_episodes=0,
        settings=bc,
    )
    finish(run)
    monkeypatch.undo()
    return path / "clone", {"settings": env}


def finish(run: Any) -> Any:
    with run:
        for _ in run:
            pass
    return run.summary


ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"unroll": 8, "batch": 8, "envs_per_actor": 8},
    "sac": {"envs_per_actor": 4},
    "td3": {"envs_per_actor": 4},
}


def begun(clone: Any, algorithm: str, tmp_path: Path, steps: int, *settings: str) -> Any:
    path, options = clone
    given = ALGORITHMS[algorithm] | {"actors": 1, "steps": steps, "evaluate_episodes": 0}
    replay = [] if algorithm == "ppo" else ["replay.starts_at=16", "algorithm.random_steps=0"]
    said = list[str]()
    asked: Any = {
        "on": "serial",
        "out": tmp_path / algorithm,
        "init_from": path,
        "settings": [*options["settings"], *replay, *settings],
        **given,
    }
    return training.begun(ENV, algorithm, asked, tell=said.append), said


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_policy_acts_as_it_did_and_stays_so_during_the_warm_up(
    clone: Any, algorithm: str, tmp_path: Path
) -> None:
    discrete, squash = bool(clone[1]["settings"]), cloned.clone_of(weights_of(clone[0]))["squash"]  # type: ignore[index]
    if algorithm == "td3" and discrete:
        pytest.skip("td3 takes no Discrete")
    run, said = begun(clone, algorithm, tmp_path, 128)
    assert any(
        "algorithm.hidden=24,16" in one and "algorithm.value_warmup=" in one for one in said
    ), said
    finish(run)
    source, net = (
        clone[0],
        plan_run(run.program, FromWeights(weights=weights_of(clone[0]))).first_networks()["main"],
    )
    before, after = tree.named_tensors(net), checkpoint.load(weights_of(run.directory))[0]
    of_policy = [
        name for name in before if name.startswith(("actor.", "torso.", "policy_head.", "log_std"))
    ]
    assert of_policy and all(torch.equal(before[name], after[name]) for name in of_policy), (
        "to the bit"
    )
    assert any(
        not torch.equal(before[name], after[name]) for name in before if name not in of_policy
    ), "and the value learns"
    obs = torch.rand(64, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    spec, first = plan_run(run.program).spec.env, torch.zeros(64, dtype=torch.bool)
    fields = cloned.clone_of(weights_of(source))
    assert fields is not None
    was = BC(hidden=(24, 16), squash=fields["squash"]).network(spec)
    with torch.no_grad():
        for name, tensor in tree.named_tensors(was).items():
            tensor.copy_(checkpoint.load(weights_of(source))[0][name])
        expected = BC().best(was, obs, first, {})[0]
        got = run.program.policies["main"].algorithm.best(net, obs, first, {})[0]
    if discrete or squash or algorithm == "ppo":
        assert torch.allclose(got.float(), expected.float(), atol=1e-5)
    else:  # a mean that is clipped, behind tanh
        assert torch.allclose(got, expected.clamp(-2, 4), atol=0.17 * 3)


@pytest.mark.few(1)
def test_after_the_warm_up_the_policy_learns(clone: Any, tmp_path: Path) -> None:
    run, _ = begun(clone, "ppo", tmp_path, 256, "algorithm.value_warmup=1")
    finish(run)
    net = plan_run(run.program, FromWeights(weights=weights_of(clone[0]))).first_networks()["main"]
    after = checkpoint.load(weights_of(run.directory))[0]
    assert not torch.equal(
        tree.named_tensors(net)["policy_head.weight"], after["policy_head.weight"]
    )


@pytest.mark.parametrize(
    ("algorithm", "setting", "said"),
    [
        (
            "ppo",
            "algorithm.hidden=64,64",
            "expected algorithm.hidden=24,16, as the cloned policy has, got 64,64",
        ),
        (
            "ppo",
            "algorithm.activation=tanh",
            "expected algorithm.activation=relu, as the cloned policy has, got tanh",
        ),
        ("sac", "algorithm.hidden=8", "--set algorithm.hidden=24,16 is what fits"),
    ],
)
def test_what_the_user_said_stays_and_is_refused_before_anything_is_measured(
    clone: Any,
    tmp_path: Path,
    algorithm: str,
    setting: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from equipoise.api import training

    def measures(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured")

    monkeypatch.setattr(training, "settled", measures)
    with pytest.raises(ValueError, match=said):
        begun(clone, algorithm, tmp_path, 128, setting)
