"""Several policies: every row of every agent proves itself, whenever it dies or comes back;
runtimes and resumes agree.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.errors import WorkerFailed
from equipoise.plans import roles
from equipoise.plans.beginning import Fresh
from equipoise.plans.plan import plan_run
from equipoise.record import checkpoint, statefile
from equipoise.record.checkpoint import load as load_checkpoint
from equipoise.record.directory import RunDirectory
from equipoise.record.report import repeatable
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from equipoise.types import Frozen
from tests.envs import herd
from tests.runtime import herding
from tests.runtime.herding import against_its_past, program

pytestmark = pytest.mark.few(2)  # all cases: make test-all


def run(made: Any, on: Any, out: Path) -> Any:
    herding.AT.clear()  # the serial learner is this process
    with Run(made, Fresh(out=out), Services(on=on)) as going:
        reports = list(going)
    assert going.summary is not None
    return going.summary | {"reports": reports}


@pytest.mark.parametrize("max_lag", [0, 1, 4, None])
def test_rows_prove_themselves_in_serial(max_lag: int | None, tmp_path: Path) -> None:
    summary = run(program(max_lag=max_lag), "serial", tmp_path / "run")
    assert summary["env_steps"] == 1500
    assert max_lag is None or summary["lag"]["max"] <= max_lag
    rows = summary["rows"]
    assert (
        rows["sampled"] == 3 * summary["env_steps"]
        and rows["inserted"] == rows["sampled"] + rows["held"]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_rows_prove_themselves_in_processes(max_lag: int | None, tmp_path: Path) -> None:
    summary = run(
        program(max_lag=max_lag, steps=6000, actors=3, batch=9 if max_lag == 0 else 6),
        "process",
        tmp_path / "run",
    )
    assert summary["env_steps"] >= 6000


def test_agents_die_and_come_back_at_every_row_of_an_unroll() -> None:
    """What the runs above saw: two actors of three envs, 50 unrolls of five rows."""
    died, came, absent = set(), set(), 0
    for stream in range(2 * 3 * len(herd.AGENTS)):
        of = herd.law(stream, 250)
        for row in range(250):
            died |= {row % 5} if any(of.ended[row]) else set()
            came |= (
                {row % 5}
                if of.first[row] and of.here[row] and row and of.here[row - 1] is False
                else set()
            )
            absent += of.shown[row] == (-1, -1)
    assert died == came == set(range(5)) and absent > 200


@pytest.mark.parametrize("fault", ["version", "reward", "mask", "obs", "action", "first"])
def test_a_planted_off_by_one_is_caught(fault: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="do not prove themselves"):
        run(program(fault=fault), "serial", tmp_path / "run")


@pytest.mark.thorough
def test_a_planted_off_by_one_is_caught_in_processes(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="do not prove themselves"):
        run(program(fault="mask"), "process", tmp_path / "run")


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_resumed_run_goes_on_with_every_row(on: Any, tmp_path: Path) -> None:
    """The herd and its law go on: what the learner proves begins where it was, after 125 rows."""
    run(program(steps=750), on, tmp_path / "run")
    herding.AT.update(dict.fromkeys(range(2 * 3 * len(herd.AGENTS)), (125, -1)))
    with api.start(resume=tmp_path / "run", steps=1500, on="serial") as going:
        list(going)
    assert going.summary is not None and going.summary["env_steps"] == 1500


# -------------------------------------------------------------------------------------- frozen ones


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize(("on", "max_lag"), [("serial", 0), ("serial", None), ("process", 0)])
def test_an_opponent_is_a_past_version(on: Any, max_lag: int | None, tmp_path: Path) -> None:
    """The ruler's one parameter is the number of updates, so that weights tell their version."""
    summary = run(against_its_past(max_lag=max_lag, steps=3000), on, tmp_path / "run")
    seen = [
        (r.updates, r.metrics["old/version"])
        for r in summary["reports"]
        if "old/version" in r.metrics
    ]
    assert len({old for _, old in seen}) > 3
    for now, old in seen:
        assert old % 7 == 0 and now - 7 * 3 <= old <= now
    assert any(old < now - 7 for now, old in seen)  # not always the newest
    params, meta = load_checkpoint(
        RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True)  # type: ignore[arg-type]
    )
    assert set(params) == {"main/updates", "dog/updates", "old/updates"}
    assert params["main/updates"].round() == meta["version"] == 100
    assert params["old/updates"].round() == seen[-1][1]


def test_the_pool_is_what_the_learner_kept(tmp_path: Path) -> None:
    run(against_its_past(steps=1500), "serial", tmp_path / "run")
    newest = RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True)
    assert newest is not None
    state = statefile.parse(checkpoint.read(newest, checkpoint.LEARNER))["past"]["old"]
    assert {v: float(p["updates"].round()) for v, p in state["pool"].items()} == {
        "35": 35.0,
        "42": 42.0,
        "49": 49.0,
    }


def test_a_frozen_policy_makes_no_rows(tmp_path: Path) -> None:
    summary = run(against_its_past(steps=600), "serial", tmp_path / "run")
    assert summary["rows"]["sampled"] == 2 * 600


# --------------------------------------------------------------------------- parity and resume, PPO


def ppo(tmp: Path, on: Any, *, steps: int = 1280, frozen: bool = False, **options: Any) -> Any:
    policies: Any = {"speaker": "ppo", "listener": "ppo"}
    env, route = "tests.envs.games:Signal", {"speaker": "speaker", "listener": "listener"}
    if frozen:
        env, policies, route = (
            "tests.envs.games:Duel",
            {"main": "ppo", "old": Frozen(of="main", every=3, pool=4)},
            {"right": "old"},
        )
    made = api.program(
        env,
        policies=policies,
        route=route,
        actors=2,
        envs_per_actor=4,
        unroll=8,
        steps=steps,
        seed=1,
        evaluate_episodes=0,
        settings=[
            "algorithm.core=gru",
            "algorithm.epochs=2",
            "algorithm.minibatches=2",
            "algorithm.hidden=16",
        ],
        **options,
    )
    with api.start(made, on=on, out=tmp) as going:
        list(going)
    return told(tmp)


def told(path: Path) -> Any:
    directory = RunDirectory.open(path)
    summary = directory.summary()
    assert summary is not None and summary["status"] == "completed"
    return summary["params_sha256"], repeatable(directory.metrics())


@pytest.mark.thorough
@pytest.mark.parametrize("frozen", [False, True])
def test_serial_and_process_agree_to_the_bit(frozen: bool, tmp_path: Path) -> None:
    one, other = (ppo(tmp_path / on, on, frozen=frozen) for on in ("serial", "process"))
    assert one == other


@pytest.mark.thorough
@pytest.mark.parametrize(("frozen", "on"), [(False, "serial"), (True, "serial"), (True, "process")])
def test_a_run_in_two_parts_equals_the_whole(frozen: bool, on: Any, tmp_path: Path) -> None:
    whole = ppo(tmp_path / "whole", on, frozen=frozen, schedule_steps=1280)
    ppo(tmp_path / "parts", on, steps=640, frozen=frozen, schedule_steps=1280)
    with api.start(resume=tmp_path / "parts", steps=1280) as going:
        list(going)
    assert told(tmp_path / "parts")[0] == whole[0]


@pytest.mark.thorough
def test_a_pool_that_is_forgotten_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail."""
    whole = ppo(tmp_path / "whole", "serial", frozen=True, schedule_steps=1280)
    ppo(tmp_path / "parts", "serial", steps=640, frozen=True, schedule_steps=1280)
    monkeypatch.setattr("equipoise.learners.opponents.OpponentPool.load", lambda self, state: None)
    with api.start(resume=tmp_path / "parts", steps=1280) as going:
        list(going)
    assert told(tmp_path / "parts")[0] != whole[0]


def test_policies_begin_with_weights_of_their_own_and_a_frozen_one_with_its_model() -> None:
    policies: Any = {"main": "ppo", "right": "ppo"}
    made = api.program("tests.envs.games:Duel", policies=policies, route={"right": "right"})
    spec = plan_run(made).spec
    one, other = (
        roles.network(made, spec, name).state_dict()["torso.layers.0.weight"] for name in policies
    )
    assert one.shape == other.shape and not one.equal(other)
    frozen = api.program(
        "tests.envs.games:Duel",
        policies={"main": "ppo", "old": Frozen(of="main")},
        route={"right": "old"},
    )
    assert one.equal(
        roles.network(frozen, plan_run(frozen).spec, "old").state_dict()["torso.layers.0.weight"]
    )


def test_one_policy_of_all_agents_has_plain_names(tmp_path: Path) -> None:
    made = api.program(
        "tests.envs.games:Duel", actors=1, envs_per_actor=4, unroll=8, steps=64, evaluate_episodes=4
    )
    with api.start(made, on="serial", out=tmp_path / "run") as going:
        list(going)
    assert going.summary is not None and going.summary["rows"]["sampled"] == 2 * 64
    assert going.summary["evaluation"]["episodes"] == 2 * 4
    params, _ = load_checkpoint(RunDirectory.open(tmp_path / "run").latest_checkpoint())  # type: ignore[arg-type]
    assert not any("/" in name for name in params)


# ----------------------------------------------------------------------------------------- learning


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 2])
def test_two_policies_learn_to_understand_each_other(learners: int, tmp_path: Path) -> None:
    """A speaker that sees the goal and a listener that hears it; by chance a third of the last
    seven steps is right.
    """
    made = api.program(
        "tests.envs.games:Signal",
        policies={"speaker": "ppo", "listener": "ppo"},
        route={"speaker": "speaker", "listener": "listener"},
        actors=2,
        envs_per_actor=8,
        unroll=32,
        steps=16_000,
        seed=0,
        learners=learners,
        settings=["optimizer.learning_rate=3e-3", "algorithm.entropy=0.02"],
    )
    with api.start(made, on="process", out=tmp_path / "run") as going:
        reports = [report for report in going if report.recorded]
    assert going.summary is not None
    assert reports[0].return_mean is not None and reports[0].return_mean < 3.5
    assert going.summary["evaluation"]["mean"] > 6.5 and set(
        going.summary["evaluation"]["policies"]
    ) == {"speaker", "listener"}
    assert api.evaluate(tmp_path / "run", episodes=10).mean > 6.5


def test_settings_reach_one_policy_or_all() -> None:
    made = api.program(
        "tests.envs.games:Signal",
        policies={"speaker": "ppo", "listener": "ppo"},
        route={"speaker": "speaker"},
        settings=[
            "route.listener=listener",
            "algorithm.gamma=0.5",
            "policies.speaker.algorithm.gamma=0.7",
            "unroll=8",
        ],
    )
    speaker, listener = made.policies["speaker"], made.policies["listener"]
    assert (speaker.algorithm.gamma, listener.algorithm.gamma) == (0.7, 0.5)  # type: ignore[union-attr]
    assert speaker.unroll == listener.unroll == 8 and made.route["listener"] == "listener"  # type: ignore[union-attr]
    with pytest.raises(
        ValueError,
        match=r"unknown setting 'policies.speker.unroll'; did you mean 'policies.speaker.unroll'\?",
    ):
        api.program(
            "A-v0",
            policies={"speaker": "ppo", "listener": "ppo"},
            settings=["policies.speker.unroll=8"],
        )


def test_policies_that_cannot_learn_together_are_refused() -> None:
    made: Any = program()
    goats = made.policies["goats"]
    with pytest.raises(ValueError, match="policies.dog.unroll: expected 5, that of 'goats'.*got 6"):
        api.start(
            replace(
                made, policies={**made.policies, "dog": replace(made.policies["dog"], unroll=6)}
            )
        )
    with pytest.raises(
        ValueError,
        match=r"route.b0: expected one of the policies, got 'dogg'; did you mean 'dog'\?",
    ):
        api.start(replace(made, route={"b0": "dogg"}))
    with pytest.raises(
        ValueError, match="policies.goats: expected agents with the same observation space"
    ):
        api.start(replace(made, policies={"goats": goats}, route={}), on="serial")


# -------------------------------------------------------------------------------------------- kills


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [0, None])
def test_an_actor_that_dies_again_and_again_is_replaced_with_all_its_policies(
    max_lag: int | None, tmp_path: Path
) -> None:
    """Its env kills the process at some row of an unroll; every 150 steps of a process."""
    made = api.program(
        "tests.envs.games:Deadly",
        policies={"speaker": "impala", "listener": "impala"},
        unroll=8,
        actors=2,
        envs_per_actor=4,
        route={"speaker": "speaker", "listener": "listener"},
        max_lag=max_lag,
        evaluate_episodes=0,
        steps=6000 if max_lag == 0 else 10_000_000,  # the other actor goes on, however fast
    )
    with api.start(made, on="process", out=tmp_path / "run") as going:
        for report in going:
            if max_lag != 0 and any("replaced, for the 2nd time" in note for note in report.notes):
                break
    assert going.summary is not None and going.summary["status"] == (
        "completed" if max_lag == 0 else "interrupted"
    )
    rows = going.summary["rows"]
    assert (
        rows["dropped"] > 0 and rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    )
    assert max_lag is None or rows["sampled"] == 2 * going.summary["env_steps"]
    assert any(
        "was killed by SIGKILL; replaced, for the 2nd time" in note
        for note in going.summary["notes"]
    )
