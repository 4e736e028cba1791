"""Reward models of clips: fitted to a store, kept as folders, and the reward of a run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from typer.testing import CliRunner

import equipoise as eq
from equipoise import api
from equipoise.api.pinning import pinned, pinned_like
from equipoise.api.reward_of_run import of_run
from equipoise.cli import app
from equipoise.feedback import Store
from equipoise.registry import Registry
from equipoise.registry.artifacts import write_manifest
from equipoise.registry.reward_models import place
from equipoise.rewards.preferences import stored
from equipoise.rewards.preferences.fit import NOTHING
from equipoise.rewards.preferences.model import RewardModel, RewardNets
from equipoise.rewards.reward_model import RewardModelTerm
from equipoise.types import EnvSpec, Trajectory
from tests.rewards.preferences.answered import (
    ACTION,
    ENV,
    OBSERVATION,
    SMALL,
    clips,
    finished,
    small,
)
from tests.rewards.preferences.test_loop import SYNTHETIC, train

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.chdir(tmp_path)


def folder_of(place: Path, seed: int = 0, *, observation: Any = OBSERVATION) -> Path:
    """A reward model with weights at random."""
    place.mkdir(parents=True)
    torch.manual_seed(seed)
    model = RewardModel(observation, ACTION, RewardNets(hidden=(8,)))
    stored.write(place, model, NOTHING, labels=0, lineage={})
    return place


# ------------------------------------------------------------------------------- from a store


@pytest.mark.thorough
def test_a_model_fitted_to_a_store_predicts_held_out_answers(tmp_path: Path) -> None:
    clips(tmp_path / "labels", 600)
    settings = {"algorithm.hidden": "16", "algorithm.epochs": 25}
    found = eq.fit_reward_model("labels", ENV, out="reward", settings=settings)
    assert found.labels >= 500 and found.left_out == 0 and found.held_out >= 20
    assert found.accuracy >= 0.85 and found.ece <= 0.15
    model = stored.read(tmp_path / "reward")
    obs = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    high, low = model.rewards(obs, torch.zeros(2, 1))[0].tolist()
    assert high > low + 1
    said = json.loads((tmp_path / "reward" / "reward_model.json").read_text())
    assert said["metrics"]["labels"] == said["lineage"]["row"] == found.labels
    again = eq.fit_reward_model("labels", ENV, out="again", settings=settings)
    assert (tmp_path / "again/weights.safetensors").read_bytes() == (
        tmp_path / "reward/weights.safetensors"
    ).read_bytes()
    assert again.version == found.version


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ({"count": 30}, "must have 50 answers or more that compare two clips, got 30"),
        ({"count": 60, "answered": False}, "must have 50 answers or more .* got 0"),
        ({"count": 60, "choice": "equal"}, "must have answers that prefer a side, got 60 ties"),
        ({"count": 60, "choice": "cannot_tell"}, "must have 50 answers .* got 0"),
    ],
)
def test_a_store_with_nothing_to_learn_is_refused(made: Any, sentence: str) -> None:
    clips(Path("labels"), **made)
    with pytest.raises(ValueError, match=f"^labels: {sentence}"):
        eq.fit_reward_model("labels", ENV, out="reward", settings=SMALL)
    assert not Path("reward").exists()


def test_a_store_that_is_none_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for where, sentence in {
        "/dev/zero": "/dev/zero: must be a feedback store, got a file",
        "nothing": "nothing: must be a feedback store, got none",
        "s3://labels": "must be a path on this machine, got a URL",
        ".": "must be a feedback store, got another folder",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            eq.fit_reward_model(where, ENV)
    Store.create("texts").close()
    with Store.open("texts") as store:
        store.add_query("text", store.add_text("a"), store.add_text("b"))
    with pytest.raises(ValueError, match=r"must have queries about clips .* got 1 about texts"):
        eq.fit_reward_model("texts", ENV)
    clips(Path("labels"), 60)
    with pytest.raises(ValueError, match="labels, clip .*: must be of this env, with"):
        eq.fit_reward_model("labels", "CartPole-v1")
    clip = next(Path("labels/segments").iterdir())
    clip.write_bytes(clip.read_bytes()[:-1])
    with pytest.raises(ValueError, match=clip.stem[:12]):
        eq.fit_reward_model("labels", ENV)
    Path("labels/feedback.sqlite").write_bytes(b"SQLite format 3\0" + bytes(5_000))
    with pytest.raises(ValueError, match=r"labels/feedback\.sqlite"):
        eq.fit_reward_model("labels", ENV)
    assert sorted(os.listdir()) == ["labels", "texts"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm.membrs": 3}, r"unknown setting 'algorithm\.membrs'.*did you mean"),
        ({"algorithm.members": 0}, r"algorithm\.members"),
        ({"algorithm.activation": "sinus"}, r"algorithm\.activation: expected one of 'tanh'"),
        ({"policy.batch": 3}, r"unknown setting 'policy\.batch'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: Any, sentence: str) -> None:
    clips(Path("labels"), 60)
    with pytest.raises(ValueError, match=sentence):
        eq.fit_reward_model("labels", ENV, out="reward", settings=settings)
    assert not Path("reward").exists()
    Path("there").mkdir()
    with pytest.raises(FileExistsError, match="there: must be a new folder"):
        eq.fit_reward_model("labels", ENV, out="there")


# ---------------------------------------------------------------------------------- as folders


@pytest.mark.parametrize(
    "space",
    [OBSERVATION, spaces.Discrete(5), spaces.Box(0, 255, (1, 16, 16), np.uint8)],
    ids=["box", "discrete", "image"],
)
def test_a_folder_is_read_as_it_was_written(space: Any) -> None:
    folder_of(Path("reward"), observation=space)
    torch.manual_seed(0)
    wanted = RewardModel(space, ACTION, RewardNets(hidden=(8,))).state_dict()
    found = stored.read(Path("reward")).state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], x) for name, x in wanted.items())


def damage(folder: Path, **changed: object) -> None:
    """Change ``reward_model.json`` as somebody would who also writes the manifest."""
    file = folder / "reward_model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    (folder / "manifest.json").unlink()
    write_manifest(folder)


NETS = {"members": 3, "hidden": [8], "activation": "silu", "output": "linear", "reduce": "sum"}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"nets": NETS | {"noise": 0.1, "hidden": [65_536] * 16}}, r"weights\.safetensors"),
        ({"nets": NETS | {"noise": 0.1, "members": 10**9}}, "nets.members"),
        ({"nets": NETS | {"noise": 0.1, "activation": "os:system"}}, "nets.activation"),
        ({"nets": NETS | {"noise": 2.0}}, "nets.noise"),
        ({"observation": {"type": "Box", "shape": [1 << 30]}}, "observation"),
        ({"observation": {"type": "Discrete", "n": 9, "start": 0, "dtype": "int64"}}, "weights"),
        ({"format": 2}, "format"),
    ],
)
def test_a_folder_that_says_what_cannot_be_is_refused(changed: Any, sentence: str) -> None:
    damage(folder_of(Path("reward")), **changed)
    with pytest.raises(ValueError, match=sentence):
        stored.read(Path("reward"))


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    for name, end in {"byte": b"x", "whole": b""}.items():
        file = folder_of(Path(name)) / "weights.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + end)
        with pytest.raises(ValueError, match=r"weights\.safetensors: expected"):
            stored.read(Path(name))
    file = folder_of(Path("link")) / "weights.safetensors"
    file.rename("elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="got a link"):
        stored.read(Path("link"))
    nan = folder_of(Path("nan"))
    model = stored.read(nan)
    model.centre[0] = float("nan")
    shutil.rmtree(nan)
    nan.mkdir()
    stored.write(nan, model, NOTHING, labels=0, lineage={})
    with pytest.raises(ValueError, match="centre"):
        stored.read(nan)


# --------------------------------------------------------------------------------- as a reward


def rewards_of(name: str, caution: float) -> tuple[torch.Tensor, RewardModel, Any]:
    term = RewardModelTerm(caution=caution)
    term.model_name = name
    term.build(EnvSpec(observation=OBSERVATION, action=ACTION), 0)
    torch.manual_seed(1)
    obs, action = torch.rand(6, 2, 3), torch.rand(5, 2, 1)
    data: Any = Trajectory.__new__(Trajectory)
    object.__setattr__(data, "obs", obs)
    object.__setattr__(data, "action", action)
    return term.rewards(data), stored.read(place(name)), (obs[:-1], action)


def test_a_reward_is_the_mean_less_caution_times_the_deviation() -> None:
    folder_of(Path("my reward, too"))
    found, model, rows = rewards_of("run:my reward, too", 0.5)
    mean, deviation = model.rewards(*rows)
    assert torch.equal(found, mean - 0.5 * deviation) and float(deviation.min()) > 0
    assert not any(one.requires_grad for one in model.parameters())


def test_a_reward_model_of_other_spaces_is_refused_with_both() -> None:
    folder_of(Path("reward"))
    for observation, action, what in (
        (spaces.Box(-1.0, 1.0, (4,)), ACTION, r"observations of this env, Box.*\(4,\).*for Box"),
        (OBSERVATION, spaces.Discrete(3), r"actions of this env, Discrete\(3\), got one for Box"),
    ):
        term = RewardModelTerm()
        term.model_name = "run:reward"
        with pytest.raises(ValueError, match=what):
            term.build(EnvSpec(observation=observation, action=action), 0)


STRANGE = {
    "run:nothing": "expected a run directory",
    "run:/dev/zero": "expected a run directory with a run.json, got a file",
    "run:file": "got a file",
    "run:empty": "got one without",
    "run:other": "must be a run of reward_model or of --reward preferences, got one without",
    "run:odd": "program",
    "run:young": "must be a run with a whole checkpoint, got none; wait until",
    "run:text": "must be a reward model of clips of an env, got one of text",
    'run:"a b': "must be a sum of rewards",
    "registry:reward": "expected a registry, got nothing",
    "registry:..": "registry:..",
    "registry:../x@champion": "expected a registry, got another folder",
    "registry:/dev/zero/x": "expected a registry, got",
    "registry:keep/nobody": "unknown policy 'nobody'",
    "registry:keep/reward@nothing": "unknown version or alias 'nothing'",
    "registry:keep/reward@shadow": "expected an alias that is set",
    "registry:keep/..@champion": "expected a name of letters",
    "run:reward+run:reward": "twice",
    "run:reward+registry:keep/reward": "names differ",
}


@pytest.fixture
def strange() -> None:
    """Folders that are no reward model, and a registry."""
    folder_of(Path("reward"))
    Registry("keep", create=True).add("reward", "reward")
    Path("file").write_text("x")
    programs: dict[str, object] = {
        "empty": None,
        "other": {"policies": {"main": {"rewards": {"sum": "env", "terms": {}}}}},
        "odd": [],
        "young": {"policies": {"main": {"rewards": {"terms": {"preferences": {}}}}}},
    }
    for name, program in programs.items():
        Path(name).mkdir()
        if program is not None:
            Path(name, "run.json").write_text(json.dumps({"program": program}))
    Path("text").mkdir()
    Path("text/reward_model.json").write_text(json.dumps({"calibration": {}}))
    write_manifest(Path("text"))


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_reward_model_is_refused_in_one_sentence(strange: None, name: str) -> None:
    with pytest.raises((ValueError, OSError), match=STRANGE[name]) as caught:
        api.start(small(name), on="serial", out="run")
    assert "\n" not in str(caught.value) and not Path("run").exists()


def test_an_alias_and_a_run_are_fixed_when_a_run_begins(strange: None) -> None:
    Registry("keep").alias("reward", "champion", Registry("keep").versions("reward")[0])
    version = Registry("keep").versions("reward")[0][:12]
    asked = small("env+0.5*registry:keep/reward")
    fixed = pinned(asked, Path)
    assert fixed.reward_models == (f"registry:{Path('keep').absolute()}/reward@{version}",)
    assert pinned(fixed, Path) == fixed == pinned_like(asked, fixed)
    assert pinned_like(small("env+0.5*registry:keep/reward@abcdef123456"), fixed) != fixed
    kept = Path("my runs/a/reward_models") / ("0" * 12)
    run = pinned(small('run:"my runs/a"'), lambda folder: kept)
    assert run.reward_models == (f"run:{kept.absolute()}",)
    assert pinned_like(small('run:"my runs/a/"'), run) == run


@pytest.mark.thorough
def test_a_run_is_the_same_in_processes_and_after_a_kill(tmp_path: Path) -> None:
    folder_of(Path("my reward"))
    reward = 'env+0.5*run:"my reward"'
    whole = finished(api.start(small(reward, 256), on="serial", out="whole"))
    assert whole != finished(api.start(small("env", 256), on="serial", out="plain"))
    assert finished(api.start(small(reward, 256), on="process", out="process")) == whole
    finished(api.start(small(reward, 128), on="serial", out="half"))
    assert finished(api.start(resume="half", steps=256)) == whole
    said = json.loads(Path("half/run.json").read_text())["reward_models"]
    files = json.loads(Path("my reward/manifest.json").read_text())["files"]
    assert said == {f"run:{tmp_path}/my reward": files["weights.safetensors"]["sha256"]}
    shutil.rmtree("my reward")
    folder_of(Path("my reward"), seed=1)
    with pytest.raises(ValueError, match="must be the reward model that the run began with"):
        api.start(resume="whole", steps=512)


@pytest.mark.thorough
def test_the_ensemble_of_a_run_of_preferences_pays_another_run(tmp_path: Path) -> None:
    train(tmp_path / "young", tmp_path / "none", 128)  # nobody answers
    with pytest.raises(ValueError, match="waits for its first answers"):
        of_run(tmp_path / "young")
    train(tmp_path / "pref", tmp_path / "store", 256, *SYNTHETIC)
    finished(api.start(small("run:pref"), on="serial", out="one"))
    (name,) = json.loads(Path("one/run.json").read_text())["reward_models"]
    model = stored.read(place(name))
    assert model.settings.hidden == (8,) and not model.image
    assert float(model.spread.min()) > 0 and model.spread.tolist() != [1.0] * 3
    # the run goes on, and a resume keeps the model that it began with
    finished(api.start(resume="pref", steps=512))
    finished(api.start(resume="one", steps=256))
    assert list(json.loads(Path("one/run.json").read_text())["reward_models"]) == [name]
    finished(api.start(small("run:pref"), on="serial", out="two"))
    assert list(json.loads(Path("two/run.json").read_text())["reward_models"]) != [name]
    added = CliRunner().invoke(app, ["registry", "add", "pref", "reward", "--alias", "champion"])
    assert added.exit_code == 0, added.output
    assert place("registry:reward").name.startswith(added.stdout.split()[1].rstrip(":"))
    # nothing that run.json names is imported
    file = Path("pref/run.json")
    said = json.loads(file.read_text())
    said["program"]["source"]["env"]["target"] = "not.there:make"
    file.write_text(json.dumps(said))
    assert of_run(Path("pref"), Path("again")) == Path("again")
