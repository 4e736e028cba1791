"""The policy beside the env: acts, keeps recurrent state, and writes every row into its place as it happens."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise import tree
from equipoise.actors.episodes import Episodes
from equipoise.actors.forward import Forward, Row
from equipoise.actors.noise import uniform
from equipoise.actors.rounding import Rounding, errors
from equipoise.types import Places, Slot, Tick, TimeStep, Tree, WeightStore

KEPT_SLOTS = 16


class LocalAgent:
    """``Agent`` with local inference for one fixed set of streams; an unroll is ``unroll`` rows of all of them.

    A slot is reserved when an unroll starts, and the weights are fetched just after, so that no unroll is older than the
    place that it is written into. Row t gets its observation and action from ``action`` and its outcome from the next
    ``observe``; the observation after the last row opens the next unroll as well.
    """

    def __init__(
        self,
        *,
        forward: Forward,
        experience: Places,
        weights: WeightStore,
        episodes: Episodes,
        streams: np.ndarray[Any, np.dtype[np.int64]],
        total_streams: int,
        envs: int,
        unroll: int,
        noise_columns: int,
        seed: int,
        rounding: Rounding | None = None,
    ) -> None:
        """``total_streams``, ``envs``: of the whole run, those of other policies' agents included.

        ``rounding``: where to say what acting with rounded weights changes.
        """
        self._forward, self.net, self._experience = forward, forward.net, experience
        self._rounding = rounding
        self._weights, self._episodes = weights, episodes
        self.streams, self._total, self._unroll, self._seed = streams, total_streams, unroll, seed
        self._envs = envs
        self._noise = np.zeros((unroll, len(streams), noise_columns), np.float32)
        self._start = np.zeros(len(streams), np.int64)
        self._state: Tree = forward.net.initial_state(len(streams))
        self._carry: dict[str, Tree] | None = None  # {"obs", "first"}: the row that opens the next unroll
        self._slot: Slot | None = None
        self._t = 0
        self._known: dict[int, list[Row]] = {}  # by place
        self.version = -1

    def observe(self, ts: TimeStep) -> None:
        """Record the outcome of the last action and the observation that follows it."""
        if len(ts.stream) != len(self.streams):
            raise ValueError(f"expected rows of all {len(self.streams)} streams of this actor, got {len(ts.stream)}")
        self._episodes.observe(ts)
        if self._slot is None:  # the reset rows: nothing was asked for yet
            self._carry = {"obs": tree.map(np.array, ts.obs), "first": np.array(ts.first)}
            return
        data, t = self._slot.data, self._t
        data.reward[t] = ts.reward
        data.mask[t] = ts.valid
        np.logical_not(ts.terminated, out=data.bootstrap[t])
        tree.map(lambda to, x: np.copyto(to[t + 1], x), data.obs, ts.obs)
        data.first[t + 1] = ts.first
        self._t = t + 1
        if self._t == self._unroll:
            self._commit(self._slot)

    def _commit(self, slot: Slot) -> None:
        assert self._carry is not None
        data, last = slot.data, self._unroll
        tree.map(lambda to, x: np.copyto(to, x[last]), self._carry, {"obs": data.obs, "first": data.first})
        self._start += last
        self._slot = None  # before commit: from there on the rows are the learner's
        self._experience.commit(slot)

    def action(self) -> Tree | Tick:
        """[B, ...] for the observation of the last ``observe``; BLOCKED while no slot is free."""
        if self._slot is None:
            slot = self._experience.reserve(self.streams)
            if slot is None:
                return Tick.BLOCKED
            self._begin(slot)
        self._state = self._forward(self._rows[self._t], self._state)
        return tree.map(lambda x: x[self._t], self._slot.data.action)  # type: ignore[union-attr]

    def state(self) -> Tree:
        """Between two unrolls: what the next one begins with, and the running episodes."""
        if self._slot is not None or self._carry is None:
            raise RuntimeError(
                "state: expected an agent between two unrolls, got one " + ("in an unroll" if self._slot else "at the start")
            )
        state = {
            "start": self._start,
            "recurrent": self._state,
            "carry": self._carry,
            "episodes": self._episodes.state(),
        }
        return state if self._rounding is None else state | {"rounding": self._rounding.state()}

    def load(self, state: Tree) -> None:
        """The inverse; ValueError where keys or shapes differ."""
        self._carry = tree.map(np.array, state["carry"])
        tree.copy({"start": self._start}, {"start": state["start"]})
        if (wanted := tree.spec(self._state)) != (got := tree.spec(state["recurrent"])):
            raise ValueError(f"recurrent state: expected {wanted}, got {got}")
        self._state = state["recurrent"]
        self._episodes.load(state["episodes"])
        if self._rounding is not None and "rounding" in state:  # else it has been rounded only since
            self._rounding.load(state["rounding"])

    def succeed(self) -> None:
        """In place of an agent that was lost: its streams go on after a gap in their row numbers."""
        self._start[:] = self._episodes.next_row + 1

    def abandon_episodes(self) -> None:
        """The env begins anew: a gap in the stream's row numbers, so that nothing is cut across it."""
        self._carry = None
        self._start += 1
        self._episodes.abandon()

    def _begin(self, slot: Slot) -> None:
        """Open an unroll: newest weights, the carried row, the state before it, and the noise of all its rows."""
        if (fetched := self._weights.fetch(self.version)) is not None:
            self.version = fetched[0]
            self._forward.use(fetched[1])
        assert self._carry is not None, "action() before the first observe()"
        data = slot.data
        tree.map(lambda to, x: np.copyto(to[0], x), {"obs": data.obs, "first": data.first}, self._carry)
        tree.map(lambda to, x: np.copyto(to, x.numpy()), data.state, self._state)
        self._episodes.next_row = int(self._start.max()) + self._unroll
        data.version[:] = self.version
        data.context["stream"][:] = self.streams
        data.context["start"][:] = self._start
        np.copyto(self._noise, uniform(self._seed, self.streams, self._start, self._unroll, self._noise.shape[2]))
        self._rows = self._of(slot)
        explore = self._forward.algorithm.explore(self.streams, self._total, int(self._start[0]) * self._envs)
        self._forward.begin(explore)
        if self._rounding is not None and self._rounding.due(self.version):
            self._rounding.add(self.version, errors(self._forward, self._rows[0], self._state, explore))
        self._slot, self._t = slot, 0

    def _of(self, slot: Slot) -> list[Row]:
        """The rows of a slot; kept, since the same slots come again."""
        place = int(slot.keys[0, 0])
        if place not in self._known:
            if len(self._known) >= KEPT_SLOTS:
                self._known.clear()
            data = slot.data
            self._known[place] = self._forward.rows(
                obs=data.obs, first=data.first, noise=self._noise, action=data.action, behaviour=data.behaviour
            )
        return self._known[place]
