"""What the benchmarks that start other processes share: a probe of the machine's speed, and runs
that always end.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import platform
import shlex
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

BURST = 10_000
if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # a shell's background job; what we start would inherit it, deaf to Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(signum: int, frame: Any) -> None:
    """By way of every ``finally``, which end what was started; once, so that nothing interrupts
    them.
    """
    signal.signal(signum, signal.SIG_IGN)
    raise SystemExit(128 + signum)


signal.signal(signal.SIGTERM, _exit)


# ---------------------------------------------------------------------------------------- the probe


def _spin(barrier: Any, results: Any, seconds: float) -> None:
    barrier.wait()
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        x = 0
        for i in range(BURST):
            x += i * i
        done += BURST
    results.put(done / (time.perf_counter() - start) / 1e6)


def spin(processes: int, seconds: float = 0.5) -> float:
    """Millions of turns of a pure-Python loop a second, summed over so many processes at once."""
    context = multiprocessing.get_context("fork")  # the caller has no threads
    barrier, results = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=_spin, args=(barrier, results, seconds), daemon=True)
        for _ in range(processes)
    ]
    for w in workers:
        w.start()
    total = sum(results.get(timeout=60) for _ in workers)
    for w in workers:
        w.join()
    return float(total)


def calibrate() -> dict[str, float]:
    """The machine now. Compare only runs whose neighbouring probes agree; two_core tells how much
    of two cores was free.
    """
    return {"one_core": round(spin(1), 2), "two_core": round(spin(2, 1.0), 2)}


def moved(before: dict[str, float], after: dict[str, float]) -> float:
    """How far the machine's speed moved between two probes, as a share of the slower one."""
    slow, fast = sorted((before["two_core"], after["two_core"]))
    return fast / slow - 1


def bracketed(
    run: Callable[[], dict[str, Any]],
    before: dict[str, float],
    *,
    probe: Callable[[], dict[str, float]] = calibrate,
    tolerance: float = 0.05,
    tries: int = 3,
) -> dict[str, Any]:
    """``run`` between two probes; again, at most ``tries`` times in all, where they differ by more
    than ``tolerance``.

    ``before`` is the probe that was taken last. The result is that of the steadiest try, with
    "probe_before", "probe_after", "moved", "unsteady" (no try was within the tolerance) and, of the
    others, "dropped": [...]. A run that fails is not tried again: its result is {"failed": what it
    said, ...}.
    """
    done: list[dict[str, Any]] = []
    while not done or (
        done[-1]["moved"] > tolerance and "failed" not in done[-1] and len(done) < tries
    ):
        if done:
            before = done[-1]["probe_after"]
        try:
            result = run()
        except Failed as error:
            result = {"failed": str(error)}
        after = probe()
        done.append(
            result
            | {
                "probe_before": before,
                "probe_after": after,
                "moved": round(moved(before, after), 4),
            }
        )
    best = (
        len(done) - 1
        if "failed" in done[-1]
        else min(range(len(done)), key=lambda i: float(done[i]["moved"]))
    )
    dropped = done[:best] + done[best + 1 :]
    return done[best] | {
        "unsteady": done[best]["moved"] > tolerance,
        "dropped": dropped,
        "probe_last": done[-1]["probe_after"],
    }


def host() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu
        )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


# ----------------------------------------------------------------------------------------- the runs


class Failed(Exception):
    """A run that did not give its figure: it exited with an error, ran past its limit or printed no
    result.
    """


def end(process: subprocess.Popen[Any]) -> None:
    """SIGKILL for everything that is left of the process's group; it was started as the leader of a
    new session.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def started(command: Sequence[str], log: Path, **env: str) -> Iterator[subprocess.Popen[Any]]:
    """The command in a session of its own and in the folder of ``log``, which takes its output;
    killed after the block.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=log.parent,
            env={**os.environ, **env},
        )
    try:
        yield process
    finally:
        end(process)


def tail(log: Path, lines: int = 25) -> str:
    return "\n".join(
        "    | " + line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    )


def ran(command: Sequence[str], log: Path, *, limit_s: float, **env: str) -> float:
    """Run to its end -> the seconds that it took; raises Failed where it exited with an error or
    ran past its limit.
    """
    start = time.monotonic()
    with started(command, log, **env) as process:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(
                f"ran past its limit of {limit_s:.0f} s: {shlex.join(command)}\n{tail(log)}"
            ) from None
        seconds = time.monotonic() - start
    if code:
        raise Failed(f"exit code {code}: {shlex.join(command)}\n{tail(log)}")
    return seconds


def run_for_json(
    command: Sequence[str], log: Path, *, limit_s: float, **env: str
) -> dict[str, Any]:
    """Run to its end -> the last line of its output that is a JSON object with a "value"; raises
    Failed without one.
    """
    ran(command, log, limit_s=limit_s, **env)
    for line in reversed(log.read_text(encoding="utf-8", errors="replace").splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and found.get("value") is not None:
                return found
    raise Failed(f"printed no result: {shlex.join(command)}\n{tail(log)}")


# --------------------------------------------------------------------------------------- the tables


def recorded(run: Path) -> tuple[list[dict[str, Any]], float]:
    """The records of a run by steps, and its env steps/s between the first and the last of them.

    A final report without new steps is left out, since its time includes the end of the run.
    """
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [one for one in map(json.loads, lines) if not one.get("timed")]
    if len(records) > 2 and records[-1]["env_steps"] == records[-2]["env_steps"]:
        records.pop()
    first, last = records[0], records[-1]
    return records, (last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"])


def seeds(text: str) -> range:
    """A-B, or A; "none" is none."""
    if text == "none":
        return range(0)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def evaluations(run: Path) -> dict[int, float]:
    """The mean return of each evaluation of a run, by env steps."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        one["env_steps"]: one["mean"]
        for line in lines
        if (one := json.loads(line)["evaluation"]) is not None
    }


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Aligned columns, the first one to the left."""
    text = [[str(x) for x in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in text) for i in range(len(head))]
    lines = [
        "  ".join(x.ljust(w) if i == 0 else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths)))
        for row in text
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The same as a table of Markdown; the first column to the left, the others to the right."""
    lines = [
        "| " + " | ".join(str(x).replace("|", "\\|") for x in row) + " |" for row in (head, *rows)
    ]
    return "\n".join([lines[0], "|" + "---|" + "--:|" * (len(head) - 1), *lines[1:]])


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
