"""``make``: from a target, which is data, to an env of B streams.

Targets::

    CartPole-v1             a Gymnasium id: its native vector env where it has one, else one Python env a stream
    module:id               imports the module, then the id (Gymnasium's own convention)
    module:callable         called with the arguments; returns a gymnasium.Env (called once a stream), a VectorEnv (of B), or
                            a PettingZoo ParallelEnv or AECEnv (called once an env; its agents are streams)
    python:TARGET           one Python env a stream, also where the id has a native vector env
    envpool:CartPole-v1     EnvPool's env of that name (extra ``envpool``)
    pettingzoo:butterfly/knights_archers_zombies_v11   PettingZoo's env of that name (extra ``pettingzoo``)
    device:cartpole         functions on tensors, and device:module:callable (``equipoise.device_envs``): here as a vector env
    jax:gymnax/CartPole-v1  envs written in JAX, of gymnax, Craftax, Brax, MuJoCo Playground (extra ``jax``), made as those
    MiniGrid-Empty-5x5-v0   MiniGrid and BabyAI, without their mission (``minigrid.py``; extra ``minigrid``)
    remote:tcp://HOST:PORT  worlds that connect there, and remote:unix:PATH (``worlds/``; extra ``serve``)
    ALE/Pong-v5             an Atari game, and python:ALE/..., envpool:Pong-v5: all of them with ``atari.AtariSpec``

A callable, or the class behind an id, is also given, if its signature names them and the arguments
do not: ``stream`` (int, of this one env), ``streams`` ([B] int64), ``num_envs`` (B) and ``seed``
(of the run).
"""  # noqa: E501

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as Registered
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from equipoise import foreign, phases
from equipoise.envs import hints as wrong
from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.base import SyncEnv
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.families import atari, minigrid
from equipoise.envs.families.joint import GIVES, Joint, NotParallel, has_agents, is_parallel
from equipoise.envs.families.old_gym import OldGym, advice, is_old, of_package
from equipoise.envs.families.turns import at_once, is_turns, seated
from equipoise.envs.foreign_ids import meant_by, not_installed, removed
from equipoise.envs.loop import LoopEnv
from equipoise.envs.masks import InfoMask, VectorInfoMask
from equipoise.envs.spaces import observation_spec
from equipoise.hints import sentence, where_modules_lie
from equipoise.naming import called
from equipoise.types import REMOTE, EnvFactory
from equipoise.types.sources import DEVICE, JAX

Streams = NDArray[np.int64]
PETTINGZOO = "pettingzoo:"
SEATS = "seats"
MISSING = object()
NO_LIMIT = -1  # of gymnasium.make
# imported for a device env alone, since it loads torch
DEVICE_ENVS = "equipoise.device_envs.vector:vector"
# (prefixes of ids, the module that registers them, the function that makes them)
FAMILIES: tuple[tuple[tuple[str, ...], str, Callable[[str], atari.Game | minigrid.Grid]], ...] = (
    (("ALE/",), "ale_py", atari.Game),
    (minigrid.PREFIXES, "minigrid", minigrid.Grid),
)
GYMNASIUM_ARGUMENTS = ("max_episode_steps", "render_mode")  # arguments of gymnasium.make itself


def make(
    factory: EnvFactory,
    *,
    streams: Streams,
    seed: int,
    failures: Failures | None = None,
    metrics: Sequence[str] = (),
) -> SyncEnv:
    """Make an env of ``streams`` [B] int64; stream i is seeded from (``seed``, i) on any worker.

    For PettingZoo these are whole envs, whose agents ``pettingzoo.dealt`` makes streams.

    ``failures``: the cost of a failure; None raises each. ``metrics``: numbers of ``info`` for
    ``TimeStep.info``. ValueError names the nearest valid name; ImportError the extra to install.
    """
    env = make_plain(factory, streams=streams, seed=seed)
    env.failures, env.origin = failures, (factory, seed)
    if metrics:
        env.watch(metrics)
    return env


def make_plain(factory: EnvFactory, *, streams: Streams, seed: int) -> SyncEnv:
    streams = np.asarray(streams, np.int64)
    if streams.ndim != 1 or not len(streams):
        raise ValueError(f"streams: expected [B] with B >= 1, got shape {streams.shape}")
    target, kwargs = factory.target, dict(factory.kwargs)
    python = target.startswith("python:")
    target = target.removeprefix("python:")
    with wrong.explained(target):
        if target.startswith(REMOTE):
            if python or factory.action_mask == "info":
                what = f"python:{target}" if python else "action_mask=info"
                raise ValueError(
                    f"{target}: expected worlds that connect, with masks in their observations, "
                    f"got {what}"
                )
            from equipoise.envs.worlds.env import RemoteEnv

            return RemoteEnv(
                target, kwargs, streams=streams, seed=seed, action_mask=factory.action_mask
            )
        if target.startswith("envpool:"):
            if python:
                raise ValueError(
                    f"python:{target}: EnvPool's envs are native; take a Gymnasium id instead"
                )
            from equipoise.envs.families.pool import make_pool

            name = target.removeprefix("envpool:")
            return make_pool(
                name, kwargs, streams=streams, seed=seed, action_mask=factory.action_mask
            )
        found = named(target)
        phases.say(f"making an env of {target}")
        with wrong.unexpected(target, kwargs, partial(handed_on, found)):
            if isinstance(found, atari.Game | minigrid.Grid):
                if factory.action_mask not in ("auto", "none"):
                    raise ValueError(
                        f"{target} has no action masks; expected action_mask=auto, got "
                        f"{factory.action_mask!r}"
                    )
                return found.make(kwargs, streams=streams, seed=seed, python=python)
            offer: dict[str, Any] = {"num_envs": len(streams), "streams": streams, "seed": seed}
            if isinstance(found, Registered):
                return make_registered(
                    found, kwargs, offer, python=python, mask=factory.action_mask
                )
            return make_called(
                target, found, kwargs, offer, python=python, mask=factory.action_mask
            )


def named(target: str) -> Any:
    """Find what a target without ``python:`` and ``envpool:`` names."""
    if target.startswith(PETTINGZOO):
        return partial(parallel, target.removeprefix(PETTINGZOO))
    if target.startswith((DEVICE, JAX)):
        return partial(
            called(DEVICE_ENVS, "device envs"), target.removeprefix(DEVICE), observation_spec
        )
    return resolve(target)


def parallel(name: str, **kwargs: object) -> object:
    """Make an env of PettingZoo's registry: the parallel env, else the env in turns."""
    import pettingzoo
    from pettingzoo.env_registry.exceptions import FailedToImport, PettingZooRegistryError
    from pettingzoo.env_registry.registration import aec_registry, parallel_registry, spec

    kind: Literal["parallel", "aec"] = "parallel"
    try:
        spec(kind, name)
    except PettingZooRegistryError:
        kind = "aec"
    try:
        return pettingzoo.make(kind, name, **kwargs)
    except FailedToImport as error:
        raise ValueError(f"{PETTINGZOO}{name}: {error} ({error.__cause__})") from error
    except PettingZooRegistryError as error:
        # PettingZoo takes classic/go-v5 and classic/go_v5; its pages have the second.
        known = {key.replace("-v", "_v") for key in (*parallel_registry, *aec_registry)}
        raise wrong.unknown("PettingZoo env", name, known, f" in {PETTINGZOO}{name}") from error


def resolve(target: str) -> Registered | Callable[..., object]:
    """Find what a target names; ValueError with the nearest name if there is none."""
    module, _, name = target.rpartition(":")
    if not module:
        for prefixes, family, _ in FAMILIES:
            if name.startswith(prefixes):
                phases.say(f"importing {family}")
                importlib.import_module(family)  # registers the ids
        if name not in gymnasium.registry:
            if meant := meant_by(name):
                raise ValueError(f"unknown env id {target!r}{meant}")
            if said := wrong.no_name(target):
                raise ValueError(said)
            raise wrong.unregistered(target, gymnasium.registry)
        if removed(gymnasium.registry[name].entry_point):
            others = [
                key
                for key in gymnasium.registry
                if wrong.versionless(key) == wrong.versionless(name)
            ]
            if left := [key for key in others if not removed(gymnasium.registry[key].entry_point)]:
                raise wrong.unknown("env id", target, left, ", which Gymnasium no longer has")
        return next(
            (kind(name) for prefixes, _, kind in FAMILIES if name.startswith(prefixes)),
            gymnasium.registry[name],
        )
    if said := wrong.no_name(target):
        raise ValueError(said)
    phases.say(f"importing {module}")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (
            error.name is None
            or not f"{module}.".startswith(f"{error.name}.")
            or error.name in wrong.EXTRAS
        ):
            raise  # the module exists and lacks a dependency, or an extra is not installed
        if missing := not_installed(module, name):
            raise ValueError(f"env {target!r}: {missing}") from error
        unknown = wrong.unknown("module", module, wrong.modules(module), f" in env {target!r}")
        raise ValueError(f"{sentence(str(unknown))} {where_modules_lie()}") from error
    found = foreign.attribute(imported, name, MISSING)
    if callable(found):
        return found  # type: ignore[no-any-return]
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    if found is not MISSING:
        raise ValueError(
            f"env {target!r}: expected a class or a function that makes an env, got "
            f"{type(found).__name__} {found!r}"
        )
    names = [
        key for key, value in vars(imported).items() if callable(value) and not key.startswith("_")
    ]
    raise wrong.unknown(
        "env", name, [*names, *gymnasium.registry], f" in module {module!r}{wrong.hidden(module)}"
    )


def make_registered(
    found: Registered, kwargs: dict[str, Any], offer: dict[str, Any], *, python: bool, mask: str
) -> SyncEnv:
    streams, limit = offer["streams"], kwargs.get("max_episode_steps")
    if limit is not None and (type(limit) is not int or (limit < 1 and limit != NO_LIMIT)):
        raise ValueError(
            f"{found.id}: max_episode_steps: must be a whole number of at least 1, or {NO_LIMIT} "
            f"for no limit, got {limit!r}"
        )
    python = python or limit == NO_LIMIT  # a vector env would end each episode at once
    if found.vector_entry_point is not None and not found.additional_wrappers and not python:
        creator = loaded(found.vector_entry_point)
        accepted = parameters(creator)
        if accepted is None or not kwargs.keys() - accepted.keys():
            given = kwargs | {"num_envs": len(streams)} | offered(accepted, kwargs, offer)
            env = gymnasium.make_vec(found.id, vectorization_mode="vector_entry_point", **given)
            return vector(env, offer, mask)
    if found.entry_point is None:
        native = (
            parameters(loaded(found.vector_entry_point))
            if found.vector_entry_point is not None
            else {}
        )
        wrong.arguments(found.id, kwargs, native)
        raise ValueError(f"{found.id} has no Python env")
    accepted = parameters(loaded(found.entry_point))
    wrong.arguments(found.id, kwargs, accepted, GYMNASIUM_ARGUMENTS)
    wrong.required(found.id, {**found.kwargs, **kwargs}, accepted, (*offer, "stream"))
    one = partial(gymnasium.make, found.id, disable_env_checker=True, **kwargs)
    makers = [
        partial(one, **offered(accepted, kwargs, offer | {"stream": int(stream)}))
        for stream in streams
    ]
    return loop(makers, offer, mask)


def make_called(
    target: str,
    function: Callable[..., object],
    kwargs: dict[str, object],
    offer: dict[str, Any],
    *,
    python: bool,
    mask: str,
) -> SyncEnv:
    streams = offer["streams"]
    accepted = parameters(function)
    # ``seats`` is ours, unless the env has an argument of that name.
    ours = (
        {}
        if accepted and SEATS in accepted
        else {key: kwargs[key] for key in kwargs if key == SEATS}
    )
    kwargs = {key: value for key, value in kwargs.items() if key not in ours}
    wrong.arguments(target, kwargs, accepted)
    wrong.required(target, kwargs, accepted, (*offer, "stream"))
    makers: list[Callable[[], Any]] = [
        partial(function, **kwargs, **offered(accepted, kwargs, offer | {"stream": int(stream)}))
        for stream in streams
    ]
    first = makers[0]()
    if ours and not is_parallel(first) and not is_turns(first):
        raise ValueError(
            f"{target}: seats are those of an env of several agents, got seats={ours[SEATS]!r} for "
            "one of one agent"
        )
    if isinstance(first, VectorEnv):  # before Env: EnvPool's classes are both
        if python:
            raise ValueError(
                f"python:{target}: expected one Python env a stream; it returns a vector env, "
                f"{type(first).__name__}"
            )
        return vector(first, offer, mask)
    if is_turns(first):
        makers = [partial(at_once, maker) for maker in makers]
        first = at_once(lambda made=first: made)  # type: ignore[misc]
    if is_parallel(first):
        makers = [seated(maker, ours.get(SEATS, "fixed")) for maker in makers]
        first = seated(lambda made=first: made, ours.get(SEATS, "fixed"))()  # type: ignore[misc]
        if mask == "info":
            raise ValueError(
                f"{target}: expected action_mask=auto, obs/KEY or none for an env of several "
                "agents, got 'info'"
            )
        joints = [partial(Joint, maker, mask) for maker in makers]
        # no common mask: each agent has its own
        return loop(joints, offer, "none", made=Joint(lambda: first, mask))
    if not isinstance(first, gymnasium.Env):
        if has_agents(first) and not of_package(first):
            raise NotParallel(f"{target} returned {type(first).__name__}, no parallel env: {GIVES}")
        if is_old(first):
            name = type(first).__name__
            raise OldGym(
                f"{target} returned {name}, of old gym, expected a gymnasium.Env: "
                f"{advice(first, target)}"
            )
        raise ValueError(
            f"{target} returned {type(first).__name__}, expected a gymnasium.Env, a "
            "gymnasium.vector.VectorEnv or a PettingZoo "
            "ParallelEnv"
        )
    return loop(makers, offer, mask, made=first)


def vector(env: VectorEnv, offer: dict[str, Any], mask: str) -> GymnasiumEnv:
    """Adapt a vector env; with ``mask`` "info" the masks become a part of the observations."""
    choice = "auto" if mask == "info" else mask
    env = VectorInfoMask(env) if mask == "info" else env
    return GymnasiumEnv(env, streams=offer["streams"], seed=offer["seed"], action_mask=choice)


def loop(
    makers: Sequence[Callable[[], Any]], offer: dict[str, Any], mask: str, made: Any = None
) -> LoopEnv:
    """Adapt Python envs; ``made`` is the env that the first maker already returned."""
    streams, seed = offer["streams"], offer["seed"]
    if mask != "info":
        return LoopEnv(makers, streams=streams, seed=seed, made=made, action_mask=mask)
    masked: list[Callable[[], Any]] = [lambda make=make: InfoMask(make()) for make in makers]  # type: ignore[misc]
    return LoopEnv(
        masked, streams=streams, seed=seed, made=None if made is None else InfoMask(made)
    )


def offered(
    accepted: Mapping[str, object] | None, kwargs: Mapping[str, object], offer: Mapping[str, Any]
) -> dict[str, Any]:
    """Select from ``offer`` the arguments that the signature names and the user did not give."""
    return {
        key: value
        for key, value in offer.items()
        if accepted and key in accepted and key not in kwargs
    }


def loaded(entry_point: str | Callable[..., object]) -> Callable[..., object]:
    return entry_point if callable(entry_point) else load_env_creator(entry_point)


def handed_on(found: object) -> list[str]:
    """The argument names of the constructors of an env's class and of all its parents."""
    made: Any = (
        gymnasium.registry[found.id] if isinstance(found, atari.Game | minigrid.Grid) else found
    )
    if isinstance(made, Registered):
        made = None if made.entry_point is None else loaded(made.entry_point)
    classes = made.__mro__ if inspect.isclass(made) else ()
    names = {name for one in classes for name in parameters(one) or {} if "__init__" in vars(one)}
    return sorted((names | {*GYMNASIUM_ARGUMENTS}) - {"**", "args", "kwargs"})


def parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter] | None:
    """The named parameters, with "**" if it takes any; None if there is no signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    kinds = inspect.Parameter
    return {
        "**" if p.kind is kinds.VAR_KEYWORD else p.name: p
        for p in signature.parameters.values()
        if p.kind not in (kinds.VAR_POSITIONAL, kinds.POSITIONAL_ONLY)
    }
