"""Several policies beside one env: each acts for its own streams, and all their rows share one place."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.actors.agent import LocalAgent
from equipoise.types import Array, Places, Slot, Tick, TimeStep, Tree


class RoutedAgent:
    """``Agent`` of an env whose rows come by policy. All of them begin and end their unrolls with the same rows."""

    def __init__(self, agents: Mapping[str, LocalAgent]) -> None:
        """Those that learn come first: where there is no place for their rows, nobody has begun an unroll."""
        self.agents = dict(agents)
        self.streams = {name: agent.streams for name, agent in self.agents.items()}
        self._rows: TimeStep | None = None
        self._parts: dict[str, TimeStep] = {}  # of _rows: an env gives the same arrays each time

    def observe(self, ts: TimeStep) -> None:
        if ts is not self._rows:
            self._rows, self._parts = ts, {name: ts.of(name) for name in self.agents}
        for name, agent in self.agents.items():
            agent.observe(self._parts[name])

    def action(self) -> Tree | Tick:
        """{policy: [B, ...]}; BLOCKED while no slot is free."""
        chosen: dict[str, Tree] = {}
        for name, agent in self.agents.items():
            action = agent.action()
            if isinstance(action, Tick):
                assert not chosen, "the first policy found a place, so all have"
                return action
            chosen[name] = action
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


class Place:
    """What the policies of one actor write into together: reserved by the first, committed with the last.

    One commit for all, so whenever an actor is killed, either all its policies' rows of an unroll are there or none.
    """

    def __init__(self, experience: Places, policies: int) -> None:
        self._experience, self._policies = experience, policies
        self._slot: Slot | None = None
        self._writing = 0  # policies

    def reserve(self, streams: Array) -> Slot | None:
        if self._slot is None:
            self._slot, self._writing = self._experience.reserve(streams), self._policies
        return self._slot

    def commit(self) -> None:
        self._writing -= 1
        if self._writing == 0:
            assert self._slot is not None
            slot, self._slot = self._slot, None
            self._experience.commit(slot)


class Together:
    """A ``Place`` as one policy's agent sees it."""

    def __init__(self, place: Place, policy: str) -> None:
        self._place, self._policy = place, policy

    def reserve(self, streams: Array) -> Slot | None:
        slot = self._place.reserve(streams)
        return None if slot is None else slot.of(self._policy)

    def commit(self, slot: Slot) -> None:
        self._place.commit()

    def restart(self, slot: Slot) -> None:
        raise RuntimeError("restart: the rows of several policies are written by their actor alone")
