"""What a run reports beside returns: numbers of the env's info, evaluations and the best weights;
through a resume, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import equipoise as eq
from equipoise import api
from equipoise.errors import WorkerFailed
from equipoise.plans import plan
from equipoise.record import checkpoint
from equipoise.record.directory import RunDirectory
from equipoise.record.report import DETERMINISTIC, Evaluation
from equipoise.run import run as run_module

ENV = "tests.envs.telling:Wandering"
NAMES = ("place/last", "place/mean", "end/right/last", "end/right/mean")


def program(**options: Any) -> Any:
    given: dict[str, Any] = {
        "actors": 2,
        "envs_per_actor": 4,
        "unroll": 8,
        "steps": 2048,
        "evaluate_episodes": 0,
        "max_lag": 0,
        "metrics": ("place", "end/right"),
        "settings": ["algorithm.epochs=1"],
    }
    return api.program(ENV, **{**given, **options})


def finish(run: Any) -> Any:
    reports = list(run)
    assert run.summary is not None
    return run.summary | {"reports": reports, "path": run.directory}


def told(reports: list[Any]) -> list[Any]:
    return [
        [getattr(r, key) for key in DETERMINISTIC]
        for r in reports
        if r.recorded and not r.final and not r.timed
    ]


@pytest.mark.thorough
def test_numbers_of_info_are_reported_alike_by_both_runtimes(tmp_path: Path) -> None:
    serial, process = (
        finish(api.start(program(), on=on, out=tmp_path / on)) for on in ("serial", "process")
    )
    assert told(serial["reports"]) == told(process["reports"]), "to the bit"
    info = serial["info"]
    assert tuple(info) == NAMES
    assert abs(info["place/last"]) < 15 and info["place/last"] != info["place/mean"], (
        "and not what resets say"
    )
    assert 0 < info["end/right/last"] < 1 and info["end/right/mean"] == info["end/right/last"]
    assert serial["reports"][-1].info == info
    lines = RunDirectory.open(serial["path"]).metrics()
    assert lines[-1]["info"] == info
    assert json.loads((serial["path"] / "summary.json").read_text())["info"] == info


@pytest.mark.thorough
def test_an_evaluation_has_the_same_numbers_of_its_own_episodes(tmp_path: Path) -> None:
    made = program(evaluate_episodes=5, evaluate_every=1024)  # and one at the end
    summary = finish(api.start(made, on="serial", out=tmp_path / "run"))
    found = [r.evaluation for r in summary["reports"] if r.evaluation is not None]
    assert found and all(tuple(one.info) == NAMES for one in found)
    assert all(
        abs(one.info["place/last"]) < 15
        and one.info["end/right/last"] in (0, 0.2, 0.4, 0.6, 0.8, 1)
        for one in found
    )
    assert summary["evaluation"]["info"] == found[-1].info, "of the last one"
    assert (
        json.loads((summary["path"] / "summary.json").read_text())["evaluation"]["info"]
        == found[-1].info
    )
    lines = [
        line["evaluation"]
        for line in RunDirectory.open(summary["path"]).metrics()
        if line["evaluation"]
    ]
    recorded = [r.evaluation for r in summary["reports"] if r.recorded and r.evaluation is not None]
    assert [line["info"] for line in lines] == [one.info for one in recorded]
    again = finish(api.start(resume=summary["path"], steps=4096))
    assert tuple(again["evaluation"]["info"]) == NAMES
    assert tuple(api.evaluate(summary["path"], episodes=3).info) == NAMES


@pytest.mark.thorough
def test_the_steps_go_on_between_two_lines_of_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded stays what it was: of the learner's records."""
    monkeypatch.setattr(run_module, "LIVE_S", 0.0)
    # a busy machine takes as long as that for 6,400 steps
    monkeypatch.setattr("equipoise.run.reporter.RECORDED_S", 1e9)
    monkeypatch.setattr(plan, "RECORD_STEPS", 6400)
    seen: list[Any] = []
    with api.start(program(steps=100_000_000, max_lag=1), on="serial", out=tmp_path / "run") as run:
        while sum(report.recorded for report in seen) < 2:
            seen.append(next(run))
    first, second = (i for i, report in enumerate(seen) if report.recorded)
    for part in (seen[:first], seen[first + 1 : second]):
        steps = [report.step for report in part]
        assert steps == sorted(steps) and len(set(steps)) > 2
        assert all(
            report.steps_per_s > 0 and report.remaining_s > 0 for report in part if report.step
        )
    assert (seen[first].step, seen[second].step) == (6400, 12_800)
    assert seen[first + 1].step >= 6400
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert all(line["recorded"] for line in lines) and lines[-1]["timed"], (
        "the last one as the run was left"
    )
    assert all(line["env_steps"] % 6400 == 0 for line in lines if not line["timed"])


class Slow(gymnasium.Env[Any, Any]):
    """A step takes 4 ms, an episode three steps: no batch is full for a long time, and episodes
    end.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(0.004)
        self._t += 1
        return np.zeros(2, np.float32), 1.0, self._t == 3, False, {}


@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_run_that_has_not_learned_yet_shows_and_keeps_what_it_has(
    on: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.run.reporter.RECORDED_S", 0.3)
    run = api.start(
        "tests.runtime.test_watching:Slow",
        on=on,
        out=tmp_path / "run",
        actors=1,
        envs_per_actor=4,
        unroll=4096,
        steps=100_000,
        evaluate_episodes=0,
        settings=["algorithm.minibatches=1"],
    )
    for report in run:
        if report.timed and report.episodes:
            break
    assert report.recorded and (report.env_steps, report.updates) == (0, 0)
    assert (
        report.taken > 0
        and report.steps_per_s > 0
        and report.return_mean == 3.0
        and report.length_mean == 3.0
    )
    run.close()
    assert run.summary is not None and run.summary["status"] == "interrupted"
    lines = RunDirectory.open(tmp_path / "run").metrics()
    assert [line["timed"] for line in lines] == [True] * len(lines) and len(lines) >= 2, (
        "and one as it was left"
    )
    assert [line["taken"] for line in lines] == sorted(line["taken"] for line in lines)
    assert run.summary["taken"] >= lines[-1]["taken"] >= report.taken, (
        "and the summary holds all of them"
    )
    assert (
        run.summary["episodes"] >= lines[-1]["episodes"] >= report.episodes
        and run.summary["return_mean"] == 3.0
    )
    assert list((tmp_path / "run").glob("events.*")), "TensorBoard has them, too"


@pytest.mark.thorough
def test_a_learner_tells_how_far_it_is_between_two_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = program(metrics=(), steps=6400)
    monkeypatch.setattr(plan, "RECORDS", 4)
    plain = finish(api.start(made, on="serial", out=tmp_path / "plain"))
    monkeypatch.setattr("equipoise.learners.worker.PARTIAL_S", 0.0)
    monkeypatch.setattr("equipoise.run.reporter.RECORDED_S", 0.0)
    talking = finish(api.start(made, on="serial", out=tmp_path / "talking"))
    assert told(talking["reports"]) == told(plain["reports"]), "what is repeatable stays so"
    assert talking["params_sha256"] == plain["params_sha256"]
    timed = [report for report in talking["reports"] if report.timed]
    updates = [report.updates for report in timed]
    assert len(set(updates)) > 10 and updates == sorted(updates)
    assert all(report.metrics for report in timed if report.updates), (
        "with the numbers of the updates so far"
    )
    assert len({tuple(report.metrics.values()) for report in timed if report.updates}) > 10, (
        "which are new each time"
    )


@pytest.mark.thorough
def test_a_resume_goes_on_with_the_running_episodes(tmp_path: Path) -> None:
    long = finish(api.start(program(steps=4096), on="serial", out=tmp_path / "long"))
    short = finish(
        api.start(program(steps=2048, schedule_steps=4096), on="serial", out=tmp_path / "short")
    )
    on = finish(api.start(resume=short["path"], steps=4096))
    # Reports come at other steps, since their spacing follows the length of the run.
    common = {r[0]: r for r in told(long["reports"])}
    found = [r for r in told(on["reports"]) if r[0] in common]
    assert found and all(
        r[DETERMINISTIC.index("info")] == common[r[0]][DETERMINISTIC.index("info")] for r in found
    )
    assert on["info"] == long["info"] and on["params_sha256"] == long["params_sha256"]
    with pytest.raises(ValueError, match="cannot change source.metrics"):
        api.start(resume=short["path"], metrics=("place",), steps=8192)


def test_a_name_that_nobody_says_is_warned_of_and_null(tmp_path: Path) -> None:
    summary = finish(
        api.start(program(metrics=("plaice",), steps=256), on="serial", out=tmp_path / "run")
    )
    assert summary["info"] == {"plaice/last": None, "plaice/mean": None}
    (note,) = summary["notes"]
    assert (
        note.startswith("warning: metrics: no 'plaice' in the env's info within")
        and "did you mean 'place'?" in note
    )


def test_what_is_no_number_is_refused_before_there_is_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"info\['place'\], got str"):
        api.start(program(env_kwargs={"spoilt": 1}), on="serial", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_becomes_no_number_ends_the_run_at_once(tmp_path: Path) -> None:
    """And costs no actor three lives."""
    with pytest.raises(
        WorkerFailed,
        match=r"NoNumber: metrics: expected a number in the env's info\['place'\], got str",
    ):
        finish(
            api.start(
                program(env_kwargs={"spoilt": 20}, steps=100_000),
                on="process",
                out=tmp_path / "run",
            )
        )
    notes = json.loads((tmp_path / "run" / "summary.json").read_text())["notes"]
    assert not [note for note in notes if "replaced" in note or "again" in note]


@pytest.mark.parametrize("metrics", [("",), ("a", "a"), ("/",)])
def test_names_have_to_be_names(metrics: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="metrics: expected different names of the env's info"):
        program(metrics=metrics)


# ---------------------------------------------------------------------------- evaluations, the best


@pytest.mark.thorough
def test_the_best_evaluation_keeps_its_weights(tmp_path: Path) -> None:
    made = program(steps=4096, evaluate_every=512, evaluate_episodes=3, metrics=())
    run = finish(api.start(made, on="serial", out=tmp_path / "run"))
    found = [r.evaluation for r in run["reports"] if r.evaluation is not None]
    assert len(found) >= 5
    best = max(found, key=lambda e: e.mean)
    kept = RunDirectory.open(run["path"]).best_checkpoint()
    assert kept is not None and len(list(kept.parent.iterdir())) == 1
    _, meta = checkpoint.load(kept)
    assert meta["evaluation"]["mean"] == best.mean and meta["env_steps"] == best.env_steps
    assert eq.load(run["path"], best=True).meta == meta
    assert eq.evaluate(run["path"], episodes=3, best=True).version == meta["version"]
    assert eq.evaluate(run["path"], episodes=3).env_steps == 4096, "without best the newest"


@pytest.mark.thorough
def test_every_evaluation_is_written_also_where_reports_of_the_moment_lie_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.run.run.LIVE_S", 0.0)
    made = program(steps=4096, evaluate_every=512, evaluate_episodes=2, metrics=())
    run = finish(api.start(made, on="serial", out=tmp_path / "run"))
    told = {r.evaluation.env_steps for r in run["reports"] if r.evaluation is not None}
    lines = RunDirectory.open(run["path"]).metrics()
    assert {
        line["evaluation"]["env_steps"] for line in lines if line["evaluation"] is not None
    } == told
    assert len(told) > 4


@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_last_evaluation_whose_episodes_never_end_says_how_far_it_is(
    on: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.actors.evaluator.LONGEST", 500)
    monkeypatch.setattr("equipoise.run.run.LIVE_S", 0.0)
    monkeypatch.setattr("equipoise.run.run.SLICE_S", 0.005)
    run = api.start(
        "tests.envs.planted:Endless",
        on=on,
        out=tmp_path / "run",
        actors=1,
        envs_per_actor=4,
        unroll=8,
        steps=32,
        evaluate_episodes=2,
        settings=["algorithm.minibatches=1"],
    )
    reports = list(run)
    told = [r.evaluating for r in reports if r.evaluating is not None]
    assert len(told) > 2 and (told[0].episodes, told[0].of) == (0, 2)
    assert 0 < told[0].steps < told[1].steps <= 501 and told[0].most == 100_000
    assert reports[-1].final and reports[-1].evaluating is None
    assert reports[-1].evaluation is not None and reports[-1].evaluation.episodes == 2
    assert all(r.evaluating is None for r in reports if r.recorded)


def test_a_run_that_is_left_amid_its_last_evaluation_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.run.run.LIVE_S", 0.0)
    run = api.start(
        "tests.envs.planted:Endless",
        on="serial",
        out=tmp_path / "run",
        actors=1,
        envs_per_actor=4,
        unroll=8,
        steps=32,
        evaluate_episodes=2,
        settings=["algorithm.minibatches=1"],
    )
    for report in run:
        if report.evaluating is not None:
            break
    run.close()
    assert (
        run.summary is not None
        and run.summary["status"] == "completed"
        and run.summary["evaluation"] is None
    )


@pytest.mark.thorough
def test_only_a_better_one_replaces_it_also_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = program(steps=1024, evaluate_every=512, evaluate_episodes=2, metrics=())
    run = finish(api.start(made, on="serial", out=tmp_path / "run"))
    files = RunDirectory.open(run["path"])
    kept = files.best_checkpoint()
    assert kept is not None
    params, meta = checkpoint.load(kept)
    files.save_best(
        7,
        params,
        meta | {"evaluation": Evaluation(mean=1e9, std=0.0, episodes=1, env_steps=7, version=1)},
    )
    finish(api.start(resume=run["path"], steps=2048))
    assert files.best_mean() == 1e9
    files.save_best(
        8,
        params,
        meta | {"evaluation": Evaluation(mean=-1.0, std=0.0, episodes=1, env_steps=8, version=1)},
    )
    finish(api.start(resume=run["path"], steps=3072))
    assert files.best_mean() >= 0


def test_without_an_evaluation_there_is_no_best(tmp_path: Path) -> None:
    run = finish(api.start(program(steps=128), on="serial", out=tmp_path / "run"))
    with pytest.raises(
        FileNotFoundError,
        match="expected the weights of an evaluation, got none; train with --eval",
    ):
        eq.load(run["path"], best=True)
    with pytest.raises(
        ValueError, match="evaluation.every: expected evaluation.episodes of at least 1"
    ):
        program(evaluate_every=100)


@pytest.mark.thorough
def test_evaluate_says_that_it_skips_a_damaged_checkpoint(tmp_path: Path) -> None:
    run = finish(
        api.start(program(steps=512, checkpoint_every=128), on="serial", out=tmp_path / "run")
    )
    newest = run["path"] / "checkpoints" / "step_512"
    (newest / checkpoint.WEIGHTS).write_bytes(b"")
    with pytest.warns(
        RuntimeWarning, match=r"step_512/weights.safetensors: .*step_384 is taken instead"
    ):
        assert eq.evaluate(run["path"], episodes=2).env_steps == 384
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from equipoise.cli import main; main()",
            "evaluate",
            str(run["path"]),
            "--episodes",
            "2",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    # said where a start is slow
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("starting: "))
    assert (
        line.startswith("warning: ")
        and line.endswith("step_384 is taken instead")
        and "step 384" in done.stdout
    )
