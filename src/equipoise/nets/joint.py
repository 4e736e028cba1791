"""Joint: a distribution over actions with several independent parts."""

from __future__ import annotations

import itertools
from typing import Self

from torch import Tensor

from equipoise import tree
from equipoise.nets.distributions import Distribution
from equipoise.types import Tree


class Joint(Distribution):
    """Independent parts, a tree of distributions over the same rows; actions are trees of the same
    keys.

    Noise is dealt to the parts in the order of the tree; logp, entropy and kl are sums.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Tree) -> None:
        self.parts = parts

    @property
    def dims(self) -> int:
        return sum(part.dims for part in tree.leaves(self.parts))

    def _dealt(self, noise: Tensor) -> Tree:
        ends = itertools.accumulate((part.dims for part in tree.leaves(self.parts)), initial=0)
        columns = (noise[..., begin:end] for begin, end in itertools.pairwise(ends))
        return tree.map(lambda _: next(columns), self.parts)

    def sample(self, noise: Tensor) -> Tree:
        return tree.map(lambda part, columns: part.sample(columns), self.parts, self._dealt(noise))

    def sample_and_logp(self, noise: Tensor) -> tuple[Tree, Tensor]:
        both = tree.map(
            lambda part, columns: part.sample_and_logp(columns), self.parts, self._dealt(noise)
        )
        return tree.index(both, 0), added(tree.index(both, 1))

    def logp(self, action: Tree) -> Tensor:
        return added(tree.map(lambda part, one: part.logp(one), self.parts, action))

    def entropy(self) -> Tensor:
        return added(tree.map(lambda part: part.entropy(), self.parts))

    def mode(self) -> Tree:
        return tree.map(lambda part: part.mode(), self.parts)

    def kl(self, other: Self) -> Tensor:
        return added(tree.map(lambda part, one: part.kl(one), self.parts, other.parts))

    def __getitem__(self, rows: slice) -> Self:
        return type(self)(tree.index(self.parts, rows))


def added(terms: Tree) -> Tensor:
    total, *rest = tree.leaves(terms)
    for term in rest:
        total = total + term
    return total  # type: ignore[no-any-return]
