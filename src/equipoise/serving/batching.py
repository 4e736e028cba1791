"""Batching: rows that arrive while the model works are its next batch. Nothing waits for a timer.

A slow model works in a worker thread. A fast version (``Version.inline``) works in the event loop:
at once for the first request of a turn of the loop, then for all further requests of that turn
together. Rows of one episode are never in one batch: each needs the state after the one before.
Recurrent states are read and written by the loop alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from equipoise.edge import plain, propensity
from equipoise.serving.sessions import Track
from equipoise.serving.shield import not_finite
from equipoise.serving.version import Version

log = logging.getLogger("equipoise.serving")
Array = np.ndarray
# action as JSON has it, propensity, deterministic, why the shield chose
Choice = tuple[object, float | None, bool, str | None]
SHADOW_S = 0.01  # shadow rows are gathered for this long
SHADOWS = 4096  # shadow rows that may wait
ONE = {flag: np.array([flag]) for flag in (False, True)}


class Turn(NamedTuple):
    """The position of a request in its episode. ``stream`` and ``step`` are its first row's; each
    row of a batch has a stream of its own.
    """

    stream: int
    step: int = 0
    track: Track | None = None  # the episode's
    first: bool = True


class Ask:
    """The rows [n, ...] of one request, on their way to a version. ``reply`` gets n choices,
    once.
    """

    __slots__ = (
        "about",
        "arrived",
        "deadline",
        "deterministic",
        "first",
        "n",
        "reply",
        "rows",
        "step",
        "stream",
        "timer",
        "track",
        "version",
    )

    def __init__(
        self,
        version: Version,
        rows: Mapping[str, Array],
        reply: Callable[[Ask, list[Choice]], None],
        turn: Turn,
        *,
        n: int = 1,
        deterministic: bool = True,
        deadline: float | None = None,
        about: Any = None,
    ) -> None:
        """``deadline``: on ``time.monotonic``'s clock. ``about``: the facts that ``reply``
        needs.
        """
        self.version, self.rows, self.n = version, rows, n
        self.stream, self.step, self.track, self.first = turn
        self.deterministic, self.about = deterministic, about
        self.reply: Callable[[Ask, list[Choice]], None] | None = reply
        self.arrived, self.deadline = time.monotonic(), deadline
        self.timer: asyncio.TimerHandle | None = None

    def answer(self, choices: list[Choice]) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        reply, self.reply = self.reply, None
        if reply is not None:
            reply(self, choices)


class Batch:
    """One run of a version's model, and its result."""

    def __init__(self, asks: list[Ask], seed: int) -> None:
        """Put the rows together; called in the loop."""
        self.asks, self.version = asks, asks[0].version
        self.rows = self.version.stack([ask.rows for ask in asks])
        if len(asks) == 1 and asks[0].n == 1:
            self.first, self.deterministic = ONE[asks[0].first], ONE[asks[0].deterministic]
        else:
            counts = [ask.n for ask in asks]
            self.first = np.repeat([ask.first for ask in asks], counts)
            self.deterministic = np.repeat([ask.deterministic for ask in asks], counts)
        self.noise = None if all(ask.deterministic for ask in asks) else self._draw(seed)
        self.slots: Array | None = None
        self.state: Mapping[str, Array] = {}
        if self.version.recurrent:
            self.slots = np.array([ask.track.slot for ask in asks if ask.track is not None])
            self.state = self.version.states.read(self.slots)
        self.following: Mapping[str, Array] = {}
        self.choices: list[Choice] = []

    def _draw(self, seed: int) -> Array:
        streams = np.concatenate([np.arange(ask.stream, ask.stream + ask.n) for ask in self.asks])
        return self.version.model.draw(
            seed, streams, np.repeat([ask.step for ask in self.asks], [ask.n for ask in self.asks])
        )

    def run(self) -> None:
        """Run the model and pass every row through the shield; in the loop or in a thread."""
        try:
            self._run()
        # of the model's runtime, of any kind: the shield answers in place of the model
        except Exception as error:
            log.error(
                "the model failed", extra={"version": self.version.digest, "reason": str(error)}
            )
            self.following, self.choices = (
                {},
                [self._safe(i, "failed") for i in range(len(self.first))],
            )

    def _run(self) -> None:
        model, shield, count = self.version.model, self.version.shield, len(self.first)
        raw, logp, following = model.run(
            self.rows, self.first, self.state, self.noise, self.deterministic
        )
        bad = not_finite([raw, following, None if logp is None else {"logp": logp}])
        self.following = following if bad is None else self._kept(following, bad)
        outside = shield.outside(self.rows)
        for i in range(count):
            action = plain(model.action(raw, i))
            reason = None
            if bad is not None and bad[i]:
                reason = "not-finite"
            elif outside is not None and outside[i]:
                reason = "outside"
            elif shield.beyond(action):
                reason = "limits"
            if reason is None:
                certain = bool(self.deterministic[i])
                self.choices.append(
                    (action, propensity(model.propensity, logp, i, certain), certain, None)
                )
            else:
                self.choices.append(self._fallback(i, reason))

    def _fallback(self, i: int, reason: str) -> Choice:
        """The best action if the rules want it and it passes; else the safe one."""
        if self.version.shield.rules.fallback == "safe":
            return self._safe(i, reason)
        one = {name: x[i : i + 1] for name, x in self.rows.items()}
        state = {name: x[i : i + 1] for name, x in self.state.items()}
        raw, logp, following = self.version.model.run(
            one, self.first[i : i + 1], state, None, ONE[True]
        )
        action = plain(self.version.model.action(raw, 0))
        if not_finite(
            [raw, following, None if logp is None else {"logp": logp}]
        ) is not None or self.version.shield.beyond(action):
            return self._safe(i, reason)
        return action, None, True, reason

    def _safe(self, i: int, reason: str) -> Choice:
        return self.version.shield.safe(self.rows, i), None, True, reason

    def _kept(self, following: Mapping[str, Array], bad: Array) -> Mapping[str, Array]:
        """The next states; a state that is not finite stays as it was."""
        return {
            name: np.where(bad.reshape(-1, *[1] * (x.ndim - 1)), self.state[name], x)
            for name, x in following.items()
        }

    def settle(self) -> None:
        """Keep the next states, and let go of episodes that are over; called in the loop."""
        if self.slots is not None and self.following:
            self.version.states.write(self.slots, self.following)
        for ask in self.asks:
            if ask.track is not None:
                ask.track.waiting -= 1
                ask.track.settle()

    def answer(self) -> None:
        at, now = 0, time.monotonic()
        for ask in self.asks:
            choices = self.choices[at : at + ask.n]
            if ask.deadline is not None and now > ask.deadline:
                choices = [self._safe(at + i, "deadline") for i in range(ask.n)]
            at += ask.n
            ask.answer(choices)


class Batcher:
    """Gathers asks into batches, one at a time. Used in the event loop."""

    def __init__(
        self, *, most: int = 64, seed: int = 0, done: Callable[[Batch], None] = lambda batch: None
    ) -> None:
        """``most``: rows of a batch. ``done`` is called after the answers of each."""
        self.most, self._seed, self._done = most, seed, done
        self._loop = asyncio.get_running_loop()
        self._asks: deque[Ask] = deque()
        self._shadows: deque[Ask] = deque()
        self._busy = self._called = self._shadowing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    def __len__(self) -> int:
        return len(self._asks) + len(self._shadows) + self._busy

    def submit(self, ask: Ask) -> None:
        if ask.track is not None:
            ask.track.waiting += 1
        if ask.deadline is not None:
            ask.timer = self._loop.call_later(ask.deadline - time.monotonic(), self._late, ask)
        if self._busy or self._called:
            self._asks.append(ask)
            return
        self._call()
        if ask.version.inline:
            self._start(Batch([ask], self._seed))
        else:
            self._asks.append(ask)

    def shadow(self, ask: Ask) -> bool:
        """Take an ask for a track that counts it already, and whose answer has no reader; False if
        too many wait.
        """
        if len(self._shadows) >= SHADOWS:
            return False
        self._shadows.append(ask)
        if not self._shadowing:
            self._shadowing = True
            self._loop.call_later(SHADOW_S, self._shadow_turn)
        return True

    def close(self) -> None:
        self._thread.shutdown()

    def _late(self, ask: Ask) -> None:
        """The deadline has come before the model: its row still moves the episode's state on."""
        ask.timer = None
        ask.answer(
            [(ask.version.shield.safe(ask.rows, i), None, True, "deadline") for i in range(ask.n)]
        )

    def _call(self) -> None:
        self._called = True
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._called = False
        if not self._busy and self._asks:
            self._start(self._take(self._asks))

    def _shadow_turn(self) -> None:
        self._shadowing = False
        if not self._shadows:
            return
        if not self._busy and not self._asks:
            self._start(self._take(self._shadows))
        if self._shadows:
            self._shadowing = True
            self._loop.call_later(SHADOW_S / 4, self._shadow_turn)

    def _take(self, waiting: deque[Ask]) -> Batch:
        """The next batch: rows of the version that waits longest, at most one of an episode. The
        other asks wait on, in order.
        """
        asks = [waiting.popleft()]
        version, rows, tracks, later = asks[0].version, asks[0].n, {id(asks[0].track)}, []
        while waiting and rows < self.most:
            ask = waiting.popleft()
            held = ask.track is not None and id(ask.track) in tracks
            if ask.version is not version or held or rows + ask.n > self.most:
                later.append(ask)
            else:
                asks.append(ask)
                rows += ask.n
            tracks.add(id(ask.track))
        waiting.extendleft(reversed(later))
        return Batch(asks, self._seed)

    def _start(self, batch: Batch) -> None:
        if batch.version.inline:
            batch.run()
            self._finish(batch)
            return
        self._busy = True
        self._thread.submit(batch.run).add_done_callback(
            lambda ran: self._loop.call_soon_threadsafe(self._ran, batch, ran)
        )

    def _ran(self, batch: Batch, ran: Any) -> None:
        self._busy = False
        ran.result()
        self._finish(batch)

    def _finish(self, batch: Batch) -> None:
        batch.settle()
        batch.answer()
        self._done(batch)
        if self._asks and not self._called:
            self._call()
