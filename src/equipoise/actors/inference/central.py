"""Central inference (SEED RL, Espeholt et al. 2020, arXiv:1910.06591): one network a policy acts
for the envs of many workers.

An inference worker has the same agents as local inference, one for each group of envs: each holds
recurrent state, noise and the slot being written. The agents of a policy share one network, which
acts for all groups that wait for actions. There is no waiting for a full batch: a group that
answers while the network computes is in the next batch, so batches grow with the load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise import tree
from equipoise.actors.inference.exchange import EPOCH, Exchange
from equipoise.actors.inference.joint import JointForward
from equipoise.actors.routed import RoutedAgent
from equipoise.clock import Clock
from equipoise.publishing import publish
from equipoise.types import StateReader, StateWriter, Tick

# "gather": the rows of several groups side by side
PARTS = ("write", "fetch", "gather", "act", "answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Which groups of envs an inference worker acts for together."""

    # each by itself, so that no result depends on which group is fast
    alone: bool = False
    most: int = 0  # streams of a policy in one batch; 0: all
    wait_s: float = 0.0  # the longest wait until half of the groups have answered


class InferenceWorker:
    """``Worker`` that acts for the groups of envs from ``first`` on; env workers step them in other
    processes.

    STARVED: it waits for envs. BLOCKED: every group waits for a slot.
    """

    ready = Tick.BLOCKED

    def __init__(
        self,
        forwards: Mapping[str, JointForward],
        agents: Sequence[RoutedAgent],
        exchange: Exchange,
        *,
        first: int,
        wake: Callable[[int], object],
        clock: Clock,
        batching: Batching,
    ) -> None:
        """``forwards`` by policy; ``agents``: one a group, with all policies. ``wake``: wake the
        env worker of a group for its actions.
        """
        self._forwards, self.agents, self.first = dict(forwards), list(agents), first
        mine = slice(first, first + len(agents))
        self._answered, self._anew, self._asked, self._epoch, self._held = (
            exchange.words[name][mine] for name in ("answered", "anew", "asked", "epoch", "held")
        )
        self._rows = [
            exchange.rows(first + i, agent.streams) for i, agent in enumerate(self.agents)
        ]
        self._actions = [exchange.actions(first + i) for i in range(len(self.agents))]
        self._widest = max(len(streams) for streams in self.agents[0].streams.values())
        self._wake, self._batching, self._clock = wake, batching, clock
        self._observed = [False] * len(self.agents)  # True: the agent has seen the newest rows
        self._restored = [False] * len(self.agents)  # brought back by a resume and not answered yet
        self._waits_until = 0.0  # end of the wait for more groups; 0: not waiting
        self.patience_s: float | None = None  # how long the next tick may be put off while waiting
        # a predecessor holds nothing of these groups any more
        publish(self._asked, slice(None), self._epoch << EPOCH)

    def tick(self) -> Tick:
        """Take in rows from env workers, and act for the groups that may go on."""
        self.patience_s = None
        self._clock.begin()
        for i in (self._asked >> EPOCH != self._epoch).nonzero()[0].tolist():
            self._begin_anew(i)
        answered = (self._answered - self._asked == 1).nonzero()[0].tolist()
        for i in answered:
            if not self._observed[i]:
                self._observe(i)
                self._clock.lap("write")
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
                return  # the env is where the resume left it: the agent has seen these rows
            self.agents[i].abandon_episodes()
        self.agents[i].observe(self._rows[i])

    def _begin_anew(self, i: int) -> None:
        """Restart the agent of a group: its env worker died."""
        self.agents[i].restart_after_env_loss()
        self._observed[i] = self._restored[i] = False
        publish(self._asked, i, self._epoch[i] << EPOCH)
        self._wake(self.first + i)

    def _waits(self, ready: int, stepping: int) -> bool:
        """Is waiting for more groups worth while? Half of them are stepped while this worker acts
        for the other half.
        """
        if (
            not self._batching.wait_s
            or self._batching.alone
            or not stepping
            or ready >= len(self.agents) // 2
        ):
            self._waits_until = 0.0
            return False
        now = time.perf_counter()
        if not self._waits_until:
            self._waits_until = now + self._batching.wait_s
        if now >= self._waits_until:
            self._waits_until = 0.0
            return False
        self.patience_s = self._waits_until - now
        return True

    def _batches(self, ready: list[int]) -> list[list[int]]:
        if self._batching.alone or len(ready) == 1:
            return [[i] for i in ready]
        # exploration of some algorithms changes over time
        alike: dict[tuple[tuple[str, ...], ...], list[int]] = {}
        for i in ready:
            alike.setdefault(self.agents[i].explores, []).append(i)
        groups = max(self._batching.most // self._widest, 1) if self._batching.most else len(ready)
        return [
            them[i : i + groups] for them in alike.values() for i in range(0, len(them), groups)
        ]

    def _act(self, groups: list[int]) -> None:
        for name, forward in self._forwards.items():
            agents = [self.agents[i].agents[name] for i in groups]
            states = forward.together([agent.asks() for agent in agents], self._clock)
            self._clock.lap("act")
            for i, agent, state in zip(groups, agents, states, strict=True):
                tree.map(np.copyto, self._actions[i][name], agent.took(state))
        for i in groups:
            self._observed[i] = False
            publish(self._held, i, 0)
            publish(self._asked, i, self._answered[i])
            self._wake(self.first + i)
        self._clock.lap("answer")

    def save(self, to: StateWriter) -> None:
        """Put the state of every agent, between two unrolls. The worker acts no more before the cut
        is over, so the env workers may then save theirs.
        """
        try:
            to.put({str(i): agent.state() for i, agent in enumerate(self.agents)})
        finally:  # even if that failed: the cut waits for the env workers
            publish(self._held, slice(None), to.cut)
            for i in range(len(self.agents)):
                self._wake(self.first + i)

    def load(self, source: StateReader) -> None:
        """Go on with every agent where it was saved."""
        state = source.state()
        for i, agent in enumerate(self.agents):
            agent.load(state[str(i)])
            self._restored[i] = True

    def close(self) -> None: ...
