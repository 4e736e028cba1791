"""Several policies beside one env: each acts for its own streams."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.actors.agent import LocalAgent
from equipoise.types import Tick, TimeStep, Tree


class RoutedAgent:
    """``Agent`` of an env whose rows come by policy; all of them begin and end their unrolls with the same rows.

    They reserve in one order. Places are freed in the reverse one, so whoever finds a place in the first policy's experience
    finds one in all others: nobody waits with an open slot in his hand, and no two actors wait for each other.
    """

    def __init__(self, agents: Mapping[str, LocalAgent]) -> None:
        self.agents = dict(agents)
        self.streams = {name: agent.streams for name, agent in self.agents.items()}
        self._rows: TimeStep | None = None
        self._parts: dict[str, TimeStep] = {}  # of _rows: an env gives the same arrays each time
        self._actions: dict[str, Tree] = {}  # of those that have chosen, while another cannot yet

    def observe(self, ts: TimeStep) -> None:
        if ts is not self._rows:
            self._rows, self._parts = ts, {name: ts.of(name) for name in self.agents}
        for name, agent in self.agents.items():
            agent.observe(self._parts[name])

    def action(self) -> Tree | Tick:
        """{policy: [B, ...]}; BLOCKED while a policy is."""
        chosen = self._actions
        for name, agent in self.agents.items():
            if name not in chosen:
                action = agent.action()
                if isinstance(action, Tick):
                    return action
                chosen[name] = action
        self._actions = {}
        return chosen

    def state(self) -> Tree:
        """Between two unrolls."""
        return {name: agent.state() for name, agent in self.agents.items()}

    def load(self, state: Tree) -> None:
        if state.keys() != self.agents.keys():
            raise ValueError(f"expected the policies {sorted(self.agents)}, got a state of {sorted(state)}")
        for name, agent in self.agents.items():
            agent.load(state[name])

    def succeed(self) -> None:
        for agent in self.agents.values():
            agent.succeed()

    def abandon_episodes(self) -> None:
        for agent in self.agents.values():
            agent.abandon_episodes()
