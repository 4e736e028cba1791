"""Runs on device envs: one hash on every runtime, exact resumes, and what cannot work."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import api
from equipoise.device_envs.cartpole import CartPole
from equipoise.envs import make
from equipoise.learners.learner import Learner
from equipoise.runtime import build
from equipoise.types import EnvFactory
from tests.runtime.resuming import arguments, finish, kill_after, told

SIZES = "--actors 2 --envs-per-actor 32 --unroll 16 --max-lag 0 --evaluate-episodes 0 --no-recipe"
N = 16_384
ALGORITHMS = [
    ("ppo", "cartpole"),
    ("impala", "cartpole"),
    ("appo", "cartpole"),
    ("dqn", "cartpole"),
    ("sac", "pendulum"),
]


def ran(
    env: str, algorithm: str, on: Any, out: Path, steps: int = 4096, **options: Any
) -> dict[str, Any]:
    made = api.program(
        env,
        algorithm,
        actors=2,
        envs_per_actor=16,
        unroll=8,
        max_lag=options.pop("max_lag", 0),
        steps=steps,
        recipe=False,
        evaluate_episodes=options.pop("evaluate_episodes", 0),
        **options,
    )
    with api.start(made, on=on, out=out) as run:
        for _ in run:
            pass
    assert run.summary is not None
    return run.summary


@pytest.mark.few(1)
@pytest.mark.parametrize(("algorithm", "env"), ALGORITHMS)
@pytest.mark.thorough
def test_serial_and_process_agree_to_the_bit(algorithm: str, env: str, tmp_path: Path) -> None:
    steps = 1024 if algorithm == "sac" else 4096  # 64 updates, each slower than those of the others
    found = {
        on: ran(f"device:{env}", algorithm, on, tmp_path / on, steps)
        for on in ("serial", "process")
    }
    assert found["serial"]["params_sha256"] == found["process"]["params_sha256"]
    assert found["serial"]["episodes"] == found["process"]["episodes"] > 0 or env == "pendulum"
    assert "rollout 1" in found["serial"]["balance"]


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
def test_rows_in_a_devices_memory_are_learned_from_as_they_lie(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors' memory in place of the host's buffer, as on a GPU but here on the CPU: a batch is
    where its rows are.
    """
    whole, seen = ran("device:cartpole", algorithm, "serial", tmp_path / "whole"), set[int]()
    memory = list[torch.Tensor]()

    def allocate(nbytes: int) -> torch.Tensor:
        memory.append(torch.zeros(nbytes, dtype=torch.uint8))
        return memory[0]

    step = Learner.step

    def watched(self: Learner, batch: Any) -> Any:
        seen.add(batch.data.obs.data_ptr())
        return step(self, batch)

    monkeypatch.setattr(Learner, "step", watched)
    plain = build.lay_out

    def lay_out(*args: Any, **options: Any) -> Any:
        return plain(*args, **options | {"rows": allocate})

    monkeypatch.setattr(build, "lay_out", lay_out)
    there = ran("device:cartpole", algorithm, "serial", tmp_path / "there")
    assert there["params_sha256"] == whole["params_sha256"]
    begin, end = memory[0].data_ptr(), memory[0].data_ptr() + memory[0].numel()
    assert seen and all(begin <= at < end for at in seen)


def killed_and_resumed(env: str, tmp_path: Path, deadline: Any) -> None:
    """A killed run goes on to the bits of one that nobody killed, its envs exactly as they were."""
    words = arguments("ppo", "lstm", env, N, SIZES)
    finish(["train", *words, "--quiet", "--out", str(tmp_path / "whole")])
    there = tmp_path / "killed" / "checkpoints" / f"step_{N}" / "manifest.json"
    kill_after(["train", *words, "--out", str(tmp_path / "killed")], there.exists, deadline, 0.0)
    text = finish(["resume", str(tmp_path / "killed")])
    assert told(tmp_path / "killed") == told(tmp_path / "whole")
    assert "rollout 0: 32 envs exactly as they were" in " ".join(text.split())


@pytest.mark.thorough
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, deadline: Any) -> None:
    killed_and_resumed("device:cartpole", tmp_path, deadline)


@pytest.mark.thorough
def test_the_lag_is_bounded_and_an_evaluation_takes_the_same_env(tmp_path: Path) -> None:
    summary = ran("device:cartpole", "impala", "process", tmp_path, max_lag=1, evaluate_episodes=4)
    assert summary["lag"]["max"] <= 1
    assert summary["evaluation"]["episodes"] == 4 and 5 < summary["evaluation"]["mean"] <= 500


def test_a_stream_does_not_depend_on_who_else_is_in_the_batch() -> None:
    both = make(EnvFactory(target="device:cartpole"), streams=np.arange(8), seed=3)
    late = make(EnvFactory(target="device:cartpole"), streams=np.arange(5, 8), seed=3)
    for step in range(60):
        a, b = both.recv(), late.recv()
        assert np.array_equal(a.obs[5:], b.obs) and np.array_equal(a.first[5:], b.first)
        action = np.arange(8) + step & 1
        both.send(action, a.stream)
        late.send(action[5:], b.stream)


REFUSED = [
    ({"inference": "central"}, "placement.inference: expected local with device:cartpole"),
    (
        {"on_nonfinite": "drop"},
        "source.on_nonfinite: expected stop with device:cartpole, whose rows are looked at once",
    ),
    (
        {"metrics": ["success"]},
        "source.metrics: cannot be set with device:cartpole, which has no info, got 'success'",
    ),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_a_device_env_cannot_do_is_refused(options: Any, said: str) -> None:
    with pytest.raises(ValueError) as error:
        api.program("device:cartpole", "ppo", **options)
    assert said in str(error.value)


def test_an_unknown_name_has_a_nearest_one() -> None:
    with pytest.raises(ValueError, match="unknown device env 'cartpoll'; did you mean 'cartpole'"):
        make(EnvFactory(target="device:cartpoll"), streams=np.arange(1), seed=0)


class Dying(CartPole):
    """CartPole that kills its process once, amid an unroll."""

    def __init__(self, marker: str = "") -> None:
        super().__init__()
        self._marker, self._steps = Path(marker), 0

    def step(self, state: Any, action: Any) -> Any:
        self._steps += 1
        if self._marker.name and self._steps == 60:
            with suppress(FileExistsError):
                # of two rollouts that come here at once, one dies
                self._marker.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(state, action)


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["impala", "dqn"])
def test_a_killed_rollout_is_replaced_and_no_row_is_lost_track_of(
    algorithm: str, tmp_path: Path
) -> None:
    kwargs = {"marker": str(tmp_path / "died")}
    summary = ran(
        f"device:{__name__}:Dying", algorithm, "process", tmp_path / "run", env_kwargs=kwargs
    )
    assert (tmp_path / "died").exists() and summary["status"] == "completed"
    rows = summary["rows"]
    assert (
        rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
        and rows["dropped"] == 16 * 8
    ), rows


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_learners_share_the_rows_of_rollouts(on: Any, tmp_path: Path) -> None:
    assert ran("device:cartpole", "impala", on, tmp_path, learners=2)["status"] == "completed"
