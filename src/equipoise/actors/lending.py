"""The words that the workers of an elastic run share: whether the learners' devices are lent to
generation, which of them has nothing to draw, and what the generators measured.

==================  ============================================================================
word                written by
==================  ============================================================================
lent, switches      the first learner: are the devices lent (0 or 1)? how often did that change?
wants[group]        the learner of the group: the number of its question for samples, which each
                    generator answers once; 0: it does not ask
handed[group]       the generator of the group: its samples that went on in another generator
sums[group]         that generator: sums over its steps (``SUMS``)
==================  ============================================================================

Each word stands by itself: a reader that sees an old one does what was right a moment before.
"""

from __future__ import annotations

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
        """The memory of a run with this number of generators, those in learners among them."""
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

    def seat(self, group: int, blocks: HandedBlocks, taker: Taker | None = None) -> Seat:
        """The words of the generator of a group of samples, which writes into ``blocks``.
        ``taker``: the learner that it may give samples to; None: it is that learner's own.
        """
        wants = None if taker is None else self.wants[taker.group : taker.group + 1]
        return Seat(blocks, taker, self.sums[group], self.handed[group : group + 1], wants)


@dataclass(frozen=True, slots=True)
class Taker:
    """A learner that draws samples while its device is lent."""

    group: int  # its group of samples
    streams: Array  # of this group
    among: int  # the number of generators that it asks, and itself


@dataclass(slots=True)
class Seat:
    """The place of one generator in an elastic run: its words, and blocks that change hands."""

    blocks: HandedBlocks
    taker: Taker | None
    _sums: Array
    _handed: Array
    _wants: Array | None
    _answered: int = 0  # the number of the last question

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

    @property
    def asked(self) -> bool:
        """Is there a question for samples that is not answered?"""
        return self._wants is not None and int(self._wants[0]) not in (0, self._answered)

    def answer(self) -> None:
        """The question is answered."""
        assert self._wants is not None
        self._answered = int(self._wants[0])
