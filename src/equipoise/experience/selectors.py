"""Which items a replay gives next: selectors over *places*, the numbers 0 .. places - 1 of its items.

A selector holds no rows, only which places may be sampled, and in what order or how often. All calls take batches, and none
loops over items in Python. Each keeps an int64 a place, ``_at``: negative where the place is not in. It also tells, without a
sort, which of equal places in a call is the last: write a number each, and see whose number stayed.

Common law: a place that is inserted while it is in holds a new item from then on; one that comes twice in a call counts once,
with its last priority; removing, or updating, a place that is not in does nothing, as its item has left; a place outside
0 .. places - 1 is a ValueError, before anything changes. Nothing draws but ``sample``, from the generator that it is given, and
the same operations and draws follow on a ``load`` as on the ``state`` that was taken (a copy, of arrays only).
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from equipoise.experience.sumtree import SumTree
from equipoise.types import Array, Tree


class Selector(Protocol):
    nbytes: int  # that it takes

    def insert(self, places: Array, priority: Array | None = None) -> None:
        """[k] int64 may be sampled from now on; ``priority`` [k], None: the highest seen so far, 1 at first."""
        ...

    def remove(self, places: Array) -> None:
        """[k] int64 may not be sampled from now on."""
        ...

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """-> places [n] int64, the probability [n] float64 that each was drawn with. ValueError where there are too few."""
        ...

    def update(self, places: Array, priority: Array) -> None:
        """New priorities [k] of the items at [k]. ValueError for a nan, infinite or negative one, and none is changed."""
        ...

    def __len__(self) -> int:
        """Items that may be sampled."""
        ...

    def state(self) -> Tree: ...

    def load(self, state: Tree) -> None:
        """The state of a selector of as many places."""
        ...


def importance_weights(probability: Array, n_items: int, beta: float) -> Array:
    """w_i = (N P(i))^-beta / max_j w_j, [n] float64 in (0, 1]: what makes up for draws that were not uniform.

    Schaul et al. 2016, arXiv:1511.05952, section 3.4. ``probability`` [n]: P(i), above 0; the maximum is over this batch,
    as in DQN Zoo, so that weights only ever make steps smaller. ``beta`` 0: all 1; 1: as if the draws had been uniform.
    """
    if not (len(probability) and probability.min() > 0):
        raise ValueError(f"expected probabilities above 0, got {probability.min() if len(probability) else 'none'}")
    weight: Array = (n_items * np.asarray(probability, np.float64)) ** -beta
    return weight / weight.max()


class Uniform:
    """Every item with the same chance, with replacement.

    The places that are in lie side by side in a list: the last ones move into the gaps of those that are removed.
    """

    def __init__(self, places: int) -> None:
        self._list = np.empty(_count(places), np.int64)
        self._at = np.full(places, -1, np.int64)  # in the list
        self._n = 0
        self.nbytes = self._list.nbytes + self._at.nbytes

    def __len__(self) -> int:
        return self._n

    def insert(self, places: Array, priority: Array | None = None) -> None:
        places = _within(places, self._at)
        fresh = places[self._at[places] < 0]
        fresh = fresh[_last(self._at, fresh)]
        end = self._n + len(fresh)
        self._list[self._n : end] = fresh
        self._at[fresh] = np.arange(self._n, end)
        self._n = end

    def remove(self, places: Array) -> None:
        places = _within(places, self._at)
        places = places[self._at[places] >= 0]
        at = self._at[places]
        last = _last(self._at, places)  # and none of them is in any more
        self._n -= int(np.count_nonzero(last))
        gaps = at[last & (at < self._n)]
        tail = self._list[self._n : self._n + np.count_nonzero(last)]
        moved = tail[self._at[tail] >= 0]  # as many as there are gaps: what is gone from the tail left none
        self._list[gaps] = moved
        self._at[moved] = gaps

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        if not self._n:
            raise ValueError(f"expected items to sample {n} of, got none")
        return self._list.take(rng.integers(0, self._n, n)), np.full(n, 1 / self._n)

    def update(self, places: Array, priority: Array) -> None:
        """Priorities mean nothing here."""

    def state(self) -> Tree:
        return {"list": self._list[: self._n].copy()}

    def load(self, state: Tree) -> None:
        members = _within(state["list"], self._at)
        self._at[:] = -1
        self._n = len(members)
        self._list[: self._n] = members
        self._at[members] = np.arange(self._n)


class Fifo:
    """Every item once, in the order of insertion: what is sampled is not in any more. Its probability is 1.

    More than are left is a ValueError, and nothing is taken: ask ``len`` first. A log of insertions, twice as long as there are
    places; an entry whose number is not its place's is of an item that left, and they go when the log is full.
    """

    def __init__(self, places: int) -> None:
        self._log = np.empty(2 * _count(places), np.int64)
        self._at = np.full(places, -1, np.int64)  # in the log
        self._head = self._tail = self._n = 0
        self.nbytes = self._log.nbytes + self._at.nbytes

    def __len__(self) -> int:
        return self._n

    def insert(self, places: Array, priority: Array | None = None) -> None:
        places = _within(places, self._at)
        self.remove(places)
        places = places[_last(self._at, places)]
        if self._tail + len(places) > len(self._log):
            self.load(self.state())  # there is room then: these are not among those that are in
        end = self._tail + len(places)
        self._log[self._tail : end] = places
        self._at[places] = np.arange(self._tail, end)
        self._tail = end
        self._n += len(places)

    def remove(self, places: Array) -> None:
        places = _within(places, self._at)
        places = places[self._at[places] >= 0]
        self._n -= int(np.count_nonzero(_last(self._at, places)))

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        if n > self._n:
            raise ValueError(f"expected at most the {self._n} items that are left, got a sample of {n}")
        width = n
        while len(there := self._there(self._head + width)) < n:  # past those that left: each is passed once
            width *= 2
        places: Array = self._log[there[:n]]
        self._head = int(there[n - 1]) + 1 if n else self._head
        self._at[places] = -1
        self._n -= n
        return places, np.ones(n)

    def _there(self, end: int) -> Array:
        """The numbers of log entries from the head to ``end`` whose items are in."""
        entries = np.arange(self._head, min(end, self._tail))
        return entries[self._at[self._log[entries]] == entries]

    def update(self, places: Array, priority: Array) -> None:
        """Priorities mean nothing here."""

    def state(self) -> Tree:
        return {"log": self._log[self._there(self._tail)]}

    def load(self, state: Tree) -> None:
        members = _within(state["log"], self._at)
        self._at[:] = -1
        self._head, self._tail, self._n = 0, len(members), len(members)
        self._log[: self._n] = members
        self._at[members] = np.arange(self._n)


class Prioritized:
    """P(i) = p_i^alpha / sum_k p_k^alpha, with replacement; p_i is the item's priority + ``epsilon``.

    Schaul et al. 2016, arXiv:1511.05952, equation 1 and section 3.3, "proportional". ``alpha`` 0 is uniform. With ``epsilon`` 0
    an item of priority 0 is never drawn (unless alpha is 0), and so never gets another one; theirs is a small number above 0.

    The draws of a batch are independent. The paper (appendix B.2.1) cuts the sum into n ranges and draws once from each. That
    lowers the variance of a batch a little, but then its draws depend on each other and on where places lie in the tree, and a
    part of a batch (a minibatch) is no sample of P at all.
    """

    def __init__(self, places: int, *, alpha: float, epsilon: float) -> None:
        if not (0 <= alpha < math.inf and 0 <= epsilon < math.inf):
            raise ValueError(f"expected finite alpha and epsilon of at least 0, got {alpha} and {epsilon}")
        self._at = np.full(_count(places), -1, np.int64)  # 0: is in
        self._tree = SumTree(places)
        self._alpha, self._epsilon = alpha, epsilon
        # The highest priority such that the sum of as many of its power as there are places is finite, and some below.
        self._most = (1e308 / places) ** (1 / max(alpha, 1.0)) / 2 - epsilon
        self._highest = 1.0
        self._n = 0
        self.nbytes = self._at.nbytes + self._tree.nbytes

    def __len__(self) -> int:
        return self._n

    def insert(self, places: Array, priority: Array | None = None) -> None:
        places = _within(places, self._at)
        if priority is None:
            priority = np.full(len(places), self._highest)
        mass, self._highest = self._checked(places, priority)
        fresh = places[self._at[places] < 0]
        self._n += int(np.count_nonzero(_last(self._at, fresh)))
        self._at[places] = 0
        self._tree.set(places, mass)

    def remove(self, places: Array) -> None:
        places = _within(places, self._at)
        places = places[self._at[places] >= 0]
        self._n -= int(np.count_nonzero(_last(self._at, places)))
        self._tree.set(places, np.zeros(len(places)))

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        if not (total := self._tree.total) > 0:
            raise ValueError(f"expected items of a priority above 0 to sample {n} of, got none among {self._n} items")
        places = self._tree.find(rng.random(n) * total)
        return places, self._tree.mass.take(places) / total

    def update(self, places: Array, priority: Array) -> None:
        places = _within(places, self._at)
        mass, highest = self._checked(places, priority)
        if (self._at.take(places) < 0).any():
            there = self._at[places] >= 0
            places, mass = places[there], mass[there]
        self._highest = highest
        self._tree.set(places, mass)

    def _checked(self, places: Array, priority: Array) -> tuple[Array, float]:
        """-> p^alpha [k], and the highest priority seen, these included."""
        priority = np.asarray(priority, np.float64)
        if priority.shape != places.shape:
            raise ValueError(f"expected a priority for each of {places.shape} places, got {priority.shape}")
        if not len(priority):
            return priority, self._highest
        lowest, highest = priority.min(), priority.max()
        if not (lowest >= 0 and highest <= self._most):  # nan is neither
            wrong = np.flatnonzero(~((priority >= 0) & (priority <= self._most)))
            raise ValueError(
                f"expected priorities from 0 to {self._most:.3g}, got {priority[wrong[0]]} for the item at place "
                f"{places[wrong[0]]} ({len(wrong)} of {len(priority)} are wrong); nothing was changed"
            )
        return (priority + self._epsilon) ** self._alpha, max(self._highest, float(highest))

    def state(self) -> Tree:
        return {"mass": self._tree.mass.copy(), "in": self._at >= 0, "highest": np.array([self._highest])}

    def load(self, state: Tree) -> None:
        if state["in"].shape != self._at.shape:
            raise ValueError(f"expected a state of {self._at.shape} places, got {state['in'].shape}")
        self._tree.load(state["mass"])
        self._at[:] = np.where(state["in"], 0, -1)
        self._highest, self._n = float(state["highest"][0]), int(np.count_nonzero(state["in"]))


def _count(places: int) -> int:
    if places < 1:
        raise ValueError(f"expected at least 1 place, got {places}")
    return places


def _within(places: Array, at: Array) -> Array:
    """As int64, all of them places of ``at``, or a ValueError."""
    places = np.ascontiguousarray(places, np.int64)
    if len(places) and places.view(np.uint64).max() >= len(at):  # a negative one is a large one
        wrong = places[(places < 0) | (places >= len(at))]
        raise ValueError(f"expected places from 0 to {len(at) - 1}, got {wrong[0]} ({len(wrong)} of {len(places)} are wrong)")
    return places


def _last(at: Array, places: Array) -> Array:
    """[k] bool, which is the last of those equal to it; leaves all of them not in."""
    number = np.arange(-len(places), 0)
    at[places] = number
    last: Array = at[places] == number
    return last
