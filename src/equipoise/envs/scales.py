"""The scale of observations: numbers so large that a network cannot use them as they are.

Numbers reach a network as they are, but for pictures (bytes of rank 2 or more, divided by their
bound). A network begins with weights for numbers of about 1: a byte of 255 next to a position of
0.5 hides the position, and 10^6 hides all else.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces

from equipoise import tree
from equipoise.types import Tree

LARGE = 100.0  # a number beyond it is large
NO_BOUND = 1e9  # a larger bound is no bound
ADVICE = (
    "divide it in the env, or --set algorithm.normalize_obs=true (ppo, a2c, impala) scales by "
    "what is seen"
)


def large(space: spaces.Space[object], place: str = "obs") -> dict[str, float]:
    """{place: the largest number of its bounds} of each array with large bounds."""
    if (inner := tree.branches(space)) is not None:
        return {
            path: most
            for key, one in inner.items()
            for path, most in large(one, f"{place}/{key}").items()
        }
    if not isinstance(space, spaces.Box) or is_picture(space):
        return {}
    bounds = np.abs(np.concatenate([np.ravel(space.low), np.ravel(space.high)]).astype(np.float64))
    most = float(bounds[bounds < NO_BOUND].max(initial=0.0))
    return {place: most} if most > LARGE else {}


def large_seen(space: spaces.Space[object], obs: Tree, place: str = "obs") -> dict[str, float]:
    """{place: largest number} of rows [B, ...] with large numbers within small or no bounds."""
    if (inner := tree.branches(space)) is not None:
        parts = (
            (one, obs[key], f"{place}/{key}")
            for key, one in inner.items()
            if isinstance(obs, Mapping)
        )
        return {path: most for part in parts for path, most in large_seen(*part).items()}
    if not isinstance(space, spaces.Box) or is_picture(space) or large(space):
        return {}
    finite = np.abs(np.asarray(obs, np.float64))
    most = float(finite[np.isfinite(finite)].max(initial=0.0))
    return {place: most} if most > LARGE else {}


def is_picture(space: spaces.Space[object]) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 1


def said(found: Mapping[str, float]) -> str:
    """A sentence on the first of these; "" for none."""
    if not found:
        return ""
    place, most = next(iter(found.items()))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return (
        f"{place}{more}: expected numbers of about 1, got up to {most:,.6g}, which a network "
        f"cannot use as they are: {ADVICE}"
    )
