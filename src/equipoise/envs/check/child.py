"""The process in which ``supervise`` lets an env be checked: events go to the parent as lines of
JSON.

The standard descriptors, as the parent has laid them::

    0   one line of JSON: what to check. Then it stays open, and its end means that the parent is gone
    1   events: [kind, value], and between them the stacks that faulthandler writes. Moved aside before any env is imported
    2   whatever the env prints, on stdout and stderr

| kind | value |
|---|---|
| ready | nothing: all is imported, the time begins |
| probe, call, home, report | as ``clock.py`` tells |
| warning | the text of a Python warning |
| refused | [class, message, traceback]: what ``make`` says of the target |
| done | the whole report |
"""  # noqa: E501

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from typing import Any

WALKING = "\0the walks begin\n"  # on the env's output: earlier output is the imports'
REFUSALS = {"ValueError": ValueError, "ImportError": ImportError, "OSError": OSError}
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Check the env that the parent names, and leave without the interpreter's own end."""
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    given = json.loads(first_line())
    stay_with_the_parent()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def tell(kind: str, value: Any) -> None:
        if kind == "probe" and value[0] != "making the env":
            mark()
        events.write(json.dumps([kind, value]).encode() + b"\n")

    tell_stacks(events)
    warnings.showwarning = lambda message, *rest, **named: tell("warning", str(message))
    from equipoise.envs.check.check import check_env
    from equipoise.types import EnvFactory

    factory = EnvFactory(
        target=given["target"], kwargs=given["kwargs"], action_mask=given["action_mask"]
    )
    tell("ready", None)
    try:
        report = check_env(
            factory, steps=given["steps"], seed=given["seed"], seconds=given["seconds"], tell=tell
        )
    except Exception as error:
        kind = next(
            (name for name, cls in REFUSALS.items() if isinstance(error, cls)), type(error).__name__
        )
        tell("refused", [kind, str(error), traceback.format_exc()])
    else:
        tell("done", report.json())
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    LEAVE(0)


def first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            LEAVE(1)
        line += byte
    return line


def stay_with_the_parent() -> None:
    """End with the parent, however it ends; the env's stdin is empty."""
    lifeline, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        os.read(lifeline, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)  # this process leads a group of its own

    threading.Thread(target=wait, daemon=True).start()
    if sys.platform == "linux":  # for an env that never gives the interpreter's lock back
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tell_stacks(events: Any) -> None:
    """Write the stack where a crash, an ``os._exit`` or the parent's SIGUSR1 finds this process."""
    faulthandler.enable(file=events, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=events, all_threads=False)
    ours = os.getpid()

    def leave(code: int) -> object:
        if os.getpid() == ours:
            faulthandler.dump_traceback(file=events, all_threads=False)
        LEAVE(code)

    os._exit = leave  # type: ignore[assignment]


marked: list[bool] = []


def mark() -> None:
    """Mark the beginning of the walks on the env's output, once."""
    if not marked:
        marked.append(True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(2, WALKING.encode())


LEAVE = os._exit
