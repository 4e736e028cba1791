"""The env worker of central inference: it steps envs, and nothing else. It never loads torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from equipoise.actors.inference.exchange import EnvSide
from equipoise.clock import Clock
from equipoise.types import DealtEnv, StateReader, StateWriter, Tick

# "answer": rows into the exchange, and a ring for the inference worker
PARTS = ("env", "reset", "answer")


class EnvWorker:
    """``Worker`` of one or two groups of envs: while one is stepped here, an inference worker acts
    for the other.

    STARVED: no actions have come. BLOCKED: the inference worker holds still for a cut, so this
    worker may be saved.
    """

    ready = Tick.BLOCKED

    def __init__(
        self,
        envs: Sequence[DealtEnv],
        sides: Sequence[EnvSide],
        *,
        wake: Callable[[], object],
        cut: Callable[[], int],
        clock: Clock,
    ) -> None:
        """``wake``: wake the inference worker for rows; ``cut``: the number of the newest cut to
        save for, 0: none.
        """
        self.envs, self._sides, self._wake, self._cut = list(envs), list(sides), wake, cut
        self._fresh = [True] * len(self.envs)  # made again and not stepped yet
        self._where = [False] * len(self.envs)  # a resume brought the envs back to where they were
        self._sent = [False] * len(self.envs)
        self._next, self._clock = 0, clock

    def tick(self) -> Tick:
        """Step one group, in turns."""
        self._clock.begin()
        for _ in self.envs:
            i, self._next = self._next, (self._next + 1) % len(self.envs)
            if self._work(i):
                return Tick.WORKED
        if (cut := self._cut()) and all(side.held(cut) for side in self._sides):
            return Tick.BLOCKED
        return Tick.STARVED

    def _work(self, i: int) -> bool:
        env, side = self.envs[i], self._sides[i]
        if side.begins:
            where, self._where[i] = self._where[i], False
            # in later epochs the inference worker has dropped its state of these envs
            if where and side.epoch == 0:
                side.begin(None)
            else:
                if not self._fresh[i]:
                    env.load({})
                self._fresh[i] = self._sent[i] = False
                if (parts := env.recv()) is None:
                    self._fresh[i] = True  # to be reset again
                    return False
                self._clock.lap("env")
                side.begin(parts)
        elif side.turn:
            if not self._sent[i]:
                env.send(side.actions)
                self._sent[i] = True
            if (parts := env.recv()) is None:
                return False
            self._sent[i] = False
            self._clock.lap("env")
            side.answer(parts)
        else:
            return False
        self._wake()
        self._clock.lap("answer")
        return True

    def save(self, to: StateWriter) -> None:
        """Put the state of all envs, which wait for actions."""
        to.put({str(i): env.state() for i, env in enumerate(self.envs)})

    def load(self, source: StateReader) -> None:
        """Load a state; envs that cannot be restored begin new episodes."""
        state = source.state()
        for i, env in enumerate(self.envs):
            env.load(state[str(i)])
            self._where[i] = bool(state[str(i)])
            self._fresh[i] = not state[str(i)]

    def close(self) -> None:
        for env in self.envs:
            env.close()
