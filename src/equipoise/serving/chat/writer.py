"""The writer: one thread that runs the engine, and passes new text to the event loop.

New weights are copied next to the old ones between two steps. Answers that were begun finish with
the old weights, and new answers wait for the new weights, so each answer is of one version.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import NamedTuple

from torch import Tensor

from equipoise.actors.engine.request_engine import RequestEngine, Sampling
from equipoise.serving.chat.text import Text
from equipoise.serving.messages import Refused
from equipoise.types.packed import Stop

log = logging.getLogger("equipoise.serving")
HELD_S = 0.008  # seconds that running answers wait in a step while new weights are copied
# seconds between two parts of a stream: a part costs as much as a few tokens of a small model
FLUSH_S = 0.05
Decode = Callable[[Sequence[int]], str]
Failed = Callable[[str], None]


class TokenLogp(NamedTuple):
    """A drawn token with its log-probability, and the likeliest tokens with their own."""

    token: int
    logp: float
    likeliest: Sequence[tuple[int, float]]


class Piece(NamedTuple):
    """A part of a choice; ``finish`` is "stop" or "length" with the last one."""

    choice: int
    text: str
    finish: str | None
    logprobs: Sequence[TokenLogp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The prompts of a request: ``n`` choices of each, numbered in the order of prompts."""

    prompts: Sequence[Sequence[int]]
    sampling: Sequence[Sampling]  # of each prompt
    n: int
    limit: int
    stop: tuple[str, ...]
    stream: bool
    with_logprobs: bool

    @property
    def samples(self) -> int:
        return len(self.prompts) * self.n


class Reply:
    """The answer to a job while it is written; the event loop reads it."""

    def __init__(self, job: Job) -> None:
        self.job, self.left = job, job.samples  # choices that have not ended
        self.version, self.tokens = "", 0
        self.timer: asyncio.TimerHandle | None = None  # of its deadline
        # writes a piece at once while ``next`` waits; False if it cannot
        self.write_at_once: Callable[[Piece], bool] | None = None
        self._pieces: list[Piece] = []
        self._failed: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    def add(self, piece: Piece, version: str, tokens: int) -> None:
        """Add a piece, in the loop's thread. ``tokens``: drawn since the last piece."""
        self.version, self.tokens = version, self.tokens + tokens
        self.left -= piece.finish is not None
        if not self._written(piece):
            self._pieces.append(piece)
            self._wake()
        elif not self.left:
            self._wake()

    def _written(self, piece: Piece) -> bool:
        """Write a piece without a turn of the loop, if no other piece waits to be written."""
        waits = self._waiting is not None and not self._waiting.done()
        if self.write_at_once is None or not waits or self._pieces:
            return False
        try:
            return self.write_at_once(piece)
        except Exception as error:  # of a tokenizer
            self.fail(error)
            return False

    def fail(self, error: Exception) -> None:
        """End the reply with an error, in the loop's thread."""
        self._failed = error
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def next(self) -> list[Piece]:
        """Wait for further pieces; [] after the last one."""
        while not self._pieces and self._failed is None and self.left:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self._failed is not None:
            raise self._failed
        pieces, self._pieces = self._pieces, []
        return pieces


@dataclass(slots=True)
class _Open:
    """A reply whose groups the engine has."""

    groups: list[int]
    left: int  # choices that have not ended


@dataclass(slots=True)
class _Choice:
    reply: Reply
    number: int
    text: Text
    version: str = ""
    fresh: list[int] = field(default_factory=list)  # tokens without a text yet
    unsent: str = ""  # text that the loop does not have yet
    logprobs: list[TokenLogp] = field(default_factory=list)
    tokens: int = 0  # tokens that the loop does not count yet
    begun: bool = False


class Writer:
    """An engine in a thread of its own."""

    def __init__(
        self, engine: RequestEngine, decode: Decode, version: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        """``version``: the name of the engine's weights."""
        self._engine, self._decode, self._loop = engine, decode, loop
        self._versions = [version]  # by the engine's number
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._copying: Iterator[None] | None = None
        # the newest alone: each has all weights
        self._offers: deque[tuple[str, Mapping[str, Tensor], Failed]] = deque(maxlen=1)
        self._pending: deque[Reply] = deque()
        self._open: dict[Reply, _Open] = {}
        self._choices: dict[tuple[int, int], _Choice] = {}  # by group and index
        self._batch: list[tuple[Reply, Piece, str, int]] = []
        self._next, self._flushed, self._closed = 0, 0.0, False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.drawn = 0  # tokens

    # ---------------------------------------------------------------------- from the loop's thread

    @property
    def version(self) -> str:
        """The version of the weights that draw now."""
        return self._versions[self._engine.version]

    @property
    def live(self) -> int:
        """The number of choices that are being written."""
        return self._engine.live

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread after its present step."""
        self._inbox.put(self._close)
        if self._thread.ident is not None:
            self._thread.join()

    def write(self, reply: Reply) -> None:
        self._inbox.put(lambda: self._pending.append(reply))

    def cancel(self, reply: Reply) -> None:
        """Free the rows of a reply whose reader has left."""
        self._inbox.put(lambda: self._cancel(reply))

    def offer(self, version: str, params: Mapping[str, Tensor], failed: Failed) -> None:
        """Take new weights. If they do not fit, the loop calls ``failed`` with the reason."""
        self._inbox.put(lambda: self._offers.append((version, params, failed)))

    # -------------------------------------------------------------------------- the engine's thread

    def _run(self) -> None:
        while not self._closed:
            try:
                self._read()
                self._take()
                self._feed()
                self._step()
            except Exception as error:  # errors of torch and of tokenizers have no class in common
                self._fail(error)

    def _close(self) -> None:
        self._closed = True

    @property
    def _may_begin(self) -> bool:
        """May answers begin? False while copied weights wait until the old ones' answers end."""
        return self._copying is not None or self._engine.version == len(self._versions) - 1

    def _read(self) -> None:
        """Do the jobs in the inbox; wait for one if the engine has nothing to do."""
        busy = self._engine.live or self._engine.waiting or self._pending or self._offers
        if not busy and self._copying is None and self._may_begin:
            self._inbox.get()()
        try:
            while True:
                self._inbox.get_nowait()()
        except Empty:
            pass

    def _feed(self) -> None:
        """Give the engine the replies for which it has rows.

        While new weights are copied, a reply of several prompts waits: some of its prompts could
        begin with the old ones, and the others with the new ones.
        """
        while self._pending and self._engine.free > 0 and self._may_begin:
            job = self._pending[0].job
            if len(job.prompts) > 1 and (self._offers or self._copying is not None):
                return
            reply, groups = self._pending.popleft(), list[int]()
            for number, (prompt, how) in enumerate(zip(job.prompts, job.sampling, strict=True)):
                group, self._next = self._next, self._next + 1
                self._engine.submit(group, prompt, job.n, limit=job.limit, sampling=how)
                groups.append(group)
                for index in range(job.n):
                    text = Text(self._decode, job.stop)
                    self._choices[group, index] = _Choice(reply, number * job.n + index, text)
            self._open[reply] = _Open(groups, job.samples)

    def _cancel(self, reply: Reply) -> None:
        if reply in self._pending:
            self._pending.remove(reply)
        if (found := self._open.pop(reply, None)) is not None:
            for group in found.groups:
                self._engine.cancel(group)
                for index in range(reply.job.n):
                    self._choices.pop((group, index), None)

    def _take(self) -> None:
        """Copy parts of new weights for ``HELD_S``, or to the end if no answer is running."""
        if self._copying is None and self._offers and self._may_begin and not self._engine.waiting:
            version, params, failed = self._offers.popleft()
            try:
                self._copying = self._engine.take(len(self._versions), params, lambda: True)
            except ValueError as error:
                self._loop.call_soon_threadsafe(failed, str(error))
                return
            self._versions.append(version)
        until = perf_counter() + HELD_S
        while self._copying is not None and (not self._engine.live or perf_counter() < until):
            if next(self._copying, self) is self:
                self._copying = None

    def _step(self) -> None:
        engine = self._engine
        ended = {(one.group, one.index): one.stop for one in engine.step()}
        drawn, version = engine.drawn, self._versions[engine.version]
        self.drawn += len(drawn.token)
        now = perf_counter()
        due = now - self._flushed >= FLUSH_S
        for group, index, token, logp in zip(
            drawn.group, drawn.index, drawn.token, drawn.logp, strict=True
        ):
            key = group, index
            choice, stop = self._choices[key], ended.get(key)
            job = choice.reply.job
            choice.tokens += 1
            choice.version = choice.version or version
            if stop != Stop.EOS:
                choice.fresh.append(token)
                if job.with_logprobs:
                    others = drawn.likeliest.get(key, ((), ()))
                    choice.logprobs.append(TokenLogp(token, logp, list(zip(*others, strict=True))))
            send = job.stream and (due or not choice.begun)
            if job.stop or stop is not None or send:
                self._write_text(key, choice, stop, send=send)
        if due:
            self._flushed = now
        if self._batch:
            batch, self._batch = self._batch, []
            self._loop.call_soon_threadsafe(_deliver, batch)

    def _write_text(
        self, key: tuple[int, int], choice: _Choice, stop: Stop | None, *, send: bool
    ) -> None:
        """Turn a choice's tokens into text; pass it on if ``send``, or if the choice ends."""
        text = choice.text
        choice.unsent += text.add(choice.fresh, last=stop is not None)
        choice.fresh = []
        if text.stopped and stop is None:
            self._engine.cancel(*key)
        over = stop is not None or text.stopped
        finish = (
            ("length" if stop == Stop.LENGTH and not text.stopped else "stop") if over else None
        )
        if over:
            del self._choices[key]
            self._open[choice.reply].left -= 1
            if not self._open[choice.reply].left:
                del self._open[choice.reply]
        elif not send or not (choice.unsent or choice.logprobs):
            return
        piece = Piece(choice.number, choice.unsent, finish, choice.logprobs)
        self._batch.append((choice.reply, piece, choice.version, choice.tokens))
        choice.unsent, choice.logprobs, choice.tokens, choice.begun = "", [], 0, True

    def _fail(self, error: Exception) -> None:
        """Refuse all open answers, since the engine's state is unknown."""
        log.exception("the engine failed")
        self._engine.clear()
        self._copying = None
        del self._versions[self._engine.version + 1 :]
        refused = Refused(500, f"engine: must draw an answer, got {type(error).__name__}: {error}")
        for reply in self._open:
            self._loop.call_soon_threadsafe(reply.fail, refused)
        self._open.clear()
        self._choices.clear()
        self._batch.clear()


def _deliver(batch: Sequence[tuple[Reply, Piece, str, int]]) -> None:
    for reply, piece, version, tokens in batch:
        reply.add(piece, version, tokens)
