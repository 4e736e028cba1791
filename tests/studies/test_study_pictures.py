"""The page of a study: one file that asks for nothing, its pictures, and what the journal holds."""

from __future__ import annotations

import itertools
import math
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.console.study import study_table
from equipoise.report.figures import Line, chart
from equipoise.report.study import study_page
from equipoise.report.study_plots import MOST_CURVES, MOST_DOTS, MOST_LINES, plots
from equipoise.studies.history import Clone, End, Entry, Result, Start
from equipoise.studies.journal import replayed
from equipoise.studies.recorded import RecordedStudy, read_recorded
from equipoise.studies.settings import StudySettings
from tests.report.test_page import whole
from tests.studies.written import SPACE, bred, halved, searched, study

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"alert(1)\">'\u202e\x1b[2J"


def recorded(entries: list[Entry], *, folder: Path = Path("s"), suite: str = "") -> RecordedStudy:
    """A study without files."""
    settings = StudySettings(strategy="random", space=() if suite else SPACE, suite=suite)
    history = replayed(entries, 2, whole=settings.whole(10_000))
    env, algorithm = (suite, "") if suite else ("CartPole-v1", "ppo")
    return RecordedStudy(folder, settings, env, algorithm, entries, history, "ended")


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("entries", "keys"),
    [
        (searched(30), ["curves", "axes", "costs"]),
        (halved(32), ["curves", "axes", "costs"]),
        (bred(4, 6), ["curves", "axes", "costs", "lineage", *["schedule"] * 3]),
        (searched(1), ["curves", "costs"]),
        (searched(1)[:1], []),
        ([], []),
        ([Start(trial="a", settings={}, to=9, reason=""), End(best=None, reason="")], []),
    ],
    ids=["search", "halving", "population", "one", "begun", "nothing", "no score"],
)
def test_a_page_is_whole_and_has_the_pictures_of_its_kind(
    entries: list[Entry], keys: list[str]
) -> None:
    found = recorded(entries)
    assert [one.key.split()[0] for one in plots(found)] == keys
    page = study_page(found)
    seen = whole(page)
    assert seen.tags.count("figure") == len(keys)
    for one in found.ranked:
        assert one.name in seen.text
    for key in ("nan", "inf"):
        assert f'"{key}' not in page and f" {key} " not in page


def test_scores_of_two_envs_of_a_suite_are_never_compared() -> None:
    entries = list[Entry]()
    scores = {"CartPole-v1": 90.0, "Acrobot-v1": -80.0, "x-y": 5.0}
    for n, (env, score) in itertools.product(range(3), scores.items()):
        name = f"{env}.ppo.{n}" if env != "x-y" else f"{env}.ppo.{n}.0a1b2c3{n}"
        entries.append(Start(trial=name, settings={}, to=10, reason="a cell"))
        entries.append(
            Result(trial=name, steps=10, state="paused", score=score + n, core_seconds=1.0)
        )
    found = recorded(entries, suite="tiny")
    assert found.best is None
    drawn = {one.key: [line.name for line in one.lines] for one in plots(found)}
    assert drawn == {
        f"curves {env}": [one.name for one in found.ranked if one.name.startswith(env)]
        for env in sorted(scores)
    }
    assert [one.name for one in found.ranked][:2] == ["Acrobot-v1.ppo.2", "Acrobot-v1.ppo.1"]
    head, *lines = study_table(found, None)
    assert head == "suite tiny  9 trials: 9 completed  90 steps used"
    assert [line.split()[0] for line in lines[1:]] == [one.name for one in found.ranked]
    page = whole(study_page(found)).text
    assert "best" not in page.lower() and "Learning in Acrobot-v1" in page


def test_texts_of_a_study_are_escaped(tmp_path: Path) -> None:
    def hostile(name: str) -> list[Entry]:
        settings = {"algorithm.gamma": HOSTILE}
        result = Result(trial=name, steps=10, state="paused", score=1.0, core_seconds=1.0)
        clone = f"{name}_clone"
        return [
            Start(trial=name, settings=settings, to=10, reason=HOSTILE),
            result,
            Clone(trial=clone, source=name, settings={}, to=20, reason=HOSTILE),
            Result(trial=clone, steps=10, state="failed", error=HOSTILE),
        ]

    entries = [*hostile("a"), *hostile("b")]
    space = ("algorithm.gamma=" + HOSTILE.replace(",", ";") + ",0.99",)
    place = study(tmp_path / "<b>s", entries, env=HOSTILE, space=space, strategy=HOSTILE)
    page = study_page(read_recorded(place))
    seen = whole(page)
    assert HOSTILE[:30] in seen.text, "it is shown as a text"
    assert "<script>document" not in page and "\x1b" not in page and "\u202e" not in page


@pytest.mark.parametrize("name", ["../../a/trials/t0000", "/etc", "..", "", "a/b", HOSTILE])
def test_names_of_trials_that_are_no_names_of_folders_are_refused(
    name: str, tmp_path: Path
) -> None:
    place = study(tmp_path / "a", [Start(trial=name, settings={}, to=10, reason="")])
    with pytest.raises(ValueError, match="line 1: .*must be the name of a folder"):
        read_recorded(place)


def test_returns_of_training_are_drawn_for_trials_of_one_result(tmp_path: Path) -> None:
    place = study(tmp_path / "a", searched(4), runs=2)
    kinds = [line.kind for line in plots(read_recorded(place))[0].lines]
    assert kinds.count("returns") == 2


def test_the_best_trial_is_bold_and_drawn_last() -> None:
    found = recorded(halved(32))
    assert found.best is not None
    for one in plots(found)[:2]:
        bold = [line.name.partition(":")[0] for line in one.lines if "best" in line.kind]
        assert bold == [found.best.name] and one.lines[-1].kind == "best"


def test_the_lineage_is_bold_from_the_first_ancestor_to_the_best_trial() -> None:
    found = recorded(bred(4, 6))
    assert found.best is not None
    picture = next(one for one in plots(found) if one.key == "lineage")
    bold = [line for line in picture.lines if line.kind == "member best"]
    ends = sorted((line.x[0], line.x[1]) for line in bold)
    assert ends[0][0] == 0 and ends[-1][1] == found.best.steps
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    joins = [line for line in picture.lines if "join" in line.kind]
    assert len(joins) == 6 and all(line.x[0] == line.x[1] for line in joins)


def test_a_schedule_has_the_value_of_each_stretch() -> None:
    found = recorded(bred(4, 6))
    assert found.best is not None
    picture = next(one for one in plots(found) if one.key.endswith("learning_rate"))
    (line,) = [one for one in picture.lines if "best" in one.kind]
    rates = [
        found.history.trials[one.trial].settings["optimizer.learning_rate"]
        for one in found.ancestors(found.best.name)
    ]
    parameter = next(iter(found.space))
    assert line.y[::2] == line.y[1::2] == [parameter.share(one) for one in rates]
    assert line.x[0] == 0 and line.x[1:-1:2] == line.x[2::2] and line.x[-1] == found.best.steps


def test_settings_that_the_space_has_not_leave_a_gap() -> None:
    odd: list[Entry] = [Start(trial="odd", settings={"algorithm.gamma": 0.5}, to=10, reason="")]
    odd.append(Result(trial="odd", steps=10, state="paused", score=1.0))
    picture = next(one for one in plots(recorded([*searched(9)[:-1], *odd])) if one.key == "axes")
    (line,) = [one for one in picture.lines if one.name.startswith("odd")]
    assert [math.isnan(y) for y in line.y] == [True, True, True, False]


@pytest.mark.thorough
def test_a_page_of_ten_thousand_trials_is_small() -> None:
    for entries in (searched(10_000), bred(20, 1500)):
        found = recorded(entries)
        assert len(whole(study_page(found)).text.encode()) < 1_000_000
        for one in plots(found):
            points = sum(len(line.drawable().x) for line in one.lines)
            assert len(one.lines) <= 6 * max(MOST_LINES, MOST_CURVES)
            assert points <= 30_000 + MOST_DOTS


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["search", "population"])
def test_a_page_of_a_thousand_trials_is_drawn_in_time(tmp_path: Path, kind: str) -> None:
    entries = searched(1000) if kind == "search" else bred(50, 20)
    place = study(tmp_path / "s", entries, runs=0)
    began = time.process_time()
    page = study_page(read_recorded(place))
    assert time.process_time() - began < 2.0
    assert len(page) < 1_000_000


def test_labels_and_dots_of_a_chart() -> None:
    lines = [Line(0, [0, 1, 2], [0.2, 0.4, 0.3], dots=True, name="<a>", kind="front")]
    drawn = chart(lines, label="", x_label="", across=[(1, "one")], up=[(0.0, "low"), (1.0, "up")])
    assert drawn is not None
    assert drawn.count("h0") == 3 and "&lt;a&gt;" in drawn and 'class="line s0 dots front"' in drawn
    assert ">one<" in drawn and "top:4.55%" in drawn and "top:95.45%" in drawn
    assert chart([Line(0, [np.nan], [1.0])], label="", x_label="") is None


# --------------------------------------------------------------------------------- commands


def test_the_commands_of_runs_take_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = study(tmp_path / "runs/s", searched(4), runs=3)
    monkeypatch.chdir(tmp_path)
    ask = CliRunner().invoke
    result = ask(app, ["report", "runs/s", "--out", "s.html"])
    assert result.exit_code == 0 and result.stdout.startswith("wrote s.html: 4 trials, ")
    assert "random study of CartPole-v1" in whole((tmp_path / "s.html").read_text()).text
    result = ask(app, ["report", "runs/s", "--out", "s.html"])
    assert result.exit_code == 0, "an earlier page is replaced"
    for folder in ("runs/s", "runs"):
        result = ask(app, ["runs", "list", folder, "--json"])
        assert result.stdout.count('"completed"') == 3, result.output
    (place / "study.toml").write_text("[study")
    result = ask(app, ["report", "runs/s", "--out", "s.html"])
    assert result.exit_code == 2 and result.stderr.count("\n") <= 2, result.output


@pytest.mark.thorough  # for the import of matplotlib
def test_the_curves_of_a_study_s_runs_are_plotted(tmp_path: Path) -> None:
    place = study(tmp_path / "s", searched(4), runs=3)
    out = tmp_path / "s.svg"
    result = CliRunner().invoke(app, ["plot", str(place), "--out", str(out)])
    assert result.exit_code == 0 and "3 runs" in result.stdout and out.exists(), result.output
