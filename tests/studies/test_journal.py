"""The journal of a study: what a kill leaves is read, what is damaged is refused with its line."""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from pathlib import Path

import pytest

from equipoise.studies.history import Clone, End, Entry, GoOn, History, Result, Start, Stop
from equipoise.studies.journal import JOURNAL, Journal, decided, line_of, read_journal, replayed
from equipoise.studies.space import Settings
from tests.studies import halves

RATE: Settings = {"optimizer.learning_rate": 0.1, "algorithm.core": "lstm", "algorithm.x": True}
ENTRIES: list[Entry] = [
    Start(trial="a", settings=RATE, to=10, reason="new", seed=3, role="confirm"),
    Start(trial="b", settings={}, to=10, reason="ünïcode\nof two lines"),
    Result(trial="a", steps=11, state="paused", score=0.5, alarms=("x", "y"), seconds=1.5),
    GoOn(trial="a", to=20, reason="good"),
    Result(trial="b", steps=10, state="failed", error="ValueError: it broke"),
    Clone(trial="c", source="a", settings=RATE, to=30, reason="the best"),
    Stop(trial="c", reason="no longer"),
    Result(trial="a", steps=20, state="done", score=None, core_seconds=2.0),
    End(best="a", reason="it is the best"),
]
BATCHES = [ENTRIES[:2], *([one] for one in ENTRIES[2:5]), ENTRIES[5:7], [ENTRIES[7]], [ENTRIES[8]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a whole journal."""
    journal = Journal(tmp_path)
    for batch in BATCHES:
        journal.append(batch)
    journal.close()
    return tmp_path


def lines(folder: Path) -> list[bytes]:
    return (folder / JOURNAL).read_bytes().splitlines(keepends=True)


def forged(number: int, **changes: object) -> bytes:
    """The line of the first entry with other fields, and a checksum that fits."""
    line = line_of(ENTRIES[0], number, 0.0)
    data = json.loads(line)
    del data["crc"]
    text = json.dumps(data | changes)
    return f'{text[:-1]}, "crc": {zlib.crc32(text.encode())}}}\n'.encode()


def test_all_that_was_written_is_read(folder: Path) -> None:
    assert read_journal(folder) == ENTRIES
    assert replayed(read_journal(folder), 2).end == ENTRIES[-1]


def test_a_study_without_a_journal_has_no_entries(tmp_path: Path) -> None:
    assert read_journal(tmp_path) == []


def test_what_is_decided_does_not_have_what_was_measured(folder: Path) -> None:
    assert decided(ENTRIES[2:3]) == decided(
        [Result(trial="a", steps=11, state="paused", score=0.5, alarms=("x", "y"), seconds=9.0)]
    )
    assert decided(ENTRIES[2:3]) != decided(
        [Result(trial="a", steps=11, state="paused", score=0.6, alarms=("x", "y"))]
    )


def test_a_cut_at_any_byte_leaves_the_batches_before_it_and_writing_goes_on(folder: Path) -> None:
    data = (folder / JOURNAL).read_bytes()
    ends, at = [0], 0
    for batch in BATCHES:
        at += sum(
            len(line)
            for line in lines(folder)[sum(map(len, BATCHES[: len(ends) - 1])) :][: len(batch)]
        )
        ends.append(at)
    assert ends[-1] == len(data)
    for cut in range(0, len(data), 7):
        (folder / JOURNAL).write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends) - 1
        assert read_journal(folder) == [one for batch in BATCHES[:whole] for one in batch], cut
    (folder / JOURNAL).write_bytes(data[: ends[5] - 20])  # in the second line of a batch
    journal = Journal(folder)
    for batch in BATCHES[4:]:
        journal.append(batch)
    journal.close()
    assert read_journal(folder) == ENTRIES


@pytest.mark.parametrize("number", range(1, len(ENTRIES) + 1))
@pytest.mark.few(9)
def test_a_flipped_byte_is_refused_with_its_line(number: int, folder: Path) -> None:
    given = lines(folder)
    before = sum(map(len, given[: number - 1]))
    data = bytearray((folder / JOURNAL).read_bytes())
    for place in range(before, before + len(given[number - 1]) - 1):
        data[place] ^= 1
        (folder / JOURNAL).write_bytes(data)
        with pytest.raises(ValueError, match=f"line {number}: must be a line that Equipoise wrote"):
            read_journal(folder)
        data[place] ^= 1


def test_lines_in_another_order_or_missing_or_twice_are_refused(folder: Path) -> None:
    a, b, c, *rest = lines(folder)
    for number, wrong in [(1, [b, a, c]), (2, [a, c]), (3, [a, b, b, c]), (1, [c])]:
        (folder / JOURNAL).write_bytes(b"".join([*wrong, *rest]))
        with pytest.raises(ValueError, match=f"line {number}: must be entry {number - 1}"):
            read_journal(folder)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"kind": "birth"}, "of a kind in start, go_on, stop, clone, result, end, got entry 0"),
        ({"kind": None}, "of kind None"),
        ({"kind": ["start"]}, "kind"),
        ({"kind": "result"}, "line 1: steps: expected a value, got none"),
        ({"to": "many"}, "line 1: to: expected a whole number"),
        ({"to": 9.5}, "line 1: to: expected a whole number"),
        ({"to": -1}, "line 1: to: expected a whole number"),
        ({"trial": ["a"]}, "line 1: trial: expected a text"),
        ({"trial": "x" * 101}, "line 1: trial: expected a text of at most 100"),
        ({"settings": [1]}, "line 1: settings: expected a JSON object"),
        ({"settings": {"a": {"b": 1}}}, "line 1: settings.a: expected"),
        ({"settings": {"a": None}}, "line 1: settings.a: expected"),
        ({"reason": 5}, "line 1: reason: expected a text"),
        ({"reason": "x" * 2_000_000}, "line 1: reason: expected a text of at most 1,048,576"),
        ({"role": "boss"}, "line 1: role: expected one of 'search', 'confirm'"),
        ({"seed": -1}, "line 1: seed: expected a whole number"),
        ({"left": -1}, "line 1: left: expected a whole number"),
        ({"kind": "result", "steps": 1, "state": None}, "line 1: state: expected one of"),
        ({"kind": "result", "steps": 1, "state": "training"}, "line 1: state: expected one of"),
        ({"kind": "end", "best": 3}, "line 1: best: expected a text"),
        ({"n": 1}, "must be entry 0"),
        ({"to": math.nan}, "expected JSON"),
        ({"measured": 3}, "line 1: measured: expected a JSON object"),
        ({"left": "x"}, "line 1: left: expected a whole number"),
        ({"kind": "result", "steps": 1, "state": "done", "alarms": None}, "line 1: alarms"),
        ({"kind": "result", "steps": 1, "state": "done", "score": "9"}, "line 1: score: expected"),
    ],
)
@pytest.mark.few(27)
def test_a_line_of_something_else_is_refused(
    changes: dict[str, object], refused: str, tmp_path: Path
) -> None:
    (tmp_path / JOURNAL).write_bytes(forged(0, **changes))
    with pytest.raises(ValueError, match=refused) as caught:
        read_journal(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"\n", b"3\n", b"[]\n", b"{}\n", b"\0" * 100 + b"\n", b"[" * 100_000 + b"\n"]
)
@pytest.mark.few(6)
def test_what_is_no_journal_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(data)
    with pytest.raises(ValueError, match="line 1: must be a line that Equipoise wrote"):
        read_journal(tmp_path)


def test_a_score_that_is_no_number_is_written_as_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append([Result(trial="a", steps=1, state="paused", score=math.nan)])
    journal.close()
    assert read_journal(tmp_path) == [Result(trial="a", steps=1, state="paused", score=None)]


def test_a_huge_line_is_read(tmp_path: Path) -> None:
    journal, entry = Journal(tmp_path), Stop(trial="a", reason="x" * 1_000_000)
    journal.append([entry])
    journal.close()
    assert read_journal(tmp_path) == [entry]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / JOURNAL)  # which is not waited for
    with pytest.raises(ValueError, match="expected a plain file"):
        Journal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_journal_without_permission_is_an_error_with_its_name(folder: Path) -> None:
    (folder / JOURNAL).chmod(0)
    with pytest.raises(PermissionError, match=JOURNAL):
        Journal(folder)


def test_a_second_writer_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    settings = halves.made(tmp_path / "study")
    first = halves.opened(tmp_path / "study", settings)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="another process runs now") as caught:
        halves.opened(tmp_path / "study", settings)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    first.close()
    halves.opened(tmp_path / "study", settings).close()


def test_a_journal_that_was_moved_is_written_no_further(folder: Path) -> None:
    journal = Journal(folder)
    (folder / JOURNAL).rename(folder / "elsewhere")
    with pytest.raises(ValueError, match="must stay where it is"):
        journal.append([Stop(trial="a", reason="")])
    (folder / JOURNAL).write_bytes(b"")  # another one in its place
    with pytest.raises(ValueError, match="must stay where it is"):
        journal.append([Stop(trial="a", reason="")])
    journal.close()


@pytest.mark.thorough
def test_ten_thousand_decisions_are_read_in_a_second(tmp_path: Path) -> None:
    entries: list[Entry] = []
    for number in range(5_000):
        entries.append(Start(trial=f"t{number}", settings=RATE, to=10, reason="the next one"))
        entries.append(Result(trial=f"t{number}", steps=10, state="paused", score=1.0))
        entries.append(Stop(trial=f"t{number}", reason="not among the best"))
    (tmp_path / JOURNAL).write_bytes(
        b"".join(line_of(one, number, 0.0) for number, one in enumerate(entries))
    )
    took, history = [], History()
    for _ in range(2):  # of processor time, which others do not lengthen
        began = time.process_time()
        history = replayed(read_journal(tmp_path), 2)
        took.append(time.process_time() - began)
    assert len(history.trials) == 5_000
    assert min(took) < 1.0, took


def test_an_end_names_a_trial_of_the_study() -> None:
    with pytest.raises(ValueError, match="line 1: a: must be a trial that has begun"):
        replayed([End(best="a", reason="")], 1)


def test_a_trial_that_fails_as_it_goes_on_keeps_its_steps() -> None:
    entries: list[Entry] = [
        Start(trial="a", settings=RATE, to=100, reason=""),
        Result(trial="a", steps=100, state="paused", score=1.0),
        Clone(trial="b", source="a", settings=RATE, to=200, reason=""),
        Result(trial="b", steps=0, state="failed", error="it broke"),
    ]
    assert replayed(entries, 1).trials["b"].steps == 100
