"""Reward functions that the tests of scoring call in other processes: the text of a completion says
what goes wrong.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

NEVER_S = 600.0


def length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(one)) for one in completions]


def obeys(prompts: Any, completions: list[str], **_: Any) -> list[Any]:
    match completions[0]:
        case "raise":
            raise OSError("no luck")
        case "sleep":
            time.sleep(0.3)
        case "hang":
            time.sleep(NEVER_S)
        case "hang with a child":
            subprocess.run(["sleep", str(NEVER_S)], check=False)
        case "hold the lock":
            re.match(r"(a+)+$", "a" * 60 + "b")
        case "nan":
            return [float("nan")] * len(completions)
        case "short":
            return [1.0]
        case "read":
            return [float(len(sys.stdin.read()))]
        case "exit":
            raise SystemExit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    return [1.0] * len(completions)


async def later(completions: list[str], bonus: list[float], **_: Any) -> list[float]:
    return bonus


def torch_is_there(completions: list[str], **_: Any) -> list[float]:
    return [float("torch" in sys.modules)] * len(completions)
