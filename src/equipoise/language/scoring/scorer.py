"""Scoring: samples in, rewards out, in the order in which they are ready; no call waits.

A function that fails costs its group, whose samples are written into a capsule; ``IN_A_ROW``
failures without a success between them end the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from equipoise.errors import RewardsFailed
from equipoise.language.scoring.capsules import RewardCapsule, write
from equipoise.language.scoring.functions import (
    Part,
    RewardFunction,
    Samples,
    call,
    load,
    total,
    what,
)

IN_A_ROW = 3  # failures that end the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A group's rewards, or the reason for their absence."""

    key: int  # as it was submitted
    # [M] the weighted sum, None for a sample that no function graded; None: the group is lost
    reward: Part | None
    parts: dict[str, Part] = field(default_factory=dict)  # by the name of the function
    error: str = ""
    cause: str = ""  # the error as its capsule has it, without the name of the function
    capsule: Path | None = None


class Scorer(Protocol):
    """The interface that turns samples into rewards."""

    @property
    def waiting(self) -> int: ...  # groups that were submitted and that ``poll`` has not given back
    def submit(self, key: int, samples: Samples) -> None: ...
    # the groups that became ready; ``RewardsFailed`` ends the run
    def poll(self) -> list[Scored]: ...
    # descriptors that are readable once ``poll`` may have something
    def fds(self) -> tuple[int, ...]: ...
    def close(self) -> None: ...


class Outcomes:
    """Outcomes of functions: sums, capsules, and the end after ``IN_A_ROW`` failures."""

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        capsules: Path | None = None,
        deadline_s: float | None = None,
        caution: float = 0.0,
    ) -> None:
        """``capsules``: the directory where they are written; None: nowhere. ``caution``: as in
        ``total``.
        """
        self._functions, self._capsules, self._deadline_s, self._failed = (
            functions,
            capsules,
            deadline_s,
            0,
        )
        self._caution = caution

    def scored(self, key: int, samples: Samples, parts: dict[str, Part]) -> Scored:
        try:
            reward = total(self._functions, parts, self._caution)
        except ValueError as error:
            return self.failed(key, samples, self._functions[0].name, str(error))
        self._failed = 0
        return Scored(key=key, reward=reward, parts=parts)

    def failed(self, key: int, samples: Samples, name: str, error: str) -> Scored:
        """Count the failure and write its capsule."""
        capsule = RewardCapsule(
            reward=name, error=error, deadline_s=self._deadline_s, samples=samples
        )
        path = None if self._capsules is None else write(self._capsules, capsule)
        self._failed += 1
        if self._failed >= IN_A_ROW:
            raise RewardsFailed(
                f"reward {name!r} failed, as the {IN_A_ROW - 1} groups before did: "
                f"{error}{_see(path)}"
            )
        return Scored(
            key=key, reward=None, error=f"reward {name!r}: {error}", cause=error, capsule=path
        )


def _see(capsule: Path | None) -> str:
    return "" if capsule is None else f" (the samples: {capsule})"


class HereScorer:
    """Functions called in this process, which must take microseconds and never hang."""

    def __init__(
        self, functions: Sequence[RewardFunction], *, capsules: Path | None = None
    ) -> None:
        self._calls = [(one.name, load(one.name)) for one in functions]
        self._outcomes = Outcomes(functions, capsules)
        self._ready: list[Scored] = []

    @property
    def waiting(self) -> int:
        return len(self._ready)

    def submit(self, key: int, samples: Samples) -> None:
        self._ready.append(self._score(key, samples))

    def _score(self, key: int, samples: Samples) -> Scored:
        parts: dict[str, Part] = {}
        for name, function in self._calls:
            try:
                parts[name] = call(function, samples)
            except Exception as error:  # whatever a user's function raises costs its group
                return self._outcomes.failed(key, samples, name, what(error))
        return self._outcomes.scored(key, samples, parts)

    def poll(self) -> list[Scored]:
        ready, self._ready = self._ready, []
        return ready

    def fds(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None: ...
