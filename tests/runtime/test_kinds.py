"""A new kind of worker is one file (``ledger.py``): it runs everywhere, is seen, killed, replaced,
saved and resumed.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.balance import verdict as verdicts
from equipoise.plans.beginning import Fresh, Resumed
from equipoise.plans.plan import plan_run
from equipoise.record import checkpoint, statefile
from equipoise.record.directory import RunDirectory
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from equipoise.runtime.serial import SerialRuntime
from equipoise.workers.kinds import KINDS
from tests.conftest import descendants
from tests.runtime.ledger import Ledger

WITH = (*KINDS, Ledger())


def program(**options: Any) -> Any:
    given: dict[str, Any] = {
        "actors": 2,
        "envs_per_actor": 4,
        "unroll": 8,
        "steps": 6400,
        "evaluate_episodes": 0,
        "max_lag": 0,
        "checkpoint_every": 1600,
        "settings": ["algorithm.epochs=1", "algorithm.hidden=[16]"],
    }
    return api.program("CartPole-v1", "ppo", recipe=False, **given | options)


def finish(run: Run) -> dict[str, Any]:
    *_, run_last = run
    assert run_last.final and run.summary is not None
    return run.summary


def log(run: Path, index: int) -> list[int]:
    """What the newest checkpoint holds of a ledger."""
    newest = RunDirectory.open(run).latest_checkpoint(whole=True)
    assert newest is not None
    found: list[int] = statefile.parse(checkpoint.read(newest, f"ledger_{index}.safetensors"))[
        "log"
    ].tolist()
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_it_runs_beside_the_ring_and_goes_on_where_it_was_saved(
    on: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    seen: list[dict[str, str]] = []

    def judge(balance: Any, setup: verdicts.Setup, **options: Any) -> verdicts.Verdict:
        seen.append({title: shares.side for title, shares in balance.items()})
        return verdicts.verdict(balance, setup, **options)

    monkeypatch.setattr("equipoise.run.reporter.verdict", judge)
    alone = finish(Run(program(), Fresh(out=tmp_path / "alone"), Services(on=on)))
    run = Run(
        program(steps=3200, schedule_steps=6400),
        Fresh(out=tmp_path / "run"),
        Services(on=on, kinds=WITH),
    )
    half = finish(run)
    one = half["balance"]["ledger 1"]
    assert one["kind"] == "ledger" and one["worked"] + one["preempted"] > 0
    assert seen[-1] | {"ledger 0": "beside", "ledger 1": "beside"} == seen[-1], (
        "the verdict is given them, too"
    )
    line = json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["balance"]["ledger 0"]["side"] == "beside"
    noted = [log(run.directory, index) for index in (0, 1)]
    assert all(len(one) > 1 and one == sorted(set(one)) for one in noted)
    again = RunDirectory.open(run.directory)
    going_on = Run(
        program(),
        Resumed(directory=again, source=again.whole_checkpoint()),
        Services(on=on, kinds=WITH),
    )
    whole = finish(going_on)
    for index, before in enumerate(noted):
        assert log(run.directory, index)[: len(before)] == before
        said = (
            f"ledger {index}: goes on after {len(before)} entries, the last at version {before[-1]}"
        )
        assert said in whole["notes"], whole["notes"]
    assert whole["params_sha256"] == alone["params_sha256"], (
        "the ring computes what it computes without"
    )


@pytest.mark.thorough
def test_one_that_is_killed_is_replaced(tmp_path: Path) -> None:
    run, pids = (
        Run(
            program(steps=10_000_000, max_lag=1), Fresh(out=tmp_path / "run"), Services(kinds=WITH)
        ),
        list[str](),
    )
    for _ in run:
        found = [line.split()[0] for line in descendants() if line.endswith("equipoise ledger 1")]
        if not pids and found:
            pids += found
            os.kill(int(found[0]), signal.SIGKILL)
        elif pids and found and found != pids:
            break
    run.close()
    assert run.summary is not None and run.summary["status"] == "interrupted"
    said = "warning: ledger 1 was killed by SIGKILL; its log is lost; replaced, for the 1st time"
    assert said in run.summary["notes"], run.summary["notes"]


def test_two_workers_have_two_names(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match="expected workers with names of their own, got two that are called 'ledger 0'",
    ):
        next(
            Run(
                program(),
                Fresh(out=tmp_path / "run"),
                Services(on="serial", kinds=(*WITH, Ledger())),
            )
        )


def test_what_a_runtime_tells_of_a_run_is_plain_data(tmp_path: Path) -> None:
    runtime = SerialRuntime(
        replace(plan_run(program(checkpoint_every=0)), directory=str(tmp_path)), WITH
    )
    try:
        while runtime.stats().version < 2:
            runtime.poll(0.01)
        told = json.loads(json.dumps(runtime.stats().to_json()))
    finally:
        runtime.stop()
    assert told["version"] >= 2 and min(told["ticks"]) >= 16 and told["rows"]["inserted"] >= 128
    assert {name: one["side"] for name, one in told["workers"].items()} == {
        "learner": "learning",
        "actor 0": "sampling",
        "actor 1": "sampling",
        "ledger 0": "beside",
        "ledger 1": "beside",
    }
    assert told["failures"].keys() == {"actor 0", "actor 1"}
