"""Segments of behaviour, answers about pairs of segments, and their split by episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise import tree
from equipoise.types import Tree


@dataclass(frozen=True, slots=True)
class Segments:
    """Pieces of episodes: S segments, padded to T rows."""

    obs: Tree  # [S, T, *obs]
    action: Tree  # [S, T, *action]
    mask: Tensor  # [S, T] bool: True where a row is no padding
    episode: Tensor  # [S] int64: the number of the episode that a segment is cut from

    def __len__(self) -> int:
        return len(self.mask)

    def take(self, index: Tensor | slice) -> Segments:
        """Return some of the segments, without the columns that only the others need."""
        mask = self.mask[index]
        longest = max(int(mask.sum(1).max()), 1) if len(mask) else 1
        obs, action = (
            tree.map(lambda x: x[index][:, :longest], x) for x in (self.obs, self.action)
        )
        return Segments(obs, action, mask[:, :longest], self.episode[index])

    def to(self, device: torch.device) -> Segments:
        """Return the segments on a device; the numbers of the episodes stay where they are."""
        obs, action = tree.to(self.obs, device), tree.to(self.action, device)
        return Segments(obs, action, self.mask.to(device), self.episode)


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to Q queries, each about a left and a right segment."""

    left: Tensor  # [Q] int64: index of a segment
    right: Tensor  # [Q] int64
    share: Tensor  # [Q] float32: 1 prefers the left one, 0 the right one, 0.5 is a tie
    weight: Tensor | None = None  # [Q] float32; None: 1 each
    margin: Tensor | None = None  # [Q] float32; None: 0 each

    def __len__(self) -> int:
        return len(self.share)

    @property
    def decided(self) -> bool:
        """Is there an answer that prefers a side?"""
        return bool((self.share != 0.5).any())

    def take(self, index: Tensor) -> Answers:
        weight = None if self.weight is None else self.weight[index]
        margin = None if self.margin is None else self.margin[index]
        return Answers(self.left[index], self.right[index], self.share[index], weight, margin)

    def to(self, device: torch.device) -> Answers:
        """Return the answers on a device."""
        weight = None if self.weight is None else self.weight.to(device)
        margin = None if self.margin is None else self.margin.to(device)
        left, right, share = (x.to(device) for x in (self.left, self.right, self.share))
        return Answers(left, right, share, weight, margin)


def check(answers: Answers, segments: int) -> None:
    """Raise ValueError if answers do not fit each other or the number of segments."""
    count = len(answers)
    for name in ("left", "right"):
        index: Tensor = answers.left if name == "left" else answers.right
        if index.shape != (count,) or index.dtype != torch.int64:
            raise ValueError(
                f"answers.{name}: must be int64 [{count}], got {index.dtype} {list(index.shape)}"
            )
        if count and not 0 <= int(index.min()) <= int(index.max()) < segments:
            raise ValueError(
                f"answers.{name}: must be the index of one of {segments:,} segments, got "
                f"{int(index.min())} to {int(index.max())}"
            )
    limits = {"share": (answers.share, 1.0), "weight": (answers.weight, np.inf)}
    for name, (values, high) in (limits | {"margin": (answers.margin, np.inf)}).items():
        if values is None:
            continue
        if values.shape != (count,):
            raise ValueError(f"answers.{name}: must have shape [{count}], got {list(values.shape)}")
        if not bool(((values >= 0) & (values <= high) & values.isfinite()).all()):
            raise ValueError(
                f"answers.{name}: must be 0 to {high:g}, got {float(values.min()):g} to "
                f"{float(values.max()):g}; leave skipped queries out"
            )


def cut(obs: Tree, action: Tree, episode: Tensor, *, rows: int, least: int = 1) -> Segments:
    """Cut rows [N, ...], in the order of their episodes, into segments of at most ``rows`` rows.

    A segment never reaches over an end of an episode. The last segment of an episode is shorter
    than the rest, and left out if it has less than ``least`` rows.
    """
    if not 1 <= least <= rows:
        raise ValueError(f"cut: least must be 1 to rows ({rows}), got {least}")
    if len(episode) == 0:
        raise ValueError("cut: must have one row or more, got none")
    first = torch.cat([torch.ones(1, dtype=torch.bool), (episode[1:] != episode[:-1]).cpu()])
    place = torch.arange(len(episode))
    began = torch.where(first, place, 0).cummax(0).values
    start = place[(place - began) % rows == 0]
    size = torch.diff(start, append=torch.tensor([len(episode)]))
    start, size = start[size >= least], size[size >= least]
    if len(start) == 0:
        raise ValueError(f"cut: an episode must have {least} rows or more; try a lower least")
    column = torch.arange(int(size.max()))
    mask = (column < size[:, None]).to(episode.device)
    at = (start[:, None] + column).clamp(max=len(episode) - 1).to(episode.device)
    return Segments(tree.index(obs, at), tree.index(action, at), mask, episode[at[:, 0]])


def join(parts: Sequence[Segments]) -> Segments:
    """Put segments of several sources one after the other; the shorter ones are padded."""
    longest = max(one.mask.shape[1] for one in parts)

    def joined(*leaves: Tensor) -> Tensor:
        missing = [longest - x.shape[1] for x in leaves]
        return torch.cat(
            [F.pad(x, (0, 0) * (x.ndim - 2) + (0, n)) if n else x for x, n in zip(leaves, missing)]
        )

    obs, action, mask = (
        tree.map(joined, *inner)
        for inner in zip(*((one.obs, one.action, one.mask) for one in parts), strict=True)
    )
    return Segments(obs, action, mask, torch.cat([one.episode for one in parts]))


def both(one: Answers, other: Answers) -> Answers:
    """Put answers one after the other."""

    def ones(part: Answers) -> Tensor:
        return torch.ones_like(part.share) if part.weight is None else part.weight

    return Answers(
        torch.cat([one.left, other.left]),
        torch.cat([one.right, other.right]),
        torch.cat([one.share, other.share]),
        torch.cat([ones(one), ones(other)]),
    )


# ------------------------------------------------------------------------------------------- split


def held_out(episode: np.ndarray, *, share: float, seed: int) -> np.ndarray:
    """Return bool [N]: whether each episode is held out, a fact of (seed, number of the episode).

    An episode never changes its side, so pairs may be drawn within a side (``queries``), and no
    query is lost to ``split``.
    """
    # splitmix64: neighbouring numbers become independent ones
    x = np.asarray(episode).astype(np.uint64) + np.uint64(seed % 2**32) * np.uint64(2**31 - 1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return (x >> np.uint64(11)).astype(np.float64) / 2.0**53 < share


def split(
    answers: Answers, episode: Tensor, *, share: float, seed: int
) -> tuple[Tensor, Tensor, int]:
    """Return the indices of the queries to learn from, the indices of the held-out queries, and the
    count of the rest, which have an episode on each side and are left out.
    """
    side = torch.from_numpy(held_out(episode.cpu().numpy(), share=share, seed=seed))
    left, right = side[answers.left.cpu()], side[answers.right.cpu()]
    train, held = (~left & ~right).nonzero().squeeze(1), (left & right).nonzero().squeeze(1)
    device = answers.share.device
    return train.to(device), held.to(device), len(answers) - len(train) - len(held)


def leaked(answers: Answers, episode: Tensor, train: Tensor, held: Tensor) -> list[int]:
    """Return the episodes that are on both sides of a split; [] is a clean one."""
    sides = [
        set(episode[torch.cat([answers.left[at], answers.right[at]])].tolist())
        for at in (train, held)
    ]
    return sorted(sides[0] & sides[1])
