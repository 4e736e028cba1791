"""Seeds that belong to a stream and not to the worker that happens to run it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def stream_seed(seed: int, stream: int, incarnation: int = 0) -> int:
    """31 bits from (seed, stream), what ALE and EnvPool accept as well as Gymnasium; another for each env made anew."""
    words = [seed, stream, incarnation] if incarnation else [seed, stream]
    return int(np.random.SeedSequence(words).generate_state(1)[0]) & 0x7FFFFFFF


def stream_seeds(seed: int, streams: Iterable[int]) -> list[int]:
    return [stream_seed(seed, int(stream)) for stream in streams]
