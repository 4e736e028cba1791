"""The words that the workers of an elastic run share: whether the learners' devices are lent to
generation, which generators have nothing to draw, and what they measured.

==================  ============================================================================
word                written by
==================  ============================================================================
lent, switches      the first learner: are the devices lent (0 or 1)? how often did that change?
wants[group]        the generator of the group: the number of its question for samples, which each
                    other one answers once; while it does not ask, minus the number of the last one
handed[group]       the same: its samples that went on in another generator
sums[group]         the same: sums over its steps (``SUMS``)
==================  ============================================================================

Each word stands by itself: a reader that sees an old one does what was right a moment before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.tree import ArraySpec
from equipoise.types import Array, HandedBlocks, Tree

# of the steps: number, samples, seconds, samples * seconds, samples squared; seconds that new
# weights took
SUMS = 6


class Lending:
    """The words of a run, as views."""

    def __init__(self, views: Tree) -> None:
        self._lent, self._switches = views["lent"], views["switches"]
        self.wants, self.sums, self.handed = views["wants"], views["sums"], views["handed"]

    @staticmethod
    def specs(groups: int) -> Tree:
        """The memory of a run with this number of generators, including the ones in learners."""
        one, each = ArraySpec((1,), "int64"), ArraySpec((groups,), "int64")
        sums = ArraySpec((groups, SUMS), "float64")
        return {"lent": one, "switches": one, "wants": each, "handed": each, "sums": sums}

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

    def seat(self, group: int, blocks: HandedBlocks, takers: Sequence[Taker] = ()) -> Seat:
        """The place of the generator of a group of samples, which writes into ``blocks``.
        ``takers``: the generators that it may give samples to.
        """
        return Seat(self, group, blocks, takers)


@dataclass(frozen=True, slots=True)
class Taker:
    """A generator that takes samples when it has nothing to draw."""

    group: int  # its group of samples
    streams: Array  # of this group
    among: int  # a generator gives it one part of this number of parts


class Seat:
    """The place of one generator in an elastic run: its words, and blocks that change hands."""

    def __init__(
        self, words: Lending, group: int, blocks: HandedBlocks, takers: Sequence[Taker]
    ) -> None:
        self.blocks, self._takers = blocks, takers
        self._wants, self._group = words.wants, group
        self._sums, self._handed = words.sums[group], words.handed[group : group + 1]
        # the number of its last question; a predecessor may have died while it asked
        self._asked = abs(int(self._wants[group]))
        self._wants[group] = -self._asked
        self._answered = dict.fromkeys((one.group for one in takers), 0)

    def step(self, samples: int, seconds: float) -> None:
        """Count a step that drew a token of this number of samples."""
        self._sums[:5] += (1, samples, seconds, samples * seconds, samples * samples)

    def fetched(self, seconds: float) -> None:
        """Count the seconds in which new weights were taken."""
        self._sums[5] += seconds

    def hands_over(self, samples: int) -> None:
        """Count samples that go on in another generator."""
        self._handed[0] += samples

    @property
    def handed(self) -> int:
        """The number of these samples."""
        return int(self._handed[0])

    def load(self, handed: int) -> None:
        """Go on from a saved number."""
        self._handed[0] = handed

    def ask(self, asks: bool) -> None:
        """Ask the others for samples, or not any more."""
        if asks != (self._wants[self._group] > 0):
            self._asked += asks
            self._wants[self._group] = self._asked if asks else -self._asked

    def asked(self) -> Taker | None:
        """A generator whose question is not answered, or None."""
        for one in self._takers:
            question = int(self._wants[one.group])
            if question > 0 and question != self._answered[one.group]:
                return one
        return None

    def answer(self, taker: Taker) -> None:
        """The generator was given samples."""
        self._answered[taker.group] = abs(int(self._wants[taker.group]))
