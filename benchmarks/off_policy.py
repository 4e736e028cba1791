"""SAC on HalfCheetah-v5 in updates/s, DQN on Pong in env steps/s: ours beside Stable-Baselines3, in
rounds, the machine probed.

    .venv/bin/python benchmarks/off_policy.py [--cases sac] [--rounds 5] [--peers-home DIR] [--json
    FILE] [--page FILE.md]

Both sides train the same net with the same batch, and with the same number of updates an env step:
SAC 256-256 for actor and critics, 256 transitions, an update an env step (4 envs, 4 updates a step
of all); DQN the Nature CNN on 4 frames of 84 x 84, frame skip 4, 32 transitions, an update in 4 env
steps (8 envs), no double Q-learning. That is checked in every run, with the env, the parameters and
that they moved; a run of other work has no figure. Each side runs with one torch thread and with
two, and its better median counts. Ours is the process runtime, one actor and the learner, in
float32 and, where a row says so, in lower precision (medium for SAC's matrices, bf16 for DQN's
convolutions). One round runs every row once; a ratio is taken within a round. Probes, repeats and
windows are ``matrix.py``'s.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Failed, host, markdown, median, run_for_json, table
from matrix import HERE, HOME, OURS, SLACK_S, run_peer, run_rounds, trained
from rows import Row
from work import Contract, broken

from equipoise.nets.precision import native_bf16

SAC = (
    "HalfCheetah-v5 --algorithm sac --set replay.starts_at=1000 --set "
    "algorithm.random_steps=1000 --steps 100k"
)
DQN = (
    "ALE/Pong-v5 --set env.repeat_action_probability=0 --algorithm dqn --set "
    "algorithm.double=false "
    "--set replay.starts_at=1000 --steps 100k"
)
TARGET = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    title: str
    unit: str  # of the figure
    batch: int
    contract: Contract  # ``passes``: transitions learned from an env step
    command: str  # ours
    script: str  # the peer's argument
    precisions: tuple[str, ...]  # ours


CASES = {
    "sac": Case(
        title="SAC, HalfCheetah-v5",
        unit="updates/s",
        batch=256,
        command=SAC,
        script="halfcheetah",
        precisions=("fp32", "medium"),
        contract=Contract(
            envs={"HalfCheetah-v5": ""},
            observation=(17,),
            actions=6,
            parameters=217_871,
            passes=256.0,
            net="actor and two critics of 256-256, a temperature",
        ),
    ),
    "dqn": Case(
        title="DQN, Pong",
        unit="steps/s",
        batch=32,
        command=DQN,
        script="pong",
        precisions=("fp32", "bf16"),
        contract=Contract(
            envs={"ALE/Pong-v5": ""},
            observation=(4, 84, 84),
            actions=6,
            parameters=1_687_206,
            frame_skip=4,
            sticky=0.0,
            passes=8.0,
            net="Nature CNN, 4 stacked frames of 84 x 84",
        ),
    ),
}


def _rows() -> dict[str, Row]:
    rows = {}
    for threads in (1, 2):
        said = f"{threads} torch thread{'s' if threads > 1 else ''}"
        for name, case in CASES.items():
            for precision in case.precisions:
                rows[f"{name}-{precision}-{threads}"] = Row(
                    case=name,
                    kind="ours",
                    command=f"{case.command} --precision {precision} --threads {threads}",
                    what=f"ours, {precision}, learner with {said}",
                )
            rows[f"{name}-sb3-{threads}"] = Row(
                case=name,
                kind="peer",
                venv="sb3",
                command=f"run_sb3_off_policy.py {case.script} --threads {threads}",
                what=f"Stable-Baselines3, fp32, {said}",
            )
    return dict(sorted(rows.items(), key=lambda item: item[1].case, reverse=True))


ROWS = _rows()


def run_row(a: argparse.Namespace, name: str) -> dict[str, Any]:
    """One run; raises Failed, also where the work was not that of the case."""
    row: Row = a.row_map[name]
    case = CASES[row.case]
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        work, log = Path(folder), Path(folder) / "log"
        result = run_ours(a, row, work, log) if row.kind == "ours" else run_peer(a, row, log)
    did = result["work"]
    if wrong := broken(case.contract, did):
        raise Failed(
            f"not the same work: {'; '.join(wrong)}\n    {result['command']}\n    figure: "
            f"{result['value']:,.0f}"
        )
    if case.unit == "updates/s":
        result["value"] *= did["passes"] / case.batch
    return result | {"unit": case.unit}


def run_ours(a: argparse.Namespace, row: Row, work: Path, log: Path) -> dict[str, Any]:
    """Env steps/s of the window; its updates, not those of the whole run, which begins without."""
    out = work / "run"
    command = [
        *shlex.split(a.equipoise),
        "train",
        *shlex.split(row.command),
        "--on",
        "process",
        "--quiet",
        "--out",
        str(out),
    ]
    first, last = trained(command, out, log, warmup=a.warmup, seconds=a.seconds, env=row.env)
    did = run_for_json(
        [sys.executable, str(HERE / "work.py"), str(out)], work / "work.log", limit_s=SLACK_S
    )["work"]
    took, steps, updates = (last[key] - first[key] for key in ("wall_s", "env_steps", "updates"))
    did |= {"passes": round(updates * CASES[row.case].batch / steps, 3), "updates": updates}
    return {
        "value": steps / took,
        "measured_s": round(took, 1),
        "work": did,
        "balance": last["balance"],
        "command": shlex.join(command),
    }


def ratios(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each case and precision the better number of threads, beside the better one of the peer,
    within rounds.
    """
    found = []
    for name, case in CASES.items():
        theirs = best(results, f"{name}-sb3-")
        for precision in case.precisions:
            mine = best(results, f"{name}-{precision}-")
            if mine is None or theirs is None:
                continue
            values = {
                r["round"]: r["value"] for r in results if r["row"] == theirs and "value" in r
            }
            each = [
                r["value"] / values[r["round"]]
                for r in results
                if r["row"] == mine and "value" in r and r["round"] in values
            ]
            if each:
                found.append(
                    {
                        "ours": mine,
                        "with": theirs,
                        "ratio": median(each),
                        "rounds": each,
                        "target": TARGET,
                    }
                )
    return found


def best(results: Sequence[Mapping[str, Any]], start: str) -> str | None:
    """Of the rows whose names begin so the one with the highest median."""
    values: dict[str, list[float]] = {}
    for r in results:
        if r["row"].startswith(start) and "value" in r:
            values.setdefault(r["row"], []).append(r["value"])
    return max(values, key=lambda name: median(values[name]) or 0.0) if values else None


HEAD = ["row", "what", "median", "lowest", "highest", "unit", "unsteady", "failed"]
AGAINST = ["ours", "beside", "median", "lowest", "highest", "target"]


def lines(
    results: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> tuple[list[list[Any]], list[list[Any]]]:
    """Of the two tables: the rows, and the ratios."""
    rows = []
    for name in names:
        good = [r for r in results if r["row"] == name and "value" in r]
        values = [r["value"] for r in good]
        shown = (
            [f"{x:,.1f}" for x in (median(values), min(values), max(values))]
            if values
            else ["-"] * 3
        )
        failed = sum(r["row"] == name and "failed" in r for r in results)
        unit = CASES[ROWS[name].case].unit
        rows.append(
            [
                name,
                ROWS[name].what,
                *shown,
                unit,
                f"{sum(r['unsteady'] for r in good)} of {len(good)}",
                failed,
            ]
        )
    against = [
        [
            f["ours"],
            f["with"],
            *(f"{x:.2f}" for x in (f["ratio"], min(f["rounds"]), max(f["rounds"]), f["target"])),
        ]
        for f in ratios(results)
    ]
    return rows, against


def page(
    record: Mapping[str, Any], results: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> str:
    where, (rows, against) = record["host"], lines(results, names)
    arguments = record["arguments"]
    out = [
        "# SAC and DQN beside Stable-Baselines3",
        "",
        "Written by `benchmarks/off_policy.py`; `benchmarks/README.md` says what is measured, and "
        "how.",
        "",
        f"    .venv/bin/python benchmarks/{record['command']}",
        "",
        f"{where['at']}, {where['cpu']}, {where['cores']} cores, Python {where['python']}: "
        f"{arguments['rounds']} rounds, "
        f"windows of {arguments['seconds']} s.",
        "",
        markdown(HEAD, rows),
        "",
    ]
    for name in dict.fromkeys(ROWS[name].case for name in names):
        case = CASES[name]
        out.append(
            f"{case.title}, the same work in every row: {case.contract.net} "
            f"({case.contract.parameters:,} parameters), "
            f"{case.contract.passes:g} transitions learned from an env step, in batches of "
            f"{case.batch}.  "
        )
    return "\n".join([*out, "", markdown(AGAINST, against), ""])


def choose(a: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """``a.rows`` and ``a.row_map`` from what was asked for, and nothing that is not there."""
    cases = a.cases.split(",") if a.cases else list(CASES)
    if unknown := set(cases) - set(CASES):
        parser.error(
            f"--cases: expected some of {', '.join(CASES)}, got {', '.join(sorted(unknown))}"
        )
    a.rows = (
        a.rows.split(",")
        if a.rows
        else [
            name
            for name, row in ROWS.items()
            if row.case in cases and (native_bf16() or "bf16" not in name)
        ]
    )
    if unknown := set(a.rows) - set(ROWS):
        parser.error(
            f"--rows: expected some of {', '.join(ROWS)}, got {', '.join(sorted(unknown))}"
        )
    a.row_map = ROWS
    python = a.peers_home / "sb3/bin/python"
    if any(ROWS[name].kind == "peer" for name in a.rows) and not python.exists():
        parser.error(
            f"not there: {python}; benchmarks/peers/setup.sh --home {a.peers_home} sb3 builds it"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", help=f"with commas between, of {', '.join(CASES)}; default: all")
    parser.add_argument("--rows", help="with commas between; default: all of the cases")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30, help="the window of one run")
    parser.add_argument("--warmup", type=float, default=20)
    parser.add_argument(
        "--tolerance", type=float, default=0.05, help="between the probes before and after a run"
    )
    parser.add_argument("--tries", type=int, default=3, help="of a run whose probes differ by more")
    parser.add_argument("--equipoise", default=shlex.quote(str(OURS)), metavar="COMMAND")
    parser.add_argument(
        "--peers-home",
        type=Path,
        default=HOME,
        metavar="DIR",
        help=f"of peers/setup.sh; default {HOME}",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every run there, after each"
    )
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the tables there")
    a = parser.parse_args()
    a.peers_home = a.peers_home.absolute()  # runs start in folders of their own
    choose(a, parser)
    arguments = {k: str(v) for k, v in vars(a).items() if k != "row_map"}
    command = shlex.join(["off_policy.py", *sys.argv[1:]])
    record = {"benchmark": "off_policy", "host": host(), "command": command, "arguments": arguments}

    def save(results: Sequence[Mapping[str, Any]]) -> None:
        if a.json:
            a.json.write_text(
                json.dumps(record | {"ratios": ratios(results), "runs": results}, indent=1) + "\n",
                encoding="utf-8",
            )

    results = run_rounds(a, lambda name: run_row(a, name), save)
    rows, against = lines(results, a.rows)
    print(table(HEAD, rows) + "\n\n" + table(AGAINST, against))
    if a.page:
        a.page.parent.mkdir(parents=True, exist_ok=True)
        a.page.write_text(page(record, results, a.rows), encoding="utf-8")
    print(json.dumps(record | {"ratios": ratios(results)}))
    return int(any("failed" in r for r in results))


if __name__ == "__main__":
    sys.exit(main())
