"""The rule of repeats, and runs that always end; with machines and runs that are made up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import pytest


def machine(*speeds: float) -> Callable[[], dict[str, float]]:
    """A probe that finds these speeds in turn."""
    left = iter(speeds)
    return lambda: {"one_core": 1.0, "two_core": next(left)}


def runs(*values: float) -> tuple[list[float], Callable[[], dict[str, Any]]]:
    done: list[float] = []

    def run() -> dict[str, Any]:
        done.append(values[len(done)])
        return {"value": done[-1]}

    return done, run


BEFORE = {"one_core": 1.0, "two_core": 100.0}


@pytest.mark.parametrize("after", [100.0, 95.3, 104.9])
def test_a_steady_run_is_run_once(after: float) -> None:
    done, run = runs(7.0, 8.0)
    found = harness.bracketed(run, BEFORE, probe=machine(after))
    assert done == [7.0]
    assert (found["value"], found["unsteady"], found["dropped"]) == (7.0, False, [])
    assert found["probe_last"] == found["probe_after"] == {"one_core": 1.0, "two_core": after}


@pytest.mark.parametrize("after", [94.0, 106.0])
def test_a_run_whose_probes_differ_by_more_is_run_again(after: float) -> None:
    done, run = runs(7.0, 8.0, 9.0)
    found = harness.bracketed(run, BEFORE, probe=machine(after, after * 1.01))
    assert done == [7.0, 8.0]
    assert (found["value"], found["unsteady"]) == (8.0, False)
    # the probe after the first is the one before the second
    assert found["probe_before"]["two_core"] == after
    assert [d["value"] for d in found["dropped"]] == [7.0]
    assert found["dropped"][0]["moved"] == pytest.approx(0.06, abs=0.005)


def test_the_steadiest_try_counts_where_none_was_steady() -> None:
    done, run = runs(1.0, 2.0, 3.0)
    found = harness.bracketed(run, BEFORE, probe=machine(120.0, 132.0, 180.0), tries=3)
    assert done == [1.0, 2.0, 3.0]
    assert (found["value"], found["unsteady"]) == (2.0, True)
    assert [d["value"] for d in found["dropped"]] == [1.0, 3.0]
    assert found["probe_last"]["two_core"] == 180.0  # the next run begins where the last try ended


def test_a_run_that_fails_is_not_run_again() -> None:
    count = 0

    def run() -> dict[str, Any]:
        nonlocal count
        count += 1
        raise harness.Failed("no figure")

    found = harness.bracketed(run, BEFORE, probe=machine(50.0, 50.0, 50.0))
    assert count == 1
    assert found["failed"] == "no figure" and "value" not in found


def test_moved_does_not_depend_on_the_order() -> None:
    slow, fast = {"two_core": 40.0}, {"two_core": 50.0}
    assert harness.moved(slow, fast) == harness.moved(fast, slow) == pytest.approx(0.25)


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_last_result_of_a_command_counts(tmp_path: Path) -> None:
    code = "print('{\"value\": 1}'); print('{\"value\": 2, \"x\": 3}'); print('[1]'); print('bye')"
    assert harness.run_for_json(command(code), tmp_path / "log", limit_s=60) == {"value": 2, "x": 3}


@pytest.mark.parametrize(
    ("code", "limit_s", "said"),
    [
        ("print('{\"value\": 1}'); raise SystemExit(3)", 60, "exit code 3"),
        ("print('nothing')", 60, "printed no result"),
        ("print('{\"value\": null}')", 60, "printed no result"),
        ("import signal; signal.pause()", 0.2, "ran past its limit"),
    ],
)
def test_a_command_without_a_figure_fails(
    tmp_path: Path, code: str, limit_s: float, said: str
) -> None:
    with pytest.raises(harness.Failed, match=said):
        harness.run_for_json(command(code), tmp_path / "log", limit_s=limit_s)


def test_a_benchmark_that_is_terminated_leaves_no_child(tmp_path: Path) -> None:
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    script = f"""
        import sys
        from pathlib import Path
        from harness import run_for_json
        run_for_json([sys.executable, "-c", {child!r}], Path("log"), limit_s=600)
    """
    path = str(Path(harness.__file__).parent)
    bench = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        log = tmp_path / "log"
        until(lambda: log.exists() and log.read_text().endswith("\n"))
        bench.terminate()
        assert bench.wait(60) == 128 + signal.SIGTERM
        pid = int(log.read_text())
        until(lambda: not Path(f"/proc/{pid}").exists())
    finally:
        bench.kill()
        bench.wait()


def until(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_markdown() -> None:
    assert harness.markdown(["a", "b"], [["x|y", 1]]) == "| a | b |\n|---|--:|\n| x\\|y | 1 |"


def test_the_time_that_a_run_takes_to_end_is_in_no_rate(tmp_path: Path) -> None:
    lines = [
        {"env_steps": 64, "wall_s": 1.0, "timed": False},
        {"env_steps": 128, "wall_s": 1.5, "timed": False},
        {"env_steps": 128, "wall_s": 1.7, "timed": True},
        {"env_steps": 192, "wall_s": 2.0, "timed": False},
    ]

    def rate(*more: dict[str, Any]) -> float:
        text = "".join(json.dumps(one) + "\n" for one in (*lines, *more))
        (tmp_path / "metrics.jsonl").write_text(text)
        return harness.recorded(tmp_path)[1]

    assert rate({"env_steps": 192, "wall_s": 9.0, "timed": False}) == rate() == 128.0
    assert rate({"env_steps": 256, "wall_s": 4.0, "timed": False}) == 64.0  # it has steps
