"""Programs with pinned reward models and answers, and with whole paths, so that a resumed run reads
the same ones, whatever folder it is resumed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from equipoise.api.reward_of_run import FOLDER
from equipoise.facts import values_of
from equipoise.foreign import Foreign
from equipoise.language.models import COMMIT, is_shape, revision_of
from equipoise.language.stores import UPTO, is_store, last_row
from equipoise.language.task_files import SUFFIXES
from equipoise.programs.settings import apply_settings
from equipoise.registry import ALIASES
from equipoise.registry.reward_models import DIGITS, USUAL, at_version, place
from equipoise.sums import REGISTRY, RUN, with_models
from equipoise.types import Policy, Program

# ends of names: a version or a checkpoint's folder; an alias or a slash
PINNED = re.compile(rf"(/{FOLDER}/|@)[0-9a-f]{{{DIGITS}}}$")
ALIAS = re.compile(rf"@({'|'.join(ALIASES)})$|/+$")
# settings with a path, and of a source, those whose value is a path if it is there
PATHS = ("source.adapter", "source.engine_token_file", "source.engine_folder", "replay.file")
OR_NAMES = ("source.task", "source.dataset")
HELD_OUT = "held_out="  # the argument of a task with the name of a file


def pinned(made: Program, found: Callable[[str], Path]) -> Program:
    """Return the program with its reward models and answers pinned.

    A version replaces an alias, the folder of a reward model replaces a run, and a store gets its
    newest row. ``found`` returns the folder of a run's reward model.
    """

    def fixed(name: str) -> str:
        if name.startswith(REGISTRY):
            place(name)
            return _whole_model(at_version(name))
        return _whole_model(f"{RUN}{found(name.removeprefix(RUN))}")

    if is_store(task := _task(made)) and not (given := _row_of(made)):
        given = [f"{UPTO}={last_row(task)}"]
        made = apply_settings(made, {"source.arguments": given})
    return _with_models(made, fixed)


def with_whole_paths(made: Program) -> Program:
    """Return the program with whole paths of the files and folders that it names."""
    changed: dict[str, object] = {
        key: _whole(str(value)) for key in PATHS if (value := _value(made, key))
    }
    for key in OR_NAMES:
        named = str(_value(made, key) or "")
        if named and (is_store(named) or _is_file(named) or Path(named).expanduser().is_dir()):
            changed[key] = _whole(named)
    if "source.task" in changed:
        changed["source.arguments"] = [*map(_whole_argument, _value(made, "source.arguments"))]
    return apply_settings(made, changed) if changed else made


def _is_file(named: str) -> bool:
    """Is this the name of a file of prompts that is there?"""
    return named.endswith(SUFFIXES) and Path(named).expanduser().is_file()


def _value(made: Program, key: str) -> Foreign:
    """Return the value of a setting, or None if the program has no such setting."""
    room, _, name = key.rpartition(".")
    return values_of(part).get(name) if (part := getattr(made, room, None)) is not None else None


def _whole_argument(text: str) -> str:
    """Return an argument of a file of prompts with a whole path."""
    name, _, value = text.partition("=")
    return f"{HELD_OUT}{_whole(value.strip())}" if f"{name.strip()}=" == HELD_OUT else text


def _whole_model(name: str) -> str:
    """Return the name of a reward model with a whole path."""
    if not name.startswith(REGISTRY):
        return f"{RUN}{_whole(name.removeprefix(RUN))}"
    folder, _, last = name.removeprefix(REGISTRY).rpartition("/")
    return f"{REGISTRY}{_whole(folder or USUAL)}/{last}"


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
    for key in ("source.model", *PATHS, *OR_NAMES):
        mine, kept = (str(_value(one, key) or "") for one in (made, was))
        if mine and mine != kept and _whole(mine) == kept:  # the folder itself may be gone
            made = apply_settings(made, {key: kept})
    if (given := _value(made, "source.arguments")) and _task(made) == _task(was):
        whole = [*map(_whole_argument, given)]
        if whole == [*_value(was, "source.arguments")]:
            made = apply_settings(made, {"source.arguments": whole})
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
        lambda name: (
            name
            if PINNED.search(name)
            else table.get(ALIAS.sub("", _whole_model(name)), _whole_model(name))
        ),
    )
