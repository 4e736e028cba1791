"""Programs with pinned reward models and answers, so that a resumed run reads the same ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from equipoise.api.reward_of_run import FOLDER
from equipoise.facts import values_of
from equipoise.language.models import COMMIT, is_shape, revision_of
from equipoise.language.stores import UPTO, is_store, last_row
from equipoise.programs.settings import apply_settings
from equipoise.registry import ALIASES
from equipoise.registry.reward_models import DIGITS, at_version, place
from equipoise.sums import REGISTRY, RUN, with_models
from equipoise.types import Policy, Program

# ends of names: a version or a checkpoint's folder; an alias or a slash
PINNED = re.compile(rf"(/{FOLDER}/|@)[0-9a-f]{{{DIGITS}}}$")
ALIAS = re.compile(rf"@({'|'.join(ALIASES)})$|/+$")


def pinned(made: Program, found: Callable[[str], Path]) -> Program:
    """Return the program with its reward models and answers pinned.

    A version replaces an alias, the folder of a reward model replaces a run, and a store gets its
    newest row. ``found`` returns the folder of a run's reward model.
    """

    def fixed(name: str) -> str:
        if name.startswith(REGISTRY):
            place(name)
            return at_version(name)
        folder = found(name.removeprefix(RUN))
        return name if folder == Path(name.removeprefix(RUN)).expanduser() else f"{RUN}{folder}"

    if is_store(task := _task(made)) and not (given := _row_of(made)):
        given = [f"{UPTO}={last_row(task)}"]
        made = apply_settings(made, {"source.arguments": given})
    return _with_models(made, fixed)


def with_commit(made: Program, revision: Callable[[str], str] = revision_of) -> Program:
    """Return the program with the commit of its model, if that is of the hub, or with the whole
    path of its folder: a relative one that is gone, or is read in another folder, would be taken
    for an id of the hub. ``revision``: gives the commit of a name, or "".
    """
    name = str(values_of(made.source).get("model", ""))
    if name and not is_shape(name) and Path(name).expanduser().is_dir():
        made = apply_settings(made, {"source.model": _whole(name)})
    elif commit := revision(name):
        made = apply_settings(made, {"source.model": f"{name.partition('@')[0]}@{commit}"})
    return made


def _whole(folder: str) -> str:
    """Return the whole path of a folder."""
    return str(Path(folder).expanduser().absolute())


def _task(made: Program) -> str:
    """Return the task of a program; "" if it has none."""
    return str(values_of(made.source).get("task", ""))


def _row_of(made: Program) -> list[str]:
    """Return the argument of a store with the last row of answers to read; [] if there is none."""
    given = values_of(made.source).get("arguments", ())
    return [one for one in given if one.startswith(f"{UPTO}=")]


def _with_models(made: Program, change: Callable[[str], str]) -> Program:
    """Return the program with the names of its reward models changed."""
    if not made.reward_models:
        return made
    if made.source.reward_models:
        sums = {key: str(values_of(made.source)[key]) for key in ("reward", "gold")}
        return apply_settings(
            made,
            {f"source.{key}": with_models(text, change) for key, text in sums.items() if text},
        )
    policies = {
        name: replace(one, rewards=replace(one.rewards, sum=with_models(one.rewards.sum, change)))
        if isinstance(one, Policy)
        else one
        for name, one in made.policies.items()
    }
    return replace(made, policies=policies)


def pinned_like(made: Program, was: Program) -> Program:
    """Return the program with the versions of reward models and the row of the store of ``was``.

    A version replaces an alias or a run; a version that the program names itself stays.
    """
    named = str(values_of(was.source).get("model", ""))
    mine = str(values_of(made.source).get("model", ""))
    if mine and mine != named and _whole(mine) == named:  # the folder itself may be gone
        made = apply_settings(made, {"source.model": named})
    if COMMIT.fullmatch(named):
        hub, _, commit = named.partition("@")
        same = re.compile(
            rf"{re.escape(hub)}(@(?![0-9a-f]{{40}}$).*)?"
        )  # of no commit, or a branch
        made = with_commit(made, lambda name: commit if same.fullmatch(name) else "")
    if is_store(task := _task(made)) and task == _task(was) and not _row_of(made):
        made = apply_settings(made, {"source.arguments": _row_of(was)})
    table = {PINNED.sub("", name): name for name in was.reward_models}
    return _with_models(
        made,
        lambda name: name if PINNED.search(name) else table.get(ALIAS.sub("", name), name),
    )
