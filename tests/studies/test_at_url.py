"""Trials of a study at its URL: a machine goes on with what another one trained, to the same bits;
a result is one that the URL holds whole; no other study and no lost process writes there.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")

from equipoise import api
from equipoise.api.trial import train_stretch
from equipoise.api.tuning import carried_on, opened
from equipoise.record.mirror import Mirror, Store, claim, holds, reached
from equipoise.studies import at_url, mirrored
from equipoise.studies.at_url import OwnFolder, SmallFiles, check_vacant, files_of, take
from equipoise.studies.executor import Job
from equipoise.studies.history import Result
from equipoise.studies.journal import decided, read_journal
from equipoise.studies.settings import STUDY, StudySettings, read_study
from tests.studies import halves


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study") / "study"
    halves.made(folder)
    return folder


@pytest.fixture
def machine(study: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes machines: each has a folder of its own with the study's small files alone."""

    def made(name: str) -> Path:
        folder = tmp_path / name
        if not folder.exists():
            folder.mkdir()
            for file, data in files_of(halves_job(study)).items():
                (folder / file).write_bytes(data)
        return folder

    return made


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def halves_job(folder: Path, trial: str = "t0", to: int = 512, **options: Any) -> Job:
    options = {"settings": {}, "seed": None, "keep_cut": True} | options
    return Job(trial=trial, study=folder, to=to, of=4096, **options)


def trained(job: Job) -> Result:
    made = train_stretch(
        job, on="serial", trust=(), moved=lambda progress: None, stopped=lambda: False
    )
    assert made is not None
    return replace(made, seconds=0.0, core_seconds=0.0)


def params(directory: Path) -> str:
    return str(json.loads((directory / "summary.json").read_text())["params_sha256"])


def lineage(place: Callable[[str], Path], url: str) -> tuple[list[Result], str]:
    """A trial of two stretches, and a clone of it at the first one: each on a machine."""
    clone: dict[str, Any] = {"source": "t0", "source_steps": 512, "url": url}
    clone["settings"] = {"optimizer.learning_rate": 0.002}
    jobs = [
        halves_job(place("first"), to=512, url=url),
        halves_job(place("second"), to=2560, url=url),
        halves_job(place("third"), "t1", 1024, **clone),
        halves_job(place("first"), "t1", 1536, **clone),
    ]
    return [trained(job) for job in jobs], params(jobs[-1].directory)


@pytest.mark.thorough
def test_trials_and_clones_go_from_machine_to_machine_with_the_bits_of_a_shared_folder(
    machine: Callable[[str], Path], url: str
) -> None:
    shared = lineage(lambda name: machine("shared"), "")
    assert [one.state for one in shared[0]] == ["paused"] * 4
    assert lineage(machine, url) == shared
    there = Store(f"{url}/trials/t0").whole_steps()
    assert sorted(int(name[5:]) for name in there) == [512, 1536, 2048, 2560]  # a cut, the last
    assert holds(f"{url}/trials/t1") == "a run" and reached(f"{url}/trials/t1") == 1536


def test_a_machine_that_has_a_trial_further_than_the_url_goes_on_from_its_own(
    machine: Callable[[str], Path], url: str
) -> None:
    trained(halves_job(machine("first"), to=512, url=url))
    store = Store(f"{url}/trials/t0")
    store.remove("checkpoints")
    made = trained(halves_job(machine("first"), to=512, url=url))
    assert made.state == "paused" and made.steps == 512
    assert [int(name[5:]) for name in store.whole_steps()] == [512]  # copied again


def test_a_result_that_the_url_does_not_hold_is_a_failure_with_the_reason(
    machine: Callable[[str], Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Store.put

    def full(self: Store, file: Path, name: str, size: int | None = None) -> None:
        if "checkpoints" in name:
            raise OSError(28, "No space left on device")
        put(self, file, name, size)

    monkeypatch.setattr(Store, "put", full)
    monkeypatch.setattr(mirrored, "STORE_S", 0.5)
    made = trained(halves_job(machine("first"), url=url))
    assert made.state == "failed" and made.score is None
    assert "must hold the end of the trial" in made.error
    assert "No space left on device" in made.error and "\n" not in made.error
    # A store that answers again within minutes costs no trial, and no step is trained twice.
    fails = [0]

    def once(self: Store, file: Path, name: str, size: int | None = None) -> None:
        fails[0] += 1
        if fails[0] == 1:
            raise OSError("no answer")
        put(self, file, name, size)

    monkeypatch.setattr(Store, "put", once)
    monkeypatch.setattr(mirrored, "STORE_S", 60.0)
    made = trained(halves_job(machine("first"), url=url))
    assert made.state == "paused" and reached(f"{url}/trials/t0") == 512


def run_with(directory: Path, *steps: int) -> Path:
    """Files of a run that looks whole to a mirror."""
    for step in steps:
        place = directory / f"checkpoints/step_{step}"
        place.mkdir(parents=True)
        (place / "learner.safetensors").write_bytes(b"state")
        said = {"files": {"learner.safetensors": {"size": 5, "sha256": "0" * 64}}, "segments": {}}
        (place / "manifest.json").write_text(json.dumps(said))
    (directory / "run.json").write_text("{}")
    return directory


def test_a_process_that_was_given_up_writes_no_more_once_another_has_claimed_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, said = "memory://claims/t0", list[str]()
    claim(place)
    lost = Mirror(run_with(tmp_path / "lost", 1), place)
    assert lost.finish(30)
    claim(place)
    next_one = Mirror(run_with(tmp_path / "next", 1, 2), place)
    assert next_one.finish(30)
    assert not lost.finish(30, said.append)
    assert "by this process alone, got another writer" in said[0]
    assert reached(place) == 2
    lost.close()
    next_one.close()


def test_the_summary_is_at_the_url_only_with_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, order, put = run_with(tmp_path / "run", 1), list[str](), Store.put

    def noted(self: Store, file: Path, name: str, size: int | None = None) -> None:
        order.append(name)
        put(self, file, name, size)

    monkeypatch.setattr(Store, "put", noted)
    (run / "summary.json").write_text("{}")
    copy = Mirror(run, "memory://order/t0")
    assert copy.finish(30)
    copy.close()
    assert order.index("summary.json") > order.index("checkpoints/step_1/manifest.json")


def test_pins_go_to_the_url_and_an_unpinned_checkpoint_goes_from_there(tmp_path: Path) -> None:
    run, place = run_with(tmp_path / "run", 1, 2), "memory://pins/t0"
    (run / "checkpoints/pin_1").touch()
    copy = Mirror(run, place)
    assert copy.finish(30)
    shutil.rmtree(run / "checkpoints/step_1")  # as a machine that fetched the newest one alone
    assert copy.finish(30)
    assert sorted(Store(place).whole_steps()) == ["step_1", "step_2"]
    (run / "checkpoints/pin_1").unlink()
    assert copy.finish(30)
    copy.close()
    assert Store(place).whole_steps() == ["step_2"]
    assert "pin_1" not in Store(place).names("checkpoints")


# --------------------------------------------------------------------------------------- the study


def settings(place: str, **options: Any) -> StudySettings:
    space = ("optimizer.learning_rate=log:1e-4..1e-2",)
    given: dict[str, Any] = {"strategy": "random", "trials": 2, "confirm": 0, "space": space}
    return StudySettings(url=place, **given | options)


@pytest.fixture(scope="module")
def program() -> Any:
    options: Any = {"actors": 1, "envs_per_actor": 8, "unroll": 16, "steps": 256}
    return api.program("CartPole-v1", "ppo", evaluate_episodes=0, recipe=False, **options)


@pytest.mark.parametrize(
    ("place", "refused"),
    [
        ("s3://name:word@bucket/study", "expected a URL without a password"),
        ("bucket/study", "url: must be a URL such as s3://bucket/study, got 'bucket/study'"),
    ],
)
def test_what_is_no_url_or_has_a_secret_is_refused_before_anything_is_written(
    place: str, refused: str, program: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=refused) as caught:
        opened(tmp_path / "study", settings(place), program)
    assert "word" not in str(caught.value).replace("password", "")
    assert not (tmp_path / "study").exists()


def test_the_url_of_another_study_is_refused_before_anything_is_written(
    program: Any, tmp_path: Path, url: str
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    opened(first, settings(url), program)
    take(url, first)
    take(url, first)  # it goes on
    with pytest.raises(FileExistsError, match="got one with those of another"):
        opened(second, settings(url), program)
    assert not second.exists()
    opened(second, settings(f"{url}2"), program)
    text = (second / STUDY).read_text().replace(f"{url}2", url).replace("trials = 2", "trials = 3")
    (second / STUDY).write_text(text)
    with pytest.raises(ValueError, match="with the trials of another"):
        carried_on(second, trust=(url,))
    (tmp_path / "trials_alone/trials/t0").mkdir(parents=True)
    with pytest.raises(FileExistsError):
        check_vacant(f"file://{tmp_path}/trials_alone")


@pytest.mark.thorough
def test_a_study_goes_on_on_another_machine_that_has_its_small_files_alone(
    program: Any, tmp_path: Path, url: str
) -> None:
    options: dict[str, Any] = {"strategy": "pbt", "strategy_settings": ("every=128",), "trials": 3}
    alone = opened(tmp_path / "alone", replace(settings(""), **options), program)
    carried_on(alone)
    first = opened(tmp_path / "first", replace(settings(url), **options), program)

    class Interrupted(Exception):
        pass

    def heard(entry: object, history: Any) -> None:
        if isinstance(entry, Result) and len([1 for one in history if one.points]) == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        carried_on(first, on_entry=heard)
    second = tmp_path / "second"
    shutil.copytree(first, second, ignore=shutil.ignore_patterns("checkpoints", "replay"))
    shutil.rmtree(first)
    carried_on(second)
    assert decided(read_journal(second)) == decided(read_journal(alone))


def test_a_resume_gives_and_keeps_another_address_of_the_cluster(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = opened(
        tmp_path / "study",
        settings("", executor="ray", cluster=("address=here:1", "autoscale=true")),
        program,
    )
    seen = list[StudySettings]()

    class Enough(Exception):
        pass

    class Idle:
        def close(self) -> None:
            pass

    def executor(given: StudySettings, *rest: object) -> Idle:
        seen.append(given)
        return Idle()

    def run(self: Any) -> Any:
        raise Enough

    from equipoise.studies.study import Study

    monkeypatch.setattr("equipoise.api.tuning.executor_of", executor)
    monkeypatch.setattr(Study, "run", run)
    for cluster in ({"address": "there:2"}, None):
        with pytest.raises(Enough):
            carried_on(folder, cluster=cluster)
        assert read_study(folder).cluster == ("address=there:2", "autoscale=true")
    assert {one.cluster for one in seen} == {("address=there:2", "autoscale=true")}
    assert api.configured(folder / STUDY) is not None  # the program's signature still holds


# -------------------------------------------------------------------------------- between machines


def test_the_small_files_come_to_the_studys_machine_and_a_failure_is_a_warning(
    tmp_path: Path, url: str
) -> None:
    run = run_with(tmp_path / "run", 1)
    (run / "metrics.jsonl").write_text("{}\n")
    copy = Mirror(run, url)
    assert copy.finish(30)
    copy.close()
    small = SmallFiles()
    small.fetch(url, tmp_path / "t0")
    small.fetch("nothing://bucket/t1", tmp_path / "t1")
    with pytest.warns(RuntimeWarning, match="t1: its small files did not come: nothing://"):
        small.close()
    assert (tmp_path / "t0/metrics.jsonl").read_text() == "{}\n"
    assert sorted(one.name for one in (tmp_path / "t0").iterdir()) == ["metrics.jsonl", "run.json"]


def test_the_folder_of_a_killed_actor_is_removed_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(at_url, "LEFT_S", -1.0)
    killed, living = tmp_path / f"{at_url.FOLDER}killed", OwnFolder()
    killed.mkdir()
    living.write({"programs/t0.json": b"{}"})
    another = OwnFolder()
    assert sorted(tmp_path.iterdir()) == sorted([living.path, another.path])
    living.close()
    another.close()
    assert not list(tmp_path.iterdir())
