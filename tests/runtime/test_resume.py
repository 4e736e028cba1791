"""A resume is a contract: a run that is killed and goes on ends where the same run ends that nobody
killed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise import api
from equipoise.errors import CannotStart, WorkerFailed
from equipoise.learners.learner import Learner
from equipoise.record import checkpoint, statefile
from equipoise.record.checkpoint import load as load_checkpoint
from equipoise.record.directory import RunDirectory
from equipoise.run.outside import Worlds
from equipoise.run.run import Run
from equipoise.workers.env import env_seed
from tests.conftest import descendants
from tests.runtime.doomed import kill_at
from tests.runtime.resuming import N, arguments, command, finish, kill_after, told

pytestmark = pytest.mark.few(2)  # all cases: make test-all

CASES = [
    (a, c, on)
    for a in ("ppo", "impala")
    for c in ("none", "lstm", "normalised")
    for on in ("serial", "process")
]
SOME = [  # the others in processes: make test-resume
    ("impala", "none", "process"),
    ("impala", "lstm", "serial"),
    ("impala", "normalised", "serial"),
    ("impala", "gtrxl", "process"),
    ("ppo", "mingru", "serial"),
]


def kill_and_resume(
    algorithm: str, core: str, on: str, moments: int, path: Path, seed: int, deadline: Any
) -> None:
    words = [*arguments(algorithm, core), "--on", on]
    finish(["train", *words, "--quiet", "--out", str(path / "whole")])
    expected = told(path / "whole")
    assert len(expected["reports"]) > 20
    draw = random.Random(seed)
    for moment in range(moments):
        out = path / f"killed {moment}"
        there = out / "checkpoints" / f"step_{N}" / "manifest.json"
        # about what the second half takes, and less where it takes less
        wait_s = draw.uniform(0.0, 0.6)
        while not (out / "run.json").exists() or (out / "summary.json").exists():
            shutil.rmtree(out, ignore_errors=True)
            kill_after(["train", *words, "--out", str(out)], there.exists, deadline, wait_s)
            wait_s /= 2
        go_on(out)
        assert told(out) == expected, f"killed {2 * wait_s:.3f} s after the checkpoint"


@pytest.mark.thorough
@pytest.mark.parametrize(("algorithm", "core", "on"), SOME)
def test_a_killed_run_goes_on_to_the_same_bits(
    algorithm: str, core: str, on: str, tmp_path: Path, seed: int, deadline: Any
) -> None:
    kill_and_resume(algorithm, core, on, 1, tmp_path, seed, deadline)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("algorithm", "core", "on"), CASES)
def test_a_run_killed_at_ten_moments(
    algorithm: str, core: str, on: str, tmp_path: Path, seed: int, deadline: Any
) -> None:
    kill_and_resume(algorithm, core, on, 10, tmp_path, seed, deadline)


SMALL = "--actors 2 --envs-per-actor 2 --unroll 8 --max-lag 0 --evaluate-episodes 0 --no-recipe"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "n"), [("Acrobot-v1", 4096), ("HalfCheetah-v5", 2048), ("python:ALE/Pong-v5", 512)]
)
@pytest.mark.parametrize("on", ["serial", "process"])
def test_other_envs_go_on_to_the_same_bits(
    env: str, n: int, on: str, tmp_path: Path, deadline: Any
) -> None:
    words = [*arguments("ppo", "none", env, n, SMALL), "--on", on]
    finish(["train", *words, "--quiet", "--out", str(tmp_path / "whole")])
    there = tmp_path / "killed" / "checkpoints" / f"step_{n}" / "manifest.json"
    kill_after(["train", *words, "--out", str(tmp_path / "killed")], there.exists, deadline, 0.1)
    text = finish(["resume", str(tmp_path / "killed")])
    assert told(tmp_path / "killed") == told(tmp_path / "whole")
    assert (
        "actor 0: 2 envs exactly as they were, 0 brought back by replay, 0 begin a new episode"
        in text
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "module"), [("ALE/Pong-v5", "ale_py"), ("envpool:CartPole-v1", "envpool")]
)
def test_envs_that_cannot_be_restored_are_named(env: str, module: str, tmp_path: Path) -> None:
    pytest.importorskip(module)
    words = [
        "train",
        *arguments("impala", "none", env, 512, SMALL),
        "--quiet",
        "--out",
        str(tmp_path / "run"),
    ]
    finish(words)
    text = finish(["resume", str(tmp_path / "run"), "--steps", "2048"])
    assert "envs cannot be restored: their episodes start again" in text
    assert (
        "actor 1: 0 envs exactly as they were, 0 brought back by replay, 2 begin a new episode"
        in text
    )


# ----------------------------------------------------------------------------------- in one process


def program(env: str = "CartPole-v1", **options: Any) -> Any:
    given: dict[str, Any] = {
        "actors": 2,
        "envs_per_actor": 4,
        "unroll": 8,
        "steps": 2048,
        "evaluate_episodes": 0,
        "recipe": False,
        "max_lag": 0,
    }
    return api.program(env, **{"algorithm": "impala", **given, **options})


def train(made: Any, out: Path, on: Any = "serial", **options: Any) -> Any:
    run = api.start(made, on=on, out=out, **options)
    reports = list(run)
    assert run.summary is not None
    return run.summary | {"reports": reports}


def go_on(out: Path, **options: Any) -> Any:
    run = api.start(resume=out, **options)
    reports = list(run)
    assert run.summary is not None
    return run.summary | {"reports": reports}


@pytest.mark.parametrize("max_lag", [1, 4, None])
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_run_with_a_lag_goes_on_with_what_the_queue_held(
    on: Any, max_lag: int | None, tmp_path: Path
) -> None:
    """Its rows prove themselves across the cut: tests/runtime/test_ruler.py has the ledger."""
    made = program(max_lag=max_lag, checkpoint_every=1024)
    train(made, tmp_path / "run", on)
    newest = RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True)
    assert newest is not None and newest.name == "step_2048"
    summary = go_on(tmp_path / "run", steps=4096)
    assert summary["env_steps"] == 4096 and summary["status"] == "completed"
    assert max_lag is None or summary["lag"]["max"] <= max_lag


@pytest.mark.thorough
def test_an_extended_run_equals_the_long_one(tmp_path: Path) -> None:
    """The schedule keeps the length that it had."""
    long = train(program(steps=4096, schedule_steps=2048), tmp_path / "long")
    train(program(steps=2048), tmp_path / "short")
    extended = go_on(tmp_path / "short", steps=4096)
    assert extended["params_sha256"] == long["params_sha256"]
    assert extended["episodes"] == long["episodes"]
    run = json.loads((tmp_path / "short/run.json").read_text())
    assert run["resumed"][0]["step"] == 2048
    assert run["resumed"][0]["changes"] == {
        "schedule.steps": [2048, 4096],
        "schedule.schedule_steps": [None, 2048],
    }


@pytest.mark.thorough
def test_a_run_goes_on_in_another_runtime(tmp_path: Path) -> None:
    whole = train(program(steps=2048, checkpoint_every=1024), tmp_path / "whole")
    train(program(steps=1024, schedule_steps=2048), tmp_path / "half")
    assert (
        go_on(tmp_path / "half", steps=2048, on="process")["params_sha256"]
        == whole["params_sha256"]
    )


@pytest.mark.thorough
def test_cuts_change_nothing(tmp_path: Path) -> None:
    without = train(program(checkpoint_every=0), tmp_path / "a")
    often = train(program(checkpoint_every=64), tmp_path / "b")
    assert without["params_sha256"] == often["params_sha256"]
    kept = sorted(path.name for path in (tmp_path / "b/checkpoints").iterdir())
    assert kept == ["step_1920", "step_1984", "step_2048"]  # the last three of 32


@pytest.mark.thorough
def test_a_planted_fault_in_the_state_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison can fail: an optimiser that forgets its moments ends elsewhere."""
    whole = train(program(steps=2048), tmp_path / "whole")
    train(program(steps=1024, schedule_steps=2048), tmp_path / "half")
    monkeypatch.setattr("equipoise.learners.optimizers.Descent.load", lambda optimizer, slots: None)
    assert go_on(tmp_path / "half", steps=2048)["params_sha256"] != whole["params_sha256"]


NORMALISED = ["algorithm.normalize_obs=true", "rewards.normalize=true"]


@pytest.mark.thorough
@pytest.mark.parametrize("lost", ["rewards", "buffers"])
def test_a_resume_that_lost_the_statistics_is_seen(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the statistics of rewards, or those of observations, begin anew with the resume."""
    whole = train(program(steps=2048, settings=NORMALISED), tmp_path / "whole")
    train(program(steps=1024, schedule_steps=2048, settings=NORMALISED), tmp_path / "half")
    shutil.copytree(tmp_path / "half", tmp_path / "other")
    assert go_on(tmp_path / "half", steps=2048)["params_sha256"] == whole["params_sha256"]
    load = Learner.load

    def forgetful(self: Learner, state: Any) -> None:
        new = self.state()[lost]
        load(self, {**state, lost: new})

    monkeypatch.setattr(Learner, "load", forgetful)
    assert go_on(tmp_path / "other", steps=2048)["params_sha256"] != whole["params_sha256"]


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["appo", "a3c"])
def test_a_resume_goes_on_with_the_target_network(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut, at update 16 of 32, lies between two copies; a3c has no such network, and RMSProp's
    state.
    """
    settings = ["algorithm.target_every=5", "algorithm.kl=0.1"] if algorithm == "appo" else []
    options: dict[str, Any] = {"algorithm": algorithm, "settings": settings}
    whole = train(program(**options), tmp_path / "whole")
    train(program(steps=1024, schedule_steps=2048, **options), tmp_path / "half")
    shutil.copytree(tmp_path / "half", tmp_path / "again")
    assert go_on(tmp_path / "half", steps=2048)["params_sha256"] == whole["params_sha256"]
    if algorithm == "appo":  # and the comparison can fail
        monkeypatch.setattr("equipoise.learners.target.Target.load", lambda *_: None)
        assert go_on(tmp_path / "again", steps=2048)["params_sha256"] != whole["params_sha256"]


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_resume_goes_on_with_the_resets_that_are_held_back(
    on: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAME_STEP, where an actor's cut lies between a truncated episode's last observation and the
    next one's first.
    """
    env = "tests.envs.same:SameRuler"
    whole = train(program(env), tmp_path / "whole", on)
    train(program(env, steps=960, schedule_steps=2048), tmp_path / "half", on)
    newest = RunDirectory.open(tmp_path / "half").latest_checkpoint(whole=True)
    assert newest is not None
    actors = [statefile.parse(checkpoint.read(newest, f"actor_{i}.safetensors")) for i in (0, 1)]
    assert any(actor["env"]["env"]["held"].any() for actor in actors)
    shutil.copytree(tmp_path / "half", tmp_path / "again")
    assert go_on(tmp_path / "half", steps=2048)["params_sha256"] == whole["params_sha256"]
    if on == "serial":  # and the comparison can fail
        monkeypatch.setattr("equipoise.envs.adapter.fill", lambda *_: None)
        assert go_on(tmp_path / "again", steps=2048)["params_sha256"] != whole["params_sha256"]


@pytest.mark.thorough
def test_a_complete_run_has_nothing_to_do(tmp_path: Path) -> None:
    train(program(), tmp_path / "run")
    with pytest.raises(
        api.NothingToDo, match="complete at step 2,048: nothing to do; --steps N beyond 2048"
    ):
        api.start(resume=tmp_path / "run")
    assert "nothing to do" in finish(["resume", str(tmp_path / "run")])


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_run_killed_before_its_last_word_gets_it(on: Any, tmp_path: Path) -> None:
    whole = train(program(evaluate_episodes=2), tmp_path / "run", on)
    (tmp_path / "run/summary.json").unlink()
    again = go_on(tmp_path / "run")
    assert again["status"] == "completed" and again["params_sha256"] == whole["params_sha256"]
    assert again["evaluation"] == whole["evaluation"] and again["episodes"] == whole["episodes"]
    assert RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True) is not None


def test_changes_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    train(program(), tmp_path / "run")
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*"))
    with pytest.raises(
        ValueError,
        match=r"cannot change placement.actors \(2 -> 4\), policy.unroll \(8 -> 16\). Can change: "
        r".*\bsteps\b",
    ):
        api.start(resume=tmp_path / "run", actors=4, steps=4096, settings=["unroll=16"])
    with pytest.raises(ValueError, match=r"cannot change optimizer.name \('adam' -> 'rmsprop'\)"):
        api.start(resume=tmp_path / "run", steps=4096, settings=["optimizer.name=rmsprop"])
    with pytest.raises(ValueError, match=r"cannot change algorithm.hidden \(\(?.64, 64"):
        api.start(resume=tmp_path / "run", steps=4096, settings=["algorithm.hidden=8"])
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*")) == before


def files_of(run: Path) -> dict[str, bytes]:
    """All but what a start writes for those who watch."""
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in run.rglob("*")
        if file.is_file() and file.parent.name != "logs" and file.name != "live.json"
    }


@pytest.mark.parametrize("ends", ["closed", "cannot start", "damaged", "interrupted", "killed"])
def test_a_resume_that_comes_to_nothing_leaves_the_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    whole = train(program(), tmp_path / "run")
    params, meta = load_checkpoint(tmp_path / "run/checkpoints/step_2048")
    # later ones, of weights alone
    checkpoint.save(tmp_path / "run/checkpoints", 2560, params, meta, None)
    before = files_of(tmp_path / "run")
    run = api.start(resume=tmp_path / "run", steps=4096)
    assert files_of(tmp_path / "run") == before  # for a SIGKILL
    if ends in ("cannot start", "damaged"):
        error = OSError(errno.ENOMEM, "none") if ends == "cannot start" else ValueError("torn")
        with monkeypatch.context() as patch:
            patch.setattr(Run, "_begin", lambda *_: (_ for _ in ()).throw(error))
            with pytest.raises((CannotStart, ValueError)):
                next(run)
    elif ends in ("interrupted", "killed"):
        raised = KeyboardInterrupt() if ends == "interrupted" else WorkerFailed("learner", "died")
        with monkeypatch.context() as patch:
            patch.setattr(Worlds, "tell", lambda *_: (_ for _ in ()).throw(raised))
            with pytest.raises(type(raised)):
                list(run)
    run.close()
    assert files_of(tmp_path / "run") == before
    assert go_on(tmp_path / "run", steps=4096)["env_steps"] == 4096
    assert RunDirectory.open(tmp_path / "run").summary() != whole


def test_a_run_without_a_whole_checkpoint_is_refused(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", program()).close()
    with pytest.raises(ValueError, match="expected a whole checkpoint to go on from, got none"):
        api.start(resume=tmp_path / "run")


def test_a_run_that_is_being_written_is_refused(tmp_path: Path) -> None:
    train(program(), tmp_path / "run")
    with (
        RunDirectory.create(tmp_path / "other", program()),
        pytest.raises(ValueError, match="another process writes now"),
    ):
        RunDirectory.open(tmp_path / "other").go_on(program(), on="serial", step=0, changes={})


def test_a_run_begins_with_the_weights_of_another(tmp_path: Path) -> None:
    train(program(), tmp_path / "first")
    params, _ = load_checkpoint(tmp_path / "first/checkpoints/step_2048")
    second = train(
        program(settings=["optimizer.learning_rate=0"]),
        tmp_path / "second",
        init_from=tmp_path / "first",
    )
    assert second["params_sha256"] == checkpoint.params_sha256(params)
    with pytest.raises(ValueError, match=r"parameter 'policy_head.weight': expected \(2, 8\)"):
        api.start(
            program(settings=["algorithm.hidden=8"]),
            out=tmp_path / "third",
            init_from=tmp_path / "first",
        )
    assert not (tmp_path / "third").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_full_disk_costs_a_checkpoint_and_not_the_run(
    on: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "begin" if on == "process" else "add", full)
    summary = train(program(checkpoint_every=512), tmp_path / "run", on)
    assert summary["status"] == "completed" and summary["env_steps"] == 2048
    assert [
        note
        for note in summary["notes"]
        if "no checkpoint at step 512" in note and "No space left" in note
    ]
    assert any(note.startswith("warning") for report in summary["reports"] for note in report.notes)
    assert not list((tmp_path / "run").glob("checkpoints/.*"))


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_a_disk_that_fills_up_amid_the_files_of_a_worker_costs_a_checkpoint(tmp_path: Path) -> None:
    """The workers themselves cannot write: their files may not grow beyond 64 bytes."""
    run = api.start(program(steps=40_000, checkpoint_every=512), out=tmp_path / "run")
    limited = False
    for report in run:
        if not limited and report.env_steps > 1000:
            limited = True
            for worker in descendants():
                if "equipoise " in worker:
                    pid = int(worker.split()[0])
                    resource.prlimit(
                        pid,
                        resource.RLIMIT_FSIZE,
                        (64, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]),
                    )
    assert limited and run.summary is not None and run.summary["status"] == "completed"
    assert [
        note
        for note in run.summary["notes"]
        if "no checkpoint at step" in note and "File too large" in note
    ]
    assert not list((tmp_path / "run").glob("checkpoints/.*"))


def learned(metrics: Path) -> bool:
    """Does a whole line tell of an update? A busy machine may begin to record
    before there is one.
    """
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    return any(json.loads(line)["updates"] for line in lines if line.endswith("\n"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("on", "number", "every"),
    [
        ("serial", signal.SIGINT, "0"),
        ("process", signal.SIGTERM, "0"),
        ("process", signal.SIGINT, "4096"),
    ],
)
def test_a_run_that_is_told_to_leave_is_saved_whole(
    on: str, number: signal.Signals, every: str, tmp_path: Path, deadline: Any
) -> None:
    """As a terminal, ``timeout`` and batch systems do: the whole group is told."""
    out = tmp_path / "run"
    words = [
        "train",
        *arguments("impala", "none", steps="100M", every=every),
        "--on",
        on,
        "--out",
        str(out),
    ]
    process = subprocess.Popen(
        command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        deadline(lambda: learned(out / "metrics.jsonl"), 60.0, "a report of an update")
        os.killpg(process.pid, number)
        text = process.communicate(timeout=60)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else 143), text
    assert f"equipoise resume {out}" in text and "warning" not in text
    summary = RunDirectory.open(out).summary()
    assert summary is not None and summary["status"] == "interrupted"
    assert (
        RunDirectory.open(out).latest_checkpoint(whole=True)
        == out / "checkpoints" / f"step_{summary['env_steps']}"
    )


@pytest.mark.thorough
def test_a_resume_that_fails_leaves_what_it_went_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(program(), tmp_path / "run")

    def fail(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("equipoise.learners.learner.Learner.step", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            go_on(tmp_path / "run", steps=4096)
    assert RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True) is not None
    assert go_on(tmp_path / "run", steps=4096)["env_steps"] == 4096


def test_a_state_that_does_not_fit_ends_the_run_in_processes_too(tmp_path: Path) -> None:
    train(program(), tmp_path / "run")
    newest = RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True)
    assert newest is not None
    manifest = json.loads((newest / "manifest.json").read_text())
    damaged = statefile.dump({"env": {}, "agent": {}})
    (newest / "actor_1.safetensors").write_bytes(damaged)
    manifest["files"]["actor_1.safetensors"] = {
        "sha256": hashlib.sha256(damaged).hexdigest(),
        "size": len(damaged),
    }
    (newest / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(WorkerFailed, match="this run cannot go on from it"):
        go_on(tmp_path / "run", steps=4096, on="process")


def test_a_run_saves_itself_from_time_to_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.run.keeping.CHECKPOINT_S", 0.0)
    seen = []
    with api.start(program(steps=2048), on="serial", out=tmp_path / "run") as run:
        for report in run:
            seen += [p.name for p in (tmp_path / "run/checkpoints").glob("step_*")]
            assert report is not None
    assert len(set(seen)) > 2


# ------------------------------------------------------------------ a checkpoint, torn at any point


def write_one(directory: Path, step: int) -> None:
    place = checkpoint.begin(directory, step)
    files = checkpoint.add(place, checkpoint.WEIGHTS, b"w" * 100)
    files |= checkpoint.add(place, checkpoint.META, b'{"version": 1}')
    files |= checkpoint.add(place, checkpoint.LEARNER, b"l" * 100)
    checkpoint.complete(directory, step, files)


@pytest.mark.few(1)
@pytest.mark.parametrize("same", [False, True])
def test_a_writer_killed_at_any_file_operation_leaves_a_whole_checkpoint(
    same: bool, tmp_path: Path
) -> None:
    """``same``: the step is written for the second time."""
    n, ended = 0, False
    while not ended:
        directory = tmp_path / str(n)
        write_one(directory, 1)
        child = os.fork()
        if child == 0:
            kill_at(n)
            write_one(directory, 1 if same else 2)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        ended = os.waitstatus_to_exitcode(status) == 0
        newest = checkpoint.latest(directory, whole=True)
        assert newest is not None, f"killed at operation {n}: {sorted(directory.rglob('*'))}"
        if ended and not same:
            assert newest.name == "step_2"
        write_one(directory, 3)
        found = checkpoint.latest(directory, whole=True)
        assert found is not None and found.name == "step_3"
        assert not [path for path in directory.iterdir() if path.name.startswith(".")]
        n += 1
    assert n > 12


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_learner_killed_at_any_file_operation_of_a_checkpoint_goes_on(
    on: Any, tmp_path: Path
) -> None:
    """Of its last one. In serial the run is killed with it, and resumed; else the run begins again
    by itself.
    """
    whole = train(doomed(tmp_path), tmp_path / "whole")
    n, killed = 0, True
    while killed:
        out, flag = tmp_path / str(n), tmp_path / f"{n} killed"
        if on == "process":
            summary = train(doomed(tmp_path, at=n, flag=str(flag)), out, on)
            killed = flag.exists()
            assert killed == any(
                "learner was killed by SIGKILL; the run goes on" in note
                for note in summary["notes"]
            )
        else:
            given = [f"algorithm.at={n}", f"algorithm.flag={flag}"]
            words = [
                "train",
                *DOOMED,
                *(word for text in given for word in ("--set", text)),
                "--quiet",
                "--out",
                str(out),
            ]
            code = subprocess.run(
                command(*words), capture_output=True, timeout=240, check=False
            ).returncode
            killed = flag.exists()
            assert code == (-signal.SIGKILL if killed else 0)
            summary = (
                go_on(out) if killed and not done(out) else RunDirectory.open(out).summary() or {}
            )
        assert (
            summary["status"] == "completed" and summary["params_sha256"] == whole["params_sha256"]
        ), f"operation {n}"
        newest = RunDirectory.open(out).latest_checkpoint(whole=True)
        assert newest is not None and newest.name == "step_2048"
        shutil.rmtree(out)
        n += 1
    # of the learner's own: it opens, writes and syncs three files
    assert n > (8 if on == "process" else 25)


DOOMED = [
    "CartPole-v1",
    "--algorithm",
    "tests.runtime.doomed:Doomed",
    "--no-recipe",
    "--on",
    "serial",
    "--actors",
    "2",
]
DOOMED += [
    "--envs-per-actor",
    "4",
    "--unroll",
    "8",
    "--steps",
    "2048",
    "--max-lag",
    "0",
    "--evaluate-episodes",
    "0",
]
DOOMED += ["--checkpoint-every", "1024"]


def doomed(path: Path, **settings: Any) -> Any:
    given = [f"algorithm.{name}={value}" for name, value in settings.items()]
    return program(algorithm="tests.runtime.doomed:Doomed", checkpoint_every=1024, settings=given)


def done(out: Path) -> bool:
    """Was it killed after its last word."""
    return RunDirectory.open(out).summary() is not None


@pytest.mark.parametrize("error", [28, 30])  # ENOSPC, EROFS
def test_a_disk_that_fails_at_any_operation_leaves_a_whole_checkpoint(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, failed = 0, True
    while failed:
        directory = tmp_path / str(n)
        write_one(directory, 1)
        with monkeypatch.context() as patch:
            fail_after(n, error, patch)
            try:
                write_one(directory, 2)
                failed = False
            except OSError:
                pass
        assert checkpoint.latest(directory, whole=True) is not None
        write_one(directory, 3)
        n += 1
    assert n > 12


def fail_after(n: int, error: int, patch: pytest.MonkeyPatch) -> None:
    """From the n-th operation on that changes a disk, all of them fail."""
    left = [n]

    def failing(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(error, os.strerror(error))
            return real(*args, **kwargs)

        return call

    for name in ("open", "write", "fsync", "rename", "mkdir"):
        patch.setattr(os, name, failing(getattr(os, name)))


def test_envs_that_begin_anew_have_the_same_seeds_on_a_machine_that_knows_a_newer_version() -> None:
    schedule, env = SimpleNamespace(seed=7), SimpleNamespace(resume="restart")
    blue: Any = SimpleNamespace(
        program=SimpleNamespace(schedule=schedule),
        spec=SimpleNamespace(env=env),
        resume=SimpleNamespace(version=12),
    )

    def seed(version: int, life: int = 0, row: int = 0) -> int:
        shared: Any = SimpleNamespace(version=version, actors=[SimpleNamespace(next_row=row)])
        return env_seed(blue, shared, 0, life)

    assert seed(12) == seed(15) != 7
    # no episode comes a second time
    assert len({seed(12), seed(12, 1, 0), seed(12, 1, 8), seed(15, 1, 0)}) == 4
