"""The governor in runs: where its values go, what is written of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise import api
from equipoise.balance.shares import Shares
from equipoise.plans.plan import plan_run
from equipoise.run.governing import Governing
from equipoise.runtime import flow
from equipoise.workers.kinds import KINDS

CARTPOLE: dict[str, Any] = {
    "actors": 8,
    "envs_per_actor": 4,
    "unroll": 20,
    "batch": 32,
    "max_lag": 4,
    "evaluate_episodes": 0,
    "recipe": False,
    "balance": "auto",
}


class Stand:
    """An attempt, its runtime and its reporter in one: what the governor does to them is written
    down.
    """

    def __init__(self) -> None:
        self.runtime = self.reporter = self
        self.began, self.version, self.phases = 0.0, 0, dict[str, str]()
        self.workers = {"learner": Shares(side="learning", worked=1.0)}
        self.limits: list[tuple[int, int | None]] = []
        self.paused: list[list[str]] = []
        self.kept: list[Any] = []
        self.notes: list[str] = []

    def stats(self) -> Stand:
        return self

    def limit(self, actors: int, max_lag: int | None) -> None:
        self.limits.append((actors, max_lag))

    def govern(self, program: Any, paused: list[str], kept: Any) -> None:
        self.paused.append(paused)
        self.kept.append(kept)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that goes on by itself."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += 0.05
        return now[0]

    monkeypatch.setattr("equipoise.run.governing.time.monotonic", monotonic)
    return now


def blue(**options: Any) -> Any:
    return plan_run(api.program("CartPole-v1", "impala", **CARTPOLE | options))


def looked(one: Governing, stand: Stand, times: int) -> None:
    for n in range(times):
        stand.version += n % 2
        one.look(stand, disturbed=False)  # type: ignore[arg-type]


def test_its_values_go_to_the_runtime_and_those_who_pause_to_the_reporter(
    moments: Any, tmp_path: Path
) -> None:
    one, stand = Governing(blue(), KINDS, tmp_path), Stand()
    looked(one, stand, 4000)
    assert stand.limits[0] == (8, 4), "it begins with the limits"
    assert stand.limits[-1] == (1, 1), (
        "the speed is the same whatever it does, so the least will do"
    )
    assert stand.paused[0] == [] and stand.paused[-1] == [f"actor {k}" for k in range(1, 8)]
    assert any("actors=1 of 8, max_lag=1 of 4" in note for note in stand.notes)
    lines = [
        json.loads(line)
        for line in (tmp_path / "governor.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [(line["lever"], line["before"], line["after"]) for line in lines[:3]] == [
        ("actors", 8, 4),
        ("actors", 4, 2),
        ("actors", 2, 1),
    ]
    assert all(line["kept"] is not None and line["rate_after"] for line in lines)


def test_new_workers_after_a_failure_get_the_values_of_before(moments: Any, tmp_path: Path) -> None:
    one, stand, after = Governing(blue(), KINDS, tmp_path), Stand(), Stand()
    looked(one, stand, 4000)
    looked(one, after, 1)
    assert after.limits == [(1, 1)]


def test_a_run_that_ends_amid_a_step_has_what_was_before_it(moments: Any, tmp_path: Path) -> None:
    one, stand = Governing(blue(), KINDS, tmp_path), Stand()
    while len(stand.limits) < 2:
        looked(one, stand, 2)
    assert stand.limits[-1] == (4, 4), "it is tried"
    assert stand.kept[-1].placement.actors == 8


def test_a_full_disk_costs_the_lines_alone(moments: Any, tmp_path: Path) -> None:
    one, stand = Governing(blue(), KINDS, tmp_path / "no such folder"), Stand()
    looked(one, stand, 400)
    assert any("governor.jsonl was not written" in note for note in stand.notes)
    assert len(stand.limits) > 1


def test_a_run_without_it_is_left_alone(moments: Any, tmp_path: Path) -> None:
    one, stand = Governing(blue(balance="off"), KINDS, tmp_path), Stand()
    looked(one, stand, 100)
    assert not stand.limits and not list(tmp_path.iterdir())


def test_each_of_two_learners_has_half_of_the_actors(moments: Any, tmp_path: Path) -> None:
    """So each step changes as many actors as it says."""
    one, stand = Governing(blue(learners=2, batch=64), KINDS, tmp_path), Stand()
    looked(one, stand, 4000)
    assert {actors % 2 for actors, _ in stand.limits} == {0} and stand.limits[-1][0] == 2
    given: list[tuple[int, int | None]] = []

    class Queue:
        def limit(self, actors: int, max_lag: int | None) -> None:
            given.append((actors, max_lag))

    flow.limit(blue(learners=2, batch=64), SimpleNamespace(queues={0: Queue(), 1: Queue()}), 6, 2)  # type: ignore[arg-type]
    assert given == [(3, 2), (3, 2)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_lag": 0}, "placement.balance: expected off in lockstep"),
        ({"balance": "on"}, "balance: expected one of 'off', 'auto', got 'on'"),
        (
            {"settings": ["placement.least_actors=9"]},
            "placement.least_actors: expected at most actors=8, got 9",
        ),
        ({"inference": "central"}, "placement.balance: expected off with inference=central"),
        ({"actors": 2, "learners": 2, "batch": 8, "max_lag": 1}, "expected something to change"),
        (
            {"actors": 1, "batch": 4, "max_lag": 1},
            "placement.balance: expected something to change",
        ),
        (
            {"actors": 1, "batch": 4, "max_lag": None},
            "placement.balance: expected something to change",
        ),
        ({"settings": ["placement.least_actors=2"], "balance": "off"}, "least_actors"),
    ],
)
def test_limits_that_leave_nothing_to_change_are_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        api.start("CartPole-v1", "impala", out=tmp_path / "run", **CARTPOLE | options)
    assert not (tmp_path / "run").exists()


def test_one_thread_has_no_balance(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="balance: expected off with on=serial"):
        api.start("CartPole-v1", "impala", on="serial", out=tmp_path / "run", **CARTPOLE)
    assert not (tmp_path / "run").exists()


def test_a_replay_keeps_a_ring_for_each_actor_so_none_may_pause(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="placement.balance: expected off with a replay"):
        api.start("CartPole-v1", "dqn", out=tmp_path / "run", **CARTPOLE | {"batch": 64})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("impala", {"steps": 150_000}), ("ppo", {"steps": 20_000, "learners": 2, "batch": 64})],
)
def test_a_run_keeps_its_limits_and_all_rows(
    algorithm: str, options: dict[str, Any], tmp_path: Path
) -> None:
    with api.start("CartPole-v1", algorithm, out=tmp_path / "run", **CARTPOLE | options) as run:
        for _ in run:
            pass
    assert run.summary is not None
    assert run.summary["status"] == "completed"
    assert (
        1 <= run.summary["governor"]["actors"] <= 8 and 1 <= run.summary["governor"]["max_lag"] <= 4
    )
    rows = run.summary["rows"]
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    with pytest.raises(ValueError, match="expected a run with --balance off"):
        api.whatif(run.directory)
