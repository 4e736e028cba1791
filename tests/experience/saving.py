"""Replays that are saved and loaded, and what is compared of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import tree
from equipoise.experience.replay.replay import Replay
from equipoise.types import SaveEnd as Saved
from equipoise.types import Tree


def members(made: Replay) -> Any:
    """The places that may be sampled."""
    state: Any = made.selector.state()
    return np.flatnonzero(state["in"])


def content(made: Replay) -> str:
    """A hash of all that must come back: every row that is held, indices, priorities, row numbers,
    generators.
    """
    digest, ring = hashlib.sha256(), made.ring
    for path, leaf in tree.items(made.state()):
        digest.update(f"{path} {np.shape(leaf)}".encode() + np.asarray(leaf).tobytes())
    for actor, blocks in enumerate(ring.blocks.tolist()):
        for number in range(max(blocks - ring.held, 0), blocks):
            for array in ring.block_arrays(actor, number, 1):
                digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def end(made: Replay, state: Tree) -> tuple[dict[str, Any], Saved]:
    """Of the save that was begun when the replay had this state -> what there is to load."""
    assert made.journal is not None
    made.journal.wait(60.0)
    saved = made.journal.poll()
    assert saved is not None
    return {"replay": state, "chunks": saved.files, "segments": saved.segments}, saved


def save(made: Replay) -> dict[str, Any]:
    assert made.journal is not None
    state = made.state()
    made.journal.begin(lambda chunks: chunks)
    whole, saved = end(made, state)
    assert saved.error is None, saved.error
    return whole


def load(made: Replay, saved: dict[str, Any], folder: Path) -> Replay:
    """Into a new one, with the checks that a checkpoint makes."""
    assert made.journal is not None

    def read(name: str) -> bytes:
        said = saved["segments"][name]
        data = (folder / name).read_bytes()[: said["size"]]
        assert hashlib.sha256(data).hexdigest() == said["sha256"]
        return data

    made.load(saved["replay"])
    made.journal.load(saved["chunks"], saved["segments"], read)
    return made


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
