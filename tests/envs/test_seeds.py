"""Stream i's episodes depend on (seed, i), not on who runs it."""

import numpy as np
import pytest

from equipoise.seeds import stream_seed, stream_seeds
from tests.envs.rolling import env_of, rows

ACTIONS = np.random.default_rng(0).integers(0, 2, (60, 6))


def from_workers(target, split, seed):
    return np.concatenate(
        [rows(env_of(target, streams, seed), ACTIONS[:, streams])["obs"] for streams in split],
        axis=1,
    )


@pytest.mark.parametrize(
    "target",
    ["python:CartPole-v1", "Acrobot-v1", "gymnasium.vector:SyncVectorEnv", "envpool:CartPole-v1"],
)
def test_streams_do_not_depend_on_the_split(target):
    if target.startswith("envpool"):
        pytest.importorskip("envpool", reason="EnvPool is not installed (extra envpool)")
    if target.startswith("gymnasium"):
        target = f"{__name__}:cartpoles"
    together = from_workers(target, [[0, 1, 2, 3, 4, 5]], 3)
    np.testing.assert_array_equal(from_workers(target, [[0, 1], [2, 3, 4], [5]], 3), together)
    assert not (from_workers(target, [[0, 1, 2, 3, 4, 5]], 4)[0] == together[0]).any()
    assert len(np.unique(together[0], axis=0)) == 6


def cartpoles(num_envs):
    import gymnasium

    return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num_envs)


def test_native_envs_differ_between_workers():
    one, other = (
        rows(env_of("CartPole-v1", streams, 0), ACTIONS[:5, :3])["obs"]
        for streams in ([0, 1, 2], [3, 4, 5])
    )
    assert not (one[0] == other[0]).any()


def test_seeds_fit_31_bits_and_differ():
    seeds = [seed for run in range(20) for seed in stream_seeds(run, range(200))]
    assert min(seeds) >= 0 and max(seeds) < 2**31 and len(set(seeds)) > 0.999 * len(seeds)
    assert stream_seed(1, 2) == stream_seed(1, 2) != stream_seed(2, 1)
