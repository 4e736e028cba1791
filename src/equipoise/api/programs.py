"""Making a checked ``Program``, and checking an env: ``program``, ``check``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import recipes
from equipoise.api.sizing import cut
from equipoise.envs.check.check import SECONDS, STEPS, check_env
from equipoise.envs.check.report import Report as CheckReport
from equipoise.facts import AUTO
from equipoise.hints import hint
from equipoise.language.tasks import BUILT_IN
from equipoise.programs.config_file import read_config
from equipoise.programs.fields import alter, replaced, shorts, valued
from equipoise.programs.peer_names import algorithm_of_peer, key_of_peer, option_of_peer, words_of_peer
from equipoise.programs.program import algorithm_class, algorithm_name, algorithm_names, text_algorithm_names
from equipoise.programs.refusals import check as check_program
from equipoise.programs.refusals import check_read, check_replays
from equipoise.programs.settings import (
    Settings,
    apply_settings,
    asked,
    check_env_given_once,
    convert,
    env_of,
    field_types,
    pairs,
    setting_types,
)
from equipoise.types import (
    Algorithm,
    EnvFactory,
    EnvSource,
    Frozen,
    Policy,
    Program,
    ReplaySettings,
    Rewards,
    TaskSource,
    learning,
)

__all__ = ["check", "configured", "program", "read_fields"]

_OF_POLICY = ("unroll", "batch", "publish_every")


def program(
    env: str | Callable[..., Any],
    algorithm: str | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    settings: Settings = (),
    recipe: bool = True,
    policies: Mapping[str, str | Algorithm | Policy | Frozen] | Sequence[str] = (),
    **fields: Any,
) -> Program:
    """A checked ``Program``: the recipe for this env and algorithm where there is one, with ``fields`` and ``settings``.

    ``policies`` are several, of an env of several agents: each the name of an algorithm, an ``Algorithm`` (both with the unroll
    and the batch of the others), a ``Policy``, or ``Frozen``; or texts like "NAME=ppo" and "NAME=past:OTHER". The field
    ``route`` says which agents are whose. ``algorithm`` is then one of theirs, whose recipe is taken: by default "ppo", or the
    first one where all learn from replays.

    ``env`` is a target (see ``equipoise.envs.making``) or a function at the top of a module; ``fields`` are the
    settings of the run by the names of their options (``actors``, ``evaluate_every``), and ``unroll``, ``batch``,
    ``publish_every`` of its policy; None means "not given"
    except for ``max_lag``; they may be texts, as on the command line, and some may be "auto" (docs/choices.md). ``env_kwargs``
    are laid over those of the recipe, as ``env.KEY`` among the settings is. ``settings`` are texts like
    ``"algorithm.gamma=0.98"``, or a dict of such keys. What both say they have to say alike. A batch that is not given is one
    unroll of every stream.
    Without a recipe a large batch of an algorithm with ``minibatch_rows`` is cut into up to 32 minibatches.
    """
    check_env_given_once(settings, env_kwargs)
    target = env if isinstance(env, str) else _target(env)
    if fields.get("inference") == AUTO.word:
        options: dict[str, Any] = {"env_kwargs": env_kwargs, "settings": settings, "recipe": recipe, "policies": policies}
        return alter(_with_central(env, algorithm, **options, **{**fields, "inference": None}), inference=AUTO.word)
    if (named := target.lower()) in algorithm_names():
        raise ValueError(
            f"env {target!r}: expected an env, got the name of an algorithm: equipoise train ENV --algorithm {named}"
        )
    if target in BUILT_IN and not (algorithm is not None and algorithm_class(algorithm).needs_task):
        named = ", ".join(text_algorithm_names())
        raise ValueError(f"{target}: expected an algorithm for this task of text, one of {named}, got {algorithm or 'none'}")
    several = dict(policies) if isinstance(policies, Mapping) else _read_policies(policies)
    name = algorithm or _usual(several.values())
    tuned = recipes.find(target, name) if recipe else None
    base = apply_settings(_default(target, name), tuned or {})
    given = read_fields({k: v for k, v in fields.items() if v is not None or k == "max_lag"}, base, _OF_POLICY)
    of_policy = {k: given.pop(k) for k in _OF_POLICY if k in given}
    if base.source.played is None:  # a task
        wrong = [name for name in ("action_mask", "metrics") if name in given] + ["env_kwargs"] * bool(env_kwargs)
        if wrong:
            raise ValueError(f"{wrong[0]}: expected none with {name}, which learns from a task and steps no env")
        base = alter(base, **given)
    else:
        mask = given.pop("action_mask", base.env.action_mask)
        factory = EnvFactory(target=target, kwargs={**base.env.kwargs, **(env_kwargs or {})}, action_mask=mask)
        base = alter(base, env=factory, **given)
    one = dataclasses.replace(next(iter(learning(base).values())), **of_policy)
    if several and algorithm is not None and algorithm_class(algorithm) not in (theirs := _algorithms(several.values())):
        names = ", ".join(sorted(map(algorithm_name, theirs)))
        raise ValueError(f"algorithm: expected one that a policy has ({names}), since there are policies, got {algorithm!r}")
    made_of = {name: _policy(given, one) for name, given in (several or {"main": one}).items()}
    set_, before = pairs(settings), dataclasses.replace(base, policies=made_of)
    check_replays(before, [key for key, _ in set_])
    base = apply_settings(before, settings)
    _agree({**given, **of_policy}, base, set_)
    place = base.placement
    envs, whole = base.actors * place.envs_per_actor, any(isinstance(given, Policy) for given in several.values())
    if envs and base.source.played and not whole and "batch" not in of_policy and not any(_sets_batch(key) for key, _ in set_):
        for name, policy in learning(base).items():
            if policy.replay is not None:
                continue
            idle = place.max_lag is not None and envs > policy.batch * (place.max_lag + 1)  # some actors always would be
            if tuned is None or policy.batch % place.envs_per_actor or idle:
                base = dataclasses.replace(base, policies={**base.policies, name: dataclasses.replace(policy, batch=envs)})
    sized = next((size for policy in learning(base).values() if (size := policy.algorithm.group_size) is not None), None)
    if sized is not None and "envs_per_actor" not in given and not any(key.endswith("envs_per_actor") for key, _ in set_):
        base = alter(base, envs_per_actor=sized)
    made = any(isinstance(given, Algorithm) for given in several.values())  # which says its minibatches itself
    if tuned is None and not (whole or made) and not any(key.endswith("minibatches") for key, _ in set_):
        learners = {name: cut(policy) for name, policy in learning(base).items()}
        base = dataclasses.replace(base, policies={**base.policies, **learners})
    check_program(base)
    check_read(base, [key for key, _ in set_])
    return base


def configured(file: str | os.PathLike[str], *, settings: Settings = (), trust: Sequence[str] = (), **fields: Any) -> Program:
    """The checked ``Program`` of a file (TOML, JSON, or a run's ``run.json``), with ``fields`` and ``settings`` laid over it.

    ``fields`` and ``settings`` are as those of ``program``. ``trust``: modules and ``module:callable`` that the file may name.
    """
    base = read_config(Path(file), trusted=trust)
    given = read_fields({k: v for k, v in fields.items() if v is not None or k == "max_lag"}, base, _OF_POLICY)
    of_policy = {k: given.pop(k) for k in _OF_POLICY if k in given}
    mask = {"source.env.action_mask": given.pop("action_mask")} if "action_mask" in given else {}
    changed = {
        name: dataclasses.replace(policy, **of_policy) if isinstance(policy, Policy) else policy
        for name, policy in base.policies.items()
    }
    set_, before = pairs(settings), replaced(dataclasses.replace(alter(base, **given), policies=changed), mask)
    check_replays(before, [key for key, _ in set_])
    made = apply_settings(before, settings)
    _agree({**given, **of_policy}, made, set_)
    check_program(made)
    check_read(made, [key for key, _ in set_])
    return made


def _with_central(env: str | Callable[..., Any], algorithm: str | None, **options: Any) -> Program:
    """``program`` with central inference, so that it may have that's settings too; where that cannot be, with local.

    ValueError where there are such settings, and central cannot be.
    """
    try:
        return program(env, algorithm, **{**options, "inference": "central"})
    except ValueError:
        if any("inference_" in name for name in (*options, *(key for key, _ in pairs(options.get("settings", ()))))):
            raise
        return program(env, algorithm, **options)


def read_fields(fields: Mapping[str, Any], base: Program, also: Sequence[str] = ()) -> dict[str, Any]:
    """Fields of a ``Program``, and of ``also``, in their types; TypeError for a name that is none of them."""
    settable = setting_types(base)
    kinds = {name: fact.kind for name, (_, fact) in shorts().items()} | {name: settable[name] for name in also}
    kinds |= {name: field_types(Program)[name] for name in ("policies", "route")}
    of_run = {name: fact for name, (_, fact) in shorts().items()}
    for name in sorted(fields.keys() - kinds.keys()):
        for room in ("algorithm", "optimizer", "rewards"):
            if (key := f"{room}.{name}") in settable:
                raise TypeError(f"{name!r} is the {room}'s: expected settings={{{key!r}: {fields[name]!r}}}")
        raise TypeError(f"unknown option {name!r}{_peer_hint(name, fields[name], settable) or hint(name, kinds)}")
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in fields.items()}
    return {
        name: value
        if name == "policies"
        else asked(value, of_run[name], name)
        if name in of_run
        else convert(value, kinds[name], name)
        for name, value in plain.items()
    }


def _peer_hint(name: str, value: Any, settable: Collection[str]) -> str:
    """What peers call so, as an argument, as a setting or in words; empty where it is not theirs."""
    if option := option_of_peer(name):
        return f"; it is {option!r} here"
    key, note = key_of_peer(name, settable)
    if not key:
        return f"; {words}" if (words := words_of_peer(name)) else ""
    short = {key: name for name, (key, _) in shorts().items()}.get(key) or key.removeprefix("policy.")
    said = f"{short!r}" if "." not in short else f"settings={{{key!r}: {value!r}}}"
    return f"; it is {said} here" + (f" ({note})" if note else "")


def _agree(given: Mapping[str, Any], base: Program, settings: Sequence[tuple[str, Any]]) -> None:
    """ValueError where an option and a setting say different things of one field."""
    one = next(iter(learning(base).values()))
    named = {key: name for name, (key, _) in shorts().items()}
    for key, _ in settings:
        name = named.get(key, key.removeprefix("policy."))
        if name not in given or (given[name] == AUTO.word and name in base.placement.auto):
            continue
        if (now := getattr(one, name) if name in _OF_POLICY else valued(base, key)) != given[name]:
            raise ValueError(f"{name}: expected to be given once, got {given[name]!r} and, by the setting {key}, {now!r}")


def _usual(policies: Iterable[Any]) -> str:
    """The algorithm whose defaults a program has, where none is named."""
    classes = [
        algorithm_class(one) if isinstance(one, str) else type(one) for one in policies if isinstance(one, str | Algorithm)
    ]
    return algorithm_name(classes[0]) if classes and all(cls.needs_replay for cls in classes) else "ppo"


def _algorithms(policies: Iterable[Any]) -> set[type[Algorithm]]:
    """The classes of those that learn."""
    named = (given.algorithm if isinstance(given, Policy) else given for given in policies if not isinstance(given, Frozen))
    return {algorithm_class(one) if isinstance(one, str) else type(one) for one in named}


def _sets_batch(key: str) -> bool:
    return key in ("batch", "policy.batch") or (key.startswith("policies.") and key.endswith(".batch"))


def _read_policies(texts: Sequence[str]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, what in map(_read_policy, texts):
        if name in read:
            raise ValueError(f"policy {name!r}: expected to be given once, got {read[name]!r} and {what!r}")
        read[name] = what
    return read


def _read_policy(text: str) -> tuple[str, str | Frozen]:
    """Parse "NAME=ppo" or "NAME=past:OTHER"."""
    name, separator, what = (part.strip() for part in text.partition("="))
    if not (name and separator and what):
        said = algorithm_of_peer(text, ())
        raise ValueError(f"policy {text!r}: expected NAME=ALGORITHM or NAME=past:OTHER, such as opponent=past:main{said}")
    kind, _, other = what.partition(":")
    return name, Frozen(of=other) if kind == "past" else what


def _policy(given: str | Algorithm | Policy | Frozen, like: Policy) -> Policy | Frozen:
    """What stands for a policy, with the sizes of ``like`` where it has none."""
    if isinstance(given, Policy | Frozen):
        return given
    if isinstance(given, str):
        if algorithm_class(given) is type(like.algorithm):  # the recipe's settings fit
            return like
        given = algorithm_class(given)()
    return dataclasses.replace(like, algorithm=given, optimizer=given.default_optimizer, rewards=Rewards())


def check(
    env: str | Callable[..., Any],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    settings: Settings = (),
    steps: int = STEPS,
    seed: int = 0,
    seconds: float = SECONDS,
) -> CheckReport:
    """What is wrong with an env, and what it will cost: ``report.ok``, ``report.findings``, ``report.facts``.

    ``env``, ``env_kwargs`` and, in ``settings``, ``env.*`` and ``action_mask`` are those of ``program``; ``steps`` go into each
    of several walks. After ``seconds`` no call of the env begins, and ``report.left_out`` says what was not looked at.

    The env is called in this process: if it crashes or hangs, so does the caller. The command ``equipoise check`` lets a child
    process call it, and reports that as a finding.
    """
    target = env if isinstance(env, str) else _target(env)
    return check_env(env_of(target, settings, env_kwargs), steps=steps, seed=seed, seconds=seconds)


def _target(function: Callable[..., Any]) -> str:
    if not hasattr(function, "__qualname__") and hasattr(function, "step") and hasattr(function, "reset"):
        raise TypeError(
            f"expected what makes an env, since every worker makes its own, got {function}, which is made already; "
            "give its id, its class, or a function at the top of a module that returns it"
        )
    if not hasattr(function, "__qualname__"):
        raise TypeError(f"expected a target such as 'CartPole-v1' or a function that makes an env, got {function!r}")
    name = f"{function.__module__}:{function.__qualname__}"
    if "<" in name:
        raise ValueError(f"expected a function at the top of a module, so that workers can import it, got {name}")
    return name


MEASURED = {"placement.precision": AUTO.word, "placement.threads": AUTO.word}
QUEUE = {"policy.unroll": 64, "policy.batch": 32, "placement.actors": 2, "placement.envs_per_actor": 16, "placement.max_lag": 1}
TEXT = {  # groups of eight samples, 32 of them an update
    "policy.unroll": 1, "policy.batch": 256, "placement.actors": 1, "placement.envs_per_actor": 8, "placement.max_lag": 1,
}  # fmt: skip
WORLDS = {"placement.actors": 1, "placement.envs_per_actor": 1}  # one world: a stream without one gives nothing
REPLAY = {  # four streams, and an update a step
    "policy.unroll": 1, "policy.batch": 256, "replay.updates": 4,
    "placement.actors": 1, "placement.envs_per_actor": 4, "placement.max_lag": 1,
}  # fmt: skip
# Over these, where the env is on a device: one rollout of many streams.
ON_DEVICE = {"policy.unroll": 32, "placement.actors": 1, "placement.envs_per_actor": 1_024}
REPLAY_ON_DEVICE = {"placement.actors": 1, "placement.envs_per_actor": 64, "replay.updates": 64}


def _default(target: str, algorithm: str) -> Program:
    """What a run without a recipe starts from: the defaults of the algorithm over those of its kind."""
    cls = algorithm_class(algorithm)
    policy = Policy(algorithm=cls(), unroll=1, batch=1, replay=ReplaySettings() if cls.needs_replay else None)
    if cls.needs_task:
        return apply_settings(Program(source=TaskSource(task=target), policies={"main": policy}), {**TEXT, **cls.defaults})
    start = Program(source=EnvSource(env=EnvFactory(target=target)), policies={"main": policy})
    usual, there = (REPLAY, REPLAY_ON_DEVICE) if cls.needs_replay else (QUEUE, ON_DEVICE)
    there = WORLDS if start.outside else there if start.env.on_device else {}
    return apply_settings(start, {**MEASURED, **usual, **cls.defaults, **there})
