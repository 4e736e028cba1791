"""Learners whose devices are lent to generation: every sample is learned from once or counted, and
no token is older than the bound, whenever the devices are lent and whoever dies.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from equipoise import api, tree
from equipoise.actors.engine.paged_engine import PagedEngine
from equipoise.actors.lending import Lending
from equipoise.clock import Clock
from equipoise.plans.beginning import Fresh, Resumed
from equipoise.record.directory import RunDirectory
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from equipoise.types import Placement, Tick, first_learning
from equipoise.workers.elastic import Elastic, Writers
from equipoise.workers.generator import device_of
from equipoise.workers.together import OwnWeights
from tests.runtime import growing, switching
from tests.runtime.test_cluster import pids

GROUP = 8
UPDATES = 150  # in which there are 50 switches
SMALL: dict[str, Any] = {
    "algorithm": "grpo",
    "batch": 16,
    "max_lag": 1,
    "evaluate_episodes": 0,
    "placement": "elastic",
    "settings": ["optimizer.learning_rate=1e-3"],
}


def program(env: str = "sort", **given: Any) -> Any:
    return api.program(env, **SMALL | given)


def started(out: Path, on: Any = "process", kinds: Any = switching.WITH, **given: Any) -> Run:
    return Run(program(**given), Fresh(out=out), Services(on=on, kinds=kinds))


def checked(run: Run, **given: Any) -> dict[str, Any]:
    """The summary of a run that is over, whose ledger is exact."""
    assert run.summary is not None and run.summary["status"] == "completed", run.summary
    rows, place = run.summary["rows"], run.program.placement
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    assert rows["sampled"] == run.summary["updates"] * first_learning(run.program).batch
    lag = place.max_lag
    assert lag is not None
    found = switching.complaints(run.directory, group=GROUP, max_lag=lag, learners=place.learners)
    assert not found, found
    return dict(run.summary)


def finished(run: Run) -> dict[str, Any]:
    for _ in run:
        pass
    return checked(run)


def test_every_sample_is_learned_from_once_however_devices_are_lent(tmp_path: Path) -> None:
    run = started(tmp_path / "run", "serial", switching.OFTEN, steps=256)
    summary = finished(run)
    assert summary["lending"]["switches"] >= 8 and summary["lending"]["handed_over"] > 8
    assert summary["balance"]["learner"]["parts"]["decode"] > 0, "the learner drew some of them"


def test_a_lent_learner_has_the_budget_of_memory_that_a_generator_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[PagedEngine]()

    class Counted(PagedEngine):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            made.append(self)

    monkeypatch.setattr("equipoise.sources.text.PagedEngine", Counted)
    settings = [*SMALL["settings"], "source.kv_tokens=48"]
    run = started(tmp_path / "run", "serial", switching.OFTEN, steps=256, settings=settings)
    summary = finished(run)
    assert summary["lending"]["handed_over"] > 8
    assert [one.kv_size[0] for one in made] == [48, 48]


def test_a_run_that_goes_on_is_the_same_to_the_bit_and_its_devices_stay_lent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # seconds decide nothing here, and these neither
    monkeypatch.setattr("equipoise.actors.generator.HELD_S", 1e9)
    given: dict[str, Any] = {"settings": [*SMALL["settings"], "schedule.schedule_steps=192"]}

    def one(name: str, **more: Any) -> Run:
        return started(tmp_path / name, "serial", switching.OFTEN, checkpoint_every=96, **more)

    whole = finished(one("whole", steps=192, **given))
    half = one("half", steps=96, **given)
    before = finished(half)["lending"]
    directory = RunDirectory.open(half.directory)
    again = Run(
        program(steps=192, checkpoint_every=96, **given),
        Resumed(directory=directory, source=directory.whole_checkpoint()),
        Services(on="serial", kinds=switching.OFTEN),
    )
    summary = finished(again)
    assert before["switches"] >= 3 and summary["lending"] == whole["lending"]
    assert summary["params_sha256"] == whole["params_sha256"]


@pytest.mark.thorough
@pytest.mark.parametrize("placement", ["elastic", "together"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_run_goes_on_with_another_number_of_learners(
    placement: Any, before: int, after: int, tmp_path: Path
) -> None:
    elastic = placement == "elastic"
    given = SMALL | {"placement": placement, "max_lag": int(elastic), "batch": 32, "on": "serial"}
    given |= {"actors": 2} if elastic else {}
    with api.start("sort", out=tmp_path / "run", steps=96, learners=before, **given) as run:
        list(run)
    with api.start(resume=tmp_path / "run", steps=192, learners=after) as again:
        list(again)
    assert again.summary is not None and again.summary["updates"] == 6
    rows = again.summary["rows"]
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("env", "more"),
    [
        ("sort", {}),
        ("sort", {"actors": 2, "max_lag": 4}),
        ("sort", {"learners": 2, "actors": 2, "batch": 32}),
        ("guess", {}),
        ("sort", {"settings": [*SMALL["settings"], "source.lora=2"]}),
    ],
    ids=["one", "two generators", "two learners", "conversations", "adapters"],
)
def test_fifty_switches_at_random_moments_leave_no_sample_out(
    env: str, more: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    given = {"batch": 16} | more
    settings = [*given.pop("settings", SMALL["settings"]), f"schedule.seed={seed % 1000}"]
    steps = UPDATES * given["batch"]
    summary = finished(started(tmp_path / "run", env=env, steps=steps, settings=settings, **given))
    assert summary["lending"]["switches"] >= 50, summary["lending"]
    assert env == "guess" or summary["lending"]["handed_over"] > 50, summary["lending"]


@pytest.mark.thorough
def test_a_run_whose_samples_grow_lends_its_learner_and_takes_it_back(tmp_path: Path) -> None:
    settings = [*SMALL["settings"], "source.engine=sim"]
    updates = growing.SHRINKS + 20
    run = started(tmp_path / "run", kinds=growing.WITH, steps=16 * updates, settings=settings)
    *_, last = run
    summary = run.summary
    lent = (run.directory / growing.FILE).read_text().split()
    assert last.metrics["lending/switches"] == 2, lent
    assert summary is not None and summary["status"] == "completed"
    assert "1" not in lent[: growing.GROWS], lent
    assert lent[growing.SHRINKS - 1] == "1" and lent[-1] == "0", lent
    assert summary["lending"]["switches"] == 2 and summary["lending"]["lent"] == 0


@pytest.mark.chaos
@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", ["generator 0", "learner", "learner 1"])
def test_kills_during_switches_leave_no_sample_out(victim: str, tmp_path: Path, seed: int) -> None:
    two = victim == "learner 1"
    given: dict[str, Any] = {"learners": 2, "actors": 2, "batch": 32} if two else {}
    batch, draw = given.get("batch", 16), random.Random(seed)
    run = started(tmp_path / "run", steps=UPDATES * batch, checkpoint_every=batch * 40, **given)
    at, killed = sorted(draw.sample(range(20, UPDATES - 20), 8)), 0
    for report in run:
        if at and report.updates >= at[0] and (found := pids(victim)):
            os.kill(found[0], signal.SIGKILL)
            killed += 1
            del at[0]
    summary = checked(run)
    assert killed >= 4 and summary["lending"]["handed_over"] > 20, (killed, summary["lending"])
    assert summary["lag"]["max"] <= 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_lag": 0}, "max_lag of at least 1, .* got 0; try --max-lag 1, or together"),
        ({"settings": ["source.weights=bf16"]}, "must have source.weights=fp32, .* got bf16"),
        (
            {"settings": ["source.engine=vllm:http://127.0.0.1:1"]},
            "must have source.engine=torch, .* got vllm:http",
        ),
        (
            {"settings": ["source.engine=sim:waits=false"]},
            "must have source.engine=sim:waits=true, .* got sim:waits=false",
        ),
        (
            {"settings": ["source.on_update=finish"]},
            "must have source.on_update=keep or recompute, .* got finish",
        ),
        ({"max_lag": 2, "balance": "auto"}, "must have balance=off, .* got auto"),
        ({"algorithm": "sft"}, "must be apart with an algorithm that draws no samples"),
        ({"on": "ray"}, "on: must be process or serial with placement.text=elastic, .* got ray"),
        ({"placement": "elastc"}, "'apart', 'together', 'elastic' or auto, .*mean 'elastic'"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_sentence(
    given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said) as error:
        api.start("sort", out=tmp_path / "run", **SMALL | given)
    assert "\n" not in str(error.value)


def test_one_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.run.governing.usable", lambda: 1)
    with pytest.raises(ValueError, match="at least 2 cores, .*got 1; try --placement together"):
        api.start("sort", out=tmp_path / "run", on="process", **SMALL)


def test_a_generator_has_a_gpu_without_a_learner_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def placed(count: int, learners: int) -> list[str]:
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)
        place = Placement(device="cuda", learners=learners)
        return [device_of(place, index) for index in range(3)]

    assert placed(4, 2) == ["cuda:2", "cuda:3", "cuda:2"]
    assert placed(2, 2) == ["cuda:0", "cuda:1", "cuda:0"]
    assert placed(1, 1) == ["cuda:0"] * 3
    assert device_of(Placement(device="cpu"), 1) == "cpu"


def test_nothing_is_drawn_with_the_weights_of_an_update_that_another_learner_left() -> None:
    """A lost learner ends an update in its middle; the next tick makes it again, or undoes it."""

    class Learning:
        version, broken = 3, True

        def tick(self) -> Tick:
            return Tick.STARVED

    ticks = list[int]()

    class Drawing:
        reserves = gives = drawing = busy = False

        def tick(self) -> Tick:
            ticks.append(learner.version)
            return Tick.WORKED

    writers = Writers(generators=[0], streams=[], own=1, rank=0, places=1, at_once=1)
    specs = Lending.specs(2)
    words = Lending(tree.views(specs, bytearray(tree.nbytes(specs))))
    learner, parts = Learning(), {"decider": None, "give_back": list, "clock": Clock(())}
    made: Any = Elastic
    worker = made(learner, Drawing(), words=words, writers=writers, **parts)
    assert worker.tick() is Tick.WORKED and not ticks
    learner.broken = False
    assert worker.tick() is Tick.WORKED and ticks == [3]


def test_weights_that_an_update_changes_while_they_are_read_are_not_whole() -> None:
    class Learning:
        version = 3

        def params(self) -> dict[str, Any]:
            return {}

    learner: Any = Learning()
    weights = OwnWeights(learner)
    found = weights.look(2)
    assert found is not None and weights.look(3) is None
    version, _, whole = found
    assert version == 3 and whole()
    learner.version = 4
    assert not whole() and weights.version == 4
