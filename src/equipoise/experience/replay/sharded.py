"""A replay with its rows in workers of their own, the shards: shard ``a % shards`` keeps the rows
of actor ``a``.

An item is drawn with the probability that it would have in one replay of all: each shard's number
of items in a batch is drawn in proportion to the shards' masses, and within a shard an item is
drawn in proportion to its own (its p^alpha, or 1). Weights are normalised over the whole batch,
whose items lie in the order of shards. The next batch of a round is requested before this one is
learned from, so it does not use its new priorities, in every runtime. New items get the highest
priority of any shard.

A shard that dies loses its rows and nothing else. Rows that it had taken in count as lost and weigh
nothing from then on. Blocks that it had not taken in are requested from its successor, which begins
empty. A batch that it owed is drawn again. Priorities for its rows are ignored, as its successor
does not have these rows. The learner waits for the successor if it is to take blocks, which is at
the next round: windows need rows of each stream again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from equipoise import schema, tree
from equipoise.envs.restore.snapshot import generator, generator_state
from equipoise.experience.replay.feed import Replayed, ReplayFeed
from equipoise.experience.replay.mailbox import BUFFERS, Request, ShardMailbox
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.files import numbered
from equipoise.publishing import publish
from equipoise.types import Array, Batch, StateReader, StateWriter, Trajectory, Tree


class Sharded(Replayed):
    """``Experience`` of one policy, with the rows in shards."""

    def __init__(
        self,
        plan: ReplayPlan,
        rounds: ReplayFeed,
        policy: str,
        *,
        mailbox: ShardMailbox,
        seed: int,
        wake: Callable[[int], object],
        file: str = "replay",
    ) -> None:
        """``wake``: wake a shard of this policy for a request."""
        Replayed.__init__(self, plan, rounds, policy, ahead=True)
        self._mailbox, self._wake, self._file = mailbox, wake, file  # the name in a checkpoint
        self._rng = np.random.default_rng(seed)
        # By shard, the blocks that it has not taken in yet: (request, place, actor).
        self._inserting: list[deque[tuple[int, int, int]]] = [deque() for _ in mailbox.shards]
        # blocks taken in of each actor, overwritten ones included
        self._blocks = np.zeros(plan.actors, np.int64)
        self._held = plan.slots // plan.unroll - 1  # blocks of an actor that are kept
        self._overwritten = 0  # blocks overwritten by shards that died
        self._buffer = 0
        # by shard, the request and the number of items; None: to be drawn
        self._drawn: list[tuple[int, int]] | None = None
        self._scale = np.empty(0)  # for each item, the share of its shard in all mass
        self._batches = [
            Trajectory(**{k: tree.torch_views(v) for k, v in b["data"].items()})
            for b in mailbox.batches
        ]

    # --------------------------------------------------------------------------- asking and waiting

    def _request(self, shard: int, kind: Request, *numbers: int) -> int:
        """Write a request -> the value of ``answered`` when it is done."""
        mail = self._mailbox.shards[shard]
        asked, requests = int(mail["asked"][0]), mail["request"]
        assert asked - mail["answered"][0] < len(requests), "more than may be asked at once"
        requests[asked % len(requests)] = (kind, *numbers, *[0] * (3 - len(numbers)))
        publish(mail["asked"], 0, asked + 1)
        self._wake(shard)
        return asked + 1

    def settled(self) -> bool:
        """Has every living shard done its requests?"""
        done = True
        for shard, mail in enumerate(self._mailbox.shards):
            # look at this first: the answers of a dead shard stand still
            died = mail["life"][0] != mail["seen"][0]
            answered, inserting = int(mail["answered"][0]), self._inserting[shard]
            if inserting and inserting[0][0] <= answered:
                while inserting and inserting[0][0] <= answered:
                    self._blocks[inserting.popleft()[2]] += 1
                self._count()
            if died:
                self._bury(shard, answered)
            done &= bool(mail["answered"][0] == mail["asked"][0])
        return done

    def _bury(self, shard: int, answered: int) -> None:
        """Count a dead shard's rows as lost; request its outstanding draws from its successor, or
        draw from all shards again.
        """
        mail, life = self._mailbox.shards[shard], int(self._mailbox.shards[shard]["life"][0])
        mine = slice(shard, None, self._plan.settings.shards)
        kept = np.minimum(self._blocks[mine], self._held).sum()
        self._mailbox.ledger["lost"][0] += self._rows(kept)
        self._overwritten += int(self._blocks[mine].sum() - kept)
        self._blocks[mine] = 0
        self._count()
        if self._drawn is not None and self._drawn[shard][1] and self._drawn[shard][0] > answered:
            self._drawn = None
        mail["items"][0], mail["mass"][0] = 0, 0.0
        publish(mail["answered"], 0, mail["asked"][0])
        again, self._inserting[shard] = self._inserting[shard], deque()
        publish(mail["seen"], 0, life)
        for _, place, actor in again:
            self._insert(shard, place, actor)

    def _rows(self, blocks: Array) -> int:
        return int(blocks) * self._plan.unroll * self._plan.block

    def _count(self) -> None:
        """Count the fate of the rows that were taken."""
        kept, ledger = np.minimum(self._blocks, self._held).sum(), self._mailbox.ledger
        ledger["kept"][0] = self._rows(kept)
        ledger["overwritten"][0] = self._rows(self._overwritten + self._blocks.sum() - kept)

    def items(self) -> int:
        return sum(int(mail["items"][0]) for mail in self._mailbox.shards)

    def emptied(self) -> bool:
        return not any(mail["mass"][0] > 0 for mail in self._mailbox.shards)

    # ----------------------------------------------------------------------------------- the rounds

    def bring(self, keys: Array) -> None:
        inbox = self._rounds.inbox
        for place in inbox.places(keys):
            actor = self._plan.actor(int(inbox.block(place)[self.policy].context["stream"][0]))
            self._insert(actor % self._plan.settings.shards, place, actor)

    def _insert(self, shard: int, place: int, actor: int) -> None:
        self._inserting[shard].append((self._request(shard, Request.INSERT, place), place, actor))

    def _ask(self, n: int) -> None:
        if n != self._mailbox.batch:
            raise ValueError(
                f"expected the batch of {self._mailbox.batch} items that these shards were planned "
                f"for, got {n}"
            )
        # the other buffer's batch is being learned from
        self._buffer = (self._buffer + 1) % BUFFERS
        self._draw()

    def _draw(self) -> None:
        """Draw each shard's number of items in the batch, if any shard has items."""
        edges = np.cumsum([0.0, *(mail["mass"][0] for mail in self._mailbox.shards)])
        if not edges[-1] > 0:
            return
        points = np.minimum(
            self._rng.random(self._mailbox.batch) * edges[-1], np.nextafter(edges[-1], 0)
        )
        counts = np.bincount(
            edges[1:].searchsorted(points, "right"), minlength=len(edges) - 1
        ).tolist()
        self._scale = np.repeat(np.diff(edges) / edges[-1], counts)
        self._drawn, begin = [], 0
        for shard, count in enumerate(counts):
            request = self._request(shard, Request.DRAW, self._buffer, begin, count) if count else 0
            self._drawn.append((request, count))
            begin += count

    def _answer(self) -> Batch | None:
        if not self.settled():
            return None
        if self._drawn is None:
            self._draw()
            return None
        self._drawn, drawn = None, self._mailbox.batches[self._buffer]
        weight = self._weight(drawn["probability"] * self._scale)
        return Batch(
            data=self._batches[self._buffer], keys=drawn["keys"].copy(), weight=weight, targets={}
        )

    def learned(self, keys: Array, priority: Array | None) -> None:
        """Send new priorities [n] of items whose rows are still there. Earlier priorities are done:
        see ``sample``.
        """
        if priority is None or self._plan.settings.selector != "prioritized":
            return
        priority = np.asarray(tree.on_host(priority), np.float64)
        if wrong := np.flatnonzero(~((priority >= 0) & (priority < np.inf))).tolist():
            raise ValueError(
                f"expected finite priorities of at least 0, got {priority[wrong[0]]} ({len(wrong)} "
                f"of {len(priority)} are "
                "wrong); nothing was changed"
            )
        shard = keys[:, 0] % self._plan.settings.shards
        order, n = np.argsort(shard, kind="stable"), len(keys)
        self._mailbox.priorities["keys"][:n] = keys[order]
        self._mailbox.priorities["priority"][:n] = priority[order]
        ends = np.cumsum(np.bincount(shard, minlength=self._plan.settings.shards)).tolist()
        for number, (begin, end) in enumerate(zip([0, *ends], ends)):
            self._request(number, Request.UPDATE, begin, end, n)

    # ---------------------------------------------------------------------------------- for anybody

    def stats(self) -> dict[str, float]:
        """The queue's rows, ``items`` that may be sampled, and the fate of the rows that shards
        took (``ShardMailbox.stats``).
        """
        return super().stats() | self._mailbox.stats()

    def state(self) -> Tree:
        """Return the state between two rounds of all but the queue and the shards."""
        self.settled()  # bury shards that died meanwhile
        return {
            "rounds": self._rounds.state(),
            "rng": generator_state(self._rng),
            "blocks": self._blocks.copy(),
            "overwritten": self._overwritten,
            "lost": int(self._mailbox.ledger["lost"][0]),
        }

    def load(self, state: Tree) -> None:
        """Load a state; the shards load their own."""
        counts = {name: schema.count() for name in ("rounds", "overwritten", "lost")}
        schema.check(
            state,
            counts | {"rng": schema.Array((None,), "uint8"), "blocks": schema.like(self._blocks)},
            "replay",
        )
        self._rounds.taken = state["rounds"]
        self._rng = generator(state["rng"])
        self._overwritten = state["overwritten"]
        self._blocks[:], self._mailbox.ledger["lost"][0] = state["blocks"], state["lost"]
        self._count()
        for shard in range(self._plan.settings.shards):
            self._request(shard, Request.LOOK)

    def save(self, to: StateWriter) -> None:
        """Put what is drawn next; the shards save the rows."""
        to.put(self.state(), numbered(self._file, self._plan.learner))

    def restore(self, source: StateReader, learners: int) -> None:
        """If there were other learners their shards come whole, with the counts of their actors'
        blocks.
        """
        mine, now = self._plan.learner, self._plan.learners
        if learners == now:
            self.load(source.state(numbered(self._file, mine)))
            return
        states: list[Tree] = [
            source.state(numbered(self._file, learner)) for learner in range(learners)
        ]
        actors = range(mine, self._plan.actors * now, now)
        self.load(
            {
                "rounds": min(state["rounds"] for state in states),
                "rng": generator_state(self._rng),
                "blocks": np.array(
                    [states[actor % learners]["blocks"][actor // learners] for actor in actors]
                ),
                **{
                    name: 0 if mine else sum(state[name] for state in states)
                    for name in ("overwritten", "lost")
                },
            }
        )

    def close(self) -> None: ...
