"""A wait for a sum: short looks at the others, until the sum is there or one of them is lost."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from equipoise.learners.pool import Group, LearnerLost


class Work:
    """A sum that comes after some of the looks at it: ``late`` is one that comes between the end of
    a wait and the look.
    """

    def __init__(self, waits: int, *, late: bool = False, error: str | None = None) -> None:
        self.waits, self.late, self.error, self.over = waits, late, error, False

    def is_completed(self) -> bool:
        return self.over

    def wait(self, timeout: timedelta | None = None) -> None:
        if not self.over:
            self.waits -= 1
            self.over = self.waits <= 0
            if not self.over or self.late:
                raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)


def waited(work: Work, looks: list[str]) -> None:
    group = Group(HashStore(), 0, 2, look=lambda: looks.append("look"))
    group._group = type("Gloo", (), {"allreduce": lambda self, x, options: work})()
    group.sum(torch.zeros(1))


@pytest.mark.parametrize("late", [False, True])
def test_a_sum_that_comes_is_had_whenever_it_comes(late: bool) -> None:
    looks: list[str] = []
    waited(Work(3, late=late), looks)
    assert len(looks) == 2


def test_a_sum_that_fails_says_so() -> None:
    with pytest.raises(LearnerLost, match="Connection closed by peer"):
        waited(Work(2, error="Connection closed by peer"), [])
