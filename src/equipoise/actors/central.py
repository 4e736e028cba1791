"""Central inference (SEED RL, Espeholt et al. 2020, arXiv:1910.06591): one network a policy acts for the envs of many workers.

An inference worker has the agents of each group of envs, as local inference has: recurrent state, the slot that is written,
noise. What the agents of a policy share is its network, which is asked for the actions of all groups that wait for some.
Nothing waits for a full batch: a group that answers while the network is at work is in the next batch, so batches grow with
the load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from equipoise import tree
from equipoise.actors.exchange import EPOCH, Exchange
from equipoise.actors.joint import JointForward
from equipoise.actors.routed import RoutedAgent
from equipoise.types import Tick, Tree


class InferenceWorker:
    """``Worker`` that acts for the groups of envs from ``first`` on; their env workers step them elsewhere.

    STARVED: it waits for envs. BLOCKED: every group waits for a slot.
    """

    def __init__(
        self, forwards: Mapping[str, JointForward], agents: Sequence[RoutedAgent], exchange: Exchange, *, first: int,
        ring: Callable[[int], object], alone: bool = False, most: int = 0, wait_s: float = 0.0,
    ) -> None:  # fmt: skip
        """``forwards`` by policy; ``agents``: one a group, which has all policies. ``ring``: tell the env worker of this group
        that there are actions. ``alone``: each group is acted for by itself, so that no result depends on which group is fast.
        ``most``: streams of a policy that are acted for at once, 0: all.

        ``wait_s``: the longest wait for half of the groups to have answered.
        """
        self._forwards, self.agents, self.first = dict(forwards), list(agents), first
        mine = slice(first, first + len(agents))
        self._said, self._anew, self._asked, self._epoch, self._held = (
            exchange.words[name][mine] for name in ("said", "anew", "asked", "epoch", "held")
        )
        self._rows = [exchange.rows(first + i, agent.streams) for i, agent in enumerate(self.agents)]
        self._actions = [exchange.actions(first + i) for i in range(len(self.agents))]
        self._widest = max(len(streams) for streams in self.agents[0].streams.values())
        self._ring, self._alone, self._most, self._wait_s = ring, alone, most, wait_s
        self._observed = [False] * len(self.agents)  # the rows that were said last
        self._restored = [False] * len(self.agents)  # by a resume, and not yet answered
        self._waits_until = 0.0  # for more to act for; 0: it does not
        self.patience_s: float | None = None  # how long a tick that waits for more may be put off
        self._asked[:] = self._epoch << EPOCH  # whoever had these groups before holds nothing any more

    def tick(self) -> Tick:
        """Take in what env workers said, and act for those who may go on."""
        self.patience_s = None
        for i in (self._asked >> EPOCH != self._epoch).nonzero()[0].tolist():
            self._begin_anew(i)
        answered = (self._said - self._asked == 1).nonzero()[0].tolist()
        for i in answered:
            if not self._observed[i]:
                self._observe(i)
        ready = [i for i in answered if self.agents[i].ready()]
        if not ready:
            return Tick.BLOCKED if len(answered) == len(self.agents) else Tick.STARVED
        if self._waits(len(ready), len(self.agents) - len(answered)):
            return Tick.STARVED
        for together in self._batches(ready):
            self._act(together)
        return Tick.WORKED

    def _observe(self, i: int) -> None:
        self._observed[i] = True
        if self._restored[i]:
            self._restored[i] = False
            if not self._anew[i]:
                return  # the env is where it was: the agent has seen these rows
            self.agents[i].abandon_episodes()
        self.agents[i].observe(self._rows[i])

    def _begin_anew(self, i: int) -> None:
        """The group's env worker died."""
        self.agents[i].begin_anew()
        self._observed[i] = self._restored[i] = False
        self._asked[i] = self._epoch[i] << EPOCH
        self._ring(self.first + i)

    def _waits(self, ready: int, stepping: int) -> bool:
        """Is it worth while to wait for more? Half of the groups are stepped while it acts for the other half."""
        if not self._wait_s or self._alone or not stepping or ready >= len(self.agents) // 2:
            self._waits_until = 0.0
            return False
        now = time.perf_counter()
        if not self._waits_until:
            self._waits_until = now + self._wait_s
        if now >= self._waits_until:
            self._waits_until = 0.0
            return False
        self.patience_s = self._waits_until - now
        return True

    def _batches(self, ready: list[int]) -> list[list[int]]:
        if self._alone or len(ready) == 1:
            return [[i] for i in ready]
        alike: dict[tuple[tuple[str, ...], ...], list[int]] = {}  # some algorithms explore in another way as time goes by
        for i in ready:
            alike.setdefault(self.agents[i].explores, []).append(i)
        groups = max(self._most // self._widest, 1) if self._most else len(ready)
        return [them[i : i + groups] for them in alike.values() for i in range(0, len(them), groups)]

    def _act(self, groups: list[int]) -> None:
        for name, forward in self._forwards.items():
            agents = [self.agents[i].agents[name] for i in groups]
            states = forward.together([agent.asks() for agent in agents])
            for i, agent, state in zip(groups, agents, states, strict=True):
                tree.map(np.copyto, self._actions[i][name], agent.took(state))
        for i in groups:
            self._observed[i] = False
            self._held[i] = 0
            self._asked[i] = self._said[i]
            self._ring(self.first + i)

    def hold(self, cut: int) -> None:
        """Its state for this cut is saved, and it will not act before the cut is over: the env workers may save theirs."""
        self._held[:] = cut
        for i in range(len(self.agents)):
            self._ring(self.first + i)

    def state(self) -> Tree:
        """Return the state of every agent, between two unrolls."""
        return {str(i): agent.state() for i, agent in enumerate(self.agents)}

    def load(self, state: Tree) -> None:
        for i, agent in enumerate(self.agents):
            agent.load(state[str(i)])
            self._restored[i] = True
