"""Episode statistics against a list of episodes kept by hand."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from equipoise import tree
from equipoise.actors.episodes import FIRST, RECENT, Episodes, first_returns, recent, recent_info
from equipoise.record import statefile
from equipoise.types import TimeStep


class Heap:
    def __init__(self, metrics: tuple[str, ...] = ()) -> None:
        self.buffer = bytearray(tree.nbytes(Episodes.layout(metrics)))


def step(rng: np.random.Generator, streams: int, ending: float) -> TimeStep:
    done = rng.random(streams) < ending
    valid = rng.random(streams) < 0.9
    return TimeStep(
        obs={},
        reward=np.where(valid, rng.normal(size=streams), 0).astype(np.float32),
        terminated=done & valid,
        truncated=done & valid & (rng.random(streams) < 0.5),
        first=~valid,
        valid=valid,
        stream=np.arange(streams),
    )


@pytest.mark.parametrize(("streams", "ending"), [(1, 0.1), (7, 0.05), (300, 0.6)])
def test_against_a_naive_twin(streams: int, ending: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    actors = [Episodes(streams, Heap()) for _ in range(2)]
    ended: list[tuple[int, float, int]] = []
    running = [[(0.0, 0)] * streams for _ in actors]
    assert recent(actors) == (0, None, None)
    for tick in range(200):
        finished: list[tuple[int, float, int]] = []
        for a, rows in zip(actors, running, strict=True):
            ts = step(rng, streams, ending)
            a.observe(ts)
            for i in range(streams):
                if not ts.valid[i]:  # and first: a seam, or an episode that was aborted
                    rows[i] = (0.0, 0)
                    continue
                rows[i] = (rows[i][0] + float(ts.reward[i]), rows[i][1] + int(ts.valid[i]))
                if ts.terminated[i] or ts.truncated[i]:
                    finished.append((tick, *rows[i]))
                    rows[i] = (0.0, 0)
        ended += finished
    count, mean, length = recent(actors)
    assert count == len(ended)
    if streams < 300:
        last = sorted(ended, key=lambda e: e[0])[-RECENT:]
        assert mean == pytest.approx(np.mean([e[1] for e in last]), rel=1e-5)
        assert length == pytest.approx(np.mean([e[2] for e in last]))
    # more than RECENT end in one tick: which of them count is not said, only that they ended last
    else:
        assert length is not None and length < 10


@pytest.mark.parametrize("streams", [1, 7, 30])
def test_the_first_returns_are_as_many_of_each_stream(streams: int, seed: int) -> None:
    """Against a list by hand; a stream whose episodes are short does not count more."""
    rng, actors = np.random.default_rng(seed), [Episodes(streams, Heap()) for _ in range(2)]
    each = -(-FIRST // streams)
    returns: list[list[list[float]]] = [[[] for _ in range(streams)] for _ in actors]
    while any(len(one) < 2 * each for of_actor in returns for one in of_actor):
        complete = all(len(one) >= each for of_actor in returns for one in of_actor)
        assert (first_returns(actors) is not None) == complete
        for actor, of_actor in zip(actors, returns, strict=True):
            # each step is an episode, or none
            ended = rng.random(streams) < np.linspace(0.1, 0.9, streams)
            reward = rng.normal(size=streams).astype(np.float32) * ended
            no = np.zeros(streams, bool)
            actor.observe(
                TimeStep(
                    obs={},
                    reward=reward,
                    terminated=ended,
                    truncated=no,
                    first=no,
                    valid=~no,
                    stream=np.arange(streams),
                )
            )
            for i in np.flatnonzero(ended):
                of_actor[i].append(float(reward[i]))
    first = [x for of_actor in returns for one in of_actor for x in one[:each]]
    assert first_returns(actors) == pytest.approx((len(first), np.mean(first), np.std(first)))


def test_an_actor_says_which_version_it_acts_by() -> None:
    one = Episodes(2, Heap())
    one.begins(7, 64)
    assert one.acting == (7, 64) and one.next_row == 64
    other = Episodes(2, Heap())
    other.load(statefile.parse(statefile.dump(one.state())))
    assert other.acting == (7, 64)


def test_memory_does_not_grow() -> None:
    assert tree.nbytes(Episodes.specs) <= 4096


def test_numbers_of_info_against_a_naive_twin(seed: int) -> None:
    """Two names, absent at random; episodes that are aborted leave nothing;
    more actors than one.
    """
    rng = np.random.default_rng(seed)
    names, streams = ("a", "b/c"), 5
    actors = [Episodes(streams, Heap(names), names) for _ in range(2)]
    running: list[list[list[list[float]]]] = [[[[], []] for _ in range(streams)] for _ in actors]
    ended: list[tuple[int, list[tuple[float, float] | None]]] = []
    assert recent_info(actors) == {
        "a/last": None,
        "a/mean": None,
        "b/c/last": None,
        "b/c/mean": None,
    }
    for tick in range(300):
        for actor, rows in zip(actors, running, strict=True):
            ts = step(rng, streams, 0.1)
            info = np.where(
                rng.random((streams, 2)) < (0.3, 0.02), rng.normal(size=(streams, 2)), np.nan
            )
            actor.observe(dataclasses.replace(ts, info=info))
            for i in range(streams):
                if not ts.valid[i]:
                    rows[i] = [[], []]
                    continue
                for j in range(2):
                    rows[i][j] += [x for x in [float(info[i, j])] if x == x]
                if ts.terminated[i] or ts.truncated[i]:
                    ended.append(
                        (tick, [(r[-1], float(np.mean(r))) if r else None for r in rows[i]])
                    )
                    rows[i] = [[], []]
    last = [episode for _, episode in sorted(ended, key=lambda e: e[0])[-RECENT:]]
    for j, name in enumerate(names):
        had = [episode[j] for episode in last if episode[j] is not None]
        assert 0 < len(had) < RECENT
        expected = np.mean(np.array(had), axis=0)
        got = recent_info(actors)
        assert (got[f"{name}/last"], got[f"{name}/mean"]) == pytest.approx(tuple(expected))


def test_numbers_of_info_are_part_of_the_state() -> None:
    rng = np.random.default_rng(0)

    def rows() -> TimeStep:
        return dataclasses.replace(step(rng, 4, 0.2), info=rng.normal(size=(4, 1)))

    one, other = (Episodes(4, Heap(("x",)), ("x",)) for _ in range(2))
    for _ in range(50):
        one.observe(rows())
    other.load(statefile.parse(statefile.dump(one.state())))
    for _ in range(50):
        ts = rows()
        one.observe(ts)
        other.observe(ts)
    assert recent_info([one]) == recent_info([other])
    again = pickle.loads(pickle.dumps(one))  # as it travels to a worker
    assert again.metrics == ("x",)
    with pytest.raises(ValueError, match="expected keys"):
        Episodes(4, Heap()).load(one.state())
