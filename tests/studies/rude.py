"""Envs that do in their first episodes what they should not."""

from __future__ import annotations

import os
import time
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv


class Rude(CartPoleEnv):
    count = 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 50:
            self.misbehave()
        return super().step(action)

    def misbehave(self) -> None:
        raise NotImplementedError


class Prints(Rude):
    def misbehave(self) -> None:
        print("printed by the env", flush=True)
        os.write(2, b"written by the env\n")


class Raises(Rude):
    def misbehave(self) -> None:
        raise ValueError("it broke")


class Exits(Rude):
    def misbehave(self) -> None:
        os._exit(7)


class Closes(Rude):
    def misbehave(self) -> None:
        os.closerange(0, 11)


class Forks(Rude):
    def misbehave(self) -> None:
        if os.fork() == 0:
            time.sleep(1000)


class Hangs(Rude):
    def misbehave(self) -> None:
        time.sleep(1000)
