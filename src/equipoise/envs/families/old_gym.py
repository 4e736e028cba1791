"""Envs of old gym: known by their package or by what their methods give, and what to write around
them.

Nothing here imports gym or shimmy.
"""

from __future__ import annotations

import inspect

from equipoise import foreign

# Not shimmy's extras gym-v21 and gym-v26: they need numpy<2 and a gym that no longer builds.
PACKAGES = "shimmy gym"
VALUES = (
    "step returns (obs, reward, terminated, truncated, info) and reset(seed, options) returns "
    "(obs, info)"
)

REFUSED = "must inherit from the gymnasium.Env class"  # the error of gymnasium.make for such an env
REGISTERED = (
    "if it is old gym's, register a function that returns it wrapped: "
    "shimmy.GymV21CompatibilityV0(env=...) where step returns "
    "4 values, shimmy.GymV26CompatibilityV0(env=...) where it returns 5"
)


class OldGym(ValueError):
    """An env that has old gym's interface; the message explains how to wrap it."""


def is_old(env: object) -> bool:
    """Is it an env of package ``gym``, or one with its methods that is no Gymnasium env?"""
    return foreign.calls(env, "reset", "step") and (
        of_package(env) or foreign.has(env, "observation_space", "action_space")
    )


def of_package(env: object) -> bool:
    return any(cls.__module__.partition(".")[0] == "gym" for cls in type(env).__mro__)


def advice(env: object, target: str = "make_env", *, old: bool | None = None) -> str:
    """How to wrap ``env``. ``old``: the interface before 0.26; by default ``reset`` decides."""
    if old is None:
        try:
            old = "seed" not in inspect.signature(foreign.attribute(env, "reset")).parameters
        except (TypeError, ValueError):  # written in C
            old = True
    version = "21" if old else "26"
    made = f"{target.rpartition(':')[2] or 'make_env'}()"
    if not made.removesuffix("()").isidentifier():
        made = "make_env()"
    call = f"wrap it: shimmy.GymV{version}CompatibilityV0(env={made}), of pip install {PACKAGES}"
    spaces = type(foreign.optional(env, "observation_space")).__module__.partition(".")[0]
    if spaces != "gymnasium":
        return f"{call}, in a function of yours that is the new ENV"
    return (
        f"{call}. But shimmy takes only spaces of package gym, and these are Gymnasium's: mend "
        f"it, so that {VALUES}"
    )
