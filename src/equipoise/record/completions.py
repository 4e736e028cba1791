"""``completions.json``: some answers of a text run's last evaluation, for a person to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from equipoise.files import json_bytes, read_json, write_atomic
from equipoise.schema import Each, Items, Maybe, Number, Schema, Text, check

COMPLETIONS = "completions.json"
MOST_BYTES = 1 << 20  # of the file
SCHEMA: Schema = {
    "step": Number(0, (1 << 63) - 1, whole=True),
    "samples": Items(
        {
            "prompt": Text(),
            "completion": Text(),
            "reward": Maybe(Number(-1e100, 1e100)),
            "rewards?": Each(Maybe(Number(-1e100, 1e100)), 100),
        }
    ),
}


def write_completions(directory: Path, step: int, samples: Sequence[Mapping[str, object]]) -> None:
    """Replace the file by the samples of the weights of ``step``, in one rename."""
    data = {"step": step, "samples": list(samples)}
    write_atomic(directory / COMPLETIONS, json_bytes(data), synced=False)


def by_function(sample: Mapping[str, object]) -> dict[str, object]:
    """Return a sample whose rewards are keys of their own, by reward function.

    A function whose name another key has gets "reward" before it.
    """
    given = sample.get("rewards")
    found = {name: value for name, value in sample.items() if name != "rewards"}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        found[f"reward {name}" if name in found else str(name)] = value
    return found


def read_completions(directory: Path) -> Mapping[str, object]:
    """Return the step and the samples; ValueError if the file is damaged, OSError without one."""
    path = directory / COMPLETIONS
    return cast(Mapping[str, object], check(read_json(path, MOST_BYTES), SCHEMA, str(path)))
