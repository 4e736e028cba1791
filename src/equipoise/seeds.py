"""Seeds: one for each purpose of a run, and one for each stream, whichever worker runs it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# of a uniform number: below 1 by so much that its product with a total is below the total
_BITS = 52


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


def mix(x: U64) -> U64:
    """Mix the bits of ``x`` in place: SplitMix64's finaliser."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def uniform_bits(x: U64) -> NDArray[np.float64]:
    """Mixed bits as numbers in [0, 1). ``x`` is overwritten."""
    x >>= np.uint64(64 - _BITS)
    return x.astype(np.float64) * 2.0**-_BITS


def uniforms(seed: int, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each of these ``numbers`` [n]; it depends on nothing else."""
    key = mix(np.array([seed], np.int64).view(np.uint64) + _GOLDEN)
    return uniform_bits(mix(key ^ (numbers.view(np.uint64) * _GOLDEN)))
