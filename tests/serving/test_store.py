"""What is told as stored is in the file: after a move, a removal, a lock of another process, a full
disk, a kill.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from equipoise.serving.service import Service
from equipoise.serving.store import Store
from equipoise.serving.trial import Trial
from equipoise.serving.waiting import Turns
from tests.outside.server_door import ids

DECISION: tuple[Any, ...] = (None, None, 0, "p", "v", True, 1.0, "probability", None, 0.0, 1, {})


def stored(store: Store, name: str, within_s: float = 60.0) -> bool:
    """Store an outcome, and wait for what is told."""
    told, event = list[bool](), threading.Event()

    def tell(fine: bool) -> None:
        told.append(fine)
        event.set()

    assert store.put("outcomes", (name, 1.0, None, 0.0), written=tell)
    assert event.wait(within_s)
    return told[0]


def until(true: Any, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_only_this_user_may_read_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "decisions")
    store.close()
    assert stat.S_IMODE((tmp_path / "decisions").stat().st_mode) == 0o600


def test_a_file_that_is_moved_or_removed_has_a_successor(tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    store = Store(path)
    assert stored(store, "a")
    path.rename(tmp_path / "old")
    assert ids(tmp_path / "old") == {"a"}  # without its log, which stayed behind
    assert stored(store, "b") and ids(path) == {"b"}
    path.unlink()
    assert stored(store, "c") and ids(path) == {"c"}
    path.write_bytes(b"")  # as "copytruncate" of logrotate leaves it
    assert stored(store, "d") and ids(path) == {"d"}
    store.close()
    assert ids(tmp_path / "old") == {"a"} and store.lost == 0 and store.alarm is None


@pytest.mark.parametrize("put", [False, True])
def test_a_file_that_is_moved_while_it_is_opened_has_a_successor(
    tmp_path: Path, put: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``put``: another file is at the path from then on."""
    path, state, moves = (
        tmp_path / "decisions",
        Store._state,
        [tmp_path / "first", tmp_path / "second"],
    )

    def moved(self: Store) -> tuple[int, ...]:
        """Every other look comes just after a move: at the end of the opening,
        and after a write.
        """
        if moves and threading.current_thread().name == "decisions" and path.exists():
            path.rename(moves.pop())
            if put:
                Store(path).close()
        return state(self)

    store = Store(path)
    monkeypatch.setattr(Store, "_state", moved)
    assert stored(store, "a") and ids(path) >= {"a"}
    assert not moves and stored(store, "b") and ids(path) >= {"b"} and store.alarm is None
    store.close()


def test_a_file_that_never_stays_is_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the index of a log cannot be seen. The writer takes no core for it."""
    store = Store(tmp_path / "decisions")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_state", lambda self: ())
        began = time.process_time()
        assert not stored(store, "a")
        assert "expected a file that stays where it is" in str(store.alarm)
        assert time.process_time() - began < 5
    assert stored(store, "b") and store.alarm is None and "b" in ids(tmp_path / "decisions")
    store.close()


def lock(path: Path) -> sqlite3.Connection:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


@pytest.mark.parametrize(
    "change",
    [
        "printf 'other bytes %9999s' > decisions",
        "cp kept decisions",
        ": > decisions",
        "rm decisions-wal",
        "rm decisions-shm",
        f'rm decisions-*; {sys.executable} -c "import sqlite3; '
        "sqlite3.connect('decisions').execute('DROP TABLE shadows')\"",
    ],
)
def test_a_file_that_others_write_over_is_seen(tmp_path: Path, change: str) -> None:
    """The file keeps its inode. What is told as stored later can be read, or it is told that
    nothing can be stored.
    """
    path = tmp_path / "decisions"
    store = Store(path)
    assert stored(store, "a")
    subprocess.run("cp decisions kept", shell=True, cwd=tmp_path, check=True)
    assert all(stored(store, f"b{i}") for i in range(300))
    subprocess.run(change, shell=True, cwd=tmp_path, check=True)
    if "bytes" in change:
        assert (
            not stored(store, "c") and store.alarm is not None and "not a database" in store.alarm
        )
        path.unlink()
    assert all(stored(store, f"d{i}") for i in range(300)) and store.alarm is None
    assert {f"d{i}" for i in range(300)} <= ids(path)
    store.close()
    with sqlite3.connect(path) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    file.close()


@pytest.mark.parametrize("seconds", [3.0, pytest.param(15.0, marks=pytest.mark.thorough)])
def test_a_lock_of_another_process_loses_nothing(tmp_path: Path, seconds: float) -> None:
    store = Store(tmp_path / "decisions")
    other = lock(tmp_path / "decisions")
    ends = time.monotonic() + seconds
    timer = threading.Thread(target=lambda: until(lambda: time.monotonic() > ends))
    timer.start()
    for i in range(300):
        store.put("decisions", (f"d{i}", *DECISION))
    told = []
    asked = threading.Thread(target=lambda: told.append(stored(store, "x")))
    asked.start()
    until(lambda: store.alarm is not None)
    timer.join()
    other.execute("COMMIT")
    other.close()
    asked.join(60)
    store.close()
    file = sqlite3.connect(tmp_path / "decisions")
    assert (
        told == [True]
        and ids(tmp_path / "decisions") == {"x"}
        and store.lost == 0
        and store.alarm is None
    )
    assert file.execute("SELECT count(*) FROM decisions").fetchone() == (300,)
    file.close()


def test_a_full_disk_that_is_freed_loses_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcomes are refused meanwhile: their callers are told."""
    full, write = threading.Event(), Store._write
    full.set()

    def written(self: Store, file: Any, groups: Any) -> None:
        if full.is_set():
            raise sqlite3.OperationalError("database or disk is full")
        write(self, file, groups)

    monkeypatch.setattr(Store, "_write", written)
    store = Store(tmp_path / "decisions")
    for i in range(50):
        store.put("decisions", (f"d{i}", *DECISION))
    assert not stored(store, "x")
    assert "disk is full" in str(store.alarm)
    full.clear()
    until(lambda: not store.waiting)
    assert stored(store, "y") and store.lost == 1 and store.alarm is None
    store.close()
    file = sqlite3.connect(tmp_path / "decisions")
    assert file.execute("SELECT count(*) FROM decisions").fetchone() == (50,) and ids(
        tmp_path / "decisions"
    ) == {"y"}
    file.close()


def test_what_was_taken_back_is_not_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "decisions")
    other, told = lock(tmp_path / "decisions"), list[bool]()
    store.put("outcomes", ("first", 1.0, None, 0.0), written=told.append)
    until(lambda: store._claimed)
    late: list[bool] = []
    tell = late.append
    store.put("outcomes", ("late", 1.0, None, 0.0), written=tell)
    assert store.drop(tell)
    other.execute("COMMIT")
    other.close()
    until(lambda: not store.waiting)
    store.close()
    assert told == [True] and not late and ids(tmp_path / "decisions") == {"first"}


def test_the_end_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.serving.store.CLOSE_S", 0.2)
    monkeypatch.setattr("equipoise.serving.store.BUSY_S", 0.2)
    store = Store(tmp_path / "decisions")
    other = lock(tmp_path / "decisions")
    store.put("decisions", ("d", *DECISION))
    store.close()
    assert store.lost == 1 and store.alarm is not None and "are lost" in store.alarm
    other.close()


WRITER = """
import sys, threading
from pathlib import Path
from equipoise.serving.store import Store
store, i = Store(Path(sys.argv[1])), 0
while True:
    done = threading.Event()
    store.put("outcomes", (str(i), 1.0, None, 0.0), written=lambda fine: done.set())
    done.wait()
    print(i, flush=True)
    i += 1
"""


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.thorough)])
def test_nothing_that_was_told_as_stored_is_lost_by_a_kill(
    tmp_path: Path, kills: int, seed: int
) -> None:
    """At random moments; every other time the file was moved before."""
    rng = random.Random(seed)
    for number in range(kills):
        path = tmp_path / f"decisions-{number}"
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        told = [child.stdout.readline() for _ in range(rng.randrange(1, 300))]
        moved = path.with_name(f"moved-{number}")
        if number % 2:
            os.rename(path, moved)
            told += [child.stdout.readline() for _ in range(rng.randrange(1, 30))]
        child.send_signal(signal.SIGKILL)
        told += child.stdout.readlines()
        child.wait()
        child.stdout.close()
        left = {line.strip() for line in told if line.endswith("\n")} - ids(path)
        assert left <= (ids(moved) if number % 2 else set())


def test_a_store_that_is_closed_refuses_what_comes_later(tmp_path: Path) -> None:
    """Its writer is gone: what it took would wait for ever."""
    store = Store(tmp_path / "decisions")
    assert stored(store, "x")
    store.close()
    assert (
        not store.put("outcomes", ("y", 1.0, None, 0.0), written=lambda fine: None)
        and store.waiting == 0
    )
    store.close()


def test_a_caller_whose_loop_is_closed_does_not_end_the_writer(tmp_path: Path) -> None:
    store = Store(tmp_path / "decisions")
    told: list[Any] = []

    class Asked:
        told = Turns()

        def outcome(self, outcomes: Any, written: Any) -> None:
            told.append(written)

    async def asks() -> None:
        task = asyncio.ensure_future(Service.stored(Asked(), []))  # type: ignore[arg-type]
        while not told:
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(asks())
    assert store.put("outcomes", ("x", 1.0, None, 0.0), written=told[0]), (
        "its loop is closed by now"
    )
    assert stored(store, "y") and ids(tmp_path / "decisions") >= {"x", "y"}
    store.close()


def test_a_process_for_the_next_trial_that_starts_at_the_end_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``close`` comes between the start of the process and its being kept."""
    trial, take, started = Trial(), Trial._take, list[Any]()

    def late(self: Trial) -> Any:
        started.append(take(self))
        self.close()
        return started[0]

    monkeypatch.setattr(Trial, "_take", late)
    trial.prepare()
    assert trial._spare is None and started[0].returncode is not None
    assert started[0].stdin.closed and started[0].stdout.closed
