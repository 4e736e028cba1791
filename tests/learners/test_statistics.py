"""Statistics are weights: a version acts and judges by its own, and the next one's are of all real
rows so far.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from equipoise import api
from equipoise.record import checkpoint, statefile
from equipoise.rewards.return_norm import carry
from equipoise.types import Trajectory
from tests.learners import recording


def wandering(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return Wandering()


class Wandering(gymnasium.Env[Any, Any]):
    """Episodes of random length that end or are cut; numbers far from 0, and rewards of their own
    for every episode.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._level = self.np_random.normal(3.0, 2.0)
        self._x = self.np_random.normal(100.0, 7.0, 2)
        return self._x, {}

    def step(self, action: Any) -> Any:
        self._x = self._x + self.np_random.normal(size=2)
        draw = self.np_random.random()
        return (
            self._x,
            self._level + self.np_random.normal(),
            bool(draw < 0.05),
            bool(draw > 0.95),
            {},
        )


def train(algorithm: str, path: Any, **options: Any) -> dict[str, torch.Tensor]:
    """Train with normalised observations and rewards -> the buffers of both."""
    recording.BATCHES.clear()
    given: dict[str, Any] = {
        "actors": 2,
        "envs_per_actor": 3,
        "unroll": 6,
        "steps": 2000,
        "max_lag": 0,
        "evaluate_episodes": 0,
        "recipe": False,
        "settings": ["rewards.normalize=true"],
    }
    made = api.program(
        f"{__name__}:wandering", f"tests.learners.recording:{algorithm}", **{**given, **options}
    )
    run = api.start(made, on="serial", out=path / "run")
    for _ in run:
        pass
    last = max((path / "run/checkpoints").glob("step_*"), key=lambda p: int(p.name.split("_")[1]))
    learner = statefile.parse(checkpoint.read(last, checkpoint.LEARNER))["learners"]["main"]
    buffers = {f"rewards.{name}": value for name, value in learner["rewards"]["statistics"].items()}
    return {**checkpoint.load(last)[0], **buffers}


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["RecordingPPO", "RecordingIMPALA"])
@pytest.mark.parametrize("batch", [6, 12])  # 12: two windows of every stream
def test_statistics_are_those_of_all_real_rows(algorithm: str, batch: int, tmp_path: Any) -> None:
    params, batches = train(algorithm, tmp_path, batch=batch), recording.BATCHES
    assert batches[0]["obs"].shape == (7, batch, 2)
    obs = (
        np.concatenate([b["obs"][:-1][b["mask"]] for b in batches]).astype(np.float32).astype(float)
    )
    returns = np.array([r for stream in range(6) for r in running(batches, stream, 0.99)])
    assert len(obs) == len(returns) < sum(b["mask"].size for b in batches), "some rows are seams"
    for name, rows in (("norm", obs), ("rewards", returns[:, None])):
        assert params[f"{name}.count"] == len(rows)
        np.testing.assert_allclose(params[f"{name}.mean"], rows.mean(0), rtol=1e-5)
        np.testing.assert_allclose(params[f"{name}.m2"] / len(rows), rows.var(0), rtol=1e-5)
        np.testing.assert_allclose(
            params[f"{name}.factor"], 1 / np.sqrt(rows.var(0) + 1e-8), rtol=1e-5
        )


def running(batches: list[dict[str, Any]], stream: int, gamma: float) -> list[float]:
    """Row after row of one stream, as its env gave them."""
    windows = {
        int(b["start"][i]): (b, i)
        for b in batches
        for i in range(len(b["stream"]))
        if b["stream"][i] == stream
    }
    found, so_far = [], 0.0
    for start in sorted(windows):
        b, i = windows[start]
        for t in range(len(b["reward"])):
            if b["first"][t, i]:
                so_far = 0.0
            if b["mask"][t, i]:
                so_far = so_far * gamma + b["reward"][t, i]
                found.append(so_far)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["RecordingPPO", "RecordingIMPALA"])
def test_a_batch_is_judged_by_the_statistics_that_acted(algorithm: str, tmp_path: Any) -> None:
    train(algorithm, tmp_path)
    batches = recording.BATCHES
    assert max(b["gap"] for b in batches) < 1e-4, (
        "in lockstep the policy that judges is the one that acted"
    )
    seen = np.cumsum([0, *(b["mask"].sum() for b in batches)])
    assert [b["counts"] for b in batches] == [{n} for n in seen[:-1]], (
        "each version knows the rows of those before it"
    )


@pytest.mark.thorough
def test_rewards_are_scaled_in_the_targets_and_nowhere_else(tmp_path: Any) -> None:
    train("RecordingPPO", tmp_path)
    np.testing.assert_array_equal(
        recording.BATCHES[0]["scaled"], np.clip(recording.BATCHES[0]["reward"], -10, 10)
    )
    for i, b in enumerate(recording.BATCHES[1:], 1):
        before = [r for stream in range(6) for r in running(recording.BATCHES[:i], stream, 0.99)]
        np.testing.assert_allclose(
            b["scaled"], np.clip(b["reward"] / np.std(before), -10, 10), rtol=1e-4
        )
    last = recording.BATCHES[-1]
    assert abs(last["scaled"]).max() < 0.5 < 3 < abs(last["reward"]).max(), (
        "the data keeps what the env gave"
    )


def test_with_a_lag_the_correction_has_the_probabilities_of_the_actor(tmp_path: Any) -> None:
    train("RecordingIMPALA", tmp_path, max_lag=1)
    # other statistics and weights: the ratio is theirs
    assert max(b["gap"] for b in recording.BATCHES[2:]) > 1e-4


def data(stream: list[int], start: list[int], reward: Any, first: Any) -> Trajectory:
    rows, columns = np.shape(reward)
    empty: Any = {}
    return Trajectory(
        obs=empty,
        action=empty,
        behaviour=empty,
        state=empty,
        version=empty,
        first=torch.tensor(first),
        reward=torch.tensor(reward),
        mask=torch.ones(rows, columns, dtype=torch.bool),
        bootstrap=torch.ones(rows, columns, dtype=torch.bool),
        context={"stream": torch.tensor(stream), "start": torch.tensor(start)},
    )


def test_windows_of_a_stream_follow_each_other_in_any_order() -> None:
    """Streams 4 and 1; the windows of 4 stand in the batch the wrong way round, and one begins an
    episode at its second row.
    """
    never = [False] * 3
    one = data([4, 1, 4], [2, 0, 0], [[1.0, 10.0, 100.0]] * 2, [never, [False, False, True], never])
    returns, carried = carry(one, 0.5, torch.tensor([0.0, 8.0, 0.0]))
    assert returns.tolist() == [[51.0, 14.0, 100.0], [26.5, 17.0, 100.0]]
    assert carried.tolist() == [0.0, 17.0, 0.0, 0.0, 26.5]
