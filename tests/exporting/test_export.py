"""``eq.export`` and ``equipoise export``: from a run to an artifact, with its env and without, and
back again.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise import api, cli
from equipoise.api.playing import read_policies
from equipoise.edge import Artifact, EdgePolicy
from equipoise.exporting import observations
from equipoise.record import checkpoint
from equipoise.record.directory import RunDirectory
from equipoise.sources.envs import env_maker
from tests.runtime.test_playable import MODULE, Blocked, observation, recording, trained  # noqa: F401  # the fixture too


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The env's module cannot be imported."""
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Blocked(), *sys.meta_path])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an env that is there, begun with another one's weights."""
    out = tmp_path_factory.mktemp("run") / "run"
    given: dict[str, Any] = {
        "on": "serial",
        "actors": 1,
        "envs_per_actor": 4,
        "unroll": 8,
        "steps": 64,
        "evaluate_episodes": 2,
    }
    for _ in api.start("CartPole-v1", "ppo", out=out.with_name("before"), **given):
        pass
    for _ in api.start(
        "CartPole-v1", "ppo", out=out, init_from=out.with_name("before"), evaluate_every=32, **given
    ):
        pass
    return out


class Silent:
    """An env that never has a row."""

    def __init__(self, env: Any) -> None:
        self.spec, self.close = env.spec, env.close

    def recv(self) -> None:
        return None


def spec(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "spec.json").read_bytes())
    return found


def test_a_run_becomes_an_artifact_and_plays_like_it(run: Path, tmp_path: Path) -> None:
    made = eq.export(run, tmp_path / "policy", rows=400)
    assert (
        made.parity is not None
        and made.parity.equal == 1
        and made.source == "CartPole-v1"
        and not made.note
    )
    about = spec(made.path)["artifact"]
    lineage = about["lineage"]
    assert made.version == Artifact.open(made.path).version == checkpoint.identity(made.path)
    newest = checkpoint.latest(run / "checkpoints")
    assert newest is not None and lineage["step"] == checkpoint.read_meta(newest)["env_steps"]
    assert (lineage["run"], lineage["algorithm"], lineage["data"]) == ("run", "ppo", None)
    last = json.loads((run / "summary.json").read_text())["evaluation"]
    assert last is not None and lineage["evaluation"] == {
        key: last[key] for key in ("mean", "std", "episodes")
    }
    before = eq.export(run.with_name("before"), tmp_path / "before", rows=100, only="weights")
    parent = checkpoint.latest(run.with_name("before") / "checkpoints")
    assert (
        parent is not None
        and lineage["parent"] == checkpoint.identity(parent)
        and spec(before.path)["artifact"]["lineage"]["parent"] is None
    )
    low, *_, high = about["quantiles"]["obs"]["values"]
    assert (
        about["quantiles"]["obs"]["q"][0] == 0.0
        and len(low) == 4
        and all(a < b for a, b in zip(low, high, strict=True))
    )
    edged, loaded, again = EdgePolicy(made.path), eq.load(run), eq.load(made.path)
    for deterministic in (True, False):
        for obs in np.random.default_rng(0).uniform(-1, 1, (20, 4)).astype(np.float32):
            actions = {
                int(one.act(obs, deterministic=deterministic)) for one in (edged, loaded, again)
            }
            assert len(actions) == 1
    (going_on,) = [
        api.start(
            "CartPole-v1", "ppo", on="serial", out=tmp_path / "on", steps=32, init_from=made.path
        )
    ]
    going_on.close()
    assert json.loads((tmp_path / "on" / "run.json").read_bytes())["parent"] == made.version
    with pytest.raises(FileExistsError, match="expected a new directory"):
        eq.export(run, tmp_path / "policy")


def test_weights_alone_are_for_torch(run: Path, tmp_path: Path) -> None:
    made = eq.export(run, tmp_path / "policy", rows=100, only="weights")
    assert sorted(file.name for file in made.path.iterdir()) == [
        "manifest.json",
        "spec.json",
        "weights.safetensors",
    ]
    assert made.parity is None and eq.load(made.path).act(np.zeros(4)) in (0, 1)
    with pytest.raises(
        ValueError, match=r"expected policy.onnx among the files, .* torch can serve weights alone"
    ):
        Artifact.open(made.path)


@pytest.mark.thorough
def test_a_run_whose_env_is_gone_is_exported(trained: Path, without: None, tmp_path: Path) -> None:  # noqa: F811
    made = eq.export(trained, tmp_path / "policy", rows=300)
    assert MODULE in made.note and made.source == "made-up observations"
    assert "quantiles" not in spec(made.path)["artifact"]
    assert (
        EdgePolicy(made.path).act(observation())
        == eq.load(made.path).act(observation())
        == eq.load(trained).act(observation())
    )
    seen = eq.export(
        trained, tmp_path / "seen", recorded=recording(tmp_path / "rows.npz"), only="weights"
    )
    quantiles = spec(seen.path)["artifact"]["quantiles"]
    # not of the mask
    assert (
        seen.source.endswith("rows.npz")
        and not seen.note
        and sorted(quantiles) == ["obs/a", "obs/z"]
    )
    assert seen.version != made.version


@pytest.mark.thorough
def test_a_run_on_worlds_outside_waits_for_none(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = RunDirectory.open(run).program
    env = dataclasses.replace(program.env, target=f"remote:unix:{tmp_path / 'w'}")
    source: Any = program.source
    outside = dataclasses.replace(program, source=dataclasses.replace(source, env=env))
    monkeypatch.setattr(RunDirectory, "program", outside)
    monkeypatch.setattr(
        observations, "played", lambda *_, **__: pytest.fail("nobody knows when a world will come")
    )
    made = eq.export(run, tmp_path / "policy", rows=100)
    assert made.source == "made-up observations"
    assert made.note == f"the worlds of {env.target} are outside; --recorded FILE takes rows"


def test_an_env_that_gives_nothing_is_left(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = RunDirectory.open(run).program

    making = env_maker
    monkeypatch.setattr(observations, "LONGEST_S", 0.1)
    monkeypatch.setattr(
        observations, "env_maker", lambda _: lambda **how: Silent(making(program)(**how))
    )
    with pytest.raises(
        TimeoutError, match="CartPole-v1: expected an observation within 0 s, got none"
    ):
        observations.played(program, read_policies(run).policies, "main", rows=10, step=0)


def test_the_command(run: Path, tmp_path: Path) -> None:
    answer = CliRunner().invoke(
        cli.app, ["export", str(run), str(tmp_path / "policy"), "--rows", "200"]
    )
    assert answer.exit_code == 0, answer.output
    assert "version" in answer.output and "the graph gives torch's answers on" in answer.output
    again = CliRunner().invoke(cli.app, ["export", str(run), str(tmp_path / "policy")])
    assert again.exit_code == 2 and "expected a new directory" in again.output
    other = CliRunner().invoke(
        cli.app, ["export", str(run), str(tmp_path / "other"), "--policy", "mian"]
    )
    assert (
        other.exit_code == 2
        and "did you mean 'main'" in other.output
        and not (tmp_path / "other").exists()
    )


def test_what_the_exporter_cannot_say_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise.algorithms.ppo import PPO

    def data_dependent(self: Any, net: Any, obs: Any, first: Any, state: Any) -> Any:
        return (obs.sum(-1) > float(obs.max().item())).long(), state

    monkeypatch.setattr(PPO, "best", data_dependent)
    with pytest.raises(
        ValueError,
        match=r"expected a policy that ONNX can express.* without a graph \(export --only weights",
    ):
        eq.export(run, tmp_path / "policy", rows=100)
    assert not (tmp_path / "policy").exists()
