"""Runs whose rows are kept encoded: the same bits as without, also after a resume; what cannot be
is refused before the run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.plans import memory_needed as memory
from equipoise.plans.memory_needed import Machine
from equipoise.plans.plan import plan_run
from tests.runtime.test_resume import go_on, train

pytestmark = pytest.mark.few(2)  # all cases: make test-all

SETTINGS = [
    "algorithm.hidden=[16]",
    "algorithm.target_every=20",
    "replay.capacity=300",
    "batch=8",
    "replay.starts_at=100",
]


def program(*settings: str, **options: Any) -> Any:
    given: dict[str, Any] = {
        "actors": 2,
        "envs_per_actor": 2,
        "steps": 768,
        "evaluate_episodes": 0,
        "recipe": False,
        "max_lag": 0,
        "unroll": 4,
    }
    return api.program(
        "tests.envs.wide:Wide", "dqn", settings=[*SETTINGS, *settings], **{**given, **options}
    )


@pytest.mark.thorough
def test_a_codec_changes_no_bit_of_a_run(tmp_path: Path) -> None:
    plain = train(program(checkpoint_every=0), tmp_path / "plain")["params_sha256"]
    for name, on in (("delta", "serial"), ("zstd", "serial"), ("lz4", "process")):
        made = program(f"replay.codec={name}", "replay.decode_threads=3", checkpoint_every=0)
        assert train(made, tmp_path / name, on)["params_sha256"] == plain, name


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "on"), [("delta", "serial"), ("obs=zstd", "process")])
def test_a_run_goes_on_to_the_same_bits(name: str, on: Any, tmp_path: Path) -> None:
    settings = [f"replay.codec={name}", "replay.selector=prioritized"]
    whole = train(program(*settings, checkpoint_every=0), tmp_path / "whole", on)
    train(
        program(*settings, steps=512, schedule_steps=768, checkpoint_every=128),
        tmp_path / "part",
        on,
    )
    assert go_on(tmp_path / "part", steps=768)["params_sha256"] == whole["params_sha256"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["replay.codec=detla"],
            r"replay\.codec: expected one of delta, lz4, none, zstd \(nearest: 'delta'\), got "
            r"'detla'",
        ),
        (
            ["replay.codec=obss=lz4"],
            r"replay\.codec: expected one of obs \(nearest: 'obs'\), got 'obss'",
        ),
        (
            ["replay.codec=reward=lz4"],
            r"replay\.codec: expected one of obs, got 'reward', which is too small",
        ),
        (
            ["replay.codec=lz4", "replay.memory=64MiB"],
            r"replay\.memory: expected 0 with replay\.codec.*use replay\.capacity",
        ),
        (
            ["replay.codec=lz4", "replay.file=rows"],
            r"replay\.file: cannot be set with replay\.codec=lz4.*got rows",
        ),
        (
            ["replay.decode_threads=3"],
            r"replay\.decode_threads, since nothing is encoded \(replay\.codec=\)",
        ),
        (
            ["replay.codec=lz4", "replay.decode_threads=0"],
            r"replay\.decode_threads: expected at least 1, got 0",
        ),
    ],
)
def test_what_cannot_be_encoded_is_refused_before_the_run(
    settings: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        api.start(program(*settings), on="serial", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_library_is_told_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(ImportError, match="pip install .*cramjam>="):
        api.start(program("replay.codec=delta"), on="serial", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_replay_that_may_fit_when_it_is_encoded_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """200,000 rows of 1,200 bytes, on a machine of 100 MB."""
    monkeypatch.setattr(memory, "machine", lambda: Machine(total=100_000_000, free=None))
    with pytest.raises(
        ValueError, match=r"replay\.capacity: expected a run that fits in this machine's memory"
    ):
        plan_run(program("replay.capacity=200k"))
    plan_run(program("replay.capacity=200k", "replay.codec=delta"))
    with pytest.raises(
        ValueError, match=r"replay\.capacity: expected a run that fits in this machine's memory"
    ):
        plan_run(program("replay.capacity=20M", "replay.codec=delta"))
