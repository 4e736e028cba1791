"""Seeds: one for each purpose of a run, and one for each stream, whichever worker runs it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def stream_seed(seed: int, stream: int, incarnation: int = 0) -> int:
    """31 bits from (seed, stream), which ALE and EnvPool accept like Gymnasium; another number for
    each env made again.
    """
    words = [seed, stream, incarnation] if incarnation else [seed, stream]
    return int(np.random.SeedSequence(words).generate_state(1)[0]) & 0x7FFFFFFF


def stream_seeds(seed: int, streams: Iterable[int]) -> list[int]:
    return [stream_seed(seed, int(stream)) for stream in streams]


def derive_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for one purpose: no two parts of a run draw from the same sequence."""
    words = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(2, np.uint32)
    return int(words[0]) << 31 | int(words[1]) >> 1


def policy_seed(seed: int, purpose: str, policy: str) -> int:
    """A seed for what each policy has for itself; the policy "main" has that of a run with one
    policy.
    """
    return derive_seed(seed, purpose if policy == "main" else f"{purpose} {policy}")


def share_seed(seed: int, update: int, rank: int) -> int:
    """A 63-bit seed for what one of several learners draws in one update."""
    words = np.random.SeedSequence([seed, update, rank]).generate_state(2, np.uint32)
    return int(words[0]) << 31 | int(words[1]) >> 1
