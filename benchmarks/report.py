"""A page of results from what matrix.py wrote: tables in Markdown, a plot a case.

    .venv/bin/python benchmarks/report.py matrix.json [more.json ...] --page
    docs/results/throughput.md

Several files are one page: cases may have been measured apart. The plots (SVG, beside the page)
need the extra ``bench``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import markdown, median
from rows import RATIOS, ROWS
from work import CONTRACTS

Runs = Sequence[Mapping[str, Any]]
PEERS = {  # a row's venv -> the name of the library
    "sf": "Sample Factory",
    "sb3": "Stable-Baselines3",
    "rllib": "RLlib",
    "puffer": "PufferLib",
    "torchrl": "TorchRL",
}
HOW = {"serial": "serial", "async": "asynchronous", "1": "one thread"}  # words of a row's name
TITLES = {"cartpole": "CartPole-v1", "halfcheetah": "HalfCheetah-v5", "pong": "Pong, 84 x 84 x 4"}


def of_row(runs: Runs, name: str) -> list[Mapping[str, Any]]:
    return [r for r in runs if r["row"] == name and "value" in r]


def ratios(runs: Runs) -> list[dict[str, Any]]:
    """Within each round; of several peers the one with the best median. What has no figure is left
    out.
    """
    found = []
    for ratio in RATIOS:
        medians = {
            peer: m
            for peer in ratio.peers
            if (m := median([r["value"] for r in of_row(runs, peer)])) is not None
        }
        mine = {r["round"]: r["value"] for r in of_row(runs, ratio.ours)}
        if not medians or not mine:
            continue
        best = max(medians, key=lambda peer: medians[peer])
        each = [mine[r["round"]] / r["value"] for r in of_row(runs, best) if r["round"] in mine]
        if each:
            found.append(
                {
                    "ours": ratio.ours,
                    "with": best,
                    "ratio": median(each),
                    "rounds": each,
                    "target": ratio.target,
                    "of": len(medians),
                }
            )
    return found


def cases(runs: Runs) -> list[str]:
    return [case for case in CONTRACTS if any(r["case"] == case for r in runs)]


# ----------------------------------------------------------------------------------------- the page


def rows_table(runs: Runs, case: str) -> tuple[str, list[str]]:
    """The table of a case and its footnotes."""
    lines, notes = [], []
    for name in dict.fromkeys(r["row"] for r in runs if r["case"] == case):
        good, all_runs = of_row(runs, name), [r for r in runs if r["row"] == name]
        values = [r["value"] for r in good]
        numbers = (
            [f"{x:,.0f}" for x in (median(values), min(values), max(values))]
            if values
            else ["-"] * 3
        )
        unsteady = sum(r["unsteady"] for r in good)
        did = good[0].get("work") if good else None
        marks = []
        for note in good[0].get("differs", []) if good else []:
            if note not in notes:
                notes.append(note)
            marks.append(str(notes.index(note) + 1))
        what = ROWS[name].what + (f" [{','.join(marks)}]" if marks else "")
        version = f"{good[0]['peer']} {good[0]['version']}" if good and "peer" in good[0] else ""
        measured = [f"{did['passes']:.2f}", f"{did['parameters']:,}"] if did else ["", ""]
        failed = len(all_runs) - len(good)
        lines.append(
            [f"`{name}`", what, version, *numbers, f"{unsteady} of {len(good)}", failed, *measured]
        )
    head = [
        "row",
        "what",
        "version",
        "steps/s",
        "lowest",
        "highest",
        "unsteady",
        "failed",
        "passes",
        "parameters",
    ]
    return markdown(head, lines), [f"[{i + 1}] {note}" for i, note in enumerate(notes)]


def page(records: Sequence[Mapping[str, Any]], plots: Mapping[str, str]) -> str:
    """``plots``: a case -> the name of its picture, beside the page."""
    runs = [run for record in records for run in record["runs"]]
    out = [
        "# Throughput beside the peers",
        "",
        "Written by `benchmarks/report.py`; [what is measured, and "
        "how](../../benchmarks/README.md). Env steps/s (after "
        "frame skip) with learning on, one pass over the data, medians over interleaved rounds; a "
        "ratio is the median of "
        "the ratios within rounds.",
        "",
    ]
    for record in records:
        h, arguments = record["host"], record["arguments"]
        out += [
            f"    .venv/bin/python benchmarks/{record['command']}",
            "",
            f"{h['at']}, {h['cpu']}, {h['cores']} cores, Python {h['python']}: "
            f"{arguments['rounds']} rounds, windows of "
            f"{arguments['seconds']} s.",
            "",
        ]
    if found := ratios(runs):
        lines = [
            [
                f"`{f['ours']}`",
                f"`{f['with']}`" + (f", the best of {f['of']}" if f["of"] > 1 else ""),
                *(
                    f"{x:.2f}"
                    for x in (f["ratio"], min(f["rounds"]), max(f["rounds"]), f["target"])
                ),
                "yes" if f["ratio"] >= f["target"] else "no",
            ]
            for f in found
        ]
        out += [
            "## Ratios",
            "",
            markdown(["ours", "beside", "median", "lowest", "highest", "target", "reached"], lines),
            "",
        ]
    for case in cases(runs):
        text, notes = rows_table(runs, case)
        contract = CONTRACTS[case]
        skip = (
            f", {contract.frame_skip} frames a step, sticky actions {contract.sticky:g}"
            if contract.sticky is not None
            else ""
        )
        out += [
            f"## {TITLES[case]}",
            "",
            f"The same work in every row: {contract.net} ({contract.parameters:,} parameters)"
            f"{skip}, {contract.passes:g} pass.",
            "",
            text,
            "",
        ]
        out += [note + "  " for note in notes] + ([""] if notes else [])
        if case in plots:
            out += [f"![{TITLES[case]}: env steps/s]({plots[case]})", ""]
    return "\n".join(out)


# ---------------------------------------------------------------------------------------- the plots


def label(name: str, run: Mapping[str, Any]) -> str:
    """The name of a row's bar, which a reader knows who has never seen ``rows.py``."""
    row = ROWS[name]
    if row.kind == "bound":
        return "Upper bound of this machine"
    if row.kind == "ours":
        return "Equipoise"
    if row.venv not in PEERS:
        return "One-file PPO loop"
    how = ", ".join(HOW[word] for word in name.split("-") if word in HOW)
    return f"{PEERS[row.venv]} {run.get('version', '')}".rstrip() + (f", {how}" if how else "")


def labels(runs: Runs, names: Sequence[str]) -> list[str]:
    """The names of the bars; rows of one name also say what they are."""
    each = [label(name, of_row(runs, name)[0]) for name in names]
    return [
        f"{text}: {ROWS[name].what}" if each.count(text) > 1 else text
        for name, text in zip(names, each)
    ]


def plot(runs: Runs, case: str, file: Path) -> None:
    """Medians as bars, every round as a dot; ours in one colour, the bound in a second."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "equipoise"  # the same figures give the same file
    from matplotlib import pyplot

    names = [
        name
        for name in dict.fromkeys(r["row"] for r in runs if r["case"] == case)
        if of_row(runs, name)
    ]
    names.sort(key=lambda name: median([r["value"] for r in of_row(runs, name)]) or 0.0)
    colours = {"ours": "#2a6f97", "bound": "#c9c9c9", "peer": "#e09f3e"}
    figure, axes = pyplot.subplots(figsize=(8, 0.45 * len(names) + 1))
    for at, name in enumerate(names):
        values = [r["value"] for r in of_row(runs, name)]
        axes.barh(at, median(values) or 0.0, color=colours[ROWS[name].kind], height=0.7)
        axes.plot(values, [at] * len(values), "k.", markersize=4)
    axes.set_yticks(range(len(names)), labels(runs, names))
    axes.set_xlabel("env steps/s, learning on (bar: median; dots: rounds)")
    axes.set_title(TITLES[case])
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def write_page(records: Sequence[Mapping[str, Any]], file: Path) -> None:
    runs = [run for record in records for run in record["runs"]]
    file.parent.mkdir(parents=True, exist_ok=True)
    plots = {}
    try:
        import matplotlib as _  # noqa: F401
    except ModuleNotFoundError:
        print(
            "note: no plots without matplotlib: .venv/bin/python -m pip install -e '.[plot]'",
            file=sys.stderr,
        )
    else:
        for case in cases([r for r in runs if "value" in r]):
            plots[case] = f"{file.stem}-{case}.svg"
            plot(runs, case, file.with_name(plots[case]))
    file.write_text(page(records, plots), encoding="utf-8")
    print(f"written: {', '.join([str(file), *plots.values()])}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("--page", type=Path, required=True, metavar="FILE.md")
    a = parser.parse_args()
    records = []
    for file in a.files:
        record = json.loads(file.read_text(encoding="utf-8"))
        if record.get("benchmark") != "matrix":
            parser.error(
                f"{file}: expected what matrix.py wrote, got benchmark {record.get('benchmark')!r}"
            )
        records.append(record)
    write_page(records, a.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
