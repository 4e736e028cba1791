"""The policies of one env: each acts for its own streams, and the rows of all of them share one
block.
"""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.actors.agent import LocalAgent
from equipoise.types import Array, Blocks, Slot, Tick, TimeStep, Tree


class RoutedAgent:
    """One agent a policy, even if there is only one policy. All of them begin and end their unrolls
    with the same rows.
    """

    def __init__(self, agents: Mapping[str, LocalAgent]) -> None:
        """``agents`` that learn come first: if there is no place for their rows, no agent has begun
        an unroll.
        """
        self.agents = dict(agents)
        self.streams = {name: agent.streams for name, agent in self.agents.items()}
        self._each = tuple(self.agents.items())
        self._actions: dict[str, Tree] = {}  # the same object each time

    def observe(self, parts: Mapping[str, TimeStep]) -> None:
        for name, agent in self._each:
            agent.observe(parts[name])

    def action(self) -> Mapping[str, Tree] | Tick:
        """{policy: [B, ...]}, overwritten by the next call; BLOCKED while no block is free."""
        for name, agent in self._each:
            action = agent.action()
            if isinstance(action, Tick):
                assert agent is self._each[0][1], "the first policy found a place, so all have"
                return action
            self._actions[name] = action
        return self._actions

    def ready(self) -> bool:
        """Is there a block for the next row?"""
        # if the first has no place the others are not asked
        return all(agent.ready() for agent in self.agents.values())

    @property
    def explores(self) -> tuple[tuple[str, ...], ...]:
        """The numbers that each policy explores by, in the unroll that is open."""
        return tuple(agent.explores for agent in self.agents.values())

    def state(self) -> Tree:
        """Return the state between two unrolls."""
        return {name: agent.state() for name, agent in self.agents.items()}

    def load(self, state: Tree) -> None:
        if state.keys() != self.agents.keys():
            raise ValueError(
                f"expected the policies {sorted(self.agents)}, got a state of {sorted(state)}"
            )
        for name, agent in self.agents.items():
            agent.load(state[name])

    def continue_after_gap(self) -> None:
        for agent in self.agents.values():
            agent.continue_after_gap()

    def restart_after_env_loss(self) -> None:
        for agent in self.agents.values():
            agent.restart_after_env_loss()

    def abandon_episodes(self) -> None:
        for agent in self.agents.values():
            agent.abandon_episodes()


class SharedBlock:
    """The block that the policies of one actor write into together: reserved by the first,
    committed with the last.

    There is one commit for all policies. So when an actor is killed, either all policies' rows of
    an unroll are there or none.
    """

    def __init__(self, blocks: Blocks, policies: int) -> None:
        self._blocks, self._policies = blocks, policies
        self._slots: Mapping[str, Slot] | None = None
        self._writing = self._restarting = policies  # policies that are not done yet

    def reserve(self, streams: Array) -> Mapping[str, Slot] | None:
        if self._slots is None:
            self._slots = self._blocks.reserve(streams)
        return self._slots

    def commit(self) -> None:
        self._writing -= 1
        if self._writing == 0:
            assert self._slots is not None
            slots, self._slots, self._writing = self._slots, None, self._policies
            self._blocks.commit(slots)

    def restart(self) -> None:
        self._restarting -= 1
        if self._restarting == 0:
            assert self._slots is not None
            self._restarting = self._policies
            self._blocks.restart(self._slots)


class PolicySlot:
    """``Places`` of one policy: its slot of a ``SharedBlock``."""

    def __init__(self, block: SharedBlock, policy: str) -> None:
        self._block, self._policy = block, policy

    def reserve(self, streams: Array) -> Slot | None:
        slots = self._block.reserve(streams)
        return None if slots is None else slots[self._policy]

    def commit(self, slot: Slot) -> None:
        self._block.commit()

    def restart(self, slot: Slot) -> None:
        self._block.restart()
