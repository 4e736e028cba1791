"""The sizes of a replay, from its settings and the rows that an actor writes; sizes that are too
small are refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from equipoise.experience.layout import RowSpec
from equipoise.experience.replay import hindsight
from equipoise.experience.replay.codec import chosen
from equipoise.experience.replay.row_layout import Layout, smallest
from equipoise.types import ReplaySettings as Settings
from equipoise.types import Stack

PER_PLACE = {"uniform": 1, "fifo": 24, "prioritized": 17}  # bytes a place of a selector, about


def share(settings: Settings, learners: int) -> Settings:
    """The settings of each of several learners' replays, which are one of these together."""
    if learners == 1:
        return settings
    return replace(
        settings,
        capacity=settings.capacity // learners,
        memory=settings.memory // learners,
        starts_at=-(-settings.starts_at // learners),
        shards=max(settings.shards // learners, 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The sizes of a replay, of one learner's share if several have one; the settings are the
    share's own.
    """

    settings: Settings
    row: RowSpec
    unroll: int
    window: int
    block: int  # streams of one actor
    actors: int
    span: int  # an actor's streams are numbered from a multiple of it on
    rounds: int  # rounds of the run, which annealing follows
    # of a block's streams from the actor's first number; (): they follow each other
    offsets: tuple[int, ...] = ()
    stacks: Mapping[str, Stack] = field(default_factory=dict)
    learner: int = 0  # whose share it is
    learners: int = 1  # it keeps the rows of one of so many actors that follow each other

    def __post_init__(self) -> None:
        """Raise ValueError if the settings ask for too little."""
        _ = self.slots, self.codecs

    @property
    def codecs(self) -> Mapping[str, str]:
        """The codecs of encoded leaves by path; ValueError as from ``codec.chosen``."""
        return chosen(self.settings.codec, self.layout.large, self.layout.small)

    @property
    def layout(self) -> Layout:
        return Layout.of(self.row, self.stacks)

    @property
    def streams(self) -> int:
        return self.actors * self.block

    @property
    def rows(self) -> int:
        """Rows of a round."""
        return self.unroll * self.streams

    def numbers(self, shard: int = 0) -> NDArray[np.int64] | None:
        """The number of each stream whose rows a shard keeps, column by column; None if it is that
        of the column.
        """
        actors = np.arange(shard, self.actors, self.settings.shards) * self.learners + self.learner
        found = (actors[:, None] * self.span + np.array(self.offsets or range(self.block))).reshape(
            -1
        )
        return None if np.array_equal(found, np.arange(len(found))) else found

    def actor(self, stream: int) -> int:
        """The actor of a stream, counted among the actors whose rows are kept here."""
        return stream // (self.span * self.learners)

    def of_shard(self, shard: int) -> int:
        """The actors of one shard: every ``shards``-th."""
        return len(range(shard, self.actors, self.settings.shards))

    @property
    def begins(self) -> int:
        """The round that the first updates follow, from 1."""
        return first_round(
            self.settings.starts_at, rows=self.rows, unroll=self.unroll, window=self.window
        )

    def nbytes(self, slots: int) -> int:
        place = PER_PLACE[self.settings.selector] + (
            hindsight.PER_PLACE if self.settings.relabel else 0
        )
        rows = self.layout.nbytes(
            slots=slots, streams=self.streams, unroll=self.unroll, encoded=self.codecs
        )
        return rows + place * slots * self.streams

    @property
    def slots(self) -> int:
        """The slots of a stream; ValueError if the settings ask for too little."""
        settings, one = self.settings, self.unroll
        # The rows before the first update have to fit, and one more block, which is given up while
        # it is overwritten.
        least = max(smallest(self.layout, unroll=one, window=self.window), (self.begins + 2) * one)
        if settings.memory:
            slots = int(settings.memory / self.nbytes(one)) * one
            if slots < least:
                raise ValueError(
                    f"replay.memory: expected at least {self.nbytes(least):,} bytes ({least} rows "
                    f"of {self.streams} streams, "
                    f"{self.nbytes(one) // (one * self.streams):,} bytes a row), got "
                    f"{settings.memory:,}"
                )
            return slots
        slots = (1 - -settings.capacity // self.rows) * one  # plus the block that is given up
        if slots < least:
            raise ValueError(
                f"replay.capacity: expected at least {(least - one) * self.streams:,} rows, room "
                "for starts_at="
                f"{settings.starts_at:,}, windows of {self.window} and a round of {self.rows:,}, "
                f"got {settings.capacity:,}"
            )
        return slots


def first_round(starts_at: int, *, rows: int, unroll: int, window: int) -> int:
    """The first round (from 1) that updates follow: it has ``starts_at`` rows, and ``window`` rows
    of each stream.
    """
    return max(-(-starts_at // rows), -(-window // unroll))
