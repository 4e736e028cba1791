"""A kill at any file operation leaves the old or the new; of several processes one wins, and all
are in the audit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def lines(module: str, word: str, folder: Path) -> list[Any]:
    """What a program of the tests prints, a JSON value a line."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.registry.{module}", word, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "scenario", ["alias", "add", "gc", "first", "other", "repair", "rollback", "refused"]
)
def test_a_kill_at_any_file_operation_leaves_the_old_or_the_new(
    scenario: str, tmp_path: Path
) -> None:
    states, *killed = lines("killing", scenario, tmp_path)
    old, new = states["old"], states["new"]
    assert old != new
    assert (
        len(killed) > 40
        and killed[-1]["code"] == 0
        and all(one["code"] == 9 for one in killed[:-1])
    )
    allowed = [old, new, {"policies": {}, "wrong": []}] if scenario == "first" else [old, new]
    for one in killed:
        # removes several versions, each of which is there as a whole or not at all
        if scenario == "gc":
            between(old, new, one["seen"])
        else:
            assert one["seen"] in allowed, one["nth"]
        assert one["left"] == [], "gc removes what a kill left"
        wanted = json.loads(json.dumps(new))
        # was refused before the kill, and again after it
        if scenario == "refused" and one["seen"] == new:
            wanted["policies"]["cart"]["audit"].append("refused")
        assert one["again"] == wanted, "the operation works after the kill"
    assert {json.dumps(one["seen"]) for one in killed} >= {json.dumps(old), json.dumps(new)}


def between(old: Any, new: Any, seen: Any) -> None:
    """Is this a state on the way of a gc?"""
    before, after, now = (state["policies"]["cart"] for state in (old, new, seen))
    assert now["aliases"] == before["aliases"] and seen["wrong"] == []
    assert set(after["versions"]) <= set(now["versions"]) <= set(before["versions"])
    assert now["audit"] == after["audit"][: len(now["audit"])] and len(now["audit"]) >= len(
        before["audit"]
    )
    assert len(before["versions"]) - len(now["versions"]) <= now["audit"].count("removed")


def test_of_eight_processes_one_moves_the_alias_and_all_are_audited(tmp_path: Path) -> None:
    (rounds,) = lines("racing", "alias", tmp_path)
    for one in rounds:
        assert sorted(one["codes"]) == [0, *[1] * 7]
        winner = one["codes"].index(0)
        assert one["champion"] == winner
        assert sorted(one["audit"]) == sorted(
            [["champion", winner], *(["refused", n] for n in range(8) if n != winner)]
        )
        assert one["audit"][0] == ["champion", winner], "who was refused came later"


def test_eight_processes_add_at_once(tmp_path: Path) -> None:
    (found,) = lines("racing", "add", tmp_path)
    assert found == {"codes": [0] * 8, "audit": ["added"] * 9, "versions": 9, "wrong": []}
