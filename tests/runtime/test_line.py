"""A line on a slow link: what a body that takes long does to the session, and to what is said
meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from equipoise.runtime.cluster import line as lines
from equipoise.runtime.cluster.frames import Cut, Kind, Rows, Said, Stop, Taken, Weights
from equipoise.runtime.cluster.line import PIECES, SILENT_S, Line
from equipoise.runtime.cluster.wire import BOTH, PIECE, WORDS

MOST = {
    Kind.WEIGHTS: 1 << 26,
    Kind.ROWS: 1 << 26,
    Kind.SAID: WORDS,
    Kind.CUT: 0,
    Kind.STOP: 0,
    **BOTH,
}


class End:
    """A ``Link`` that takes ``rate`` bytes a second towards the other end."""

    def __init__(self, rate: float) -> None:
        self.rate, self.now, self.free_at = rate, 0.0, 0.0
        self.coming: deque[tuple[float, bytes, bytes]] = deque()
        self.other: Any = None
        self.queued = 0  # the most bytes that were on their way to the other end

    def send(self, head: bytes, body: Any) -> bool:
        data = bytes(body)
        self.free_at = max(self.free_at, self.now) + (len(head) + len(data)) / self.rate
        self.other.coming.append((self.free_at, head, data))
        self.queued = max(self.queued, sum(len(one[2]) for one in self.other.coming))
        return True

    def receive(self) -> tuple[bytes, bytes] | None:
        if not self.coming or self.coming[0][0] > self.now:
            return None
        _, head, body = self.coming.popleft()
        return head, body

    def closed(self) -> bool:
        return False


class Pair:
    """Two ends, and what each has heard."""

    def __init__(self, rate: float) -> None:
        self.links = [End(rate), End(rate)]
        self.links[0].other, self.links[1].other = self.links[1], self.links[0]
        self.lines = [Line(link, MOST) for link in self.links]
        self.heard: list[list[Any]] = [[], []]
        self.now = 0.0
        for line in self.lines:
            line.begin(1, 0.0)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.05
            for link, line, heard in zip(self.links, self.lines, self.heard, strict=True):
                link.now = self.now
                while (frame := line.receive(self.now)) is not None:
                    heard.append(frame)
                line.beat(self.now)

    @property
    def whole(self) -> bool:
        return all(line.session for line in self.lines)


def data(size: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, size, np.uint8)


def test_a_body_may_take_longer_than_a_silence() -> None:
    pair, body = Pair(rate=1e6), data(20_000_000)
    pair.lines[0].send(Weights(3, 4, body))
    pair.lines[0].send(Cut(1))
    pair.run(4 * SILENT_S + 5.0)
    assert pair.whole
    weights, cut = pair.heard[1]
    assert weights.message.numbers == (3, 4, 0) and bytes(weights.message.body) == body.tobytes()
    assert cut.kind is Kind.CUT, "what is sent after it waits for it"
    assert pair.links[0].queued <= (PIECES + 1) * PIECE, "what is under way is bounded"


def test_in_one_piece_it_would_end_the_session(monkeypatch: Any) -> None:
    monkeypatch.setattr(lines, "PIECE", 1 << 30)
    pair = Pair(rate=1e6)
    pair.lines[0].send(Weights(body=data(20_000_000)))
    pair.run(4 * SILENT_S + 5.0)
    assert not pair.whole


def test_both_ends_may_send_large_bodies_at_once() -> None:
    pair, body = Pair(rate=1e7), data(30_000_000)
    for line in pair.lines:
        line.send(Weights(body=body))
        line.send(Rows(body=body[::-1].copy()))
    pair.run(10.0)
    for heard in pair.heard:
        assert [frame.kind for frame in heard] == [Kind.WEIGHTS, Kind.ROWS]
        assert bytes(heard[1].message.body) == body[::-1].tobytes()


def test_the_caller_may_overwrite_what_it_has_sent() -> None:
    pair, body = Pair(rate=1e6), data(PIECE * PIECES * 2)
    before = body.tobytes()
    pair.lines[0].send(Rows(body=body))
    body[:] = 0
    pair.run(15.0)
    assert bytes(pair.heard[1][0].message.body) == before


def test_the_last_word_does_not_wait() -> None:
    pair = Pair(rate=1e6)
    pair.lines[0].send(Weights(body=data(20_000_000)))
    pair.lines[0].send(Stop())
    pair.run(PIECES * PIECE / 1e6 + 1.0)
    assert [frame.kind for frame in pair.heard[1]] == [Kind.STOP]
    pair.run(30.0)
    assert [frame.kind for frame in pair.heard[1]] == [Kind.STOP, Kind.WEIGHTS]


@pytest.mark.parametrize("kind", [Said, Weights])
def test_pieces_are_no_way_around_the_bound_of_a_kind(kind: Any) -> None:
    pair = Pair(rate=1e9)
    pair.lines[0].send(kind(body=bytes(MOST[kind.kind] + 1)))
    pair.run(5.0)
    assert (
        not pair.lines[1].session
        and pair.lines[1].refused["too large"] == 1
        and pair.heard[1] == []
    )


def test_pieces_of_one_session_are_not_gone_on_with_in_the_next() -> None:
    pair = Pair(rate=1e6)
    pair.lines[0].send(Weights(body=data(10_000_000)))
    pair.run(2.0)
    for link in pair.links:
        link.coming.clear()
    for line in pair.lines:
        line.begin(2, pair.now)
    pair.lines[0].send(Said(b"{}"))
    pair.run(10.0)
    assert [(frame.kind, bytes(frame.message.body)) for frame in pair.heard[1]] == [
        (Kind.SAID, b"{}")
    ]


def test_a_piece_is_taken_once() -> None:
    pair = Pair(rate=1e9)
    pair.lines[1].send(Taken())
    pair.run(1.0)
    assert not pair.lines[0].session and pair.lines[0].refused["wrong numbers"] == 1


def test_an_end_that_slept_reads_what_came_before_it_judges_the_other() -> None:
    """A process that the machine left without a core for long: the other end has said that it
    lives.
    """
    pair = Pair(1e9)
    pair.run(1.0)
    slept, awake = 0, 1
    until = pair.now + 2 * SILENT_S
    while pair.now < until:
        pair.now += 0.05
        for link in pair.links:
            link.now = pair.now
        pair.lines[awake]._heard_at = pair.now  # else the one that slept would be the silent one
        assert pair.lines[awake].beat(pair.now)
    while pair.lines[slept].receive(pair.now) is not None:
        pass
    assert pair.lines[slept].beat(pair.now)
