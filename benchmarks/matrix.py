"""Env steps/s with learning on: ours beside the peers and beside the bound, in rounds, the machine
probed before and after.

    .venv/bin/python benchmarks/matrix.py [--cases pong] [--rounds 5] [--peers-home DIR] [--json
    FILE] [--page FILE.md]

One round runs every row once (A B C A B C ...); a ratio is taken within a round, and the tables
show medians over rounds. A probe (a pure-Python loop in two processes) stands between any two runs:
a run whose two probes differ by more than 5 % is run again, at most ``--tries`` times in all, and
is marked unsteady where no try was steady. All learn in one pass with the same net on the same env;
``work.py`` says what is checked, and a row that did other work has no figure. ``--list`` prints the
rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import Failed, bracketed, calibrate, host, median, run_for_json, started, table, tail
from report import ratios, write_page
from rows import ROWS, SINGLE, Row
from work import CONTRACTS, broken, differences

HERE = Path(__file__).resolve().parent
# for starting (compiling takes a minute or two) and ending, beyond warm-up and window
SLACK_S = 240.0
OURS = Path(sys.executable).with_name("equipoise")
# as in peers/setup.sh
HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "equipoise-peers"


# ----------------------------------------------------------------------------------------- the rows


def window(
    directory: Path, warmup: float, seconds: float
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first report after the warm-up and the first that is ``seconds`` later, from
    metrics.jsonl; None: not yet.

    A warm-up lasts until something is learned: before, on a slow machine, a run may still compile.
    """
    file = directory / "metrics.jsonl"
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    warm = [
        report
        for line in lines
        if (report := json.loads(line))["wall_s"] >= warmup and report["env_steps"] > 0
    ]
    full = [report for report in warm if report["wall_s"] >= warm[0]["wall_s"] + seconds]
    return (warm[0], full[0]) if full else None


def run_ours(a: argparse.Namespace, row: Row, work: Path, log: Path) -> dict[str, Any]:
    """Train without end, stop by Ctrl-C once the window is full, and read the window from
    metrics.jsonl.
    """
    out, warmup = work / "run", max(a.warmup, row.warmup)
    command = [
        *shlex.split(a.equipoise),
        "train",
        *shlex.split(row.command),
        "--algorithm",
        "impala",
        "--no-recipe",
        "--on",
        "process",
        "--quiet",
        "--out",
        str(out),
    ]
    first, last = trained(command, out, log, warmup=warmup, seconds=a.seconds, env=row.env)
    took = last["wall_s"] - first["wall_s"]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    did = run_for_json(
        [sys.executable, str(HERE / "work.py"), str(out)], work / "work.log", limit_s=SLACK_S
    )
    return {
        "value": (last["env_steps"] - first["env_steps"]) / took,
        "measured_s": round(took, 1),
        "work": did["work"],
        "lag": summary["lag"],
        "return_mean": summary["return_mean"],
        "verdict": summary["verdict"],
        "balance": summary["balance"],
        "command": shlex.join(command),
    }


def trained(
    command: Sequence[str],
    out: Path,
    log: Path,
    *,
    warmup: float,
    seconds: float,
    env: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run it for the two reports of its window, then end it by Ctrl-C; raises Failed where it ends
    otherwise or too late.
    """
    deadline = time.monotonic() + warmup + seconds + SLACK_S
    with started(command, log, **env) as process:
        while not (found := window(out, warmup, seconds)):
            if process.poll() is not None:
                raise Failed(
                    f"ended by itself with exit code {process.returncode}: "
                    f"{shlex.join(command)}\n{tail(log)}"
                )
            if time.monotonic() > deadline:
                raise Failed(f"no full window in time: {shlex.join(command)}\n{tail(log)}")
            time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            raise Failed(
                f"did not end within 30 s of Ctrl-C: {shlex.join(command)}\n{tail(log)}"
            ) from None
    if code != 130:
        raise Failed(f"exit code {code} after Ctrl-C: {shlex.join(command)}\n{tail(log)}")
    first, last = found
    if last["env_steps"] <= first["env_steps"]:
        took = last["wall_s"] - first["wall_s"]
        raise Failed(
            f"did nothing: no env step was learned from in {took:.0f} s: "
            f"{shlex.join(command)}\n{tail(log)}"
        )
    return found


def option(arguments: str, name: str) -> str:
    words = shlex.split(arguments)
    return words[words.index(name) + 1]


def run_bound(a: argparse.Namespace, row: Row, log: Path) -> dict[str, Any]:
    """The pieces at the sizes of the row whose share of the bound is asked for."""
    arguments, _, of = row.command.partition("OF ")
    ours = a.row_map[of].command
    sizes = [
        "--streams",
        option(ours, "--envs-per-actor"),
        "--unroll",
        option(ours, "--unroll"),
        "--batch",
        option(ours, "--batch"),
    ]
    command = [
        sys.executable,
        str(HERE / "pieces.py"),
        *arguments.split(),
        *sizes,
        "--rounds",
        "5",
        "--seconds",
        "0.5",
        "--cores",
        str(a.cores),
    ]
    return run_for_json(command, log, limit_s=SLACK_S, **SINGLE)


def around(
    a: argparse.Namespace, name: str, log: Path, run: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """A run of ours between two measurements of its bound's pieces, where that row is asked for,
    too.

    The bound is the faster of the two: it is measured in the minutes of the run that is held
    against it.
    """
    bounds = [
        one
        for one in a.rows
        if a.row_map[one].kind == "bound" and a.row_map[one].command.endswith(f"OF {name}")
    ]
    before = {one: run_bound(a, a.row_map[one], log) for one in bounds}
    result = run()
    for one in bounds:
        a.measured[one] = max(
            before[one], run_bound(a, a.row_map[one], log), key=lambda found: float(found["value"])
        )
    return result


def run_peer(a: argparse.Namespace, row: Row, log: Path) -> dict[str, Any]:
    script, *words = shlex.split(row.command)
    command = [
        str(python(a, row)),
        str(HERE / "peers" / script),
        *words,
        "--seconds",
        str(a.seconds),
        "--warmup",
        str(a.warmup),
    ]
    return run_for_json(command, log, limit_s=a.warmup + a.seconds + SLACK_S, **row.env) | {
        "command": shlex.join(command)
    }


def python(a: argparse.Namespace, row: Row) -> Path:
    return a.peers_home / row.venv / "bin/python" if row.venv else Path(sys.executable)


def run_row(a: argparse.Namespace, name: str) -> dict[str, Any]:
    """One run of one row; raises Failed, also where the work was not that of the case."""
    row: Row = a.row_map[name]
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        work, log = Path(folder), Path(folder) / "log"
        if row.kind == "bound":
            # of a row that is not asked for
            return a.measured.pop(name, None) or run_bound(a, row, log)
        if row.kind == "ours":
            result = around(a, name, log, lambda: run_ours(a, row, work, log))
        else:
            result = run_peer(a, row, log)
    contract = CONTRACTS[row.case]
    if wrong := broken(contract, result["work"]):
        raise Failed(
            f"not the same work: {'; '.join(wrong)}\n    {result['command']}\n    figure: "
            f"{result['value']:,.0f}"
        )
    return result | {"differs": differences(contract, result["work"])}


# ------------------------------------------------------------------------------------------- rounds


def run_rounds(
    a: argparse.Namespace, run: Callable[[str], dict[str, Any]], save: Callable[[Any], None]
) -> list[dict[str, Any]]:
    """Every row once a round, between two probes that agree; a failed run is a result with "failed"
    and no "value".

    ``save`` gets the results after each row, so that an interrupted matrix is not lost.
    """
    results: list[dict[str, Any]] = []
    probe = calibrate()
    for i in range(a.rounds):
        for name in a.rows:
            start = time.monotonic()
            result = bracketed(
                partial(run, name), probe, probe=calibrate, tolerance=a.tolerance, tries=a.tries
            )
            probe = result.pop("probe_last")
            result = {"row": name, "case": a.row_map[name].case, "round": i, **result}
            results.append(result)
            save(results)
            if "failed" in result:
                print(f"FAILED {name}: {result['failed']}", file=sys.stderr, flush=True)
            shown = (
                f"{result['value']:12,.0f} {result.get('unit', 'steps/s')}"
                if "value" in result
                else "      FAILED        "
            )
            steady = f"moved {result['moved']:.1%}{' UNSTEADY' if result['unsteady'] else ''}"
            print(
                f"round {i + 1}/{a.rounds}  {name:22s} {shown}   probe {probe['two_core']:.1f}   "
                f"{steady}, "
                f"{len(result['dropped'])} dropped   {time.monotonic() - start:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    return results


def show(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    lines = []
    for name in names:
        good = [r for r in results if r["row"] == name and "value" in r]
        values = [r["value"] for r in good]
        failed = sum(r["row"] == name and "failed" in r for r in results)
        shown = (
            [f"{x:,.0f}" for x in (median(values), min(values), max(values))]
            if values
            else ["-"] * 3
        )
        lines.append([name, *shown, f"{sum(r['unsteady'] for r in good)}/{len(good)}", failed])
    print(table(["row", "steps/s", "lowest", "highest", "unsteady", "failed"], lines))
    if found := ratios(results):
        lines = [
            [
                f"{f['ours']} / {f['with']}",
                *(
                    f"{x:.2f}"
                    for x in (f["ratio"], min(f["rounds"]), max(f["rounds"]), f["target"])
                ),
            ]
            for f in found
        ]
        print("\n" + table(["ratio", "median", "lowest", "highest", "target"], lines))


def choose(a: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """``a.rows`` and ``a.row_map`` from what was asked for, and nothing that is not there."""
    cases = a.cases.split(",") if a.cases else list(CONTRACTS)
    if unknown := set(cases) - set(CONTRACTS):
        parser.error(
            f"--cases: expected some of {', '.join(CONTRACTS)}, got {', '.join(sorted(unknown))}"
        )
    a.rows = (
        a.rows.split(",") if a.rows else [name for name, row in ROWS.items() if row.case in cases]
    )
    if unknown := set(a.rows) - set(ROWS):
        parser.error(
            f"--rows: expected some of {', '.join(ROWS)}, got {', '.join(sorted(unknown))}"
        )
    a.measured = {}  # bounds by row, measured around the run of the row that they bound
    a.row_map = dict(ROWS)
    for text in a.command:
        name, _, command = text.partition("=")
        if name not in ROWS or not command:
            parser.error(
                f"--command: expected ROW=ARGUMENTS with one of {', '.join(ROWS)}, got {text!r}"
            )
        row = ROWS[name]
        a.row_map[name] = Row(
            case=row.case,
            kind=row.kind,
            command=command,
            what=row.what,
            venv=row.venv,
            env=row.env,
            warmup=row.warmup,
        )
    wanted = {str(python(a, ROWS[name])) for name in a.rows if ROWS[name].kind == "peer"}
    if missing := sorted(path for path in wanted if not Path(path).exists()):
        parser.error(
            f"not there: {', '.join(missing)}; benchmarks/peers/setup.sh --home {a.peers_home} "
            "builds them"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", help=f"with commas between, of {', '.join(CONTRACTS)}; default: all"
    )
    parser.add_argument("--rows", help="with commas between; default: all of the cases")
    parser.add_argument("--list", action="store_true", help="print the rows, and stop")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30, help="the window of one run")
    parser.add_argument(
        "--warmup", type=float, default=10, help="at least; what compiles takes longer"
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.05, help="between the probes before and after a run"
    )
    parser.add_argument("--tries", type=int, default=3, help="of a run whose probes differ by more")
    parser.add_argument("--cores", type=float, default=2, help="of the bound")
    parser.add_argument("--equipoise", default=shlex.quote(str(OURS)), metavar="COMMAND")
    parser.add_argument(
        "--peers-home",
        type=Path,
        default=HOME,
        metavar="DIR",
        help=f"of peers/setup.sh; default {HOME}",
    )
    parser.add_argument(
        "--command",
        action="append",
        default=[],
        metavar="ROW=ARGUMENTS",
        help="another command for a row",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write every run, also those that were dropped, after each row",
    )
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE.md",
        help="write tables and plots there (report.py does it later)",
    )
    a = parser.parse_args()
    a.peers_home = a.peers_home.absolute()  # runs start in folders of their own
    if a.list:
        print(table(["row", "what"], [[name, row.what] for name, row in ROWS.items()]))
        return 0
    choose(a, parser)
    arguments = {k: str(v) for k, v in vars(a).items() if k not in ("row_map", "list")}
    record = {
        "benchmark": "matrix",
        "host": host(),
        "command": shlex.join(["matrix.py", *sys.argv[1:]]),
        "arguments": arguments,
    }

    def save(results: Sequence[Mapping[str, Any]]) -> None:
        if a.json:
            a.json.write_text(
                json.dumps(record | {"ratios": ratios(results), "runs": results}, indent=1) + "\n",
                encoding="utf-8",
            )

    results = run_rounds(a, lambda name: run_row(a, name), save)
    show(results, a.rows)
    if a.page:
        write_page([record | {"runs": results}], a.page)
    medians = {
        name: median([r["value"] for r in results if r["row"] == name and "value" in r])
        for name in a.rows
    }
    print(json.dumps(record | {"ratios": ratios(results), "medians": medians}))
    failures = sum("failed" in r for r in results)
    if failures:
        print(f"{failures} of {len(results)} runs FAILED", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
