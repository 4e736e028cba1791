"""The studies of a page: found, one line each, read again after a change, and pushed."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from equipoise.pages.responses import encoded
from equipoise.studies.journal import JOURNAL, line_of
from equipoise.watching import runs, studies
from equipoise.watching.runs import Folder
from tests.report import made
from tests.studies.written import bred, halved, searched, study, write
from tests.watching.opened import opened
from tests.watching.test_runs import write_live

HOSTILE = "<img src=x onerror=alert(1)>\u202e"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A run, a study with two runs, one without a run, and a population."""
    monkeypatch.setattr(runs, "SCAN_S", 0.0)
    monkeypatch.setattr(studies, "REST", 0)
    place = tmp_path / "runs"
    made.run(place / "alone")
    study(place / "search", searched(10), runs=2)
    study(place / "fresh", [])
    study(place / "bred", bred(4, 3), runs=1, strategy="pbt")
    os.symlink(place / "search", place / "link")
    one = Folder(place)
    one.poll()
    one.poll()
    return one


def test_studies_are_found_with_the_names_of_their_trials(folder: Folder) -> None:
    assert sorted(folder.studies) == ["bred", "fresh", "search"]
    assert sorted(folder.runs) == [
        "alone",
        "bred/trials/m00",
        "search/trials/t0000",
        "search/trials/t0001",
    ]
    rows = {row["id"]: row for row in folder.news(0)["studies"]}
    assert rows["search"]["prefix"] == "search/trials/" and rows["search"]["trials"] == 10
    assert rows["search"]["status"] == "completed" and rows["search"]["strategy"] == "random"
    assert rows["bred"]["prefix"] == "bred/trials/" and rows["bred"]["status"] == "running"
    assert rows["fresh"]["score"] is None and rows["fresh"]["env"] == "CartPole-v1"
    assert folder.news(folder.revision)["studies"] == []


def test_a_study_alone_is_shown_by_its_own_name(folder: Folder) -> None:
    for place in (folder.place / "search", folder.place / "fresh"):
        alone = Folder(place)
        alone.poll()
        assert [(one.name, one.prefix) for one in alone.studies.values()] == [
            (place.name, "trials/")
        ]
        assert all(name.startswith("trials/") for name in alone.runs)


def test_a_study_is_read_again_after_a_change_alone(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, inner = list[str](), vars(studies)["read_recorded"]

    def noted(path: Path) -> object:
        read.append(path.name)
        return inner(path)

    monkeypatch.setattr(studies, "read_recorded", noted)
    before = folder.revision
    folder.poll()
    assert read == [] and folder.revision == before
    write(folder.place / "fresh", searched(3))
    folder.poll()
    assert read == ["fresh"]
    (row,) = folder.news(before)["studies"]
    assert (row["id"], row["trials"], row["status"]) == ("fresh", 3, "completed")


def test_a_study_rests_after_a_long_reading(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "REST", 1_000_000)
    write(folder.place / "fresh", searched(3, end=False))
    folder.poll()
    before = folder.revision
    write(folder.place / "fresh", searched(4))
    folder.poll()
    assert folder.revision == before, "the second change is read later"
    folder.studies["fresh"]._next = 0.0
    folder.poll()
    assert folder.news(before)["studies"][0]["trials"] == 4


def test_the_state_changes_without_a_new_line(folder: Folder) -> None:
    os.utime(folder.place / "bred" / JOURNAL, (1, 1))
    folder.poll()
    assert folder.studies["bred"].row["status"] == "interrupted"
    write(folder.place / "bred", [*bred(4, 3), *searched(1)[:1]])
    os.utime(folder.place / "bred" / JOURNAL, (1, 1))
    made.run(folder.place / "bred/trials/t0000", summary=False)
    write_live(folder.place / "bred/trials/t0000")
    folder.poll()
    before = folder.revision
    assert str(folder.studies["bred"].row["status"]) == "running"
    write_live(folder.place / "bred/trials/t0000", pid=os.getpid(), born=1)
    folder.poll()
    assert str(folder.studies["bred"].row["status"]) == "interrupted" and folder.revision > before


def test_a_damaged_study_is_a_line_with_its_problem(folder: Folder) -> None:
    for name, text in ((JOURNAL, "{\n"), ("study.toml", "[study"), ("study.toml", "x = 1")):
        (folder.place / "search" / name).write_text(text)
        folder.poll()
        told: dict[str, Any] = {**folder.studies["search"].told()}
        assert told["status"] == "damaged" and len(told["problems"]) == 1
        assert str(folder.place / "search" / name) in told["problems"][0]
        json.loads(encoded(told))


def test_a_study_that_is_gone_is_news(folder: Folder) -> None:
    before = folder.revision
    shutil.rmtree(folder.place / "search")
    folder.poll()
    assert set(folder.news(before)["gone"]) == {
        "search",
        "search/trials/t0000",
        "search/trials/t0001",
    }


def test_what_the_page_shows_of_a_study(folder: Folder) -> None:
    told = json.loads(encoded(folder.studies["bred"].told()))
    assert told["title"] == "pbt study of CartPole-v1 with ppo" and told["problems"] == []
    keys = [one["key"] for one in told["plots"]]
    assert keys[:4] == ["curves", "axes", "costs", "lineage"] and len(keys) == 7
    for plot in told["plots"]:
        for line in plot["lines"]:
            assert len(line["x"]) == len(line["y"]) > 0 and None not in line["x"] + line["y"]
    assert len(told["head"]) == len(told["rows"][0]) and told["trials"] == 7
    assert told["decisions"][0].endswith("(the next generation)")


def test_texts_of_a_study_stay_texts(folder: Folder) -> None:
    study(folder.place / HOSTILE, searched(2), env=HOSTILE, strategy=HOSTILE)
    folder.poll()
    told = encoded(folder.studies[HOSTILE].told()).decode()
    assert HOSTILE.strip("\u202e") in told, "the page makes text nodes of it"


@pytest.mark.thorough
def test_what_is_sent_of_a_large_study_is_small(folder: Folder) -> None:
    write(folder.place / "fresh", halved(1000))
    began = time.process_time()
    folder.poll()
    sent = encoded(folder.studies["fresh"].told())
    assert time.process_time() - began < 3.0 and len(sent) < 500_000


def test_a_study_is_pushed_and_renewed_while_it_goes_on(tmp_path: Path) -> None:
    entries = searched(4, end=False)
    place = study(tmp_path / "runs/s", entries[:-2], runs=1)
    with opened(tmp_path / "runs") as client, client.events("/api/events?study=s") as events:
        assert next(events)[0] == "hello"
        name, news = next(events)
        assert name == "runs" and [row["id"] for row in news["studies"]] == ["s"]
        name, told = next(events)
        assert name == "study" and told["trials"] == 3
        with open(place / JOURNAL, "ab") as file:
            file.writelines(line_of(entries[n], n, time.time()) for n in (6, 7))
        found = dict([next(events), next(events)])  # within 20 s, which is the client's timeout
        assert found["study"]["trials"] == 4 and found["runs"]["studies"][0]["trials"] == 4
        assert found["runs"]["rows"] == []
