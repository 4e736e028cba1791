"""One half of the ring: an env and whatever decides for it."""

from __future__ import annotations

from equipoise.types import Agent, Env, Tick, Tree


class ActorWorker:
    """Ticks an env; asynchronous envs and distant agents differ only in how often a tick says STARVED or BLOCKED."""

    def __init__(self, env: Env, agent: Agent) -> None:
        self.env, self.agent = env, agent
        self._sent = True  # construction asked for the reset

    def tick(self) -> Tick:
        if self._sent:
            if (ts := self.env.recv()) is None:
                return Tick.STARVED
            self.agent.observe(ts)
            self._stream, self._sent = ts.stream, False
        if isinstance(action := self.agent.action(), Tick):
            return action
        self.env.send(action, self._stream)
        self._sent = True
        return Tick.WORKED

    def state(self) -> Tree:
        raise NotImplementedError("an actor cannot be resumed yet")

    def load(self, state: Tree) -> None:
        raise NotImplementedError("an actor cannot be resumed yet")
