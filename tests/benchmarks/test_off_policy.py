"""What SAC and DQN are compared by: the same work, the better threads of each side, ratios within
rounds; nothing is run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matrix
import off_policy
import pytest
from harness import Failed
from off_policy import CASES, ROWS


def work(case: str, **changes: Any) -> dict[str, Any]:
    contract = CASES[case].contract
    return {
        "env": next(iter(contract.envs)),
        "frame_skip": contract.frame_skip,
        "sticky": contract.sticky,
        "observation": list(contract.observation),
        "actions": contract.actions,
        "parameters": contract.parameters,
        "precision": "fp32",
        "passes": contract.passes,
        "updates": 10,
        "moved": 0.5,
    } | changes


def result(row: str, i: int, value: float | None) -> dict[str, Any]:
    return {"row": row, "round": i, "unsteady": False} | (
        {"failed": "no"} if value is None else {"value": value}
    )


def test_every_row_can_be_run_and_each_side_has_both_numbers_of_threads() -> None:
    for name, row in ROWS.items():
        assert (
            row.case in CASES
            and name.startswith(f"{row.case}-")
            and f"--threads {name[-1]}" in row.command
        )
        if row.kind == "peer":
            assert (Path(matrix.__file__).parent / "peers" / row.command.split()[0]).exists()
    sides = {name[:-2] for name in ROWS}
    assert sides == {
        f"{name}-{side}" for name, case in CASES.items() for side in (*case.precisions, "sb3")
    }
    assert set(ROWS) == {f"{side}-{threads}" for side in sides for threads in (1, 2)}


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_those_of_our_networks(case: str) -> None:
    import equipoise
    from equipoise.plans.plan import plan_run
    from equipoise.plans.roles import network
    from equipoise.types import learning

    words = next(
        row.command for row in ROWS.values() if row.case == case and row.kind == "ours"
    ).split()
    given = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    program = equipoise.program(words[0], words[words.index("--algorithm") + 1], settings=given)
    net = network(program, plan_run(program).spec, "main")
    assert sum(p.numel() for p in net.parameters()) == CASES[case].contract.parameters
    policy = learning(program)["main"]
    assert policy.batch == CASES[case].batch
    assert policy.replay is not None
    rows = policy.unroll * program.placement.envs_per_actor * program.actors
    assert policy.replay.updates * policy.batch / rows == CASES[case].contract.passes


def test_a_row_of_other_work_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    did: dict[str, Any] = {"value": 100.0, "work": work("sac", passes=64.0), "command": "a peer"}
    monkeypatch.setattr(off_policy, "run_peer", lambda a, row, log: did)
    a = argparse.Namespace(row_map=ROWS)
    with pytest.raises(Failed, match="not the same work: passes"):
        off_policy.run_row(a, "sac-sb3-1")
    did["work"] = work("sac", passes=250.0)
    found = off_policy.run_row(a, "sac-sb3-1")
    assert found["value"] == pytest.approx(100.0 * 250 / 256) and found["unit"] == "updates/s"
    did |= {"value": 100.0, "work": work("dqn")}
    assert off_policy.run_row(a, "dqn-sb3-1")["value"] == 100.0


def test_ours_is_counted_within_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(command: list[str], out: Path, log: Path, **_: Any) -> Any:
        assert command[0] == "equipoise" and str(out) in command
        return tuple(
            {"wall_s": t, "env_steps": 4000 + 80 * t, "updates": 20 * t, "balance": {}}
            for t in (10, 40)
        )

    monkeypatch.setattr(off_policy, "trained", trained)
    whole = work("dqn", passes=3.0, updates=7)  # of a run that began without updates
    monkeypatch.setattr(off_policy, "run_for_json", lambda *_, **__: {"value": 1, "work": whole})
    a = argparse.Namespace(row_map=ROWS, equipoise="equipoise", warmup=10.0, seconds=30.0)
    found = off_policy.run_row(a, "dqn-bf16-2")
    assert found["value"] == 80.0
    assert found["work"]["passes"] == 8.0 and found["work"]["updates"] == 600


RESULTS = [
    result("sac-fp32-1", 0, 30.0),
    result("sac-fp32-1", 1, 10.0),
    result("sac-fp32-1", 2, 20.0),
    result("sac-fp32-2", 0, 15.0),
    result("sac-fp32-2", 1, None),
    result("sac-fp32-2", 2, 15.0),
    result("sac-sb3-1", 0, 5.0),
    result("sac-sb3-1", 1, 5.0),
    result("sac-sb3-1", 2, 5.0),
    result("sac-sb3-2", 0, 10.0),
    result("sac-sb3-2", 1, None),
    result("sac-sb3-2", 2, 5.0),
    result("dqn-bf16-1", 0, 9.0),
    result("dqn-sb3-1", 0, None),
]


def test_each_side_counts_with_its_better_threads_and_ratios_are_within_rounds() -> None:
    (found,) = off_policy.ratios(RESULTS)
    assert (found["ours"], found["with"]) == ("sac-fp32-1", "sac-sb3-2")
    assert found["rounds"] == [3.0, 4.0]  # round 1 has no figure of the peer
    assert found["ratio"] == 3.5


def test_the_page_has_every_row_and_says_what_is_missing() -> None:
    record = {
        "host": {"at": "2026-01-01 00:00:00", "cpu": "a CPU", "cores": 2, "python": "3.11"},
        "command": "off_policy.py --rounds 3",
        "arguments": {"rounds": "3", "seconds": "30"},
    }
    text = off_policy.page(record, RESULTS, list(ROWS))
    assert all(f"| {name} |" in text for name in ROWS)
    assert "| 20.0 | 10.0 | 30.0 | updates/s | 0 of 3 | 0 |" in text
    assert "| - | - | - | steps/s | 0 of 0 | 1 |" in text
    assert "| sac-fp32-1 | sac-sb3-2 | 3.50 | 3.00 | 4.00 | 1.50 |" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cases": "ppo"}, "--cases: expected some of sac, dqn, got ppo"),
        ({"rows": "sac-fp32-3"}, "got sac-fp32-3"),
        ({}, "setup.sh --home"),
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"cases": None, "rows": None, "peers_home": Path("/nowhere")}
    with pytest.raises(SystemExit):
        off_policy.choose(argparse.Namespace(**(given | changes)), argparse.ArgumentParser())
    assert said in capsys.readouterr().err


def test_rows_of_ours_need_no_peer() -> None:
    a = argparse.Namespace(cases=None, rows="dqn-fp32-1", peers_home=Path("/nowhere"))
    off_policy.choose(a, argparse.ArgumentParser())
    assert a.rows == ["dqn-fp32-1"] and json.dumps(a.rows)
