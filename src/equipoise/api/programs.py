"""Making a checked ``Program``, and checking an env: ``program``, ``check``."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Unpack

from gymnasium.envs.registration import EnvSpec as Registration

from equipoise.api.draft import finished, from_file, from_recipe
from equipoise.api.options import Fields, Given, ProgramOptions, check_shapes, expanded
from equipoise.api.references import reference
from equipoise.api.settings_of_python import REPLAY_MEMORY
from equipoise.envs.check.check import SECONDS, STEPS, check_env
from equipoise.envs.check.report import Report as CheckReport
from equipoise.facts import values_of
from equipoise.foreign import has
from equipoise.programs.peer_names import algorithm_of_peer
from equipoise.programs.program import algorithm_name
from equipoise.programs.settings import Settings, check_env_given_once, env_of, pairs
from equipoise.types import Algorithm, Frozen, Learns, Policy, Program

__all__ = ["Chosen", "Env", "check", "configured", "made_program", "program", "target_of"]

Env = str | Callable[..., object]  # an id, or a class or function that makes an env
Chosen = str | type[Algorithm] | Algorithm  # a name, a class or an instance
# options that are not fields of a program
APART = ("env_kwargs", "policies", "recipe")


@expanded(ProgramOptions)
def program(
    env: Env | None = None, algorithm: Chosen | None = None, **options: Unpack[ProgramOptions]
) -> Program:
    """Make a checked ``Program``, the whole of a run as data, and train nothing.

    Args:
        env: As for ``train``.
        algorithm: As for ``train``.
        options: Settings, as for ``train``; each is listed below.

    Returns:
        The program, which ``train`` and ``start`` take in place of an env.

    Raises:
        TypeError: An option is unknown, or the env is an instance.
        ValueError: A value cannot be, or two settings contradict each other.

    Example:
        >>> eq.program("CartPole-v1", "ppo", steps=2_000).schedule.steps
        2000
    """
    return made_program(env, algorithm, options)


def made_program(
    env: Env | None, algorithm: Chosen | None, options: ProgramOptions, also: Collection[str] = ()
) -> Program:
    """The program of these options; ``also``: names of options that are read elsewhere."""
    check_shapes(options)
    settings, fields = _fields(options)
    fields = {name: value for name, value in fields.items() if name not in APART}
    env_kwargs = options.get("env_kwargs")
    task = fields.pop("task", None)
    if env is None and task is None:
        raise TypeError("must have an env, such as 'CartPole-v1', or a task, got neither")
    if env is not None and task is not None:
        raise TypeError(f"must have an env or a task, got {env!r} and task={task!r}")
    check_env_given_once(settings, env_kwargs)
    if env is None:
        target = task if isinstance(task, str) else reference(task, "task")
        algorithm = "grpo" if algorithm is None else algorithm
    else:
        target = target_of(env)
    name, of_algorithm = named(algorithm)
    if of_algorithm:
        settings = together(of_algorithm, settings, "algorithm")
    policies = options.get("policies", ())
    several = policies if isinstance(policies, Mapping) else _read_policies(policies)
    return finished(
        from_recipe(
            target,
            name,
            {key: given_policy(one, key) for key, one in several.items()},
            recipe=options.get("recipe", True),
            settings=settings,
            env_kwargs=env_kwargs,
            fields=fields,
            also=also,
        )
    )


def named(algorithm: Chosen | None) -> tuple[str | None, dict[str, object]]:
    """The name of an algorithm, and the settings that its instance was given."""
    if algorithm is None or isinstance(algorithm, str):
        return algorithm, {}
    if isinstance(algorithm, type) and issubclass(algorithm, Learns):
        return algorithm_name(algorithm), {}
    if isinstance(algorithm, Learns):
        values = values_of(algorithm)
        given = {f"algorithm.{key}": values[key] for key in values if key in algorithm.given}
        return algorithm_name(type(algorithm)), given
    raise TypeError(
        "algorithm: must be a name such as 'ppo', or a class or an instance of "
        f"equipoise.algorithms, such as PPO(gamma=0.98), got {algorithm!r}"
    )


def together(given: Mapping[str, object], settings: Settings, where: str) -> dict[str, object]:
    """Settings by key, those of ``given`` among them; ValueError if both give one differently."""
    found = dict(pairs(settings))
    for key, value in given.items():
        if key in found and found[key] != value:
            raise ValueError(
                f"{key}: must be given once, got {value!r} by {where} and {found[key]!r} by "
                "settings; remove one"
            )
    return {**given, **found}


def given_policy(one: Given, name: str) -> str | Algorithm | Policy | Frozen:
    """One of several policies, named ``name``; a class becomes the name of its algorithm."""
    if isinstance(one, type) and issubclass(one, Learns):
        return algorithm_name(one)
    if isinstance(one, type) or not isinstance(one, str | Learns | Policy | Frozen):
        raise TypeError(
            f"policies: {name}: must be an algorithm, by name or as an object, a Policy or a "
            f"Frozen, got {one!r}"
        )
    return one


def _rewards(given: object) -> str | None:
    """Rewards as the setting names them: ``module:name``, with commas between."""
    if given is None or isinstance(given, str):
        return given
    several = given if isinstance(given, Sequence) and not isinstance(given, bytes) else [given]
    return ",".join(
        one if isinstance(one, str) else reference(one, "reward", main=False) for one in several
    )


@expanded(Fields)
def configured(
    file: str | os.PathLike[str], *, trust: Sequence[str] = (), **options: Unpack[Fields]
) -> Program:
    """Read the checked ``Program`` of a file, with options laid over it.

    Args:
        file: TOML, JSON, or the ``run.json`` of a run.
        trust: Modules and ``module:callable`` that the file may name.
        options: Settings, as for ``train``; each is listed below.

    Returns:
        The program, which ``train`` and ``start`` take in place of an env.

    Raises:
        ValueError: The file or a value cannot be.
        Untrusted: The file names code, and nothing shows that you wrote it.

    Example:
        >>> eq.configured(run.directory / "run.json", steps=4_096).schedule.steps
        4096
    """
    settings, fields = _fields(options)
    return finished(from_file(file, trust, settings, fields))


def _fields(options: Fields) -> tuple[Settings, dict[str, object]]:
    """The settings, and the fields of a run as their annotations have them."""
    fields: dict[str, object] = {**options}
    settings = options.get("settings", ())
    fields.pop("settings", None)
    if "reward" in fields:
        fields["reward"] = _rewards(fields["reward"])
    if (memory := fields.pop(REPLAY_MEMORY, None)) is not None:
        settings = together({"replay.memory": memory}, settings, REPLAY_MEMORY)
    return settings, fields


def check(
    env: Env,
    *,
    env_kwargs: Mapping[str, object] | None = None,
    settings: Settings = (),
    steps: int = STEPS,
    seed: int = 0,
    seconds: float = SECONDS,
) -> CheckReport:
    """Step an env, and report what is wrong with it and what it will cost.

    The env is called in this process: if it crashes or hangs, so does your program. The command
    ``equipoise check`` lets a child process call it, and reports that as a finding.

    Args:
        env: As for ``train``.
        env_kwargs: Arguments of the env.
        settings: ``env.KEY`` and ``source.env.action_mask``, as for ``train``.
        steps: Steps of each of several walks.
        seed: Seed of the walks.
        seconds: After this time no call of the env begins; ``report.left_out`` lists what was left
            out.

    Returns:
        A report: ``report.ok``, ``report.findings``, ``report.facts``.

    Raises:
        TypeError: The env is an instance.
        ValueError: The env is unknown, or a setting is not one of an env.

    Example:
        >>> eq.check("CartPole-v1", steps=50).ok
        True
    """
    return check_env(
        env_of(target_of(env), settings, env_kwargs), steps=steps, seed=seed, seconds=seconds
    )


def target_of(env: object) -> str:
    """The target of an env: an id as it is, or ``module:name`` of its class or function."""
    if isinstance(env, str):
        return env
    if isinstance(env, Registration):
        raise TypeError(
            f"env: must be an id or what makes an env, got the specification of {env.id}; give "
            f"{env.id!r}, and its arguments by env_kwargs"
        )
    if not isinstance(env, type) and has(env, "step", "reset"):
        raise TypeError(
            f"env: must be what makes an env, since every worker makes its own, got {env}, which "
            "is made already; give its id, its class, or a function that returns it, and arguments "
            "by env_kwargs={...}"
        )
    return reference(env, "env")


def _read_policies(texts: Sequence[str]) -> dict[str, Given]:
    read: dict[str, Given] = {}
    for name, what in map(_read_policy, texts):
        if name in read:
            raise ValueError(
                f"policy {name!r}: expected to be given once, got {read[name]!r} and {what!r}"
            )
        read[name] = what
    return read


def _read_policy(text: str) -> tuple[str, str | Frozen]:
    """Parse "NAME=ppo" or "NAME=past:OTHER"."""
    name, separator, what = (part.strip() for part in text.partition("="))
    if not (name and separator and what):
        said = algorithm_of_peer(text, ())
        raise ValueError(
            f"policy {text!r}: expected NAME=ALGORITHM or NAME=past:OTHER, such as "
            f"opponent=past:main{said}"
        )
    kind, _, other = what.partition(":")
    return name, Frozen(of=other) if kind == "past" else what
