"""A study at a terminal: its table, its lineage, and the view while it trains."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from equipoise.console.study import (
    MOST_TRIALS,
    StudyView,
    entry_text,
    lineage_lines,
    study_table,
)
from equipoise.studies.executor import Progress
from equipoise.studies.history import Clone, End, Entry, History, Result, Start, Stop
from equipoise.studies.journal import replayed
from equipoise.studies.recorded import RecordedStudy, read_recorded
from equipoise.studies.settings import StudySettings
from tests.studies.written import SPACE, bred, halved, searched, study

WIDE = "世界" * 20 + ":Weltumspannend世界-v0"
KINDS: dict[str, list[Entry]] = {
    "search": searched(30),
    "halving": halved(64),
    "population": bred(4, 6),
    "nothing": [],
    "begun": searched(1)[:1],
    "thousand": searched(1000),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("width", [40, 80, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_fits_the_terminal(tmp_path: Path, kind: str, width: int) -> None:
    for env in ("CartPole-v1", WIDE):
        found = read_recorded(study(tmp_path / env[-11:], KINDS[kind], env=env))
        lines = study_table(found, width)
        assert max(map(cell_len, lines)) <= width
        assert len(lines) <= MOST_TRIALS + 12


def test_the_table_begins_with_the_best_trial_and_counts_the_rest(tmp_path: Path) -> None:
    found = read_recorded(study(tmp_path / "s", searched(30)))
    head, names, first, *_, rest = study_table(found, 200)
    best = found.best
    assert best is not None and best.score is not None
    assert "random study of CartPole-v1 with ppo  30 trials: 27 paused, 3 failed" in head
    assert f"best {best.score:.4g} by {best.name} at 10k" in head and "270k steps used" in head
    assert " ".join(names.split()) == "trial state steps score time learning_rate gamma unroll"
    assert first.split()[:4] == [best.name, "paused", "10k", f"{best.score:.4g}"]
    assert rest == "and 10 more trials: 7 paused, 3 failed"


def test_a_clone_s_line_has_its_parent_and_what_was_changed(tmp_path: Path) -> None:
    found = read_recorded(study(tmp_path / "s", bred(4, 6)))
    (line,) = [one for one in study_table(found, 200) if one.startswith("g06")]
    assert re.search(r"  g05 at 8\.57k: learning_rate [\d.e-]+ → [\d.e-]+$", line)
    lines = lineage_lines(found, 60)
    assert lines[0].startswith("g06 ") and lines[1] == "  begins as m03"
    assert "  g01 from m03 at step 1,428:" in lines[2] and max(map(len, lines)) <= 60


def test_texts_of_a_journal_cannot_move_the_cursor(tmp_path: Path) -> None:
    bad = "a\x1b[2J\nb\u202e"
    start = Start(trial="a", settings={"algorithm.x": bad}, to=10, reason=bad)
    entries = [start, *searched(1)]
    found = read_recorded(study(tmp_path / "s", entries, env=bad))
    for line in study_table(found, 80):
        assert line.isprintable()


def test_each_entry_is_a_sentence_with_its_reason(tmp_path: Path) -> None:
    found = read_recorded(study(tmp_path / "s", [*bred(4, 2), End(best="g02", reason="R")]))
    texts = [entry_text(one, found.history) for one in found.entries]
    assert re.match(r"m00 starts: optimizer.learning_rate \S+, .*; to 3,333 steps \(a m", texts[0])
    assert re.match(r"m00 has the score [\d.]+ at step 3,333, after 0:05$", texts[1])
    assert "m01 stops (m01 is the worst, and m03 the best)" in texts
    assert any(one.startswith("g01 is a clone of m03 at step 3,333: optimizer") for one in texts)
    assert texts[-1] == "the study ends, its best trial is g02 (R)"
    failed = Result(trial="x", steps=3, state="failed", error="no env")
    assert entry_text(failed, found.history) == "x failed at step 3: no env"


# ------------------------------------------------------------------------------------- the view


def view(*, terminal: bool, quiet: bool = False) -> tuple[StudyView, io.StringIO]:
    file = io.StringIO()
    console = Console(
        file=file, width=100, height=30, force_terminal=terminal, force_interactive=terminal
    )
    settings = StudySettings(strategy="random", space=SPACE, trials=30)
    return StudyView(settings, Path("runs/s"), quiet, console=console), file


def play(shown: StudyView, entries: list[Entry]) -> History:
    history = History(jobs=2)
    for entry in entries:
        history.add(entry)
        shown.on_entry(entry, history)
    return history


def test_a_pipe_gets_a_line_for_each_entry() -> None:
    shown, file = view(terminal=False)
    play(shown, searched(10))
    shown.on_progress(Progress(trial="t0000", steps=5))
    shown.close()
    lines = file.getvalue().splitlines()
    assert len(lines) == 21 and "\x1b" not in file.getvalue()
    assert lines[0].startswith("t0000 starts: ") and lines[0].endswith("(the next draw)")
    assert lines[19] == "t0009 failed at step 100: the env broke"


def test_a_quiet_view_prints_failures_alone() -> None:
    for terminal in (True, False):
        shown, file = view(terminal=terminal, quiet=True)
        play(shown, searched(10))
        shown.close()
        assert file.getvalue() == "t0009 failed at step 100: the env broke\n"


def test_a_terminal_has_a_table_that_is_redrawn_in_place() -> None:
    shown, file = view(terminal=True)
    history = play(shown, searched(20, end=False))
    end = time.monotonic() + 20
    while "t0018" not in file.getvalue():  # what came last is drawn without another event
        assert time.monotonic() < end
        time.sleep(0.01)
    history.add(Start(trial="new", settings={}, to=100_000, reason="why not"))
    shown.on_entry(Start(trial="new", settings={}, to=100_000, reason="why not"), history)
    shown._updated = 0.0
    shown.on_progress(Progress(trial="new", steps=77_000))
    shown.close()
    last = file.getvalue()[-4000:]
    assert "77k" in last and "new starts; to 100,000 steps (why not)" in last
    assert "\x1b[2K" in last, "the table before it is erased"


def test_a_closed_view_draws_no_more() -> None:
    shown, file = view(terminal=True)
    play(shown, searched(5, end=False))
    shown.close()
    before = file.getvalue()
    shown._update()
    shown.close()
    assert file.getvalue() == before


def test_a_table_of_a_thousand_trials_is_drawn_in_time() -> None:
    shown, _ = view(terminal=True)
    history = replayed(searched(1000, end=False), 2)
    began = time.process_time()
    for _ in range(20):
        shown.on_entry(Result(trial="t0000", steps=1, state="paused"), history)
    shown.close()
    assert time.process_time() - began < 3.0


def test_a_lineage_is_of_clones_alone_and_has_the_last_cuts() -> None:
    result = Result(trial="m", steps=1, state="paused", score=1.0)
    entries: list[Entry] = [
        Start(trial="m", settings={"a": 0}, to=1, reason=""),
        result,
        Start(trial="alone", settings={"a": 0}, to=1, reason=""),
        replace(result, trial="alone"),
    ]
    source = "m"
    for n in range(30):
        entries += [
            Stop(trial=source, reason=""),
            Clone(trial=f"c{n}", source=source, settings={"a": n + 1}, to=n + 2, reason=""),
            replace(result, trial=f"c{n}", steps=n + 2),
        ]
        source = f"c{n}"
    settings = StudySettings(strategy="pbt")
    found = RecordedStudy(Path("s"), settings, "E", "ppo", entries, replayed(entries, 2), "ended")
    first, begins, earlier, *rest = lineage_lines(found, None)
    assert (first, begins) == ("c29 1", "  begins as m")
    assert earlier == "  and was cloned 10 times before" and len(rest) == 20
    assert rest[-1] == "  c29 from c28 at step 30: a 29 → 30"
