"""The number of threads that torch computes with, which decides the last bits of sums."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from equipoise.cores import usable


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside, and with as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def crowded(learners: int, threads: int) -> list[str]:
    """A warning if learners compute with more threads than there are cores."""
    if (wanted := learners * threads) <= (there := usable()):
        return []
    fits = max(there // learners, 1)
    who = "the learner computes" if learners == 1 else f"{learners} learners compute"
    remedy = f"--threads {fits}" if fits < threads else f"--learners {max(there // threads, 1)}"
    return [
        f"warning: {who} with {wanted} threads in all, and this machine has {there} cores for "
        f"them: use {remedy}"
    ]
