"""The judge of ``benchmarks/lm_kills.py`` sees each kind of wrong, and its log is whole."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_kills
import lm_kills_task
import pytest
from lm_kills import SCENARIOS, Killed, Scenario, Stuck, judge, lineage

PAIRS = [["a", "a", "b", "b"], ["c", "c", "d", "d"]]  # two updates of two prompts, two samples each
SCORED = [(1, ["a", "a"]), (1, ["b", "b"]), (1, ["c", "c"]), (1, ["d", "d"])]


def judged(
    trained: Sequence[Sequence[str]] = PAIRS,
    scored: Sequence[tuple[int, Sequence[str]]] = SCORED,
    dropped: Mapping[str, str] | None = None,
    **options: Any,
) -> lm_kills.Verdict:
    return judge("abcd", trained, scored, dropped or {}, group=2, **options)


def test_a_run_without_a_fault_passes() -> None:
    found = judged()
    assert found.passed and (found.trained, found.dropped, found.again) == (4, 0, 0)


def test_a_prompt_that_is_issued_again_by_another_process_is_counted() -> None:
    found = judged(scored=[*SCORED, (2, ["d"]), (2, ["d"])])
    assert found.passed and found.again == 1


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"trained": [PAIRS[0], ["c", "c"]]}, ("lost", ["d"])),
        ({"trained": [PAIRS[0], ["c", "c", "d"]]}, ("lost", ["d"])),
        ({"trained": [PAIRS[0], ["a", "a", "d", "d"]]}, ("lost", ["c"])),
        ({"trained": [PAIRS[0], ["a", "a", "d", "d"]]}, ("twice", ["a"])),
        ({"trained": [PAIRS[0], ["c", "c", "c", "d", "d"]]}, ("twice", ["c"])),
        ({"scored": [*SCORED, (1, ["b"])]}, ("repeated", ["b"])),
        ({"same": False}, ("same", False)),
    ],
)
def test_what_is_wrong_is_seen(given: dict[str, Any], wrong: tuple[str, object]) -> None:
    found = judged(**given)
    assert not found.passed and getattr(found, wrong[0]) == wrong[1]


def test_a_prompt_that_is_dropped_for_a_reason_is_not_lost() -> None:
    found = judged([PAIRS[0], ["c", "c"]], dropped={"d": "the reward raised"})
    assert found.passed and (found.trained, found.dropped) == (3, 1)


def test_an_update_that_is_done_again_counts_as_the_last_time() -> None:
    assert lineage([(0, ["a"]), (1, ["b"]), (0, ["a"]), (1, ["c"])], 2) == [["a"], ["c"]]
    with pytest.raises(ValueError, match=r"for each of 2 updates, got none for \[1\]"):
        lineage([(0, ["a"])], 2)


# A system whose updates are files. With "loses", a killed run goes on after a prompt too many.
PLAYED = """
import os, pathlib, sys, time
import lm_kills_task
out, faulty = pathlib.Path(sys.argv[1]), sys.argv[2]
out.mkdir(exist_ok=True)
begin = len(list(out.glob("step*")))
if (out / "torn").exists():
    sys.exit("torn")
for update in range(begin + (faulty == "loses" and begin > 0), 20):
    ids = [str(update)] * 2
    lm_kills_task.log("scored", ids=ids)
    lm_kills_task.log("trained", update=update - (faulty == "loses" and begin > 0), ids=ids)
    if faulty == "leaves" and update == 0 and not os.fork():
        time.sleep(60)
        os._exit(0)
    time.sleep(0.02)
    (out / f"step{update}").touch()
    if faulty == "tears" and not begin:
        (out / "torn").touch()
    if faulty == "fails" and update == 3:
        sys.exit("no luck")
if faulty == "loses":
    lm_kills_task.log("trained", update=19, ids=["0", "0"])
"""


class Played:
    """A system for the harness alone."""

    name = "played"

    def __init__(self, fault: str = "") -> None:
        self._fault = fault

    def roles(self, scenario: Scenario) -> Sequence[str]:
        return ["driver", "machine"]

    def prepare(self, scenario: Scenario, place: Path) -> None: ...

    def command(self, scenario: Scenario, place: Path, out: Path, *, again: bool) -> list[str]:
        return [sys.executable, "-c", PLAYED, str(out), self._fault]

    def victims(self, role: str, tree: Mapping[int, str]) -> Sequence[int]:
        return []

    def ids(self, line: Mapping[str, Any], out: Path) -> list[str]:
        return [str(one) for one in line["ids"]]

    def held_out(self, line: Mapping[str, Any]) -> bool:
        return False

    def dropped(self, out: Path) -> Mapping[str, str]:
        return {}

    def digest(self, out: Path) -> str:
        return str(len(list(out.glob("step*"))))

    def mend(self, out: Path) -> bool:
        if self._fault == "tears":
            (out / "torn").unlink()
        return self._fault == "tears"


SIZES = Scenario(name="played", max_lag=0, updates=20, group=2, evaluated=0)


@pytest.mark.few(2)
@pytest.mark.parametrize("fault", ["", "loses"])
def test_a_run_is_killed_and_judged(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_kills, "LATE_S", 0.02)
    system, out = Played(fault), tmp_path / "run"
    run = Killed(system, SIZES, tmp_path, out)
    try:
        lm_kills.killed(run, "driver", 3, 1, SIZES.updates)
        wanted = [str(update) for update in range(20)]
        found = lm_kills.verdict(system, SIZES, run, out, wanted, "20")
    finally:
        run.close()
    assert run.kills >= 1 and found.passed == (not fault), found
    assert bool(found.lost) == bool(fault)


def test_the_help_of_a_person_is_counted(tmp_path: Path) -> None:
    run = Killed(Played("tears"), SIZES, tmp_path, tmp_path / "run")
    try:
        lm_kills.killed(run, "driver", 1, 3, SIZES.updates)
    finally:
        run.close()
    assert (run.kills, run.mended, run.errors) == (1, 1, ["torn"])


def test_a_run_that_fails_by_itself_is_no_pass(tmp_path: Path) -> None:
    run = Killed(Played("fails"), SIZES, tmp_path, tmp_path / "run")
    try:
        with pytest.raises(Stuck, match="exit code 1\nno luck"):
            lm_kills.killed(run, "driver", 0, 1, SIZES.updates)
    finally:
        run.close()


def test_what_a_killed_run_leaves_behind_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Callable[..., None]
) -> None:
    monkeypatch.setattr(lm_kills, "GONE_S", 0.2)
    run = Killed(Played("leaves"), SIZES, tmp_path, tmp_path / "run")
    root, left = run._process.pid, dict[int, str]()

    def forked() -> bool:
        left.update(lm_kills.below(root))
        return len(left) > 1

    try:
        deadline(forked, 20.0, "its child")
        with pytest.raises(Stuck, match="left behind"):
            run.kill("driver", random.Random(1))
    finally:
        run.close()
        for pid in {*left} - {root}:
            os.kill(pid, signal.SIGKILL)


def test_the_task_logs_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LM_KILLS_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(lm_kills_task, "SLEEP_S", 0.0)
    assert lm_kills_task.reward(["01", "10"], id=["a", "a"], answer=["01", "01"]) == [1.0, 0.0]
    partner = lm_kills_task.Count()
    assert partner.reset({"id": "1007"}) == "1007?" and partner.step("1") == ("!", 0.0)
    assert partner.step("7") == (None, 1.0)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [one["ids"] for one in lines] == [["a", "a"], ["1007"]]
    assert len(lm_kills_task.Count.rows()) * 0.9 >= SCENARIOS["turns"].rows
