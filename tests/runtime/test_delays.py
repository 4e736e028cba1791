"""Three machines behind a slow network: the bits of one, and a lag that keeps its bound."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.plans.plan import plan_run
from equipoise.runtime.messages import Note, Record
from tests.runtime import ruling
from tests.runtime.cables import Cabled, Cables
from tests.runtime.machines import LIMIT_S, ONE_MACHINE, Processes, blue_of, finish, on_machines
from tests.runtime.relay import Relays
from tests.runtime.test_cluster import ALL_AWAY, AWAY, PROGRAMS, SMALL, pids

CENTRAL = {
    "site 0": ["actor 0", "actor 1", "inference 0"],
    "site 1": ["actor 2", "actor 3", "inference 1"],
}
EACH_ALONE = {"site 0": ["actor 1"], "site 1": ["actor 2"]}
ACTORS = [f"actor {number}" for number in range(4)]


@pytest.fixture
def slow(seed: int) -> Iterator[Callable[[float], Relays]]:
    """``slow(most_s)``: the ways from sites to home, on which each chunk takes 0 to ``most_s``
    seconds.
    """
    made: list[Relays] = []

    def relays(most_s: float) -> Relays:
        made.append(Relays(most_s, seed))
        return made[-1]

    yield relays
    for one in made:
        one.close()


# the others are slow tests; make test-ray has all of them over Ray
IN_CI = ("ppo", "central at home")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "run_seed",
    [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    "name",
    [name if name in IN_CI else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS],
)
def test_a_slow_network_does_not_change_a_bit(
    name: str, run_seed: int, slow: Callable[[float], Relays], tmp_path: Path
) -> None:
    env, algorithm, options = PROGRAMS[name]
    options = options | {"seed": run_seed, "steps": 640}
    here, _ = finish(ONE_MACHINE["serial"](blue_of(tmp_path / "serial", env, algorithm, **options)))
    relays = slow(0.05)
    blue = blue_of(tmp_path / "cluster", env, algorithm, **options)
    there, stats = finish(
        on_machines(blue, CENTRAL if name == "central" else AWAY, Processes(relays.route))
    )
    assert there == here and relays.passed > 10_000
    assert (
        stats.rows["inserted"] == stats.rows["sampled"] + stats.rows["held"]
        and stats.rows["dropped"] == 0
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("max_lag", "straggler", "most_s", "sleep_s"),
    [
        (1, 1, 0.02, 0.2),
        *(
            pytest.param(lag, at, 0.2, 0.6, marks=pytest.mark.slow)
            for lag in (0, 1, 2, 4)
            for at in (0, 1)
        ),
    ],
)
def test_the_lag_comes_to_its_bound_and_not_above_it(
    max_lag: int,
    straggler: int,
    most_s: float,
    sleep_s: float,
    slow: Callable[[float], Relays],
    tmp_path: Path,
) -> None:
    """One of three actors is 20 times slower than an answer of home, so the others come to be
    ``max_lag`` versions ahead.

    The straggler is at home or on another machine.
    """
    made = ruling.program(
        actors=3,
        envs=4,
        unroll=5,
        max_lag=max_lag,
        steps=60 * (6 + 6 * max_lag),
        stragglers=[4 * straggler],
        sleep_s=sleep_s,
    )
    lags: list[int] = []

    def each(messages: Any) -> None:
        lags.extend(message.lag_max for message in messages if isinstance(message, Record))

    blue = replace(plan_run(made), directory=str(tmp_path))
    _, stats = finish(on_machines(blue, EACH_ALONE, Processes(slow(most_s).route)), each)
    assert max(lags) == max_lag
    assert stats.rows["sampled"] == made.schedule.steps and stats.rows["dropped"] == 0


def through_a_silence(
    nodes: Processes, link: Callable[[bool], object], down_s: float, folder: Path
) -> tuple[float, float]:
    """Run while the link of site 0 is down for a while -> the longest pause of the learner then,
    and the time that the site needed to come back.
    """
    runtime = on_machines(
        blue_of(folder, "CartPole-v1", "impala", max_lag=1, steps=100_000_000, settings=SMALL),
        ALL_AWAY,
        nodes,
    )
    notes: list[str] = []
    version, changed_at, longest = 0, 0.0, 0.0

    def until(true: Callable[[], object]) -> None:
        nonlocal version, changed_at, longest
        deadline = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < deadline, (runtime.stats(), notes)
            notes.extend(
                message.text for message in runtime.poll(0.05) if isinstance(message, Note)
            )
            longest = max(longest, time.monotonic() - changed_at)
            if (now := runtime.stats().version) > version:
                version, changed_at = now, time.monotonic()

    def acted(group: int) -> int:
        return runtime.stats().ticks[group]

    try:
        until(lambda: version >= 20 and min(map(acted, range(4))) > 0)
        workers = {title: pids(title) for title in ACTORS}
        link(False)
        begun, longest = time.monotonic(), 0.0
        until(lambda: time.monotonic() > begun + down_s)
        pause, fenced = longest, [acted(group) for group in (0, 1)]
        assert any("site 0 is out of reach" in note for note in notes), notes
        link(True)
        spoke = time.monotonic()
        until(lambda: all(acted(group) > before + 64 for group, before in enumerate(fenced)))
        again = time.monotonic() - spoke
        assert {title: pids(title) for title in ACTORS} == workers, "other processes"
    finally:
        runtime.stop()
    assert all(site.lost == 0 for site in runtime.stats().sites.values()), notes
    rows = runtime.stats().rows
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    return pause, again


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("silent_s", "down_s", "most_s"),
    [
        pytest.param(2.0, 8.0, 8.0, id="short"),
        pytest.param(5.0, 20.0, 7.0, id="long", marks=pytest.mark.chaos),
    ],
)
def test_a_run_goes_on_without_a_machine_whose_link_is_down_and_with_it_when_it_is_up(
    silent_s: float, down_s: float, most_s: float, slow: Callable[[float], Relays], tmp_path: Path
) -> None:
    """The learner pauses for less than ``most_s`` seconds."""
    relays = slow(0.005)
    nodes = Processes(relays.route)
    nodes.silent_s = silent_s

    def link(up: bool) -> None:
        relays["site 0"].speak() if up else relays["site 0"].fall_silent()

    pause, again = through_a_silence(nodes, link, down_s, tmp_path)
    print(f"the learner paused for {pause:.2f} s; the site was back after {again:.2f} s")
    assert pause < most_s
    assert again < 15.0  # not by the 30 s that ZeroMQ gives a handshake


@pytest.fixture
def cables() -> Iterator[Cables]:
    try:
        made = Cables(2)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"expected root and iproute2, for network namespaces: {error}")
    yield made
    made.close()


@pytest.mark.chaos
def test_a_run_goes_on_without_a_machine_whose_cable_is_pulled(
    cables: Cables, tmp_path: Path
) -> None:
    """The same with what the kernel makes of it: machines that are network namespaces."""

    def link(up: bool) -> None:
        cables.plug(0) if up else cables.pull(0)

    pause, again = through_a_silence(Cabled(cables), link, 20.0, tmp_path)
    print(f"the learner paused for {pause:.2f} s; the site was back after {again:.2f} s")
    assert pause < 7.0
    assert again < 15.0
