"""Runs on JAX envs: one hash on every runtime, a kill and an exact resume, and a note where a row
cannot be compiled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnax", reason="needs JAX and gymnax: make test-jax has them")

from tests.runtime.test_device_envs import killed_and_resumed, ran

pytestmark = [pytest.mark.jax, pytest.mark.timeout(600)]

ENV = "jax:gymnax/CartPole-v1"


def test_serial_and_process_agree_to_the_bit(tmp_path: Path) -> None:
    found = {
        on: ran(ENV, "ppo", on, tmp_path / on, evaluate_episodes=2) for on in ("serial", "process")
    }
    assert found["serial"]["params_sha256"] == found["process"]["params_sha256"]
    assert found["serial"]["episodes"] == found["process"]["episodes"] > 0
    assert found["serial"]["evaluation"]["mean"] > 5


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, deadline: Any) -> None:
    killed_and_resumed(ENV, tmp_path, deadline)


def test_a_row_that_cannot_be_compiled_is_said(tmp_path: Path) -> None:
    ran(ENV, "impala", "serial", tmp_path / "run", steps=1024, settings=["placement.compile=true"])
    notes = (tmp_path / "run" / "summary.json").read_text()
    assert (
        "compile: rows are done operation by operation, since the env's step is not an operation "
        "of torch" in notes
    )
