"""SAME_STEP vector envs of the ruler's episodes, which give their final observations in one form or another."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode

from equipoise.envs.ruler import RulerVector, reward

Form = Literal["objects", "rows", "old", "none", "some", "narrow"]


class SameRuler(RulerVector):
    """``some``: those of even streams only. ``narrow``: of another shape. ``nonfinite``: a stream whose ends, or whose
    ``resets``, are nan in episode 1."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}

    def __init__(
        self, num_envs: int = 1, streams: Any = None, form: Form = "rows", nonfinite: int = -1, resets: bool = False
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
        return {"final_obs": final, "_final_obs": ended & (self.streams % 2 == 0) if self.form == "some" else ended}
