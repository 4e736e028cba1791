"""The ring as text: every number of a report is there, within 80 columns, with and without colour
and UTF-8.
"""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from equipoise import api
from equipoise.balance.alarms import Alarm
from equipoise.balance.remedies import Remedy
from equipoise.balance.shares import STATES, Shares
from equipoise.balance.verdict import WAITING
from equipoise.console import pages, terminal
from equipoise.console.bars import MARKS, balance_lines, cells_of
from equipoise.console.pages import Shown
from equipoise.console.picture import (
    MOST_ALARMS,
    History,
    also,
    clock,
    line_parts,
    site_lines,
    sparkline,
    took,
)
from equipoise.console.place import number
from equipoise.console.terminal import View, look_command, print_summary, safe
from equipoise.record.report import Evaluating, SiteStats
from equipoise.record.ring import short
from equipoise.types import EnvFactory
from tests.cli.samples import BALANCE, VERDICT, evaluation, program, report, summary


def rendered(renderable, *, width=80, encoding="utf-8", **console):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    made = Console(file=file, width=width, highlight=False, **console)
    made.print(safe(renderable, made))
    return raw.getvalue().decode(encoding)


def compact(*given):
    return "  ".join(line_parts(*given))


def history(returns=(), evaluated=None):
    made = History()
    for step, value in enumerate(returns):
        made.returns.add(step, value)
    made.evaluation = evaluated
    return made


def test_the_picture_holds_the_whole_report():
    text = rendered(pages.view(report(), program(), history([1, 5, 9], evaluation()), on="process"))
    for part in (
        "CartPole-v1 · toy · seed 0 · process",
        "▶ 2 actors × 64 envs ",
        "queue",
        "learner",
        "weights (max lag 1)",
        "123,457 steps/s",
        "82.1 updates/s",
        "lag 0.4 (max 1)",
        "return 215.3",
        "1,203 episodes",
        "length 215",
        "evaluation 487.2 ± 20.1  20 episodes at 120k steps",
        "42 %",
        "210k of 500k steps",
        "1:12 elapsed, ETA 2:50",
    ):
        assert part in text, part
    assert VERDICT in " ".join(text.split())
    assert "frames/s" not in text  # the same as steps
    assert "solved" not in text


def test_what_else_would_help_is_a_line():
    """The first remedy stands in the verdict."""
    names = ("--actors 8", "--max-lag 2", "--learners 2")
    remedies = tuple(
        Remedy(change=change, costs="", steps_per_s=1.0, gain=gain, low=1.1, high=2.5)
        for change, gain in zip(names, (2.0, 1.5, 1.25), strict=True)
    )
    unsure = replace(remedies[0], change="--unsure 1", low=0.64)
    assert also(remedies) == "or: --max-lag 2 (1.5 times), --learners 2 (1.2 times)"
    assert also((remedies[0], unsure, *remedies[1:])) == also(remedies), "a loss is no suggestion"
    assert also((remedies[0], unsure)) == ""
    assert "or: --max-lag 2" in rendered(
        pages.view(report(remedies=remedies), program(), history(), on="process")
    )
    assert "or: " not in rendered(
        pages.view(report(remedies=remedies[:1]), program(), history(), on="process")
    )


def test_frames_are_shown_where_they_are_not_steps():
    assert "493,827 frames/s" in rendered(
        pages.view(report(frames=840_000), program(), history(), on="process")
    )


def test_terms_of_the_reward_are_shown_apart():
    metrics = {"policy_loss": 0.1, "reward_env": 1.0, "main/reward_rnd": 0.00534}
    given = (report(metrics=metrics), program(), history())
    for text in (rendered(pages.view(*given, on="process")), compact(*given)):
        assert "reward_env 1 " in f"{text} " and "main/reward_rnd 0.00534" in text
    assert "reward" not in compact(report(metrics={"policy_loss": 0.1}), program(), history())


def test_numbers_of_info_are_shown_everywhere():
    info = {"won/last": 0.75, "won/mean": 0.0125, "episode/r/last": None, "episode/r/mean": None}
    text = rendered(pages.view(report(info=info), program(), history(), on="process"))
    assert (
        "won 0.750 at the end, 0.013 on average" in text
        and "episode/r — at the end, — on average" in text
    )
    assert "won 0.750  episode/r —" in compact(report(info=info), program(), history())
    made = Console(file=io.StringIO(), width=80, highlight=False)
    print_summary(made, summary(info=info), Path("runs/x"))
    assert re.search(
        r"^  won +0.750 at the end, 0.013 on average$", made.file.getvalue(), re.MULTILINE
    )


def test_steps_that_nobody_has_learned_from_yet_are_shown():
    ahead = report(env_steps=0, frames=0, updates=0, taken=3_380, steps_per_s=25.8)
    assert "0 of 500k steps (3.38k taken)" in rendered(
        pages.view(ahead, program(), history(), on="process")
    )
    assert "0 steps (3.38k taken)  26/s" in compact(ahead, program(), history())
    assert "taken" not in compact(report(), program(), history()), "not where it is a batch or two"
    made = Console(file=io.StringIO(), width=80, highlight=False)
    print_summary(made, summary(env_steps=0, taken=3_380), Path("runs/x"))
    assert "0 (3,380 taken) in 1:12" in made.file.getvalue()


def test_the_moment_of_solving_is_shown():
    text = rendered(
        pages.view(report(solved_at_s=12.34), program(), history([], evaluation()), on="process")
    )
    assert "solved after 12.3 s" in text


def test_each_worker_has_a_line_with_its_shares():
    text = rendered(
        pages.view(report(), program(), history(), on="process", shown=Shown(page=pages.WORKERS))
    )
    lines = {line[:9].strip(): line for line in text.splitlines()}
    assert re.findall(r"\d+ %", lines["actor 0"]) == ["60 %", "5 %", "0 %", "35 %"]
    assert re.findall(r"\d+ %", lines["actor 1"]) == ["90 %", "0 %", "10 %", "0 %"]
    assert re.findall(r"\d+ %", lines["learner"]) == ["38 %", "0 %", "62 %", "0 %"]
    assert lines["actor 0"].count(MARKS["worked"]) == 16
    assert lines["actor 0"].count(MARKS["blocked"]) == 10
    assert lines["learner"].count(MARKS["starved"]) == 17
    head = next(line for line in text.splitlines() if "worked" in line)
    for state in STATES:
        assert f"{MARKS[state]} {state}" in head


def test_many_actors_are_one_line():
    many = {"learner": Shares(worked=1)} | {
        f"actor {i}": Shares(worked=1, blocked=i % 2, side="sampling") for i in range(64)
    }
    lines = [line.plain for line in balance_lines(many, rows=8)]
    assert len(lines) == 3
    assert lines[1].startswith("64 actors")
    assert re.findall(r"\d+ %", lines[1]) == ["67 %", "0 %", "0 %", "33 %"]
    assert lines[2].startswith("learner")
    assert len(balance_lines(many, rows=65)) == 66


def test_a_worker_without_time_has_dashes():
    assert balance_lines({"actor 0": Shares()})[1].plain.split() == [
        "actor",
        "0",
        "—",
        "—",
        "—",
        "—",
    ]


EXTREMES = {
    "nothing yet": report(
        env_steps=0,
        frames=0,
        updates=0,
        steps_per_s=0.0,
        updates_per_s=0.0,
        episodes=0,
        return_mean=None,
        length_mean=None,
        remaining_s=None,
        balance={},
        wall_s=0.0,
        lag_mean=0.0,
        lag_max=0,
    ),
    "very much": report(
        env_steps=123_456_789_000,
        frames=493_827_156_000,
        updates=10**9,
        steps_per_s=12_345_678.9,
        updates_per_s=12_345.6,
        episodes=123_456_789,
        return_mean=-1_234_567.8,
        length_mean=108_000.0,
        remaining_s=999_999.0,
        wall_s=999_999.0,
        lag_mean=1234.5,
        lag_max=99_999,
        info={"n" * 90 + "/last": -1.5e12, "n" * 90 + "/mean": None},
    ),
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_eighty_columns_hold_it(name, encoding):
    steps = 500_000_000_000 if name == "very much" else 500_000
    given = program(
        steps=steps, actors=1000, envs_per_actor=1024, max_lag=None, env=EnvFactory(target="x" * 70)
    )
    past = history(
        [float(i) for i in range(1000)],
        evaluation(mean=-123_456.7, std=12_345.6, env_steps=123_456_789),
    )
    text = rendered(pages.view(EXTREMES[name], given, past, on="process"), encoding=encoding)
    widths = {line: cell_len(line) for line in text.splitlines()}
    assert max(widths.values()) <= 80, max(widths, key=lambda line: widths[line])
    assert "999,999" not in text


def test_nothing_that_a_person_needs_is_cut_off():
    """The title and the verdict aside, a line is as long as it must be; rich would cut it without a
    word.
    """
    large = report(
        env_steps=123_456_789,
        frames=493_827_156,
        steps_per_s=1_234_567.8,
        updates_per_s=1234.5,
        episodes=12_345_678,
        return_mean=-12_345.6,
        length_mean=27_000.0,
        remaining_s=86_399.0,
        wall_s=86_399.0,
        lag_mean=12.5,
        lag_max=99,
        solved_at_s=1234.5,
    )
    past = history(
        [float(i) for i in range(1000)],
        evaluation(mean=-12_345.6, std=1234.5, env_steps=123_456_789),
    )
    view = pages.view(
        large,
        program(steps=500_000_000, actors=128, envs_per_actor=1024, max_lag=None),
        past,
        on="process",
    )
    lengths = {
        line.plain: cell_len(line.plain) for line in view.renderables if line.plain != VERDICT
    }
    assert max(lengths.values()) <= 80, max(lengths, key=lambda line: lengths[line])


def test_an_encoding_without_the_signs_gets_plain_ones():
    text = rendered(
        pages.view(report(), program(), history([1, 2], evaluation()), on="process"),
        encoding="ascii",
    )
    assert "# worked" in text
    assert "487.2 ~ 20.1" in text
    assert "?" not in text


def test_colour_is_for_terminals_that_want_it(monkeypatch):
    view = pages.view(report(), program(), history(), on="process")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert f"\x1b[32m{MARKS['worked']}" in rendered(
        view, force_terminal=True, color_system="standard"
    )
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(
        r"\x1b\[[0-9;]*3\dm", rendered(view, force_terminal=True, color_system="standard")
    )


@pytest.mark.parametrize(
    ("shares", "width", "cells"),
    [
        ([1, 0, 0, 0], 10, [10, 0, 0, 0]),
        ([0.25] * 4, 10, [3, 3, 2, 2]),
        ([0.999, 0.001, 0, 0], 10, [10, 0, 0, 0]),
        ([1 / 3, 1 / 3, 1 / 3, 0], 10, [4, 3, 3, 0]),
        ([0, 0, 0, 0], 10, [0, 0, 0, 0]),
    ],
)
def test_cells_fill_the_bar(shares, width, cells):
    assert cells_of(shares, width) == cells


def test_numbers_as_people_read_them():
    counts = {
        0: "0",
        999: "999",
        1000: "1k",
        12_288: "12.3k",
        999_499: "999k",
        999_999: "1M",
        1_500_000: "1.5M",
        2_000_000_000: "2G",
        1_234_000_000_000: "1,234G",
    }
    assert {n: short(n) for n in counts} == counts
    assert [clock(s) for s in (0, 7.9, 754, 3723)] == ["0:00", "0:07", "12:34", "1:02:03"]
    assert [took(s) for s in (12.34, 99.9, 100, 754)] == ["12.3 s", "99.9 s", "1:40", "12:34"]
    assert [number(x) for x in (None, 1234.56, -0.04)] == ["—", "1,234.6", "-0.0"]


def test_the_sparkline_goes_from_the_lowest_to_the_highest():
    assert sparkline([], 5) == ""
    assert sparkline([3.0], 5) == "▁"
    assert sparkline([0, 7], 5) == "▁█"
    assert sparkline([float(i) for i in range(8)], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 0, 10, 10], 2) == "▁█"
    assert len(sparkline([float(i % 7) for i in range(1000)], 30)) == 30


def test_an_evaluation_says_how_far_it_is_also_where_only_the_summary_was_asked_for(monkeypatch):
    done, under_way = (
        {"env_steps": 500_000},
        Evaluating(episodes=3, of=20, steps=12_345, most=100_000),
    )
    said = "evaluating 3 of 20 episodes, step 12,345 (at most 100,000)"
    assert said in rendered(
        pages.view(report(evaluating=under_way), program(), history(), on="process")
    )
    assert compact(report(evaluating=under_way), program(), history()).endswith(f"  {said}")
    for quiet, every in ((True, "QUIET_S"), (False, "LINE_S")):
        monkeypatch.setattr(terminal, every, 0.0)
        console = plain_console()
        with View(program(), on="process", quiet=quiet, console=console) as view:
            for now in (
                report(),
                report(evaluating=under_way),
                report(evaluating=under_way, **done),
            ):
                view.update(now)
        lines = written(console).splitlines()
        assert lines.count(said) == 1, "beside training a quiet run says nothing of it"
        assert not quiet or len(lines) == 1


def test_the_history_keeps_recorded_returns_and_the_last_evaluation():
    made = History()
    for given in (
        report(return_mean=None),
        report(return_mean=1.0),
        report(return_mean=2.0, recorded=False),
        report(return_mean=3.0, evaluation=evaluation()),
        report(return_mean=4.0),
    ):
        made.add(given)
    assert made.returns.values == [1.0, 3.0, 4.0]
    assert made.evaluation == evaluation()


# -------------------------------------------------------------------------------------------- views


def plain_console():
    return Console(file=io.StringIO(), width=80, highlight=False)


def written(console):
    return console.file.getvalue()


def test_a_pipe_gets_a_line_every_five_seconds_and_at_the_end():
    console = plain_console()
    with View(program(), on="process", console=console) as view:
        for wall in (0.4, 1.0, 5.3, 5.5, 9.0, 10.5, 11.0):
            view.update(report(wall_s=wall, evaluation=evaluation() if wall == 9.0 else None))
        view.update(report(wall_s=12.0, final=True))
    lines = written(console).splitlines()
    assert [line.split()[0] for line in lines] == ["0:00", "0:05", "0:10", "0:12"]
    assert "\x1b" not in written(console)
    assert ["evaluation" in line for line in lines] == [False, False, True, True]
    assert lines[-1].endswith("Sampling-bound")
    assert "123,457/s  return 215.3  evaluation 487.2 ± 20.1  lag 0.4 (max 1)" in lines[-1]


def test_a_run_that_waits_for_calls_prints_no_lines_until_one_came():
    console = plain_console()
    with View(program(), on="process", console=console) as view:
        for wall in (1.0, 6.0, 11.0):
            note = ("calls are answered at http://127.0.0.1:8000/v1; waiting for agents",)
            waits = report(wall_s=wall, cause=WAITING.cause, notes=note if wall == 6.0 else ())
            view.update(waits)
        view.update(report(wall_s=16.0))
        view.update(report(wall_s=17.0, cause=WAITING.cause, final=True))
    lines = written(console).splitlines()
    assert "waiting for agents" in lines[0]
    assert [line.split()[0] for line in lines if line[0] in "0123456789"] == ["0:16", "0:17"]


def test_a_line_names_the_cause():
    line = compact(report(cause="Too early to say"), program(), history())
    assert line.endswith("  Too early to say")


def test_quiet_prints_the_summary_only():
    console = plain_console()
    with View(program(), on="process", quiet=True, console=console) as view:
        view.update(report())
        view.update(report(final=True))
    assert written(console) == ""
    view.summarise(summary(), Path("runs/x"))
    assert "equipoise evaluate runs/x" in written(console)


def test_notes_that_came_after_the_last_report_stand_before_the_summary():
    console = plain_console()
    with View(program(), on="process", console=console, told=["from the run before"]) as view:
        view.update(report(notes=("warning: seen",)))
    view.summarise(
        summary(notes=["from the run before", "warning: seen", "warning: no last checkpoint"]),
        Path("runs/x"),
    )
    text = written(console)
    assert (
        text.count("warning: seen") == 1
        and text.count("warning: no last checkpoint\n") == 1
        and "run before" not in text
    )


def test_a_terminal_gets_a_picture_that_goes_away(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    console = Console(
        file=io.StringIO(), width=80, height=24, force_terminal=True, color_system="standard"
    )
    with View(program(), on="process", console=console) as view:
        view.update(report())
        shown = written(console)
        view.update(report(return_mean=999.9))  # within a tenth of a second: not worth a redraw
        assert written(console) == shown
        view.update(report(return_mean=777.7, final=True))
    text = written(console)
    assert "└◀" in shown
    assert "777.7" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back
    assert "\x1b[2K" in text[text.rindex("777.7") :]  # and the picture is erased


def test_a_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=io.StringIO(), width=80, force_terminal=True, highlight=False)
    with View(program(), on="process", console=console) as view:
        view.update(report())
    assert len(written(console).splitlines()) == 1


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({}, "Completed: all steps are done."),
        ({"status": "solved", "solved_at_s": 12.34}, "Solved after 12.3 s."),
        ({"status": "interrupted"}, "Interrupted: the run up to here is saved."),
        ({"status": "failed"}, "Failed: the weights up to here are saved."),
    ],
)
def test_the_summary_begins_with_the_outcome(fields, first):
    console = plain_console()
    print_summary(console, summary(**fields), Path("runs/my run"))
    lines = written(console).splitlines()
    assert lines[0] == first
    text = "\n".join(lines)
    for part in (
        "210,000 in 1:12, 2,905 steps/s, 51 updates",
        "215.3 over the last 100 of 1,203 episodes",
        "487.2 ± 20.1 over 20 episodes",
        "0.4 versions, at most 1",
        VERDICT,
        "equipoise evaluate 'runs/my run'",
    ):
        assert part in text, part
    assert [line[:7] for line in lines if line.startswith(("actor", "learner"))] == list(BALANCE)


@pytest.mark.parametrize(("env", "drawn"), [("CartPole-v1", True), ("device:cartpole", False)])
def test_a_video_is_offered_of_what_draws_itself(env, drawn):
    console = plain_console()
    print_summary(console, summary(), Path("runs/x"), look=look_command(api.program(env, "ppo")))
    assert ("equipoise evaluate runs/x --video" in written(console)) is drawn
    assert "equipoise evaluate runs/x" in written(console)


def test_a_summary_of_a_run_that_ended_at_once():
    console = plain_console()
    nothing = summary(
        status="interrupted",
        env_steps=0,
        episodes=0,
        return_mean=None,
        evaluation=None,
        steps_per_s=None,
        updates=0,
        lag={"mean": None, "max": 0},
        balance={},
        wall_s=0.01,
    )
    print_summary(console, nothing, Path("runs/x"))
    assert "— over the last 0 of 0 episodes" in written(console)
    assert "evaluation  " not in written(console)


def test_the_lag_of_a_replay_is_called_the_age_of_its_rows():
    made = api.program("CartPole-v1", "dqn")
    assert "rows 0.4 versions old (at most 1)" in rendered(
        pages.view(report(), made, history(), on="process")
    )
    assert "rows 0.4 versions old (at most 1)" in compact(report(), made, history())
    console = plain_console()
    View(made, on="process", console=console).summarise(summary(), Path("runs/x"))
    assert "  age of rows " in written(console) and "\n  lag" not in written(console)


def test_the_ring_names_a_replays_shards():
    made = api.program(
        "CartPole-v1", "apex_dqn", recipe=False, actors=2, settings=["replay.shards=2"]
    )
    text = rendered(pages.view(report(), made, history(), on="process"))
    assert "\n│   2 shards " in text and max(map(cell_len, text.splitlines())) <= 80


SITE = SiteStats(
    machine="1a2b3c4d",
    workers=("actor 0", "actor 1"),
    reached=True,
    received=2_500_000,
    sent=40_000,
    lost=0,
    moved=0,
)


def test_a_site_has_a_line_and_many_have_one() -> None:
    two = {"site 0": SITE, "site 1": replace(SITE, machine="", lost=2, moved=1, reached=False)}
    view = pages.view(replace(report(), sites=two), program(), History(), on="ray")
    lines = [line.strip("│ ") for line in rendered(view).splitlines() if "site " in line]
    assert lines[0] == "site 0 on 1a2b3c4d: 2 workers, 2.5 MB received, 40.0 kB sent"
    assert lines[1].startswith(
        "site 1 on no machine: 2 workers, 2.5 MB received, 40.0 kB sent, 2 times"
    )
    assert site_lines(two)[1].endswith("2 times lost, 1 times moved, out of reach")
    assert site_lines({f"site {n}": SITE for n in range(6)}) == [
        "6 sites: 12 workers, 15.0 MB received, 240.0 kB sent, 0 out of reach"
    ]


def alarm(name="memory grows", owner="actor 1", evidence="its memory grew by 30 MB in 30 s"):
    return Alarm(
        name=name, owner=owner, evidence=evidence, action="look in the env", step=1_000, wall_s=31.0
    )


def test_alarms_have_a_line_each_within_80_columns_and_the_newest_win():
    assert "alarm" not in rendered(pages.view(report(), program(), history(), on="process"))
    raised = tuple(alarm(owner=f"actor {i}", evidence="wide " * 30) for i in range(MOST_ALARMS + 2))
    lines = rendered(
        pages.view(report(alarms=raised), program(), history(), on="process")
    ).splitlines()
    shown = [line for line in lines if "alarm" in line]
    assert [re.findall(r"actor \d", line) for line in shown] == [
        [f"actor {i}"] for i in range(2, MOST_ALARMS + 2)
    ] + [[]]
    assert shown[-1].strip() == "and 2 alarms before" and max(map(cell_len, shown)) <= 80


def test_the_summary_lists_the_alarms_and_says_how_to_go_on(tmp_path):
    (tmp_path / "checkpoints/step_1").mkdir(parents=True)
    (tmp_path / "checkpoints/step_1/learner.safetensors").touch()
    made = Console(file=io.StringIO(), width=80, highlight=False)
    told = {
        "name": "memory grows",
        "owner": "actor 1",
        "evidence": "",
        "action": "",
        "step": 1_000,
        "wall_s": 31.0,
    }
    print_summary(made, summary(status="alarmed", alarms=[told]), tmp_path)
    text = made.file.getvalue()
    assert (
        text.startswith("Ended by an alarm")
        and "memory grows (actor 1) at step 1,000" in text
        and "equipoise resume" in text
    )


def test_a_run_that_ended_before_its_first_checkpoint_is_not_told_to_be_resumed(
    tmp_path: Path,
) -> None:
    for status, made, said in [
        ("interrupted", False, "it ended before its first checkpoint"),
        ("interrupted", True, f"equipoise resume {tmp_path}"),
        ("completed", False, "Next:\n  equipoise evaluate"),
    ]:
        if made:
            file = tmp_path / "checkpoints" / "step_10" / "learner.safetensors"
            file.parent.mkdir(parents=True)
            file.touch()
        out = io.StringIO()
        print_summary(Console(file=out, width=200), summary(status=status), tmp_path)
        assert said in out.getvalue()
