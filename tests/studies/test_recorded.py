"""A study read from its files: its state, its best trial, its front, its lineage, importance."""

from __future__ import annotations

import itertools
import math
import os
import time
from pathlib import Path

import numpy as np
import pytest

from equipoise.record import paths
from equipoise.studies.history import Clone, End, Entry, Result, Start
from equipoise.studies.importance import explained
from equipoise.studies.journal import JOURNAL
from equipoise.studies.recorded import read_recorded
from equipoise.studies.settings import STUDY
from equipoise.studies.space import read_space
from tests.studies.written import SPACE, STEPS, bred, halved, raw_line, searched, study
from tests.watching.test_runs import write_live


def test_a_study_is_read_with_its_program_as_data(tmp_path: Path) -> None:
    env = "no_such_module_世界:make"
    found = read_recorded(study(tmp_path / "s", searched(20), env=env))
    assert (found.env, found.algorithm, found.state) == (env, "ppo", "ended")
    assert found.best is not None and found.best is found.ranked[0]
    assert found.steps == 18 * STEPS + 2 * 100 and found.seconds == 180.0
    assert sum(not isinstance(one, Result) for one in found.entries) == 21
    assert all(one.state == "failed" for one in found.ranked[-2:])


def test_the_state_is_that_of_the_processes_of_its_trials(tmp_path: Path) -> None:
    begun = searched(3, end=False)[:-1]  # the last trial trains
    place = study(tmp_path / "s", begun, runs=3)
    assert read_recorded(place).state == "training", "its journal is new"
    os.utime(place / JOURNAL, (1, 1))
    assert read_recorded(place).state == "interrupted"
    last = place / "trials/t0002"
    (last / "summary.json").unlink()
    write_live(last)
    assert read_recorded(place).state == "training", "the process of a trial is alive"
    write_live(last, born=1)
    assert read_recorded(place).state == "interrupted"


def test_a_study_that_a_process_locks_is_read_and_stays_locked(tmp_path: Path) -> None:
    place = study(tmp_path / "s", searched(3))
    handle = paths.lock(place)
    try:
        assert read_recorded(place).state == "ended"
    finally:
        if handle is not None:
            os.close(handle)


def test_an_empty_journal_and_none_are_a_study_without_trials(tmp_path: Path) -> None:
    place = study(tmp_path / "s", [])
    os.utime(place / JOURNAL, (0, 0))
    for _ in range(2):
        found = read_recorded(place)
        assert (found.best, found.front, found.importance, found.members) == (None, [], None, [])
        assert found.state == "interrupted"
        (place / JOURNAL).unlink(missing_ok=True)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    place = study(tmp_path / "s", searched(3))
    with open(place / JOURNAL, "r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 5)
    found = read_recorded(place)
    assert found.history.end is None and len(found.history.trials) == 3


def test_foreign_and_damaged_folders_are_refused_in_a_sentence(tmp_path: Path) -> None:
    place = study(tmp_path / "s", searched(3))
    toml, journal = (place / STUDY).read_text(), (place / JOURNAL).read_bytes()
    wrong: list[tuple[str, bytes]] = [
        ("", journal),
        ("[study", journal),
        ("[study]\nstrategy = 1\n", journal),
        (toml[: toml.index("[program")], journal),
        (toml.replace("[program.source", "[program.sauce"), journal),
        (toml, journal.replace(b"start", b"stamp", 1)),
        (toml, raw_line(0, kind="start", trial=["x"], settings={}, to=1, reason="")),
        (toml, raw_line(0, kind="start", trial="x", settings={}, to="many", reason="")),
        (toml, raw_line(0, kind="result", trial="x", steps=1, state="paused", score=math.nan)),
        (toml, raw_line(0, kind=["start"])),
    ]
    for settings, entries in wrong:
        (place / STUDY).write_text(settings)
        (place / JOURNAL).write_bytes(entries)
        with pytest.raises(ValueError, match=r"(must|expected) ") as caught:
            read_recorded(place)
        assert str(place) in str(caught.value) and "\n" not in str(caught.value), settings
    for other in (tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match="must be a study directory"):
            read_recorded(other)


def test_the_front_has_each_trial_that_no_cheaper_one_beats(tmp_path: Path) -> None:
    found = read_recorded(study(tmp_path / "s", searched(100)))
    scored = [one for one in found.history if one.score is not None]
    slow = [
        one
        for one in scored
        if not any(
            (found.costs[other.name], other.score) != (found.costs[one.name], one.score)
            and found.costs[other.name] <= found.costs[one.name]
            and (other.score or 0.0) >= (one.score or 0.0)
            for other in scored
        )
    ]
    assert [one.name for one in found.front] == sorted(
        (one.name for one in slow), key=found.costs.__getitem__
    )


def test_a_clone_costs_what_its_parent_cost_up_to_the_cut(tmp_path: Path) -> None:
    settings = read_space(SPACE).at([0.5, 0.5, 0.5])

    def result(trial: str, steps: int, cost: float) -> Result:
        return Result(trial=trial, steps=steps, state="paused", score=1.0, core_seconds=cost)

    entries: list[Entry] = [
        Start(trial="a", settings=settings, to=10, reason=""),
        result("a", 10, 3.0),
        Clone(trial="b", source="a", settings=settings, to=20, reason=""),
        result("b", 20, 4.0),
    ]
    found = read_recorded(study(tmp_path / "s", entries))
    assert found.costs == {"a": 3.0, "b": 7.0}


def test_the_lineage_names_each_cut_and_what_was_changed(tmp_path: Path) -> None:
    found = read_recorded(study(tmp_path / "s", bred(4, 6), strategy="pbt"))
    assert len(found.members) == 4
    chain = max((found.ancestors(one.name) for one in found.members), key=len)
    assert len(chain) > 2 and chain[0].parent is None
    for before, after in itertools.pairwise(chain):
        assert after.parent == before.trial and after.steps % (STEPS // 7) == 0
        assert list(after.changed) == ["optimizer.learning_rate"]
        assert f"from {before.trial} at step {after.steps:,}: optimizer.learning_rate " in str(
            after
        )
    rows = found.rows()
    assert sorted(rows[one.name] for one in found.members) == [0, 1, 2, 3]
    assert max(rows.values()) == 3


def test_a_search_has_no_members(tmp_path: Path) -> None:
    assert read_recorded(study(tmp_path / "s", searched(20))).members == []


@pytest.mark.parametrize("entries", [searched(60), halved(64)], ids=["random", "halving"])
def test_the_setting_that_makes_the_score_is_the_important_one(
    tmp_path: Path, entries: list
) -> None:
    found = read_recorded(study(tmp_path / "s", entries)).importance
    assert found is not None
    (first, most), *rest = found.items()
    assert first == "optimizer.learning_rate" and most > 0.6
    assert all(share < 0.3 for _, share in rest)


def test_importance_needs_eight_trials(tmp_path: Path) -> None:
    assert read_recorded(study(tmp_path / "a", searched(7))).importance is None
    assert read_recorded(study(tmp_path / "b", searched(8))).importance is not None


def test_equal_scores_and_noise_explain_nothing() -> None:
    draw = np.random.default_rng(0)
    assert explained(np.arange(20) % 4, np.ones(20)) == 0.0
    chance = [explained(draw.integers(0, 5, 40), draw.random(40)) for _ in range(200)]
    assert np.mean(chance) < 0.06
    assert explained(np.arange(40) % 2, np.arange(40) % 2 + 0.0) == pytest.approx(1.0)


def test_a_suite_s_study_has_no_program(tmp_path: Path) -> None:
    place = study(tmp_path / "s", searched(3), strategy="cells")
    text = (place / STUDY).read_text()
    (place / STUDY).write_text(text[: text.index("[program")] + 'suite = "classic"\n')
    found = read_recorded(place)
    assert found.title == "suite classic" and len(found.ranked) == 3


def test_a_stretch_that_ends_a_few_steps_late_is_no_better(tmp_path: Path) -> None:
    entries: list[Entry] = []
    known = {"late": (105, 1.0), "good": (100, 2.0), "fair": (100, 1.5), "early": (50, 9.0)}
    for name, (steps, score) in known.items():
        to = 100 if steps >= 100 else 50
        entries.append(Start(trial=name, settings={}, to=to, reason=""))
        entries.append(Result(trial=name, steps=steps, state="paused", score=score))
    found = read_recorded(study(tmp_path / "s", entries))
    assert [one.name for one in found.ranked] == ["good", "fair", "late", "early"]


def test_a_study_without_a_score_has_no_best_trial(tmp_path: Path) -> None:
    entries: list[Entry] = [
        Start(trial="a", settings={}, to=10, reason=""),
        Result(trial="a", steps=10, state="failed", error="no"),
        End(best=None, reason="no trial has a score"),
    ]
    found = read_recorded(study(tmp_path / "s", entries))
    assert found.best is None and found.front == [] and found.state == "ended"


def test_a_journal_of_a_thousand_trials_is_read_in_time(tmp_path: Path) -> None:
    place = study(tmp_path / "s", halved(1000))
    began = time.process_time()
    found = read_recorded(place)
    _ = found.importance, found.front, found.ranked, found.rows()
    assert time.process_time() - began < 2.0
