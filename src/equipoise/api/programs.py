"""Making a checked ``Program``, and checking an env: ``program``, ``check``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from equipoise.api.draft import Given, finished, from_file, from_recipe
from equipoise.envs.check.check import SECONDS, STEPS, check_env
from equipoise.envs.check.report import Report as CheckReport
from equipoise.foreign import has
from equipoise.programs.peer_names import algorithm_of_peer
from equipoise.programs.settings import Settings, check_env_given_once, env_of
from equipoise.types import Frozen, Program

__all__ = ["check", "configured", "program"]


def program(
    env: str | Callable[..., object],
    algorithm: str | None = None,
    *,
    env_kwargs: Mapping[str, object] | None = None,
    settings: Settings = (),
    recipe: bool = True,
    policies: Mapping[str, Given] | Sequence[str] = (),
    **fields: object,
) -> Program:
    """A checked ``Program``: the recipe for this env and algorithm where there is one, with
    ``fields`` and ``settings``.

    ``policies`` are several, of an env of several agents: each the name of an algorithm, an
    ``Algorithm`` (both with the unroll and the batch of the others), a ``Policy``, or ``Frozen``;
    or texts like "NAME=ppo" and "NAME=past:OTHER". The field ``route`` says which agents are whose.
    ``algorithm`` is then one of theirs, whose recipe is taken: by default "ppo", or the first one
    where all learn from replays.

    ``env`` is a target (see ``equipoise.envs.making``) or a function at the top of a module;
    ``fields`` are the settings of the run by the names of their options (``actors``,
    ``evaluate_every``), and ``unroll``, ``batch``, ``publish_every`` of its policy; None means "not
    given" except for ``max_lag``; they may be texts, as on the command line, and some may be "auto"
    (docs/guides/choices.md). ``env_kwargs`` are laid over those of the recipe, as ``env.KEY`` among
    the settings is. ``settings`` are texts like ``"algorithm.gamma=0.98"``, or a dict of such keys.
    What both say they have to say alike. A batch that is not given is one unroll of every stream.
    Without a recipe a large batch of an algorithm with ``minibatch_rows`` is cut into up to 32
    minibatches.
    """
    check_env_given_once(settings, env_kwargs)
    several = dict(policies) if isinstance(policies, Mapping) else _read_policies(policies)
    target = env if isinstance(env, str) else _target(env)
    return finished(
        from_recipe(
            target,
            algorithm,
            several,
            recipe=recipe,
            settings=settings,
            env_kwargs=env_kwargs,
            fields=fields,
        )
    )


def configured(
    file: str | os.PathLike[str],
    *,
    settings: Settings = (),
    trust: Sequence[str] = (),
    **fields: object,
) -> Program:
    """The checked ``Program`` of a file (TOML, JSON, or a run's ``run.json``), with ``fields`` and
    ``settings`` laid over it.

    ``fields`` and ``settings`` are as those of ``program``. ``trust``: modules and
    ``module:callable`` that the file may name.
    """
    return finished(from_file(file, trust, settings, fields))


def check(
    env: str | Callable[..., object],
    *,
    env_kwargs: Mapping[str, object] | None = None,
    settings: Settings = (),
    steps: int = STEPS,
    seed: int = 0,
    seconds: float = SECONDS,
) -> CheckReport:
    """What is wrong with an env, and what it will cost: ``report.ok``, ``report.findings``,
    ``report.facts``.

    ``env``, ``env_kwargs`` and, in ``settings``, ``env.*`` and ``action_mask`` are those of
    ``program``; ``steps`` go into each of several walks. After ``seconds`` no call of the env
    begins, and ``report.left_out`` says what was not looked at.

    The env is called in this process: if it crashes or hangs, so does the caller. The command
    ``equipoise check`` lets a child process call it, and reports that as a finding.
    """
    target = env if isinstance(env, str) else _target(env)
    return check_env(env_of(target, settings, env_kwargs), steps=steps, seed=seed, seconds=seconds)


def _target(function: Callable[..., object]) -> str:
    named = has(function, "__qualname__")
    if not named and has(function, "step", "reset"):
        raise TypeError(
            f"expected what makes an env, since every worker makes its own, got {function}, which "
            "is made already; "
            "give its id, its class, or a function at the top of a module that returns it"
        )
    if not named:
        raise TypeError(
            "expected a target such as 'CartPole-v1' or a function that makes an env, got "
            f"{function!r}"
        )
    name = f"{function.__module__}:{function.__qualname__}"
    if "<" in name:
        raise ValueError(
            f"expected a function at the top of a module, so that workers can import it, got {name}"
        )
    return name


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
