"""A record of what B Python envs do between two resets, so that each can be brought back to where
it was.

A stream whose env is *exact* is captured when a state is asked for (``resume.py``). For every other
stream the record keeps the generator as it was before the last reset (for the very first one the
seed) and the actions since; loading resets the env from there, takes the actions again, and
compares the row that this comes to, bit for bit. If it differs the env has randomness of its own,
or a memory that outlives its episodes, and the stream is restarted.

A step costs one copy of its actions [B, ...] into a log, and nothing if all streams are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from equipoise import foreign, tree
from equipoise.envs.restore import resume, snapshot
from equipoise.envs.spaces import ActionForm, member
from equipoise.envs.values import NoArray, plain
from equipoise.types import Array, Resume, TimeStep, Tree

ROOM = 256  # rows of the log at first; it doubles
# most rows; when full, episodes of more than half of them are given up and restart
LONGEST = 1 << 16


class Record:
    """The record of ``envs``, which may be replaced; actions are like ``action`` [B, ...]."""

    def __init__(
        self, envs: Sequence[gymnasium.Env], streams: Array, action: Tree, form: ActionForm
    ) -> None:
        self._form = form
        self.envs, self.streams = envs, [int(stream) for stream in streams]
        self.kinds: list[Resume] = [resume.promise(env) for env in envs]
        self._windows = [
            resume.held_window(env) if kind == "exact" else 0
            for env, kind in zip(envs, self.kinds, strict=True)
        ]
        self._holding = [i for i, window in enumerate(self._windows) if window]
        self._logged = [
            i for i, kind in enumerate(self.kinds) if kind == "replay" or self._windows[i]
        ]
        self._rows = ROOM if self._logged else 0
        self._log: Tree = tree.map(lambda x: np.empty((self._rows, *x.shape), x.dtype), action)
        self._t = 0  # rows of the log
        count = len(envs)
        self._start = [0] * count  # the row of the first action after _base
        # where the actions start; None: not kept
        self._base: list[Callable[[], Tree] | None] = [None] * count
        # a later base, of a stream that holds
        self._next: list[tuple[int, Callable[[], Tree]] | None] = [None] * count

    @property
    def promise(self) -> Resume:
        return "replay" if "replay" in self.kinds else "exact"

    def resets(self, i: int, seed: int | None = None) -> None:
        """Note that env ``i`` is about to be reset."""
        if self._windows[i]:
            self._base[i] = self._next[i] = None  # taken after the reset, by the next step
        elif self.kinds[i] == "replay":
            self._start[i] = self._t
            self._base[i] = before_reset(self.envs[i], seed)

    def steps(self, action: Tree) -> None:
        """Note that ``action`` [B, ...] is about to be taken; ``resets`` follows for a reset."""
        if not self._logged:
            return
        for i in self._holding:
            self._follow(i)
        if self._t == self._rows:
            self._make_room()
        tree.map(self._write, self._log, action)
        self._t += 1

    def _write(self, log: Array, action: Tree) -> None:
        log[self._t] = action

    def _follow(self, i: int) -> None:
        """Move the base along: between one and two windows behind, or at the reset."""
        if self._base[i] is None:
            self._start[i], self._base[i] = self._t, now(self.envs[i])
        elif (later := self._next[i]) is None:
            if self._t - self._start[i] >= self._windows[i]:
                self._next[i] = self._t, now(self.envs[i])
        elif self._t - later[0] >= self._windows[i]:
            self._start[i], self._base[i] = later
            self._next[i] = self._t, now(self.envs[i])

    def _make_room(self) -> None:
        """Forget what lies before every episode, else double; at ``LONGEST`` drop the longest."""
        half = self._rows // 2
        if min(self._starts()) < self._t - half and self._rows >= LONGEST:
            for i in self._logged:
                if self._start[i] < self._t - half:
                    self._base[i] = None
        oldest = min(self._starts())
        kept, count = tree.index(self._log, slice(oldest, self._t)), self._t - oldest
        if count > half:
            self._rows *= 2
            self._log = tree.map(lambda x: np.empty((self._rows, *x.shape[1:]), x.dtype), self._log)
        tree.map(lambda to, x: np.copyto(to[:count], x), self._log, kept)
        self._shift(-oldest)

    def _starts(self) -> list[int]:
        return [self._start[i] for i in self._logged if self._base[i] is not None] or [self._t]

    def _shift(self, rows: int) -> None:
        self._t += rows
        self._start = [start + rows for start in self._start]
        self._next = [
            None if later is None else (later[0] + rows, later[1]) for later in self._next
        ]

    # ---------------------------------------------------------------------------------- state, load

    def state(self) -> Tree:
        """The state: {stream: {how a load restores it: arrays}}."""
        return {str(stream): self._one(i) for i, stream in enumerate(self.streams)}

    def _one(self, i: int) -> Tree:
        base = self._base[i]
        actions = tree.map(lambda x: x[self._start[i] : self._t, i].copy(), self._log)
        if self.kinds[i] == "exact":
            kept = resume.capture(self.envs[i])
            if self._windows[i]:
                none = {"actions": tree.index(actions, slice(0))}
                kept["held"] = (
                    now(self.envs[i])() | none if base is None else base() | {"actions": actions}
                )
            return {"exact": kept}
        if base is None:
            return {"restart": {"stream": np.array(self.streams[i])} | now(self.envs[i])()}
        return {"replay": base() | {"actions": actions}}

    def load(self, state: Tree, ts: TimeStep) -> tuple[list[Resume], dict[int, str]]:
        """Bring every env to its place in ``state``; ``ts`` holds the rows that were returned
        there.

        Returns what became of each stream, and {stream: why} for the streams that must restart.
        """
        if state.keys() != {str(stream) for stream in self.streams}:
            raise ValueError(f"state of streams {sorted(state)}: expected those of {self.streams}")
        kinds: list[Resume] = []
        why: dict[int, str] = {}
        logs = [self._none(i) for i in range(len(self.envs))]
        for i, stream in enumerate(self.streams):
            ((kind, kept),) = state[str(stream)].items()
            if kind not in (self.kinds[i], "restart"):
                raise ValueError(
                    f"state of stream {stream}: it is of kind {kind!r}, but {self.envs[i]} is "
                    f"{self.kinds[i]!r}"
                )
            try:
                if kind == "restart":
                    put_generator(self.envs[i], kept)
                    why[stream] = (
                        "its actions were not kept: the episode was too long, or had been given up "
                        "by another resume"
                    )
                elif kind == "exact":
                    logs[i] = self._restore(i, kept)
                elif (came := self._replay(i, kept, ts)) is None:
                    logs[i] = tree.map(np.array, kept["actions"])
                else:
                    why[stream] = f"taking its actions again {came}"
            except Exception as error:
                error.add_note(f"while loading {self.envs[i]}, stream {stream}")
                raise
            if stream in why:
                self._base[i] = None
            kinds.append("restart" if stream in why else kind)
        self._write_log(logs)
        return kinds, why

    def _restore(self, i: int, kept: Tree) -> Array:
        """Restore one env -> the actions with which the log goes on."""
        env = self.envs[i]
        if not self._windows[i]:
            resume.restore(env, kept)
            return self._none(i)
        held = resume.part(kept, "held")
        actions = self._actions(i, held)
        resume.hold(env, held, actions)
        resume.restore(env, kept)
        base = {name: np.array(value) for name, value in held.items() if name != "actions"}
        self._base[i], self._next[i] = lambda: dict(base), None
        return actions

    def _replay(self, i: int, kept: Tree, ts: TimeStep) -> str | None:
        """Reset and take the actions again -> how the row differs from ``ts``, or None."""
        env, actions = self.envs[i], self._actions(i, kept)
        seed = int(kept["seed"]) if "seed" in kept else None
        other = "came to another row: it is not a function of np_random and actions"
        put_generator(env, kept)
        self._base[i] = before_reset(env, seed)
        try:
            obs, _ = env.reset(seed=seed)
            reward, terminated, truncated = 0.0, False, False
            for action in self._form.each(actions):
                if terminated or truncated:
                    return other
                obs, reward, terminated, truncated, _ = env.step(action)  # type: ignore[assignment]
        except Exception as error:  # an env that fails now and then has done so now
            return f"raised {type(error).__name__}: {error}"
        told = (ts.reward[i], ts.terminated[i], ts.truncated[i])
        try:
            same_row = all(map(same, told, (reward, terminated, truncated))) and same_tree(
                ts.obs, obs, i
            )
        # no row could hold such a value
        except (NoArray, LookupError, TypeError, ValueError):
            same_row = False
        return None if same_row else other

    def _none(self, i: int) -> Tree:
        """No actions: [0, ...]."""
        return tree.map(lambda x: x[:0, i], self._log)

    def _actions(self, i: int, kept: Tree) -> Tree:
        """The actions of a state, checked to be what this env takes."""
        actions = tree.map(np.asarray, resume.part(kept, "actions"))
        if (wanted := dict(tree.items(self._none(i)))).keys() != (
            got := dict(tree.items(actions))
        ).keys():
            raise ValueError(
                f"state of actions: expected the parts {sorted(wanted)}, got {sorted(got)}"
            )
        count = (*next(iter(got.values())).shape, 0)[0]
        for path, array in got.items():
            shape, dtype = wanted[path].shape[1:], wanted[path].dtype
            if array.shape != (count, *shape) or array.dtype != dtype:
                expected = f"[{', '.join(map(str, ('n', *shape)))}] {dtype}"
                place = f"actions/{path}" if path else "actions"
                raise ValueError(
                    f"state of {place}: expected {expected}, got {array.shape} {array.dtype}"
                )
        return actions

    def _write_log(self, logs: list[Tree]) -> None:
        """Lay the actions of each stream so that they end in the same row."""
        counts = [len(tree.leaves(actions)[0]) for actions in logs]
        self._t = max(counts)
        self._rows = max(self._rows, self._t)
        self._log = tree.map(lambda x: np.zeros((self._rows, *x.shape[1:]), x.dtype), self._log)
        for i, (actions, count) in enumerate(zip(logs, counts, strict=True)):
            self._start[i] = self._t - count
            tree.map(
                lambda to, x, i=i: np.copyto(to[self._start[i] : self._t, i], x), self._log, actions
            )


def before_reset(env: gymnasium.Env, seed: int | None) -> Callable[[], Tree]:
    """Capture what the coming reset depends on; arrays are made only when asked for."""
    if seed is not None:
        return lambda: {"seed": np.array(seed)}
    bare: Any = env.unwrapped
    rng = foreign.optional(bare, "np_random")
    known = isinstance(rng, np.random.Generator) and isinstance(rng.bit_generator, np.random.PCG64)
    generator = rng.bit_generator.state if known else None
    clone = bare.ale.cloneState(include_rng=True) if resume.is_atari(bare) else None

    def arrays() -> Tree:
        kept = {} if generator is None else {"np_random": snapshot.state_array(generator)}
        return kept if clone is None else kept | {"ale": resume.serialized(clone)}

    return arrays


def now(env: gymnasium.Env) -> Callable[[], Tree]:
    """Where an ALE env stands; just after a reset that pressed buttons, before them."""
    arrays = before_reset(env, None)
    for wrapper in resume.layers(env) if resume.is_atari(env.unwrapped) else ():
        if isinstance(opening := foreign.optional(wrapper, "opening"), tuple):
            clone, pressed = opening
            return lambda: (
                arrays() | {"ale": resume.serialized(clone), "opening": np.array(pressed, np.int64)}
            )
    return arrays


def put_generator(env: gymnasium.Env, kept: Tree) -> None:
    bare = env.unwrapped
    if "ale" in kept:
        resume.put_emulator(bare, kept["ale"])
    if "np_random" in kept:
        bare.np_random = snapshot.generator(kept["np_random"])


def same_tree(told: Tree, obs: Tree, i: int) -> bool:
    if isinstance(told, dict):
        return all(same_tree(inner, member(obs, key), i) for key, inner in told.items())
    return same(told[i], obs)


def same(told: Array, got: Array) -> bool:
    """Are they equal bit for bit, in the dtype of the row?"""
    told, got = np.asarray(told), plain(got)
    return bool(got.shape == told.shape and got.astype(told.dtype).tobytes() == told.tobytes())
