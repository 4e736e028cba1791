"""CartPole whose process is killed while it says what state it is in."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv


class KilledWhileSaving(CartPoleEnv):
    """The first to be asked once the file ``flag`` is there."""

    def __init__(self, flag: str = "") -> None:
        super().__init__()
        self._flag = Path(flag)

    def get_state(self) -> dict[str, Any]:
        try:
            self._flag.unlink()
        except FileNotFoundError:
            return {"state": np.zeros(4) if self.state is None else np.array(self.state)}
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it lives")

    def set_state(self, tree: Any) -> None:
        self.state = np.asarray(tree["state"])
