"""The acting half of the ring: an env and the policies that act in it."""

from __future__ import annotations

from equipoise.actors.routed import RoutedAgent
from equipoise.clock import Clock
from equipoise.types import DealtEnv, StateReader, StateWriter, Tick

PARTS = ("env", "reset", "write", "fetch", "act")  # "fetch": the newest weights, once an unroll


class ActorWorker:
    """Ticks an env; asynchronous envs and distant agents differ only in how often a tick reports
    STARVED or BLOCKED.
    """

    ready = Tick.BLOCKED  # between two unrolls, its env answered and not yet asked again

    def __init__(self, env: DealtEnv, agent: RoutedAgent, clock: Clock) -> None:
        self.env, self.agent, self._clock = env, agent, clock
        self._sent = True  # construction asked for the reset

    def tick(self) -> Tick:
        clock = self._clock
        clock.begin()
        if self._sent:
            if (parts := self.env.recv()) is None:
                return Tick.STARVED
            clock.lap("env")
            self.agent.observe(parts)
            self._sent = False
            clock.lap("write")
        if isinstance(actions := self.agent.action(), Tick):
            return actions
        self.env.send(actions)
        self._sent = True
        clock.lap("act")
        return Tick.WORKED

    def save(self, to: StateWriter) -> None:
        """Put the state of the env and of the agent."""
        if self._sent:
            raise RuntimeError(
                "save: expected an actor that waits for a slot, got one that waits for its env"
            )
        to.put({"env": self.env.state(), "agent": self.agent.state()})

    def load(self, source: StateReader) -> None:
        """Load a state; episodes of an env that cannot be restored start again."""
        state = source.state()
        self.env.load(state["env"])
        self.agent.load(state["agent"])
        if state["env"]:
            self._sent = False
        else:
            self.agent.abandon_episodes()  # the reset is the next answer

    def close(self) -> None:
        self.env.close()
