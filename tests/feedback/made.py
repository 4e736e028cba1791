"""Stores for the tests, with clips and people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from equipoise.feedback import Plan, Store


def clips(store: Store, count: int) -> list[str]:
    """The hashes of so many clips."""
    return [
        store.add_segment({"obs": np.arange(6.0).reshape(3, 2) + i, "reward": np.zeros(3)})
        for i in range(count)
    ]


def store_with(path: Path, queries: int, people: str = "ab", **plan: Any) -> Store:
    """A store with queries about clips, and a person for each letter."""
    given: dict[str, Any] = {"gold_share": 0.0, "repeat_share": 0.0} | plan
    store = Store.create(path, Plan(**given))
    quick(store)
    first, *others = clips(store, queries + 1)
    for other in others:
        store.add_query("clip", first, other)
    for name in people:
        store.add_annotator(name)
    return store


def quick(store: Store) -> None:
    """Let SQLite not wait for the disk, which a test of durability needs alone."""
    store._db._db.execute("PRAGMA synchronous = OFF")
