"""Scorers that are workers of their own: what a generator gets back, whatever becomes of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from equipoise import tree
from equipoise.curve import Keys
from equipoise.language.scoring import remote
from equipoise.language.scoring.functions import functions
from equipoise.language.scoring.remote import AHEAD, RemoteScorer, Scorers
from equipoise.language.scoring.scorer import Scored
from equipoise.language.scoring.server import (
    ScorerWorker,
    Scoring,
    addresses,
    specs,
    words_of,
)
from tests.language.test_scorer_pool import HERE, WAIT_S, group


class Run:
    """Two scorers and a generator, ticked in turn."""

    def __init__(self, names: str, **options: Any) -> None:
        wanted = functions(",".join(f"{HERE}:{name}" for name in names.split(",")))
        self.scoring = Scoring(functions=tuple(wanted), deadline_s=60.0, workers=2)
        self.words: Any = tree.zeros(specs(2))
        self.scorers: dict[int, ScorerWorker] = {}
        self.stopped = set[int]()
        self.generator = self.client(self.scoring.generators, **options)

    def client(self, keys: Keys, **options: Any) -> RemoteScorer:
        known = Scorers(
            addresses=lambda: addresses(self.words), public=self.scoring.scorers.public, keys=keys
        )
        return RemoteScorer(self.scoring.functions, known, **options)

    def start(self, number: int) -> None:
        made = ScorerWorker(self.scoring, words_of(self.words, number), host="127.0.0.1")
        self.scorers[number] = made

    def lose(self, number: int) -> None:
        self.scorers.pop(number).close()

    def poll(self, generator: RemoteScorer | None = None) -> list[Scored]:
        for number, one in self.scorers.items():
            if number not in self.stopped:
                one.tick()
        return (generator or self.generator).poll()

    def close(self) -> None:
        self.generator.close()
        for one in self.scorers.values():
            one.close()


@pytest.fixture
def run() -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def begin(names: str = "length", **options: Any) -> Run:
        made.append(Run(names, **options))
        return made[-1]

    yield begin
    for one in made:
        one.close()


@pytest.fixture
def scores(deadline: Callable[..., None]) -> Callable[..., list[Scored]]:
    """Poll until ``count`` groups are scored."""

    def wait(one: Run, count: int) -> list[Scored]:
        found: list[Scored] = []

        def enough() -> bool:
            found.extend(one.poll())
            return len(found) >= count

        deadline(enough, WAIT_S, f"{count} groups")
        return found

    return wait


def test_two_scorers_share_the_groups_and_add_up_as_a_generator_does(run: Any, scores: Any) -> None:
    one = run("length,later")
    one.start(0)
    one.start(1)
    for key in range(20):
        one.generator.submit(key, group("a", "a" * key, bonus=[0.1, None]))
    assert one.generator.waiting == 20
    found = {scored.key: scored for scored in scores(one, 20)}
    assert sorted(found) == list(range(20)) and one.generator.waiting == 0
    for key, scored in found.items():
        assert scored.reward == [1.1, float(key)]
        assert scored.parts == {f"{HERE}:length": [1.0, float(key)], f"{HERE}:later": [0.1, None]}
    assert (one.words["scored"] > 0).all() and one.words["scored"].sum() == 20


def test_the_groups_of_a_scorer_that_is_lost_are_scored_by_the_other(
    run: Any, scores: Any, deadline: Any
) -> None:
    one = run()
    one.start(0)
    for key in range(3 * AHEAD):
        one.generator.submit(key, group("a"))
    one.stopped.add(0)  # it has some groups, and answers none
    deadline(lambda: (one.poll(), len(one.generator._queue) == 2 * AHEAD)[1], WAIT_S, "groups")
    one.lose(0)
    one.start(1)
    assert sorted(scored.key for scored in scores(one, 3 * AHEAD)) == list(range(3 * AHEAD))


def test_a_successor_is_found_at_its_own_address(run: Any, scores: Any) -> None:
    one = run()
    one.start(0)
    one.generator.submit(0, group("a"))
    scores(one, 1)
    one.lose(0)
    one.start(0)
    one.generator.submit(1, group("ab"))
    assert [scored.reward for scored in scores(one, 1)] == [[2.0]]
    assert one.words["life"].tolist() == [2, 0]


def test_an_answer_that_comes_twice_counts_once(run: Any, deadline: Any) -> None:
    """A network that failed for a moment: the group was sent again, and both answer."""
    one = run()
    one.start(0)
    one.generator.submit(0, group("a"))
    deadline(lambda: (one.generator.poll(), not one.generator._queue)[1], WAIT_S, "the group")
    one.generator._take_back(one.generator._connections[0])
    found: list[Scored] = []

    def answered() -> bool:
        found.extend(one.poll())
        return int(one.words["scored"][0]) == 2 and one.generator.waiting == 0

    deadline(answered, WAIT_S, "two answers")
    for _ in range(10):
        found += one.poll()
    assert [scored.key for scored in found] == [0]


def test_a_function_that_fails_costs_its_group_and_writes_a_capsule_here(
    run: Any, scores: Any, tmp_path: Path
) -> None:
    one = run("obeys", capsules=tmp_path)
    one.start(0)
    one.generator.submit(7, group("raise"))
    (scored,) = scores(one, 1)
    assert scored.reward is None and "OSError: no luck" in scored.error
    assert scored.capsule is not None and "no luck" in scored.capsule.read_text()


def test_a_group_that_no_connection_takes_is_lost_alone(
    run: Any, scores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MOST_BYTES", 1 << 12)
    one = run()
    one.start(0)
    one.generator.submit(0, group("a" * 5_000))
    one.generator.submit(1, group("a"))
    found = {scored.key: scored for scored in scores(one, 2)}
    assert found[0].reward is None and "at most 4,096 bytes" in found[0].error
    assert found[1].reward == [1.0]


def test_a_stranger_is_not_answered(run: Any, scores: Any) -> None:
    """Neither one with keys of its own, nor one without any."""
    one = run()
    one.start(0)
    other = one.client(Keys.made())
    other.submit(0, group("a"))
    plain = zmq.Context()
    socket = plain.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(addresses(one.words)[0].at)
    socket.send_multipart([b"0", b"{}"])
    try:
        for key in range(20):
            one.generator.submit(key, group("a"))
            assert one.poll(other) == []
        assert len(scores(one, 20)) == 20
        assert one.words["scored"].sum() == 20 and other.waiting == 1
    finally:
        other.close()
        socket.close()
        plain.term()


def test_an_address_that_is_being_written_is_none(run: Any) -> None:
    one = run()
    one.start(0)
    whole = addresses(one.words)
    assert whole[0].life == 1 and whole[0].at.startswith("tcp://127.0.0.1:")
    assert whole[1].life == 0
    one.words["life"][0] = 2  # a successor's number, and the address before it
    assert addresses(one.words)[0].life == 0
    one.words["address"][0] = np.frombuffer(b"\xff" * one.words["address"].shape[1], np.uint8)
    assert addresses(one.words)[0].life == 0
