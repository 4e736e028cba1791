"""A run is saved whenever somebody asks, goes on as if nobody had, and says where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.record.directory import RunDirectory
from equipoise.record.report import repeatable
from equipoise.run.run import Run

STEPS, EVERY = 1024, 128


def begin(path: Path, algorithm: str = "ppo", on: Any = "serial", **options: Any) -> Run:
    given: dict[str, Any] = {
        "steps": STEPS,
        "unroll": 16,
        "actors": 1,
        "envs_per_actor": 4,
        "evaluate_episodes": 0,
        "checkpoint_every": 0,
        "recipe": False,
    } | options
    return api.start("CartPole-v1", algorithm, on=on, out=path, **given)


def told(path: Path) -> list[tuple[int, int, float | None]]:
    """What the reports of a run say that does not depend on time."""
    return [
        (line["updates"], line["episodes"], line["return_mean"])
        for line in repeatable(RunDirectory.found(path).metrics())
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    run = begin(tmp_path_factory.mktemp("whole") / "run")
    for _ in run:
        pass
    assert run.summary is not None
    return run.directory, run.summary["params_sha256"]


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_saved_run_goes_on_and_can_be_gone_on_with(
    on: str, whole: tuple[Path, str], tmp_path: Path
) -> None:
    path, wanted = whole
    run = begin(tmp_path / "run", on=on)
    assert run.state().status == "new" and run.state().saved is None and run.state().steps == STEPS
    first = next(run)
    saved = run.save()
    state = run.state()
    assert saved.parent == run.directory / "checkpoints" and saved.name == f"step_{state.saved}"
    assert (
        state.status == "running"
        and state.updates > 0
        and state.saved is not None
        and state.directory == run.directory
    )
    seen = [report.updates for report in (first, *run) if report.recorded]
    assert run.summary is not None and run.summary["params_sha256"] == wanted
    state = run.state()
    assert (state.status, state.step, state.updates) == ("completed", STEPS, STEPS // 64)
    assert told(run.directory) == told(path) and seen == [updates for updates, *_ in told(path)]
    other = api.start(
        "CartPole-v1",
        "ppo",
        on="serial",
        out=tmp_path / "other",
        init_from=saved,
        steps=64,
        unroll=16,
        actors=1,
        envs_per_actor=4,
        evaluate_episodes=0,
        init_what="learner",
        recipe=False,
    )
    assert next(other).updates == 1
    other.close()
    assert run.save().name == f"step_{STEPS}"  # the run is over: the checkpoint that it ended with


@pytest.mark.thorough
def test_saving_twice_and_closing_resumes_to_the_same_bits(
    whole: tuple[Path, str], tmp_path: Path
) -> None:
    _, wanted = whole
    run = begin(tmp_path / "run")
    first, second = run.save(), run.save()
    assert first.is_dir() and second.is_dir() and first != second
    run.close()
    again = api.start(resume=tmp_path / "run")
    for _ in again:
        pass
    assert again.summary is not None and again.summary["params_sha256"] == wanted


def test_a_replays_rows_are_written_before_save_returns(tmp_path: Path) -> None:
    run = begin(
        tmp_path / "run",
        "dqn",
        unroll=4,
        batch=16,
        steps=2_000,
        settings=["replay.capacity=1000", "replay.starts_at=64"],
    )
    next(run)
    saved = run.save()
    assert (saved / "manifest.json").is_file() and list(
        (run.directory / "checkpoints" / "replay").glob("segment*")
    )
    assert RunDirectory.found(run.directory).whole_checkpoint().path == saved
    run.close()


def test_a_checkpoint_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(tmp_path / "run")
    next(run)

    def full(self: Any, *given: Any) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "complete_checkpoint", full)
        with pytest.raises(
            OSError, match=r"expected to write a checkpoint, got: .*No space left on device"
        ):
            run.save()
    assert run.save().is_dir()
    run.close()


def test_a_run_is_not_saved_from_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(tmp_path / "run")
    monkeypatch.setattr(Run, "_handle", lambda self, *given: self.save())
    with pytest.raises(RuntimeError, match="save: expected a call between two reports"):
        next(run)
