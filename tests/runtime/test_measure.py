"""Whole runs that are measured and thrown away: they leave nothing, however they end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise import api
from equipoise.errors import WorkerFailed
from equipoise.private.forkserver import pid
from equipoise.programs.fields import alter
from equipoise.runtime.process import forkserver
from equipoise.runtime.session import Interrupt
from equipoise.tuning import choices, runs
from equipoise.tuning.race import Race
from tests.conftest import children, descendants
from tests.runtime.resuming import command
from tests.runtime.ruling import program


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_measurement_that_is_told_to_leave_leaves_nothing(
    number: signal.Signals, code: int, tmp_path: Path, deadline: Any
) -> None:
    """As before a run has begun: no directory. ``nothing_left_behind`` looks for processes and
    segments.
    """
    out = tmp_path / "run"
    # tmp_path may be too long for sockets
    temporary = Path(tempfile.mkdtemp(prefix="equipoise-test-"))
    words = [
        "train",
        "CartPole-v1",
        "--algorithm",
        "impala",
        "--inference",
        "auto",
        "--actors",
        "1",
        "--out",
        str(out),
    ]
    process = subprocess.Popen(
        command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    try:
        deadline(
            lambda: (
                any(temporary.glob("equipoise-measure-*"))
                and any(d.endswith("equipoise learner") for d in descendants())
            ),
            120.0,
            "the measurement",
        )
        os.killpg(process.pid, number)  # as a terminal, ``timeout`` and batch systems do
        text = process.communicate(timeout=60)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        left = [
            path.name for path in temporary.iterdir() if not path.name.startswith("torch")
        ]  # which keeps a cache of its own
        shutil.rmtree(temporary)
    assert (
        process.returncode == code
        and "Traceback" not in text
        and text.endswith("equipoise train: interrupted\n")
    ), text
    assert not left and not out.exists()


@pytest.mark.parametrize(
    ("max_lag", "rates", "inference"),
    [
        (0, {}, "local"),
        (1, {"local": 2.0, "central": 1.0}, "local"),
        (1, {"local": 1.0, "central": 2.0}, "central"),
    ],
)
def test_a_server_of_env_workers_lives_on_only_where_they_come(
    max_lag: int, rates: dict[str, float], inference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        runs, "rate", lambda blue, *_, **__: rates[blue.program.placement.inference]
    )
    others = forkserver.pids() - {pid(forkserver.EnvProcess.server)}
    forkserver.prepare(central=True)  # as the command line does, before it knows
    server = pid(forkserver.EnvProcess.server)
    assert server in children(os.getpid())
    made, _ = choices.settled(alter(program(max_lag=max_lag), inference="auto"), on="process")
    assert made.placement.inference == inference
    assert (server in children(os.getpid())) == (inference == "central")
    assert others <= forkserver.pids() <= set(children(os.getpid()))
    forkserver.prepare(central=True)
    assert pid(forkserver.EnvProcess.server) in children(os.getpid())


@pytest.mark.parametrize("gone", ["local", "central"])
def test_what_failed_is_not_taken_where_the_other_came_to_nothing_in_time(gone: str) -> None:
    failed = WorkerFailed("learner", "was killed", "")
    other = "central" if gone == "local" else "local"
    race = Race(rates={gone: [], other: [0.0, 0.0]}, failed={gone: failed})
    choice = choices.taken(race, ["local", "central"])
    assert choice.value == other and choice.why.startswith(f"{gone} failed: ")


@pytest.mark.parametrize(
    ("rates", "taken"),
    [
        ({1: 100.0, 2: 104.0}, 1),
        ({1: 100.0, 2: 106.0}, 2),
        ({1: 100.0, 2: 150.0, 4: 155.0}, 2),
        ({1: 100.0, 2: 90.0, 4: 130.0}, 4),
        ({1: 0.0, 2: 90.0}, 2),
    ],
)
def test_more_learners_are_taken_where_they_pay(rates: dict[Any, float], taken: int) -> None:
    choice = choices.taken(
        Race(rates={str(value): [0.0, rate] for value, rate in rates.items()}), list(rates)
    )
    assert choice.value == taken and choice.measured == {
        str(value): rate for value, rate in rates.items() if rate
    }


@pytest.mark.parametrize(
    ("cores", "actors", "max_lag", "on", "values", "why"),
    [
        (4, 4, 1, "process", [1, 2, 4], ""),
        (3, 4, 1, "process", [1, 2], ""),
        (4, 3, 1, "process", [1], "4 cannot be: placement.learners: expected a divisor of"),
        (1, 4, 1, "process", [1], "no cores for more"),
        (4, 4, 0, "process", [1], "max_lag=0"),
        (4, 4, 1, "serial", [1], "one thread"),
    ],
)
def test_only_numbers_of_learners_that_work_are_measured(
    cores: int,
    actors: int,
    max_lag: int,
    on: str,
    values: list[int],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choices, "usable", lambda: cores)
    made = program(actors=actors, max_lag=max_lag)
    said = choices._fixed(made, on)
    found, problem = ([1], said) if said else choices.candidates(made, "learners", on)
    assert found == values and why in problem


class Turns:
    """A stand-in for a run whose learner has the only core for 3 s after each second of acting, at
    100 steps/s.
    """

    def __init__(self, blue: Any) -> None:
        self.at, self.now = 0.0, SimpleNamespace(version=0, ticks=(0,))

    def poll(self, seconds: float) -> None:
        self.at += seconds
        cycle, within = divmod(self.at + 1e-9, 4.0)
        self.now = SimpleNamespace(
            version=int(cycle), ticks=(int(cycle) * 100 + round(min(within, 1.0) * 100),)
        )

    def stats(self) -> SimpleNamespace:
        return self.now

    def stop(self) -> None: ...


@pytest.mark.parametrize("seconds", [0.5, 1.5, 6.0])
def test_a_rate_is_over_whole_updates(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment of it would say anything from 0 to 100."""
    run = Turns(None)
    monkeypatch.setattr(runs, "ProcessRuntime", lambda blue: run)
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: run.at))
    blue: Any = SimpleNamespace(program=SimpleNamespace(placement=SimpleNamespace(group_envs=1)))
    assert runs.rate(blue, Interrupt(), seconds, until=1e6) == pytest.approx(25.0, rel=0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which signals are ignored")
def test_a_server_that_still_imports_does_not_answer_signals_to_the_whole_group() -> None:
    forkserver.release()
    forkserver.prepare(central=True)
    status = Path(f"/proc/{pid(forkserver.EnvProcess.server)}/status").read_text()
    ignored = int(
        next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        assert ignored & 1 << number - 1
        assert signal.getsignal(number) is not signal.SIG_IGN


@pytest.mark.parametrize(
    "options", [{"inference_workers": 3}, {"settings": ["placement.inference_workers=3"]}]
)
def test_settings_of_central_inference_are_refused_as_central_inference_refuses_them(
    options: Any,
) -> None:
    given: dict[str, Any] = {"actors": 2, "max_lag": 1, "recipe": False}
    with pytest.raises(
        ValueError, match="inference_workers: expected at most 2, as many as actors"
    ):
        api.program("CartPole-v1", "impala", inference="auto", **given, **options)
    place = api.program("CartPole-v1", "impala", inference="auto", **given).placement
    assert place.inference == "central" and "inference" in place.auto
