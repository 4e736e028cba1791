"""A replay of several shards in one process: each answers at once, unless it is held, and is lost
and replaced at will.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equipoise import tree
from equipoise.clock import Clock
from equipoise.experience.replay.mailbox import ShardMailbox
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.experience.replay.shard import PARTS, Shard
from equipoise.experience.replay.sharded import Sharded
from equipoise.experience.replay.store import Store
from equipoise.types import ReplaySettings as Settings
from equipoise.types import Tick
from tests.experience.alone import POLICY, rounds
from tests.experience.history import History
from tests.experience.test_replay import ACTORS, BLOCK, UNROLL, Heap, inbox

SHARDS = 3


class Shards:
    """The replay, its shards, and those that do not answer now."""

    def __init__(
        self,
        history: History,
        settings: Settings,
        *,
        batch: int,
        window: int = 1,
        max_lag: int | None = 0,
        folder: Path | None = None,
        saved: Any = None,
    ) -> None:
        self.plan = ReplayPlan(
            settings=settings,
            row=history.row,
            stacks={} if history.stack is None else {"image": history.stack},
            unroll=UNROLL,
            window=window,
            block=BLOCK,
            actors=ACTORS,
            span=BLOCK,
            rounds=100,
        )
        self.inbox, self.folder, self.held, self.seed = (
            inbox(history, max_lag=max_lag, saved=saved),
            folder,
            set[int](),
            0,
        )
        self.post = ShardMailbox(
            self.plan, batch, Heap(tree.nbytes(ShardMailbox.specs(self.plan, batch)))
        )
        self.shards = [self.made(k) for k in range(settings.shards)]
        self.replay = Sharded(
            self.plan,
            rounds(self.plan, self.inbox),
            POLICY,
            mailbox=self.post,
            seed=3,
            wake=self.asked,
        )

    def made(self, k: int) -> Shard:
        self.seed += 1
        folder = None if self.folder is None else self.folder / f"shard_{k}"
        store = Store(self.plan, seed=self.seed, shard=k, folder=folder)
        return Shard(
            self.plan,
            store,
            self.post,
            k,
            block=lambda place: self.inbox.block(place)[POLICY],
            wake=lambda: None,
            clock=Clock(PARTS),
        )

    def asked(self, k: int) -> None:
        if k not in self.held:
            self.serve(k)

    def serve(self, k: int) -> None:
        while self.shards[k].tick() is Tick.WORKED:
            pass

    def release(self, k: int) -> None:
        self.held.discard(k)
        self.serve(k)

    def lose(self, k: int) -> None:
        """It dies where it is, and has a successor, which is not asked for anything yet."""
        self.post.lost(k)
        self.shards[k] = self.made(k)
