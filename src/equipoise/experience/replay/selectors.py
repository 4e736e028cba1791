"""Selectors choose the items that a replay gives next, by *place*: the numbers 0 .. slots * streams
- 1 of its items.

A selector holds no rows, only which places may be sampled, and in what order or how often. Place
``slot * streams + stream`` belongs to a slot of a stream. Insertion comes in rectangles of slots
and streams, sampling in arrays of places. No selector loops over items in Python.

Common law: a place that is put in again holds a new item from then on; updating an absent place
does nothing, as its item has left, and a place that comes twice gets its last priority. Nothing
draws but ``sample``, from the generator that it is given, and the same operations and draws follow
on a ``load`` as on the ``state`` that was taken (a copy, of arrays only).
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from equipoise import schema
from equipoise.experience.replay.sumtree import SumTree
from equipoise.types import Array, Tree

SCAN = 64  # looking at a place is this much cheaper than drawing one
# slots and streams, both with a start and a stop within the existing ranges
Where = tuple[slice, slice]


class Selector(Protocol):
    nbytes: int  # bytes of the selector

    def put(self, where: Where, there: Array) -> None:
        """Take in new items, or take items out: ``there`` [slots, streams] bool marks the items
        that may be sampled from now on.

        A new item's priority is the highest seen so far, 1 at first.
        """

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw n places -> [n] int64, and the probability [n] float64 of each draw. ValueError if
        there are too few.
        """

    def update(self, places: Array, priority: Array) -> None:
        """Set new priorities [k] of the items at [k]. ValueError for a nan, infinite or negative
        priority; then no priority is changed.
        """

    def saw(self, priority: float) -> None:
        """Note a priority seen by another selector: it counts among those seen so far."""

    @property
    def mass(self) -> float:
        """The weight of all items: a draw among several selectors is in proportion to it."""

    def __len__(self) -> int:
        """The number of items that may be sampled."""

    def state(self) -> Tree: ...

    def load(self, state: Tree) -> None:
        """Load the state of a selector with as many places."""


def importance_weights(probability: Array, beta: float) -> Array:
    """w_i / max_j w_j with w_i = (N P(i))^-beta, [n] float64 in (0, 1]: the correction for draws
    that were not uniform.

    Schaul et al. 2016, arXiv:1511.05952, section 3.4; the number of items N cancels out.
    ``probability`` [n]: P(i), above 0; the maximum is over this batch, as in DQN Zoo, so that
    weights only ever make steps smaller. ``beta`` 0: all 1; 1: as if the draws had been uniform.
    """
    probability = np.asarray(probability, np.float64)
    if not (len(probability) and (least := probability.min()) > 0):
        raise ValueError(
            "expected probabilities above 0, got "
            f"{probability.min() if len(probability) else 'none'}"
        )
    weight: Array = (probability / least) ** -beta
    return weight


class _Alike:
    """Items that all weigh the same: priorities are ignored."""

    _n = 0  # items

    def __len__(self) -> int:
        return self._n

    def update(self, places: Array, priority: Array) -> None: ...

    def saw(self, priority: float) -> None: ...

    @property
    def mass(self) -> float:
        return float(self._n)


class Uniform(_Alike):
    """Draws every item with the same chance, with replacement: places are drawn until enough of
    them hold an item.
    """

    def __init__(self, slots: int, streams: int = 1) -> None:
        self._in = np.zeros(_shape(slots, streams), bool)
        self._flat = self._in.reshape(-1)
        self.nbytes = self._in.nbytes

    def put(self, where: Where, there: Array) -> None:
        mine = self._in[where]
        self._n += int(np.count_nonzero(there)) - int(np.count_nonzero(mine))
        mine[...] = there

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        if not self._n:
            raise ValueError(f"expected items to sample {n} of, got none")
        probability = np.full(n, 1 / self._n)
        if SCAN * n > self._n:  # few or sparse: looking at all costs no more than drawing many
            return np.flatnonzero(self._flat).take(rng.integers(0, self._n, n)), probability
        places = self._draw(n, rng)
        while len(places) < n:
            places = np.concatenate([places, self._draw(n - len(places), rng)])
        return places[:n], probability

    def _draw(self, n: int, rng: np.random.Generator) -> Array:
        """Draw about ``n`` places or a few more."""
        # As ``rng.integers`` in half the time. u is at most 1 - 2^-53, and so its product rounds to
        # a number below the end.
        places: Array = (rng.random(n * self._in.size // self._n + 4) * self._in.size).astype(
            np.int64
        )
        return places[self._flat.take(places)]

    def state(self) -> Tree:
        return {"in": self._in.copy()}

    def load(self, state: Tree) -> None:
        schema.check(state, {"in": schema.like(self._in)}, "selector")
        self._in[:] = state["in"]
        self._n = int(np.count_nonzero(self._in))


class Fifo(_Alike):
    """Gives every item once, in the order of insertion; a sampled item leaves. Each probability is
    1.

    Asking for more than are left is a ValueError and takes nothing: ask ``len`` first. A log of
    insertions, twice as long as there are places; an entry whose number is not its place's is of an
    item that left, and they go when the log is full.
    """

    def __init__(self, slots: int, streams: int = 1) -> None:
        # number in the log; -1: no item
        self._entry = np.full(_shape(slots, streams), -1, np.int64)
        self._at = self._entry.reshape(-1)
        self._log = np.empty(2 * slots * streams, np.int64)
        self._head = self._tail = 0
        self.nbytes = self._log.nbytes + self._at.nbytes

    def put(self, where: Where, there: Array) -> None:
        slots, streams = (np.arange(part.start, part.stop) for part in where)
        places = (slots[:, None] * self._entry.shape[1] + streams)[there]
        mine = self._entry[where]
        self._n += len(places) - int(np.count_nonzero(mine >= 0))
        mine[...] = -1
        if self._tail + len(places) > len(self._log):
            self._compact()  # now there is room: the new items are not in the log yet
        end = self._tail + len(places)
        self._log[self._tail : end] = places
        self._at[places] = np.arange(self._tail, end)
        self._tail = end

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        if n > self._n:
            raise ValueError(
                f"expected at most the {self._n} items that are left, got a sample of {n}"
            )
        width = n
        # skip items that left: each is passed once
        while len(there := self._there(self._head + width)) < n:
            width *= 2
        places: Array = self._log[there[:n]]
        self._head = int(there[n - 1]) + 1 if n else self._head
        self._at[places] = -1
        self._n -= n
        return places, np.ones(n)

    def _there(self, end: int) -> Array:
        """The numbers of log entries from the head to ``end`` whose items are still here."""
        entries = np.arange(self._head, min(end, self._tail))
        return entries[self._at[self._log[entries]] == entries]

    def _compact(self) -> None:
        members = self._log[self._there(self._tail)]
        self._head, self._tail = 0, len(members)
        self._log[: self._tail] = members
        self._at[members] = np.arange(self._tail)

    def state(self) -> Tree:
        return {"log": self._log[self._there(self._tail)]}

    def load(self, state: Tree) -> None:
        members = _within(state["log"], len(self._at))
        self._at[:] = -1
        self._head, self._tail, self._n = 0, len(members), len(members)
        self._log[: self._n] = members
        self._at[members] = np.arange(self._n)


class Prioritized:
    """P(i) = p_i^alpha / sum_k p_k^alpha, with replacement; p_i is the item's priority +
    ``epsilon``.

    Schaul et al. 2016, arXiv:1511.05952, equation 1 and section 3.3, "proportional". ``alpha`` 0 is
    uniform. With ``epsilon`` 0 an item of priority 0 is never drawn (unless alpha is 0), and so
    never gets another one; theirs is a small number above 0.

    The draws of a batch are independent. The paper (appendix B.2.1) cuts the sum into n ranges and
    draws once from each. That lowers the variance of a batch a little, but then its draws depend on
    each other and on the order of places in the tree, and a part of a batch (a minibatch) is no
    sample of P at all.
    """

    def __init__(self, slots: int, streams: int = 1, *, alpha: float, epsilon: float) -> None:
        if not (0 <= alpha < math.inf and 0 <= epsilon < math.inf):
            raise ValueError(
                f"expected finite alpha and epsilon of at least 0, got {alpha} and {epsilon}"
            )
        self._in = np.zeros(_shape(slots, streams), bool)
        self._flat = self._in.reshape(-1)
        self._tree = SumTree(self._in.size)
        self._mass = self._tree.mass.reshape(slots, streams)
        self._alpha, self._epsilon = alpha, epsilon
        # The highest priority for which the sum of its power over all places stays finite, with a
        # margin.
        self._most = (1e308 / self._in.size) ** (1 / max(alpha, 1.0)) / 2 - epsilon
        self._highest = 1.0
        self._n = 0
        self.nbytes = self._in.nbytes + self._tree.nbytes

    def __len__(self) -> int:
        return self._n

    def put(self, where: Where, there: Array) -> None:
        mine, streams = self._in[where], self._in.shape[1]
        self._n += int(np.count_nonzero(there)) - int(np.count_nonzero(mine))
        mine[...] = there
        mass = self._mass[where]
        mass[...] = 0.0
        np.copyto(mass, (self._highest + self._epsilon) ** self._alpha, where=there)
        self._tree.changed(where[0].start * streams, where[0].stop * streams)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        if not (total := self._tree.total) > 0:
            raise ValueError(
                f"expected items of a priority above 0 to sample {n} of, got none among {self._n} "
                "items"
            )
        places = self._tree.find(rng.random(n) * total)
        return places, self._tree.mass.take(places) / total

    def update(self, places: Array, priority: Array) -> None:
        places = _within(places, self._in.size)
        mass, highest = self._checked(places, priority)
        there = self._flat.take(places)
        if not there.all():
            places, mass = places[there], mass[there]
        self._highest = highest
        self._tree.set(places, mass)

    def saw(self, priority: float) -> None:
        self._highest = max(self._highest, priority)

    @property
    def mass(self) -> float:
        return self._tree.total

    def _checked(self, places: Array, priority: Array) -> tuple[Array, float]:
        """Check priorities -> p^alpha [k], and the highest priority seen so far."""
        priority = np.asarray(priority, np.float64)
        if priority.shape != places.shape:
            raise ValueError(
                f"expected a priority for each of {places.shape} places, got {priority.shape}"
            )
        if not len(priority):
            return priority, self._highest
        lowest, highest = priority.min(), priority.max()
        if not (lowest >= 0 and highest <= self._most):  # nan fails both comparisons
            wrong = np.flatnonzero(~((priority >= 0) & (priority <= self._most)))
            raise ValueError(
                f"expected priorities from 0 to {self._most:.3g}, got {priority[wrong[0]]} for the "
                "item at place "
                f"{places[wrong[0]]} ({len(wrong)} of {len(priority)} are wrong); nothing was "
                "changed"
            )
        return (priority + self._epsilon) ** self._alpha, max(self._highest, float(highest))

    def state(self) -> Tree:
        return {
            "mass": self._tree.mass.copy(),
            "in": self._in.copy(),
            "highest": np.array([self._highest]),
        }

    def load(self, state: Tree) -> None:
        mass, most = self._tree.mass, schema.LARGEST
        wanted = {
            "mass": schema.Array(mass.shape, str(mass.dtype), 0, most),
            "highest": schema.Array((1,), "float64", 0, most),
        }
        schema.check(state, wanted | {"in": schema.like(self._in)}, "selector")
        self._in[:] = state["in"]
        self._tree.load(state["mass"])
        self._highest, self._n = float(state["highest"][0]), int(np.count_nonzero(self._in))


def _shape(slots: int, streams: int) -> tuple[int, int]:
    if slots < 1 or streams < 1:
        raise ValueError(f"expected at least 1 slot and 1 stream, got {slots} and {streams}")
    return slots, streams


def _within(places: Array, count: int) -> Array:
    """Return places as int64, all from 0 to ``count - 1``, or raise a ValueError."""
    places = np.ascontiguousarray(places, np.int64)
    if len(places) and places.view(np.uint64).max() >= count:  # a negative one is a large one
        wrong = places[(places < 0) | (places >= count)]
        raise ValueError(
            f"expected places from 0 to {count - 1}, got {wrong[0]} ({len(wrong)} of {len(places)} "
            "are wrong)"
        )
    return places
