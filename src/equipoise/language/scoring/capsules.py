"""Capsules of rewards: the samples with which a function failed, as one JSON file, so that it can
be called again.

At most ``LIMIT`` of one function in a run. A capsule is there whole or not at all, and nothing in
it is a pickle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise import schema, trust
from equipoise.files import LARGEST_JSON, parse_json, read_bounded
from equipoise.language import capsule_files
from equipoise.language.scoring.functions import Samples

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardCapsule:
    """One failure of a reward function."""

    reward: str  # module:function
    error: str
    deadline_s: float | None  # None: no deadline
    samples: Samples


def write(directory: Path, capsule: RewardCapsule) -> Path | None:
    """Write the capsule -> its file; None at the function's ``LIMIT``, or if the disk is full."""
    names = trust.of_text(None, [capsule.reward])
    data = {
        "format": FORMAT,
        "reward": capsule.reward,
        "signature": trust.sign(names, capsule.reward, make=True) if names else None,
        "error": capsule.error,
        "deadline_s": capsule.deadline_s,
        "samples": capsule.samples.to_json(),
    }
    return capsule_files.write(directory, "reward", capsule.reward, data)


ITEMS = schema.Items(schema.Anything())
SCHEMA: dict[str, schema.Schema] = {
    "format": schema.Number(FORMAT, FORMAT, whole=True),
    "reward": schema.Text(1000),
    "signature?": schema.Maybe(schema.Text(64)),
    "error": schema.Text(),
    "deadline_s": schema.Maybe(schema.Number(0)),
    "samples": {
        "prompts": ITEMS,
        "completions": ITEMS,
        "completion_ids": ITEMS,
        "ended": schema.Items(schema.Flag()),
        "columns": schema.Each(ITEMS),
    },
    "written": schema.Text(),
}


def read(path: Path, trusted: tuple[str, ...] = ()) -> RewardCapsule:
    """Read a capsule and check it; ValueError names the fault, Untrusted the import that it needs.

    ``trusted``: modules and ``module:function`` that the user vouches for (``trust.py``).
    """
    data: Any = parse_json(read_bounded(path, LARGEST_JSON), path, finite=False)
    schema.check(data, SCHEMA, str(path))
    module, _, function = data["reward"].partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*", module) or not re.fullmatch(r"\w+(\.\w+)*", function):
        raise ValueError(f"{path}: reward: expected module:function, got {data['reward']!r}")
    trust.check(
        trust.of_text(None, [data["reward"]]), data["reward"], data.get("signature"), trusted, path
    )
    samples = Samples(**data["samples"])
    count = len(samples.completions)
    for name, column in {**data["samples"], **samples.columns}.items():
        if name != "columns" and len(column) != count:
            raise ValueError(
                f"{path}: samples.{name}: expected {count} items, one for each completion, got "
                f"{len(column)}"
            )
    return RewardCapsule(
        reward=data["reward"], error=data["error"], deadline_s=data["deadline_s"], samples=samples
    )
