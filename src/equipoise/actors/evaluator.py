"""Evaluation: fresh episodes of a fixed policy, a step of all streams at a time so that a runtime
can do it in between.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from equipoise import tree
from equipoise.actors.episodes import InfoNumbers, mean_info
from equipoise.actors.playing import FixedPolicy, Playing
from equipoise.actors.recorder import Recorder
from equipoise.types import Array, DealtEnv, RunSpec, Tick, TimeStep, agent_streams

LONGEST = 100_000  # steps of an episode that never ends by itself; its return so far counts
PATIENCE = 3  # aborted episodes of a stream in a row, after which one is given up


class Evaluator:
    """Plays ``episodes`` episodes of each agent, each of the ``envs`` envs an equal number of them,
    so that short ones are not counted too often.

    An episode aborted by an env failure is played again. Episodes that are given up are missing in
    ``returns``, and so are the episodes of an agent that never appeared before all others were
    done.
    """

    def __init__(
        self,
        policies: Mapping[str, FixedPolicy],
        env: DealtEnv,
        *,
        envs: int,
        episodes: int,
        seed: int,
        step: int | None = None,
        recorder: Recorder | None = None,
        metrics: Sequence[str] = (),
    ) -> None:
        """``policies`` by name, as ``env`` deals its streams. ``step``: the training
        step whose exploration the policies use; None: they take the likeliest actions.

        ``recorder`` gets the episodes that count, of an env with one agent. ``metrics``: the names
        of the columns of ``TimeStep.info``, which such an env alone has.
        """
        self._env, self._recorder, self._metrics = env, recorder, metrics
        left = np.full(envs, episodes // envs)
        left[: episodes % envs] += 1
        agents = len(env.spec.env.agents)
        self._sides = {}
        for name, policy in policies.items():
            places = env.spec.policies[name].places
            playing = Playing(
                policy,
                agent_streams(np.arange(envs), agents, places),
                deterministic=step is None,
                seed=seed,
                step=step or 0,
                total_streams=envs * agents,
            )
            self._sides[name] = _Side(
                playing, np.repeat(left, len(places)), always=agents == 1, metrics=len(metrics)
            )
        self._games = _Games(envs) if agents > 1 else None

    @property
    def spec(self) -> RunSpec:
        """The spec of the env."""
        return self._env.spec

    @property
    def returns(self) -> dict[str, list[float]]:
        """Returns by policy."""
        return {name: side.returns for name, side in self._sides.items()}

    @property
    def info(self) -> dict[str, float | None]:
        """The means of the metrics over the same episodes: "name/last", "name/mean".

        For several agents: "games", the number of games that were played to their end, and
        "different_games" among them.
        """
        if self._games is not None:
            sums = self._games.sums
            return {"games": len(sums), "different_games": len(set(sums))}
        return mean_info(
            self._metrics,
            np.array([numbers for side in self._sides.values() for numbers in side.info]),
        )

    @property
    def done(self) -> bool:
        """Is every wanted episode over? A policy whose agents never appear is not waited for."""
        sides = self._sides.values()
        return any(side.seen for side in sides) and not any(side.waits for side in sides)

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return the number of ended episodes, of all wanted ones, and the steps of the longest
        running one.
        """
        over, of, steps = zip(*(side.progress for side in self._sides.values()), strict=True)
        return sum(over), sum(of), max(steps)

    def close(self) -> None:
        self._env.close()

    def tick(self) -> Tick:
        """Take one step of every stream."""
        parts = self._env.recv()
        if parts is None:
            return Tick.STARVED
        if self._games is not None:
            self._games.note(parts)
        for name, side in self._sides.items():
            if self._recorder is not None:
                self._recorder.step(parts[name], side.counts)
            side.note(parts[name])
        if not self.done:
            actions = {
                name: side.playing(parts[name].obs, parts[name].first)
                for name, side in self._sides.items()
            }
            if self._recorder is not None:
                for action in actions.values():
                    self._recorder.acted(action)
            self._env.send(actions)
        return Tick.WORKED


class _Games:
    """Games of several agents, distinguished by their observations and rewards: two deterministic
    players may repeat one game.
    """

    def __init__(self, envs: int) -> None:
        # checksum of the rows so far; None: before the first reset
        self._sums: list[int | None] = [None] * envs
        # the same at the last row in which an episode of an agent ended
        self._ended: list[int | None] = [None] * envs
        self._over: list[int] = []  # of each game that a reset followed

    @property
    def sums(self) -> list[int]:
        """A checksum of each game that was played to its end."""
        return self._over + [ended for ended in self._ended if ended is not None]

    def note(self, parts: Mapping[str, TimeStep]) -> None:
        envs = len(self._sums)
        for env in range(envs):
            rows = []
            for ts in parts.values():
                agents = len(ts.first) // envs
                rows.append((ts, slice(env * agents, (env + 1) * agents)))
            if all(ts.first[part].all() for ts, part in rows):  # the env was reset
                if (ended := self._ended[env]) is not None:
                    self._over.append(ended)
                self._sums[env], self._ended[env] = 0, None
            if (total := self._sums[env]) is None:
                continue
            for ts, part in rows:
                for array in (*tree.leaves(ts.obs), ts.reward):
                    total = zlib.crc32(np.ascontiguousarray(array[part]).tobytes(), total)
            self._sums[env] = total
            if any((ts.terminated[part] | ts.truncated[part]).any() for ts, part in rows):
                self._ended[env] = total


class _Side:
    """The streams of one policy."""

    def __init__(self, playing: Playing, left: Array, *, always: bool, metrics: int = 0) -> None:
        """left [B] int64: episodes that are still to be played; ``always``: are its agents always
        there.
        """
        self._all = int(left.sum())
        self.playing, self._left = playing, left
        streams = len(left)
        self._return = np.zeros(streams)
        self._length = np.zeros(streams, np.int64)
        self._aborted = np.zeros(streams, np.int64)  # aborted episodes in a row
        # rows since the last episode's end, invalid ones included
        self._rows = np.zeros(streams, np.int64)
        self._seen = np.full(streams, always)  # the agent appeared at least once
        self.returns: list[float] = []
        self._numbers = InfoNumbers(streams, metrics) if metrics else None
        self.info: list[Array] = []  # of each of ``returns``

    @property
    def seen(self) -> bool:
        """Did any of its agents ever appear?"""
        return bool(self._seen.any())

    @property
    def counts(self) -> Array:
        """[B] bool: the streams with episodes still to be played."""
        return self._left > 0

    @property
    def waits(self) -> bool:
        """Are there episodes still to be played by agents that appeared?"""
        return bool(self._left[self._seen].any())

    @property
    def progress(self) -> tuple[int, int, int]:
        left = self._left
        return self._all - int(left.sum()), self._all, int(self._rows[left > 0].max(initial=0))

    def note(self, ts: TimeStep) -> None:
        self._return += ts.reward
        self._length += ts.valid
        self._seen |= ts.valid
        self._rows += 1
        if self._numbers is not None:
            self._numbers.add(ts)
        # not a seam: there the length is 0 already
        for i in np.flatnonzero(ts.first & ~ts.valid & (self._length > 0)):
            self._return[i], self._length[i] = 0.0, 0
            self._forget(i)
            self._aborted[i] += 1
            if self._aborted[i] >= PATIENCE and self._left[i] > 0:
                self._left[i] -= 1
                self._aborted[i] = 0
        for i in np.flatnonzero(ts.terminated | ts.truncated | (self._rows > LONGEST)):
            if self._left[i] > 0:
                self._left[i] -= 1
                if self._length[i] > 0:
                    self.returns.append(float(self._return[i]))
                    if self._numbers is not None:
                        self.info.append(self._numbers.of([i])[0])
            self._forget(i)
            self._return[i] = 0.0
            self._length[i] = self._rows[i] = 0
            self._aborted[i] = 0

    def _forget(self, stream: Array) -> None:
        if self._numbers is not None:
            self._numbers.forget(stream)


def load_params(net: torch.nn.Module, params: Mapping[str, torch.Tensor]) -> None:
    """Copy parameters and buffers by name into a network."""
    with torch.no_grad():
        for name, tensor in tree.named_tensors(net).items():
            tensor.copy_(params[name])
