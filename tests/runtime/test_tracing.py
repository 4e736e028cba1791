"""The last parts of workers, from the ring of each to what Perfetto reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise import api, cli, tracing
from equipoise import clock as clocks
from equipoise.tracing import FOLDER, NEAR, Trace, TracedClock, chrome, read, ring_of

TINY: dict[str, Any] = {"actors": 1, "envs_per_actor": 4, "evaluate_episodes": 0, "recipe": False}
PARTS = ("env", "reset", "act")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A time that the test moves."""
    at = [100.0]
    for module in (clocks, tracing):
        monkeypatch.setattr(module, "perf_counter", lambda: at[0])
    return at


def traced(folder: Path, for_s: float = 1.0) -> TracedClock:
    counts = np.zeros((2, 3))
    return TracedClock(
        PARTS,
        *counts,
        file=tracing.ring_of(folder, "actor 0"),
        title="actor 0",
        kind="actor",
        for_s=for_s,
    )


def ticks(clock: TracedClock, now: list[float], count: int) -> list[list[float]]:
    """So many ticks of an env's step, within which it is reset, and an act -> the parts that were
    done, as rows.
    """
    done = []
    for _ in range(count):
        now[0] += 1.0
        clock.begin()
        began = now[0]
        now[0] += 0.25
        clock.add("reset", 0.125)
        done.append([1, now[0] - 0.125, now[0]])
        clock.lap("env")
        done.append([0, began, now[0]])
        now[0] += 0.5
        clock.lap("act")
        done.append([2, now[0] - 0.5, now[0]])
    return done


def test_a_ring_has_the_last_parts_whole_and_nested_ones_within_theirs(
    now: list[float], tmp_path: Path
) -> None:
    done = ticks(traced(tmp_path), now, 5)
    (found,) = read(tmp_path)
    assert (found.title, found.kind, found.parts) == ("actor 0", "actor", PARTS)
    assert found.rows.tolist() == done


def test_a_full_ring_has_the_newest_and_a_successor_goes_on_in_it(
    now: list[float], tmp_path: Path
) -> None:
    size = 100
    done = ticks(traced(tmp_path, size / tracing.PER_SECOND), now, 40)
    done += ticks(traced(tmp_path, size / tracing.PER_SECOND), now, 3)
    (found,) = read(tmp_path)
    assert found.rows.tolist() == done[-size + NEAR :]


def test_a_ring_of_another_worker_begins_anew(now: list[float], tmp_path: Path) -> None:
    ticks(traced(tmp_path, 0.5), now, 40)
    done = ticks(traced(tmp_path, 0.25), now, 1)
    assert read(tmp_path)[0].rows.tolist() == done


def test_what_perfetto_reads_is_of_the_last_seconds() -> None:
    rows = np.array([[0, 1.0, 2.0], [1, 3.0, 4.5], [2, 4.5, 5.0]])
    made = chrome(
        [Trace("learner", "learner", PARTS, rows), Trace("idle", "actor", PARTS, rows[:0])], 1.0
    )
    names = [event["args"]["name"] for event in made["traceEvents"] if event["ph"] == "M"]
    assert names == ["equipoise", "learner"]
    assert [(e["name"], e["ts"], e["dur"]) for e in made["traceEvents"] if e["ph"] == "X"] == [
        ("reset", -1e6, 1.5e6),
        ("act", 0.5e6, 0.5e6),
    ]


@pytest.mark.parametrize(
    "content", [b"", b"{}".ljust(5000, b"\0"), b"x" * 9000, b'{"title":"a"}'.ljust(5000, b"\0")]
)
def test_a_file_that_is_no_ring_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "actor_0.ring").write_bytes(content)
    with pytest.raises(
        ValueError,
        match=r"actor_0\.ring: expected the ring of a worker's last parts, got another file",
    ):
        read(tmp_path)


def asked(*words: str | Path) -> tuple[int, str]:
    found = CliRunner().invoke(cli.app, ["trace", *map(str, words)])
    return found.exit_code, found.output


@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_run_is_traced_and_drawn(on: Any, tmp_path: Path) -> None:
    run = api.start(
        "CartPole-v1",
        "ppo",
        on=on,
        out=tmp_path / "run",
        steps=512,
        settings=["placement.trace_s=5"],
        **TINY,
    )
    *_, last = list(run)
    code, said = asked(tmp_path / "run", "--seconds", "100")
    assert code == 0 and "ui.perfetto.dev" in said
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    titles = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    assert set(titles.values()) == {"actor 0", "learner"}
    drawn = [
        (titles[event["tid"]], event["name"], event["dur"])
        for event in events
        if event["ph"] == "X"
    ]
    for worker, part, times in (("actor 0", "env", 100), ("learner", "backward", 1)):
        counted, shown = (
            last.balance[worker].counts[part],
            sum(one[:2] == (worker, part) for one in drawn),
        )
        assert times <= counted <= shown
        assert shown == counted if on == "serial" else shown <= counted + 64, (
            "processes go on for a moment after the last report"
        )
    assert all(duration >= 0 for *_, duration in drawn)


@pytest.mark.thorough
def test_the_last_seconds_of_a_killed_worker_are_there(tmp_path: Path) -> None:
    code = (
        "from tests.runtime.test_tracing import traced\nfrom pathlib import Path\nimport os, "
        "signal\n"
    )
    code += (
        f"clock = traced(Path({str(tmp_path)!r}))\nclock.begin(); "
        "clock.lap('act')\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env=os.environ).returncode
        == -signal.SIGKILL
    )
    assert len(read(tmp_path)[0].rows) == 1


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    assert asked(tmp_path / "none") == (
        2,
        f"equipoise trace: {tmp_path / 'none'}: expected a run directory, got none "
        "[equipoise help runs]\n",
    )
    list(
        api.start(
            "CartPole-v1",
            "ppo",
            on="serial",
            out=tmp_path / "run",
            steps=64,
            unroll=4,
            batch=4,
            **TINY,
        )
    )
    code, said = asked(tmp_path / "run")
    assert (
        code == 2
        and "expected a run with --set placement.trace_s=10" in said
        and said.count("\n") == 1
    )
    code, said = asked(tmp_path / "run", "--seconds", "-1")
    assert code == 2 and "--seconds: expected more than 0, got -1" in said
    records = tmp_path / "run" / "metrics.jsonl"
    (tmp_path / "run" / FOLDER).mkdir()
    clock = TracedClock(
        ("act",),
        np.zeros(1),
        np.zeros(1),
        file=ring_of(tmp_path / "run" / FOLDER, "a"),
        title="a",
        kind="a",
        for_s=1e-6,
    )
    clock.begin()
    clock.lap("act")
    before = records.read_bytes()
    code, said = asked(tmp_path / "run", "--out", str(records))
    assert code == 2 and "expected a new file or an earlier trace, got another, which stays" in said
    assert records.read_bytes() == before
    for _ in range(2):  # the second replaces the first
        assert asked(tmp_path / "run", "--out", str(tmp_path / "trace.json"))[0] == 0
