"""Sections of the page as HTML; a section without content is None."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence

from rich.filesize import decimal

from equipoise.console.picture import clock, took
from equipoise.console.place import number
from equipoise.record.described import clipped
from equipoise.record.ring import short
from equipoise.report.elements import (
    NONE,
    folded_section,
    lags_of,
    mean_text,
    more,
    named,
    note_of,
    section,
    short_name,
    table,
    tiles,
)
from equipoise.report.figures import sample
from equipoise.report.markup import LONGEST_SENTENCE, Html, joined, tag
from equipoise.report.runs import Entry, Group, RunRecord, differences

MOST_NOTES = 40  # of a run
MOST_SAID = 200  # of a page
MOST_REMEDIES = 4


# ------------------------------------------------------------------------------------------ the top


def title_of(groups: Sequence[Group]) -> str:
    if len(groups) == 1:
        return groups[0].name + (f", {groups[0].seeds}" if groups[0].seeds else "")
    envs = {one.row.env.rpartition(":")[2] for group in groups for one in group.runs}
    of = clipped(envs.pop(), 80) if len(envs) == 1 else f"{len(envs)} envs"
    return f"{sum(len(group.runs) for group in groups)} runs of {of}, {len(groups)} settings"


def top(groups: Sequence[Group], now: float, version: str) -> Html:
    """The title and the result: the numbers that people look for first."""
    moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(now))
    running = sum(one.running for group in groups for one in group.runs)
    of = sum(len(group.runs) for group in groups)
    still = None
    if running:
        is_are = "is" if running == 1 else "are"
        said = (
            "The run is still running"
            if of == 1
            else f"{running} of {of} runs {is_are} still running"
        )
        still = tag("p", f"{said}: the page shows what was known at {moment}.", class_="still")
    return tag(
        "header",
        tag("h1", title_of(groups)),
        tag("p", f"{moment} · equipoise {version}", class_="note"),
        still,
        _tiles(groups[0]) if len(groups) == 1 else _compared(groups),
    )


def verdicts_section(groups: Sequence[Group]) -> Html:
    """The bottleneck of each group in large, and suggestions."""
    each = (_verdict(group, alone=len(groups) == 1) for group in groups)
    return section("Bottleneck", *each)


def _compared(groups: Sequence[Group]) -> Html:
    """The result of each group: a row of means over its runs."""
    columns = (("return_mean", 1), ("evaluation", 1), ("steps_per_s", 0))
    rows = [
        (
            named(group.style, group.name),
            group.seeds or "1 run",
            *("".join(mean_text(group.values(key), decimals)) for key, decimals in columns),
            clock(max(group.values("wall_s"))),
        )
        for group in groups
    ]
    several = any(len(group.runs) > 1 for group in groups)
    head = ("settings", "runs", "return", "evaluation", "steps/s", "time")
    half = "± is half of Student's 95 % interval of the mean over runs."
    shown = table(head, rows, texts=2, class_="cards")
    return tag("div", shown, note_of(half if several else None), class_="results")


def _verdict(group: Group, *, alone: bool) -> Html:
    judged = group.judged
    cause, sentence = clipped(judged.cause), clipped(judged.verdict, LONGEST_SENTENCE)
    causes = group.causes()
    beside = None
    if len(group.runs) > 1:
        (_, agree), *others = causes.most_common()
        beside = f"{agree} of {group.seeds} agree" + "".join(
            f"; {n} {clipped(name, 40)}" for name, n in others
        )
    return tag(
        "div",
        None if alone else tag("p", sample(group.style), tag("bdi", group.name), class_="of"),
        tag(
            "p",
            tag("strong", cause),
            *_options_whole(sentence.removeprefix(cause)),
            class_="sentence",
        ),
        note_of(beside),
        _remedies(judged),
        class_="verdict",
    )


def _remedies(one: RunRecord) -> Html | None:
    """Suggestions with their gain and cost, as the model of the ring predicts them."""
    items = [tag("li", *_remedy(remedy)) for remedy in one.remedies[:MOST_REMEDIES]]
    if not items:
        return None
    head = tag(
        "p",
        "Suggestions: predicted steps/s as a multiple of the present rate, and the cost.",
        class_="note",
    )
    return joined(head, tag("ol", *items, class_="remedies"))


def _remedy(remedy: Entry) -> tuple[Html, ...]:
    interval = tag("span", f"{remedy['low']:.2f} to {remedy['high']:.2f}", class_="note")
    return (
        tag("bdi", clipped(remedy["change"], 80), class_="change"),
        tag("span", f"× {remedy['gain']:.2f} ", interval, class_="num"),
        tag("span", clipped(remedy["costs"], 120), class_="note"),
    )


def _options_whole(text: str) -> list[Html | str]:
    """The text in parts, so that no line breaks within an option such as --max-lag."""
    parts = re.split(r"(--[\w-]{1,30})", text)
    return [tag("span", part, class_="whole") if i % 2 else part for i, part in enumerate(parts)]


def _tiles(group: Group) -> Html:
    found = [
        ("return", *mean_text(group.values("return_mean"), 1), "last 100 episodes"),
        ("evaluation", *mean_text(group.values("evaluation"), 1), "fresh episodes"),
        ("steps/s", *mean_text(group.values("steps_per_s"), 0), "env steps, learned from"),
        (group.first.lag_name, *mean_text(lags_of(group), 2), "versions, mean"),
        (
            "time",
            clock(max(group.values("wall_s"))),
            "",
            "the longest" if len(group.runs) > 1 else "h:m:s",
        ),
    ]
    return tiles([one for one in found if one[1] != NONE])


# ----------------------------------------------------------------------------------------- the runs


def runs_section(groups: Sequence[Group], now: float) -> Html:
    head = (
        "run",
        "state",
        "verdict",
        "seed",
        "steps",
        "steps/s",
        "return",
        "evaluation",
        "lag",
        "time",
        "size",
        "age",
    )
    rows = []
    for group in groups:
        for one in group.runs:
            at = one.row
            name = named(group.style, one.name)
            rows.append(
                (
                    name,
                    "still running" if one.running else at.status,
                    clipped(at.verdict or NONE, 40),
                    NONE if at.seed is None else str(at.seed),
                    short(at.steps),
                    number(at.steps_per_s, 0),
                    number(at.return_mean),
                    number(at.evaluation),
                    _lag(one),
                    clock(at.wall_s),
                    decimal(at.size),
                    _age(now - at.changed),
                )
            )
    return folded_section("Runs", table(head, rows, texts=3, class_="cards"))


def _lag(one: RunRecord) -> str:
    lag = (
        one.summary["lag"]
        if one.summary
        else {"mean": one.last["lag_mean"], "max": one.last["lag_max"]}
    )
    return (
        NONE if lag["mean"] is None else f"{number(lag['mean'], 2)} (max {number(lag['max'], 0)})"
    )


def _age(seconds: float) -> str:
    return f"{seconds / 86_400:.0f} d" if seconds >= 2 * 86_400 else took(max(seconds, 0.0))


# --------------------------------------------------------------------------------------- the others


def evaluations_section(groups: Sequence[Group]) -> Html | None:
    rows = []
    for group in groups:
        for one in group.runs:
            found = [line["evaluation"] for line in one.lines if line["evaluation"] is not None]
            last = (one.summary or {}).get("evaluation") or (found[-1] if found else None)
            if last is None:
                continue
            best = (one.summary or {}).get("best_evaluation") or max(
                found, key=lambda e: e["mean"] or 0.0, default=last
            )
            rows.append(
                (
                    named(group.style, short_name(one)),
                    f"{number(last['mean'])} ± {number(last['std'])}",
                    str(last["episodes"]),
                    f"{number(best['mean'])} ± {number(best['std'])}",
                    short(best["env_steps"]) if best.get("env_steps") else NONE,
                )
            )
    note = "Fresh episodes of the deterministic policy; ± is their standard deviation."
    return (
        folded_section(
            "Evaluation",
            table(("run", "last", "episodes", "best", "at step"), rows, class_="cards"),
            note=note,
        )
        if rows
        else None
    )


def settings_section(groups: Sequence[Group]) -> Html:
    found = differences(groups)
    every = "".join(
        f"{key} = {clipped(value, 400)}\n" for key, value in groups[0].first.settings.items()
    )
    whole = more(f"all settings of {clipped(groups[0].name, 60)}", tag("pre", every))
    if not found:
        alike = "The runs differ only in the seed." if len(groups[0].runs) > 1 else None
        return folded_section("Settings", whole, note=alike)
    head = ("setting", *(group.name for group in groups))
    rows = [
        (tag("code", clipped(key, 80)), *(clipped(value, 80) for value in values))
        for key, values in found.items()
    ]
    return folded_section(
        "Settings that differ", tag("div", table(head, rows), class_="scroll"), whole
    )


def resources_section(groups: Sequence[Group]) -> Html | None:
    """The machine, the cores that workers used, rows, and traffic with other machines."""
    rows = []
    for group in groups:
        for one in group.runs:
            host = one.run.get("host") or {}
            rows.append(
                (
                    named(group.style, short_name(one)),
                    clipped(str(host.get("name", NONE)), 40),
                    clipped(str(host.get("cores", NONE)), 40),
                    _cores(one),
                    _count(one, "inserted"),
                    _count(one, "sampled"),
                    _count(one, "dropped"),
                )
            )
    head = ("run", "machine", "cores", "cores at work", "rows in", "rows learned", "rows dropped")
    note = (
        "Cores at work: seconds of work of all workers in a second of the run; further threads "
        "of a learner do not count."
    )
    return folded_section(
        "Resources", table(head, rows, texts=2, class_="cards"), *_traffic(groups), note=note
    )


def _cores(one: RunRecord) -> str:
    lines = [line for line in one.lines if not line["final"]]
    worked = sum(
        max(w["worked"] - max(w.get("asleep", 0.0), 0.0), 0.0)
        for line in lines
        for w in line["balance"].values()
    )
    return f"{worked / lines[-1]['wall_s']:.2f}" if lines and lines[-1]["wall_s"] > 0 else NONE


def _count(one: RunRecord, name: str) -> str:
    found = ((one.summary or {}).get("rows") or {}).get(name)
    return short(found) if isinstance(found, int) else NONE


def _traffic(groups: Sequence[Group]) -> list[Html]:
    rows = []
    for group in groups:
        for one in group.runs:
            for name, site in ((one.summary or one.last).get("sites") or {}).items():
                rows.append(
                    (
                        tag("bdi", f"{short_name(one)}: {clipped(name, 40)}"),
                        str(len(site["workers"])),
                        decimal(int(site["received"])),
                        decimal(int(site["sent"])),
                        str(site["lost"]),
                    )
                )
    return (
        [table(("site", "workers", "received", "sent", "times lost"), rows, class_="cards")]
        if rows
        else []
    )


def alarms_section(groups: Sequence[Group]) -> Html | None:
    """The alarms of each run: sign, owner, moment, evidence and action."""
    runs = [(group, one) for group in groups for one in group.runs if one.alarms is not None]
    if not runs:
        return None
    items = [_alarm(group, one, alarm) for group, one in runs for alarm in one.alarms or ()]
    if not items:
        return section("Alarms", tag("p", "No alarms.", class_="note"))
    return section("Alarms", tag("ul", *items[:MOST_SAID], class_="notes"))


def _alarm(group: Group, one: RunRecord, alarm: Entry) -> Html:
    sign = tag("strong", clipped(alarm["name"], 80))
    owner, moment = (
        clipped(alarm["owner"], 80),
        f"{clock(alarm['wall_s'])}, step {short(alarm['step'])}",
    )
    text = clipped(f"{alarm['evidence']}; {alarm['action']}", LONGEST_SENTENCE)
    return _said(group, one, tag("bdi", sign, f" ({owner}, at {moment}): {text}"), "alarm")


def notes_section(groups: Sequence[Group]) -> Html | None:
    """Damaged lines, resumes, and the notes of each run."""
    items, hidden = [], 0
    for group in groups:
        for one in group.runs:
            notes = [
                note
                for note in one.notes
                if one.alarms is None or not note.startswith("warning: alarm:")
            ]
            said = [
                *(f"warning: {line}; it is left out" for line in one.left_out),
                *_resumes(one),
                *notes,
            ]
            hidden += max(len(said) - MOST_NOTES, 0)
            items += [_note(group, one, note) for note in said[:MOST_NOTES]]
    hidden += max(len(items) - MOST_SAID, 0)
    rest = note_of(f"{hidden} more are in the runs' summary.json." if hidden else None)
    return (
        folded_section("Notes", tag("ul", *items[:MOST_SAID], class_="notes"), rest)
        if items
        else None
    )


def _said(group: Group, one: RunRecord, said: Html, kind: str) -> Html:
    mark = tag(
        "span",
        {"warning": "!", "alarm": "!!", "note": "·"}[kind],
        class_="mark",
        aria_hidden="true",
    )
    unseen = tag("span", f"{kind}: ", class_="unseen")
    whose = tag("span", sample(group.style), short_name(one), class_="note")
    return tag("li", mark, tag("span", unseen, said), whose, class_=kind)


def _note(group: Group, one: RunRecord, note: str) -> Html:
    text = clipped(note.removeprefix("warning: "), LONGEST_SENTENCE)
    return _said(group, one, tag("bdi", text), "warning" if note.startswith("warning:") else "note")


def _resumes(one: RunRecord) -> list[str]:
    found = one.run.get("resumed")
    return [
        f"resumed at step {at.get('step')}"
        + (f" with {json.dumps(at['changes'])}" if at.get("changes") else "")
        for at in (found if isinstance(found, list) else ())
        if isinstance(at, Mapping)
    ]
