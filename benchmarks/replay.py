"""Replay in rows/s beside the peers': insert, sample, sample and new priorities; vectors, and
stacks of a real Pong run.

    .venv/bin/python benchmarks/replay.py [--peers-home DIR] [--rounds 3] [--json FILE] [--page
    FILE.md]

Each library runs in a process of its own with one thread, one after the other, round after round;
ratios are taken within a round, and the table shows medians. ``peers/run_replay.py`` says what is
measured, ``peers/setup.sh`` builds the peers' environments (cpprb, sb3, torchrl).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import Failed, calibrate, host, run_for_json, table
from matrix import HOME
from rows import SINGLE

HERE = Path(__file__).resolve().parent
ROWS = {  # name -> library, arguments
    "vectors ours": ("ours", ["vectors"]),
    "vectors cpprb": ("cpprb", ["vectors"]),
    "vectors sb3": ("sb3", ["vectors", "--rows", "16"]),
    "vectors torchrl": ("torchrl", ["vectors"]),
    "prioritized ours": ("ours", ["vectors", "--prioritized"]),
    "prioritized cpprb": ("cpprb", ["vectors", "--prioritized"]),
    "frames ours": ("ours", ["frames"]),
    "frames cpprb": ("cpprb", ["frames"]),
    "frames sb3": ("sb3", ["frames"]),
    "frames torchrl": ("torchrl", ["frames"]),
}
TARGETS = {"vectors": 2.0, "prioritized": 2.0, "frames": 1.5}
COLUMNS = ("insert", "sample", "update", "memory_mib")


def record(file: Path, steps: int = 80, streams: int = 16) -> None:
    """Stacks of Pong under random actions, from the 100th step on."""
    from equipoise.envs import make
    from equipoise.types import EnvFactory

    env = make(EnvFactory(target="ALE/Pong-v5"), streams=np.arange(streams), seed=0)
    rng, kept = np.random.default_rng(0), []
    for t in range(100 + steps):
        seen = env.recv()
        assert seen is not None
        if t >= 100:
            kept.append(np.array(seen.obs))
        env.send(rng.integers(0, 6, streams), np.arange(streams))
    env.close()
    np.savez(file, stacks=np.stack(kept))


def measure(a: argparse.Namespace, name: str, frames: Path, folder: Path) -> dict[str, Any]:
    library, arguments = ROWS[name]
    python = sys.executable if library == "ours" else a.peers_home / library / "bin/python"
    command = [
        str(python),
        str(HERE / "peers/run_replay.py"),
        library,
        *arguments,
        "--frames",
        str(frames),
    ]
    try:
        return run_for_json(
            [*command, "--seconds", str(a.seconds)], folder / "log", limit_s=300, **SINGLE
        )
    except (Failed, FileNotFoundError) as error:
        return {"failed": str(error)}


def ratios(results: list[dict[str, Any]]) -> list[list[str]]:
    """Ours over the best of the others, by round: [data, measure, median, lowest, highest,
    target].
    """
    lines = []
    for data, target in TARGETS.items():
        for what in ("insert", "sample", "update"):
            found = []
            for i in {r["round"] for r in results}:
                mine = {
                    r["row"]: r[what]
                    for r in results
                    if r["round"] == i and r["row"].startswith(data) and what in r
                }
                others = [x for row, x in mine.items() if not row.endswith("ours")]
                if f"{data} ours" in mine and others:
                    found.append(mine[f"{data} ours"] / max(others))
            if found:
                lines.append(
                    [
                        data,
                        what,
                        *(
                            f"{x:.2f}"
                            for x in (statistics.median(found), min(found), max(found), target)
                        ),
                    ]
                )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers-home", type=Path, default=HOME)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", help=f"with commas between, of {', '.join(ROWS)}")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measure")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    a = parser.parse_args()
    names = a.rows.split(",") if a.rows else list(ROWS)
    if unknown := set(names) - set(ROWS):
        parser.error(
            f"--rows: expected some of {', '.join(ROWS)}, got {', '.join(sorted(unknown))}"
        )
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        frames = Path(folder) / "pong.npz"
        record(frames)
        for i in range(a.rounds):
            for name in names:
                result = {
                    "row": name,
                    "round": i,
                    "probe": calibrate(),
                    **measure(a, name, frames, Path(folder)),
                }
                results.append(result)
                shown = result.get(
                    "failed", ", ".join(f"{c} {result[c]:,.0f}" for c in COLUMNS if c in result)
                )
                print(f"round {i + 1}/{a.rounds}  {name:20s} {shown}", file=sys.stderr, flush=True)
                if a.json:
                    a.json.write_text(
                        json.dumps({"host": host(), "results": results}, indent=1), encoding="utf-8"
                    )
    lines = []
    for name in names:
        good = [r for r in results if r["row"] == name and "failed" not in r]
        median = [
            f"{statistics.median(r[c] for r in good):,.0f}" if good and c in good[0] else "-"
            for c in COLUMNS
        ]
        lines.append([name, good[0]["rows_a_call"] if good else "-", *median])
    head = ["row", "rows a call", "insert/s", "sample/s", "sample + update/s", "MiB"]
    print(table(head, lines))
    against = ["data", "measure", "ours / best", "lowest", "highest", "target"]
    print("\n" + table(against, ratios(results)))
    if a.page:
        a.page.write_text(page(head, lines, against, ratios(results), a), encoding="utf-8")
    print(json.dumps({"host": host(), "ratios": ratios(results)}))
    return int(any("failed" in r for r in results))


def page(
    head: list[str],
    lines: list[list[str]],
    against: list[str],
    found: list[list[str]],
    a: argparse.Namespace,
) -> str:
    """Markdown of the two tables."""

    def rows(head: list[str], lines: list[list[str]]) -> str:
        return "\n".join(
            "| " + " | ".join(str(x) for x in line) + " |"
            for line in (head, ["---"] * len(head), *lines)
        )

    where = host()
    return f"""# Replay beside the peers

    .venv/bin/python benchmarks/replay.py --rounds {a.rounds}

10^6 vectors of 17 + 6 floats, or 10^5 stacks of a Pong run; batches of 256; one thread. Medians of {a.rounds} rounds, on
{where["cpu"]},
{where["cores"]} cores, {where["at"]}. Ratios are taken within a round, against the best peer of each measure.

{rows(head, lines)}

{rows(against, found)}
"""  # noqa: E501


if __name__ == "__main__":
    sys.exit(main())
