"""Run directories of a folder, and the facts of a run's program in run.json. Nothing that it names
is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.record.paths import RUN
from equipoise.schema import Anything, Each, Maybe, Number, Schema, Text, check

LONGEST = 160  # letters of a name from a run's files
DEEPEST = 3  # folders between the place that is listed and a run
OF_A_POLICY = ("algorithm", "optimizer", "rewards", "replay")  # rooms of their own in ``--set``


def directories(place: Path, closed: list[str] | None = None) -> Iterator[Path]:
    """Every run directory in and below a folder, in the order of their names.

    A folder that may not be read is an OSError, or a sentence in ``closed`` if that is given.
    """
    if (place / RUN).is_file():
        yield place
        return
    yield from _below(place, DEEPEST, closed)


def _below(place: Path, depth: int, closed: list[str] | None) -> Iterator[Path]:
    try:
        entries = sorted(place.iterdir())
    except OSError as error:
        if closed is None or depth == DEEPEST:
            raise
        closed.append(_unread(place, error))
        return
    for entry in entries:
        try:
            if entry.is_symlink() or not entry.is_dir():
                continue
            is_run = (entry / RUN).is_file()
        except OSError as error:  # its names may be read, and nothing behind them
            if closed is None:
                raise
            closed.append(_unread(entry, error))
            continue
        if is_run:
            yield entry
        elif depth > 1:
            yield from _below(entry, depth - 1, closed)


def _unread(place: Path, error: OSError) -> str:
    return f"{place}: expected a folder that can be read, got: {error.strerror}"


ANY = Anything()
PROGRAM: Schema = {
    "source": {"env?": Maybe(Each(ANY)), "*": ANY},
    "schedule": {"seed?": Maybe(Number(0, (1 << 63) - 1, whole=True)), "*": ANY},
    "policies": Each(
        {"algorithm?": {"name": Text(), "fields?": Maybe(Each(ANY)), "*": ANY}, "*": ANY}
    ),
    "*": ANY,
}


def checked(program: object, file: Path) -> Mapping[str, Any]:
    """The program of a ``run.json`` as far as a list of runs reads it; ValueError for another."""
    found: Mapping[str, object] = check(program, PROGRAM, f"{file}: program")
    return found


def env_of(program: Mapping[str, Any]) -> str:
    """The source that a run learns from, by its program in run.json: an env, recorded rows or a
    task.
    """
    source = program["source"]
    return str(
        (source.get("env") or {}).get("target") or source.get("dataset") or source.get("task")
    )


def algorithm_of(program: Mapping[str, Any]) -> str:
    """The name of its algorithm; several with a plus between them."""
    names = [
        policy["algorithm"]["name"]
        for policy in program["policies"].values()
        if "algorithm" in policy
    ]
    return "+".join(dict.fromkeys(map(str, names)))


def flat(program: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a program by their names in ``--set``, in the file's order; JSON values."""
    return {name: said(value) for name, value in settings_of(program).items()}


def said(value: object) -> str:
    """A value as ``--set`` has it."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def settings_of(program: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a program by their names in ``--set``, in the order of the file."""
    found: dict[str, object] = {}

    def put(name: str, value: object) -> None:
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                put(f"{name}.{key}" if name else str(key), item)
        elif not isinstance(value, Mapping):
            found[name] = value

    policies = program["policies"]
    for room, value in program.items():
        if room != "policies":
            put(str(room), value)
    for policy, given in policies.items():
        before = "" if len(policies) == 1 else f"{policy}."
        for key, value in given.items():
            if key == "algorithm" and isinstance(value, Mapping):
                value = {"name": value["name"], **(value.get("fields") or {})}
            put(before + str(key) if key in OF_A_POLICY else f"{before}policy.{key}", value)
    return found


def clipped(text: str, most: int = LONGEST) -> str:
    """Text of at most ``most`` letters: the middle of a longer one is left out."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def short_name(env: str, algorithm: str) -> str:
    """The name of runs of one env and algorithm."""
    return f"{clipped(env.rpartition(':')[2], 40)} {clipped(algorithm.rpartition(':')[2], 40)}"


def differing(settings: Sequence[Mapping[str, object]]) -> list[str]:
    """The settings in which some runs differ, in the order of the first that has them."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({said(one.get(key)) for one in settings}) > 1]


def _telling(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Two to four settings that distinguish the groups, the clearest first."""
    left, found, kinds = differing(settings), list[str](), 1
    while left and len(found) < 4 and (kinds < len(settings) or len(found) < 2):
        counts = {
            key: len({tuple(one.get(name) for name in (*found, key)) for one in settings})
            for key in left
        }
        best = max(left, key=counts.__getitem__)
        kinds = counts[best]
        left.remove(best)
        found.append(best)
    return found


def labels(groups: Sequence[tuple[str, Mapping[str, str]]]) -> list[str]:
    """A unique name for each group, from (name, settings): a repeated name gets settings."""
    names = []
    for name, mine in groups:
        keys = [
            key
            for key in _telling([other for other_name, other in groups if other_name == name])
            if key in mine
        ]
        names.append(
            clipped(
                name
                + "".join(f", {key.rpartition('.')[2]} {clipped(mine[key], 24)}" for key in keys),
                120,
            )
        )
    return [
        name if names.count(name) == 1 else f"{name} #{names[:i].count(name) + 1}"
        for i, name in enumerate(names)
    ]
