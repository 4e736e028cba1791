"""EnvPool's envs: its C++ threads step while the worker does something else between ``send`` and
``recv``.

Rows as documented and tested here: after an episode's end the next step ignores the action and
answers the reset with reward 0 (NEXT_STEP). A resume starts again. One thing is lost: EnvPool gives
``terminated = done & ~truncated``, so an episode that ends by itself on the very step of its time
limit is reported as truncated only.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import envpool
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from equipoise import tree
from equipoise.envs import hints as wrong
from equipoise.envs.adapter import GymnasiumEnv, observe
from equipoise.envs.base import RESET, SENT, SyncEnv, make_seam
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.families import atari
from equipoise.envs.infos import Infos
from equipoise.envs.spaces import action_spec
from equipoise.seeds import stream_seeds
from equipoise.types import Array, TimeStep, Tree

NOTE = "an end on the very step of the time limit is reported as truncation"


def make_pool(
    task: str,
    kwargs: dict[str, object],
    *,
    streams: NDArray[np.int64],
    seed: int,
    action_mask: str,
    answers: int = 0,
) -> EnvPoolEnv:
    """Make an EnvPool env; ``kwargs`` go to EnvPool (``num_threads`` defaults to 1).

    ``answers``: EnvPool's ``batch_size``, the streams that answer at a time; 0: all.
    """
    if task not in (known := envpool.list_all_envs()):
        raise wrong.unknown("env id", task, known, " in EnvPool")
    given: dict[str, object] = {"num_threads": 1} | kwargs
    count = len(streams)
    if given.get("batch_size", count) != count or given.get("num_envs", count) != count:
        raise ValueError(
            f"envpool:{task}: batch_size and num_envs are the number of streams, {count}; leave "
            "them out"
        )
    accepted = dict.fromkeys(envpool.make_spec(task).config._fields)
    if action_mask == "info":
        raise ValueError(
            f"envpool:{task}: EnvPool's information has no action masks; expected "
            "action_mask=auto, obs/KEY or none"
        )
    spec: atari.AtariSpec | None = None
    notes = [NOTE]
    if "use_fire_reset" in accepted:
        spec, said, more = atari.of_pool(task, kwargs, accepted)
        given, notes = {"num_threads": 1} | said, [*notes, *more]
    else:
        wrong.arguments(
            f"envpool:{task}",
            kwargs,
            accepted,
            ("num_envs", "batch_size", "from_pixels", "render_mode"),
        )
    given |= {"num_envs": count, "seed": stream_seeds(seed, streams)} | (
        {"batch_size": answers} if answers else {}
    )
    with warnings.catch_warnings():
        # EnvPool's spaces have float64 bounds
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")
        made = (PartialPool if answers else EnvPoolEnv)(
            envpool.make(task, env_type="gymnasium", **given),
            streams=streams,
            seed=seed,
            notes=tuple(notes),
            action_mask=action_mask,
        )
    if spec is not None:
        made.spec, made.mend = (
            atari.told(made.spec, spec, padded=not spec.episodic_life),
            atari.padding(spec, "first", count),
        )
    return made


class EnvPoolEnv(GymnasiumEnv):
    def __init__(
        self,
        env: Any,
        *,
        streams: Array,
        seed: int,
        notes: tuple[str, ...] = (NOTE,),
        action_mask: str = "auto",
    ) -> None:
        super().__init__(
            env,
            streams=streams,
            seed=seed,
            autoreset=AutoresetMode.NEXT_STEP,
            notes=notes,
            action_mask=action_mask,
        )
        self._seed = None  # given when it was made

    def send(self, action: Tree, stream: Array) -> None:
        super().send(action, stream)
        self.env.send(self.form.together(self.action))  # type: ignore[attr-defined]

    def load(self, state: Tree) -> None:
        if self._phase == SENT:
            self.env.recv()  # type: ignore[attr-defined]  # an answer that is not read
        super().load(state)

    def _exchange(self) -> tuple[Tree, Array, Array, Array, Tree]:
        return self.env.recv()  # type: ignore[attr-defined,no-any-return]


class PartialPool(EnvPoolEnv):
    """EnvPool's asynchronous batches: ``batch_size`` streams at a time."""

    def __init__(self, env: Any, **given: Any) -> None:
        super().__init__(env, **given)
        count = len(self.ts.stream)
        self._answered = np.zeros(count, np.bool_)
        self.ts = replace(self.ts, answered=self._answered)
        self._batch = int(env.config["batch_size"])
        self._over = np.zeros(count, np.bool_)  # streams whose last row ended an episode
        self._numbers: Infos | None = None  # of one batch
        # each stream's last action
        self._policy: Tree = tree.zeros(tree.prepend(action_spec(self.spec.action), count))

    def watch(self, names: Sequence[str]) -> None:
        super().watch(names)
        self._numbers = Infos(names, self._batch)

    def send(self, action: Tree, stream: Array) -> None:
        """action [n, ...] for the streams [n], which have all answered."""
        at = np.asarray(stream) - self.ts.stream[0]
        tree.map(lambda to, x: operator.setitem(to, at, x), self._policy, action)
        self.action = self.form(self._policy)
        self._phase = SENT
        pool: Any = self.env
        pool.send(self.form.together(tree.index(self.action, at)), at.astype(np.int32))

    def recv(self) -> TimeStep:
        """The rows of the next batch; its caller ensures that enough streams are under way."""
        self._phase = RESET if self._phase == RESET else SENT
        return super().recv()

    def load(self, state: Tree) -> None:
        if self._phase != RESET:
            raise RuntimeError(
                "load: expected a pool whose reset was not returned yet, since some of its "
                "streams may "
                "be under way"
            )
        SyncEnv.load(self, state)

    def _reset(self) -> None:
        pool: Any = self.env
        self._over.fill(False)
        self._waiting.fill(False)
        self._ended.fill(False)
        self._any_waiting, self._played = False, False
        self._answered.fill(True)
        pool.async_reset()
        for _ in range(len(self.ts.stream) // self._batch):
            obs, *_, info = pool.recv()
            self._show_at(info["env_id"], obs)
        if self.mend is not None:
            self.mend(self.ts.obs, np.ones_like(self.ts.first))

    def _show_at(self, at: Array, obs: Tree) -> None:
        """Copy the observations of a batch to the places ``at``."""
        rows = tree.map(lambda x: x[at], self.ts.obs)
        observe(rows, obs)
        tree.map(lambda to, x: operator.setitem(to, at, x), self.ts.obs, rows)

    def _step(self) -> None:
        ts, pool = self.ts, self.env
        try:
            obs, reward, terminated, truncated, info = pool.recv()  # type: ignore[attr-defined]
            at = info["env_id"]
            self._show_at(at, obs)
        except Exception as error:
            self._record(
                None, error.placed(self._where(None)) if isinstance(error, WrongValue) else error
            )
            raise
        for array in (self._answered, ts.reward, ts.terminated, ts.truncated, ts.first, ts.valid):
            array.fill(0)
        self._answered[at], ts.terminated[at], ts.truncated[at] = True, terminated, truncated
        ts.first[at], ts.valid[at] = self._over[at], ~self._over[at]
        ts.reward[at] = np.where(self._over[at], 0.0, reward)
        self._over[at] = ts.terminated[at] | ts.truncated[at]
        if self.mend is not None:
            self.mend(ts.obs, ts.first, at)
        if self.infos is not None and self._numbers is not None:
            self._numbers.read_all(info)
            self.infos.value.fill(np.nan)
            self.infos.value[at] = self._numbers.value
        if self._any_waiting:
            self._mask_answered()
        if not self.checks.fine():
            self._judge()

    def _mask_answered(self) -> None:
        """As ``_mask``; an aborted episode goes on in the pool, unseen, until the next begins."""
        ts = self.ts
        for i in np.flatnonzero(self._waiting & self._answered):
            begun, self._ended[i] = bool(self._ended[i]), bool(ts.terminated[i] or ts.truncated[i])
            make_seam(ts, i)
            self._waiting[i] = not begun
        self.checks.fill(np.flatnonzero(self._waiting))
        self._any_waiting = bool(self._waiting.any())
