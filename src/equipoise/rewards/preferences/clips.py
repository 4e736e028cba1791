"""Segments as clips of a store, and the answers about them as tensors to fit a model to."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

from equipoise import tree
from equipoise.feedback import Purpose, Query, Store
from equipoise.feedback.agreement import SHARES, evidence, gold_of, weights
from equipoise.feedback.database import FILE
from equipoise.feedback.items import Arrays
from equipoise.feedback.store import in_the_way
from equipoise.rewards.preferences.segments import Answers, Segments
from equipoise.tree import ArraySpec
from equipoise.types import Tree

EPISODE = "episode"


def row_spec(space: spaces.Space[object]) -> Tree:
    """Return the arrays of one value of a space: bytes of an image, else float32, int64 or bool."""

    def leaf(one: spaces.Space[object]) -> ArraySpec:
        if isinstance(one, spaces.Box) and one.dtype in (np.uint8, np.bool_):
            return ArraySpec(one.shape, str(one.dtype))
        whole = one.dtype is None or np.issubdtype(one.dtype, np.integer)
        return ArraySpec(one.shape or (), "int64" if whole else "float32")

    return tree.map(leaf, tree.parts(space))


class Clips:
    """The clips of one policy: arrays by name, of its observations and actions."""

    def __init__(self, observation: spaces.Space[object], action: spaces.Space[object]) -> None:
        self.specs = {"obs": row_spec(observation), "action": row_spec(action)}
        self._names = {path: _name(path) for path in dict(tree.items(self.specs))}

    def arrays(self, obs: Tree, action: Tree, episode: int, size: int) -> Arrays:
        """Return a clip of the first ``size`` rows of a segment's arrays [T, ...]."""
        found = {
            self._names[path]: leaf[:size]
            for path, leaf in tree.items({"obs": obs, "action": action})
        }
        return found | {EPISODE: np.array([episode], np.int64)}

    def rows(self, arrays: Arrays, where: str) -> tuple[Tree, int, int]:
        """Return a clip as {"obs", "action"} of rows, their count, and the number of its episode;
        ValueError if it is of another env.
        """
        wanted = dict(tree.items(self.specs))
        got = {path: arrays.get(name) for path, name in self._names.items()}
        sizes = {len(one) for one in got.values() if one is not None and one.ndim}
        episode = arrays.get(EPISODE)
        fits = len(sizes) == 1 and set(arrays) <= {*self._names.values(), EPISODE, "frames", "fps"}
        for path, one in got.items():
            spec = wanted[path]
            fits &= one is not None and (one.shape[1:], str(one.dtype)) == (spec.shape, spec.dtype)
        if not fits:
            raise ValueError(
                f"{where}: must be of this env, with {_words(wanted, self._names)}, got "
                f"{', '.join(f'{n} {x.dtype} {list(x.shape[1:])}' for n, x in arrays.items())}; "
                "try another store"
            )
        if episode is None or episode.dtype != np.int64 or episode.shape != (1,):
            raise ValueError(f"{where}: must have the number of its episode, int64 [1], got none")
        return tree.nest(got), sizes.pop(), int(episode[0])

    def check(self, store: Store) -> None:
        """ValueError if the first clip of a store is of another env."""
        first = next((one.left for one in store.queries() if one.kind == "clip"), None)
        if first is not None:
            self.rows(store.segment(first), f"{store.path}, clip {first[:12]}")

    def check_folder(self, folder: Path) -> None:
        """ValueError if the folder has a damaged store or one of another env, or if no store can be
        created there.
        """
        if (folder / FILE).exists() or folder.is_file():
            with Store(folder) as store:
                self.check(store)
            return
        if folder.is_dir() and in_the_way(folder):
            raise ValueError(f"{folder}: must be a store or a new folder, got another one")
        above = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise ValueError(f"{folder}: must be a folder that can be made, got none in {above}")


class Labels:
    """The answers of a store up to a row, and the segments that they are about."""

    def __init__(self, clips: Clips) -> None:
        self._clips = clips
        self._found: dict[str, tuple[Tree, int, int]] = {}  # rows, size and episode by hash
        self._weights: dict[str, float] = {}  # of annotators

    def read(self, store: Store, upto: int) -> Answers:
        """Return all answers in rows up to ``upto`` that compare two clips. An answer has its
        annotator's weight. Segments of answers that were undone by then are dropped.
        """
        self._weights = weights(store.answers(upto=upto), gold_of(store.queries()))
        found = self._choices(store, 0, upto)
        before, self._found = self._found, {}
        for query, _, _ in found:
            for hash_ in (query.left, query.right):
                if hash_ not in self._found:
                    self._found[hash_] = before.get(hash_) or self._clip(store, hash_)
        return self._answers(found)

    def since(
        self, store: Store, upto: int, after: int, *, purpose: Purpose | None = None, later: int = 0
    ) -> Answers:
        """Return the answers of the last ``read`` in the rows ``after`` + 1 to ``upto``.

        ``purpose``: only answers to queries of this purpose; ``later``: only to queries that were
        asked after this step of the run.
        """
        return self._answers(
            [
                (query, share, weight)
                for query, share, weight in self._choices(store, after, upto)
                if purpose in (None, query.purpose) and (not later or (query.step or 0) > later)
            ]
        )

    def _choices(self, store: Store, after: int, upto: int) -> list[tuple[Query, float, float]]:
        """Return each answer's query, its share for the left side, and its weight."""
        queries = {one.id: one for one in store.queries() if one.kind == "clip"}
        return [
            (queries[one.query], SHARES[one.choice], self._weights[one.annotator])
            for one in evidence(store.answers(after, upto))
            if one.query in queries
        ]

    def _answers(self, found: Sequence[tuple[Query, float, float]]) -> Answers:
        place = {hash_: i for i, hash_ in enumerate(self._found)}
        sides = [[place[one.left], place[one.right]] for one, _, _ in found]
        left, right = torch.tensor(sides, dtype=torch.int64).view(-1, 2).unbind(1)
        share = torch.tensor([share for _, share, _ in found], dtype=torch.float32)
        weight = torch.tensor([weight for _, _, weight in found], dtype=torch.float32)
        known = None if bool((weight == 1).all()) else weight
        return Answers(left.contiguous(), right.contiguous(), share, known)

    def segments(self) -> Segments:
        """Return the segments, as the answers number them."""
        rows, sizes, episodes = zip(*self._found.values(), strict=True)
        return stacked(rows, sizes, episodes)

    def _clip(self, store: Store, hash_: str) -> tuple[Tree, int, int]:
        return self._clips.rows(store.segment(hash_), f"{store.path}, clip {hash_[:12]}")


def stacked(rows: Sequence[Tree], sizes: Sequence[int], episodes: Sequence[int]) -> Segments:
    """Return segments of clips, the shorter ones padded."""
    longest = max(sizes, default=1)

    def padded(*leaves: np.ndarray) -> torch.Tensor:
        found = np.zeros((len(leaves), longest, *leaves[0].shape[1:]), leaves[0].dtype)
        for i, leaf in enumerate(leaves):
            found[i, : len(leaf)] = leaf
        return torch.from_numpy(found)

    both = tree.map(padded, *rows)
    mask = torch.arange(longest) < torch.tensor(sizes)[:, None]
    return Segments(both["obs"], both["action"], mask, torch.tensor(episodes))


def _name(path: str) -> str:
    """Return the name of a clip's array: "observations", or "observations.arm" of a Dict."""
    part, _, rest = path.partition("/")
    name = {"obs": "observations", "action": "actions"}[part]
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"{name}.{rest}")[:100] if rest else name


def _words(specs: Mapping[str, ArraySpec], names: Mapping[str, str]) -> str:
    return ", ".join(f"{names[path]} {one.dtype} {list(one.shape)}" for path, one in specs.items())
