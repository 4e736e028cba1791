"""What the driver reads of a worker's time: also of the tick that it is in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise import api, tree
from equipoise.balance.shares import add
from equipoise.runtime import board as boards
from equipoise.runtime.board import Board
from equipoise.runtime.ipc import Heap
from equipoise.types import Tick
from equipoise.workers.kind import Measured
from tests.runtime.ruling import Held, program


class Clock:
    now, core = 100.0, 7.0

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.core


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(boards, "time", made)
    return made


def board() -> Board:
    rows = {
        "learner": Measured(parts=("sample", "loss"), lags=True),
        "actor 0": Measured(parts=("env",)),
    }
    return Board(rows, Heap("board", tree.nbytes(Board.specs(rows))))


def test_a_tick_that_has_not_ended_is_work(clock: Clock) -> None:
    made = board()
    meter = made.meter("learner", alone=False)
    clock.now += 2
    meter.add(Tick.STARVED)
    clock.now += 30
    now = made.shares(alone=True)["learner"]
    assert (now.worked, now.starved) == (30, 2)
    assert made.shares()["learner"].worked == 0, "in one thread the time since then is another's"
    meter.add(Tick.WORKED)
    assert made.shares(alone=True)["learner"].worked == 30, "and is not counted twice"
    meter.waits(True)
    clock.now += 5
    assert made.shares(alone=True)["learner"].worked == 30
    meter.waits(False)
    meter.add(Tick.BLOCKED)
    assert made.shares(alone=True)["learner"].blocked == 5


def test_a_successor_does_not_wait_because_the_one_before_did(clock: Clock) -> None:
    made = board()
    made.meter("actor 0", alone=False).waits(True)
    made.touch("actor 0")
    made.meter("actor 0", alone=False)
    clock.now += 3
    assert made.shares(alone=True)["actor 0"].worked == 3


def test_time_on_no_core_is_told_of_work_alone_and_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay = [40.0]  # of other times
    monkeypatch.setattr(boards, "run_delay_s", lambda: delay[0])
    made = board()
    meter = made.meter("actor 0")
    for _ in range(3):  # of 10 s of work 2 on a core, 3 waiting for one
        clock.now, clock.core, delay[0] = clock.now + 10, clock.core + 2, delay[0] + 3
        meter.add(Tick.WORKED)
        clock.now += 4
        meter.add(Tick.STARVED)
    found = made.shares()["actor 0"]
    assert (found.worked, found.preempted, found.starved, found.asleep) == (21, 9, 12, 15)
    meter = made.meter("actor 0")  # a successor
    clock.now, clock.core = clock.now + 10, clock.core + 9
    meter.add(Tick.WORKED)
    found = made.shares()["actor 0"]
    assert (found.worked, found.preempted, found.asleep) == (31, 9, 16), (
        "what its predecessor waited for a core is no work"
    )


def test_who_is_rung_and_gets_no_core_waits_for_one(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither work that it did not do nor a wait for others."""
    delay = [40.0]
    monkeypatch.setattr(boards, "run_delay_s", lambda: delay[0])
    made = board()
    meter = made.meter("actor 0")
    for _ in range(2):  # of 6 s at its doorbell it could have worked in 2
        clock.now, clock.core = clock.now + 10, clock.core + 10
        meter.add(Tick.WORKED)
        meter.waits(True)
        clock.now, delay[0] = clock.now + 6, delay[0] + 2
        meter.waits(False)
        meter.add(Tick.BLOCKED)
    found = made.shares()["actor 0"]
    assert (found.worked, found.preempted, found.blocked, found.asleep) == (20, 4, 8, 0)


# The parts that must have come in a short run: of an actor, of the learner, of others.
STEP = {
    "copy",
    "targets",
    "loss",
    "backward",
    "optimiser",
    "publish",
    "record",
    "priorities",
    "sample",
}
LOCAL = {"env", "write", "fetch", "act"}
RUNS: dict[str, tuple[str, Any, dict[str, Any], dict[str, set[str]]]] = {
    "on policy": ("ppo", "serial", {}, {"actor 0": LOCAL, "learner": STEP}),
    "a replay": ("dqn", "serial", {}, {"actor 0": LOCAL, "learner": STEP | {"insert"}}),
    "central": (
        "impala",
        "process",
        {"inference": "central", "settings": []},
        {
            "actor 0": {"env", "answer"},
            "inference 0": {"write", "fetch", "act", "answer"},
            "learner": STEP,
        },
    ),
    "shards": (
        "apex_dqn",
        "process",
        {"settings": ["replay.shards=2"]},
        # of both: if an actor is slow to start, the shard of its rows may have none
        {"shard": {"insert", "sample", "gather", "priorities"}, "learner": STEP},
    ),
}


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.few(2)
def test_the_parts_of_the_work_of_every_worker_are_told(case: str, tmp_path: Path) -> None:
    algorithm, on, options, wanted = RUNS[case]
    settings = ["replay.starts_at=64"] if "dqn" in algorithm else []
    options = options | {"settings": [*settings, *options.get("settings", [])]}
    run = api.start(
        "CartPole-v1",
        algorithm,
        on=on,
        out=tmp_path / "run",
        steps=512,
        evaluate_episodes=0,
        recipe=False,
        envs_per_actor=4,
        **options,
    )
    *_, last = list(run)
    for worker, parts in wanted.items():
        shares = add(one for name, one in last.balance.items() if name.startswith(worker))
        rare = {"gather"} - parts  # where several groups of envs happen to be acted for at once
        assert {name for name, seconds in shares.parts.items() if seconds > 0} - rare == parts
        assert {name for name, times in shares.counts.items() if times > 0} - rare == parts
        assert 0 < sum(shares.parts.values()) <= shares.worked + shares.preempted + 1e-9
    learner = last.balance["learner"]
    assert learner.counts["publish"] == last.updates, "a part that comes once an update"
    assert run.summary is not None
    told = run.summary["balance"]["learner"]
    assert (told["parts"], told["counts"]) == (learner.parts, learner.counts)


def test_what_a_worker_was_given_for_a_long_piece_of_work_is_not_taken_back(clock: Clock) -> None:
    """Not by the driver, which touches all of them after it was itself away."""
    made = board()
    meter = made.meter("learner", alone=False)
    clock.now += 2
    meter.expect(60)
    made.touch("learner")
    assert (
        made.touched("learner") == clock.now + 60 and made.shares(alone=True)["learner"].worked == 2
    )
    clock.now += 9
    meter.add(Tick.WORKED)
    assert made.touched("learner") == clock.now and made.shares()["learner"].worked == 11


@pytest.mark.parametrize("on", ["serial", "process"])
@pytest.mark.thorough
def test_of_the_shortest_run_the_last_report_says_what_the_summary_says(
    on: Any, tmp_path: Path
) -> None:
    run = api.start(program(steps=1), on=on, out=tmp_path / "run")
    *_, recorded, last = list(run)
    assert run.summary is not None and recorded.updates == last.updates == 1
    assert recorded.balance["learner"].total > 0 and recorded.verdict != "Too early to say."
    assert last.verdict == run.summary["verdict"] != "Too early to say."
    assert {name: shares.worked for name, shares in last.balance.items()} == {
        name: shares["worked"] for name, shares in run.summary["balance"].items()
    }


@pytest.mark.thorough
def test_a_long_first_update_is_work_and_ctrl_c_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.run.run.LAST_CUT_S", 1000.0)
    monkeypatch.setattr("equipoise.runtime.process.crew.GRACE_S", 0.2)
    run = api.start(program(algorithm=Held()), on="process", out=tmp_path / "run")
    report: Any = next(r for r in run if r.balance["learner"].share("worked") > 0.9)
    assert report.updates == 0 and report.verdict.startswith(("Learning-bound", "CPU-bound")), (
        report.verdict
    )
    run.close()
    assert run.summary is not None and run.summary["status"] == "interrupted"
    shares = run.summary["balance"]["learner"]
    assert shares["worked"] > shares["starved"], "also of the run as a whole"
