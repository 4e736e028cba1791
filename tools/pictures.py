"""Draw the pictures of the pages: ``python tools/pictures.py scores [--check]``.

``scores`` draws the score of each algorithm from the results that docs/ stores: metrics of runs,
and tables. ``--check`` writes nothing, and fails where a picture is not current.
``curve TITLE RUN OUT [STEPS]`` draws the returns of a run, over env steps or what STEPS calls them.
``terminal COMMAND FILE OUT`` draws what a command printed. ``dark FILE...`` adds a look for the
dark to pictures of matplotlib.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from drawing import Bar, bars, lines, terminal, with_dark

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
PAGES = ROOT / "docs/reference/algorithms"
OUT = ROOT / "docs/pictures/scores"


def returns(file: Path) -> list[tuple[float, float]]:
    """Env steps and mean return of each report of a run."""
    reports = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
    return [
        (float(report["env_steps"]), float(report["return_mean"]))
        for report in reports
        if report.get("return_mean") is not None
    ]


def table(file: Path, first: str) -> list[dict[str, str]]:
    """The rows of the table of a page whose first column has this title."""
    rows: list[list[str]] = []
    for line in file.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and (rows or cells[0] == first):
            rows.append(cells)
        elif rows:
            break
    assert rows, f"{file}: no table whose first column is {first!r}"
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def number(words: str) -> float:
    found = re.match(r"-?[\d,]+(?:\.\d+)?", words)
    assert found, f"expected a number, got {words!r}"
    return float(found[0].replace(",", ""))


def pong(*runs: tuple[str, str]) -> str:
    curves = [(name, returns(RESULTS / f"pong/{file}.jsonl")) for name, file in runs]
    return lines("ALE/Pong-v5: mean return of the last 100 episodes of training", curves, goal=18)


def halfcheetah() -> str:
    runs = {
        "200,000 steps": "halfcheetah-sac",
        "1,000,000 steps, --precision medium": "halfcheetah-sac-1m",
    }
    curves = [(name, returns(RESULTS / f"mujoco/{file}.jsonl")) for name, file in runs.items()]
    return lines("HalfCheetah-v5: mean return in training, seed 0", curves)


def three_seeds(algorithm: str) -> Callable[[], str]:
    def drawn() -> str:
        file = RESULTS / "new-algorithms.md"
        rows = [row for row in table(file, "env") if row["algorithm"] == algorithm]
        env, steps = rows[0]["env"], rows[0]["env steps"]
        goal = re.search(rf"(-?\d+) in {re.escape(env)}", file.read_text())
        assert goal
        return bars(
            f"{env}: env steps until an evaluation reached {goal[1]}",
            [("", [seed(row, "goal reached at", "last") for row in rows])],
            note=f"At the end of a bar: its steps, and the last evaluation, after {steps} steps.",
        )

    return drawn


def seed(row: dict[str, str], steps: str, score: str) -> Bar:
    return Bar(f"seed {row['seed']}", number(row[steps]), f"{row[steps]} ({row[score]})")


def until_solved(algorithm: str) -> Callable[[], str]:
    def drawn() -> str:
        rows = table(PAGES / f"{algorithm}.md", "env")
        steps = "env steps until solved"
        groups: dict[str, list[Bar]] = {}
        for row in rows:
            bar = seed(row, steps, "evaluation")
            label = f"{row['on']}, {bar.label}"
            groups.setdefault(row["env"], []).append(Bar(label, bar.value, bar.words))
        return bars(
            "Env steps until an evaluation of 100 episodes reached the goal",
            list(groups.items()),
            note="At the end of a bar: its steps, and that evaluation.",
        )

    return drawn


def memory() -> str:
    groups = []
    for row in table(PAGES / "r2d2.md", ""):
        columns = {"with a core": "evaluation", "without a core": "without a core"}
        found = {label: row[column].split(",")[0] for label, column in columns.items()}
        found["chance"] = row["chance"].split(",")[0]
        group = [Bar(label, number(words), words) for label, words in found.items()]
        groups.append((row[next(iter(row))], group))
    return bars("Evaluation with a memory, without one, and by chance", groups)


def sorting(algorithm: str) -> Callable[[], str]:
    def drawn() -> str:
        row = next(
            row for row in table(RESULTS / "text.md", "algorithm") if row["algorithm"] == algorithm
        )
        columns = {
            "of all 729 inputs": "of all: least",
            "of held-out ones": "of the held out: least",
        }
        group = [Bar(label, number(row[key]), row[key]) for label, key in columns.items()]
        note = "The lowest share of five seeds. A full bar is 1."
        return bars("sort: share of right greedy answers", [("", group)], note=note, full=1.0)

    return drawn


# A page without an entry has no stored result, and a sentence instead of a picture.
SCORES: dict[str, Callable[[], str]] = {
    "ppo": lambda: pong(("PPO", "ppo"), ("PPO, --inference central", "ppo-central")),
    "impala": lambda: pong(("IMPALA", "impala")),
    "apex_dqn": lambda: pong(("Ape-X DQN, exploring", "apex_dqn")),
    "sac": halfcheetah,
    **{name: three_seeds(name) for name in ("a2c", "qr_dqn", "tqc", "crossq")},
    **{name: until_solved(name) for name in ("a3c", "appo")},
    "r2d2": memory,
    **{name: sorting(name) for name in ("grpo", "rloo", "reinforce_pp", "token_ppo")},
}


def scores(*, check: bool) -> list[str]:
    """Draw every score -> the files that were not current; ``check``: without writing."""
    stale = []
    OUT.mkdir(exist_ok=True)
    for name, draw in SCORES.items():
        file, drawn = OUT / f"{name}.svg", draw()
        if not file.is_file() or file.read_text("utf-8") != drawn:
            stale.append(str(file.relative_to(ROOT)))
            if not check:
                file.write_text(drawn, "utf-8")
    return stale


def main(kind: str, *words: str) -> None:
    if kind == "scores":
        stale = scores(check="--check" in words)
        sys.exit(f"not current: {', '.join(stale)}" if stale and "--check" in words else 0)
    elif kind == "curve":
        title, run, out, *steps = words
        curve = ("mean return", returns(Path(run, "metrics.jsonl")))
        Path(out).write_text(lines(title, [curve], x=steps[0] if steps else "env steps"))
    elif kind == "terminal":
        command, printed, out = words
        Path(out).write_text(terminal(command, Path(printed).read_text()))
    elif kind == "dark":
        for file in map(Path, words):
            file.write_text(with_dark(file.read_text("utf-8")), "utf-8")
    else:
        sys.exit(f"expected scores, curve, terminal or dark, got {kind!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
