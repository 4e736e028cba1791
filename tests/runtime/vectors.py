"""Vector envs that a user might hand in."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from equipoise.envs import Ruler


def sync_ruler(num_envs: int, streams: Any, **kwargs: Any) -> gymnasium.vector.VectorEnv:
    makers = [partial(Ruler, stream=int(s), **kwargs) for s in streams]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)


def same_step_ruler(num_envs: int, streams: Any, **kwargs: Any) -> gymnasium.vector.VectorEnv:
    makers = [partial(Ruler, stream=int(s), **kwargs) for s in streams]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
