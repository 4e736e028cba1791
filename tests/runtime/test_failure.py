"""An actor that fails is replaced; what fails again and again ends the run, which says why; nothing
is left behind.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise import api
from equipoise.envs.failures.capsule import EnvFailed, read
from equipoise.envs.failures.reproduce import reproduce
from equipoise.errors import WorkerFailed
from equipoise.programs.fields import alter
from equipoise.record.checkpoint import load as load_checkpoint
from tests.conftest import descendants, segments
from tests.runtime import failing as failures
from tests.runtime.killing import killing
from tests.runtime.ruling import Doomed, program


def failing(how: str, on: Any, path: Path, *, after: int = 3, **options: Any) -> Any:
    """One of eight envs fails ``after`` steps of its process; an unroll takes 8."""
    given = {"steps": 10_000_000, "actors": 2, **options}
    return api.start(
        "tests.runtime.failing:Failing",
        "impala",
        on=on,
        out=path,
        env_kwargs={"how": how, "after": after},
        envs_per_actor=4,
        unroll=8,
        evaluate_episodes=0,
        **given,
    )


def exhaust(run: Any) -> None:
    for _ in run:
        pass


def said_in(run: Any, *said: str) -> str:
    """The first note with all of these words. The run is left then, as other workers go on
    meanwhile.
    """
    for report in run:
        if any(all(re.search(one, note) for one in said) for note in report.notes):
            break
    run.close()
    found = [note for note in run.summary["notes"] if all(re.search(one, note) for one in said)]
    assert found, run.summary["notes"]
    return found[0]


def test_an_exception_in_a_worker_arrives_with_its_traceback(tmp_path: Path) -> None:
    run = failing("raise", "process", tmp_path / "run", after=0)
    with pytest.raises(
        WorkerFailed, match="failed 3 times in a row .*the reactor is leaking"
    ) as caught:
        exhaust(run)
    assert caught.value.worker == "actor 0"
    assert "failing.py" in caught.value.traceback_text
    assert run.summary["status"] == "failed"


@pytest.mark.thorough
def test_a_run_that_fails_leaves_no_memory_open_while_its_error_is_kept(tmp_path: Path) -> None:
    gc.collect()
    before = segments()
    gc.disable()
    try:
        with pytest.raises(WorkerFailed) as caught:
            exhaust(failing("exit", "process", tmp_path / "run", after=0))
        assert caught.value.__traceback__ is not None and segments() <= before
    finally:
        gc.enable()


@pytest.mark.thorough
def test_a_server_that_ends_while_it_imports_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    """A module that the server imports ends it, as a lack of memory might."""
    (tmp_path / "ending.py").write_text("import os\nos._exit(9)\n")
    code = "from equipoise import cli\nfrom equipoise.runtime.process import forkserver\n"
    code += "forkserver.PRELOAD.append('ending')\ncli.main()"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "train",
            "CartPole-v1",
            "--steps",
            "1000",
            "--out",
            str(tmp_path / "run"),
        ],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert (
        "equipoise train: learner could not be started: the server that it is forked from ended 3 "
        "times" in done.stderr
    )
    assert "ending" in done.stderr and "Traceback" not in done.stderr


def test_an_exception_in_serial_is_the_exception(tmp_path: Path) -> None:
    with pytest.raises(EnvFailed, match="the reactor is leaking") as caught:
        exhaust(failing("raise", "serial", tmp_path / "run", after=0))
    assert "failing.py" in "".join(traceback.format_exception(caught.value))


@pytest.mark.few(1)
@pytest.mark.parametrize("on", ["serial", "process"])
def test_an_exception_now_and_then_costs_an_episode(on: Any, tmp_path: Path) -> None:
    # in lockstep each actor does its half
    run = failing("raise", on, tmp_path / "run", after=100, steps=8_000, max_lag=0)
    exhaust(run)
    assert run.summary["status"] == "completed" and run.summary["env_steps"] == 8_000
    counted = run.summary["failures"]
    assert counted["actor 0"]["aborted"] == 9 and counted["actor 1"]["aborted"] == 0, counted
    # of the last record
    assert 0 < run._files.metrics()[-1]["aborted"] <= counted["actor 0"]["aborted"]
    paths = sorted((run.directory / "capsules").iterdir())
    assert len(paths) == counted["actor 0"]["aborted"] and all(
        reproduce(read(path)).same for path in paths
    )


@pytest.mark.parametrize(
    ("how", "policy", "on"),
    [
        ("nan", "drop", "serial"),
        ("reward nan", "drop", "process"),
        ("inf", "clamp", "serial"),
        ("shape", "stop", "serial"),
    ],
)
def test_what_is_not_a_number_never_reaches_a_weight(
    how: str, policy: str, on: Any, tmp_path: Path
) -> None:
    run = faulty(how, on, tmp_path / "run", on_nonfinite=policy)
    exhaust(run)
    assert all(torch.isfinite(p).all() for p in run_params(run).values())
    counted = run.summary["failures"]["actor 0"]
    assert counted["clamped" if policy == "clamp" else "aborted"] > 5
    if policy != "clamp":
        assert run.summary["return_mean"] == 30, "only whole episodes count"


@pytest.mark.parametrize("on", ["serial", "process"])
@pytest.mark.thorough
def test_by_default_it_ends_the_run_and_says_where(on: Any, tmp_path: Path) -> None:
    run = faulty("nan", on, tmp_path / "run")
    said = r"Faulty.*, stream \d: obs: expected a finite number, got nan at \[1\]"
    with pytest.raises(RuntimeError, match=said) as caught:
        exhaust(run)
    (path, *_) = sorted((run.directory / "capsules").iterdir())
    text = "".join(traceback.format_exception(caught.value))
    assert (
        f"capsule: {path}" in text
        and reproduce(read(path)).same
        and run.summary["status"] == "failed"
    )


def faulty(how: str, on: Any, path: Path, **options: Any) -> Any:
    kwargs = {"how": how, "every": 50}
    return api.start(
        "tests.envs.faulty:Faulty",
        "impala",
        on=on,
        out=path,
        env_kwargs=kwargs,
        actors=1,
        envs_per_actor=4,
        unroll=16,
        steps=3_000,
        evaluate_episodes=0,
        **options,
    )


def run_params(run: Any) -> Any:
    return load_checkpoint(run._files.latest_checkpoint())[0]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("how", "settings", "said"),
    [
        ("exit", ["placement.give_up_s=1000"], "exited with code 7, 3 times in a row"),
        ("abort", ["placement.give_up_s=1000"], "was killed by SIGABRT, 3 times in a row"),
        (
            "kill",
            ["placement.give_up_s=2"],
            r"was killed by SIGKILL, \d+ times in a row, and nothing was learned for \d+ s",
        ),
    ],
)
@pytest.mark.thorough
def test_a_worker_that_dies_again_and_again_ends_the_run(
    how: str, settings: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkerFailed, match=f"actor 0 {said}"):
        exhaust(failing(how, "process", tmp_path / "run", settings=settings, actors=1))


@pytest.mark.thorough
@pytest.mark.parametrize("worker", ["actor 0", "learner"])
def test_a_worker_that_is_killed_from_outside_again_and_again_does_not_end_the_run(
    worker: str, tmp_path: Path
) -> None:
    """Five times before it has done anything, then it is left alone."""
    run: Any = api.start(
        "CartPole-v1",
        "impala",
        out=tmp_path / "run",
        steps=4000,
        evaluate_episodes=0,
        recipe=False,
        max_lag=0,
    )
    killed: set[int] = set()
    with killing(worker, killed, times=5):
        exhaust(run)
    assert run.summary["status"] == "completed" and len(killed) == 5
    said = (
        "replaced, for the 5th time"
        if worker == "actor 0"
        else "learner was killed by SIGKILL; the run goes on from step"
    )
    assert [note for note in run.summary["notes"] if said in note]


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_a_worker_that_gets_on_is_replaced(max_lag: int | None, tmp_path: Path) -> None:
    said = "actor 0 was killed by SIGKILL; replaced, for the 2nd time"
    if max_lag == 0:  # in lockstep a run can end only by what its replacements do
        run = failing("kill", "process", tmp_path / "run", after=100, steps=10_000, max_lag=0)
        exhaust(run)
        assert run.summary["status"] == "completed" and [
            note for note in run.summary["notes"] if said in note
        ]
    else:
        said_in(failing("kill", "process", tmp_path / "run", after=100, max_lag=max_lag), said)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "said"), [("hang", r"time\.sleep|failing\.py"), ("stop", "does not answer signals")]
)
def test_a_worker_that_hangs_is_replaced_and_says_where(
    how: str, said: str, tmp_path: Path
) -> None:
    run = failing(how, "process", tmp_path / "run", after=100, settings=["placement.deadline_s=2"])
    said_in(run, "actor 0 did nothing for", said)


@pytest.mark.thorough
def test_a_worker_in_an_endless_loop_is_replaced_and_says_where(tmp_path: Path) -> None:
    run = failing(
        "loop", "process", tmp_path / "run", after=100, settings=["placement.deadline_s=1"]
    )
    said_in(
        run, r"actor 0 computed for \d+ s without an end of its tick", r"failing\.py", "compute"
    )


@pytest.mark.thorough
def test_a_worker_that_computes_for_long_does_not_hang(tmp_path: Path) -> None:
    """Its step takes three times ``deadline_s`` on a core, and longer where others want the core,
    too.
    """
    settings = [f"placement.deadline_s={failures.COMPUTES_S / 3}"]
    run = failing(
        "compute", "process", tmp_path / "run", after=100, steps=1500, settings=settings, max_lag=1
    )
    exhaust(run)
    assert run.summary["status"] == "completed" and not [
        n for n in run.summary["notes"] if "replaced" in n
    ]


@pytest.mark.thorough
def test_the_ring_begins_again_from_the_newest_checkpoint_when_the_learner_dies(
    tmp_path: Path,
) -> None:
    """Killed once, it ends where a run ends that nobody killed: in lockstep, to the bit."""

    def train(name: str, kill: bool) -> Any:
        run = api.start(
            "CartPole-v1",
            "impala",
            out=tmp_path / name,
            actors=2,
            envs_per_actor=4,
            unroll=8,
            max_lag=0,
            steps=40_000,
            checkpoint_every=1024,
            evaluate_episodes=0,
            recipe=False,
        )
        for report in run:
            if kill and report.env_steps > 4000:
                learner = next(d for d in descendants() if "equipoise learner" in d)
                os.kill(int(learner.split()[0]), signal.SIGKILL)
                kill = False
        return run.summary

    killed, whole = train("killed", True), train("whole", False)
    assert [
        note
        for note in killed["notes"]
        if "learner was killed by SIGKILL; the run goes on from step" in note
    ]
    assert killed["params_sha256"] == whole["params_sha256"]
    assert killed["status"] == "completed" and killed["episodes"] == whole["episodes"]


@pytest.mark.thorough
def test_a_learner_that_fails_at_one_version_for_ever_ends_the_run(tmp_path: Path) -> None:
    """Each time it gets past the checkpoint that it began from, and no further than before."""
    # 10 updates
    made = alter(program(algorithm=Doomed(at=25), steps=200_000), checkpoint_every=800)
    run = api.start(made, out=tmp_path / "run")
    with pytest.raises(WorkerFailed, match="no further than this"):
        exhaust(run)
    assert run.summary is not None and run.summary["status"] == "failed"


def test_an_env_that_cannot_be_made_names_its_error(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="broken_at_birth could not be made: RuntimeError: no such world"
    ):
        api.start("tests.runtime.failing:broken_at_birth", "impala", out=tmp_path / "run")


def test_leaving_the_loop_early_ends_everything(tmp_path: Path) -> None:
    run = api.start("CartPole-v1", "impala", out=tmp_path / "run", steps=10_000_000)
    for _ in run:
        break
    run.close()
    assert run.summary is not None and run.summary["status"] == "interrupted"
    assert api.load(run.directory).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stop", "hang"])
def test_a_worker_that_does_not_answer_is_killed_at_the_end(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.run.run.LAST_CUT_S", 1.0)  # it never holds still
    run = failing(how, "process", tmp_path / "run", after=100)
    next(run)
    end = time.monotonic() + 3
    while time.monotonic() < end:  # until the other actors have filled what they may
        next(run)
    run.close()


SCRIPT = """
    import sys, time
    import equipoise as eq
    run = eq.start("CartPole-v1", "impala", out=sys.argv[1], steps=10**9, max_lag=1)
    for report in run:
        print(report.env_steps, flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A running script without a main guard, as a person would write it; it has reported once."""
    made = start(tmp_path)
    try:
        assert made.stdout is not None and made.stdout.readline()
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(made.pid, signal.SIGKILL)
        made.communicate()


def start(path: Path) -> subprocess.Popen[str]:
    script = path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    return subprocess.Popen(
        [sys.executable, str(script), str(path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_ctrl_c_saves_and_leaves_nothing(script: Any, tmp_path: Path, deadline: Any) -> None:
    os.killpg(script.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, errors = script.communicate(timeout=60)
    assert script.returncode == -signal.SIGINT, errors
    assert (tmp_path / "run" / "summary.json").exists()
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    deadline(lambda: not [d for d in descendants() if "equipoise" in d], what="all workers to end")


def test_a_killed_driver_leaves_no_worker(script: Any, deadline: Any) -> None:
    script.kill()
    script.communicate()
    deadline(
        lambda: not [d for d in descendants() if "equipoise" in d or "forkserver" in d],
        seconds=2,
        what="all workers to end",
    )


@pytest.mark.thorough
def test_workers_carry_names(tmp_path: Path, deadline: Any) -> None:
    run = api.start("CartPole-v1", "impala", out=tmp_path / "run", steps=10_000_000)
    next(run)
    wanted = {"equipoise learner", "equipoise actor 0", "equipoise actor 1"}
    deadline(lambda: wanted <= {d.split(" ", 1)[1] for d in descendants()}, 60.0, "all workers")
    run.close()
