"""A Gymnasium ``VectorEnv`` as an ``Env``: native vector envs, and the envs that a user's callable
returns.

Row by row (d: the row ended an episode; t: a clock cut it)::

    NEXT_STEP   obs  o0  o1  o2(final)  p0      p1      the true final observation is a row, the reset a masked seam
                d             x
                first x                 x               valid False, reward 0, the action was ignored
    SAME_STEP   obs  o0  o1  p0         p1              terminated: the next episode begins in the same row, which is valid;
                d             x                         nobody asks for the value of a final observation after which nothing
                first x       x                         comes
    SAME_STEP   obs  o0  o1  o2(final)  p0      p1      truncated, and ``info["final_obs"]`` is there: held. The row shows it,
                t             x                         the reset is kept aside and shown in the next: the rows of NEXT_STEP
                first x                 x               valid False, reward 0
    its         obs  q3  q4  q5         q5      q6      nothing was stepped for that row, so the other streams show theirs
    neighbours  valid    x   x                  x       again: valid False, reward 0, ``first`` as it was

A hold costs one ignored inference and a row of all B streams, for each step in which some stream
was truncated, and every return ends there and goes on with a value. That is next to nothing if all
clocks strike together; if they do not, and B is no longer small next to an episode's steps, up to
half of the rows. NEXT_STEP costs one row of one stream instead.

If the env gives no final observation, a truncation counts as a termination, and a note says so. For
Gymnasium's own vector envs this is known before; for other envs the first truncation shows it.

Information dicts are not touched, but for a mask (``masks.py``) and the numbers that ``watch``
names: on the row that ends an episode they are the numbers of ``final_info`` in SAME_STEP.

One stream of a vector env cannot be made again. If its episode has to be aborted (``on_nonfinite``
"drop", a value that is invalid) its rows are masked until its next episode begins: ``valid`` False,
``first`` True, reward 0, a harmless observation. An exception cannot be attributed to one stream,
so it is raised.
"""  # noqa: E501

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from equipoise import foreign, tree
from equipoise.envs import final
from equipoise.envs.base import SyncEnv, copied, fill, make_seam
from equipoise.envs.failures.capsule import Start
from equipoise.envs.infos import Infos
from equipoise.envs.restore import snapshot
from equipoise.envs.spaces import member
from equipoise.envs.values import flags, numbers, taken
from equipoise.seeds import stream_seeds
from equipoise.types import Array, Resume, Tree

# steps between two snapshots of an exact env: the steps that a capsule has to play
EXACT_ACTIONS = 256
# most bytes of actions kept of an env that is not exact; with more a capsule cannot replay
OTHER_ACTIONS = 1 << 26


class GymnasiumEnv(SyncEnv):
    """A vector env of B streams, seeded from (``seed``, stream), or from the first stream."""

    def __init__(
        self,
        env: VectorEnv,
        *,
        streams: Array,
        seed: int,
        autoreset: AutoresetMode | None = None,
        notes: tuple[str, ...] = (),
        action_mask: str = "auto",
    ) -> None:
        if env.num_envs != len(streams):
            raise ValueError(
                f"{env} has {env.num_envs!r} envs, expected {len(streams)}: one for each stream of "
                "the worker"
            )
        self.env = env
        self._wrapped = env.unwrapped is not env
        mode = autoreset or autoreset_mode(env)
        self.same_step = mode is AutoresetMode.SAME_STEP
        # ``SyncEnv`` refuses a space that is None.
        observation: Any = foreign.attribute(env, "single_observation_space")
        action: Any = foreign.attribute(env, "single_action_space")
        super().__init__(
            observation=observation,
            action=action,
            streams=streams,
            resume="exact" if snapshot.possible(env) else "restart",
            notes=(*notes, *final.note(env)) if self.same_step else notes,
            action_mask=action_mask,
        )
        count = len(streams)
        self._waiting, self._ended = (
            np.zeros(count, np.bool_),
            np.zeros(count, np.bool_),
        )  # streams whose episode was aborted; streams whose last row ended an episode
        self._any_waiting = False
        self._done = np.zeros(count, np.bool_)  # an episode ended in this row (SAME_STEP)
        # it was truncated: the reset is shown in the next row
        self._held = np.zeros(count, np.bool_)
        self._aside: Tree = (
            tree.map(np.zeros_like, self.ts.obs) if self.same_step else {}
        )  # the reset observations of held streams
        # called with obs and first of every row, to write over obs
        self.mend: Callable[..., None] | None = None
        self._actions: list[Tree] = []  # actions since ``_from``
        self._from: Tree | None = None  # a state with an action sent; None: birth
        self._played = True  # can this env be brought to ``_from``
        seeds = stream_seeds(seed, streams)
        self._never_reset = True
        nbytes = sum(x.nbytes for x in tree.leaves(self.action))
        self._most = (
            EXACT_ACTIONS
            if self.spec.resume == "exact"
            else max(OTHER_ACTIONS // (nbytes + 128), 1)
        )
        self._seed: Any = (
            seeds if isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv) else seeds[0]
        )

    def _reset(self) -> None:
        self._from, self._actions, self._played = None, [], self._never_reset
        self._never_reset, self._any_waiting = False, False
        self._waiting.fill(False)
        self._ended.fill(False)
        self._held.fill(False)
        try:
            obs, _ = self.env.reset(seed=self._seed)
        except Exception as raised:
            if (error := self._placed(None, raised)) is raised:
                raise
            raise error from raised
        self._seed = None  # a reset after the first goes on with the env's own generator
        observe(self.ts.obs, obs)
        if self.mend is not None:
            self.mend(self.ts.obs, np.ones_like(self.ts.first))

    @property
    def holding(self) -> bool:
        return self.same_step and bool(self._held.any())

    def _step(self) -> None:
        if self.holding:
            self._go_on()
            return
        if len(self._actions) >= self._most:
            self._cut()
        self._actions.append(self.action)
        try:
            obs, reward, terminated, truncated, info = self._exchange()
            self._fill(obs, reward, terminated, truncated)
            if self.same_step:
                self._end(info)
        except Exception as raised:
            error = self._placed(None, raised)
            self._record(None, error)
            if error is raised:
                raise
            raise error from raised
        if self.infos is not None:
            self._inform(self.infos, info)
        if self._any_waiting:
            self._mask()
        if not self.checks.fine():
            self._judge()

    def _fill(self, obs: Tree, reward: Array, terminated: Array, truncated: Array) -> None:
        ts = self.ts
        if not self.same_step:
            np.logical_or(ts.terminated, ts.truncated, out=ts.first)  # as the row before has it
            np.logical_not(ts.first, out=ts.valid)
        count = len(ts.reward)
        np.copyto(ts.terminated, flags(terminated, count, "terminated"))
        np.copyto(ts.truncated, flags(truncated, count, "truncated"))
        np.copyto(ts.reward, numbers(reward, count, "reward"))
        observe(ts.obs, obs)
        if self._wrapped and not self.same_step:
            ts.reward[ts.first] = 0.0  # a wrapper of rewards does not handle seams
        if self.mend is not None:
            self.mend(ts.obs, ts.first)

    def _end(self, info: Tree) -> None:
        """Hold back the next episode's first observation if a clock cut this one (SAME_STEP)."""
        ts, done, held = self.ts, self._done, self._held
        np.logical_or(ts.terminated, ts.truncated, out=done)
        ts.valid.fill(True)
        cut = ts.truncated & ~ts.terminated & ~self._waiting
        if cut.any():
            tree.map(np.copyto, self._aside, ts.obs)
            np.copyto(held, final.read(ts.obs, info, cut))
            self._tell_finals(bool(held[cut].all()))
        np.copyto(ts.terminated, done & ~held)
        np.copyto(ts.first, ts.terminated)

    def _tell_finals(self, given: bool) -> None:
        """Remember, at the first truncation, whether the env gives final observations."""
        others = tuple(
            one for one in self.spec.notes if one not in (final.UNKNOWN, final.TRUNCATION)
        )
        if not given and final.TRUNCATION not in self.spec.notes:
            self.spec = replace(self.spec, notes=(*others, final.TRUNCATION))
            warnings.warn(
                f"{self._where(None)}: {final.TRUNCATION}: expected info['final_obs'] of a "
                "SAME_STEP env if an episode is truncated, got none (reported once)",
                RuntimeWarning,
                stacklevel=2,
            )
        elif given and final.UNKNOWN in self.spec.notes:
            self.spec = replace(self.spec, notes=others)

    def _go_on(self) -> None:
        """Answer the row after a hold: the held episodes begin, and no env is stepped."""
        ts, held = self.ts, self._held
        for array in (ts.reward, ts.terminated, ts.truncated, ts.valid):
            array.fill(0)
        np.logical_or(ts.first, held, out=ts.first)
        self._show(held)
        if self.infos is not None:
            self.infos.value.fill(np.nan)
        if not self.checks.fine():
            self._judge()

    def _show(self, rows: Array) -> None:
        """Show the resets of ``rows`` (a mask or indices) and stop holding them."""

        def put(to: Array, aside: Array) -> None:
            to[rows] = aside[rows]

        tree.map(put, self.ts.obs, self._aside)
        self._held[rows] = False

    def _inform(self, infos: Infos, info: Tree) -> None:
        infos.read_all(info)
        if self.same_step and self._done.any():  # ``info`` itself belongs to the next episode there
            infos.read_all(
                info.get("final_info") if isinstance(info, Mapping) else None, self._done
            )

    def _mask(self) -> None:
        """Mask the streams whose episode was aborted, until their next one begins."""
        ts, waiting, ended = self.ts, self._waiting, self._ended
        done = ts.terminated | ts.truncated
        # this row's observation begins an episode
        begun = waiting & (done if self.same_step else ended)
        make_seam(ts, waiting)
        np.copyto(ended, done & ~begun)
        waiting &= ~begun
        self.checks.fill(waiting)
        self._any_waiting = bool(waiting.any())

    def _abort(self, i: int, error: Exception) -> None:
        assert self.failures is not None
        self._record(i, error)
        if self.failures.ends_the_run(error):
            raise error
        ts = self.ts
        self.failures.aborted(error)
        done = bool(ts.terminated[i] or ts.truncated[i])
        if self._held[i]:  # the fault was the end of the old one
            self._show([i])
        # then either the reward is wrong or the reset
        begins = self.same_step and done
        make_seam(ts, i)
        if not begins or any(wrong.kind != "outside" for wrong in self.checks.wrong([i])):
            self._waiting[i], self._ended[i], self._any_waiting = True, done, True
            self.checks.fill([i])

    def _cut(self) -> None:
        self._actions = []
        if self.spec.resume == "exact":
            self._from, self._played = self.state(), True
        else:
            self._played = False

    def _course(self, i: int | None) -> dict[str, Any]:
        started = "birth" if self._from is None else "state"
        return {
            "start": Start(kind=started if self._played else "lost"),  # type: ignore[arg-type]
            "streams": tuple(self.ts.stream.tolist()),
            "step": len(self._actions),
            "actions": tree.stack(self._actions) if self._actions else np.zeros((0,)),
            "observations": self.ts.obs
            if i is None
            else tree.map(lambda x: np.array(x[i : i + 1]), self.ts.obs),
            "state": {} if self._from is None else self._from,
        }

    def _one(self, i: int | None) -> object:
        return self.env

    def _exchange(self) -> tuple[Tree, Array, Array, Array, Tree]:
        return self.env.step(self.form.together(self.action))

    def _capture(self) -> Tree:
        state = snapshot.capture(self.env) | {
            "waiting": self._waiting.copy(),
            "ended": self._ended.copy(),
        }
        return (
            state | {"held": self._held.copy(), "aside": copied(self._aside)}
            if self.same_step
            else state
        )

    def _restore(self, state: Tree) -> tuple[list[Resume], dict[int, str]]:
        snapshot.restore(self.env, state)
        np.copyto(self._waiting, state["waiting"])
        np.copyto(self._ended, state["ended"])
        self._any_waiting = bool(self._waiting.any())
        if self.same_step:
            fill({"held": self._held, "aside": self._aside}, state)
        self._played, self._actions = False, []  # until the next cut
        return ["exact"] * len(self.ts.stream), {}

    def _closes(self) -> list[tuple[int | None, Callable[[], object]]]:
        return [(None, self.env.close)]


def observe(target: Tree, obs: Tree, key: str = "obs") -> None:
    """Copy a batched observation into the arrays of ``target``; float64 becomes float32."""
    if isinstance(target, dict) and isinstance(obs, Mapping | tuple) and len(obs) == len(target):
        for name, inner in target.items():
            try:
                part = member(obs, name)
            except (LookupError, ValueError):
                # the error names the missing key
                part = taken(tree.spec(target), obs, None, key)[name]
            observe(inner, part, f"{key}/{name}")
    elif (
        type(obs) is np.ndarray
        and isinstance(target, np.ndarray)
        and obs.shape == target.shape
        and obs.dtype == target.dtype
    ):
        np.copyto(target, obs)
    else:
        tree.map(np.copyto, target, taken(tree.spec(target), obs, None, key))


def autoreset_mode(env: VectorEnv) -> AutoresetMode:
    """Return ``metadata["autoreset_mode"]``; ValueError if it is missing or disabled."""
    about = foreign.attribute(env, "metadata")
    said = about.get("autoreset_mode") if isinstance(about, Mapping) else None
    modes: dict[object, AutoresetMode] = {
        name: mode for mode in AutoresetMode for name in (mode, mode.value)
    }
    if (mode := next((mode for name, mode in modes.items() if name == said), None)) is None:
        raise ValueError(
            f"{env} does not set metadata['autoreset_mode'], its act after an episode's end "
            f"(found {said!r}); "
            "set it to gymnasium.vector.AutoresetMode.NEXT_STEP or SAME_STEP, whichever is true"
        )
    if mode is AutoresetMode.DISABLED:
        raise ValueError(
            f"{env} has autoreset disabled; make it with "
            "autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP"
        )
    return mode
