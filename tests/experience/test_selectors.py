"""Selectors against naive twins, their draws against the law, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.experience.replay import selectors, sumtree
from equipoise.experience.replay.selectors import Fifo, Prioritized, Uniform, importance_weights

ALPHA, EPSILON = 0.6, 1e-3
DRAWS = 1_000_000
MAKE = {
    "uniform": Uniform,
    "fifo": Fifo,
    "prioritized": lambda slots, streams=1: Prioritized(
        slots, streams, alpha=ALPHA, epsilon=EPSILON
    ),
}


def put(selector, places, there=True):
    """One by one, of a single stream."""
    for place in places:
        selector.put((slice(place, place + 1), slice(0, 1)), np.array([[there]]))


def filled(selector, slots, priority=None):
    """All of a single stream."""
    selector.put((slice(0, slots), slice(0, 1)), np.ones((slots, 1), bool))
    if priority is not None:
        selector.update(np.arange(slots), np.asarray(priority))
    return selector


# -------------------------------------------------------------------------------------- naive twins


class Twin:
    """Every item by itself: a dict from places to priorities, in the order of insertion."""

    def __init__(self):
        self.items, self.highest = {}, 1.0

    def put(self, places, there):
        for place, new in zip(places, there, strict=True):
            self.items.pop(place, None)
            if new:
                self.items[place] = self.highest

    def update(self, places, priority):
        for place, p in zip(places, priority):
            if place in self.items:
                self.items[place] = p
        self.highest = max(self.highest, *priority, 0.0)


def check(kind, selector, twin, places):
    """Is what the selector holds what the twin holds."""
    assert len(selector) == len(twin.items)
    state = selector.state()
    if kind == "uniform":
        assert np.flatnonzero(state["in"]).tolist() == sorted(twin.items)
    elif kind == "fifo":
        assert state["log"].tolist() == list(twin.items)
    else:
        mass = [
            (twin.items[p] + EPSILON) ** ALPHA if p in twin.items else 0.0 for p in range(places)
        ]
        np.testing.assert_allclose(state["mass"], mass, rtol=1e-12)


def draw(kind, selector, twin, n, rng):
    """Draw of what there is, and is it possible."""
    if not twin.items:
        return None
    n = min(n, len(twin.items))
    drawn, probability = selector.sample(n, rng)
    assert (
        drawn.dtype == np.int64
        and probability.dtype == np.float64
        and drawn.shape == probability.shape == (n,)
    )
    if kind == "fifo":
        assert drawn.tolist() == list(twin.items)[:n] and (probability == 1).all()
        twin.put(drawn.tolist(), [False] * n)
    elif kind == "uniform":
        assert set(drawn.tolist()) <= set(twin.items) and (probability == 1 / len(twin.items)).all()
    else:
        total = sum((p + EPSILON) ** ALPHA for p in twin.items.values())
        np.testing.assert_allclose(
            probability,
            [(twin.items[p] + EPSILON) ** ALPHA / total for p in drawn.tolist()],
            rtol=1e-9,
        )
    return drawn.tolist()


@st.composite
def operations(draw, slots, streams):
    what, places = draw(st.sampled_from(["put", "put", "update", "sample"])), slots * streams
    if what == "put":
        rectangle = []
        for size in (slots, streams):
            begin = draw(st.integers(0, size - 1))
            rectangle.append(slice(begin, draw(st.integers(begin + 1, size))))
        shape = [part.stop - part.start for part in rectangle]
        flags = draw(
            st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
        )
        return what, tuple(rectangle), np.array(flags, bool).reshape(shape)
    some = draw(st.lists(st.integers(0, places - 1), max_size=places + 3))
    return what, some, [draw(st.sampled_from([0.0, 1e-12, 0.3, 1.0, 7.0, 1e12])) for _ in some]


def do(operation, selector, twin, kind, rng, streams):
    what, some, values = operation
    match what:
        case "put":
            selector.put(some, values)
            slots, columns = (np.arange(part.start, part.stop) for part in some)
            twin.put(
                (slots[:, None] * streams + columns).reshape(-1).tolist(),
                values.reshape(-1).tolist(),
            )
        case "update":
            selector.update(np.array(some, np.int64), np.array(values))
            if kind == "prioritized":
                twin.update(some, values)
        case _:
            return draw(kind, selector, twin, len(some), rng)
    return None


@pytest.mark.parametrize("kind", MAKE)
@given(data=st.data(), slots=st.integers(1, 7), streams=st.integers(1, 3))
def test_selectors_do_what_their_twins_do(kind, data, slots, streams):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sumtree, "ROOTS", 2)
        selector, twin, rng = MAKE[kind](slots, streams), Twin(), np.random.default_rng(0)
        for operation in data.draw(st.lists(operations(slots, streams), min_size=1, max_size=25)):
            do(operation, selector, twin, kind, rng, streams)
            check(kind, selector, twin, slots * streams)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", MAKE)
@given(data=st.data(), slots=st.integers(1, 7), streams=st.integers(1, 3))
def test_the_same_draws_follow_on_a_load(kind, data, slots, streams):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sumtree, "ROOTS", 2)
        patch.setattr(selectors, "SCAN", data.draw(st.sampled_from([0, selectors.SCAN])))
        selector, twin, rng = MAKE[kind](slots, streams), Twin(), np.random.default_rng(0)
        for operation in data.draw(st.lists(operations(slots, streams), min_size=1, max_size=10)):
            do(operation, selector, twin, kind, rng, streams)
        state, held = selector.state(), dict(twin.items)
        assert all(isinstance(leaf, np.ndarray) for leaf in state.values())
        after = data.draw(st.lists(operations(slots, streams), min_size=1, max_size=10))
        first = [
            do(operation, selector, twin, kind, np.random.default_rng(i), streams)
            for i, operation in enumerate(after)
        ]
        # Loaded over other items, after the first one has gone on: the state is a copy.
        loaded, other = MAKE[kind](slots, streams), Twin()
        loaded.put((slice(0, slots), slice(0, streams)), np.ones((slots, streams), bool))
        loaded.update(np.arange(slots * streams), np.full(slots * streams, 99.0))
        loaded.load(state)
        other.items, other.highest = held, float(state["highest"][0]) if "highest" in state else 1.0
        check(kind, loaded, other, slots * streams)
        second = [
            do(operation, loaded, other, kind, np.random.default_rng(i), streams)
            for i, operation in enumerate(after)
        ]
        assert first == second
        check(kind, loaded, other, slots * streams)


@pytest.mark.parametrize("kind", MAKE)
def test_many_items_at_once(kind):
    """Batches as large as replays use, in rounds,
    and places as many as fill the sum tree's levels.
    """
    slots, streams, rng = 5_000, 10, np.random.default_rng(3)
    selector, twin = MAKE[kind](slots, streams), Twin()
    for i in range(60):
        for column in (0, 4, 8):
            begin, columns = i * 200 % slots, np.arange(column, min(column + 4, streams))
            rows, there = np.arange(begin, begin + 200), rng.random((200, len(columns))) < 0.8
            selector.put((slice(begin, begin + 200), slice(column, column + len(columns))), there)
            twin.put(
                (rows[:, None] * streams + columns).reshape(-1).tolist(), there.reshape(-1).tolist()
            )
        drawn = draw(kind, selector, twin, 500, rng)
        new = rng.exponential(size=500)
        selector.update(np.array(drawn), new)
        if kind == "prioritized":
            twin.update(drawn, new.tolist())
    check(kind, selector, twin, slots * streams)


# --------------------------------------------------------------------------------- the law of draws


def p_value(drawn, law):
    """Pearson's chi-square of draws against probabilities;
    bins of an expectation under 10 are one.
    """
    seen, expected = np.bincount(drawn, minlength=len(law)), law * len(drawn)
    assert seen[law == 0].sum() == 0
    small = expected < 10
    if small.any() and expected[small].sum() < 10:  # then with the smallest of the others
        small[np.argmin(np.where(small, np.inf, expected))] = True
    if small.any():
        seen, expected = (
            np.append(seen[~small], seen[small].sum()),
            np.append(expected[~small], expected[small].sum()),
        )
    if len(seen) == 1:
        return 1.0
    statistic = ((seen - expected) ** 2 / expected).sum()
    return float(
        torch.special.gammaincc(
            torch.tensor((len(seen) - 1) / 2).double(), torch.tensor(statistic / 2).double()
        )
    )


def draws(selector, rng, batch=10_000):
    return np.concatenate([selector.sample(batch, rng)[0] for _ in range(DRAWS // batch)])


@pytest.mark.parametrize("places", [7, 1_000, 65_537])
@pytest.mark.parametrize("alpha", [0.6, 1.0])
@pytest.mark.parametrize("spread", ["some", "equal", "one", "wide"])
def test_prioritized_draws_follow_the_law(places, alpha, spread):
    rng = np.random.default_rng(places)
    priority = {
        "some": rng.exponential(size=places),
        "equal": np.full(places, 0.3),
        "one": np.where(np.arange(places) == places * 2 // 3, 2.0, 0.0),
        "wide": 10 ** np.linspace(-12, 12, places)[rng.permutation(places)],
    }[spread]
    selector = Prioritized(places, alpha=alpha, epsilon=0.0)
    filled(selector, places, priority)
    law = priority**alpha / (priority**alpha).sum()
    assert p_value(draws(selector, rng), law) > 0.001


@pytest.mark.parametrize("places", [7, 1_000, 65_537])
def test_and_follow_it_after_a_million_updates(places):
    rng, selector = np.random.default_rng(places), Prioritized(places, alpha=ALPHA, epsilon=0.0)
    priority = np.ones(places)
    filled(selector, places)
    for _ in range(4_000):
        some, new = rng.integers(0, places, 250), rng.exponential(size=250)
        selector.update(some, new)
        priority[some] = new
    law = priority**ALPHA / (priority**ALPHA).sum()
    assert p_value(draws(selector, rng), law) > 0.001
    drawn, probability = selector.sample(1_000, rng)
    np.testing.assert_allclose(probability, law[drawn], rtol=1e-6)


def test_draws_of_a_batch_are_independent():
    """Strata would draw each of two equal items just once."""
    selector, rng = Prioritized(2, alpha=1.0, epsilon=0.0), np.random.default_rng(0)
    filled(selector, 2)
    both = sum(len(set(selector.sample(2, rng)[0].tolist())) == 2 for _ in range(1_000))
    assert 420 < both < 580  # half of them, within 5 standard deviations


@pytest.mark.parametrize(("places", "batch"), [(1_000, 10_000), (1_000, 10), (3_000, 20)])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_uniform_draws_follow_the_law(places, batch, share):
    """By a look at all, and by draws until there are enough; the last ones were never in."""
    rng, selector = np.random.default_rng(0), Uniform(2 * places)
    there = rng.random(places) < share
    selector.put((slice(0, places), slice(0, 1)), there[:, None])
    drawn = np.concatenate([selector.sample(batch, rng)[0] for _ in range(200_000 // batch)])
    assert p_value(drawn, there / there.sum()) > 0.001


def test_epsilon_keeps_items_of_priority_zero_in_the_draw():
    priority, rng = np.array([0.0, 1.0, 0.0]), np.random.default_rng(0)
    selector = Prioritized(3, alpha=0.5, epsilon=0.04)
    filled(selector, 3, priority)
    law = (priority + 0.04) ** 0.5
    assert p_value(draws(selector, rng), law / law.sum()) > 0.001


def test_alpha_zero_is_uniform_whatever_the_priorities():
    selector = Prioritized(3, alpha=0.0, epsilon=0.0)
    filled(selector, 3, [0.0, 1.0, 1e12])
    assert (selector.sample(9, np.random.default_rng(0))[1] == 1 / 3).all()


def test_new_items_have_the_highest_priority_seen():
    selector, rng = Prioritized(4, alpha=1.0, epsilon=0.0), np.random.default_rng(0)
    put(selector, [0])
    selector.update(np.array([0]), np.array([0.5], np.float32))
    put(selector, [1])  # 1: none above it was seen
    assert selector.state()["mass"].tolist() == [0.5, 1, 0, 0]
    selector.update(np.array([0]), np.array([4.0]))
    selector.update(np.array([0]), np.array([0.25]))
    put(selector, [2])
    selector.update(np.array([2]), np.array([8.0]))
    put(selector, [2], False)
    put(selector, [2, 3])
    assert selector.state()["mass"].tolist() == [0.25, 1, 8, 8]
    selector.update(np.array([3]), np.array([0.0]))
    assert len(selector) == 4 and 3 not in selector.sample(1_000, rng)[0]


# ------------------------------------------------------------------------------- importance weights


@given(
    st.lists(st.floats(1e-15, 1.0), min_size=1, max_size=50),
    st.integers(1, 10**7),
    st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1)),
)
def test_importance_weights(probability, n_items, beta):
    naive = [(1 / n_items * 1 / p) ** beta for p in probability]
    weight = importance_weights(np.array(probability), beta)
    np.testing.assert_allclose(weight, [w / max(naive) for w in naive], rtol=1e-6)
    assert weight.max() == 1 and (beta > 0 or (weight == 1).all())


@pytest.mark.parametrize(
    ("probability", "got"), [([0.5, 0.0], "0.0"), ([0.5, np.nan], "nan"), ([], "none")]
)
def test_importance_weights_refuse_what_was_never_drawn(probability, got):
    with pytest.raises(ValueError, match=f"above 0, got {got}"):
        importance_weights(np.array(probability), 0.4)


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (
            [1, np.nan, -1],
            r"got nan for the item at place 1 \(2 of 3 are wrong\); nothing was changed",
        ),
        ([1, 2, np.inf], r"got inf for the item at place 3 \(1 of 3"),
        ([-1e-9, 2, 3], r"got -1e-09 for the item at place 0 \(1 of 3"),
        ([1, 2, 1.7e308], r"from 0 to 1.25e\+307, got 1.7e\+308"),
        ([1, 2], r"a priority for each of \(3,\) places, got \(2,\)"),
    ],
)
def test_wrong_priorities_are_refused_and_nothing_is_changed(wrong, match):
    selector = Prioritized(4, alpha=1.0, epsilon=0.0)
    put(selector, [0, 1])
    selector.update(np.array([0, 1]), np.array([3.0, 4.0]))
    before = selector.state()
    with pytest.raises(ValueError, match=match):
        selector.update(np.array([0, 1, 3]), np.array(wrong))
    after = selector.state()
    assert len(selector) == 2 and all((before[k] == after[k]).all() for k in before)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 3.0])
def test_the_highest_priorities_still_have_a_sum(alpha):
    selector = Prioritized(1_000, alpha=alpha, epsilon=0.0)
    filled(selector, 1_000, np.full(1_000, selector._most))
    assert (selector.sample(5, np.random.default_rng(0))[1] == pytest.approx(1 / 1_000)) is True


@pytest.mark.parametrize(
    ("places", "match"),
    [([2, -1], r"0 to 3, got -1 \(1 of 2"), ([4, 0, 9], r"0 to 3, got 4 \(2 of 3")],
)
def test_places_that_there_are_not_are_refused(places, match):
    selector = filled(Prioritized(4, alpha=ALPHA, epsilon=EPSILON), 2)
    before = selector.state()
    with pytest.raises(ValueError, match=match):
        selector.update(np.array(places), np.ones(len(places)))
    after = selector.state()
    assert len(selector) == 2 and all((before[k] == after[k]).all() for k in before)


@pytest.mark.parametrize("kind", MAKE)
def test_a_state_of_other_places_is_refused(kind):
    with pytest.raises(ValueError, match=r"expected (an array \w+ \[4(, 1)?\]|places from 0 to 3)"):
        MAKE[kind](4).load(filled(MAKE[kind](5), 5).state())


@pytest.mark.parametrize("kind", MAKE)
def test_sampling_more_than_there_is(kind):
    selector, rng = MAKE[kind](4), np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"got (none|a sample of 1)"):
        selector.sample(1, rng)
    put(selector, [2])
    if kind == "fifo":
        with pytest.raises(
            ValueError, match="at most the 1 items that are left, got a sample of 2"
        ):
            selector.sample(2, rng)
        assert selector.sample(1, rng)[0].tolist() == [2] and not len(selector)
    else:
        assert selector.sample(3, rng)[0].tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="at least 1 slot and 1 stream, got 0 and 1"):
        MAKE[kind](0)


def test_only_items_of_priority_zero():
    selector = Prioritized(3, alpha=1.0, epsilon=0.0)
    filled(selector, 2, np.zeros(2))
    with pytest.raises(
        ValueError, match="of a priority above 0 to sample 5 of, got none among 2 items"
    ):
        selector.sample(5, np.random.default_rng(0))
    with pytest.raises(ValueError, match="at least 0, got -1 and 0"):
        Prioritized(3, alpha=-1, epsilon=0)
