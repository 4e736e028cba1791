"""The runs of a folder: what each row says, and that files which stay are not read again."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from equipoise import deaths
from equipoise.record import live
from equipoise.record.completions import write_completions
from equipoise.watching import runs
from equipoise.watching.runs import Folder
from tests.report import made


def told(**said: object) -> dict:
    """A live.json of this process."""
    return {
        "format": 1,
        "time": time.time(),
        "pid": os.getpid(),
        "born": live.born(os.getpid()),
        "machine": deaths.machine(),
        "step": 7000,
        "steps": 100_000,
        "wall_s": 14.0,
        "steps_per_s": 500.0,
        "return_mean": 99.0,
        "cause": "Sampling-bound",
        "verdict": "Sampling-bound: add actors.",
        "evaluation": None,
        "notes": [],
        "alarms": [],
        "version": 70,
        "ring": {
            "stations": [
                {
                    "name": "2 actors × 8 envs",
                    "noun": "actors",
                    "shares": {"worked": 0.5, "blocked": 0.5},
                },
                {"name": "queue", "noun": "", "shares": None, "full": 0.5},
                {"name": "learner", "noun": "learner", "shares": {"worked": 0.9, "starved": 0.1}},
            ],
            "arrows": [
                {
                    "level": 2,
                    "said": [["500 steps/s", "flow"], ["▲ actors blocked 50 %", "blocked"]],
                    "waits": [["actors", "blocked", 0.5]],
                },
                {
                    "level": 2,
                    "said": [["5.0 updates/s", "flow"], ["learner starved 10 %", "starved"]],
                    "waits": [["learner", "starved", 0.1]],
                },
            ],
            "back": {"level": 1, "said": [["weights (max lag 1)", "flow"]]},
        },
        "workers": [
            {
                "name": "actor 0",
                "side": "sampling",
                "station": 0,
                "shares": {"worked": 0.5, "blocked": 0.5},
            }
        ],
    } | said


def write_live(place: Path, **said: object) -> None:
    (place / live.LIVE).write_text(json.dumps(told(**said)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A run that goes on, one that was killed, one that ended, one without live.json, and one with
    a damaged run.json.
    """
    monkeypatch.setattr(runs, "SCAN_S", 0.0)
    place = tmp_path / "runs"
    for name in ("going", "killed", "bare", "bad"):
        made.run(place / name, summary=False)
    made.run(place / "deep/er/ended", algorithm="dqn")
    write_live(place / "going")
    write_live(place / "killed", pid=os.getpid(), born=1)
    os.utime(place / "bare/metrics.jsonl", (1, 1))
    (place / "bad/run.json").write_text("{")
    one = Folder(place)
    one.poll()
    return one


def test_rows(folder: Folder) -> None:
    rows = {name: run.row for name, run in folder.runs.items()}
    assert {name: row["status"] for name, row in rows.items()} == {
        "going": "running",
        "killed": "killed",
        "deep/er/ended": "completed",
        "bare": "killed",
        "bad": "damaged",
    }
    assert (
        rows["going"]["step"] == 7000
        and rows["going"]["return"] == 99.0
        and rows["going"]["algorithm"] == "ppo"
    )
    assert (
        rows["deep/er/ended"]["evaluation"] == 100.0 and rows["deep/er/ended"]["algorithm"] == "dqn"
    )
    assert rows["bare"]["step"] == 20_000, "without live.json the last report says it"
    news = folder.news(0)
    assert len(news["rows"]) == 5 and folder.news(folder.revision)["rows"] == []


def test_a_summary_that_cannot_be_read_is_damage(folder: Folder) -> None:
    for name in ("going", "killed"):
        (folder.place / name / "summary.json").write_text("{")
    folder.poll()
    assert {name: folder.runs[name].row["status"] for name in ("going", "killed")} == {
        "going": "running",
        "killed": "damaged",
    }
    assert "summary.json" in folder.runs["killed"].told()["problems"][0]


def test_a_line_without_an_end_is_named(folder: Folder) -> None:
    os.truncate(folder.place / "bare/metrics.jsonl", 1 << 25)
    folder.poll()
    (problem, *_) = folder.runs["bare"].told()["problems"]
    assert (
        str(folder.place / "bare/metrics.jsonl") in problem
        and "line" in problem
        and "without an end" in problem
    )


def test_a_quiet_run(folder: Folder) -> None:
    write_live(folder.place / "going", time=time.time() - 60)
    folder.poll()
    assert folder.runs["going"].row["status"] == "quiet"


def test_what_changes_is_news_and_the_rest_is_not_read(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()

    def noted(path: Path) -> Any:
        read.append(path.name)
        return live.read_live(path)

    monkeypatch.setattr(runs, "read_live", noted)
    monkeypatch.setattr(runs, "read_json", lambda path, *_: pytest.fail(f"{path} is read again"))
    before = folder.revision
    folder.poll()
    assert folder.revision == before and read == []
    write_live(folder.place / "going", step=8000)
    folder.poll()
    assert read == ["going"] and [row["step"] for row in folder.news(before)["rows"]] == [8000]


def test_runs_come_end_and_go(folder: Folder) -> None:
    before = folder.revision
    made.run(folder.place / "new")
    (folder.place / "going/summary.json").write_text(
        (folder.place / "new/summary.json").read_text()
    )
    shutil.rmtree(folder.place / "bare")
    folder.poll()
    news = folder.news(before)
    assert news["gone"] == ["bare"] and {row["id"]: row["status"] for row in news["rows"]} == {
        "new": "completed",
        "going": "completed",
    }
    (folder.place / "going/summary.json").unlink()  # as a resume does
    folder.poll()
    assert folder.runs["going"].row["status"] == "running"
    shutil.rmtree(folder.place)
    folder.poll()
    assert folder.runs == {}


def test_what_the_page_shows_of_a_run(folder: Folder) -> None:
    whole = folder.runs["going"].told()
    assert (
        whole["status"] == "running"
        and whole["evaluation"] is None
        and whole["workers"]
        and whole["problems"] == []
    )
    ended = folder.runs["deep/er/ended"]
    ended.read_curves()
    whole = ended.told()
    assert "ring" not in whole, "a run without live.json has no picture of the moment"
    assert whole["evaluation"]["mean"] == 100.0
    assert "run.json" in folder.runs["bad"].told()["problems"][0]


def test_completions_and_clips_are_shown_as_they_are_made(folder: Folder) -> None:
    going, run = folder.place / "going", folder.runs["going"]
    assert run.told()["completions"] is None and run.told()["clips"] == []
    sample = {"prompt": "2 + 2", "completion": "4\n\x1b[31m\u202e", "reward": 1.0}
    write_completions(going, 7, [sample | {"rewards": {"sum\r": 1.0, "short": None}}])
    (going / "videos").mkdir()
    before = folder.revision
    for i in range(runs.MOST_CLIPS + 2):
        (going / f"videos/step_{i}.mp4").write_bytes(b"film")
        os.utime(going / f"videos/step_{i}.mp4", (i, i))
    (going / "videos/.step_9.unfinished.mp4").write_bytes(b"half")
    (going / "videos/link.mp4").symlink_to("/etc/hostname")
    folder.poll()
    assert folder.revision > before
    shown = sample | {"completion": "4\n\\u202e", "rewards": {"sum\\r": 1.0, "short": None}}
    assert run.told()["completions"] == {"step": 7, "samples": [shown]}
    assert [one["name"] for one in run.told()["clips"]] == [
        f"step_{i}.mp4" for i in range(runs.MOST_CLIPS + 1, 1, -1)
    ]
    (going / "completions.json").write_text('{"step": 7, "samples": [{"prompt": 3}]}')
    folder.poll()
    told_now = run.told()
    assert told_now["completions"] is None and "completions.json" in told_now["problems"][0]


def test_damaged_files_are_named(folder: Folder) -> None:
    going = folder.place / "going"
    with (going / "metrics.jsonl").open("a") as out:
        out.write("{broken\n" * 9)
    (going / "live.json").write_text('{"format": 1}')
    folder.poll()
    run = folder.runs["going"]
    run.read_curves()
    said = run.told()["problems"]
    assert (
        "live.json" in said[0]
        and "metrics.jsonl, line 21" in said[1]
        and said[-1].endswith("4 more lines are damaged, and are left out")
    )
    for text in ('{"status": 3, "alarms": 7}', "[]", '{"evaluation": []}'):
        (going / "summary.json").write_text(text)
        folder.poll()
        run.told()


def test_one_run_alone(tmp_path: Path) -> None:
    made.run(tmp_path / "run")
    one = Folder(tmp_path / "run")
    one.poll()
    assert list(one.runs) == ["run"]


def test_curves_that_nobody_asks_for_are_dropped(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder.runs["deep/er/ended"]
    assert run.read_curves().rows == 21  # the last one has an evaluation
    monkeypatch.setattr(runs, "FORGET_S", -1.0)
    folder.poll()
    assert run.curves.rows == 0


def test_a_folder_that_cannot_be_searched_is_said(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(place: Path) -> None:
        raise PermissionError(13, "Permission denied", str(place / "secret"))

    before = folder.revision
    monkeypatch.setattr(runs, "directories", refused)
    folder.poll()
    assert len(folder.runs) == 5, "what is known stays"
    assert "secret" in folder.news(before)["problem"] and folder.revision > before
    monkeypatch.undo()
    folder._scanned = -runs.SCAN_S
    folder.poll()
    assert folder.news(0)["problem"] == ""
