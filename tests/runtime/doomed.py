"""IMPALA whose process is killed at a chosen file operation of the checkpoint after a chosen moment
of the run.
"""

from __future__ import annotations

import os
import signal
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.algorithms.impala import IMPALA
from equipoise.types import LossOutput

# the operations that change a disk
CHANGING = ("open", "write", "fsync", "rename", "mkdir", "rmdir", "unlink")
_armed: list[int] = []


@dataclass(frozen=True, kw_only=True)
class Doomed(IMPALA):
    """Unless the file ``flag`` exists: from the first loss in the second half on, SIGKILL before
    operation ``at``.
    """

    at: int = 0
    flag: str = ""

    def loss(self, *args: Any, step: float, **kwargs: Any) -> LossOutput | None:
        if step >= 0.5 and not _armed and self.flag and not Path(self.flag).exists():
            kill_at(self.at, Path(self.flag))
        return super().loss(*args, step=step, **kwargs)


def kill_at(n: int, flag: Path | None = None) -> None:
    """SIGKILL for this process before its ``n``-th operation from now on that changes a disk;
    ``flag`` tells of it.
    """
    _armed.append(n)
    real_open = open

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if name == "write" and not stat.S_ISREG(os.fstat(args[0]).st_mode):
                # a message or a bell: how many there are, and when the last, is chance
                return real(*args, **kwargs)
            if _armed[0] == 0:
                if flag is not None:
                    with real_open(flag, "w", encoding="utf-8") as file:
                        file.write(name)
                os.kill(os.getpid(), signal.SIGKILL)
            _armed[0] -= 1
            return real(*args, **kwargs)

        setattr(os, name, counted)

    for name in CHANGING:
        wrap(name)
