"""Wrappers that keep running statistics in an env: found in the chain of wrappers, each with the
setting that replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator

from equipoise import foreign
from equipoise.envs.check.findings import Findings

SETTINGS = {  # Gymnasium's classes, for one env and for a vector of them -> ours
    "NormalizeObservation": ("observations", "algorithm.normalize_obs"),
    "NormalizeReward": ("rewards", "rewards.normalize"),
}


def chain(env: object) -> Iterator[object]:
    """The env and all that it wraps, outermost first, also those inside a vector env."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        # of a SyncVectorEnv; its other envs are like the first
        inner = foreign.optional(env, "envs")
        if isinstance(inner, list | tuple) and inner:
            yield from chain(inner[0])
        env = foreign.optional(env, "__dict__", {}).get("env")


def judge_statistics(found: Findings, env: object) -> bool:
    """Find wrappers with running statistics; returns whether there is one."""
    names: dict[str, str] = {}
    for one in chain(env):
        for cls in type(one).__mro__:
            if cls.__name__ in SETTINGS and cls.__module__.startswith("gymnasium.wrappers"):
                names.setdefault(
                    cls.__name__, f"{cls.__module__.rpartition('.')[0]}.{cls.__name__}"
                )
    for name, full in names.items():
        what, setting = SETTINGS[name]
        seen = f"expected {what} as the env gives them, got those of {full}"
        cost = (
            "Each env of a run has statistics of its own; an evaluation begins without them, and "
            "neither a checkpoint nor the "
            f"weights hold them. Take the wrapper off: --set {setting}=true does it, with "
            "statistics that are saved."
        )
        found.error(f"{name} keeps running statistics in the env", "the wrappers", seen, cost)
    return bool(names)
