"""What a core costs: a step of all streams against the rows that it looks back on, and an unroll
with its gradient.

    .venv/bin/python benchmarks/cores.py [--size 64] [--streams 16] [--rows 64] [--page FILE]

LSTM, GRU and minGRU carry a state of one size, so the length of the context costs them nothing;
GTrXL attends to a window, and is timed for several. ``step`` is [B] in inference mode, ``unroll``
is [T, B] forward and backward, with an episode's end in one row of fifty. One thread; medians over
rounds in which all cases alternate. Imports our nets alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from equipoise.nets.cores import CoreKind, CoreOptions, make_core

WINDOWS = (16, 32, 64, 128, 256, 512, 1024)
CASES: list[tuple[CoreKind, int]] = [
    ("lstm", 0),
    ("gru", 0),
    ("mingru", 0),
    *(("gtrxl", window) for window in WINDOWS),
]
ROUNDS, ROUND_S = 5, 0.1


def seconds(call: Callable[[], object]) -> float:
    """The mean over as many calls as take ``ROUND_S``."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < ROUND_S:
        call()
        count += 1
    return (time.perf_counter() - start) / count


def calls(
    kind: CoreKind, window: int, size: int, streams: int, rows: int
) -> dict[str, Callable[[], object]]:
    core = make_core(CoreOptions(kind=kind, size=size, window=max(window, 1)), size)
    assert core is not None
    x, first = torch.randn(rows, streams, size), torch.rand(rows, streams) < 0.02
    with torch.no_grad():
        _, state = core.unroll(x, first, core.initial_state(streams))
        if "held" in state:
            state["held"].fill_(window)
    running = torch.zeros(streams, dtype=torch.bool)

    def step() -> None:
        with torch.inference_mode():
            core.step(x[0], running, state)

    def unroll() -> None:
        core.zero_grad()
        core.unroll(x, first, state)[0].sum().backward()  # type: ignore[no-untyped-call]

    return {"step": step, "unroll": unroll}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("size", 64), ("streams", 16), ("rows", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--page", type=Path, help="write the table there, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    timed = {case: calls(*case, given.size, given.streams, given.rows) for case in CASES}
    found: dict[tuple[CoreKind, int], dict[str, list[float]]] = {
        case: {"step": [], "unroll": []} for case in CASES
    }
    for _ in range(ROUNDS):
        for case, both in timed.items():
            for what, call in both.items():
                found[case][what].append(seconds(call))
    rows, steps = [], given.rows * given.streams
    for (kind, window), times in found.items():
        step, unroll = statistics.median(times["step"]), statistics.median(times["unroll"])
        rows.append(
            {
                "core": kind,
                "window": window,
                "step_us": 1e6 * step,
                "unroll_us_per_step": 1e6 * unroll / steps,
            }
        )
    lines = [
        f"size {given.size}, {given.streams} streams, unrolls of {given.rows} rows, one thread, "
        f"torch {torch.__version__}",
        "",
        "| core | rows of context | a step of all streams, us | an unroll forward and backward, us "
        "a stream's row |",
        "|---|---|---|---|",
        *(
            f"| {x['core']} | {x['window'] or 'any'} | {x['step_us']:,.0f} | "
            f"{x['unroll_us_per_step']:.2f} |"
            for x in rows
        ),
    ]
    text = "\n".join(lines)
    print(text, flush=True)
    if given.page is not None:
        given.page.write_text(
            f"# What a core costs\n\n    .venv/bin/python benchmarks/cores.py\n\n{text}\n",
            encoding="utf-8",
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
