"""One half of the ring: an env and whatever decides for it."""

from __future__ import annotations

from equipoise.types import Agent, Array, Env, Tick, Tree


class ActorWorker:
    """Ticks an env; asynchronous envs and distant agents differ only in how often a tick says STARVED or BLOCKED."""

    def __init__(self, env: Env, agent: Agent) -> None:
        self.env, self.agent = env, agent
        self._sent = True  # construction asked for the reset
        self._stream: Array = None

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
        """Of an actor that is BLOCKED: between two unrolls, its env answered and not yet asked again."""
        if self._sent:
            raise RuntimeError("state: expected an actor that waits for a slot, got one that waits for its env")
        return {"env": self.env.state(), "agent": self.agent.state()}

    def load(self, state: Tree) -> None:
        """Go on where the state was taken; where the env cannot, its episodes start anew."""
        self.env.load(state["env"])
        self.agent.load(state["agent"])
        if state["env"]:
            self._stream, self._sent = self.agent.streams, False
        else:
            self.agent.abandon_episodes()  # the reset is the next answer
