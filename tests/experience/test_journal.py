"""The rows of a replay on disk: what comes back, what is written, and what may be overwritten
meanwhile.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.experience.replay import journal
from equipoise.experience.replay.replay import Replay
from equipoise.types import Batch
from equipoise.types import ReplaySettings as Settings
from tests.experience.history import History
from tests.experience.saving import content, end, load, members, on_disk, save
from tests.experience.test_replay import (
    ACTORS,
    BLOCK,
    CODED,
    ROUND,
    STACKS,
    UNROLL,
    Writers,
    replay,
)

ROUNDS = 9  # that are held


def made_in(
    folder: Path,
    history: History,
    *,
    selector: Any = "prioritized",
    file: str = "",
    codec: str = "",
    **options: Any,
) -> Replay:
    settings = Settings(
        capacity=ROUND * ROUNDS,
        starts_at=ROUND * 2,
        updates=2,
        selector=selector,
        file=file,
        codec=codec,
    )
    return replay(history, settings, folder=folder, **options)


def learn(made: Replay, writers: Writers, rounds: int, *, gaps: bool = False) -> None:
    """So many rounds more, with their updates; ``gaps``: actors that are replaced."""
    until, draw = made._rounds.taken + rounds, np.random.default_rng(rounds)
    while made._rounds.taken < until or made._rounds.owed:
        if not made._rounds.owed:
            if gaps and draw.random() < 0.3:
                writers.skip(int(draw.integers(ACTORS)))
            for actor in draw.permutation(ACTORS):
                writers.write(int(actor))
        if (batch := made.sample(5)) is not None:
            made.learned(batch.keys, np.abs(batch.data.reward[0].numpy()))
            made.finish(batch.keys)


@pytest.mark.parametrize("rounds", [ROUNDS // 2, 2 * ROUNDS + 1])
@pytest.mark.parametrize("stack", ["black", "repeated"])
def test_every_window_of_a_loaded_replay_is_whole(stack: str, rounds: int, tmp_path: Path) -> None:
    """The oldest, too, whose frames begin before it."""
    history = History(streams=BLOCK * ACTORS, rows=400, stack=STACKS[stack], longest=12)
    made = made_in(tmp_path, history)
    learn(made, Writers(history, made), rounds)
    other = load(made_in(tmp_path, history, saved=made._rounds.inbox.state()), save(made), tmp_path)
    places = members(other)
    keys = np.stack([places, other.ring.row(places)], 1)
    history.prove(
        Batch(data=other.ring.gather(places), keys=keys, weight=torch.ones(len(places)), targets={})
    )


CASES = [  # selector, window, stack, storage, max_lag, rounds before the save
    ("uniform", 1, "vectors", "memory", 0, 3),
    ("prioritized", 1, "vectors", "memory", 0, ROUNDS),
    ("prioritized", 1, "vectors", "mmap", None, 2 * ROUNDS + 2),
    ("uniform", 1, "black", "mmap", 0, 2 * ROUNDS + 2),
    ("prioritized", UNROLL, "repeated", "memory", None, 2 * ROUNDS + 2),
    ("prioritized", 5, "black", "memory", 0, ROUNDS + 1),
    ("uniform", UNROLL, "vectors", "memory", 1, 2 * ROUNDS),
    ("prioritized", UNROLL, "black", "mmap", 0, 4),
    ("uniform", 5, "black", "delta", 0, 2 * ROUNDS + 1),
    ("prioritized", UNROLL, "maps", "zstd", None, 2 * ROUNDS + 2),
    ("uniform", 1, "repeated", "lz4", 1, ROUNDS + 1),
]


@pytest.mark.parametrize(("selector", "window", "stack", "storage", "max_lag", "rounds"), CASES)
def test_a_loaded_replay_goes_on_as_the_other_does(
    selector: str,
    window: int,
    stack: str,
    storage: str,
    max_lag: int | None,
    rounds: int,
    tmp_path: Path,
) -> None:
    recurrent = window == UNROLL
    history = History(
        streams=BLOCK * ACTORS,
        rows=400,
        stack=STACKS.get(stack),
        maps=stack == "maps",
        recurrent=recurrent,
    )
    options: Any = {
        "selector": selector,
        "window": window,
        "max_lag": max_lag,
        "codec": storage if storage in CODED else "",
    }
    options["file"] = str(tmp_path / "map") if storage == "mmap" else ""
    made = made_in(tmp_path / "rows", history, **options)
    writers = Writers(history, made)
    learn(made, writers, rounds // 2, gaps=stack == "vectors")
    save(made)
    learn(made, writers, rounds - rounds // 2, gaps=stack == "vectors")
    other = made_in(tmp_path / "rows", history, **options, saved=made._rounds.inbox.state())
    load(other, save(made), tmp_path / "rows")
    assert content(other) == content(made)
    twins = Writers(history, other)
    twins.next = list(writers.next)
    for _ in range(ROUNDS):
        for actor in range(ACTORS):
            assert writers.write(actor) == twins.write(actor)
        while (batch := made.sample(5)) is not None:
            twin = other.sample(5)
            assert twin is not None
            history.prove(twin)
            np.testing.assert_array_equal(batch.keys, twin.keys)
            torch.testing.assert_close(batch.weight, twin.weight, rtol=0, atol=0)
            for name in ("obs", "action", "behaviour", "version", "state", "context"):
                torch.testing.assert_close(
                    getattr(batch.data, name), getattr(twin.data, name), rtol=0, atol=0
                )
            for one in (made, other):
                one.learned(batch.keys, np.abs(batch.data.reward[0].numpy()))
                one.finish(batch.keys)
    assert content(other) == content(made)


def test_every_row_is_written_once(tmp_path: Path) -> None:
    history = History(streams=BLOCK * ACTORS, rows=400, stack=STACKS["black"])
    made = made_in(tmp_path, history)
    writers, round_bytes = Writers(history, made), ACTORS * made.ring.block_nbytes
    learn(made, writers, 4)
    save(made)
    assert on_disk(tmp_path) == 4 * round_bytes
    learn(made, writers, 3)
    save(made)
    assert on_disk(tmp_path) == 7 * round_bytes
    save(made)
    assert on_disk(tmp_path) == 7 * round_bytes
    learn(made, writers, 5 * ROUNDS)
    save(made)  # what was overwritten in between never was
    assert on_disk(tmp_path) == (7 + ROUNDS) * round_bytes
    other = load(made_in(tmp_path, history, saved=made._rounds.inbox.state()), save(made), tmp_path)
    before = on_disk(tmp_path)
    writers.inbox = other._rounds.inbox
    learn(other, writers, 2)
    save(other)  # and a resume begins where it ended
    assert on_disk(tmp_path) == before + 2 * round_bytes


def test_encoded_rows_are_saved_as_they_are(tmp_path: Path) -> None:
    """What is saved takes the room of what is encoded; bytes that are too few are refused, and too
    many.
    """
    history = History(streams=BLOCK * ACTORS, rows=400, stack=STACKS["black"])
    made = made_in(tmp_path, history, codec="delta")
    learn(made, Writers(history, made), 4)
    saved = save(made)
    assert on_disk(tmp_path) < 4 * ACTORS * made.ring.block_nbytes / 4
    ((name, chunks),) = saved["chunks"].items()
    data, other = (tmp_path / name).read_bytes(), made_in(tmp_path, history, codec="delta")
    assert other.journal is not None
    for wrong in (data[:-1], data[: len(data) // 2], b"", data + b"\0"):
        other.load(saved["replay"])
        with pytest.raises(ValueError, match=r"segment_1\.rows: expected [\d,]+ bytes of blocks"):
            other.journal.load({name: chunks}, saved["segments"], lambda _: wrong)  # noqa: B023


def test_segments_that_hold_nothing_any_more_are_no_longer_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(streams=BLOCK * ACTORS, rows=400)
    made = made_in(tmp_path, history)
    monkeypatch.setattr(journal, "SEGMENT", 2 * ACTORS * made.ring.block_nbytes)
    writers, named, saved = Writers(history, made), set[str](), dict[str, Any]()
    for rounds in (5, 1, 1, 2, 3, 1, 4, 1, 30, 2, 1):
        learn(made, writers, rounds)
        saved = save(made)
        assert len(saved["segments"]) <= ROUNDS // 2 + 2
        named |= saved["segments"].keys()
        assert content(
            load(made_in(tmp_path, history, saved=made._rounds.inbox.state()), saved, tmp_path)
        ) == content(made)
    assert len(named) > len(saved["segments"])
    assert {path.name for path in tmp_path.iterdir()} == named


class Slow:
    """A disk that writes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._allowed, self.waiting, real, me = (
            threading.Semaphore(0),
            threading.Event(),
            os.write,
            threading.get_ident(),
        )

        def write(handle: int, data: Any) -> int:
            if threading.get_ident() != me and not self._allowed.acquire(blocking=False):
                self.waiting.set()
                self._allowed.acquire()
            return real(handle, data)

        monkeypatch.setattr(os, "write", write)

    def allow(self, writes: int) -> None:
        self._allowed.release(writes)


@pytest.mark.parametrize("max_lag", [0, None])
@pytest.mark.parametrize("rounds", [4, 2 * ROUNDS + 3])
def test_rows_that_are_still_to_be_written_are_not_overwritten(
    rounds: int, max_lag: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Any
) -> None:
    """Whatever the disk does, what is saved is the ring of the moment of the save; and the run does
    go on meanwhile.
    """
    history = History(streams=BLOCK * ACTORS, rows=400, stack=STACKS["repeated"])
    made = made_in(tmp_path, history, max_lag=max_lag)
    assert made.journal is not None
    monkeypatch.setattr(journal, "CHUNK", ACTORS * made.ring.block_nbytes)
    writers = Writers(history, made)
    learn(made, writers, rounds)
    wanted, state, held = content(made), made.state(), made._rounds.inbox.state()
    slow, at, taken = Slow(monkeypatch), made._rounds.taken, list[int]()
    made.journal.begin(lambda chunks: chunks)
    while not made.journal.may_insert(10**6):
        deadline(
            lambda: slow.waiting.is_set() or made.journal.may_insert(10**6), 10.0, "the thread"
        )
        for _ in range(ROUNDS):
            for actor in range(ACTORS):
                writers.write(actor)
            while (batch := made.sample(3)) is not None:
                history.prove(batch)
                made.finish(batch.keys)
        taken.append(made._rounds.taken - at)
        slow.waiting.clear()
        slow.allow(1)
    slow.allow(10**6)
    saved, ended = end(made, state)
    assert ended.error is None
    assert taken[0] == max(ROUNDS - rounds - (ACTORS - 1), 0), (
        "any of a round's blocks may be of one actor"
    )
    assert taken == sorted(taken) and taken[-1] > ROUNDS - ACTORS, "it goes on while it is written"
    assert (
        content(load(made_in(tmp_path, history, max_lag=max_lag, saved=held), saved, tmp_path))
        == wanted
    )


@pytest.mark.parametrize("name", ["open", "write", "fsync"])
def test_a_disk_that_fails_costs_a_save(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(streams=BLOCK * ACTORS, rows=400)
    for n in range(5):
        folder = tmp_path / str(n)
        made = made_in(folder, history)
        writers = Writers(history, made)
        learn(made, writers, 4)
        first = save(made)
        wanted, held = content(made), made._rounds.inbox.state()
        learn(made, writers, 2)
        left, real = [n], getattr(os, name)

        def fail(*args: Any, left: list[int] = left, real: Any = real) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(28, "No space left on device")
            return real(*args)

        assert made.journal is not None
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            made.journal.begin(lambda chunks: chunks)
            _, ended = end(made, {})
        assert (ended.error is None) == (left[0] >= 0)
        assert made.journal.may_insert(10**6)
        assert content(load(made_in(folder, history, saved=held), first, folder)) == wanted
        learn(made, writers, 1)
        again = load(made_in(folder, history, saved=made._rounds.inbox.state()), save(made), folder)
        assert content(again) == content(made)


def test_one_save_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_in(tmp_path, History(streams=BLOCK * ACTORS, rows=400))
    learn(made, Writers(History(streams=BLOCK * ACTORS, rows=400), made), 3)
    slow = Slow(monkeypatch)
    assert made.journal is not None
    made.journal.begin(lambda chunks: chunks)
    with pytest.raises(ValueError, match="are still being written"):
        made.journal.begin(lambda chunks: chunks)
    slow.allow(10**6)
    made.journal.stop()


def test_rows_that_are_not_those_of_the_ring_are_refused(tmp_path: Path) -> None:
    history = History(streams=BLOCK * ACTORS, rows=400)
    made = made_in(tmp_path, history)
    learn(made, Writers(history, made), 4)
    saved = save(made)
    ((name, chunks),) = saved["chunks"].items()

    def refused(match: str, **changes: Any) -> None:
        with pytest.raises(ValueError, match=match):
            load(made_in(tmp_path, history), saved | changes, tmp_path)

    refused("expected the segments", chunks={})
    refused("bytes of blocks", chunks={name: chunks[:-1]})
    for wrong in ([ACTORS, 0, 1], [-1, 0, 1], [0, 4, 1], [0, -1, 1], [0, 1, 0]):
        rest = chunks[0].copy()
        rest[2] -= wrong[2]
        refused(
            "expected blocks of this replay", chunks={name: np.array([wrong, rest, *chunks[1:]])}
        )
    twice = chunks.copy()
    twice[1] = chunks[0]
    refused("expected all blocks of the ring", chunks={name: twice})
    other = replay(history, Settings(capacity=ROUND * 20, starts_at=ROUND), folder=tmp_path)
    with pytest.raises(
        ValueError, match=r"replay, slots: expected \d+ as in this program, got \d+"
    ):
        load(other, saved, tmp_path)
    with pytest.raises(ValueError, match=r"replay, window: expected 3 as in this program, got 1"):
        load(made_in(tmp_path, history, window=3), saved, tmp_path)
