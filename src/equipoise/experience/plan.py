"""The sizes of a replay, from what was asked for and what an actor writes; what is too little is refused here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.experience import hindsight
from equipoise.experience.codec import chosen
from equipoise.experience.layout import RowSpec
from equipoise.experience.ring import Layout, smallest
from equipoise.types import Replay as Settings
from equipoise.types import Stack

PER_PLACE = {"uniform": 1, "fifo": 24, "prioritized": 17}  # bytes of a selector, about


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The sizes of a replay."""

    settings: Settings
    row: RowSpec
    unroll: int
    window: int
    block: int  # streams of an actor
    actors: int
    span: int  # an actor's streams are numbered from a multiple of it on
    rounds: int  # of the run, for what is annealed
    stacks: Mapping[str, Stack] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """ValueError where what was asked for is too little."""
        _ = self.slots, self.codecs

    @property
    def codecs(self) -> Mapping[str, str]:
        """Of the leaves that are encoded, by path; ValueError as ``codec.chosen`` says."""
        return chosen(self.settings.codec, self.layout.large, self.layout.small)

    @property
    def layout(self) -> Layout:
        return Layout.of(self.row, self.stacks)

    @property
    def streams(self) -> int:
        return self.actors * self.block

    @property
    def rows(self) -> int:
        """Of a round."""
        return self.unroll * self.streams

    def of_shard(self, shard: int) -> int:
        """The actors whose rows it keeps: every ``shards``-th."""
        return len(range(shard, self.actors, self.settings.shards))

    @property
    def begins(self) -> int:
        """The round that the first updates follow, from 1."""
        return first_round(self.settings.starts_at, rows=self.rows, unroll=self.unroll, window=self.window)

    def nbytes(self, slots: int) -> int:
        place = PER_PLACE[self.settings.selector] + (hindsight.PER_PLACE if self.settings.relabel else 0)
        rows = self.layout.nbytes(slots=slots, streams=self.streams, unroll=self.unroll, encoded=self.codecs)
        return rows + place * slots * self.streams

    @property
    def slots(self) -> int:
        """Of a stream; ValueError where what was asked for is too little."""
        settings, one = self.settings, self.unroll
        # What is held before the first update has to fit, and one more block, which is given up while it is written over.
        least = max(smallest(self.layout, unroll=one, window=self.window), (self.begins + 2) * one)
        if settings.memory:
            slots = int(settings.memory / self.nbytes(one)) * one
            if slots < least:
                raise ValueError(
                    f"replay.memory: expected at least {self.nbytes(least):,} bytes ({least} rows of {self.streams} streams, "
                    f"{self.nbytes(one) // (one * self.streams):,} bytes a row), got {settings.memory:,}"
                )
            return slots
        slots = (1 - -settings.capacity // self.rows) * one  # and the block that is given up
        if slots < least:
            raise ValueError(
                f"replay.capacity: expected at least {(least - one) * self.streams:,} rows, room for starts_at="
                f"{settings.starts_at:,}, windows of {self.window} and a round of {self.rows:,}, got {settings.capacity:,}"
            )
        return slots


def first_round(starts_at: int, *, rows: int, unroll: int, window: int) -> int:
    """The round, from 1, that the first updates follow: with ``starts_at`` rows, and with ``window`` of each stream."""
    return max(-(-starts_at // rows), -(-window // unroll))
