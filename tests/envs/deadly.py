"""Envs that do harm to the process or the patience of a check, one each. Only a child process may
step them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

import gymnasium
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from tests.envs.planted import NewGeneratorAndNoEnd, Sound

print("what an import prints is not counted")


class ExitsAtSeven(Sound):
    def step(self, action: Any) -> Any:
        if self.calls == 6:
            os._exit(3)
        return super().step(action)


class Crashes(Sound):
    """A null pointer, in C."""

    def step(self, action: Any) -> Any:
        if self.calls == 6:
            print("about to read from nowhere")
            ctypes.string_at(0)
        return super().step(action)


class Killed(Sound):
    def reset(self, **given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class DiesWhenMade(Sound):
    def __init__(self) -> None:
        os._exit(0)


class HangsInReset(Sound):
    def reset(self, **given: Any) -> Any:
        while True:
            time.sleep(60)


class HangsInStep(Sound):
    """A loop without an end, deaf to SIGTERM."""

    def step(self, action: Any) -> Any:
        if self.calls == 6:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                pass
        return super().step(action)


class Slow(Sound):
    def __init__(self, step_s: float = 0.02) -> None:
        super().__init__()
        self.step_s = step_s

    def step(self, action: Any) -> Any:
        time.sleep(self.step_s)
        return super().step(action)


class CrashesWhenClosed(Sound):
    def close(self) -> None:
        ctypes.string_at(0)


class RaisesAtLength(Sound):
    def step(self, action: Any) -> Any:
        raise ValueError("no " * 10_000)


class SlowToClose(Slow):
    def close(self) -> None:
        time.sleep(0.7)


class SlowAndUnseeded(NewGeneratorAndNoEnd):
    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        return super().step(action)


class Prints(Sound):
    def step(self, action: Any) -> Any:
        print("stepping", int(action))
        return super().step(action)


class LeavesAChild(Sound):
    """A process of its own that outlives the env, in the env's group."""

    def __init__(self, file: str) -> None:
        super().__init__()
        if not (pid := os.fork()):
            while True:
                time.sleep(60)
        with open(file, "a") as out:
            out.write(f"{pid}\n")


class DoubtsWhenMade(Sound):
    def __init__(self) -> None:
        boards = 1
        assert boards == 2  # without words


class RaisesWhenMade(Sound):
    def __init__(self) -> None:
        raise ValueError("no board of that size")


class Quits(Sound):
    def step(self, action: Any) -> Any:
        sys.exit("enough")


class RaisesWhenClosed(Sound):
    def close(self) -> None:
        raise OSError("closed already")


class ReturnsLists(Slow):
    """A finding to be kept, in an env that takes long."""

    def obs(self) -> Any:
        return [float(x) for x in super().obs()]


class SaysItsPid(HangsInStep):
    """It says so at step 3, after a finding to be kept, and hangs at 7."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def step(self, action: Any) -> Any:
        if self.calls == 3:
            with open(self.file, "w") as out:
                out.write(str(os.getpid()))
        return super().step(action)

    def obs(self) -> Any:
        return [float(x) for x in super().obs()]


def normalized() -> Any:
    return NormalizeReward(NormalizeObservation(gymnasium.make("CartPole-v1")))
