"""What aborted episodes is named: in arrays, over several groups of envs, and in the summary of a
run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise import api
from equipoise.console.terminal import summary_rows
from equipoise.envs.failures.causes import MOST, OTHER, SIZE, Causes, most_frequent
from equipoise.types import Inference, On


def test_a_cause_has_its_first_message_and_a_count() -> None:
    made = Causes()
    for cup in range(3):
        made.add("exception-ValueError-robot.py-12", f"ValueError: the gripper lost\ncup {cup}")
    made.add("nonfinite-WrongValue-obs", "WrongValue: obs is nan")
    assert made.told == [
        ("exception-ValueError-robot.py-12", "ValueError: the gripper lost cup 0", 3),
        ("nonfinite-WrongValue-obs", "WrongValue: obs is nan", 1),
    ]


def test_there_are_at_most_so_many_causes_of_so_many_bytes() -> None:
    made = Causes()
    for i in range(MOST + 5):
        made.add(f"cause {i}" + "x" * SIZE, "é" * SIZE)
    told = made.told
    assert len(told) == MOST
    assert [times for _, _, times in told] == [1] * (MOST - 1) + [6]
    assert told[-1][1] == OTHER
    made.add("short", "é" * SIZE)
    assert all(len(text.encode()) < SIZE for _, text, _ in made.told)


def test_the_most_frequent_of_all_groups_comes_first() -> None:
    left, right = Causes(), Causes()
    left.add("a", "A: of stream 1")
    for _ in range(2):
        right.add("b", "B: there")
        right.add("a", "A: of stream 2")
    assert list(most_frequent([left, right]).items()) == [("A: of stream 1", 3), ("B: there", 2)]
    assert most_frequent([]) == {}


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("on", "inference"), [("serial", "local"), ("process", "local"), ("process", "central")]
)
def test_the_summary_names_what_aborted_episodes(
    on: On, inference: Inference, tmp_path: Path
) -> None:
    run = api.start(
        "tests.envs.faulty:Faulty",
        "impala",
        on=on,
        out=tmp_path / "run",
        env_kwargs={"how": "raise", "every": 200},
        actors=1,
        envs_per_actor=4,
        unroll=8,
        batch=4,
        max_lag=1,
        steps=2_000,
        evaluate_episodes=0,
        inference=inference,
    )
    for _ in run:
        pass
    assert run.summary is not None
    aborted = sum(one["aborted"] for one in run.summary["failures"].values())
    ((text, times),) = run.summary["aborted"].items()
    assert aborted == times > 0
    assert text.startswith(f"{text.partition(':')[0]}: ")
    assert f"{times:,} x {text}" in summary_rows(run.summary)["failures"]
