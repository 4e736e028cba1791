"""What the live page costs: ``equipoise watch`` with nobody looking, and a run's steps/s with the
page open and closed.

    .venv/bin/python benchmarks/watching.py [--runs 200] [--seconds 15] [--rounds 20] [--viewer
    reader|chromium] [--json FILE]

The folder has ``--runs`` runs that ended and one that trains all the while. First the server's
share of a core is taken over ``--seconds``, after a viewer has come and gone, then the time from a
changed verdict to a viewer who is told it. Then windows of ``--seconds`` alternate: the page open,
the page closed. Each pair of windows gives one ratio of the run's steps/s, by its own
``live.json``; printed are the mean loss and the upper end of its one-sided 95 % interval.
``reader`` asks for what the page asks for, as a browser on another machine does; ``chromium`` is a
headless one on this machine at the lowest priority, which draws without a graphics card.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import host

from equipoise.record.live import LIVE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.report import made
from tests.watching.test_runs import write_live

MOST_IDLE, MOST_LOSS, MOST_DELAY = 0.02, 0.01, 2.0  # of a core; of the steps/s; seconds
RUN = (
    "train CartPole-v1 --algorithm impala --actors 1 --max-lag 1 --steps 1G --quiet "
    "--no-tensorboard --out runs/live"
)
CURVES = (
    "/api/curves?run=live&y=return&y=steps_per_s&y=lag&y=learning/worked&y=sampling/worked&x=steps"
)
CURVES_S = 1.5  # as static/run.js
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Seconds of a core that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def started(words: list[str], cwd: Path, **how: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "equipoise", *words],
        cwd=cwd,
        text=True,
        start_new_session=True,
        **how,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def reader(port: int) -> Iterator[None]:
    """Reads the stream of one run and asks for its curves, from a thread."""
    ends, connection = threading.Event(), http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/api/events?run=live")
    answer = connection.getresponse()

    def read() -> None:
        asked = 0.0
        while not ends.is_set() and answer.readline():
            if time.monotonic() - asked >= CURVES_S:
                asked = time.monotonic()
                other = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                other.request("GET", CURVES)
                other.getresponse().read()
                other.close()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        connection.close()


def delay(port: int, run: Path) -> float:
    """Seconds from a verdict that is written to a viewer of the run who is told it: the longest of
    ten.
    """
    connection, took = http.client.HTTPConnection("127.0.0.1", port, timeout=30), list[float]()
    connection.request("GET", f"/api/events?run={run.name}")
    answer = connection.getresponse()
    for n in range(10):
        said = f"Learning-bound: {n}."
        # the time of a run goes on, too
        write_live(run, cause="Learning-bound", verdict=said, wall_s=1000.0 + n)
        begun = time.monotonic()
        while said.encode() not in answer.readline():
            pass
        took.append(time.monotonic() - begun)
    connection.close()
    return max(took)


@contextmanager
def chromium(port: int) -> Iterator[None]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        sys.exit("--viewer chromium: expected chromium on PATH, got none")
    with tempfile.TemporaryDirectory() as home:
        words = [
            "nice",
            "-n",
            "19",
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=1280,900",
            f"--user-data-dir={home}",
            "--remote-debugging-port=0",
            f"http://127.0.0.1:{port}/#/run/live",
        ]
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(0.5)  # its processes leave the folder that is about to be removed


def moment(run: Path) -> tuple[float, float]:
    told = json.loads((run / LIVE).read_text())
    return float(told["step"]), float(told["wall_s"])


def speed(run: Path, seconds: float) -> float:
    """Steps/s of the run over a window, as it tells itself."""
    step, wall = moment(run)
    time.sleep(seconds)
    then, later = moment(run)
    return (then - step) / max(later - wall, 1e-9)


def upper(values: list[float]) -> float:
    """The upper end of the one-sided 95 % interval of the mean, by the normal approximation."""
    return (
        statistics.mean(values) + 1.645 * statistics.stdev(values) / math.sqrt(len(values))
        if len(values) > 1
        else math.inf
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--viewer", choices=("reader", "chromium"), default="reader")
    parser.add_argument("--json", type=Path)
    at = parser.parse_args()
    viewer = {"reader": reader, "chromium": chromium}[at.viewer]
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        for i in range(at.runs):
            made.run(place / f"runs/ended_{i:03}", seed=i)
        made.run(place / "runs/told", summary=False)
        write_live(place / "runs/told")
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        watch = started(["watch", "runs", "--port", "0"], place, stdout=subprocess.PIPE)
        with started(RUN.split(), place, **quiet), watch as server:
            assert server.stdout is not None
            port = int(re.search(r":(\d+)/", server.stdout.readline())[1])  # type: ignore[index]
            run = place / "runs/live"
            while not (run / LIVE).is_file() or not moment(run)[0]:
                time.sleep(0.5)
            with reader(port):
                time.sleep(3.0)
            time.sleep(2.0)
            before, begun = cpu_s(server.pid), time.monotonic()
            time.sleep(at.seconds)
            idle = (cpu_s(server.pid) - before) / (time.monotonic() - begun)
            print(
                f"nobody looks: {idle:.2%} of a core ({at.runs + 2} runs; at most {MOST_IDLE:.0%})",
                flush=True,
            )
            told = delay(port, place / "runs/told")
            print(
                f"a changed verdict is told within {told:.2f} s (at most {MOST_DELAY:g})",
                flush=True,
            )
            losses, looked = list[float](), list[float]()
            for n in range(at.rounds):
                with viewer(port):
                    time.sleep(2.0)  # the first answers, which are the longest
                    before, begun = cpu_s(server.pid), time.monotonic()
                    opened = speed(run, at.seconds)
                    looked.append((cpu_s(server.pid) - before) / (time.monotonic() - begun))
                time.sleep(2.0)
                closed = speed(run, at.seconds)
                losses.append(1.0 - opened / closed)
                print(
                    f"{n + 1}: {opened:,.0f} steps/s with the page, {closed:,.0f} without",
                    flush=True,
                )
    mean, most = statistics.mean(losses), upper(losses)
    print(
        f"{at.viewer}: the server takes {statistics.mean(looked):.1%} of a core; the run loses "
        f"{mean:.2%}, upper end {most:.2%}"
    )
    found = {
        "host": host(),
        "idle": idle,
        "told": told,
        "watched": looked,
        "losses": losses,
        "mean": mean,
        "upper": most,
        "viewer": at.viewer,
    }
    if at.json is not None:
        at.json.write_text(json.dumps(found, indent=1))
    failed = [f"told after {told:.2f} s > {MOST_DELAY:g} s"] * (told > MOST_DELAY)
    failed += [f"idle {idle:.2%} > {MOST_IDLE:.0%}"] * (idle > MOST_IDLE) + [
        f"loss {most:.2%} > {MOST_LOSS:.0%}"
    ] * (most > MOST_LOSS)
    sys.exit("; ".join(failed) or 0)


if __name__ == "__main__":
    main()
