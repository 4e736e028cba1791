"""Worlds outside of a run: it listens for them (``envs/worlds/hub.py``) from before its first look
at an env to its end.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from equipoise.types import Program


class Worlds:
    """The worlds of a run; none if its envs are stepped here. ``run``: when it is gone, the address
    is closed.
    """

    def __init__(self, program: Program, run: object) -> None:
        """ValueError for an address or a setting that cannot work; OSError if the address is
        taken.
        """
        self._hub: Any = None
        self._held = contextlib.ExitStack()
        if not program.outside:
            return
        from equipoise.envs.worlds.door import listening

        self._hub = self._held.enter_context(listening(program.env.target, program.env.kwargs))
        self._hub.says_over = True
        weakref.finalize(run, self._held.close)

    def tell(self, note: Callable[[str], object]) -> None:
        """Note the changes of worlds since the last call."""
        for said in [] if self._hub is None else self._hub.notes():
            note(said)

    def close(self) -> None:
        self._held.close()
