"""``supervise``: check an env in a child process, within a time, whatever the env does to that
process.

Some findings are made here, since the child cannot report them: its death (exit code or signal) in
a call of the env, a call that does not return, and the env's output. The findings up to then are
kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from subprocess import PIPE
from typing import IO, Any

from equipoise import cores
from equipoise.deaths import OUTSIDE, Death
from equipoise.envs.check import report as names
from equipoise.envs.check.check import SECONDS, STEPS, check_arguments
from equipoise.envs.check.child import REFUSALS, WALKING
from equipoise.envs.check.findings import Finding
from equipoise.envs.check.places import env_frame, is_ours, of_dump
from equipoise.envs.check.report import Report
from equipoise.types import EnvFactory

POLL_S = 0.05
START_S = 60.0  # for the child's own imports, on a loaded machine
GENTLE_S = 0.5  # between SIGTERM and SIGKILL
STACK_S = 0.5  # for the stack of a child that hangs
# time kept for the last call to return: a share, and the most seconds
SPARE, SPARE_S = 0.1, 2.0
# a call hangs above both: seconds, and a multiple of the longest call before
HANG_S, HANG_RATIO = 1.0, 5.0
# a printed line: characters in a finding, most bytes held
LINE, MOST_BYTES = 80, 1 << 16
DIES = (
    "A worker's process dies so, too; the third such death in a row without progress ends the run."
)
HANGS = (
    "In training the worker is taken for hanging and replaced; the third time in a row ends "
    "the run."
)
START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from equipoise.envs.check.child "
    "import main; main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a check stands."""

    probe: str
    where: str  # the call under way
    steps: int | None  # of the probe
    call_s: float  # since the call began
    spent_s: float
    seconds: float
    findings: int


@dataclass(slots=True)
class State:
    """The child's events so far; only the thread that reads them writes here."""

    ready_at: float | None = None
    probe: tuple[str, int | None] = (names.MAKING, None)
    where: str = ""
    since: float = field(default_factory=time.monotonic)
    longest_s: float = 0.0  # of the calls that came back
    waited_s: float = 0.0  # for a core, of the call under way; written by ``watch``
    home: str = ""
    report: dict[str, Any] | None = None
    done: bool = False
    refused: tuple[str, str, str] | None = None
    stack: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)

    def take(self, line: bytes) -> None:
        try:
            kind, value = json.loads(line)
        except ValueError:  # of faulthandler
            self.stack.append(line.decode(errors="replace").rstrip("\n"))
            return
        now = time.monotonic()
        if kind == "call":
            if self.where:
                self.longest_s = max(self.longest_s, now - self.since)
            self.where, self.since = value, now
        elif kind == "probe":
            self.probe, self.where = (value[0], value[1]), ""
        elif kind == "ready":
            self.ready_at = now
        elif kind in ("report", "done"):
            self.report, self.done = value, kind == "done"
        elif kind == "home":
            self.home = value
        elif kind == "warning":
            self.warned.append(value)
        elif kind == "refused":
            self.refused = value[0], value[1], value[2]


@dataclass(slots=True)
class Printed:
    """Lines that the env printed while it was walked."""

    count: int = 0
    first: str = ""
    last: str = ""

    def take(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        if text.endswith(WALKING):
            self.count = 0
        elif text.strip():
            self.last = text.strip()[:LINE]
            self.first = self.first if self.count else self.last
            self.count += 1


def supervise(
    factory: EnvFactory,
    *,
    steps: int = STEPS,
    seed: int = 0,
    seconds: float = SECONDS,
    show: Callable[[Progress], None] = lambda progress: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Report:
    """Check an env as ``check_env`` does, in a child process that is gone when this returns.

    ``show`` is called twenty times a second, ``warn`` with each Python warning. After Ctrl-C the
    report holds what was found. Errors as from ``make``; OSError even if no process can start.
    """
    check_arguments(steps, seconds)
    given = {
        "target": factory.target,
        "kwargs": dict(factory.kwargs),
        "action_mask": factory.action_mask,
        "steps": steps,
        "seed": seed,
        "seconds": seconds - min(SPARE * seconds, SPARE_S),
    }
    line = json.dumps(given).encode() + b"\n"
    paths = json.dumps(sys.path)
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", START, paths],
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )
    state, printed, extra = State(), Printed(), list[Finding]()
    readers = [
        (reading(child.stdout, state.take), child.stdout),
        (reading(child.stderr, printed.take, MOST_BYTES), child.stderr),
    ]
    try:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end gives the reason
            child.stdin.write(line)
            child.stdin.flush()
        why = watch(child, state, seconds, show, warn)
        if why == names.TIME_UP:
            look_at_stack(child, state)
            if extra := hang(state):
                why = names.HUNG
    except KeyboardInterrupt as stop:
        if type(stop) is not KeyboardInterrupt:  # SIGTERM: the caller waits for no report
            raise
        why = names.INTERRUPTED
    finally:
        end(child, readers)
    if state.refused is not None:
        kind, message, trace = state.refused
        error = REFUSALS.get(kind, RuntimeError)(message)
        error.add_note(trace)
        raise error
    for text in state.warned:
        warn(text)
    if not why and not state.done:
        extra.append(death(state, child.returncode, printed))
        why = names.DIED
    if printed.count:
        seen = (
            f"expected nothing, got {printed.count:,} line{'s' * (printed.count > 1)}; the "
            f"first: {printed.first!r}"
        )
        cost = "The log of every worker fills with them, and to print takes time."
        extra.append(
            Finding(
                severity="note",
                what="the env prints",
                where="stdout or stderr",
                seen=seen,
                cost=cost,
            )
        )
    return finished(factory, state, why).found(*extra)


def reading(
    pipe: IO[bytes] | None, take: Callable[[bytes], None], most: int = -1
) -> threading.Thread:
    """Start a thread that hands on each line of a pipe, in parts of at most ``most`` bytes."""
    assert pipe is not None

    def read() -> None:
        while line := pipe.readline(most):
            take(line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def watch(
    child: subprocess.Popen[bytes],
    state: State,
    seconds: float,
    show: Callable[[Progress], None],
    warn: Callable[[str], None],
) -> str:
    """Wait for the child's end and show its progress; "", or ``TIME_UP``."""
    began = time.monotonic()
    # seconds waited for a core until it was ready, and until its call
    ready_s, call, call_from_s = 0.0, state.since, 0.0
    while True:
        try:
            child.wait(POLL_S)
            return ""
        except subprocess.TimeoutExpired:
            pass
        now, waited_s = time.monotonic(), cores.waited_s(child.pid)
        if state.since != call:
            call, call_from_s = state.since, waited_s
        state.waited_s = max(waited_s - call_from_s, 0.0)
        while state.warned:
            warn(state.warned.pop(0))
        if state.ready_at is None:
            ready_s = waited_s
            if now - began - waited_s > START_S:
                raise OSError(
                    f"expected {sys.executable} to start within {START_S:.0f} s, got nothing from "
                    "it"
                )
            continue
        # a wait may have begun before it was ready: 0 at least
        spent = max(now - state.ready_at - max(waited_s - ready_s, 0.0), 0.0)
        found = len(state.report["findings"]) if state.report is not None else 0
        probe, steps = state.probe
        show(
            Progress(
                probe=probe,
                where=state.where,
                steps=steps,
                call_s=now - state.since,
                spent_s=spent,
                seconds=seconds,
                findings=found,
            )
        )
        if spent > seconds:
            return names.TIME_UP


def look_at_stack(child: subprocess.Popen[bytes], state: State) -> None:
    """Ask the child where it is, and wait a moment for its answer."""
    child.send_signal(signal.SIGUSR1)
    until = time.monotonic() + STACK_S
    while time.monotonic() < until and not any("in <module>" in line for line in state.stack):
        time.sleep(0.01)


def hang(state: State) -> list[Finding]:
    """The finding of a call that does not return; none if the env is merely slow."""
    call_s = time.monotonic() - state.since - state.waited_s
    if not state.where or call_s < max(HANG_S, HANG_RATIO * state.longest_s):
        return []
    seen = f"expected an answer, got none in {call_s:.1f} s{at_line(state)}"
    return [
        Finding(
            severity="error",
            what=f"{called(state)} does not return",
            where=where(state),
            seen=seen,
            cost=HANGS,
        )
    ]


def death(state: State, code: int, printed: Printed) -> Finding:
    """The finding of a child that ended before its report was whole."""
    how = Death.of(code)
    name = called(state)
    if code >= 0:
        what = f"{name} ends its process"
    else:
        what = (
            f"{name}: its process is killed" if -code in OUTSIDE else f"{name} crashes its process"
        )
    out = (
        ", by the env itself or by a machine that is short of memory"
        if code == -signal.SIGKILL
        else ""
    )
    words = f"; the last line it printed: {printed.last!r}" if printed.last else ""
    seen = f"expected an answer, got a process that {how.how}{out}{at_line(state)}{words}"
    return Finding(severity="error", what=what, where=where(state), seen=seen, cost=DIES)


def called(state: State) -> str:
    """The function under way: "step()", "reset()", "the constructor"."""
    word = state.where.partition("(")[0].partition(" ")[0]
    return f"{word}()" if word in ("step", "reset", "close") else state.where or "the check"


def where(state: State) -> str:
    return (
        f"{state.where} ({state.probe[0]})"
        if called(state) in ("step()", "reset()")
        else state.probe[0]
    )


def at_line(state: State) -> str:
    """The env's line in the last stack, else the innermost: " at my_envs.py:12, in step"."""
    starts = [i for i, line in enumerate(state.stack) if "most recent call first" in line]
    frames = of_dump(state.stack[starts[-1] :]) if starts else []
    frames = [frame for frame in frames if not is_ours(frame.file)]  # our hook of os._exit
    return f" at {env_frame(frames, state.home) or frames[-1]}" if frames else ""


def finished(factory: EnvFactory, state: State, why: str) -> Report:
    """The child's last report; ``why`` it was not whole, or ""."""
    if state.report is None:
        return Report(target=factory.target, findings=(), facts={}, left_out=(names.ALL,), why=why)
    report = Report.of_json(state.report)
    if state.done or not why:
        return report
    left = list(report.left_out)
    if left and left[0].startswith(names.FIRST) and state.where.startswith("step "):
        left[0] = f"{names.FIRST} from {state.where} on"
    return dataclasses.replace(
        report, left_out=tuple(left), why=why if left or why == names.INTERRUPTED else ""
    )


def end(
    child: subprocess.Popen[bytes], readers: Sequence[tuple[threading.Thread, IO[bytes] | None]]
) -> None:
    """End the child and all that it started, and let the readers come to the end of their pipes."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GENTLE_S)
    # no process of its group is left
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    if child.poll() is None:
        child.kill()
    child.wait()
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
    for reader, pipe in readers:
        reader.join(timeout=1.0)
        # else a detached process of the env holds the other end
        if pipe is not None and not reader.is_alive():
            pipe.close()
