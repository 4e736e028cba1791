"""A recorder of whole episodes, in the form of a data set, from the steps of an evaluation."""

from __future__ import annotations

from collections import deque

import numpy as np

from equipoise import tree
from equipoise.envs.spaces import ActionForm
from equipoise.types import Array, EnvSpec, TimeStep, Tree


class Recorder:
    """``step`` after every ``recv``, ``acted`` before every ``send``; ``done`` has the episodes
    that are over.

    An episode: ``obs`` [L+1, ...], ``action`` [L, ...] as the env took it, ``reward``,
    ``terminated``, ``truncated`` [L]. An aborted episode is forgotten.
    """

    def __init__(self, spec: EnvSpec, streams: int) -> None:
        if len(spec.agents) > 1:
            raise ValueError(f"expected an env of one agent, got one of {', '.join(spec.agents)}")
        self.done: deque[dict[str, Tree]] = deque()
        self._form = ActionForm(spec.action, streams)
        self._action = self._form.zeros()
        # rows of all streams, from the oldest that an episode still needs
        self._rows: deque[dict[str, Tree]] = deque()
        self._oldest = 0  # number of the oldest row
        # the row of each running episode's reset, -1: none
        self._began = np.full(streams, -1, np.int64)

    def step(self, ts: TimeStep, wanted: Array) -> None:
        """Take in a step. ``wanted`` [B] bool: the streams whose episodes are still wanted."""
        if (ts.valid & ts.first).any():
            raise ValueError(
                "expected an env whose episodes' last observations are seen (NEXT_STEP), got one "
                "that begins the "
                "next one in the same step"
            )
        now = self._oldest + len(self._rows)
        row = {
            "obs": ts.obs,
            "reward": ts.reward,
            "terminated": ts.terminated,
            "truncated": ts.truncated,
            "valid": ts.valid,
        }
        self._rows.append(tree.map(np.array, row) | {"action": self._action})
        self._began[ts.first & wanted] = now
        for i in np.flatnonzero((ts.terminated | ts.truncated) & (self._began >= 0)):
            self.done.append(
                self._episode(int(i), list(self._rows)[self._began[i] - self._oldest :])
            )
            self._began[i] = -1
        running = self._began[self._began >= 0]
        until = int(running.min()) if len(running) else now + 1
        while self._oldest < until:
            self._rows.popleft()
            self._oldest += 1

    def acted(self, action: Tree) -> None:
        """Take in actions [B, ...], as a policy gives them."""
        self._action = self._form(action)

    def _episode(self, stream: int, rows: list[dict[str, Tree]]) -> dict[str, Tree]:
        """Make an episode of a reset and the steps after it; each action stands next to its
        outcome; ignored actions are left out.
        """
        rows = [rows[0], *(row for row in rows[1:] if row["valid"][stream])]

        def stack(name: str, rows: list[dict[str, Tree]]) -> Array:
            return tree.map(
                lambda *parts: np.stack([x[stream] for x in parts]), *(row[name] for row in rows)
            )

        steps = {
            name: stack(name, rows[1:]) for name in ("action", "reward", "terminated", "truncated")
        }
        return {"obs": stack("obs", rows)} | steps
