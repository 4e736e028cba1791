"""The governor against rings whose speed is a formula: it finds what is fast, keeps to the limits,
and lets well alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from equipoise.balance.governor import Governor, Lever

Speed = Callable[[dict[str, int]], float]
TICK_S = 0.05


class Ring:
    """A ring that publishes ``speed`` versions a second, a little more or less in each moment."""

    def __init__(
        self, governor: Governor, speed: Speed, *, noise: float = 0.0, seed: int = 0
    ) -> None:
        self._governor, self._speed, self._noise, self._draw = (
            governor,
            speed,
            noise,
            random.Random(seed),
        )
        self._at = self._versions = 0.0

    def play(self, seconds: float) -> list[float]:
        """-> The moments at which something was changed, in seconds from now on."""
        one, began, changed = self._governor, self._at, list[float]()
        while self._at < began + seconds:
            self._at += TICK_S
            self._versions += TICK_S * self._speed(one.values) * self._draw.gauss(1.0, self._noise)
            if one.look(self._at, int(self._versions)):
                changed.append(self._at - began)
                assert all(
                    lever.low <= one.values[name] <= lever.high
                    for name, lever in one.levers.items()
                )
        return changed


def crowded(values: dict[str, int]) -> float:
    """Two cores: more than three actors take time from the learner."""
    actors = values["actors"]
    return 20.0 * min(actors, 3) / (1 + 0.15 * max(actors - 3, 0))


def sleeping(values: dict[str, int]) -> float:
    return 2.0 * values["actors"]


def waiting(values: dict[str, int]) -> float:
    """Lag hides a learner's time behind the actors', up to two versions."""
    return 10.0 * min(values["max_lag"], 2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("speed", "levers", "best"),
    [
        (crowded, {"actors": Lever(1, 16)}, 60.0),
        (sleeping, {"actors": Lever(1, 16)}, 32.0),
        (waiting, {"max_lag": Lever(1, 8)}, 20.0),
        (
            lambda v: crowded(v) * min(v["max_lag"], 2) / 2,
            {"actors": Lever(1, 16), "max_lag": Lever(1, 8)},
            60.0,
        ),
    ],
    ids=["crowded", "sleeping", "waiting", "both"],
)
@pytest.mark.parametrize("start", ["low", "high"])
def test_it_comes_near_the_best_within_a_minute_and_then_holds(
    start: str, speed: Speed, levers: dict[str, Lever], best: float, seed: int
) -> None:
    one = Governor(levers, {name: getattr(lever, start) for name, lever in levers.items()})
    ring = Ring(one, speed, noise=0.1, seed=seed)
    ring.play(60.0)
    assert not [at for at in ring.play(60.0) if at > 12.0], (
        "of the next minute it leaves 48 s alone"
    )
    assert speed(one.values) >= 0.9 * best, one.decisions


def test_of_two_that_are_as_fast_it_takes_the_one_with_fewer_actors_and_younger_rows() -> None:
    one = Governor({"actors": Lever(1, 16), "max_lag": Lever(1, 8)}, {"actors": 16, "max_lag": 8})
    Ring(one, lambda values: 12.0).play(60.0)
    assert one.values == {"actors": 1, "max_lag": 1}
    assert "actors=1 of 16, max_lag=1 of 8" in one.told()
    assert one.told() == "", "it is told once"


def test_a_thousand_small_losses_do_not_add_up() -> None:
    """Each halving costs 2 %, which would be let pass one by one."""
    one = Governor({"actors": Lever(1, 1024)}, {"actors": 1024})
    Ring(one, lambda values: 20.0 * 0.98 ** (11 - values["actors"].bit_length())).play(120.0)
    assert one.values["actors"] >= 512


def test_it_searches_anew_where_the_env_becomes_slower_and_where_it_is_fast_again() -> None:
    slow = [1.0]

    def speed(values: dict[str, int]) -> float:
        """The learner bears 12 versions a second, an actor makes 6, or a quarter of it."""
        return min(12.0, 6.0 * values["actors"] / slow[0])

    one = Governor({"actors": Lever(1, 16)}, {"actors": 16})
    ring = Ring(one, speed)
    ring.play(60.0)
    assert one.values["actors"] == 2
    slow[0] = 4.0
    ring.play(60.0)
    assert speed(one.values) >= 0.9 * 12.0
    slow[0] = 1.0
    assert not ring.play(60.0), (
        "it is as fast as before, and the learner is at its limit: there is nothing to notice"
    )


def test_it_goes_back_from_what_did_not_pay() -> None:
    one = Governor({"actors": Lever(1, 4)}, {"actors": 4})
    Ring(one, sleeping).play(30.0)
    assert one.values == {"actors": 4}
    tried, fine = one.decisions
    assert (tried.before, tried.after, tried.kept) == (4, 2, False)
    assert (fine.before, fine.after, fine.kept) == (4, 3, False)
    assert tried.rate_before == pytest.approx(8.0, rel=0.1) and tried.rate_after == pytest.approx(
        4.0, rel=0.1
    )


def test_nothing_is_measured_while_something_else_goes_on() -> None:
    one, at = Governor({"actors": Lever(1, 4)}, {"actors": 4}), 0.0
    for version in range(1000):
        at += TICK_S
        assert not one.look(at, version, disturbed=version % 20 == 0)
    assert not one.decisions


def test_a_learner_that_waits_is_given_more_first() -> None:
    one, at = Governor({"actors": Lever(1, 4)}, {"actors": 2}), 0.0
    while not one.decisions:
        at += TICK_S
        one.look(at, int(20 * at), waited=0.4)
    assert one.decisions[0].after == 4
    assert "waited 40%" in one.decisions[0].reason


def test_a_step_that_cannot_be_measured_for_long_is_undone() -> None:
    one, at, version = Governor({"actors": Lever(1, 4)}, {"actors": 4}), 0.0, 0
    while not one.decisions:
        at, version = at + TICK_S, version + 1
        one.look(at, version)
    assert one.values == {"actors": 2}
    until = at + 31.0
    while at < until:
        at, version = at + TICK_S, version + 1
        one.look(at, version, disturbed=True)
    assert one.values == {"actors": 4} and one.decisions[0].kept is False


def test_values_are_multiples_of_the_unit() -> None:
    lever = Lever(2, 8, unit=2)
    assert [lever.stepped(8, up=False, fine=False), lever.stepped(8, up=False, fine=True)] == [4, 6]
    assert [lever.stepped(2, up=False, fine=False), lever.stepped(2, up=True, fine=True)] == [2, 4]
