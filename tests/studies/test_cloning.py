"""Clones go on as their parents would, to the bit; what a mutation changes is read back from the
live learner; no call leaves half a clone; a pinned checkpoint stays.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise import api
from equipoise.learners import optimizers
from equipoise.learners.learner import Learner
from equipoise.programs.program import algorithm_class, algorithm_names, text_algorithm_names
from equipoise.record import checkpoint, statefile
from equipoise.record.cloning import clone, live_settings, pin, unpin
from equipoise.record.directory import KEPT, RunDirectory
from equipoise.types import Frozen, learning
from tests.runtime.resuming import command, told
from tests.runtime.test_replay_checkpoints import ENVS, SETTINGS
from tests.runtime.test_resume import go_on, train
from tests.sources.test_preferences import file_of

RUN: dict[str, Any] = {"max_lag": 0, "seed": 5, "recipe": False, "evaluate_episodes": 0}
CART: dict[str, Any] = {"actors": 2, "envs_per_actor": 4, "unroll": 8}
REPLAY: dict[str, Any] = {"actors": 2, "envs_per_actor": 2, "unroll": 4}
TEXT: dict[str, Any] = {"actors": 2, "envs_per_actor": 8, "batch": 32, "max_completion_length": 8}
SMALL = ["algorithm.hidden=[16]"]
STATEFUL = ["algorithm.core=lstm", "algorithm.normalize_obs=true", "rewards.normalize=true"]
PAIRS = [name for name in algorithm_names() if algorithm_class(name).needs_pairs]
SIGNAL = {"speaker": "tell", "listener": "hear"}


def program(name: str, n: int, rows: str = "", **more: Any) -> Any:
    """A tiny program of an algorithm, or of the case ``name``, with a whole checkpoint at ``n``."""
    given = RUN | {"steps": n, "schedule_steps": 2 * n, "checkpoint_every": n} | more
    algorithm, _, kind = name.partition(" ")
    if algorithm in SETTINGS:
        settings = [*SETTINGS[algorithm], *(["replay.shards=2"] if kind == "shards" else [])]
        return api.program(ENVS[algorithm], algorithm, settings=settings, **REPLAY | given)
    if name in PAIRS:
        return api.program(rows, name, model="tiny", **TEXT | {"envs_per_actor": 2} | given)
    if name in text_algorithm_names():
        return api.program("sort", name, model="tiny", **TEXT | given)
    if name == "bc":
        return api.program("CartPole-v1", "bc", dataset=rows, batch=16, settings=SMALL, **given)
    if name == "td3":
        settings = [*SMALL, "batch=8", "replay.starts_at=100", "replay.capacity=300"]
        return api.program("Pendulum-v1", "td3", settings=settings, **REPLAY | given)
    if name == "two policies":
        policies: dict[str, Any] = {"tell": "ppo", "hear": "impala"}
        given |= {"policies": policies, "route": SIGNAL, "settings": SMALL}
        return api.program("tests.envs.games:Signal", **CART | given)
    if name == "past self":
        policies = {"main": "ppo", "old": Frozen(of="main")}
        given |= {"policies": policies, "route": {"right": "old"}, "settings": SMALL}
        return api.program("tests.envs.games:Duel", **CART | given)
    settings = [*SMALL, *(STATEFUL if kind == "stateful" else ())]
    if kind == "evaluated":
        given |= {"evaluate_episodes": 2, "evaluate_every": n // 2}
    return api.program("CartPole-v1", algorithm, settings=settings, **CART | given)


def steps_of(name: str) -> int:
    """The step of the checkpoint: some updates before it, and as many after it."""
    if name in text_algorithm_names():
        return 64
    return 4 if name == "bc" else 320 if name.partition(" ")[0] in (*SETTINGS, "td3") else 256


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the checkpoints 128, 192 and 256."""
    path = tmp_path_factory.mktemp("cloned") / "run"
    train(program("ppo", 256, checkpoint_every=64), path)
    return path


def content(directory: Path) -> dict[str, str]:
    """The bytes of all files by their paths."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def steps(run: Path) -> list[int]:
    return [step for step, _ in checkpoint.steps(run / "checkpoints")]


# ------------------------------------------------------------------------------------ the same bits


CASES = [
    "dqn",
    "ppo stateful",
    "ppo evaluated",
    "two policies",
    "past self",
    "dqn shards",
    *(name for name in algorithm_names() if name != "dqn"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_a_clone_makes_the_updates_that_its_parent_makes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, n = "", steps_of(name)
    if name == "bc":
        pytest.importorskip("minari")
        pytest.importorskip("h5py")
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
        train(program("ppo", 64), tmp_path / "recorder")
        eq.collect(tmp_path / "recorder", rows := "some/rows-v0", episodes=4)
    if name in PAIRS:
        rows = str(file_of(tmp_path))
    parent, copy = tmp_path / "parent", tmp_path / "copy"
    train(program(name, n, rows), parent)
    before = content(parent)
    assert clone(parent, copy) == copy
    assert content(parent) == before, "nothing of the source is changed"
    best = [RunDirectory.found(run).best_evaluation() for run in (parent, copy)]
    assert best[0] == best[1]
    done = [go_on(run, steps=2 * n) for run in (parent, copy)]
    assert done[0]["updates"] > go_on_from(copy), "there is an update after the checkpoint"
    assert told(copy) == told(parent)


def go_on_from(run: Path) -> int:
    """The version at which a clone began."""
    at = RunDirectory.found(run).run["cloned"]["step"]
    return int(checkpoint.read_meta(run / f"checkpoints/step_{at}")["version"])


@pytest.mark.thorough
def test_a_clone_needs_its_parent_no_more(tmp_path: Path, source: Path) -> None:
    parent = Path(shutil.copytree(source, tmp_path / "parent"))
    first, second = clone(parent, tmp_path / "first"), clone(parent, tmp_path / "second")
    kept = content(second)
    go_on(parent, steps=512)
    assert content(second) == kept, "the parent goes on and changes none of its files"
    wanted = told(parent)
    shutil.rmtree(parent)
    go_on(first, steps=512)
    assert told(first) == wanted


def test_a_clone_has_no_end_no_mirror_and_a_dashboard_run_of_its_own(
    tmp_path: Path, source: Path
) -> None:
    parent = Path(shutil.copytree(source, tmp_path / "parent"))
    run = json.loads((parent / "run.json").read_text())
    more = {"trackers": [{"to": "wandb", "name": "p", "id": "1234abcd"}], "mirror": "memory://run"}
    (parent / "run.json").write_text(json.dumps(run | more))
    copy = clone(parent, tmp_path / "copy")
    names = {path.name for path in copy.iterdir()}
    assert names == {"checkpoints", "metrics.jsonl", "run.json", "spec.json"}
    found = RunDirectory.open(copy).run
    assert found["cloned"]["run"] == str(parent) and found["cloned"]["step"] == 256
    assert found["trackers"][0]["name"] == "p" and found["trackers"][0]["id"] != "1234abcd"
    assert "mirror" not in found


def test_a_clone_of_an_older_step_has_the_reports_up_to_it(tmp_path: Path, source: Path) -> None:
    copy = clone(source, tmp_path / "copy", step=192)
    assert steps(copy) == [192]
    told_there = [line["env_steps"] for line in RunDirectory.found(copy).metrics()]
    told_here = [line["env_steps"] for line in RunDirectory.found(source).metrics()]
    assert told_there == [step for step in told_here if step <= 192] and told_there
    go_on(copy, steps=256)
    assert told(copy) == told(source)


# ---------------------------------------------------------------------------------------- mutations


JOURNAL = {
    "optimizer.learning_rate": 0.02,
    "optimizer.weight_decay": 0.125,
    "optimizer.epsilon": 0.25,
    "algorithm.gamma": 0.5,
    "algorithm.entropy": 0.0625,
}


def mutated(run: Path, **more: Any) -> dict[str, object]:
    """Go on with what the journal notes -> the settings that the learner then had."""
    go_on(run, steps=512, settings=[f"{key}={value}" for key, value in JOURNAL.items()], **more)
    return live_settings(run)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "schedule"),
    [*product(("adam", "adamw", "rmsprop"), ("linear", "constant", "cosine"))],
)
def test_a_mutation_reaches_the_optimiser_and_the_algorithm(
    name: str, schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the rate of each step: the schedule's share of the new rate, from the first on."""
    parent = tmp_path / "parent"
    settings = [*SMALL, f"optimizer.name={name}", f"optimizer.schedule={schedule}"]
    made = api.program(
        "CartPole-v1",
        "impala",
        settings=settings,
        **CART | RUN | {"steps": 256, "schedule_steps": 512},
    )
    train(made, parent)
    copy, before = clone(parent, tmp_path / "copy"), content(parent)
    was, rates = live_settings(copy), list[float]()
    assert not JOURNAL.items() & was.items()
    kind = optimizers.KINDS[name]
    taken = kind.step

    def seen(self: Any, rate: float) -> None:
        assert (self.settings.weight_decay, self.settings.epsilon) == (0.125, 0.25)
        rates.append(rate)
        taken(self, rate)

    monkeypatch.setattr(kind, "step", seen)
    now = mutated(copy)
    assert now == was | JOURNAL | {"optimizer.rates.all": JOURNAL["optimizer.learning_rate"]}
    new = replace(learning(made)["main"].optimizer, learning_rate=0.02)
    assert rates == [new.rate("all", (4 + update) / 8) for update in range(4)]
    assert content(parent) == before
    monkeypatch.undo()
    go_on(parent, steps=512)
    assert told(parent)["params_sha256"] != told(copy)["params_sha256"]


def old_rate(learner: Learner) -> None:
    learner.optimizer = replace(learner.optimizer, learning_rate=3e-4)


def old_decay(learner: Learner) -> None:
    for one in learner.parameters.optimizers.values():
        one.settings = replace(one.settings, weight_decay=0.0)


def old_discount(learner: Learner) -> None:
    learner.algorithm = replace(learner.algorithm, gamma=0.99)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("comes_back", "key"),
    [
        (old_rate, "optimizer.learning_rate"),
        (old_decay, "optimizer.weight_decay"),
        (old_discount, "algorithm.gamma"),
    ],
)
def test_a_state_that_brings_an_old_setting_back_is_seen(
    comes_back: Callable[[Learner], None],
    key: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted fault: the state is loaded after the new settings, with the old ones in it."""
    load = Learner.load

    def with_the_old(self: Learner, state: Any) -> None:
        load(self, state)
        comes_back(self)

    monkeypatch.setattr(Learner, "load", with_the_old)
    now = mutated(clone(source, tmp_path / "copy"))
    wrong = {name for name, value in JOURNAL.items() if now[name] != value}
    assert wrong == {key}


@pytest.mark.thorough
def test_each_policy_has_its_own_settings(tmp_path: Path) -> None:
    train(program("two policies", 256), tmp_path / "run")
    copy = clone(tmp_path / "run", tmp_path / "copy")
    go_on(copy, steps=512, settings=["policies.hear.algorithm.gamma=0.5"])
    now = live_settings(copy)
    assert now["policies.hear.algorithm.gamma"] == 0.5
    assert now["policies.tell.algorithm.gamma"] == 0.99
    assert now["policies.tell.optimizer.rates.all"] == now["policies.tell.optimizer.learning_rate"]


@pytest.mark.thorough
def test_each_group_of_parameters_has_its_own_rate(tmp_path: Path) -> None:
    train(program("sac", 128), tmp_path / "run")
    go_on(tmp_path / "run", steps=256, settings=["optimizer.rates.actor=0.25"])
    now = live_settings(tmp_path / "run")
    assert now["optimizer.rates.actor"] == 0.25
    assert now["optimizer.rates.critic"] == now["optimizer.learning_rate"] != 0.25


def test_a_checkpoint_without_the_live_settings_goes_on(source: Path, tmp_path: Path) -> None:
    """As an older version wrote it."""
    copy = clone(source, tmp_path / "copy")
    place = copy / "checkpoints/step_256"
    state = statefile.parse((place / "learner.safetensors").read_bytes())
    del state["live"]
    entries = rewritten(place, "learner.safetensors", statefile.dump(state))
    assert entries["files"]["learner.safetensors"]
    with pytest.raises(ValueError, match="must have the settings of its learner, got none"):
        live_settings(copy)
    go_on(copy, steps=320)
    assert live_settings(copy)["algorithm.gamma"] == 0.99


def rewritten(place: Path, name: str, data: bytes) -> Any:
    """Replace a file of a checkpoint, which others have links to -> the new manifest."""
    said = json.loads((place / "manifest.json").read_text())
    said["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    for file, content in ((name, data), ("manifest.json", json.dumps(said).encode())):
        (place / file).unlink()
        (place / file).write_bytes(content)
    return said


# ------------------------------------------------------------------------------------- broken calls


CALLS = ("mkdir", "open", "write", "link", "fsync", "rename")


class Fault:
    """The n-th call of some function of ``os`` fails, and with ``dead`` every one after it also."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, *, dead: bool = False) -> None:
        self.calls, self.at, self.dead, self.hit = 0, at, dead, ""
        for name in CALLS:
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))
        if dead:
            monkeypatch.setattr(shutil, "rmtree", self._failing("rmtree", shutil.rmtree))

    def _failing(self, name: str, call: Any) -> Any:
        def failing(*given: Any, **options: Any) -> Any:
            now, self.calls = self.calls, self.calls + 1
            if now == self.at or (self.dead and now > self.at):
                self.hit = self.hit or name
                raise KeyboardInterrupt if self.dead else OSError(errno.EIO, "planted", name)
            return call(*given, **options)

        return failing


@pytest.mark.few(1)
@pytest.mark.parametrize("dead", [True, False])
def test_a_call_that_fails_anywhere_leaves_no_half_clone(
    dead: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``dead``: as of a kill, nothing is tidied; the next call for this place does that."""
    before, place, hits = content(source), tmp_path / "copy", set()
    for at in range(1000):
        with monkeypatch.context() as patched:
            fault, failed = Fault(patched, at, dead=dead), False
            try:
                clone(source, place)
            except (OSError, KeyboardInterrupt):
                failed = True
        hits.add(fault.hit)
        assert (failed or place.exists()) and (dead or failed != place.exists())
        if place.exists():
            whole(place)
            shutil.rmtree(place)
        assert dead or not os.listdir(tmp_path)
        whole(clone(source, place))
        assert os.listdir(tmp_path) == ["copy"]
        shutil.rmtree(place)
        if not fault.hit:
            break
    assert hits == {*CALLS, ""}
    assert content(source) == before


def whole(place: Path) -> None:
    run = RunDirectory.open(place)
    assert checkpoint.latest(run.checkpoints, whole=True) == place / "checkpoints/step_256"
    assert run.metrics() and run.run["cloned"]["step"] == 256 and (place / "spec.json").is_file()


def test_files_are_copied_where_links_cannot_be(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = clone(source, tmp_path / "linked") / "checkpoints/step_256/learner.safetensors"
    monkeypatch.setattr(os, "link", no_links)
    copied = clone(source, tmp_path / "copied") / "checkpoints/step_256/learner.safetensors"
    assert linked.stat().st_ino != copied.stat().st_ino
    assert copied.read_bytes() == linked.read_bytes() and copied.stat().st_nlink == 1
    assert linked.stat().st_nlink == 2


def test_a_checkpoint_that_is_removed_meanwhile_is_not_half_copied(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def removing(one: Path, other: Path) -> None:
        if one.name == "meta.json" and one.parent.name == "step_256":
            shutil.rmtree(one.parent)
        link(one, other)

    monkeypatch.setattr(os, "link", removing)
    newest = clone(Path(shutil.copytree(source, tmp_path / "one")), tmp_path / "newest")
    assert steps(newest) == [192] and not list(tmp_path.glob(".*"))
    assert checkpoint.latest(newest / "checkpoints", whole=True) is not None
    with pytest.raises(ValueError, match=r"whole checkpoint of step 256, got those of 192, 128; "):
        clone(shutil.copytree(source, tmp_path / "two"), tmp_path / "asked", step=256)
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", "newest"}


# ----------------------------------------------------------------------------------- strange inputs


def test_what_cannot_be_cloned_is_refused_in_a_sentence(source: Path, tmp_path: Path) -> None:
    before = content(source)
    file, taken, gone = tmp_path / "file", tmp_path / "taken", tmp_path / "gone"
    file.write_text("x")
    taken.mkdir()
    gone.symlink_to(tmp_path / "nowhere")
    artifact = tmp_path / "artifact"
    shutil.copytree(source / "checkpoints/step_256", artifact)
    new = tmp_path / "new"
    for given, place, said in (
        (file, new, "expected a run directory with a run.json, got a file"),
        (tmp_path / "none", new, "expected a run directory with a run.json, got no directory"),
        (artifact, new, "expected a run directory with a run.json, got one without"),
        ("s3://bucket/run", new, "must be paths on this machine, got s3://bucket/run"),
        (source, "memory://run", "must be paths on this machine, got memory://run"),
        (source, taken, "must be a new directory, got one that exists"),
        (source, file, "must be a new directory, got one that exists"),
        (source, gone, "must be a new directory, got one that exists"),
        (source, source, "must be a new directory, got one that exists"),
        (source, source / "inside", "must be outside of the run"),
    ):
        with pytest.raises((ValueError, FileNotFoundError)) as raised:
            clone(given, place)
        assert said in str(raised.value) and "\n" not in str(raised.value)
    for step in (100, -1, 0):
        with pytest.raises(ValueError, match=f"of step {step}, got those of 256, 192, 128"):
            clone(source, new, step=step)
    assert content(source) == before and not os.path.lexists(new)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "taken", "gone", "artifact"}


def test_a_link_to_a_run_is_cloned_and_parents_of_the_place_are_made(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(source)
    copy = clone(tmp_path / "link", tmp_path / "some [a-z]*" / "new")
    whole(copy)
    assert RunDirectory.found(copy).run["cloned"]["run"] == str(source)
    with pytest.raises(ValueError, match="must be outside of the run"):
        clone(tmp_path / "link", source / "logs/inside")


def test_a_run_without_a_whole_checkpoint_is_named(source: Path, tmp_path: Path) -> None:
    parent = clone(source, tmp_path / "parent")
    (parent / "checkpoints/step_256/learner.safetensors").unlink()
    for call in (
        lambda: clone(parent, tmp_path / "copy"),
        lambda: pin(parent, 256),
        lambda: live_settings(parent),
    ):
        with pytest.raises(ValueError, match=r"parent: must have a whole checkpoint.*got none"):
            call()
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["manifest.json", "learner.safetensors", "weights.safetensors"])
def test_a_damaged_checkpoint_is_passed_by(name: str, source: Path, tmp_path: Path) -> None:
    parent = Path(shutil.copytree(source, tmp_path / "parent"))
    file = parent / "checkpoints/step_256" / name
    file.write_bytes(file.read_bytes()[:-9] + b"damaged!}")
    with pytest.warns(RuntimeWarning, match=rf"{name}.*; step 192 is copied instead"):
        copy = clone(parent, tmp_path / "copy")
    assert steps(copy) == [192]
    with pytest.raises(ValueError, match=rf"of step 256, got those of 256, 192, 128; .*{name}"):
        clone(parent, tmp_path / "asked", step=256)
    assert not (tmp_path / "asked").exists()


def test_links_in_a_run_from_elsewhere_bring_no_other_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    parent = Path(shutil.copytree(source, tmp_path / "parent"))
    for step in (128, 192, 256):
        file = parent / f"checkpoints/step_{step}/learner.safetensors"
        file.unlink()
        file.symlink_to(secret)
    for links in (True, False):
        if not links:
            monkeypatch.setattr(os, "link", no_links)
        with pytest.raises(ValueError, match="must have a whole checkpoint"):
            clone(parent, tmp_path / "copy")


def no_links(*_: object) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


# --------------------------------------------------------------------------------------------- pins


def test_a_pinned_checkpoint_stays_until_it_is_unpinned(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(source, run)
    oldest = steps(run)[-1]
    pin(run, oldest)
    pin(run, oldest)
    go_on(run, steps=512)
    assert steps(run) == [512, 448, 384, oldest]
    assert live_settings(run, oldest) and steps(clone(run, tmp_path / "copy", step=oldest)) == [128]
    unpin(run, oldest)
    unpin(run, oldest)
    go_on(run, steps=576)
    assert len(steps(run)) == KEPT
    with pytest.raises(ValueError, match="of step 128, got those of 576"):
        pin(run, 128)
    assert not list((run / "checkpoints").glob("pin_*"))


def test_a_pin_that_comes_as_its_checkpoint_is_removed_holds_or_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each moment of the removal: what ``pin`` does not refuse is there afterwards."""
    outcomes = set()
    for moment in range(4):
        run = Path(shutil.copytree(source, tmp_path / f"run {moment}"))
        calls = [0]

        def at(call: Callable[..., Any], when: int, run: Path, calls: list[int]) -> Any:
            def between(*given: Any, **options: Any) -> Any:
                calls[0] += 1
                if calls[0] == when:
                    outcomes.add(pinned(run))
                return call(*given, **options)

            return between

        with monkeypatch.context() as patched:
            patched.setattr(Path, "exists", at(Path.exists, moment, run, calls))
            patched.setattr(Path, "rename", at(Path.rename, moment, run, calls))
            checkpoint.retain(run / "checkpoints", 2)
        assert (128 in steps(run)) == (run / "checkpoints/pin_128").is_file()
    assert outcomes == {True, False}


def pinned(run: Path) -> bool:
    try:
        pin(run, 128)
    except ValueError:
        return False
    return True


@pytest.mark.thorough
def test_a_run_in_another_process_keeps_what_is_pinned_and_can_be_cloned(
    tmp_path: Path, deadline: Any
) -> None:
    """Each clone of the run while it trains goes on to where the run itself ends."""
    run, place = tmp_path / "run", tmp_path / "copy"
    words = (
        "CartPole-v1 --algorithm dqn --actors 2 --envs-per-actor 2 --unroll 4 --max-lag 0 --seed 5"
        " --steps 1024 --checkpoint-every 32 --evaluate-episodes 0 --no-recipe --batch 8"
        " --on serial --set replay.starts_at=100 --set replay.capacity=300"
        " --set algorithm.hidden=[16]"
    )
    process = subprocess.Popen(command("train", *words.split(), "--out", str(run)))
    try:
        deadline(lambda: (run / "run.json").is_file() and steps(run), 120.0, "a checkpoint")
        kept, made = steps(run)[0], 0
        pin(run, kept)
        while process.poll() is None:
            shutil.rmtree(place, ignore_errors=True)
            clone(run, place)
            made += 1
        assert process.wait(240) == 0 and made > 1
    finally:
        process.kill()
        process.wait()
    assert kept in steps(run)[KEPT:]
    go_on(place)
    go_on(clone(run, tmp_path / "pinned", step=kept))
    assert told(place) == told(tmp_path / "pinned") == told(run)
