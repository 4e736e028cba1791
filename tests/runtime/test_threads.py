"""The weights of a run do not depend on how many threads torch or the
libraries under it may take.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from equipoise import api
from equipoise.plans import roles
from equipoise.plans.plan import plan_run

SCRIPT = """
import json, sys
from equipoise import api
hashes = {}
for on in ("serial", "process"):
    for algorithm in ("ppo", "impala"):
        run = api.start(
            "CartPole-v1", algorithm, on=on, out=f"{sys.argv[1]}/{on}-{algorithm}", actors=2, envs_per_actor=4, unroll=8,
            steps=512, max_lag=0, evaluate_episodes=0, recipe=False, settings=["algorithm.hidden=[128,128]"],
        )
        for _ in run:
            pass
        hashes[f"{algorithm} on {on}"] = run.summary["params_sha256"]
print(json.dumps(hashes))
"""  # noqa: E501


def hashes(path: Path, threads: str | None) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    env = {key: value for key, value in os.environ.items() if key not in names}
    env |= {} if threads is None else {"OMP_NUM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.thorough
def test_a_run_has_one_hash_however_many_threads_there_are(tmp_path: Path) -> None:
    found = {threads: hashes(tmp_path / f"{threads}", threads) for threads in (None, "1", "2")}
    assert found[None] == found["1"] == found["2"]
    for algorithm in ("ppo", "impala"):
        assert found[None][f"{algorithm} on serial"] == found[None][f"{algorithm} on process"]


def test_a_network_is_built_with_one_thread_and_the_caller_keeps_those_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = api.program("CartPole-v1", "ppo")
    spec = plan_run(made).spec
    seen: list[int] = []

    class Watching(nn.Linear):
        def reset_parameters(self) -> None:
            seen.append(torch.get_num_threads())
            super().reset_parameters()

    monkeypatch.setattr(nn, "Linear", Watching)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        roles.network(made, spec, "main")
        assert seen and set(seen) == {1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
