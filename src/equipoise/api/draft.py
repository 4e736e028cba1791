"""A program on its way: what the user gave, and the named steps by which that becomes a checked
``Program``.

A draft begins with a recipe (``from_recipe``) or with a file (``from_file``) and then goes through
``STEPS``, the same for both. Each step takes a draft and returns the next one; ValueError where
something that was given cannot be.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from equipoise import recipes
from equipoise.facts import AUTO, facts, values_of
from equipoise.hints import hint, nearest
from equipoise.language.stores import as_path
from equipoise.language.tasks import BUILT_IN
from equipoise.programs.config_file import read_config
from equipoise.programs.fields import alter, replaced, shorts, valued
from equipoise.programs.peer_names import key_of_peer, option_of_peer, words_of_peer
from equipoise.programs.program import (
    algorithm_class,
    algorithm_name,
    algorithm_names,
    text_algorithm_names,
)
from equipoise.programs.refusals import check, check_read, check_replays, problems, unread
from equipoise.programs.settings import (
    Settings,
    apply_settings,
    asked,
    convert,
    field_types,
    pairs,
    setting_types,
)
from equipoise.tuning.sizing import cut
from equipoise.types import (
    PROXY,
    Algorithm,
    CallSource,
    EnvFactory,
    EnvSource,
    Frozen,
    Policy,
    Program,
    ReplaySettings,
    Rewards,
    TaskSource,
    first_learning,
    learning,
)

Fields = Mapping[str, object]  # by the names of options
# what stands for a policy: the name of an algorithm, or more of it
Given = str | Algorithm | Policy | Frozen

OF_POLICY = ("unroll", "batch", "publish_every")
REWARD = "rewards.sum"  # the setting of the option reward, unless the run is on text


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A program, and what the user gave for it."""

    program: Program
    begun: Literal["defaults", "recipe", "file"]  # what ``program`` was before the first step
    fields: Fields  # typed from the step ``options`` on
    settings: Settings = ()
    env_kwargs: Fields = field(default_factory=dict)
    # several; empty: those of ``program``
    policies: Mapping[str, Given] = field(default_factory=dict)
    algorithm: str | None = None  # as it was given, where it was
    # names that the caller reads itself, for the error of an unknown one
    also: Collection[str] = ()

    @property
    def keys(self) -> list[str]:
        """The keys of the settings."""
        return [key for key, _ in pairs(self.settings)]

    def sets(self, name: str) -> bool:
        """Return whether an option or a setting gives this field."""
        return name in self.fields or any(key.endswith(name) for key in self.keys)

    def having(self, program: Program) -> Draft:
        return dataclasses.replace(self, program=program)


# --------------------------------------------------------------------------------------- beginnings


def from_recipe(
    target: str,
    algorithm: str | None,
    policies: Mapping[str, Given],
    *,
    recipe: bool,
    settings: Settings,
    env_kwargs: Fields | None,
    fields: Fields,
    also: Collection[str] = (),
) -> Draft:
    """Begin with the recipe for this env and algorithm, or else the algorithm's defaults."""
    if (named := target.lower()) in algorithm_names():
        raise ValueError(
            f"env {target!r}: expected an env, got the name of an algorithm: equipoise train ENV "
            f"--algorithm {named}"
        )
    if target in BUILT_IN and not (algorithm is not None and algorithm_class(algorithm).needs_task):
        named = ", ".join(text_algorithm_names())
        raise ValueError(
            f"{target}: expected an algorithm for this task of text, one of {named}, got "
            f"{algorithm or 'none'}"
        )
    name = algorithm or _usual(policies.values())
    tuned = recipes.find(target, name) if recipe else None
    return Draft(
        program=apply_settings(_default(target, name), tuned or {}),
        begun="defaults" if tuned is None else "recipe",
        fields=_not_none(fields),
        settings=settings,
        env_kwargs=env_kwargs or {},
        policies=policies,
        algorithm=algorithm,
        also=also,
    )


def from_file(
    file: str | os.PathLike[str], trust: Sequence[str], settings: Settings, fields: Fields
) -> Draft:
    """The draft that begins with the program of a file, which says every size itself."""
    base = read_config(Path(file), trusted=trust)
    return Draft(program=base, begun="file", fields=_not_none(fields), settings=settings)


def _not_none(fields: Fields) -> Fields:
    """Fields that were given: None is "not given", except for ``max_lag``."""
    return {name: value for name, value in fields.items() if value is not None or name == "max_lag"}


# -------------------------------------------------------------------------------------------- steps


def options(draft: Draft) -> Draft:
    """Lay the fields over the program, and give every policy its sizes."""
    base = draft.program
    given = read_fields(draft.fields, base, OF_POLICY, known=draft.also)
    run = {name: value for name, value in given.items() if name not in OF_POLICY}
    if tasks := [one.algorithm for one in learning(base).values() if one.algorithm.needs_task]:
        wrong = [name for name in ("action_mask", "metrics") if name in run] + [
            "env_kwargs"
        ] * bool(draft.env_kwargs)
        if wrong:
            name = algorithm_name(type(tasks[0]))
            raise ValueError(
                f"{wrong[0]}: expected none with {name}, which learns from a task and steps no env"
            )
    summed = None if tasks else run.pop("reward", None)
    made = alter(base, **run)
    if draft.env_kwargs:
        made = replaced(made, {"source.env.kwargs": {**made.env.kwargs, **draft.env_kwargs}})
    sizes = {name: value for name, value in given.items() if name in OF_POLICY}
    policies = {
        name: dataclasses.replace(one, **sizes) if isinstance(one, Policy) else one
        for name, one in made.policies.items()
    }
    if draft.policies:
        _check_algorithm(draft)
        like = next(one for one in policies.values() if isinstance(one, Policy))
        policies = {name: _policy(one, like) for name, one in draft.policies.items()}
    program = dataclasses.replace(made, policies=policies)
    if summed is not None:
        program = apply_settings(program, {REWARD: summed})
    return dataclasses.replace(draft, program=program, fields=given)


def settings(draft: Draft) -> Draft:
    """Lay the settings over the program."""
    check_replays(draft.program, draft.keys)
    return draft.having(apply_settings(draft.program, draft.settings))


def agreement(draft: Draft) -> Draft:
    """Refuse an option and a setting that say different things of one field."""
    given, base = draft.fields, draft.program
    of_policy = values_of(first_learning(base))
    named = {key: name for name, (key, _) in shorts().items()} | {REWARD: "reward"}
    of_policy[REWARD] = first_learning(base).rewards.sum
    for key in draft.keys:
        name = named.get(key, key.removeprefix("policy."))
        if name not in given or (given[name] == AUTO.word and name in base.placement.auto):
            continue
        place = key if key == REWARD else name
        if (now := of_policy[place] if place in of_policy else valued(base, key)) != given[name]:
            raise ValueError(
                f"{name}: expected to be given once, got {given[name]!r} and, by the setting "
                f"{key}, {now!r}"
            )
    return draft


def sizes(draft: Draft) -> Draft:
    """Fit the sizes that were left open to the given ones; a file leaves none open."""
    if draft.begun == "file":
        return draft
    for step in (batch, group, lag, minibatches):
        draft = step(draft)
    return draft


def batch(draft: Draft) -> Draft:
    """A batch that was not given is one unroll of all streams, or the recipe's if that fits."""
    base, place = draft.program, draft.program.placement
    envs, whole = (
        base.actors * place.envs_per_actor,
        any(isinstance(one, Policy) for one in draft.policies.values()),
    )
    if (
        not envs
        or base.source.played is None
        or whole
        or "batch" in draft.fields
        or any(map(_sets_batch, draft.keys))
    ):
        return draft
    policies = dict(base.policies)
    for name, policy in learning(base).items():
        if policy.replay is not None:
            continue
        # a batch that leaves some actors without a slot
        idle = place.max_lag is not None and envs > policy.batch * (place.max_lag + 1)
        if draft.begun == "defaults" or policy.batch % place.envs_per_actor or idle:
            policies[name] = dataclasses.replace(policy, batch=envs)
    return draft.having(dataclasses.replace(base, policies=policies))


def group(draft: Draft) -> Draft:
    """An actor's streams are one group, if the algorithm learns from groups, unless given."""
    found = (policy.algorithm.group_size for policy in learning(draft.program).values())
    size = next((size for size in found if size is not None), None)
    return (
        draft
        if size is None or draft.sets("envs_per_actor")
        else draft.having(alter(draft.program, envs_per_actor=size))
    )


def lag(draft: Draft) -> Draft:
    """Learners that generate have the newest weights, so ``max_lag`` is 0 unless it is given."""
    together = draft.program.placement.text == "together" and not draft.sets("max_lag")
    return draft.having(alter(draft.program, max_lag=0)) if together else draft


def minibatches(draft: Draft) -> Draft:
    """Cut a large batch, unless a recipe, a policy or an ``Algorithm`` has minibatches."""
    said = any(isinstance(one, Policy | Algorithm) for one in draft.policies.values())
    if draft.begun == "recipe" or said or draft.sets("minibatches"):
        return draft
    cuts = {name: cut(policy) for name, policy in learning(draft.program).items()}
    return draft.having(
        dataclasses.replace(draft.program, policies={**draft.program.policies, **cuts})
    )


def inference(draft: Draft) -> Draft:
    """If ``inference`` is auto the program is central, so that it may have central's settings; if
    it cannot be, it is local.

    ValueError says why it cannot be central, where a setting of central inference was given.
    """
    if "inference" not in draft.program.placement.auto:
        return draft
    central = draft.having(alter(draft.program, inference="central"))
    if problems(central.program) or unread(central.program, draft.keys):
        return (
            checks(central)
            if any("inference_" in name for name in (*draft.fields, *draft.keys))
            else draft
        )
    return draft.having(alter(central.program, inference=AUTO.word))


def checks(draft: Draft) -> Draft:
    """Refuse a program that cannot work, and a setting that nothing would read."""
    check(draft.program)
    place = draft.program.placement
    if draft.sets("actors") and (place.text == "together" or "text" in place.auto):
        why = "which chooses them" if "text" in place.auto else "where each learner generates"
        got = "auto" if "text" in place.auto else place.text
        raise ValueError(
            f"actors: must be left out with placement={got}, {why}, got {place.actors}; or use "
            "--placement apart"
        )
    check_read(draft.program, draft.keys)
    return draft


STEPS: tuple[Callable[[Draft], Draft], ...] = (
    options,
    settings,
    agreement,
    sizes,
    inference,
    checks,
)


def finished(draft: Draft) -> Program:
    """The checked program of a draft."""
    for step in STEPS:
        draft = step(draft)
    return draft.program


# ------------------------------------------------------------------------------------------ options


def read_fields(
    fields: Fields, base: Program, also: Sequence[str] = (), known: Collection[str] = ()
) -> dict[str, Any]:
    """Fields of a ``Program``, and of ``also``, in their types; TypeError for other names.

    ``known``: names that are no fields, which the error may suggest.
    """
    settable = setting_types(base)
    kinds = {name: fact.kind for name, (_, fact) in shorts().items()} | {
        name: settable[name] for name in also
    }
    kinds |= {name: field_types(Program)[name] for name in ("policies", "route")}
    of_run = {name: fact for name, (_, fact) in shorts().items()}
    for name in sorted(fields.keys() - kinds.keys()):
        for room in ("algorithm", "optimizer", "rewards"):
            if (key := f"{room}.{name}") in settable:
                raise TypeError(
                    f"{name!r} is the {room}'s: expected settings={{{key!r}: {fields[name]!r}}}"
                )
        said = (
            _peer_hint(name, fields[name], settable)
            or _setting_hint(name, fields[name], settable, [*kinds, *known])
            or hint(name, [*kinds, *known])
        )
        raise TypeError(f"unknown option {name!r}{said}")
    plain = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in fields.items()
    }
    return {
        name: value
        if name == "policies"
        else asked(value, of_run[name], name)
        if name in of_run
        else convert(value, kinds[name], name)
        for name, value in plain.items()
    }


def _setting_hint(
    name: str, value: object, settable: Collection[str], options: Collection[str]
) -> str:
    """The setting of an algorithm, optimizer or reward that is nearest, if no option is near."""
    if nearest(name, options) is not None:
        return ""
    keys = {
        key.partition(".")[2]: key
        for key in settable
        if key.partition(".")[0] in ("algorithm", "optimizer", "rewards")
    }
    near = nearest(name, keys)
    return f"; did you mean settings={{{keys[near]!r}: {value!r}}}?" if near else ""


def _peer_hint(name: str, value: object, settable: Collection[str]) -> str:
    """The name here of another library's argument, in words; "" for an unknown one."""
    if option := option_of_peer(name):
        return f"; it is {option!r} here"
    key, note = key_of_peer(name, settable)
    if not key:
        return f"; {words}" if (words := words_of_peer(name)) else ""
    short = {key: name for name, (key, _) in shorts().items()}.get(key) or key.removeprefix(
        "policy."
    )
    said = f"{short!r}" if "." not in short else f"settings={{{key!r}: {value!r}}}"
    return f"; it is {said} here" + (f" ({note})" if note else "")


# ----------------------------------------------------------------------------------------- policies


def _check_algorithm(draft: Draft) -> None:
    """ValueError for an algorithm that none of several policies has."""
    if draft.algorithm is not None and algorithm_class(draft.algorithm) not in (
        theirs := _algorithms(draft.policies.values())
    ):
        names = ", ".join(sorted(map(algorithm_name, theirs)))
        raise ValueError(
            f"algorithm: expected one that a policy has ({names}), since there are policies, got "
            f"{draft.algorithm!r}"
        )


def _usual(policies: Iterable[Given]) -> str:
    """The algorithm whose defaults a program has, where none is named."""
    classes = [
        algorithm_class(one) if isinstance(one, str) else type(one)
        for one in policies
        if isinstance(one, str | Algorithm)
    ]
    return (
        algorithm_name(classes[0])
        if classes and all(cls.needs_replay for cls in classes)
        else "ppo"
    )


def _algorithms(policies: Iterable[Given]) -> set[type[Algorithm]]:
    named = (
        given.algorithm if isinstance(given, Policy) else given
        for given in policies
        if not isinstance(given, Frozen)
    )
    return {algorithm_class(one) if isinstance(one, str) else type(one) for one in named}


def _sets_batch(key: str) -> bool:
    return key in ("batch", "policy.batch") or (
        key.startswith("policies.") and key.endswith(".batch")
    )


def _policy(given: str | Algorithm | Policy | Frozen, like: Policy) -> Policy | Frozen:
    """The policy that was given, with the sizes of ``like`` where it has none."""
    if isinstance(given, Policy | Frozen):
        return given
    if isinstance(given, str):
        if algorithm_class(given) is type(like.algorithm):  # the recipe's settings fit
            return like
        given = algorithm_class(given)()
    return dataclasses.replace(
        like, algorithm=given, optimizer=given.default_optimizer, rewards=Rewards()
    )


MEASURED = {"placement.precision": AUTO.word, "placement.threads": AUTO.word}
QUEUE = {
    "policy.unroll": 64,
    "policy.batch": 32,
    "placement.actors": 2,
    "placement.envs_per_actor": 16,
    "placement.max_lag": 1,
}
TEXT = {  # groups of eight samples, 32 of them an update
    "policy.unroll": 1,
    "policy.batch": 256,
    "placement.actors": 1,
    "placement.envs_per_actor": 8,
    "placement.max_lag": 1,
}
CALLS = {"placement.max_lag": 4}  # the conversations of a group come one after the other
# one world: a stream without one gives nothing
WORLDS = {"placement.actors": 1, "placement.envs_per_actor": 1}
REPLAY = {  # four streams, and an update a step
    "policy.unroll": 1,
    "policy.batch": 256,
    "replay.updates": 4,
    "placement.actors": 1,
    "placement.envs_per_actor": 4,
    "placement.max_lag": 1,
}
# laid over QUEUE for an env on a device: one rollout of many streams
ON_DEVICE = {"policy.unroll": 32, "placement.actors": 1, "placement.envs_per_actor": 1_024}
REPLAY_ON_DEVICE = {"placement.actors": 1, "placement.envs_per_actor": 64, "replay.updates": 64}


def _default(target: str, algorithm: str) -> Program:
    """The defaults of the algorithm over the defaults of its kind, for a run without a recipe."""
    cls = algorithm_class(algorithm)
    if without := [name for name, fact in facts(cls).items() if fact.default is MISSING]:
        raise ValueError(
            f"algorithm {algorithm!r}: expected a default for each field, got none for "
            f"{', '.join(without)}"
        )
    policy = Policy(
        algorithm=cls(), unroll=1, batch=1, replay=ReplaySettings() if cls.needs_replay else None
    )
    if cls.needs_task:
        calls = target.startswith(PROXY)
        source = CallSource(task=target) if calls else TaskSource(task=as_path(target))
        return apply_settings(
            Program(source=source, policies={"main": policy}),
            {**TEXT, **(CALLS if calls else {}), **cls.defaults},
        )
    start = Program(source=EnvSource(env=EnvFactory(target=target)), policies={"main": policy})
    usual, there = (REPLAY, REPLAY_ON_DEVICE) if cls.needs_replay else (QUEUE, ON_DEVICE)
    there = WORLDS if start.outside else there if start.env.on_device else {}
    return apply_settings(start, {**MEASURED, **usual, **cls.defaults, **there})
