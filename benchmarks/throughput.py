"""Env steps/s on CartPole-v1, learning included: ours beside its peers, in rounds, the machine probed before and after each.

    .venv/bin/python benchmarks/throughput.py [--rows native,sf-serial] [--rounds 5] [--peers-home .peers] [--json FILE]

One round runs every row once (A B C A B C ...); a ratio is taken within a round, between neighbours, and the table shows
the median over rounds. ``probe`` is a pure-Python loop in two processes (M turns/s): a run during which it moved by more
than 15 % is counted as unsteady. All learn in one pass with an MLP 64-64; a figure starts after a warm-up.

row          what                                                          compared with
native       ours, process, Gymnasium's native vector env                  bound; the better sf-serial
envpool      ours, process, EnvPool's CartPole (`make envpool` first)      the better sf-serial
python       ours, process, Python envs                                    the best of puffer, sf-async, sb3
bound        pieces.py at the sizes of "native": 2 cores / (env + act + learn)
sf-serial    Sample Factory, serial, batched, EnvPool 256, batch 8192; its own choice of threads
sf-serial-1  the same with OMP_NUM_THREADS=1: better where two cores are not its alone
puffer       PufferLib, serial, 128 Python envs
sf-async     Sample Factory, two workers x 128 Python envs
sb3          Stable-Baselines3 PPO, DummyVecEnv 8, batch 2048
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import SINGLE, Failed, calibrate, host, median, run_for_json, started, table, tail

HERE = Path(__file__).resolve().parent
SHARED = "--max-lag 1 --set algorithm.shared=true"  # one torso, as in the peers and in pieces.py
OURS = {
    "native": f"CartPole-v1 --actors 1 --envs-per-actor 512 --unroll 16 --batch 512 {SHARED}",
    "envpool": f"envpool:CartPole-v1 --actors 1 --envs-per-actor 512 --unroll 16 --batch 512 {SHARED}",
    "python": f"python:CartPole-v1 --actors 2 --envs-per-actor 128 --unroll 32 --batch 256 {SHARED}",
}
PEERS: dict[str, tuple[str, str, dict[str, str]]] = {  # venv, script, environment
    "sf-async": ("sf", "run_sf.py async", {}),
    "sb3": ("sb3", "run_sb3.py", {}),
    "puffer": ("puffer", "run_puffer.py", {}),
    "sf-serial": ("sf", "run_sf.py serial", {}),
    "sf-serial-1": ("sf", "run_sf.py serial", SINGLE),
}
ROWS = (
    "native",
    "bound",
    "sf-serial",
    "sf-serial-1",
    "envpool",
    "python",
    "puffer",
    "sf-async",
    "sb3",
)  # what is compared runs close by
RATIOS = (  # ours, what with (the best of), what the ring is to reach
    ("native", ("bound",), 0.65),
    ("native", ("sf-serial", "sf-serial-1"), 4.0),
    ("envpool", ("sf-serial", "sf-serial-1"), 4.0),
    ("python", ("puffer", "sf-async", "sb3"), 2.2),
)
UNSTEADY = 0.15
SLACK_S = 120.0  # for starting and ending, beyond warm-up and window


# ----------------------------------------------------------------------------------------------------------------- ours


def window(a: argparse.Namespace, directory: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first report after the warm-up and the first that is ``--seconds`` later, from metrics.jsonl; None: not yet."""
    file = directory / "metrics.jsonl"
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    warm = [report for line in lines if (report := json.loads(line))["wall_s"] >= a.warmup]
    full = [report for report in warm if report["wall_s"] >= warm[0]["wall_s"] + a.seconds]
    return (warm[0], full[0]) if full else None


def run_ours(a: argparse.Namespace, arguments: str, work: Path, log: Path) -> dict[str, Any]:
    """Train without end, stop by Ctrl-C once the window is full, and read the window from metrics.jsonl."""
    out = work / "run"
    command = [str(a.equipoise), "train", *shlex.split(arguments), "--algorithm", "impala", "--no-recipe", "--on", "process",
               "--steps", "1000G", "--quiet", "--out", str(out)]  # fmt: skip
    deadline = time.monotonic() + a.warmup + a.seconds + SLACK_S
    with started(command, log) as process:
        while not (found := window(a, out)):
            if process.poll() is not None:
                raise Failed(f"ended by itself with exit code {process.returncode}: {shlex.join(command)}\n{tail(log)}")
            if time.monotonic() > deadline:
                raise Failed(f"no full window in time: {shlex.join(command)}\n{tail(log)}")
            time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within 30 s of Ctrl-C: {shlex.join(command)}\n{tail(log)}") from None
    if code != 130:
        raise Failed(f"exit code {code} after Ctrl-C: {shlex.join(command)}\n{tail(log)}")
    first, last = found
    took = last["wall_s"] - first["wall_s"]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return {
        "value": (last["env_steps"] - first["env_steps"]) / took, "measured_s": round(took, 1), "lag": summary["lag"],
        "return_mean": summary["return_mean"], "verdict": summary["verdict"], "balance": summary["balance"],
        "command": shlex.join(command),
    }  # fmt: skip


def option(arguments: str, name: str) -> str:
    words = shlex.split(arguments)
    return words[words.index(name) + 1]


def run_bound(a: argparse.Namespace, arguments: str, log: Path) -> dict[str, Any]:
    sizes = ["--streams", option(arguments, "--envs-per-actor"), "--unroll", option(arguments, "--unroll"),
             "--batch", option(arguments, "--batch")]  # fmt: skip
    command = [sys.executable, str(HERE / "pieces.py"), *sizes, "--rounds", "5", "--seconds", "0.5", "--cores", str(a.cores)]
    return run_for_json(command, log, limit_s=SLACK_S, **SINGLE)


def run_peer(a: argparse.Namespace, name: str, log: Path) -> dict[str, Any]:
    venv, script, environment = PEERS[name]
    words = script.split()
    command = [str(a.peers_home / venv / "bin/python"), str(HERE / "peers" / words[0]), *words[1:],
               "--seconds", str(a.seconds), "--warmup", str(a.warmup)]  # fmt: skip
    return run_for_json(command, log, limit_s=a.warmup + a.seconds + SLACK_S, **environment)


# --------------------------------------------------------------------------------------------------------------- rounds


def run_rounds(a: argparse.Namespace, run: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Every row once a round, a probe between any two; a failed run is a result with "failed" and no "value"."""
    results = []
    probe = calibrate()
    for i in range(a.rounds):
        for name in a.rows:
            start = time.monotonic()
            try:
                result = run(name)
            except Failed as error:
                result = {"failed": str(error)}
                print(f"FAILED {name}: {error}", file=sys.stderr, flush=True)
            after = calibrate()
            moved = abs(after["two_core"] / probe["two_core"] - 1)
            bracket = {"row": name, "round": i, "probe_before": probe, "probe_after": after, "unsteady": moved > UNSTEADY}
            results.append(bracket | result)
            shown = f"{result['value']:12,.0f} steps/s" if "value" in result else "      FAILED"
            print(
                f"round {i + 1}/{a.rounds}  {name:10s} {shown}   probe {probe['two_core']:.1f} -> {after['two_core']:.1f}"
                f"   {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True,
            )  # fmt: skip
            probe = after
    return results


def of_row(results: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [r for r in results if r["row"] == name and "value" in r]


def ratios(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Within each round; of several peers the one with the best median."""
    found = []
    for ours, peers, target in RATIOS:
        medians = {peer: median([r["value"] for r in of_row(results, peer)]) for peer in peers}
        there = {peer: m for peer, m in medians.items() if m is not None}
        mine = {r["round"]: r["value"] for r in of_row(results, ours)}
        if not there or not mine:
            continue
        best = max(there, key=lambda peer: there[peer])
        each = [mine[r["round"]] / r["value"] for r in of_row(results, best) if r["round"] in mine]
        found.append({"ours": ours, "with": best, "ratio": median(each), "rounds": each,
                      "target": target})  # fmt: skip
    return found


def show(a: argparse.Namespace, results: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> None:
    lines = []
    for name in a.rows:
        good = of_row(results, name)
        failed = sum(r["row"] == name and "failed" in r for r in results)
        values = [r["value"] for r in good]
        probes = [(r["probe_before"]["two_core"] + r["probe_after"]["two_core"]) / 2 for r in good]
        lines.append([
            name, f"{median(values):,.0f}" if values else "-", f"{min(values):,.0f}" if values else "-",
            f"{max(values):,.0f}" if values else "-", f"{median(probes):.1f}" if probes else "-",
            f"{sum(r['unsteady'] for r in good)}/{len(good)}", failed,
        ])  # fmt: skip
    print(table(["row", "steps/s", "lowest", "highest", "probe", "unsteady", "failed"], lines))
    if found:
        lines = [[f"{f['ours']} / {f['with']}", f"{f['ratio']:.2f}", f"{min(f['rounds']):.2f}", f"{max(f['rounds']):.2f}",
                  f"{f['target']:.2f}"] for f in found]  # fmt: skip
        print("\n" + table(["ratio", "median", "lowest", "highest", "target"], lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help="with commas between")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30, help="the window of one run")
    parser.add_argument("--warmup", type=float, default=10)
    parser.add_argument("--cores", type=float, default=2, help="of the bound")
    parser.add_argument("--equipoise", type=Path, default=HERE.parent / ".venv/bin/equipoise", metavar="COMMAND")
    parser.add_argument("--peers-home", type=Path, default=HERE.parent / ".peers", help="what peers/setup.sh made")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run and ratio there")
    for name, default in OURS.items():
        parser.add_argument(f"--{name}", default=default, metavar="ARGS", help=f"of our run; default: {default!r}")
    a = parser.parse_args()
    a.equipoise, a.peers_home = a.equipoise.absolute(), a.peers_home.absolute()  # runs start in folders of their own
    a.rows = a.rows.split(",")
    if unknown := set(a.rows) - set(ROWS):
        parser.error(f"unknown rows {sorted(unknown)}; there are {', '.join(ROWS)}")
    wanted = [a.equipoise] if set(OURS) & set(a.rows) else []
    wanted += [a.peers_home / PEERS[name][0] / "bin/python" for name in a.rows if name in PEERS]
    if missing := sorted({str(path) for path in wanted if not path.exists()}):
        parser.error(f"not there: {', '.join(missing)}; see benchmarks/README.md")

    def run(name: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
            work, log = Path(folder), Path(folder) / "log"
            if name in OURS:
                return run_ours(a, vars(a)[name], work, log)
            return run_bound(a, a.native, log) if name == "bound" else run_peer(a, name, log)

    results = run_rounds(a, run)
    found = ratios(results)
    show(a, results, found)
    record = {"benchmark": "throughput", "host": host(), "arguments": {k: str(v) for k, v in vars(a).items()}, "ratios": found}
    print(json.dumps(record | {"medians": {name: median([r["value"] for r in of_row(results, name)]) for name in a.rows}}))
    if a.json:
        a.json.write_text(json.dumps(record | {"runs": results}, indent=1) + "\n", encoding="utf-8")
    failures = sum("failed" in r for r in results)
    if failures:
        print(f"{failures} of {len(results)} runs FAILED", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
