"""An engine that draws nothing: it recites the given completions of each prompt."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.actors.engine.engine import Sampled
from equipoise.types import Stop

Recited = tuple[NDArray[np.int64], NDArray[np.float32]]  # tokens, and a number for each as its logp


class Reciter:
    """An ``Engine`` with given samples, which are whole after one step."""

    def __init__(self, completion: Callable[[int, int], Recited]) -> None:
        """``completion`` of a group and a sample's index: its tokens, the end included, and their
        log-probabilities: 0, since nothing drew them, or those of a reference.
        """
        self._completion, self._groups = completion, deque[tuple[int, int]]()
        self.version = 0

    @property
    def live(self) -> int:
        return 0

    @property
    def waiting(self) -> int:
        return len(self._groups)

    @property
    def away(self) -> int:
        return 0

    def submit(self, group: int, prompt: Sequence[int], samples: int, *, limit: int) -> None:
        for index in range(samples):
            if (length := len(self._completion(group, index)[0])) > limit:
                raise ValueError(
                    f"group {group}: expected a completion of at most {limit} tokens, got {length}"
                )
        self._groups.append((group, samples))

    def step(self) -> list[Sampled]:
        """The samples of all groups."""
        done = []
        while self._groups:
            group, samples = self._groups.popleft()
            for index in range(samples):
                token, logp = self._completion(group, index)
                version = np.full(len(token), self.version)
                done.append(Sampled(group, index, token, logp, version, Stop.EOS))
        return done

    def take(
        self, version: int, params: Mapping[str, object], whole: Callable[[], bool]
    ) -> Iterator[None]:
        self.version = version
        yield from ()

    def close(self) -> None: ...
