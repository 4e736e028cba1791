"""Reward models as versions of a registry: of clips and of text, told apart from policies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.language.reward_models import Calibration, write
from equipoise.language.scoring.functions import load
from equipoise.nets.scored import ScoredDecoder
from equipoise.registry import Registry
from equipoise.registry.reward_models import at_version, place, weights_sha256
from tests.algorithms.pairs import SHAPE, filled
from tests.language.test_reward_models import LETTERS
from tests.registry.made import artifact, manifest
from tests.rewards.preferences.answered import clips
from tests.rewards.preferences.test_reward_model import folder_of

POLICY_ENV = "tests.rewards.preferences.worlds:pendulum"


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr("equipoise.serving.trial.Trial.__call__", lambda *_: None)


def of_text(folder: str) -> Path:
    write(
        Path(folder), filled(ScoredDecoder(SHAPE), 1), LETTERS, Calibration(), lineage={"run": "x"}
    )
    return Path(folder)


def run(*words: str, expected: int = 0) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == expected, done.output
    return done.stdout if expected == 0 else done.stderr


def test_both_kinds_of_reward_models_are_versions() -> None:
    artifact(Path("a"), "a")
    run("registry", "add", "a", "cart")
    run("registry", "add", str(folder_of(Path("clips"))), "reward", "--alias", "champion")
    run("registry", "add", str(of_text("text")), "critic", "--alias", "champion")
    listed = [line.split() for line in run("registry", "list").splitlines()]
    assert [(one[0], one[-1]) for one in listed] == [
        ("name", "kind"),
        ("cart", "policy"),
        ("critic", "model"),
        ("reward", "model"),
    ]
    said = json.loads(run("registry", "list", "--json"))
    kinds = {name: about["versions"][0]["kind"] for name, about in said.items()}
    assert kinds == {"cart": "policy", "critic": "reward model", "reward": "reward model"}
    shown = json.loads(run("registry", "show", "critic", "champion", "--json"))
    assert shown["kind"] == "reward model" and shown["lineage"] == {"run": "x"}
    assert run("registry", "verify") == "every file is as it was written\n"
    assert load("registry:critic") is not None
    assert weights_sha256("registry:reward") == weights_sha256("run:clips")


def test_a_name_has_one_kind() -> None:
    artifact(Path("a"), "a")
    registry = Registry("registry", create=True)
    registry.add("a", "cart")
    with pytest.raises(ValueError, match="cart: must be a name of the kind reward model, got one"):
        registry.add(folder_of(Path("clips")), "cart")
    registry.add("clips", "reward")
    with pytest.raises(ValueError, match="reward: must be a name of the kind policy, got one of"):
        registry.add("a", "reward")


def test_a_reward_model_with_code_in_it_is_refused() -> None:
    folder = folder_of(Path("clips"))
    (folder / "numpy.py").write_bytes(b"print()")
    (folder / "manifest.json").unlink()
    manifest(folder)
    with pytest.raises(ValueError, match=r"expected no files but \.json.*got 'numpy\.py'"):
        Registry("registry", create=True).add(folder, "reward")


def test_an_alias_becomes_the_version_of_now() -> None:
    registry = Registry("registry", create=True)
    one = registry.add(folder_of(Path("one"), 1), "reward")
    two = registry.add(folder_of(Path("two"), 2), "reward")
    registry.alias("reward", "champion", one)
    registry.alias("reward", "candidate", two)
    assert at_version("registry:reward") == f"registry:reward@{one[:12]}"
    assert at_version("registry:reward@candidate") == f"registry:reward@{two[:12]}"
    assert at_version("registry:./registry/reward@champion") == (
        f"registry:./registry/reward@{one[:12]}"
    )
    assert place(f"registry:reward@{two[:12]}") == Path("registry/artifacts") / two
    artifact(Path("a"), "a")
    registry.add("a", "cart")
    registry.alias("cart", "champion", registry.versions("cart")[0])
    with pytest.raises(ValueError, match="'registry:cart': must be .*got a policy"):
        place("registry:cart")


def test_a_reward_model_is_not_served_or_played() -> None:
    folder_of(Path("clips"))
    run("registry", "add", "clips", "reward", "--alias", "champion")
    for words, sentence in {
        ("serve", "registry", "--policy", "reward"): "got the reward model 'reward'",
        ("serve", "clips"): "clips: must be a policy, got a reward model",
        ("train", "CartPole-v1", "--init-from", "clips"): "got a reward model",
    }.items():
        # a slow start says what it does, on lines before or after
        lines = [one for one in run(*words, expected=2).splitlines() if one[:9] == "equipoise"]
        assert [one for one in lines if sentence in one], lines


@pytest.mark.thorough
def test_the_commands_of_a_reward_model_of_clips() -> None:
    clips(Path("my labels"), 120)
    fit = ("train", POLICY_ENV, "--dataset", "my labels", "--algorithm", "reward_model")
    small = ("--set", "algorithm.hidden=8", "--set", "algorithm.epochs=2")
    said = run(*fit, *small, "--out", "reward", "--seed", "3")
    assert "reward: a reward model of" in said and "held out   accuracy" in said
    assert json.loads(Path("reward/reward_model.json").read_text())["lineage"]["seed"] == 3
    assert run(*fit, *small, "--out", "reward", expected=2).count("must be a new folder") == 1
    for more, sentence in {
        ("--steps", "5"): "--steps: must be left out of a reward model of clips",
        ("--or-resume",): "--or-resume: must be left out",
        ("--actors", "2"): "--actors: must be left out",
        ("--set", "algorithm.hidden=x"): "algorithm.hidden",
    }.items():
        assert sentence in run(*fit, *more, expected=2)
    version = run("export", "reward", "copy").split()[-1]
    assert version == run("registry", "add", "reward", "reward").split()[1].rstrip(":")
    again: Any = run("export", "reward", "copy", expected=2)
    assert "there already" in again
