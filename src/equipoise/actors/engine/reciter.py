"""An engine that draws nothing: it recites the given completions of each prompt."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.actors.engine.engine import Conversation, Sampled
from equipoise.types import Stop


@dataclass(frozen=True, slots=True)
class Recited:
    """A given sample of ``L`` tokens, the end included."""

    token: NDArray[np.int64]  # [L]
    logp: NDArray[np.float32]  # [L]: 0, since nothing drew them, or those of a reference
    chosen: NDArray[np.bool_] | None = None  # [L], those to learn from; None: all


class Reciter:
    """An ``Engine`` with given samples, which are whole after one step."""

    def __init__(self, completion: Callable[[int, int], Recited]) -> None:
        """``completion`` of a group and a sample's index."""
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
            if (length := len(self._completion(group, index).token)) > limit:
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
                one = self._completion(group, index)
                version = np.full(len(one.token), self.version)
                turns = None
                if one.chosen is not None:
                    version[~one.chosen] = -1
                    turns = Conversation(one.chosen, None, (), 0, 0)
                done.append(Sampled(group, index, one.token, one.logp, version, Stop.EOS, turns))
        return done

    def take(
        self, version: int, params: Mapping[str, object], whole: Callable[[], bool]
    ) -> Iterator[None]:
        self.version = version
        yield from ()

    def close(self) -> None: ...
