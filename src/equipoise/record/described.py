"""Run directories of a folder, and what a run's program says as run.json has it. Nothing that it names is imported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from equipoise.record.paths import RUN

DEEPEST = 3  # folders between the place that is listed and a run
OF_A_POLICY = ("algorithm", "optimizer", "rewards", "replay")  # rooms of their own in ``--set``


def directories(place: Path) -> Iterator[Path]:
    """Every run directory in and below a folder, in the order of their names."""
    if (place / RUN).is_file():
        yield place
        return
    yield from _below(place, DEEPEST)


def _below(place: Path, depth: int) -> Iterator[Path]:
    for entry in sorted(place.iterdir()):
        if entry.is_symlink() or not entry.is_dir():
            continue
        if (entry / RUN).is_file():
            yield entry
        elif depth > 1:
            yield from _below(entry, depth - 1)


def env_of(program: Mapping[str, Any]) -> str:
    """The name of what a run of this program, as run.json has it, learns from: an env, recorded rows, a task of text."""
    source = program["source"]
    return str((source.get("env") or {}).get("target") or source.get("dataset") or source.get("task"))


def algorithm_of(program: Mapping[str, Any]) -> str:
    """The name of its algorithm; several with a plus between them."""
    names = [policy["algorithm"]["name"] for policy in program["policies"].values() if "algorithm" in policy]
    return "+".join(dict.fromkeys(map(str, names)))


def flat(program: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a program by their names in ``--set``, in the order of the file; values as JSON."""
    found: dict[str, str] = {}

    def put(name: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                put(f"{name}.{key}" if name else str(key), item)
        elif not isinstance(value, Mapping):
            found[name] = value if isinstance(value, str) else json.dumps(value)

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
