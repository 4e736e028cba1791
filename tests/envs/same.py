"""SAME_STEP vector envs: the ruler's episodes, with final observations in one form or another; a
clock that pays the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from equipoise.envs.toys.ruler import RulerVector, reward

Form = Literal["objects", "rows", "old", "none", "some", "narrow"]


class SameRuler(RulerVector):
    """``some``: those of even streams only. ``narrow``: of another shape. ``nonfinite``: a stream
    whose ends, or whose ``resets``, are nan in episode 1.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}

    def __init__(
        self,
        num_envs: int = 1,
        streams: Any = None,
        form: Form = "rows",
        nonfinite: int = -1,
        resets: bool = False,
    ) -> None:
        super().__init__(num_envs, streams)
        self.form, self.nonfinite, self.resets = form, nonfinite, resets
        self.calls = 0

    def step(self, actions: Any) -> Any:
        self.calls += 1
        got = reward(self.number, self.t, actions)
        self._place(self.number, self.t + 1)
        ended = self.t == self.length
        terminated, truncated, final = ended & self.terminates, ended & self.truncates, self._obs()
        ill = (self.streams == self.nonfinite) & ended & (self.number == 1)
        self._place(self.number + ended, np.where(ended, 0, self.t))
        obs = self._obs()
        (obs if self.resets else final)[ill] = np.nan
        return obs, got, terminated, truncated, self._info(final, ended) if ended.any() else {}

    def _info(self, final: Any, ended: Any) -> dict[str, Any]:
        if self.form == "none":
            return {}
        if self.form == "objects":
            objects = np.full(len(final), None, object)
            for i in np.flatnonzero(ended):
                objects[i] = final[i]
            return {"final_obs": objects}
        if self.form == "old":
            return {"final_observation": final}
        if self.form == "narrow":
            return {"final_obs": final[:, :2]}
        return {
            "final_obs": final,
            "_final_obs": ended & (self.streams % 2 == 0) if self.form == "some" else ended,
        }


# (terminated, truncated) of every episode of a stream
ENDS = ((True, False), (False, True), (True, True), (False, False))
PAY = 2.0


class Clocked(gymnasium.Env[Any, Any]):
    """Pays the same for every step; an episode of stream s has 3 + s % 4 steps and ends as ``ENDS[s
    % 4]``, or never.

    Its observation is (stream, steps left, episode).
    """

    observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)

    def __init__(self, stream: int, box: bool) -> None:
        self.stream, self.number = stream, -1
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32) if box else spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left, self.number = 3 + self.stream % 4, self.number + 1
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        terminated, truncated = ENDS[self.stream % 4]
        self.left -= 1
        return self._obs(), PAY, self.left == 0 and terminated, self.left == 0 and truncated, {}

    def _obs(self) -> Any:
        return np.array((self.stream, self.left, self.number), np.float32)


def clocked(num_envs: int, streams: Any, mode: str, box: bool = False) -> SyncVectorEnv:
    return SyncVectorEnv([partial(Clocked, int(s), box) for s in streams], autoreset_mode=mode)
