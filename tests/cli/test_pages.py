"""The pages of the live view: at 60, 80 and 140 columns, with and without colour, within the lines
of the terminal.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from equipoise import api
from equipoise.balance.alarms import Alarm
from equipoise.balance.remedies import Remedy
from equipoise.balance.shares import Shares
from equipoise.console.braille import MOST_POINTS, Series, plot
from equipoise.console.pages import ALARMS, PAGES, REMEDIES, RING, WORKERS, Shown, view
from equipoise.console.picture import History, brief, loss_of
from equipoise.console.ring import ring_lines
from equipoise.console.terminal import safe
from equipoise.record.report import Report
from equipoise.types import Program
from tests.cli.samples import BALANCE, evaluation, program, report

REMEDY = Remedy(
    change="--actors 4",
    costs="4 processes that step envs",
    steps_per_s=221_345.0,
    gain=1.8,
    low=1.6,
    high=2.0,
)
ALARM = Alarm(
    name="memory grows",
    owner="actor 1",
    evidence="its memory grew by 30 MB in 30 s, 1 MB/s, to 312 MB, and goes on growing",
    action="look for what the env keeps of every episode",
    step=1_000,
    wall_s=31.0,
)
ACTOR = replace(BALANCE["actor 0"], parts={"env": 4.0, "act": 2.0}, counts={"env": 1e6, "act": 1e3})
NOW = report(
    balance={**BALANCE, "actor 0": ACTOR},
    remedies=(REMEDY, replace(REMEDY, change="--max-lag 2", costs="")),
    alarms=(ALARM,),
    moved={"written": 20_000_000, "read": 20_000_000, "batches": 0, "weights": 2_000_000},
    occupancy={"queue": 0.8},
    usage={"actor 0": {"cpu_s": 3.0, "rss": 3e8}},
    printed={"actor 0": (3, "a line of \x1b[31mthe env")},
    aborted=2,
)


def past(now: Report = NOW) -> History:
    """The reports of two seconds, in which 200,000 steps were taken."""
    made, idle = History(), dict.fromkeys(now.moved, 0)
    usage = {"actor 0": {"cpu_s": 1.2, "rss": 3e8}}
    before = replace(
        now,
        wall_s=now.wall_s - 2.0,
        taken=14_000,
        moved=idle,
        usage=usage,
        notes=("warning: a note " * 12,),
    )
    made.add(replace(before, evaluation=evaluation()))
    made.add(now)
    return made


def drawn(
    width: int,
    *,
    colour: bool = False,
    now: Report = NOW,
    of: Program | None = None,
    encoding: str = "utf-8",
    **more: Any,
) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    console = Console(
        file=file,
        width=width,
        highlight=False,
        force_terminal=colour,
        color_system="standard" if colour else None,
        _environ={},
    )
    console.print(
        safe(view(now, of or program(), past(now), on="process", width=width, **more), console)
    )
    return raw.getvalue().decode(encoding)


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]{2,}", text))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("page", ["", *PAGES])
@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_page_has_the_columns_of_the_terminal_and_whole_words(
    width: int, page: str, encoding: str
) -> None:
    given: dict[str, Any] = {"shown": Shown(page=page, parts=True), "encoding": encoding}
    text, large = drawn(width, **given), drawn(1000, **given)
    assert max(map(cell_len, text.splitlines())) <= width and "?" not in text
    missing = words(large) ^ words(text)
    assert missing <= (words("p parts ↑↓ move") if width == 60 else set()), (
        "words are neither cut nor left out"
    )
    assert re.sub(r"\x1b\[[\d;]*m", "", drawn(width, colour=True, **given)) == text, (
        "colour adds nothing but colour"
    )


def test_the_ring_has_flows_and_back_pressure() -> None:
    lines = [line.plain for line in ring_lines(NOW, program(), past(), 80)]
    assert lines[0].startswith("┌─▶ 2 actors × 64 envs  █") and lines[0].endswith("  75 % worked")
    assert lines[1] == "│   ┃┃┃▼  100k steps/s  10.0 MB/s  ▲ actors blocked 18 %"
    assert lines[2].startswith("│   queue ") and lines[2].endswith("  80 % full")
    assert lines[3] == "│   ┃┃┃▼  82.1 updates/s  10.0 MB/s  learner starved 62 %"
    assert lines[4].startswith("│   learner ") and lines[4].endswith("  38 % worked")
    assert lines[5] == "└◀━━ weights (max lag 1)  1.0 MB/s"
    still = [line.plain for line in ring_lines(report(balance={}), program(), History(), 80)]
    assert still[1].rstrip() == "│   ╎▼" and still[5] == "└◀─ weights (max lag 1)", (
        "nothing flows yet"
    )


def test_who_acts_gets_the_weights_and_who_steps_waits_for_answers() -> None:
    balance = {
        "actor 0": Shares(worked=6, starved=4, side="sampling"),
        "inference 0": Shares(worked=1, starved=3, side="sampling", serves=True),
        "learner": Shares(worked=1, side="learning"),
    }
    lines = [
        line.plain
        for line in ring_lines(report(balance=balance), program(inference="central"), History(), 80)
    ]
    assert (
        lines[0].startswith("    2 actors")
        and "actors starved 40 %  inference starved 75 %" in lines[1]
    )
    assert (
        lines[2].startswith("┌─▶ 1 inference worker")
        and lines[3].startswith("│")
        and lines[4].startswith("│   queue")
    )


def test_shards_and_replays_are_on_the_way() -> None:
    settings: dict[str, Any] = {"recipe": False, "actors": 2}
    shards = api.program("CartPole-v1", "apex_dqn", settings=["replay.shards=2"], **settings)
    stores = {"queue": 0.3, "shard 0": 0.5, "shard 1": 0.4}
    balance = BALANCE | {"shard 0": Shares(worked=1, starved=1, side="keeping")}
    lines = [
        line.plain
        for line in ring_lines(report(occupancy=stores, balance=balance), shards, History(), 80)
    ]
    assert "queue 30 % full  ▲ actors blocked 18 %" in lines[
        1
    ] and "shards starved 50 %" in "".join(lines[1:3])
    assert any(
        line.startswith("│   2 shards, 45 % full") and line.endswith("50 % worked")
        for line in lines
    )
    one = api.program("CartPole-v1", "dqn", **settings)
    lines = [
        line.plain
        for line in ring_lines(report(occupancy={"queue": 0.3, "replay": 0.25}), one, History(), 80)
    ]
    assert lines[2].startswith("│   replay") and lines[2].endswith("25 % full")


def test_workers_have_the_parts_of_their_work_on_demand() -> None:
    shown = Shown(page=WORKERS)
    assert "each" not in drawn(80, shown=shown)
    shown.press("p")
    lines = [
        line.split("━")[0].split() + line.split()[-5:]
        for line in drawn(80, shown=shown).splitlines()
        if "each" in line
    ]
    assert lines == [["env", "40", "%", "4", "us", "each"], ["act", "20", "%", "2", "ms", "each"]]
    assert "\n  0.90 cores, 300.0 MB\n" in drawn(80, shown=shown)
    assert [brief(x) for x in (4e-6, 1.234e-3, 0.9999, 12.0)] == ["4 us", "1.23 ms", "1 s", "12 s"]


def test_remedies_have_gain_interval_and_cost_and_alarms_evidence_and_action() -> None:
    text = drawn(80, shown=Shown(page=REMEDIES))
    assert (
        "--actors 4\n  1.80 times the steps/s (1.60 to 2.00): about 221,345\n  costs: 4 processes "
        "that step envs\n" in text
    )
    assert "No change is sure to help" in drawn(80, shown=Shown(page=REMEDIES), now=report())
    text = drawn(80, shown=Shown(page=ALARMS))
    assert "0:31  memory grows (actor 1) at step 1,000\n      its memory grew by 30 MB" in text
    assert (
        "\n      look for what the env keeps of every episode\n" in text
        and "1:10  warning: a note" in text
    )
    assert (
        "actor 0 printed 3 lines, the last: a line of the env" in text
        and "2 episodes aborted" in text
    )
    assert "no alarms" in drawn(80, shown=Shown(page=ALARMS), now=report())


@pytest.mark.parametrize("page", ["", *PAGES])
@pytest.mark.parametrize("height", [6, 12, 23])
def test_a_page_has_the_lines_of_the_terminal_and_moves(page: str, height: int) -> None:
    many = {f"actor {i}": ACTOR for i in range(30)} | {"learner": BALANCE["learner"]}
    now = replace(NOW, balance=many, alarms=(ALARM,) * 20, remedies=(REMEDY,) * 20)
    shown, seen, lines, top = Shown(page=page, parts=True), set[str](), list[str](), 0
    for _ in range(200):
        lines = drawn(80, now=now, shown=shown, height=height).splitlines()
        assert len(lines) <= height and (page == "") == ("Ctrl-C ends" not in lines[-1])
        seen |= set(lines)
        top = shown.top
        shown.press("down")
    assert f"lines {top + 1} to " in "\n".join(lines) or page in ("", RING), (
        "it stands still at the end"
    )
    if page == WORKERS:
        assert {f"actor {i}" for i in range(30)} <= {line[:8].strip() for line in seen}
        shown.press("up")
        assert shown.top == top, "what is pressed at the end does not count"


def test_without_keys_the_workers_stand_below_the_ring_where_there_is_room() -> None:
    assert "actor 0  " in drawn(80, height=40, shown=Shown()) and "actor 0  " not in drawn(
        80, height=17, shown=Shown()
    )
    assert "actor 0  " in drawn(100), "a notebook has room"
    assert "actor 0 printed 3 lines" in drawn(80, height=40) and "printed" not in drawn(
        80, shown=Shown(page=RING)
    )


def test_keys_change_what_is_shown() -> None:
    shown = Shown(page=RING)
    shown.press("2")
    shown.press("p")
    assert (shown.page, shown.parts) == (WORKERS, True)
    shown.press("p")
    assert not shown.parts
    shown.press("3")
    shown.press("p")
    assert (shown.page, shown.parts) == (WORKERS, True), "p goes to the workers"
    shown.press("page down")
    assert shown.top == 10
    assert drawn(80, shown=shown) and shown.top == 0, "all of the page is shown"
    shown.press("page down")
    shown.press("q")
    assert (shown.page, shown.top, shown.quits) == (WORKERS, 10, True)
    shown.press("1")
    assert (shown.page, shown.top, shown.quits) == (RING, 0, False)
    shown.press("q")
    assert "q does not end a run" in drawn(60, shown=shown)
    shown.press("x")
    assert shown.page == RING
    shown.press("1")
    assert (
        drawn(60, shown=shown).splitlines()[-1]
        == "[1 run]  2 workers  3 suggestions  4 alarms (1)  Ctrl-C ends"
    )
    assert (
        drawn(80, shown=shown)
        .splitlines()[-1]
        .endswith("  4 alarms (1)  Ctrl-C ends  p parts  ↑↓ move")
    )


def run_of(reports: int, **fields: Any) -> History:
    made = History()
    for i in range(reports):
        made.add(
            report(
                wall_s=float(i),
                env_steps=1_000 * (i + 1),
                return_mean=float(i * i),
                metrics={"grad_norm/all": 9.0, "policy_loss": 1.0 / (i + 1)},
                **fields,
            )
        )
    return made


def lines_of(width: int, height: int, history: History, page: str = RING) -> list[str]:
    shown = view(
        report(),
        program(),
        history,
        on="process",
        width=width,
        height=height,
        shown=Shown(page=page),
    )
    return [str(line) for line in shown.renderables]


def test_the_return_and_the_verdict_stand_first_in_a_small_terminal() -> None:
    lines = lines_of(60, 13, run_of(30))
    assert lines[2].startswith("return 215.3 ▁") and len(lines) <= 13
    assert any(line.startswith("Sampling-bound") for line in lines)
    assert not any("⠀" in line for line in lines), "a plot needs room"


@pytest.mark.parametrize("page", ["", RING])
def test_a_large_terminal_is_filled_with_curves_of_the_return_and_the_loss(page: str) -> None:
    lines = lines_of(140, 39, run_of(60), page)
    assert 36 <= len(lines) <= 39 and max(map(cell_len, lines)) <= 140
    caption = next(i for i, line in enumerate(lines) if "policy_loss" in line)
    assert "return 215.3" in lines[caption] and "3,481 " in lines[caption + 1]
    assert lines[caption + 1].split()[2:3] == ["1"], "the loss begins at its highest value"
    assert any(line.split()[:4] == ["1k", "60k", "steps", "1k"] for line in lines)
    assert "▁" not in lines[2], "a plot stands in place of the sparkline"
    alone = lines_of(69, 39, run_of(60), page)
    assert any(BRAILLE & set(line) for line in alone) and not any("loss" in one for one in alone)
    assert not any(BRAILLE & set(line) for line in lines_of(140, 39, run_of(1), page))


BRAILLE = {chr(code) for code in range(0x2801, 0x2900)}


def test_a_plot_rises_as_its_numbers_do_and_is_bounded() -> None:
    series = Series()
    for i in range(3 * MOST_POINTS):
        series.add(i, float(i))
    series.add(3 * MOST_POINTS, float("nan"))
    assert len(series.values) <= MOST_POINTS and series.at[-1] == 3 * MOST_POINTS - 1
    caption, top, *middle, bottom, axis = [line.plain for line in plot("x", series, 30, 8, "")]
    assert caption.strip() == "x" and axis.split()[-1] == "steps"
    assert top.split()[0] == "12,287" and bottom.rstrip("⠀")[-1] in BRAILLE
    assert len(top.rstrip("⠀")) == 30 and len(bottom.rstrip("⠀")) < 20
    assert {len(line) for line in (top, *middle, bottom)} == {30}
    flat = Series([1, 2], [5.0, 5.0])
    assert len(plot("x", flat, 30, 8, "")) == 8


def test_a_loss_is_named_by_its_metric() -> None:
    assert loss_of({"a/policy_loss": 1.0, "b/loss": 1.0}) == "b/loss"
    assert loss_of({"grad_norm/all": 1.0}) == "" and loss_of({"value_loss": 1.0}) == "value_loss"


def test_a_verdict_stays_for_thirty_seconds() -> None:
    made = History()

    def shows(wall_s: float, cause: str, **fields: Any) -> str:
        made.add(report(wall_s=wall_s, cause=cause, verdict=f"{cause}: at {wall_s}", **fields))
        return made.verdict

    assert shows(0.5, "Starting").startswith("Starting")
    assert shows(1.0, "Too early to say").startswith("Too early")
    assert shows(2.0, "CPU-bound") == "CPU-bound: at 2.0", "nothing is held back at the start"
    assert shows(20.0, "Learning-bound") == "CPU-bound: at 2.0"
    assert shows(31.0, "CPU-bound") == "CPU-bound: at 31.0", "its numbers are those of now"
    assert shows(32.5, "Learning-bound") == "Learning-bound: at 32.5"
    assert shows(33.0, "CPU-bound") == "Learning-bound: at 32.5"
    assert shows(34.0, "CPU-bound", final=True) == "CPU-bound: at 34.0"
