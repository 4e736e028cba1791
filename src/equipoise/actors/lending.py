"""The words that the workers of an elastic run share: whether the learners' devices are lent to
generation, and what the generators measured.

==================  ============================================================================
word                written by
==================  ============================================================================
lent, switches      the first learner: are the devices lent (0 or 1)? how often did that change?
handed[group]       the generator of the group: its samples that went on in another generator
most[group]         the first learner: most samples that a generator begins; 0: its own limit
sums[group]         that generator: sums over its steps (``SUMS``)
==================  ============================================================================

Each word stands by itself: a reader that sees an old one does what was right a moment before.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.tree import ArraySpec
from equipoise.types import Array, Tree

# of the steps: number, samples, seconds, samples * seconds, samples squared; seconds that new
# weights took
SUMS = 6


class Lending:
    """The words of a run, as views."""

    def __init__(self, views: Tree) -> None:
        self._lent, self._switches = views["lent"], views["switches"]
        self.most, self.sums, self.handed = views["most"], views["sums"], views["handed"]

    @staticmethod
    def specs(groups: int) -> Tree:
        """The memory of a run with this number of generators, those in learners among them."""
        one, each = ArraySpec((1,), "int64"), ArraySpec((groups,), "int64")
        sums = ArraySpec((groups, SUMS), "float64")
        return {"lent": one, "switches": one, "most": each, "handed": each, "sums": sums}

    @property
    def lent(self) -> bool:
        """Do the learners' devices generate?"""
        return bool(self._lent[0])

    @property
    def switches(self) -> int:
        """How often devices were lent or taken back."""
        return int(self._switches[0])

    def switch(self, lent: bool) -> None:
        """Lend the devices, or take them back."""
        self._lent[0] = lent
        self._switches[0] += 1

    def load(self, lent: bool, switches: int) -> None:
        """Go on from a saved state."""
        self._lent[0], self._switches[0] = lent, switches

    def seat(self, group: int) -> Seat:
        """The words of the generator of a group of samples."""
        return Seat(self.most[group : group + 1], self.sums[group], self.handed[group : group + 1])


@dataclass(frozen=True, slots=True)
class Seat:
    """The words of one generator."""

    _most: Array
    _sums: Array
    _handed: Array

    def most(self, own: int) -> int:
        """The most samples at once; ``own``: the generator's own limit."""
        most = int(self._most[0])
        return min(own, most) if most else own

    def step(self, samples: int, seconds: float) -> None:
        """Count a step that drew a token of this number of samples."""
        self._sums[:5] += (1, samples, seconds, samples * seconds, samples * samples)

    def fetched(self, seconds: float) -> None:
        """Count the seconds in which new weights were taken."""
        self._sums[5] += seconds

    def hands_over(self, samples: int) -> None:
        """Count samples that go on in another generator."""
        self._handed[0] += samples
