"""What is compared with what, whether it is the same work, and what is written of it; nothing is
run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import matrix
import pytest
import replay
import report
from harness import Failed
from rows import RATIOS, ROWS
from work import CONTRACTS, broken, differences, sticky

BENCHMARKS = Path(matrix.__file__).parent


def work(case: str, **changes: Any) -> dict[str, Any]:
    contract = CONTRACTS[case]
    return {
        "env": next(iter(contract.envs)),
        "frame_skip": contract.frame_skip,
        "sticky": contract.sticky,
        "observation": list(contract.observation),
        "actions": contract.actions,
        "parameters": contract.parameters,
        "precision": "fp32",
        "passes": 1.0,
        "updates": 10,
        "moved": 0.5,
    } | changes


# ----------------------------------------------------------------------------------------- the work


@pytest.mark.parametrize("case", CONTRACTS)
def test_the_same_work_is_the_same(case: str) -> None:
    assert broken(CONTRACTS[case], work(case)) == []
    assert (
        broken(
            CONTRACTS[case],
            work(case, passes=0.95, observation=list(reversed(CONTRACTS[case].observation))),
        )
        == []
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"env": "ALE/Pong-v4"}, "env"),
        ({"frame_skip": 1}, "frame_skip"),
        ({"sticky": 0.25}, "sticky"),
        ({"observation": [1, 84, 84]}, "observation"),
        ({"actions": 18}, "actions"),
        ({"parameters": 1_684_128}, "parameters"),
        ({"passes": 0.5}, "passes"),
        ({"passes": 4.0}, "passes"),
        ({"passes": float("nan")}, "passes"),
        ({"updates": 0}, "updates"),
        ({"moved": 0.0}, "learning off"),
        ({"moved": float("nan")}, "learning off"),
    ],
)
def test_other_work_is_named(changes: dict[str, Any], named: str) -> None:
    (said,) = broken(CONTRACTS["pong"], work("pong", **changes))
    assert named in said


def test_accepted_differences_are_said() -> None:
    said = differences(
        CONTRACTS["halfcheetah"], work("halfcheetah", env="HalfCheetah-v4", precision="bf16")
    )
    assert len(said) == 2 and "v4" in said[0] and "bf16" in said[1]
    assert differences(CONTRACTS["halfcheetah"], work("halfcheetah")) == []


def test_sticky_actions_are_those_of_the_env() -> None:
    assert sticky("CartPole-v1", {}) is None
    assert sticky("ALE/Pong-v5", {}) == 0.25
    assert sticky("ALE/Pong-v5", {"repeat_action_probability": 0.0}) == 0.0


def test_parameters_are_those_of_the_yardstick() -> None:
    from yardstick import Conv, Net

    counts = {
        "cartpole": Net(4, 2).flat.numel(),
        "halfcheetah": Net(17, 6, gaussian=True).flat.numel(),
        "pong": sum(p.numel() for p in Conv(6, compiled=False).parameters()),
    }
    assert counts == {case: contract.parameters for case, contract in CONTRACTS.items()}


# ----------------------------------------------------------------------------------------- the rows


def test_every_row_can_be_run() -> None:
    venvs = set(
        re.findall(
            r"^make_(\w+)\(\)", (BENCHMARKS / "peers" / "setup.sh").read_text(), re.MULTILINE
        )
    )
    for name, row in ROWS.items():
        assert row.case in CONTRACTS
        if row.kind == "peer":
            assert (BENCHMARKS / "peers" / row.command.split()[0]).exists()
            assert row.venv is None or row.venv in venvs
        if row.kind == "bound":
            ours = ROWS[row.command.partition("OF ")[2]]
            assert ours.kind == "ours" and ours.case == row.case, name
            assert all(
                int(matrix.option(ours.command, f"--{x}")) > 0
                for x in ("envs-per-actor", "unroll", "batch")
            )
    of_replay = {library for library, _ in replay.ROWS.values()} - {"ours"}
    assert venvs == {row.venv for row in ROWS.values()} - {None} | of_replay | {
        "trl",
        "imitation",
        "litserve",
        "rayserve",
    }


def test_every_ratio_is_within_a_case() -> None:
    for ratio in RATIOS:
        assert ROWS[ratio.ours].kind == "ours"
        assert {ROWS[peer].case for peer in ratio.peers} == {ROWS[ratio.ours].case}
    compared = {name for ratio in RATIOS for name in (ratio.ours, *ratio.peers)}
    assert compared == set(ROWS)


# --------------------------------------------------------------------------------------- the matrix


def arguments(**changes: Any) -> argparse.Namespace:
    given: dict[str, Any] = {
        "cases": None,
        "rows": None,
        "command": [],
        "peers_home": Path("/nowhere"),
        "rounds": 2,
        "tolerance": 0.05,
        "tries": 3,
    }
    return argparse.Namespace(**(given | changes))


def test_rounds_are_interleaved_and_a_failure_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matrix, "calibrate", lambda: {"one_core": 1.0, "two_core": 2.0})
    saved: list[int] = []
    ran: list[str] = []

    def run(name: str) -> dict[str, Any]:
        ran.append(name)
        if name == "pong-lean" and len(ran) < 3:
            raise Failed("it fell over")
        return {"value": float(len(ran))}

    a = arguments(rows="pong,pong-lean")
    monkeypatch.setattr(matrix, "python", lambda a, row: Path(matrix.__file__))
    matrix.choose(a, argparse.ArgumentParser())
    results = matrix.run_rounds(a, run, lambda results: saved.append(len(results)))
    assert ran == ["pong", "pong-lean", "pong", "pong-lean"]
    assert saved == [1, 2, 3, 4]
    assert [(r["row"], r["round"], r.get("value")) for r in results] == [
        ("pong", 0, 1.0),
        ("pong-lean", 0, None),
        ("pong", 1, 3.0),
        ("pong-lean", 1, 4.0),
    ]
    assert results[1]["failed"] == "it fell over"


def test_a_row_of_other_work_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    did = {"value": 9e9, "work": work("pong", moved=0.0), "command": "a peer"}
    monkeypatch.setattr(matrix, "run_peer", lambda a, row, log: did)
    with pytest.raises(Failed, match="not the same work: parameters moved"):
        matrix.run_row(argparse.Namespace(row_map=ROWS, rows=[]), "pong-sb3")
    did["work"] = work("pong", env="envpool:Pong-v5")
    assert (
        "EnvPool"
        in matrix.run_row(argparse.Namespace(row_map=ROWS, rows=[]), "pong-sb3")["differs"][0]
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cases": "chess"}, "--cases: expected some of cartpole"),
        ({"rows": "pong-lean,chess"}, "got chess"),
        ({"rows": "pong", "command": ["pong"]}, "expected ROW=ARGUMENTS"),
        ({"cases": "pong"}, "setup.sh --home"),
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        matrix.choose(arguments(**changes), argparse.ArgumentParser())
    assert said in capsys.readouterr().err


def test_another_command_for_a_row() -> None:
    a = arguments(rows="pong", command=["pong=ALE/Pong-v5 --actors 1"])
    matrix.choose(a, argparse.ArgumentParser())
    assert a.row_map["pong"].command == "ALE/Pong-v5 --actors 1"
    assert ROWS["pong"].command != "ALE/Pong-v5 --actors 1"


def test_the_window_begins_once_something_is_learned(tmp_path: Path) -> None:
    """A slow machine compiles for a minute, whatever the warm-up."""
    steps = {1: 0, 11: 0, 60: 0, 70: 512, 101: 900}
    lines = [json.dumps({"wall_s": t, "env_steps": done}) for t, done in steps.items()]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines[:3]) + "\n", encoding="utf-8")
    assert matrix.window(tmp_path, 10, 30) is None
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    first, last = matrix.window(tmp_path, 10, 30) or ({}, {})
    assert (first["wall_s"], last["wall_s"]) == (70, 101)


def test_a_run_that_did_nothing_in_its_window_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still, ready = (
        ({"wall_s": 10.0, "env_steps": 512}, {"wall_s": 40.0, "env_steps": 512}),
        tmp_path / "ready",
    )
    monkeypatch.setattr(matrix, "window", lambda *_: still if ready.exists() else None)
    code = f"""
import pathlib, signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
pathlib.Path({str(ready)!r}).touch()
signal.pause()"""
    command = [sys.executable, "-c", code]
    with pytest.raises(Failed, match="did nothing: no env step was learned from in 30 s"):
        matrix.trained(command, tmp_path, tmp_path / "log", warmup=0, seconds=0, env={})


def test_the_window_begins_after_the_warm_up(tmp_path: Path) -> None:
    lines = [json.dumps({"wall_s": t, "env_steps": 100 * t}) for t in (1, 9, 11, 20, 40, 42)]
    file = tmp_path / "metrics.jsonl"
    assert matrix.window(tmp_path, 10, 30) is None
    file.write_text("\n".join(lines[:5]) + "\n")
    assert matrix.window(tmp_path, 10, 30) is None
    file.write_text("\n".join(lines[:5]) + "\n" + lines[5])  # the last line is not whole yet
    assert matrix.window(tmp_path, 10, 30) is None
    file.write_text("\n".join(lines) + "\n")
    first, last = matrix.window(tmp_path, 10, 30) or ({}, {})
    assert (first["wall_s"], last["wall_s"]) == (11, 42)


# --------------------------------------------------------------------------------------- the report


def result(row: str, i: int, value: float | None, **more: Any) -> dict[str, Any]:
    did: dict[str, Any] = (
        {"failed": "no"}
        if value is None
        else {"value": value, "work": work(ROWS[row].case), "differs": []}
    )
    return {"row": row, "case": ROWS[row].case, "round": i, "unsteady": False, **did, **more}


RUNS = [
    result("halfcheetah", 0, 300.0),
    result("halfcheetah", 1, 200.0),
    result("halfcheetah", 2, 100.0, unsteady=True),
    result("halfcheetah-sb3", 0, 50.0),
    result("halfcheetah-sb3", 1, 50.0),
    result("halfcheetah-sb3", 2, 50.0),
    result(
        "halfcheetah-sf-async",
        0,
        100.0,
        differs=["another version"],
        peer="sample-factory",
        version="2.1",
    ),
    result("halfcheetah-sf-async", 1, None),
    result("halfcheetah-sf-async", 2, 80.0),
    result("halfcheetah", 3, None),
    result("halfcheetah-sf-async", 3, 90.0),
    result("halfcheetah-rllib", 0, None),
]
RECORD = {
    "host": {"at": "2026-01-01 00:00:00", "cpu": "a CPU", "cores": 2, "python": "3.11"},
    "command": "matrix.py --cases halfcheetah",
    "arguments": {"rounds": "3", "seconds": "30"},
    "runs": RUNS,
}


def test_ratios_are_taken_within_rounds_beside_the_best() -> None:
    (found,) = report.ratios(RUNS)
    assert (found["ours"], found["with"], found["of"]) == ("halfcheetah", "halfcheetah-sf-async", 2)
    assert found["rounds"] == [3.0, 1.25]  # round 1 has no figure of the peer, round 3 none of ours
    assert found["ratio"] == 2.125


def test_the_page_has_every_row_and_says_what_is_missing() -> None:
    text = report.page([RECORD], {})
    lines = {
        line.split("|")[1].strip(" `"): line for line in text.splitlines() if line.startswith("| `")
    }
    assert (
        "| 200 | 100 | 300 | 1 of 3 | 1 | 1.00 | 5,773 |"
        in report.rows_table(RUNS, "halfcheetah")[0]
    )
    assert lines.keys() >= {
        "halfcheetah",
        "halfcheetah-sb3",
        "halfcheetah-sf-async",
        "halfcheetah-rllib",
    }
    assert "| - | - | - | 0 of 0 | 1 |" in lines["halfcheetah-rllib"]
    assert "sample-factory 2.1 | 90 | 80 | 100 | 0 of 3 | 1 |" in lines["halfcheetah-sf-async"]
    assert "[1] another version" in text and "batch 1024 [1]" in lines["halfcheetah-sf-async"]
    assert "matrix.py --cases halfcheetah" in text
    assert "| 2.12 | 1.25 | 3.00 | 2.00 | yes |" in text


@pytest.mark.parametrize("case", dict.fromkeys(row.case for row in ROWS.values()))
def test_the_bars_of_a_plot_have_names_that_a_reader_knows(case: str) -> None:
    names = [name for name, row in ROWS.items() if row.case == case]
    runs = [result(name, 0, 1.0, version="9.9") for name in names]
    labels = report.labels(runs, names)
    assert len(set(labels)) == len(names) and not {*labels} & ROWS.keys()
    for name, text in zip(names, labels):
        assert text.startswith("Equipoise") == (ROWS[name].kind == "ours")


def test_the_page_and_its_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "out" / "throughput.md"
    report.write_page([RECORD], file)
    plot = file.with_name("throughput-halfcheetah.svg")
    assert "](throughput-halfcheetah.svg)" in file.read_text()
    first = plot.read_bytes()
    assert b"<svg" in first
    report.write_page([RECORD], file)
    assert plot.read_bytes() == first


def test_a_bound_is_measured_before_and_after_its_row_and_the_faster_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    values = iter([900.0, 1100.0])

    def bound(a: Any, row: Any, log: Any) -> dict[str, Any]:
        order.append("bound")
        return {"value": next(values)}

    def ours(a: Any, row: Any, work: Any, log: Any) -> dict[str, Any]:
        order.append("ours")
        return {"value": 1000.0, "work": None, "command": ""}

    monkeypatch.setattr(matrix, "run_bound", bound)
    monkeypatch.setattr(matrix, "run_ours", ours)
    monkeypatch.setattr(matrix, "broken", lambda contract, work: [])
    monkeypatch.setattr(matrix, "differences", lambda contract, work: [])
    a = argparse.Namespace(row_map=ROWS, rows=["pong", "pong-bound"], measured={})
    assert matrix.run_row(a, "pong")["value"] == 1000.0
    assert matrix.run_row(a, "pong-bound")["value"] == 1100.0
    assert order == ["bound", "ours", "bound"]
