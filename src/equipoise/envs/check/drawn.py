"""Drawn actions for an env before any policy exists: members of its space that its mask, if it has
one, allows.
"""

from __future__ import annotations

import functools

from equipoise import tree
from equipoise.envs.base import SyncEnv
from equipoise.envs.check.agents import JointMasks, joint_actions
from equipoise.envs.check.probe import sample
from equipoise.envs.families.joint import Joint
from equipoise.envs.loop import LoopEnv
from equipoise.envs.masks import legal
from equipoise.envs.spaces import member
from equipoise.types import TimeStep, Tree


class Drawn:
    """At most ``count`` actions for an env of one stream, with one for each agent."""

    def __init__(self, env: SyncEnv, count: int, seed: int) -> None:
        one = env.envs[0] if isinstance(env, LoopEnv) else None
        self._env, self._masks = env, None
        if isinstance(one, Joint):
            self._masks = JointMasks(one, one.action_mask)
            self._actions: Tree = joint_actions(one, count, seed)[:, None]
        else:
            self._actions = sample(env.spec.action, count, (1,), seed)

    def __call__(self, n: int, ts: TimeStep) -> Tree:
        """Action number ``n``, [1, ...], for the row ``ts``."""
        action, spec = tree.index(self._actions, n), self._env.spec
        if spec.mask:
            legal(spec.action, action, functools.reduce(member, spec.mask, ts.obs))
        if self._masks is not None:
            self._masks(action, tree.index(ts.obs, 0))
        return action
