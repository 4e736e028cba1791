"""What a run is connected with beside its own processes: the machines of a cluster, and worlds outside.

It listens for worlds (``envs/worlds/hub.py``) from before its first look at an env to its end.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

from equipoise.envs.worlds.addresses import PREFIX as REMOTE
from equipoise.types import Program

if TYPE_CHECKING:
    from equipoise.run.reporter import Reporter
    from equipoise.runtime.cluster.on_ray import RayNodes


class Outside:
    """The connections of ``run``, which end with ``close``, or when the run itself is gone."""

    def __init__(self, program: Program, nodes: RayNodes | None, run: object) -> None:
        """ValueError for an address of worlds, or a setting of theirs, that cannot work; OSError where it is taken."""
        self._hub: Any = None
        self._held = contextlib.ExitStack()
        if nodes is not None:
            self._held.callback(nodes.disconnect)
        env = program.source.env
        if env is not None and env.target.startswith(REMOTE):
            from equipoise.envs.worlds.door import listening

            self._hub = self._held.enter_context(listening(env.target, env.kwargs))
            self._hub.says_over = True
            weakref.finalize(run, self._held.close)

    def tell(self, reporter: Reporter) -> None:
        """Note what became of worlds since the last call."""
        for note in () if self._hub is None else self._hub.notes():
            reporter.note(note)

    def close(self) -> None:
        self._held.close()
