"""The policy beside the env: acts, keeps recurrent state, and writes every row into its place as it happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from equipoise import tree
from equipoise.actors.episodes import Episodes
from equipoise.actors.noise import uniform
from equipoise.nets.precision import autocast
from equipoise.types import Algorithm, Places, Precision, Slot, Tick, TimeStep, Tree, WeightStore

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
        algorithm: Algorithm,
        net: Any,
        experience: Places,
        weights: WeightStore,
        episodes: Episodes,
        streams: np.ndarray[Any, np.dtype[np.int64]],
        total_streams: int,
        envs: int,
        unroll: int,
        noise_columns: int,
        seed: int,
        precision: Precision = "fp32",
    ) -> None:
        """``total_streams``, ``envs``: of the whole run, those of other policies' agents included."""
        self._algorithm, self.net, self._experience = algorithm, net, experience
        self._weights, self._episodes = weights, episodes
        self.streams, self._total, self._unroll, self._seed = streams, total_streams, unroll, seed
        self._envs = envs
        self._noise_columns = noise_columns
        self._autocast = autocast(precision)
        self._start = np.zeros(len(streams), np.int64)
        self._state: Tree = net.initial_state(len(streams))
        self._carry: dict[str, Tree] | None = None  # {"obs", "first"}: the row that opens the next unroll
        self._slot: Slot | None = None
        self._t = 0
        self._views: dict[int, tuple[Tree, Tree, Tree, Tree]] = {}  # by place
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
        t = self._t
        with torch.inference_mode(), self._autocast:
            action, behaviour, self._state = self._algorithm.act(
                self.net, tree.index(self._obs, t), self._first[t], self._state, explore=self._explore, noise=self._noise[t]
            )
            tree.map(lambda to, x: to[t].copy_(x), self._action, action)
            tree.map(lambda to, x: to[t].copy_(x), self._behaviour, behaviour)
        return tree.map(lambda x: x[t], self._slot.data.action)  # type: ignore[union-attr]

    def state(self) -> Tree:
        """Between two unrolls: what the next one begins with, and the running episodes."""
        if self._slot is not None or self._carry is None:
            raise RuntimeError(
                "state: expected an agent between two unrolls, got one " + ("in an unroll" if self._slot else "at the start")
            )
        return {
            "start": self._start,
            "recurrent": self._state,
            "carry": self._carry,
            "episodes": self._episodes.state(),
        }

    def load(self, state: Tree) -> None:
        """The inverse; ValueError where keys or shapes differ."""
        self._carry = tree.map(np.array, state["carry"])
        tree.copy({"start": self._start}, {"start": state["start"]})
        if (wanted := tree.spec(self._state)) != (got := tree.spec(state["recurrent"])):
            raise ValueError(f"recurrent state: expected {wanted}, got {got}")
        self._state = state["recurrent"]
        self._episodes.load(state["episodes"])

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
            self._use(fetched[1])
        assert self._carry is not None, "action() before the first observe()"
        data = slot.data
        tree.map(lambda to, x: np.copyto(to[0], x), {"obs": data.obs, "first": data.first}, self._carry)
        tree.map(lambda to, x: np.copyto(to, x.numpy()), data.state, self._state)
        self._episodes.next_row = int(self._start.max()) + self._unroll
        data.version[:] = self.version
        data.context["stream"][:] = self.streams
        data.context["start"][:] = self._start
        self._obs, self._first, self._action, self._behaviour = self._rows(slot)
        noise = uniform(self._seed, self.streams, self._start, self._unroll, self._noise_columns)
        self._noise = torch.from_numpy(noise).unbind(0)
        self._explore = self._algorithm.explore(self.streams, self._total, int(self._start[0]) * self._envs)
        self._slot, self._t = slot, 0

    def _rows(self, slot: Slot) -> tuple[Tree, Tree, Tree, Tree]:
        """Tensors over every row of a slot's obs, first, action and behaviour; kept, since the same slots come again."""
        place = int(slot.keys[0, 0])
        if place not in self._views:
            if len(self._views) >= KEPT_SLOTS:
                self._views.clear()
            fields = (slot.data.obs, slot.data.first, slot.data.action, slot.data.behaviour)
            obs, first, action, behaviour = (tree.map(lambda x: x.unbind(0), tree.torch_views(field)) for field in fields)
            self._views[place] = (obs, first, action, behaviour)
        return self._views[place]

    def _use(self, params: Mapping[str, torch.Tensor]) -> None:
        """A store that rewrites its tensors in place is bound once; its later fetches need no copy to the network."""
        for name, tensor in (*self.net.named_parameters(), *self.net.named_buffers()):
            if tensor.data_ptr() != params[name].data_ptr():
                tensor.data = params[name]
