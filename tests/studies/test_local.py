"""Trials in processes of this machine: what is lost begins again, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from equipoise import api
from equipoise.api import trial as trials
from equipoise.api.trial import train_stretch
from equipoise.record.mirror import holds
from equipoise.runtime.process.log import BEFORE, LARGEST
from equipoise.studies import local
from equipoise.studies.executor import Job, Progress
from equipoise.studies.history import Result
from equipoise.studies.journal import decided, read_journal
from equipoise.studies.local import LocalExecutor, core_shares
from equipoise.studies.settings import StudySettings, write_cluster, write_study
from tests.studies import halves
from tests.studies.halves import job

LIMIT_S = 60.0
PRETENDING = Path(halves.__file__).with_name("pretending.py")
Made = Callable[..., LocalExecutor]


@pytest.fixture
def made() -> Iterator[Made]:
    """``made(jobs)``: an executor whose processes pretend to train."""
    all_made: list[LocalExecutor] = []

    def make(jobs: int = 1) -> LocalExecutor:
        all_made.append(LocalExecutor(command, jobs))
        return all_made[-1]

    yield make
    for one in all_made:
        one.close()


def command(commands: int, events: int, cores: Sequence[int]) -> list[str]:
    return [sys.executable, "-S", "-E", str(PRETENDING), str(commands), str(events)]


def results(
    executor: LocalExecutor, count: int = 1, limit_s: float = LIMIT_S
) -> tuple[list[Result], list[int]]:
    """Wait for so many results -> them, and the steps that were reported until then."""
    found, steps, end = list[Result](), list[int](), time.monotonic() + limit_s
    while len(found) < count:
        assert time.monotonic() < end, f"{found} after {limit_s:.0f} s"
        for event in executor.poll(0.2):
            if isinstance(event, Progress):
                steps.append(event.steps)
            else:
                found.append(event)
    return found, steps


@pytest.mark.parametrize(
    "trial",
    [
        "fine",
        "in parts",
        "garbage",
        "endless",
        "forks and dies",
        "closes its pipe",
        "ends without",
    ],
)
def test_a_trial_has_its_result_whatever_befalls_its_process_once(
    trial: str, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GONE_S", 0.2)
    executor = made()
    executor.begin(job(tmp_path, trial))
    (result,), steps = results(executor)
    assert (result.trial, result.steps, result.state) == (trial, 100, "paused")
    assert steps == ([7] if trial == "in parts" else [])


def test_a_trial_that_is_lost_three_times_without_progress_has_failed(
    made: Made, tmp_path: Path
) -> None:
    executor = made()
    executor.begin(job(tmp_path, "dies"))
    (result,), _ = results(executor)
    assert (result.state, result.steps) == ("failed", 0)
    assert "its process ended by SIGKILL, 3 times without progress; see" in result.error
    assert len(list(tmp_path.glob("dies.*"))) == 3
    executor.begin(job(tmp_path, "fine"))  # and the next one has a process
    assert results(executor)[0][0].state == "paused"


def test_the_log_of_a_trial_that_prints_much_keeps_its_end(made: Made, tmp_path: Path) -> None:
    executor, one = made(), job(tmp_path, "prints")
    executor.begin(one)
    assert results(executor)[0][0].state == "paused"
    logs = [one.log.with_suffix(BEFORE), one.log]
    before, last = (log.read_text() for log in logs)
    assert LARGEST <= len(before) <= 2 * LARGEST and len(last) <= LARGEST
    assert last.endswith("the end\n")


def test_a_trial_that_never_has_a_result_has_failed(made: Made, tmp_path: Path) -> None:
    executor = made()
    executor.begin(job(tmp_path, "never has one"))
    (result,), _ = results(executor)
    assert result.state == "failed"
    assert "its process ended without a result, 3 times without progress" in result.error


@pytest.mark.thorough
@pytest.mark.parametrize("episodes", [0, 2])
def test_a_trial_that_was_stopped_at_its_last_step_has_its_result_the_next_time(
    episodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "PROGRESS_S", 0.0)

    def stretch(trial: Job, last: int = 1 << 60) -> Result | None:
        reached = list[int]()
        return train_stretch(
            trial,
            on="serial",
            trust=(),
            moved=lambda event: reached.append(event.steps),
            stopped=lambda: last in reached,
        )

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        halves.made(folder, evaluate_episodes=episodes)
    assert stretch(job(stopped, to=256), last=256) is None
    expected, got = stretch(job(whole, to=256)), stretch(job(stopped, to=256))
    assert expected is not None
    assert got is not None
    assert (got.state, got.steps, got.score) == ("paused", 256, expected.score)


def test_the_cluster_of_a_study_is_not_that_of_a_trial_in_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    halves.made(folder)
    write_cluster(folder, ["address=here:1"])
    found = train_stretch(
        job(folder, to=256),
        on="serial",
        trust=["here:1"],
        moved=lambda event: None,
        stopped=lambda: False,
    )
    assert found is not None and (found.state, found.error) == ("paused", "")


def test_a_trial_that_makes_progress_may_be_lost_any_number_of_times(
    made: Made, tmp_path: Path
) -> None:
    executor = made()
    executor.begin(job(tmp_path, "dies further"))
    (result,), steps = results(executor)
    assert result.state == "paused"
    assert steps == [10, 20, 30, 40, 50, 60]


def test_a_process_that_cannot_start_is_a_failed_trial_with_its_words_in_the_log(
    tmp_path: Path,
) -> None:
    def broken(commands: int, events: int, cores: Sequence[int]) -> list[str]:
        return [sys.executable, "-S", "-c", "import no_such_module"]

    executor, one = LocalExecutor(broken, 1), job(tmp_path)
    try:
        executor.begin(one)
        (result,), _ = results(executor)
    finally:
        executor.close()
    assert result.state == "failed" and str(one.log) in result.error
    assert "exit code 1" in result.error
    assert "no_such_module" in one.log.read_text()


@pytest.mark.parametrize("trial", ["long", "late"])
def test_a_trial_that_is_stopped_has_no_result_and_the_next_one_waits_for_its_end(
    trial: str, made: Made, tmp_path: Path
) -> None:
    executor = made()
    executor.begin(job(tmp_path, trial))
    while not executor.poll(0.2):
        pass
    executor.stop(trial)
    executor.begin(job(tmp_path, "fine"))
    found, _ = results(executor)
    assert [one.trial for one in found] == ["fine"]


def test_a_stopped_trial_that_hangs_is_killed(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = made()
    executor.begin(job(tmp_path, "hangs"))
    while not executor.poll(0.2):
        pass
    monkeypatch.setattr(local, "END_S", 0.2)
    executor.stop("hangs")
    executor.begin(job(tmp_path, "fine"))
    found, _ = results(executor)
    assert [one.trial for one in found] == ["fine"]


def test_a_trial_that_waits_for_a_process_can_be_stopped(made: Made, tmp_path: Path) -> None:
    executor = made()
    executor.begin(job(tmp_path, "long"))
    executor.stop("long")
    executor.begin(job(tmp_path, "unwanted"))
    executor.stop("unwanted")
    executor.begin(job(tmp_path, "fine"))
    assert [one.trial for one in results(executor)[0]] == ["fine"]
    assert not list(tmp_path.glob("unwanted.*"))


def test_close_leaves_no_process_also_of_trials_that_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "END_S", 0.2)
    executor = LocalExecutor(command, 2)
    for trial in ("hangs", "long"):
        executor.begin(job(tmp_path, trial))
    heard: set[str] = set()
    while len(heard) < 2:
        heard |= {event.trial for event in executor.poll(0.2)}
    pids = [one.process.pid for one in executor._slots if one is not None]
    executor.close()
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_more_jobs_than_cores_share_them() -> None:
    assert core_shares([0, 1], 5) == [[0], [1], [0], [1], [0]]
    assert core_shares([0, 1, 2, 3, 4], 2) == [[0, 1], [2, 3, 4]]
    assert core_shares([3], 1) == [[3]]


def test_more_jobs_than_cores_all_have_results(made: Made, tmp_path: Path) -> None:
    executor = made(6)
    for number in range(6):
        executor.begin(job(tmp_path, f"fine{number}"))
    found, _ = results(executor, 6)
    assert {one.trial for one in found} == {f"fine{number}" for number in range(6)}


# ------------------------------------------------------------------------------- the study's folder


class Pretended(LocalExecutor):
    def __init__(self, jobs: int) -> None:
        super().__init__(command, jobs)


def test_a_study_whose_folder_is_moved_ends_and_goes_on_where_it_is(tmp_path: Path) -> None:
    folder, moved = tmp_path / "study", tmp_path / "moved"
    settings = halves.made(folder)

    def move(event: object) -> None:
        if isinstance(event, Result) and folder.is_dir():
            folder.rename(moved)

    study = halves.opened(folder, settings, Pretended(2), heard=move)
    with pytest.raises((ValueError, FileNotFoundError), match=str(folder)):
        study.run()
    study.close()
    assert not folder.exists()
    study = halves.opened(moved, settings, Pretended(2))
    study.run()
    study.close()
    assert decided(read_journal(moved))[-1]["kind"] == "end"


def test_a_full_disk_ends_a_study_which_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "study"
    settings = halves.made(folder)
    study = halves.opened(folder, settings, Pretended(2))
    calls = 0
    real = study._journal.append

    def full(entries: Sequence[object]) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(entries)  # type: ignore[arg-type]

    monkeypatch.setattr(study._journal, "append", full)
    with pytest.raises(OSError, match="No space left"):
        study.run()
    study.close()
    assert len(read_journal(folder)) == 3  # two starts and a result
    study = halves.opened(folder, settings, Pretended(2))
    study.run()
    study.close()
    assert decided(read_journal(folder))[-1]["kind"] == "end"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    settings = halves.made(folder)
    (folder / "journal.jsonl").mkdir()  # root may write anything else
    with pytest.raises(ValueError, match="expected a plain file"):
        halves.opened(folder, settings, Pretended(1))


# ----------------------------------------------------------------------------- envs of other people


def rude(folder: Path, env: str) -> Job:
    """A job of a study on an env of ``rude.py``."""
    program = api.program(
        f"tests.studies.rude:{env}",
        "ppo",
        steps=1024,
        actors=1,
        envs_per_actor=4,
        unroll=16,
        evaluate_episodes=0,
        recipe=False,
    )
    study = folder / env
    (study / "trials").mkdir(parents=True)
    write_study(study, StudySettings(strategy="halves"), program, "", {})
    return Job(trial="t0", study=study, settings={}, seed=None, to=1024, of=1024)


@pytest.mark.thorough
def test_a_study_outlives_whatever_an_env_does(tmp_path: Path) -> None:
    executor, found = LocalExecutor(halves.command, 1), dict[str, tuple[str, str]]()
    logs = dict[str, str]()
    try:
        for env in ("Prints", "Raises", "Forks", "Closes", "Exits", "Prints"):
            one = rude(tmp_path / str(len(found)), env)
            executor.begin(one)
            (result,), _ = results(executor, limit_s=200.0)
            found[env], logs[env] = (result.state, result.error), one.log.read_text()
        process = executor._slots[0]
        assert process is not None
        group = process.process.pid
    finally:
        executor.close()
    assert found["Prints"] == ("paused", "")
    assert "printed by the env" in logs["Prints"] and "written by the env" in logs["Prints"]
    assert found["Raises"] == ("paused", ""), "the run begins another episode"
    assert found["Forks"][0] == "paused"
    assert found["Exits"][0] == "failed" and "exit code 7, 3 times" in found["Exits"][1]
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


@pytest.mark.thorough
def test_a_trial_whose_env_hangs_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, one = LocalExecutor(halves.command, 1), rude(tmp_path, "Hangs")
    try:
        executor.begin(one)
        deadline = time.monotonic() + 200.0
        while not (one.directory / "metrics.jsonl").exists():
            assert time.monotonic() < deadline
            executor.poll(0.2)
        monkeypatch.setattr(local, "END_S", 1.0)
        executor.stop("t0")
        while executor._slots[0] is not None and executor._slots[0].job is not None:
            assert time.monotonic() < deadline
            assert not executor.poll(0.2)
    finally:
        executor.close()


# ----------------------------------------------------------------------------- the end of the study


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.few(2)
def test_trials_save_and_end_when_their_study_does(number: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    halves.made(folder, steps=halves.STEPS)
    script = [sys.executable, halves.__file__, str(folder)]
    with subprocess.Popen(
        script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as study:
        assert study.stdout is not None and study.stderr is not None
        next(line for line in study.stdout if line.startswith("Progress"))
        children = Path(f"/proc/{study.pid}/task/{study.pid}/children").read_text().split()
        study.send_signal(number)
        study.stdout.read()
        said = study.stderr.read()
    assert len(children) == 2
    assert (study.returncode, "KeyboardInterrupt" in said) in ((-9, False), (-2, True)), said
    end = time.monotonic() + 100.0
    while any(alive(int(pid)) for pid in children):
        assert time.monotonic() < end, "the trials are still there"
        time.sleep(0.05)
    begun = [one for one in (folder / "trials").iterdir() if (one / "run.json").exists()]
    assert begun
    assert any(holds(one) == "a run" for one in begun), "saved"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
