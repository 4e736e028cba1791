"""Partial streams: an actor acts for the streams that have answered, so that a slow stream delays
no other stream.

A slot is still one unroll of all streams of the actor, reserved at once and committed at once; each
stream writes its column at its own pace. It is complete as soon as fewer than half of its streams,
or fewer than ``answers``, have rows left to write: these streams may be slow. Columns that are
short then end early::

    row       0   1   2   3   4          the next slot, row 0
    obs       o0  o1  o2  o2  o2  o2     o2    shown again, as at a hold; obs[T] is the next slot's obs[0], as ever
    action    a0  a1  a2  a2  a2         a2    under way: its outcome is row 0 of the next slot
    mask      x   x                      x     not real: nothing was answered yet

So a window's real rows come first, and a recurrent network that is unrolled over it sees what the
actor's saw; the next slot stores the state before o2. A slot's law is that of every slot: reserved
before it is begun, and handed in whole. Only an action that was under way is older than its slot:
if it is older than ``max_lag`` when it is learned from, it does not count there
(``learners/stale.py``).
"""  # noqa: E501

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from equipoise import schema, tree
from equipoise.actors.agent import LocalAgent
from equipoise.actors.forward.forward import Row
from equipoise.actors.routed import RoutedAgent
from equipoise.actors.worker import ActorWorker
from equipoise.clock import Clock
from equipoise.tree import ArraySpec
from equipoise.types import Array, DealtEnv, Slot, Tick, TimeStep, Tree


class PartialAgent(LocalAgent):
    """``action`` gives {"action": [n, ...], "stream": [n]}: of the streams that it acts for now."""

    def __init__(self, *, answers: int, row: Mapping[str, Tree], **parts: Any) -> None:
        """``answers``: the number of streams that the env waits for; ``row``: the specs ``action``
        and ``behaviour`` of one stream; ``parts``: as in ``LocalAgent``.
        """
        super().__init__(**parts)
        count = len(self.streams)
        # with fewer streams that have rows left an unroll is over
        self._least = max(answers, (count + 1) // 2)
        self._at = np.zeros(count, np.int64)  # each stream's next row of the slot
        self._asked = np.zeros(count, np.bool_)  # its action is under way
        chosen = tree.prepend({**row, "version": ArraySpec((), "int64")}, count)
        self._chosen: Tree = tree.zeros(chosen)  # each stream's last action, and how it was chosen
        # the draws of one act, side by side
        self._drawn: Tree = tree.torch_views(tree.zeros({name: chosen[name] for name in row}))
        # before each stream's row; written in place
        self._state = tree.map(torch.clone, self._state)
        # and after it, once its action is under way
        self._after: Tree = tree.map(torch.clone, self._state)

    def observe(self, ts: TimeStep) -> None:
        """Record what some streams answered."""
        if self._carry is None:  # the reset rows, of all streams
            super().observe(ts)
            return
        assert self._slot is not None and ts.answered is not None
        self._episodes.observe(ts)
        who = np.flatnonzero(ts.answered)
        data, t = self._slot.data, self._at[who]
        data.reward[t, who] = ts.reward[who]
        data.mask[t, who] = ts.valid[who]
        data.bootstrap[t, who] = ~ts.terminated[who]
        tree.map(lambda to, x: operator.setitem(to, (t + 1, who), x[who]), data.obs, ts.obs)
        data.first[t + 1, who] = ts.first[who]
        self._at[who] += 1
        self._asked[who] = False
        _put(self._state, who, tree.index(self._after, torch.from_numpy(who)))

    def action(self) -> Tree | Tick:
        """Act for the streams that have answered; BLOCKED while no slot is free."""
        if not self.ready():
            return Tick.BLOCKED
        who = np.flatnonzero(~self._asked & (self._at < self._unroll))
        if len(who):
            self._act(who)
        assert self._slot is not None
        if np.count_nonzero(self._at < self._unroll) < self._least:
            self._commit(self._slot)
        return {"action": tree.index(self._chosen["action"], who), "stream": self.streams[who]}

    def _act(self, who: Array) -> None:
        assert self._slot is not None
        data, t, where = self._slot.data, self._at[who], torch.from_numpy(who)
        seen = tree.map(
            lambda x: torch.from_numpy(x[t, who]),
            {"obs": data.obs, "first": data.first, "noise": self._noise_rows},
        )
        drawn = tree.map(lambda x: x[: len(who)], self._drawn)
        self._forward.begin(tree.index(self._explore, where))
        state = self._forward(Row(**seen, **drawn), tree.index(self._state, where))
        _put(self._after, who, state)
        tree.map(
            lambda to, x: operator.setitem(to, who, x.numpy()),
            {k: self._chosen[k] for k in drawn},
            drawn,
        )
        self._chosen["version"][who] = self._forward.version
        self._asked[who] = True
        self._write(who)

    def _write(self, who: Array) -> None:
        """Write the actions under way of these streams into their rows."""
        assert self._slot is not None
        t = self._at[who]
        tree.map(
            lambda to, x: operator.setitem(to, (t, who), x[who]), _rows_of(self._slot), self._chosen
        )

    def _begin(self, slot: Slot) -> None:
        super()._begin(slot)
        self._at.fill(0)
        self._write(np.flatnonzero(self._asked))

    def _commit(self, slot: Slot) -> None:
        """End the short columns: from the action under way on nothing is real, and its observation
        is shown again.
        """
        data, rows = slot.data, _rows_of(slot)
        for i in np.flatnonzero(self._at < self._unroll):
            k = self._at[i]
            tree.map(
                lambda to, x, i=i, k=k: operator.setitem(to, (slice(k, None), i), x[i]),
                rows,
                self._chosen,
            )
            data.reward[k:, i], data.mask[k:, i], data.bootstrap[k:, i] = 0.0, False, True
            for x in (*tree.leaves(data.obs), data.first):
                x[k + 1 :, i] = x[k, i]
        super()._commit(slot)

    def state(self) -> Tree:
        return super().state() | {
            "asked": self._asked,
            "chosen": self._chosen,
            "after": self._after,
        }

    def load(self, state: Tree) -> None:
        wanted = {
            "asked": schema.like(self._asked),
            "chosen": schema.like(self._chosen),
            "after": schema.like(self._after),
        }
        schema.check({name: state.get(name) for name in wanted}, wanted, "")
        super().load({name: part for name, part in state.items() if name not in wanted})
        tree.copy(
            {"asked": self._asked, "chosen": self._chosen},
            {name: state[name] for name in ("asked", "chosen")},
        )
        self._after = tree.to(state["after"], self._forward.device)

    def abandon_episodes(self) -> None:
        super().abandon_episodes()
        self._asked.fill(False)


def _rows_of(slot: Slot) -> Tree:
    """The arrays [T, B, ...] of a slot that ``PartialAgent._chosen`` is written into."""
    return {
        "action": slot.data.action,
        "behaviour": slot.data.behaviour,
        "version": slot.data.version,
    }


def _put(to: Tree, who: Array, of: Tree) -> None:
    """Write rows [n, ...] of tensors to the places ``who``."""
    where = torch.from_numpy(who)
    with torch.inference_mode():
        tree.map(lambda a, b: a.index_copy_(0, where, b), to, of)


class PartialActor(ActorWorker):
    """Ticks an env whose streams answer some at a time, for the one policy that acts in it."""

    def __init__(self, env: DealtEnv, agent: RoutedAgent, clock: Clock) -> None:
        super().__init__(env, agent, clock)
        (self._one,) = agent.agents.values()

    def tick(self) -> Tick:
        tick = super().tick()
        # the unroll may be complete: too few streams are under way then, and a slot comes first
        if tick is Tick.WORKED:
            self._sent = self._one.unrolling
        return tick
