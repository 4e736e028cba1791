"""EnvPool's envs: its C++ threads step while the worker does something else between ``send`` and ``recv``.

Rows as documented and tested here: after an episode's end the next step ignores the action and answers the reset with
reward 0 (NEXT_STEP). A resume starts anew. One thing is lost: EnvPool gives ``terminated = done & ~truncated``, so an
episode that ends by itself on the very step of its time limit is reported as truncated only.
"""

from __future__ import annotations

import warnings
from typing import Any

import envpool
import numpy as np
from gymnasium.vector import AutoresetMode

from equipoise.envs import hints as wrong
from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.base import SENT
from equipoise.envs.families import atari
from equipoise.seeds import stream_seeds
from equipoise.types import Array, Tree

NOTE = "an end on the very step of the time limit is told as truncation"


def make_pool(
    task: str, kwargs: dict[str, Any], *, streams: np.ndarray[Any, np.dtype[np.int64]], seed: int, action_mask: str
) -> EnvPoolEnv:
    """Make an EnvPool env; ``kwargs`` go to EnvPool (``num_threads`` defaults to 1)."""
    if task not in (known := envpool.list_all_envs()):
        raise wrong.unknown("env id", task, known, " in EnvPool")
    given: dict[str, Any] = {"num_threads": 1} | kwargs
    count = len(streams)
    if given.get("batch_size", count) != count or given.get("num_envs", count) != count:
        raise ValueError(f"envpool:{task}: batch_size and num_envs are the number of streams, {count}; leave them out")
    accepted = dict.fromkeys(envpool.make_spec(task).config._fields)
    if action_mask == "info":
        raise ValueError(
            f"envpool:{task}: EnvPool's information has no action masks; expected action_mask=auto, obs/KEY or none"
        )
    spec: atari.AtariSpec | None = None
    notes = [NOTE]
    if "use_fire_reset" in accepted:
        spec, said, more = atari.of_pool(task, kwargs, accepted)
        given, notes = {"num_threads": 1} | said, [*notes, *more]
    else:
        wrong.arguments(f"envpool:{task}", kwargs, accepted, ("num_envs", "batch_size", "from_pixels", "render_mode"))
    given |= {"num_envs": count, "seed": stream_seeds(seed, streams)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")  # its spaces' float64 bounds
        made = EnvPoolEnv(
            envpool.make(task, env_type="gymnasium", **given), streams=streams, seed=seed, notes=tuple(notes),
            action_mask=action_mask,
        )  # fmt: skip
    if spec is not None:
        made.spec, made.mend = atari.told(made.spec, spec, padded=not spec.episodic_life), atari.padding(spec, "first", count)
    return made


class EnvPoolEnv(GymnasiumEnv):
    def __init__(
        self, env: Any, *, streams: Array, seed: int, notes: tuple[str, ...] = (NOTE,), action_mask: str = "auto"
    ) -> None:
        super().__init__(
            env, streams=streams, seed=seed, autoreset=AutoresetMode.NEXT_STEP, notes=notes, action_mask=action_mask
        )
        self._seed = None  # given when it was made

    def send(self, action: Tree, stream: Array) -> None:
        super().send(action, stream)
        self.env.send(self.form.together(self.action))  # type: ignore[attr-defined]

    def load(self, state: Tree) -> None:
        if self._phase == SENT:
            self.env.recv()  # type: ignore[attr-defined]  # an answer that is not read
        super().load(state)

    def _exchange(self) -> tuple[Any, Any, Any, Any, Any]:
        return self.env.recv()  # type: ignore[attr-defined,no-any-return]
