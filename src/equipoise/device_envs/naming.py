"""Names of device envs: ``device:cartpole`` (ours), ``device:module:callable`` (yours),
``jax:LIBRARY/NAME`` (in JAX).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from equipoise import foreign
from equipoise.device_envs.device_env import DeviceEnv, as_next_step
from equipoise.device_envs.names import NAMES
from equipoise.hints import hint, meant
from equipoise.naming import called
from equipoise.types.sources import DEVICE, JAX

# imported for such an env alone, since it needs JAX
JAX_ENVS = "equipoise.device_envs.jax_libraries:make"


def make_device_env(
    name: str, kwargs: Mapping[str, object], *, streams: int, device: torch.device | str = "cpu"
) -> DeviceEnv:
    """Make the env ``name`` (without ``device:``, but with ``jax:``), as a NEXT_STEP one.

    The callable gets ``kwargs``, and ``num_envs`` (streams) and ``device`` if its signature has
    them. ValueError names the nearest name or argument, or the part that the env lacks.
    """
    shown = name if name.startswith(JAX) else f"{DEVICE}{name}"
    if name not in NAMES and ":" not in name:
        raise ValueError(
            f"unknown device env {name!r}{hint(name, NAMES).rstrip('.')}; device:module:callable "
            "is one of yours"
        )
    if name.startswith(JAX):
        maker: Callable[..., Any] = partial(called(JAX_ENVS, "JAX envs"), name.removeprefix(JAX))
    else:
        maker = called(NAMES.get(name, name), "device env")
    parameters = inspect.signature(maker).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        for key in kwargs:
            if key not in parameters:
                taken = ", ".join(parameters) or "none"
                raise ValueError(
                    f"{shown} takes no argument {key!r}{meant(key, parameters)}; it takes: {taken}"
                )
    offer = {"num_envs": streams, "device": str(device)}
    made = maker(**{key: value for key, value in offer.items() if key in parameters}, **kwargs)
    for needed in ("observation", "action", "exact", "reset", "step"):
        if foreign.attribute(made, needed, foreign.ABSENT) is foreign.ABSENT:
            got = f"{type(made).__name__}, which has no such argument"
            raise ValueError(
                f"{shown}: expected an env with {needed!r} (equipoise.device_envs.DeviceEnv), got "
                f"{got}"
            )
    if isinstance(limit := foreign.optional(made, "max_episode_steps"), int) and limit < 0:
        raise ValueError(
            f"{shown}: max_episode_steps: expected a number of steps, or 0 for no limit, got "
            f"{limit}"
        )
    return as_next_step(made, name)
