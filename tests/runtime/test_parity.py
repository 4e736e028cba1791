"""In lockstep one Program gives one set of parameters, whatever runs it."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise import api

pytestmark = pytest.mark.few(2)  # all cases: make test-all

ALGORITHMS = ("ppo", "impala", "appo", "a3c", "a2c")
CASES = [
    (a, c, k, s) for a in ALGORITHMS for c in ("none", "lstm") for k in (1, 2, 4) for s in (0, 1)
]
NORMALISED = ["algorithm.normalize_obs=true", "rewards.normalize=true"]
SOME = [
    ("ppo", "none", 2, 0),
    ("impala", "lstm", 4, 1),
    ("ppo", "lstm", 1, 0),
    ("impala", "none", 2, 1),
]
SOME += [
    ("appo", "none", 2, 0),
    ("a3c", "lstm", 4, 1),
    ("a2c", "none", 2, 1),
    ("ppo", "gtrxl", 2, 0),
    ("impala", "mingru", 2, 1),
]
# the target policy is an older one, and its KL counts
MORE = {"appo": ["algorithm.target_every=3", "algorithm.kl=0.1"]}


def hashes(
    algorithm: str,
    core: str,
    actors: int,
    seed: int,
    path: Any,
    settings: Any = (),
    env: str = "CartPole-v1",
    **options: Any,
) -> list[str]:
    found = []
    places: list[Any] = ["serial", "process", "serial", "process"]
    for i, on in enumerate(places):
        made = api.program(
            env,
            algorithm,
            actors=actors,
            envs_per_actor=8,
            unroll=16,
            max_lag=0,
            steps=2500,
            seed=seed,
            recipe=False,
            evaluate_episodes=0,
            settings=[f"algorithm.core={core}", *MORE.get(algorithm, []), *settings],
            **options,
        )
        with api.start(made, on=on, out=path / f"{i}") as run:
            for _ in run:
                pass
        assert run.summary is not None
        found.append(run.summary["params_sha256"])
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(("algorithm", "core", "actors", "seed"), SOME)
def test_serial_and_process_agree_to_the_bit(
    algorithm: str, core: str, actors: int, seed: int, tmp_path: Any
) -> None:
    assert len(set(hashes(algorithm, core, actors, seed, tmp_path))) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "core", "actors", "seed"), [("ppo", "none", 2, 0), ("impala", "lstm", 2, 1)]
)
def test_they_agree_with_running_statistics(
    algorithm: str, core: str, actors: int, seed: int, tmp_path: Any
) -> None:
    """A batch of two windows a stream, too: its order is that of the streams' rows, whoever came
    first.
    """
    assert len(set(hashes(algorithm, core, actors, seed, tmp_path / "a", NORMALISED))) == 1
    assert (
        len(
            set(
                hashes(
                    algorithm, core, actors, seed, tmp_path / "b", NORMALISED, batch=8 * actors * 2
                )
            )
        )
        == 1
    )


@pytest.mark.thorough
def test_they_agree_where_noise_is_a_function_of_the_state(tmp_path: Any) -> None:
    """An unroll of 16 rows holds parts of up to four periods of five."""
    found = hashes(
        "ppo", "lstm", 2, 0, tmp_path / "a", ["algorithm.sde_every=5"], env="Pendulum-v1"
    )
    other = hashes(
        "ppo", "lstm", 2, 0, tmp_path / "b", ["algorithm.sde_every=6"], env="Pendulum-v1"
    )
    assert len(set(found)) == len(set(other)) == 1 and found[0] != other[0]


@pytest.mark.thorough
def test_they_agree_where_target_kl_ends_batches(tmp_path: Any) -> None:
    ended = hashes("ppo", "none", 2, 0, tmp_path / "a", ["algorithm.target_kl=0.003"])
    assert len(set(ended)) == 1 and ended[0] != hashes("ppo", "none", 2, 0, tmp_path / "b")[0]


@pytest.mark.thorough
def test_the_hash_can_differ(tmp_path: Any) -> None:
    a, b = (
        hashes("ppo", "none", 1, 0, tmp_path / "a")[0],
        hashes("ppo", "none", 1, 1, tmp_path / "b")[0],
    )
    assert a != b


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "core", "actors", "seed"), CASES)
def test_all_of_them(algorithm: str, core: str, actors: int, seed: int, tmp_path: Any) -> None:
    assert len(set(hashes(algorithm, core, actors, seed, tmp_path))) == 1
