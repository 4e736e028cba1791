"""A process for trials that trains nothing: the name of a trial is what befalls it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

commands, events = os.fdopen(int(sys.argv[1]), "rb"), int(sys.argv[2])


def send(**data: Any) -> None:
    os.write(events, json.dumps(data).encode() + b"\n")


def result(trial: str, steps: int) -> None:
    send(
        kind="Result", trial=trial, steps=steps, state="paused", score=1.0, alarms=[], error="",
        seconds=1.0, core_seconds=1.0,
    )  # fmt: skip


trial = ""
for line in commands:
    job = json.loads(line)
    if "stop" in job:
        if trial == "late":  # its result was on its way
            result(trial, 100)
        else:
            send()
        continue
    trial, folder = job["trial"], Path(job["study"])
    times = len(list(folder.glob(f"{trial}.*")))
    (folder / f"{trial}.{times}").touch()  # how often it has begun
    if trial == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif trial == "dies further":  # each time later, so that it makes progress
        send(kind="Progress", trial=trial, steps=10 * (times + 1))
        if times < 5:
            os._exit(1)
    elif trial == "prints":
        for number in range(100_000):
            print(f"line {number:06} {'.' * 88}")
        sys.stdout.flush()
        while os.fstat(1).st_size > 4 << 20:  # the study has not seen it yet
            time.sleep(0.01)
        print("the end")
        sys.stdout.flush()
    elif trial == "in parts":
        whole = json.dumps({"kind": "Progress", "trial": trial, "steps": 7}).encode() + b"\n"
        for byte in whole:
            os.write(events, bytes([byte]))
            time.sleep(0.001)
    elif trial == "garbage" and times == 0:
        os.write(events, b"\0no json\n")
        time.sleep(1000)
    elif trial == "endless" and times == 0:
        while True:
            os.write(events, b"x" * 65536)
    elif trial == "forks and dies" and times == 0:
        if os.fork() == 0:
            time.sleep(1000)  # with the pipe of the events open
        os._exit(3)
    elif trial == "closes its pipe" and times == 0:
        os.close(events)
        time.sleep(1000)
    elif (trial == "ends without" and times == 0) or trial == "never has one":
        send()  # as if it had been stopped
        continue
    elif trial in ("hangs", "late", "long"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        send(kind="Progress", trial=trial, steps=1)
        if trial == "hangs":
            time.sleep(1000)
        continue
    result(trial, job["to"])
