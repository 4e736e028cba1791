"""Runs that are under way together share their handlers, and leave the process as they found it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from equipoise import api
from equipoise.run.run import Run
from equipoise.runtime.session import SESSION, Interrupt, Preempted

HANDLED = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def caught() -> Iterator[list[int]]:
    """The signals that came to a handler of the test's own, which was there before any run."""
    got: list[int] = []

    def handler(number: int, frame: Any) -> None:
        got.append(number)

    before = {number: signal.signal(number, handler) for number in HANDLED}
    yield got
    left = {number: signal.getsignal(number) for number in HANDLED}
    for number, old in before.items():
        signal.signal(number, old)
    assert set(left.values()) == {handler}


def run(path: Path, **options: Any) -> Run:
    given: dict[str, Any] = {
        "steps": 10_000,
        "unroll": 8,
        "actors": 1,
        "envs_per_actor": 2,
        "evaluate_episodes": 0,
    } | options
    return api.start("CartPole-v1", "impala", on="serial", out=path, **given)


@pytest.mark.parametrize("first", [0, 1])
def test_two_runs_in_turn_end_in_any_order(tmp_path: Path, caught: list[int], first: int) -> None:
    runs = [run(tmp_path / "a"), run(tmp_path / "b")]
    for one in (*runs, *runs):
        next(one)
    runs[first].close()
    next(runs[1 - first])
    signal.raise_signal(signal.SIGINT)  # the run that is left answers it
    with pytest.raises(KeyboardInterrupt):
        for _ in runs[1 - first]:
            pass
    assert caught == []
    for one in runs:
        assert one.summary is not None and one.summary["status"] == "interrupted"


def test_a_run_that_raises_beside_another(tmp_path: Path, caught: list[int]) -> None:
    good, bad = run(tmp_path / "a", steps=64), run(tmp_path / "b")
    next(good), next(bad)
    with pytest.raises(ZeroDivisionError):
        cast(Any, bad._reports).throw(ZeroDivisionError())
    assert bad.summary is not None and bad.summary["status"] == "failed"
    next(good)
    for _ in good:
        pass
    signal.raise_signal(signal.SIGINT)
    assert caught == [signal.SIGINT]


def test_a_run_of_another_thread_takes_no_handler(tmp_path: Path, caught: list[int]) -> None:
    failed: list[BaseException] = []

    def whole() -> None:
        try:
            for _ in run(tmp_path / "a", steps=64):
                signal_handlers.add(signal.getsignal(signal.SIGINT))
        except BaseException as error:
            failed.append(error)

    before = signal.getsignal(signal.SIGINT)
    signal_handlers: set[Any] = set()
    thread = threading.Thread(target=whole)
    thread.start()
    thread.join(120)
    assert not thread.is_alive() and not failed and signal_handlers == {before}


def test_the_first_signal_asks_every_run_and_the_next_one_raises(caught: list[int]) -> None:
    with Interrupt() as one, Interrupt() as other:
        signal.raise_signal(signal.SIGTERM)
        for waiting in (one, other):
            with pytest.raises(Preempted):
                waiting.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with Interrupt() as late:  # nobody asked this one
            signal.raise_signal(signal.SIGINT)
            assert late.asked
    signal.raise_signal(signal.SIGINT)
    assert caught == [signal.SIGINT]


def test_a_run_that_another_thread_ends_hands_the_signal_on(caught: list[int]) -> None:
    interrupt = Interrupt()
    interrupt.__enter__()
    ending = threading.Thread(target=interrupt.__exit__)
    ending.start()
    ending.join()
    assert caught == []
    signal.raise_signal(signal.SIGTERM)
    assert caught == [signal.SIGTERM]


def test_a_handler_that_was_set_meanwhile_stays(caught: list[int]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    signal.signal(signal.SIGINT, before)
    assert not SESSION._before


SCRIPT = """
import sys
from pathlib import Path
import equipoise as eq
kept = []
if __name__ == "__main__":
    for name in ("a", "b"):
        run = eq.start("CartPole-v1", "impala", on=sys.argv[1], out=Path(sys.argv[2]) / name, steps=10_000_000, actors=1,
                       envs_per_actor=2, unroll=8, evaluate_episodes=0)
        kept.append(run)
        next(run)
    class Bad:
        def close_unused(self):
            raise RuntimeError("it would not close")
    from equipoise.runtime.session import SESSION
    kept.append(Bad())
    SESSION.close_at_exit(kept[-1])
"""  # noqa: E501


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_the_end_of_the_program_closes_all_runs(tmp_path: Path, on: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), on, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "RuntimeError: it would not close" in ended.stderr, ended.stderr
    for name in ("a", "b"):
        assert json.loads((tmp_path / name / "summary.json").read_text())["status"] == "interrupted"
