"""An engine that draws nothing: it recites the wanted completion of each prompt, to be imitated."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from equipoise.actors.engine.engine import Sampled
from equipoise.types import Stop


class Reciter:
    """An ``Engine`` with given samples: all samples of a group are alike, and whole after one
    step.
    """

    def __init__(self, completion: Callable[[int], Sequence[int]]) -> None:
        """``completion`` of a group: its tokens, the end included."""
        self._completion, self._groups = completion, deque[tuple[int, int]]()
        self.version = 0

    @property
    def live(self) -> int:
        return 0

    @property
    def waiting(self) -> int:
        return len(self._groups)

    def submit(self, group: int, prompt: Sequence[int], samples: int, *, limit: int) -> None:
        if (length := len(self._completion(group))) > limit:
            raise ValueError(
                f"group {group}: expected a completion of at most {limit} tokens, got {length}"
            )
        self._groups.append((group, samples))

    def step(self) -> list[Sampled]:
        """The samples of all groups, with log-probability 0: they were not drawn."""
        done = []
        while self._groups:
            group, samples = self._groups.popleft()
            token = np.asarray(self._completion(group), np.int64)
            logp, version = np.zeros(len(token), np.float32), np.full(len(token), self.version)
            done += [
                Sampled(group, index, token, logp, version, Stop.EOS) for index in range(samples)
            ]
        return done

    def take(
        self, version: int, params: Mapping[str, object], whole: Callable[[], bool]
    ) -> Iterator[None]:
        self.version = version
        yield from ()
