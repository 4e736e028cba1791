"""Runs that learn from a data set: alone, without an env, or beside live experience; and the
episodes that a run saves.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.envs.toys import ruler
from equipoise.errors import WorkerFailed
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.experience.recorded import dataset as datasets
from equipoise.plans.beginning import Fresh
from equipoise.plans.plan import plan_run
from equipoise.programs.fields import alter
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from equipoise.runtime import build
from equipoise.runtime.ipc import Heap
from equipoise.runtime.site import LocalSite
from equipoise.types import Program
from equipoise.workers.kind import crew
from equipoise.workers.kinds import KINDS

pytestmark = pytest.mark.few(2)  # all cases: make test-all

pytest.importorskip("minari")
pytest.importorskip("h5py")


@pytest.fixture(autouse=True)
def _minaris_folder(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def run(made: Program | Run, on: Any = "serial", path: Any = None) -> dict[str, Any]:
    with (
        made
        if isinstance(made, Run)
        else Run(made, Fresh(out=path), Services(on=on, tensorboard=False)) as going
    ):
        for _ in going:
            pass
    assert going.summary is not None
    return going.summary


@pytest.fixture
def ruled(tmp_path: Any) -> str:
    """Episodes of the ruler, of a policy that has learned next to nothing."""
    first = eq.program(
        "equipoise/Ruler-v0",
        "ppo",
        steps=64,
        unroll=8,
        actors=1,
        envs_per_actor=8,
        evaluate_episodes=0,
    )
    run(first, path=tmp_path / "first")
    eq.collect(tmp_path / "first", "ruler/some-v0", episodes=23)
    return "ruler/some-v0"


def offline(dataset: str, algorithm: str = "dqn", **options: Any) -> Program:
    settings = {"replay.selector": "prioritized", "algorithm.hidden": "16"}
    given: dict[str, Any] = {
        "dataset": dataset,
        "steps": 40,
        "batch": 8,
        "evaluate_episodes": 0,
    } | options
    return eq.program("nowhere.at_all:Env", algorithm, settings=settings, **given)


def test_what_a_run_saves_is_what_it_played(ruled: str, tmp_path: Any) -> None:
    found = datasets.find(ruled)
    assert found.episodes == 23 and found.about["run"] == "first"
    meta = datasets._minari().MinariDataset(str(found.path))
    assert meta.env_spec.id == "equipoise/Ruler-v0"
    seen = set()
    for one in found:
        stream, number = int(one.obs[0, 0]), int(one.obs[0, 1])
        length, terminated, truncated = (
            x.item() for x in ruler.episode(np.array(stream), np.array(number))
        )
        assert len(one) == length
        np.testing.assert_array_equal(one.obs[:, 2], np.arange(length + 1))
        assert (one.obs[:, 0] == stream).all() and (one.obs[:, 1] == number).all()
        np.testing.assert_array_equal(
            one.reward, ruler.reward(number, np.arange(length), one.action)
        )
        assert one.terminated.tolist() == [False] * (length - 1) + [terminated]
        assert one.truncated.tolist() == [False] * (length - 1) + [truncated]
        seen.add((stream, number))
    assert len(seen) == 23


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["dqn", "bc", "sac"])
def test_without_an_env_serial_and_process_agree_to_the_bit(
    ruled: str, algorithm: str, tmp_path: Any
) -> None:
    found = [run(offline(ruled, algorithm), on, tmp_path / on) for on in ("serial", "process")]
    assert found[0]["params_sha256"] == found[1]["params_sha256"]
    for summary in found:
        assert (
            summary["updates"],
            summary["env_steps"],
            summary["frames"],
            summary["episodes"],
        ) == (40, 0, 0, 0)
        assert summary["lag"] == {"mean": 0.0, "max": 0} and list(summary["balance"]) == ["learner"]
        assert summary["rows"]["inserted"] == 0 and summary["verdict"].startswith("Offline")


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_resume_goes_on_to_the_bit(ruled: str, on: Any, tmp_path: Any) -> None:
    whole = run(offline(ruled, schedule_steps=40), on, tmp_path / "whole")
    run(offline(ruled, steps=20, schedule_steps=40), on, tmp_path / "half")
    assert [path.name for path in (tmp_path / "half" / "checkpoints").glob("step_*")] == ["step_20"]
    again = run(eq.start(resume=tmp_path / "half", steps=40))
    assert again["params_sha256"] == whole["params_sha256"] and again["updates"] == 40


def test_a_resume_with_other_rows_is_refused(ruled: str, tmp_path: Any) -> None:
    run(offline(ruled), path=tmp_path / "run")
    file = datasets.find(ruled).path / "main_data.hdf5"
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="expected the rows that the run began with"):
        eq.start(resume=tmp_path / "run", steps=80)


@pytest.mark.thorough
def test_beside_live_experience_serial_and_process_agree_to_the_bit(
    ruled: str, tmp_path: Any
) -> None:
    settings = {
        "replay.dataset": ruled,
        "replay.selector": "prioritized",
        "replay.starts_at": 32,
        "replay.updates": 2,
        "replay.capacity": 256,
        "algorithm.hidden": "16",
        "replay.dataset_share": 0.25,
    }
    made = eq.program(
        "equipoise/Ruler-v0",
        "dqn",
        settings=settings,
        steps=160,
        batch=8,
        unroll=4,
        envs_per_actor=4,
        max_lag=0,
        evaluate_episodes=0,
        schedule_steps=160,
    )
    found = [run(made, on, tmp_path / on) for on in ("serial", "process")]
    assert found[0]["params_sha256"] == found[1]["params_sha256"]
    assert (found[0]["env_steps"], found[0]["updates"]) == (160, 18)
    assert found[0]["lag"]["max"] < 18, "a row of nobody's has none"
    run(alter(made, steps=96), "serial", tmp_path / "half")
    assert (
        run(eq.start(resume=tmp_path / "half", steps=160))["params_sha256"]
        == found[0]["params_sha256"]
    )


def test_an_env_whose_spaces_are_others_is_refused_before_there_is_a_run(
    ruled: str, tmp_path: Any
) -> None:
    made = eq.program("CartPole-v1", "bc", dataset=ruled, steps=10, evaluate_episodes=1)
    with pytest.raises(ValueError, match=r"^ruler/some-v0: observation: expected Box"):
        Run(made, Fresh(out=tmp_path / "run"), Services(on="serial"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cart/dqn-v0", "data set cart/dqn-v0, in {minari}/cart/dqn-v0"),
        (
            "cart/dqn",
            "directory {here}/cart/dqn, since an id ends in -vN and has no . in it, and 'cart/dqn' "
            "is none",
        ),
        ("../evil-v0", "directory {above}/evil-v0, since"),
    ],
)
def test_where_a_data_set_was_written_is_said(
    name: str, said: str, ruled: str, tmp_path: Any, monkeypatch: Any
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    made = eq.collect(tmp_path / "first", name, episodes=1)
    wanted = said.format(minari=tmp_path / "minari", here=tmp_path / "work", above=tmp_path)
    assert made.place.startswith(wanted) and made.path.parent.is_dir()


def test_another_env_that_is_never_made_is_warned_of(ruled: str, tmp_path: Any) -> None:
    def warnings(env: str, **options: Any) -> list[str]:
        given: dict[str, Any] = {"dataset": ruled, "steps": 5, **options}
        summary = run(
            eq.program(env, "dqn", recipe=False, **given),
            path=tmp_path / f"{len(list(tmp_path.iterdir()))}",
        )
        return [note for note in summary["notes"] if note.startswith("warning")]

    made_of = datasets.find(ruled).env
    (said,) = warnings("Acrobot-v1", evaluate_episodes=0)
    assert made_of and f"{ruled} is of {made_of}, not of Acrobot-v1, which is never made" in said
    assert warnings(made_of, evaluate_episodes=0) == []


def test_a_batch_of_more_items_than_a_data_set_has_is_warned_of(ruled: str, tmp_path: Any) -> None:
    rows = datasets.find(ruled).steps
    for batch, warned in ((rows, 0), (rows + 1, 1)):
        notes = run(offline(ruled, batch=batch, steps=1), path=tmp_path / f"of {batch}")["notes"]
        assert sum(f"has {rows:,} rows: each comes again" in note for note in notes) == warned


def damage(dataset: str, episode: int, what: str) -> None:
    h5py: Any = importlib.import_module("h5py")
    with h5py.File(datasets.find(dataset).path / "main_data.hdf5", "a") as file:
        group = file[f"episode_{episode}"]
        if what == "no rewards":
            del group["rewards"]
            return
        kept = group["observations"][()]
        del group["observations"]
        group["observations"] = kept[:, :-1] if what == "narrow" else kept[:-1]


FAULTS = {
    "no rewards": "expected observations, actions, rewards, .* got KeyError: .*rewards",
    "narrow": "observation: expected shape",
    "short": "observation: expected shape",
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_data_set_whose_first_episode_is_none_is_refused_before_there_is_a_run(
    what: str, ruled: str, tmp_path: Any
) -> None:
    made = offline(ruled)
    damage(ruled, 0, what)
    with pytest.raises(ValueError, match=f"^ruler/some-v0: episode 0.*{FAULTS[what]}"):
        Run(made, Fresh(out=tmp_path / "run"), Services(on="process"))
    assert not (tmp_path / "run").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("what", FAULTS)
def test_a_faulty_episode_ends_a_run_at_once(what: str, ruled: str, tmp_path: Any) -> None:
    """A successor of the learner would read the same."""
    damage(ruled, 7, what)
    notes: list[str] = []

    def follow() -> None:
        with Run(
            offline(ruled), Fresh(out=tmp_path / "run"), Services(on="process", tensorboard=False)
        ) as going:
            for report in going:
                notes.extend(report.notes)

    with pytest.raises(WorkerFailed, match=f"ruler/some-v0: episode 7.*{FAULTS[what]}"):
        follow()
    assert not [note for note in notes if "goes on" in note]


def test_a_learner_that_reads_a_data_set_is_not_taken_for_one_that_hangs(
    ruled: str, tmp_path: Any
) -> None:
    """It touches the board while it is built, and never shortens what it was given for that."""
    blue = dataclasses.replace(plan_run(offline(ruled)), directory=str(tmp_path))
    shared, board, _ = build.lay_out(blue, KINDS, Heap, LocalChannel)
    pulses: list[float] = []

    class Site(LocalSite):
        def pulse(self) -> None:
            super().pulse()
            pulses.append(board.touched(self.title))

    (learner,) = crew(blue, KINDS)
    unused: Any = None
    site = Site(learner, board, unused, queues=shared.queues, source=None, join=unused, bells={})
    learner.kind.build(learner.job(blue, shared), site)
    assert pulses and 0 < pulses[-1] <= time.perf_counter()
    board.touch("learner", 1000.0)
    site.pulse()
    assert pulses[-1] > time.perf_counter() + 900


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"algorithm": "ppo", "dataset": "d-v0"},
            r"^source.dataset: expected an algorithm with a replay \(apex_dqn, bc, crossq, dqn, "
            r"qr_dqn, r2d2, sac, td3, tqc\)"
            ", got ppo, whose rows are learned from once$",
        ),
        (
            {"actors": 0},
            "^placement.actors: expected at least 1, got 0; 'train --dataset ID' learns from "
            "recorded rows alone",
        ),
        (
            {"dataset": "d-v0", "settings": {"replay.selector": "fifo"}},
            "replay.selector: expected uniform",
        ),
        (
            {"dataset": "d-v0", "metrics": ("x",)},
            "source.metrics: cannot be set with source.dataset",
        ),
        (
            {"dataset": "d-v0", "settings": {"replay.dataset": "e-v0"}},
            "replay.dataset: cannot be set with source.dataset=d-v0",
        ),
        (
            {"dataset": "d-v0", "settings": {"placement.actors": 2}},
            "got placement.actors, since there is no live experience",
        ),
        (
            {"settings": {"replay.dataset": "d-v0", "replay.dataset_share": 0.01}, "actors": 1},
            "replay.dataset_share: expected a share of which a batch of 32",
        ),
        (
            {"settings": {"replay.dataset": "d-v0", "replay.dataset_share": 1.5}, "actors": 1},
            r"^\S+dataset_share: [^\n]+, got 1.5$",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"algorithm": "dqn", "recipe": False}
    with pytest.raises(ValueError, match=said):
        eq.program("CartPole-v1", **given | options)


@pytest.mark.slow
def test_bc_reaches_nine_tenths_of_a_solved_run(tmp_path: Any) -> None:
    """CartPole: PPO until it is solved, 50 episodes of its policy, and a policy that sees nothing
    but these.
    """
    with eq.start(
        "CartPole-v1", "ppo", on="serial", stop_at=475, out=tmp_path / "solved"
    ) as solving:
        for _ in solving:
            pass
    assert solving.summary is not None and solving.summary["status"] == "solved"
    # As it was evaluated: sampled actions may do worse than those that solved it.
    made = eq.collect(tmp_path / "solved", "cartpole/solved-v0", episodes=50, deterministic=True)
    goal = 0.9 * float(np.mean([one.reward.sum() for one in made]))
    assert goal > 0.9 * 450
    run(
        eq.program("CartPole-v1", "bc", dataset=made.name, steps=2_000, evaluate_episodes=0),
        path=tmp_path / "cloned",
    )
    assert eq.evaluate(tmp_path / "cloned", episodes=50).mean >= goal
