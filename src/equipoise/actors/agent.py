"""The policy of some streams: acts, keeps recurrent state, and writes every row into its place as it happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from equipoise import tree
from equipoise.actors.episodes import Episodes
from equipoise.actors.noise import uniform
from equipoise.nets.precision import autocast
from equipoise.types import Algorithm, Places, Precision, Slot, Tick, TimeStep, Tree, WeightStore

KEPT_SLOTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What actions are chosen from, [B, ...] each."""

    obs: Tree
    first: torch.Tensor
    state: Tree
    explore: Tree
    noise: torch.Tensor


class Acting:
    """The network that acts, with its newest weights: one agent's, or that of several which are answered together."""

    def __init__(
        self, algorithm: Algorithm, net: Any, weights: WeightStore, *, precision: Precision = "fp32", device: str = "cpu"
    ) -> None:
        self.algorithm, self._weights, self.version = algorithm, weights, -1
        self.device = torch.device(device)
        self.net, self._autocast = net.to(self.device), autocast(precision, self.device.type)

    def initial_state(self, streams: int) -> Tree:
        return tree.to(self.net.initial_state(streams), self.device)

    def refresh(self) -> None:
        """Take newer weights, if there are any."""
        if (fetched := self._weights.fetch(self.version)) is not None:
            self.version = fetched[0]
            self._use(fetched[1])

    def _use(self, params: Mapping[str, torch.Tensor]) -> None:
        """A store that rewrites its tensors in place is bound once; its later fetches need no copy to a network on the CPU."""
        for name, tensor in (*self.net.named_parameters(), *self.net.named_buffers()):
            if self.device.type != "cpu":
                tensor.data.copy_(params[name])
            elif tensor.data_ptr() != params[name].data_ptr():
                tensor.data = params[name]

    def __call__(self, asked: Asked) -> tuple[Tree, Tree, Tree]:
        """-> action, behaviour [B, ...] on the CPU; the state after them, which stays where the network is."""
        with torch.inference_mode(), self._autocast:
            if self.device.type == "cpu":
                return self.algorithm.act(
                    self.net, asked.obs, asked.first, asked.state, explore=asked.explore, noise=asked.noise
                )
            obs, first, explore, noise = (
                tree.to(part, self.device, non_blocking=True) for part in (asked.obs, asked.first, asked.explore, asked.noise)
            )
            action, behaviour, state = self.algorithm.act(self.net, obs, first, asked.state, explore=explore, noise=noise)
            return tree.to(action, "cpu"), tree.to(behaviour, "cpu"), state


class LocalAgent:
    """``Agent`` of one fixed set of streams; an unroll is ``unroll`` rows of all of them.

    A slot is reserved when an unroll starts, and the weights are fetched just after, so that no unroll is older than the
    place that it is written into. Row t gets its observation and action from ``action`` and its outcome from the next
    ``observe``; the observation after the last row opens the next unroll as well.
    """

    def __init__(
        self,
        *,
        acting: Acting,
        experience: Places,
        episodes: Episodes,
        streams: np.ndarray[Any, np.dtype[np.int64]],
        total_streams: int,
        envs: int,
        unroll: int,
        noise_columns: int,
        seed: int,
    ) -> None:
        """``total_streams``, ``envs``: of the whole run, those of other policies' agents included."""
        self.acting, self._experience, self._episodes = acting, experience, episodes
        self.streams, self._total, self._unroll, self._seed = streams, total_streams, unroll, seed
        self._envs = envs
        self._noise_columns = noise_columns
        self._start = np.zeros(len(streams), np.int64)
        self._state: Tree = acting.initial_state(len(streams))
        self._carry: dict[str, Tree] | None = None  # {"obs", "first"}: the row that opens the next unroll
        self._slot: Slot | None = None
        self._unrolling = False  # into that slot
        self._t = 0
        self._views: dict[int, tuple[Tree, Tree, Tree, Tree]] = {}  # by place

    def observe(self, ts: TimeStep) -> None:
        """Record the outcome of the last action and the observation that follows it."""
        if len(ts.stream) != len(self.streams):
            raise ValueError(f"expected rows of all {len(self.streams)} streams of this actor, got {len(ts.stream)}")
        self._episodes.observe(ts)
        if not self._unrolling:  # the reset rows: nothing was asked for yet
            self._carry = {"obs": tree.map(np.array, ts.obs), "first": np.array(ts.first)}
            return
        assert self._slot is not None
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
        self._slot, self._unrolling = None, False  # before commit: from there on the rows are the learner's
        self._experience.commit(slot)

    def action(self) -> Tree | Tick:
        """[B, ...] for the observation of the last ``observe``; BLOCKED while no slot is free."""
        return self.took(*self.acting(self.asks())) if self.ready() else Tick.BLOCKED

    def ready(self) -> bool:
        """Is there a slot for the row that is next?"""
        if self._unrolling:
            return True
        if self._slot is None and (slot := self._experience.reserve(self.streams)) is not None:
            self._slot = slot
        if self._slot is None:
            return False
        self._begin(self._slot)
        return True

    @property
    def explores(self) -> tuple[str, ...]:
        """By what numbers, in the unroll that is open."""
        return tuple(self._explore)

    def asks(self) -> Asked:
        """What the actions of the row that is next are chosen from."""
        t = self._t
        return Asked(
            obs=tree.index(self._obs, t), first=self._first[t], state=self._state, explore=self._explore, noise=self._noise[t]
        )

    def took(self, action: Tree, behaviour: Tree, state: Tree) -> Tree:
        """They were chosen -> the actions as they stand in the slot."""
        assert self._slot is not None
        t, self._state = self._t, state
        tree.map(lambda to, x: to[t].copy_(x), self._action, action)
        tree.map(lambda to, x: to[t].copy_(x), self._behaviour, behaviour)
        self._slot.data.version[t] = self.acting.version
        return tree.map(lambda x: x[t], self._slot.data.action)

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
        self._state = tree.to(state["recurrent"], self.acting.device)
        self._episodes.load(state["episodes"])

    def succeed(self) -> None:
        """In place of an agent that was lost: its streams go on after a gap in their row numbers."""
        self._start[:] = self._episodes.next_row + 1

    def begin_anew(self) -> None:
        """The env was lost: what is open of an unroll is dropped, and the place that it had is the next one's."""
        if self._unrolling:
            assert self._slot is not None
            self._experience.restart(self._slot)
        self.succeed()
        self._carry, self._state, self._unrolling = None, self.acting.initial_state(len(self.streams)), False
        self._episodes.abandon()

    def abandon_episodes(self) -> None:
        """The env begins anew: a gap in the stream's row numbers, so that nothing is cut across it."""
        self._carry = None
        self._start += 1
        self._episodes.abandon()

    def _begin(self, slot: Slot) -> None:
        """Open an unroll: newest weights, the carried row, the state before it, and the noise of all its rows."""
        self.acting.refresh()
        assert self._carry is not None, "action() before the first observe()"
        data = slot.data
        tree.map(lambda to, x: np.copyto(to[0], x), {"obs": data.obs, "first": data.first}, self._carry)
        tree.map(lambda to, x: np.copyto(to, x.cpu().numpy()), data.state, self._state)
        self._episodes.next_row = int(self._start.max()) + self._unroll
        data.context["stream"][:] = self.streams
        data.context["start"][:] = self._start
        self._obs, self._first, self._action, self._behaviour = self._rows(slot)
        noise = uniform(self._seed, self.streams, self._start, self._unroll, self._noise_columns)
        self._noise = torch.from_numpy(noise).unbind(0)
        self._explore = self.acting.algorithm.explore(self.streams, self._total, int(self._start[0]) * self._envs)
        self._unrolling, self._t = True, 0

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
