"""Runs that learn from a replay: every window proves itself on every runtime, and in lockstep they agree to the bit."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.runtime.errors import WorkerFailed
from equipoise.runtime.run import Run
from equipoise.types import Program, Replay
from tests.runtime.ruling import Remembering, program


def run(made: Program, on: Any, path: Any) -> dict[str, Any]:
    with Run(made, on=on, out=path) as going:
        for _ in going:
            pass
    assert going.summary is not None
    return going.summary


def remembering(*, rows: int = 1, steps: int = 4000, fault: Any = "none", **options: Any) -> Program:
    given = {"capacity": 1000, "starts_at": 300, "updates": 3} | options.pop("replay", {})
    return program(algorithm=Remembering(rows=rows, fault=fault), replay=Replay(**given), steps=steps, batch=32, **options)


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_windows_prove_themselves_in_serial(rows: int, selector: str, max_lag: int | None, tmp_path: Any) -> None:
    summary = run(remembering(rows=rows, max_lag=max_lag, replay={"selector": selector}), "serial", tmp_path / "run")
    assert summary["env_steps"] == 4000 and summary["updates"] == 3 * (4000 - 240) // 80


@pytest.mark.parametrize(("rows", "selector", "max_lag"), [(1, "prioritized", 0), (3, "uniform", 1), (7, "prioritized", None)])
def test_windows_prove_themselves_in_processes(rows: int, selector: str, max_lag: int | None, tmp_path: Any) -> None:
    made = remembering(rows=rows, max_lag=max_lag, steps=20_000, replay={"selector": selector, "file": str(tmp_path)})
    summary = run(made, "process", tmp_path / "run")
    assert summary["env_steps"] == 20_000
    assert summary["rows"]["inserted"] == sum(summary["rows"][name] for name in ("sampled", "dropped", "held"))


@pytest.mark.parametrize("fault", ["version", "reward", "mask", "obs", "action", "first"])
def test_a_planted_off_by_one_is_caught(fault: Any, tmp_path: Any) -> None:
    with pytest.raises((AssertionError, WorkerFailed), match="do not prove themselves"):
        run(remembering(rows=3, fault=fault), "serial", tmp_path / "run")


@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
def test_serial_and_process_agree_to_the_bit(selector: str, tmp_path: Any) -> None:
    found = [
        run(remembering(replay={"selector": selector}, max_lag=0), on, tmp_path / f"{on}{i}")["params_sha256"]
        for on in ("serial", "process")
        for i in range(2)
    ]
    assert len(set(found)) == 1
