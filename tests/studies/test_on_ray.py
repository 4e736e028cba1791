"""Trials on a Ray cluster of several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray_machines import Machines, machines, until

from equipoise import api
from equipoise.programs.cluster import Cluster
from equipoise.record.mirror import holds
from equipoise.studies.executor import Job, Progress
from equipoise.studies.history import Result
from equipoise.studies.journal import decided, read_journal
from equipoise.studies.recorded import read_recorded
from tests.studies import halves
from tests.studies.halves import command

pytest.importorskip("ray", reason="Ray is not installed; make test-ray installs it")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def there() -> Iterator[Machines]:
    with machines(cores=1, nodes=2) as made:
        made.join()
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    folder = tmp_path_factory.mktemp("undisturbed") / "study"
    return carried_on(halves.opened(folder, halves.made(folder, 3)))


def carried_on(study: Any) -> list[dict[str, object]]:
    try:
        study.run()
    finally:
        study.close()
    return decided(study._journal.entries)


def executor(there: Machines, **options: Any) -> Any:
    from equipoise.studies.on_ray import RayExecutor

    return RayExecutor(command, 2, cluster=Cluster(address=there.cluster.address), **options)


def test_a_cluster_carries_a_study_on_to_the_journal_of_one_machine(
    there: Machines, undisturbed: list[dict[str, object]], tmp_path: Path
) -> None:
    settings = halves.made(tmp_path / "study", 3)
    found = carried_on(halves.opened(tmp_path / "study", settings, executor(there)))
    assert found == undisturbed


@pytest.mark.parametrize(("moment", "at_url"), [(2, False), (9, False), (9, True)])
def test_a_node_that_is_lost_does_not_change_the_journal(
    moment: int,
    at_url: bool,
    there: Machines,
    undisturbed: list[dict[str, object]],
    tmp_path: Path,
) -> None:
    settings, heard, killed = halves.made(tmp_path / "study", 3), list[object](), list[str]()
    if at_url:
        settings = replace(settings, url=f"file://{tmp_path}/store")
    made = executor(there)

    def hear(event: object) -> None:
        heard.append(event)
        if isinstance(event, Progress) and len(heard) > moment and not killed:
            victims = nodes_with_trials(there)
            if victims:
                killed.append(victims[0].node_id)
                there.kill(victims[0])

    found = carried_on(halves.opened(tmp_path / "study", settings, made, heard=hear))
    there.restore(2)
    assert killed
    assert found == undisturbed
    if at_url:
        check_at_url(tmp_path / "study", tmp_path / "store")


def check_at_url(study: Path, store: Path) -> None:
    """The URL has the trials, and the study's directory their small files alone."""
    ends = {one.trial for one in read_journal(study) if isinstance(one, Result)}
    for trial in ends:
        assert holds(f"file://{store}/trials/{trial}") == "a run"
        assert (study / "trials" / trial / "metrics.jsonl").is_file()
    assert not list(study.rglob("checkpoints"))


def nodes_with_trials(there: Machines) -> list[Any]:
    from equipoise.chaos.attack import command as title

    return [
        node
        for node in there.victims()
        if any("ray::TrialActor" in title(pid) for pid in there._of(node))
    ]


def test_a_stopped_trial_is_saved_and_its_actor_trains_the_next(
    there: Machines, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    halves.made(folder, steps=10_000_000)
    (folder / "trials").mkdir()
    made = executor(there)
    try:
        made.begin(job(folder, "long", 10_000_000))
        while not any(isinstance(event, Progress) for event in made.poll(1.0)):
            pass
        made.stop("long")
        made.begin(job(folder, "short", 512))
        while not (events := [one for one in made.poll(1.0) if isinstance(one, Result)]):
            pass
        assert [(one.trial, one.state) for one in events] == [("short", "paused")]
        assert events[0].core_seconds == pytest.approx(events[0].seconds, abs=0.01)
        assert list((folder / "trials" / "long" / "checkpoints").glob("step_*"))
        assert len(made._slots) == 1
    finally:
        made.close()


def job(folder: Path, trial: str, to: int) -> Job:
    return Job(trial=trial, study=folder, settings={}, seed=None, to=to, of=to)


def test_an_idle_actor_takes_the_job_of_one_that_no_machine_has_room_for(
    there: Machines, tmp_path: Path
) -> None:
    from equipoise.studies.on_ray import RayExecutor

    folder = tmp_path / "study"
    halves.made(folder)
    (folder / "trials").mkdir()
    made = RayExecutor(command, 4, cluster=Cluster(address=there.cluster.address))
    try:
        for number in range(4):  # on three machines
            made.begin(job(folder, f"t{number}", 512))
        ended = set[str]()
        while len(ended) < 4:
            ended |= {one.trial for one in made.poll(1.0) if isinstance(one, Result)}
    finally:
        made.close()


def test_a_folder_that_the_machines_do_not_share_ends_the_study(
    there: Machines, tmp_path: Path
) -> None:
    made = executor(there)
    try:
        made.begin(job(tmp_path / "nowhere", "t0", 512))
        refused = "must be a folder that all machines of the cluster share, got none"
        with pytest.raises(ValueError, match=refused):
            until(lambda: made.poll(1.0), "the refusal")
    finally:
        made.close()


@pytest.mark.parametrize(
    ("settings", "options", "refused"),
    [
        ({}, {"cores": 64}, "must have a machine with 64 cores and 0 GPUs for each trial"),
        ({"labels": {"tier": "spot"}}, {}, "with the labels {'tier': 'spot'}"),
    ],
)
def test_a_trial_that_no_machine_has_room_for_is_refused(
    settings: Any, options: Any, refused: str, there: Machines
) -> None:
    from equipoise.studies.on_ray import RayExecutor

    cluster = Cluster(address=there.cluster.address, **settings)
    with pytest.raises(ValueError, match=refused) as caught:
        RayExecutor(command, 1, cluster=cluster, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("at_url", [False, True])
def test_tune_clones_trials_that_other_machines_have_trained(
    at_url: bool, there: Machines, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "space": {"optimizer.learning_rate": "log:1e-4..1e-2"},
        "strategy": "pbt",
        "strategy_settings": {"every": 512, "quantile": 0.5},
        "trials": 2,
        "jobs": 2,
        "confirm": 0,
        "steps": 1536,
        "actors": 1,
        "envs_per_actor": 8,
        "unroll": 16,
        "evaluate_episodes": 0,
        "recipe": False,
    }
    here = api.tune("CartPole-v1", "ppo", out=tmp_path / "local", **options)
    far = api.tune(
        "CartPole-v1",
        "ppo",
        out=tmp_path / "ray",
        executor="ray",
        url=f"file://{tmp_path}/store" if at_url else "",
        cluster={"address": there.cluster.address},
        **options,
    )
    entries = [decided(read_journal(study.directory)) for study in (here, far)]
    assert entries[0] == entries[1]
    assert any(entry["kind"] == "clone" for entry in entries[0])
    assert far.score == here.score
    if at_url:
        check_at_url(far.directory, tmp_path / "store")
        assert read_recorded(far.directory).scored
