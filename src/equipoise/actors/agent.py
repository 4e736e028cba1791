"""The policy of some streams: acts, keeps recurrent state, and writes every row into its place as
it happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from equipoise import schema, tree
from equipoise.actors.episodes import Episodes
from equipoise.actors.forward.forward import Forward, Row
from equipoise.actors.forward.noise import Noise
from equipoise.actors.forward.rounding import Rounding, errors
from equipoise.actors.inference.joint import Asked, JointRow
from equipoise.clock import Clock
from equipoise.types import Array, Places, Slot, Tick, TimeStep, Trajectory, Tree, WeightStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingParts:
    """How a policy acts: its forward, the source of new weights, its noise and the seed."""

    forward: Forward
    weights: WeightStore
    noise: Noise
    seed: int
    rounding: Rounding | None = None  # takes the measured effect of rounded weights


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamNumbers:
    """Streams of one policy, and how many the whole run has of all policies."""

    numbers: NDArray[np.int64]
    total: int
    envs: int  # of the whole run


class LocalAgent:
    """``Agent`` of one fixed set of streams; an unroll is ``unroll`` rows of all of them.

    A slot is reserved when an unroll starts, and the weights are fetched just after, so that no
    unroll is older than the place that it is written into. Row t gets its observation and action
    from ``action`` and its outcome from the next ``observe``; the observation after the last row
    also opens the next unroll.
    """

    def __init__(
        self,
        *,
        acting: ActingParts,
        experience: Places,
        episodes: Episodes,
        streams: StreamNumbers,
        unroll: int,
        clock: Clock,
    ) -> None:
        """``acting``: its forward and weights may be shared with other agents."""
        self._forward, self.net, self._experience = acting.forward, acting.forward.net, experience
        self._weights, self._noise, self._seed = acting.weights, acting.noise, acting.seed
        self._rounding, self._clock, self._episodes = acting.rounding, clock, episodes
        self.streams, self._total, self._envs = streams.numbers, streams.total, streams.envs
        self._unroll = unroll
        self._start = np.zeros(len(self.streams), np.int64)
        self._state: Tree = self._forward.initial_state(len(self.streams))
        # {"obs", "first"}: the row that opens the next unroll
        self._carry: dict[str, Tree] | None = None
        self._slot: Slot | None = None
        self._unrolling = False  # an unroll is being written into the slot
        self._t = 0
        self._explore: Tree = {}
        self._rows: list[Row] = []  # rows of that slot
        self._noise_rows: Array | None = None  # [T, B, k] and their noise

    def observe(self, ts: TimeStep) -> None:
        """Record the outcome of the last action and the observation that follows it."""
        if len(ts.stream) != len(self.streams):
            raise ValueError(
                f"expected rows of all {len(self.streams)} streams of this actor, got "
                f"{len(ts.stream)}"
            )
        self._episodes.observe(ts)
        if not self._unrolling:  # the reset rows: no action was chosen yet
            self._carry = {"obs": tree.map(np.array, ts.obs), "first": np.array(ts.first)}
            return
        assert self._slot is not None
        data, t = self._slot.data, self._t
        data.reward[t] = ts.reward
        data.mask[t] = ts.valid
        if ts.differs is not None and ts.differs.any():
            self._correct(data, t, ts.differs, ts.taken)
        np.logical_not(ts.terminated, out=data.bootstrap[t])
        tree.map(lambda to, x: np.copyto(to[t + 1], x), data.obs, ts.obs)
        data.first[t + 1] = ts.first
        self._t = t + 1
        if self._t == self._unroll:
            self._commit(self._slot)

    def _correct(self, data: Trajectory, t: int, differs: Array, taken: Tree) -> None:
        """Handle the rows in which the env took another action than the chosen one. A replay stores
        the action taken; for on-policy losses, which learn about the chosen action, the rows are
        masked.
        """
        if not self._forward.algorithm.needs_replay:
            data.mask[t] &= ~differs
            return

        def put(to: Array, one: Array) -> None:
            to[t][differs] = one[differs]

        tree.map(put, data.action, taken)

    def _commit(self, slot: Slot) -> None:
        assert self._carry is not None
        data, last = slot.data, self._unroll
        tree.map(
            lambda to, x: np.copyto(to, x[last]),
            self._carry,
            {"obs": data.obs, "first": data.first},
        )
        self._start += last
        # before commit: after it the rows belong to the learner
        self._slot, self._unrolling = None, False
        self._experience.commit(slot)

    def action(self) -> Tree | Tick:
        """Choose actions [B, ...] for the last observation; BLOCKED while no slot is free."""
        if not self.ready():
            return Tick.BLOCKED
        return self.took(self._forward(self._rows[self._t], self._state))

    def ready(self) -> bool:
        """Is there a slot for the next row?"""
        if self._unrolling:
            return True
        if self._slot is None and (slot := self._experience.reserve(self.streams)) is not None:
            self._slot = slot
        if self._slot is None:
            return False
        self._begin(self._slot)
        return True

    def asks(self) -> Asked:
        """Return the inputs and output buffers of the next row, for a caller that batches several
        agents.
        """
        row = self._rows[self._t]
        assert isinstance(row, JointRow)
        return Asked(row, self._state, self._explore)

    def took(self, state: Tree) -> Tree:
        """Record the recurrent state after the actions; return the row's actions, as they stand in
        the slot.
        """
        assert self._slot is not None
        self._state, t, data = state, self._t, self._slot.data
        data.version[t] = self._forward.version
        return tree.map(lambda x: x[t], data.action)

    @property
    def unrolling(self) -> bool:
        """Is an unroll being written?"""
        return self._unrolling

    @property
    def explores(self) -> tuple[str, ...]:
        """Return the exploration numbers of the open unroll."""
        return tuple(self._explore)

    def state(self) -> Tree:
        """Return the state between two unrolls: the start of the next one, and the running
        episodes.
        """
        if self._slot is not None or self._carry is None:
            raise RuntimeError(
                "state: expected an agent between two unrolls, got one "
                + ("in an unroll" if self._slot else "at the start")
            )
        state = {
            "start": self._start,
            "recurrent": self._state,
            "carry": self._carry,
            "episodes": self._episodes.state(),
        }
        return state if self._rounding is None else state | {"rounding": self._rounding.state()}

    def load(self, state: Tree) -> None:
        """Load a state; ValueError if keys, types or shapes differ, or a number makes no sense."""
        first = schema.Array((len(self.streams),), "bool")
        wanted = {
            "start": schema.Array(self._start.shape, "int64", 0, schema.MOST),
            "recurrent": schema.like(self._state),
            "carry": {"obs": schema.Anything(), "first": first},
            "episodes": self._episodes.schema(),
            "rounding?": schema.Anything(),
        }
        schema.check(state, wanted, "")
        for path, leaf in tree.items(state["carry"]["obs"]):
            if not isinstance(leaf, np.ndarray) or len(leaf) != len(self.streams):
                raise ValueError(
                    f"carry.obs.{path}: expected rows of {len(self.streams)} streams, got "
                    f"{schema.described(leaf)}"
                )
        self._carry = tree.map(np.array, state["carry"])
        tree.copy({"start": self._start}, {"start": state["start"]})
        self._state = tree.to(state["recurrent"], self._forward.device)
        self._episodes.load(state["episodes"])
        # weights may be rounded only since then
        if self._rounding is not None and "rounding" in state:
            self._rounding.load(state["rounding"])

    def continue_after_gap(self) -> None:
        """Continue the streams of a lost agent, after a gap in their row numbers."""
        self._start[:] = self._episodes.next_row + 1

    def restart_after_env_loss(self) -> None:
        """Restart after the env was lost: drop the open unroll and reuse its place for the next
        one.
        """
        if self._unrolling:
            assert self._slot is not None
            self._experience.restart(self._slot)
        self.continue_after_gap()
        self._carry = None
        self._state = self._forward.initial_state(len(self.streams))
        self._unrolling = False
        self._episodes.abandon()

    def abandon_episodes(self) -> None:
        """Leave a gap in the row numbers because the env starts again: no window crosses the
        gap.
        """
        self._carry = None
        self._start += 1
        self._episodes.abandon()

    def _begin(self, slot: Slot) -> None:
        """Open an unroll: newest weights, the carried row, the state before it, and the noise of
        all its rows.
        """
        began = perf_counter()
        self._forward.refresh(self._weights)
        # it comes once an unroll: a sample of ticks would miss it
        self._clock.add("fetch", perf_counter() - began)
        assert self._carry is not None, "action() before the first observe()"
        data = slot.data
        tree.map(
            lambda to, x: np.copyto(to[0], x), {"obs": data.obs, "first": data.first}, self._carry
        )
        tree.map(lambda to, x: np.copyto(to, x.cpu().numpy()), data.state, self._state)
        self._episodes.begins(self._forward.version, int(self._start.max()) + self._unroll)
        data.context["stream"][:] = self.streams
        data.context["start"][:] = self._start
        self._rows, self._noise_rows = self._forward.unroll(data, self._noise.columns)
        np.copyto(
            self._noise_rows, self._noise.draw(self._seed, self.streams, self._start, self._unroll)
        )
        self._explore = self._forward.algorithm.explore(
            self.streams, self._total, int(self._start[0]) * self._envs
        )
        self._forward.begin(self._explore)
        version = self._forward.version
        if self._rounding is not None and self._rounding.due(version):
            self._rounding.add(
                version, errors(self._forward, self._rows[0], self._state, self._explore)
            )
        self._unrolling, self._t = True, 0
