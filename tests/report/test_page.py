"""The page: one file that asks for nothing, whatever the runs' files hold; and what it refuses, in
one line.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import equipoise
from equipoise.cli import app
from equipoise.console.curves import curves
from equipoise.record.described import flat
from equipoise.record.interval import mean_and_half
from equipoise.report import learning
from equipoise.report.page import MOST_BYTES, page
from equipoise.report.runs import differences, grouped, read
from tests.report import made

OPEN = {"meta", "link"}  # elements without an end


class Seen(HTMLParser):
    """A page's elements and texts; every element that begins has to end, and in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == [], f"never closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in OPEN:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.stack[-1] == tag, f"</{tag}> within {self.stack[-3:]}"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        if data.strip() and "style" not in self.stack:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


LOADS = (
    "src",
    "srcset",
    "data",
    "poster",
    "action",
    "background",
    "xlink:href",
    "formaction",
    "ping",
)


def whole(text: str) -> Seen:
    """A page that is in order: it parses, stands alone, runs nothing, is small, and has no nan in a
    figure.
    """
    seen = Seen(text)
    assert len(text.encode()) <= MOST_BYTES
    assert not {
        "script",
        "iframe",
        "img",
        "object",
        "embed",
        "base",
        "form",
        "video",
        "audio",
    } & set(seen.tags)
    assert [
        (tag, key) for tag, key, _ in seen.attributes if key in LOADS or key.startswith("on")
    ] == []
    assert [value for _, key, value in seen.attributes if key == "href"] == ["data:,"], (
        "an empty icon, so that none is asked for"
    )
    css = text[text.index("<style>") : text.index("</style>")]
    assert "@import" not in css and all(
        place.startswith("#fill-") for place in re.findall(r"url\(\s*['\"]?([^)]*)", css)
    )
    assert any(
        value.startswith("default-src 'none';")
        for _, key, value in seen.attributes
        if key == "content"
    )
    numbers = [
        value for _, key, value in seen.attributes if key not in ("aria-label", "content", "class")
    ]
    assert [
        value
        for value in numbers
        if re.search(r"\b(nan|inf|infinity|undefined)\b", value, re.IGNORECASE)
    ] == []
    return seen


def of(*places: Path) -> tuple[str, list[str]]:
    runs, warned = read(places)
    return page(runs), warned


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --out a page is written where the command is typed."""
    monkeypatch.chdir(tmp_path)


def call(*words: object) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def refused(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 2 and "Traceback" not in result.output, result.output
    (line,) = result.stderr.splitlines()
    return str(line)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report") / "five"
    for seed in range(5):
        made.run(place / f"seed_{seed}", seed=seed)
    return place


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("report")
    return [
        made.run(place / "a"),
        made.run(place / "b", gamma=0.9, actors=20),
        made.run(place / "c", algorithm="impala"),
    ]


# ------------------------------------------------------------------------------------ what it shows


def test_five_seeds_are_one_curve(seeds: Path) -> None:
    text, warned = of(seeds)
    seen = whole(text)
    (group,) = grouped(read([seeds])[0])
    assert warned == [] and group.name == "CartPole-v1 ppo" and group.seeds == "5 seeds"
    lines = learning.lines_of(group, "return")
    assert [line.faint for line in lines] == [True] * 5 + [False]
    (drawn,) = curves([str(seeds)])
    assert (
        lines[-1].y.tolist() == drawn.mean.tolist() and lines[-1].low.tolist() == drawn.low.tolist()
    ), "as `plot` has it"
    for title in (
        "The ring",
        "Workers over time",
        "Learning",
        "Lag",
        "Evaluation",
        "Runs",
        "Settings",
        "Resources",
    ):
        assert title in seen.text
    assert (
        "The runs differ only in the seed." in seen.text and "Settings that differ" not in seen.text
    )
    mean, half = mean_and_half(group.values("return_mean"))
    assert f"{mean:,.1f}" in seen.text and f"± {half:,.1f}" in seen.text


def test_result_curves_verdict_and_ring_come_first_and_the_rest_is_folded(
    seeds: Path, three: list[Path]
) -> None:
    seen = whole(of(seeds)[0])
    sentences = [
        one.removeprefix(cause) for one, cause in zip(made.VERDICTS, made.CAUSES, strict=True)
    ]
    at = next(i for i, text in enumerate(seen.texts) if text in sentences)
    assert re.search(r"\d of 5 seeds agree", seen.text)
    order = [seen.texts.index(title) for title in ("return", "Learning", "Bottleneck")]
    assert [*order, at, seen.texts.index("The ring")] == sorted(
        [*order, at, seen.texts.index("The ring")]
    )
    for text in (of(seeds)[0], of(*three)[0]):
        rest = text.partition("The ring</h2>")[2]
        assert "<section><h2>" not in rest and rest.count('<section class="folded">') >= 6
        assert "<details open><summary><h2>" not in text


def test_three_runs_are_compared(three: list[Path]) -> None:
    seen = whole(of(*three)[0])
    groups = grouped(read(three)[0])
    assert [group.name for group in groups] == [
        "CartPole-v1 ppo, actors 2, gamma 0.99",
        "CartPole-v1 ppo, actors 20, gamma 0.9",
        "CartPole-v1 impala",
    ]
    assert differences(groups) == {
        "algorithm.name": ["ppo", "ppo", "impala"],
        "algorithm.gamma": ["0.99", "0.9", "0.99"],
        "placement.actors": ["2", "20", "2"],
    }
    assert "Settings that differ" in seen.text and "20 actors" in seen.text
    assert (
        seen.tags.count("figure") > 6
        and sum(value == "ring" for _, key, value in seen.attributes if key == "class") == 3
    )


def test_settings_have_the_names_of_set() -> None:
    found = flat(made.program(gamma=0.9))
    assert (
        found["algorithm.gamma"] == "0.9"
        and found["policy.unroll"] == "64"
        and found["optimizer.name"] == "adam"
    )
    assert found["placement.actors"] == "2" and found["source.env.target"] == "CartPole-v1"
    two = made.program()
    two["policies"] |= {"other": two["policies"]["main"]}
    assert flat(two)["other.algorithm.gamma"] == "0.99" and flat(two)["main.policy.batch"] == "32"


def test_a_run_that_goes_on_is_told_of(tmp_path: Path) -> None:
    place = made.run(tmp_path / "run", summary=False)
    assert "still running" not in whole(of(place)[0]).text
    fd = os.open(place, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        assert (
            "The run is still running: the page shows what was known at" in whole(of(place)[0]).text
        )
    finally:
        os.close(fd)


def test_a_run_with_one_record_has_a_page(tmp_path: Path) -> None:
    seen = whole(of(made.run(tmp_path / "run", reports=1, summary=False))[0])
    assert (
        "No episode has ended yet, so there is no return." in seen.text
        and "Too early to say" in seen.text
    )
    seen = whole(of(made.run(tmp_path / "other", reports=1))[0])
    assert "The ring" in seen.text


def test_runs_that_do_not_overlap_are_drawn_each(tmp_path: Path) -> None:
    one = made.run(tmp_path / "a", reports=30, seed=0)
    made.run(tmp_path / "b", reports=30, seed=1)
    lines = [json.loads(line) for line in (one / "metrics.jsonl").read_text().splitlines()]
    made.write_lines(one, [line | {"env_steps": line["env_steps"] + 10**6} for line in lines])
    whole(of(tmp_path)[0])
    (group,) = grouped(read([tmp_path])[0])
    assert [line.faint for line in learning.lines_of(group, "return")] == [False, False]


def test_remedies_stand_below_the_verdict(tmp_path: Path) -> None:
    remedy = {
        "change": "--actors <4>",
        "costs": "two cores",
        "steps_per_s": 900.0,
        "gain": 1.5,
        "low": 1.2,
        "high": 1.81,
    }
    unsure = remedy | {"change": "--unsure 1", "low": 0.64}
    said = {"remedies": [unsure, *[remedy] * 9]}
    seen = whole(of(made.run(tmp_path / "run", said=said))[0])
    assert "--unsure 1" not in seen.text, "it may make the run slower"
    assert (
        seen.texts.count("--actors <4>") == 4
        and "× 1.50  1.20 to 1.81" in seen.text
        and "two cores" in seen.texts
    )
    assert seen.texts.index("--actors <4>") < seen.texts.index("The ring")


ALARM = {
    "name": "flat return",
    "owner": "policy main",
    "evidence": "entropy 0.01",
    "action": "raise it",
    "step": 12_000,
    "wall_s": 80.0,
}


def test_alarms_are_shown_where_a_run_knows_them(tmp_path: Path) -> None:
    assert "Alarms" not in whole(of(made.run(tmp_path / "old"))[0]).text
    assert "No alarms." in whole(of(made.run(tmp_path / "well", said={"alarms": []}))[0]).text
    notes = ["warning: alarm: flat return (policy main)", "warning: mind", "said"]
    seen = whole(of(made.run(tmp_path / "ill", said={"alarms": [ALARM], "notes": notes}))[0])
    assert (
        "flat return" in seen.text
        and "(policy main, at 1:20, step 12k): entropy 0.01; raise it" in seen.text
    )
    assert (
        "mind" in seen.texts
        and "said" in seen.texts
        and not any("alarm: flat" in text for text in seen.texts)
    )


@pytest.mark.thorough
def test_many_runs_of_many_workers_stay_small(tmp_path: Path) -> None:
    for i in range(24):
        made.run(tmp_path / f"run_{i}", actors=64 if i < 6 else 2, reports=60, gamma=0.9 + i / 1000)
    assert len(page(read([tmp_path])[0]).encode()) < MOST_BYTES


# --------------------------------------------------------------------------------------- what hurts


HOSTILE = (
    "<script>alert(1)</script>",
    '" onload="x',
    "'><img src=x onerror=y>",
    "</style></title><b>",
    "&lt;&amp;",
    "javascript:x",
    "x" * 10_000,
    "日本語 🦊 é\u0301",
    "\u202egnp.exe",
    "\x1b[31m\x00",
    "<!--",
    "]]>",
    "@import url(http://a.b/c)",
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.few(4)
def test_text_of_a_file_is_only_text(text: str, tmp_path: Path) -> None:
    said = {
        "notes": [text, f"warning: {text}"],
        "cause": text,
        "verdict": text,
        "status": "completed",
    }
    place = made.run(
        tmp_path / "run",
        env=text,
        algorithm=text,
        said={**said, "alarms": [ALARM | {"name": text, "owner": text}]},
    )
    other = made.run(tmp_path / "other", said=said)
    file = json.loads((place / "run.json").read_text())
    file["host"], file["resumed"] = (
        {"name": text, "cores": text},
        [{"step": text, "changes": {text: text}}],
    )
    (place / "run.json").write_text(json.dumps(file))
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        worker = line["balance"].pop("actor 0") | {"kind": text[:100]}
        line |= {
            "balance": {text: worker, **line["balance"]},
            "metrics": {text: 1.0},
            "cause": text,
            "verdict": text,
            "info": {text: 2.0},
        }
        line["sites"] = {text: {"workers": [text], "received": 1, "sent": 2, "lost": 3}}
    made.write_lines(place, lines)
    (place / "summary.json").write_text(
        json.dumps(
            json.loads((place / "summary.json").read_text()) | {"balance": lines[-1]["balance"]}
        )
    )
    seen = whole(of(place, other)[0])
    assert max(map(len, seen.texts)) < 3000, "what is very long is cut"
    if len(text) < 100 and text.isprintable():
        assert any(text in found for found in seen.texts), "and what is short is there as it was"


def test_a_run_directory_may_have_any_name(tmp_path: Path) -> None:
    place = made.run(tmp_path / "<b>&\"' 日本 --x")
    assert "<b>&\"' 日本 --x" in whole(of(place)[0]).text


def test_huge_numbers_are_drawn(tmp_path: Path) -> None:
    place = made.run(tmp_path / "run")
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines):
        line |= {
            "return_mean": (-1) ** i * 1e99,
            "metrics": {"loss": 10.0 ** (4 * i)},
            "wall_s": 1e-3 * i,
            "lag_mean": None,
        }
    made.write_lines(place, lines)
    whole(of(place)[0])


# ---------------------------------------------------------------------------------- what it refuses


def test_the_command_writes_the_page(seeds: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    result = call(seeds, "--out", out)
    assert result.exit_code == 0 and result.stdout.startswith(f"wrote {out}: 5 runs, "), (
        result.output
    )
    whole(out.read_text())
    assert call(seeds / "seed_0", "--out", out).exit_code == 0, "an earlier report is replaced"
    assert "seed_1" not in out.read_text()


def test_a_place_that_is_no_run(seeds: Path, tmp_path: Path) -> None:
    near = refused(seeds / "seed_9")
    assert "expected a run or a folder with runs, got none" in near and "did you mean" in near
    (tmp_path / "empty").mkdir()
    assert "got a folder without" in refused(tmp_path / "empty")
    assert "got a file" in refused(seeds / "seed_0" / "run.json")
    assert "expected each run once, got" in refused(seeds, seeds / "seed_0") and "twice" in refused(
        seeds, seeds
    )
    (tmp_path / "link").symlink_to(seeds / "seed_0")
    assert "twice" in refused(seeds / "seed_0", tmp_path / "link")


def test_a_run_without_reports(tmp_path: Path) -> None:
    place = made.run(tmp_path / "runs" / "empty", reports=0, summary=False)
    assert (
        "expected a run with reports in metrics.jsonl, got one that was killed before its first "
        "one" in refused(place)
    )
    (place / "metrics.jsonl").unlink()
    assert "that was killed before its first one" in refused(place)
    assert "got none" in refused(tmp_path / "runs"), "nor has a folder with nothing else"
    made.run(tmp_path / "runs" / "whole")
    result = call(tmp_path / "runs", "--out", tmp_path / "x.html")
    assert (
        result.exit_code == 0
        and "the run is left out" in result.stderr
        and "1 run," in result.stdout
    )


def test_damaged_lines_are_left_out_and_told(tmp_path: Path) -> None:
    place = made.run(tmp_path / "run")
    lines = (place / "metrics.jsonl").read_text().splitlines()
    lines[3], lines[5] = lines[3][:50], json.dumps(json.loads(lines[5]) | {"balance": 3})
    (place / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    result = call(place, "--out", tmp_path / "x.html")
    assert (
        result.exit_code == 0
        and "line 4: expected JSON" in result.stderr
        and "1 lines more" in result.stderr
    )
    assert "is left out" in whole((tmp_path / "x.html").read_text()).text
    made.write_lines(place, [{"env_steps": 1, "updates": 1, "final": False}])
    assert "metrics.jsonl, report 1" in refused(place) and "expected" in refused(place)


def test_a_share_that_is_a_little_below_zero_counts_as_none(tmp_path: Path) -> None:
    place = made.run(tmp_path / "run", summary=False)
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    lines[5]["balance"]["actor 0"] |= {"starved": -0.002, "asleep": -0.001}
    made.write_lines(place, lines)
    (one,), warned = read([place])
    assert warned == [] and one.balance["actor 0"]["starved"] == sum(
        line["balance"]["actor 0"]["starved"]
        for line in lines
        if line["balance"]["actor 0"]["starved"] > 0
    )
    whole(page([one]))


def test_a_run_of_another_version(tmp_path: Path) -> None:
    place = made.run(tmp_path / "run")
    file = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps(file | {"versions": {"equipoise": "0.0.3"}}))
    result = call(place, "--out", tmp_path / "x.html")
    assert (
        result.exit_code == 0
        and f"a run of equipoise 0.0.3, read by {equipoise.__version__}" in result.stderr
    )
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    made.write_lines(
        place, [{key: value for key, value in line.items() if key != "balance"} for line in lines]
    )
    assert (
        f"expected a run of equipoise {equipoise.__version__}, got one of 0.0.3, which differs: "
        in refused(place)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"program": {}}, "program.source: expected a value, got none"),
        ({"program": 3}, "expected a JSON object"),
        (
            {"program": {"source": 3, "policies": {}, "schedule": {}}},
            "program.source: expected a JSON object, got 3",
        ),
        ({"host": 3}, "host"),
        ({"versions": []}, "versions"),
    ],
)
def test_a_run_json_that_is_none(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    place = made.run(tmp_path / "run")
    file = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps(file | change))
    line = refused(place)
    assert said in line and "run.json" in line


def test_a_summary_that_does_not_fit(tmp_path: Path) -> None:
    place = made.run(tmp_path / "run", said={"balance": {"actor 0": {"worked": "long"}}})
    assert "summary.json" in refused(place)


def test_where_no_page_can_be_written(seeds: Path, tmp_path: Path) -> None:
    assert f"expected a file, got a directory; did you mean '{tmp_path}/report.html'?" in refused(
        seeds, "--out", tmp_path
    )
    mine = tmp_path / "mine.html"
    mine.write_text("<html>my own page</html>")
    assert (
        "got another file, which stays" in refused(seeds, "--out", mine)
        and mine.read_text() == "<html>my own page</html>"
    )
    assert "expected a file that ends in .html, got '.pdf'" in refused(
        seeds, "--out", tmp_path / "x.pdf"
    )


def test_too_many_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.report.runs.MOST_RUNS", 2)
    for i in range(3):
        made.run(tmp_path / f"{i}", seed=i, reports=3)
    assert "expected at most 2 runs in one report, got 3; name fewer of them" in refused(tmp_path)
