"""A run, or an artifact, served without a registry."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import equipoise as eq
from equipoise import cli
from equipoise.api import served
from equipoise.api.exporting import Exported, export
from equipoise.record import checkpoint, paths
from equipoise.serving import server
from equipoise.serving.settings import Settings
from tests.artifacts import artifact
from tests.serving.servers import Running


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "runs" / "one"
    eq.train("CartPole-v1", on="serial", steps=512, evaluate_episodes=0, progress=False, out=out)
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "runs" / "one")


def quickly(*words: Any, **given: Any) -> Exported:
    """An export without a graph."""
    return export(*words, rows=20, **{**given, "only": "weights"})


@pytest.fixture
def served_with(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Settings]]:
    """What the command gives to the server, which does not start; exports have no graph."""
    found: list[tuple[Any, Settings]] = []
    monkeypatch.setattr(
        server, "serve", lambda source, settings, _: found.append((source, settings))
    )

    monkeypatch.setattr(served, "export", quickly)
    return found


def asked(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(cli.app, ["serve", *words])
    return found.exit_code, found.output


def a_run(place: Path, policies: Mapping[str, object]) -> Path:
    """A directory with a checkpoint of these policies, as far as they are looked at."""
    place.mkdir(parents=True)
    (place / "run.json").write_text('{"program": {}}')
    weights, meta = {"x": torch.zeros(1)}, {"version": 1, "env_steps": 7}
    checkpoint.save(place / "checkpoints", 7, weights, meta, {"format": 1, "policies": policies})
    return place


@pytest.mark.thorough
def test_a_run_is_exported_once_and_answers(run: Path, tmp_path: Path) -> None:
    exported: list[re.Match[str]] = []
    for fresh in (True, False):
        words = [sys.executable, "-m", "equipoise", "serve", "runs/one", "--port", "0"]
        server = subprocess.Popen(
            words, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        with server:
            assert server.stdout is not None
            try:
                told, place = server.stdout.readline(), server.stdout.readline()
                found = re.fullmatch(
                    r"(exported main of runs/one \(step 512\) to|main of runs/one \(step 512\) is "
                    r"in) (runs/one/served/main-step_512-[0-9a-f]{8})\. No registry is kept, .*For "
                    r"real use: (equipoise registry add \2 main --alias champion) && equipoise "
                    r"serve registry --policy main\n",
                    told,
                )
                assert found, told
                exported.append(found)
                assert found[1].startswith("exported") == fresh
                url = re.search(r"http://127\.0\.0\.1:\d+", place)
                assert place.startswith("serving main at ") and url, place
                running = Running(server, url[0], Path(), Path())
                status, said = running.ask("POST", "/v1/act", {"obs": [0.0, 0.1, 0.0, 0.2]})
                assert status == 200 and said["action"] in (0, 1), said
                outcome = running.ask("POST", "/v1/outcome", {"id": said["id"], "reward": 1.0})
                assert outcome[0] == 200, outcome
                assert said["version"] == checkpoint.identity(tmp_path / found[2])
                server.send_signal(signal.SIGTERM)
                assert server.wait(20) == 0
            finally:
                server.kill()
    assert {one.name for one in (run / "served").iterdir()} == {
        Path(exported[-1][2]).name,
        "main.decisions",
    }
    done = subprocess.run(  # the command of the line works
        [sys.executable, "-m", *exported[-1][3].split()],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_options_are_read_before_the_run(run: Path, served_with: Any) -> None:
    for words, wanted in (
        (("--port", "http"), "--port: expected"),
        (("--host", "0.0.0.0"), "must have a token"),
        (("--port", "none"), "expected a port or a unix socket"),
    ):
        code, said = asked(str(run), *words)
        assert code == 2 and wanted in said and not (run / "served").exists(), said


def test_newer_weights_are_another_artifact(run: Path, served_with: Any) -> None:
    assert asked(str(run))[0] == 0
    step = run / "checkpoints" / "step_512"
    weights, meta = checkpoint.load(step)
    spec = json.loads((step / "spec.json").read_text())
    checkpoint.save(run / "checkpoints", 600, weights, {**meta, "env_steps": 600}, spec)
    code, said = asked(str(run), "--decisions", "none")
    assert code == 0 and "exported main" in said and "(step 600)" in said, said
    (first, usual), (second, without) = served_with
    assert (
        first.artifact.name[:13] == "main-step_512" and second.artifact.name[:13] == "main-step_600"
    )
    assert usual.decisions == run / "served" / "main.decisions" and without.decisions is None
    assert second.resolve("main", "x") == (second.aliases("main")["champion"], second.artifact)


def test_torch_takes_an_artifact_without_a_graph(
    run: Path, served_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[str | None] = []

    def noted(*words: Any, **given: Any) -> Exported:
        asked_for.append(given["only"])
        return quickly(*words, **given)

    monkeypatch.setattr(served, "export", noted)
    assert asked(str(run), "--backend", "torch")[0] == 0
    assert asked(str(run))[0] == 0
    assert asked_for == ["weights", None] and len(list((run / "served").iterdir())) == 2


def test_a_run_in_progress_says_so(run: Path, served_with: Any) -> None:
    lock = paths.lock(run)
    try:
        code, said = asked(str(run))
    finally:
        assert lock is not None
        os.close(lock)
    assert code == 0 and "the run goes on, so another start may have newer weights" in said, said


def test_two_starts_at_once_make_one_artifact(
    run: Path, served_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=120)

    def slow(*words: Any, **given: Any) -> Exported:
        both.wait()
        return quickly(*words, **given)

    monkeypatch.setattr(served, "export", slow)
    made: list[object] = []
    starts = [
        threading.Thread(
            target=lambda: made.append(
                served.of_run(run, None, graph=False, trust=(), begins=lambda name: None).version
            )
        )
        for _ in range(2)
    ]
    for one in starts:
        one.start()
    for one in starts:
        one.join(180)
    assert len(made) == 2 and len(set(made)) == 1
    assert len(list((run / "served").iterdir())) == 1


def test_a_failed_export_leaves_nothing(
    run: Path, served_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "served").write_text("in the way")
    code, said = asked(str(run))
    assert code == 2 and "Traceback" not in said and not served_with, said
    assert (run / "served").read_text() == "in the way"


def test_a_damaged_artifact_is_refused(run: Path, served_with: Any) -> None:
    assert asked(str(run))[0] == 0
    (made,) = (run / "served").iterdir()
    (made / "weights.safetensors").write_bytes(b"0")
    code, said = asked(str(run))
    assert code == 2 and "weights.safetensors: expected" in said and f"remove {made}" in said, said


def test_an_env_that_is_gone_is_told(run: Path, served_with: Any) -> None:
    about = json.loads((run / "run.json").read_text())
    about["program"]["source"]["env"]["target"] = "gone_since:make"
    about["signature"] = None
    (run / "run.json").write_text(json.dumps(about))
    code, said = asked(str(run))
    assert code == 0 and len(served_with) == 1, said
    assert "observations were made up, since there is no env to play: " in said
    assert "gone_since" in said and "Traceback" not in said, said


ONE: dict[str, object] = {"learns": True}


@pytest.mark.parametrize(
    ("policies", "words", "wanted"),
    [
        (
            {"red": ONE, "blue": ONE},
            (),
            "--policy: must name one of the policies of RUN, red, blue, got none; try --policy red",
        ),
        (
            {"red": ONE, "blue": ONE},
            ("--policy", "reds"),
            "--policy: must be a policy of RUN, got 'reds'; did you mean 'red'? (valid: blue, red)",
        ),
        (
            {"main": {"text": {}, "learns": True}},
            (),
            "RUN: must be a run whose policy acts in an env, got one that writes text; 'equipoise "
            "generate RUN' asks it, and 'equipoise export RUN DIR'",
        ),
        ({}, (), "RUN: must be a run with a policy, got none"),
        ([], (), "spec.json: policies: expected a JSON object, got"),
    ],
)
def test_a_run_that_cannot_be_served_is_one_line(
    tmp_path: Path, policies: Any, words: tuple[str, ...], wanted: str, served_with: Any
) -> None:
    place = a_run(tmp_path / "run", policies)
    code, said = asked(str(place), *words)
    assert code == 2 and wanted.replace("RUN", str(place)) in said, said
    assert said.strip().count("\n") == 0 and not (place / "served").exists(), said


def test_a_run_without_a_checkpoint_names_what_to_do(tmp_path: Path, served_with: Any) -> None:
    (tmp_path / "run.json").write_text('{"program": {}}')
    code, said = asked(str(tmp_path))
    wanted = f"{tmp_path}: must be a run with a checkpoint, got none; try 'equipoise train'"
    assert code == 2 and wanted in said, said


def test_a_run_of_a_newer_version_names_the_format(run: Path, served_with: Any) -> None:
    step = run / "checkpoints" / "step_512"
    weights, meta = checkpoint.load(step)
    spec = json.loads((step / "spec.json").read_text()) | {"format": 2}
    checkpoint.save(run / "checkpoints", 512, weights, meta, spec)
    code, said = asked(str(run))
    assert code == 2 and "spec.json: format: must be 1, got 2, which a newer" in said, said


def test_an_artifact_is_served_as_it_is(
    tmp_path: Path, served_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = artifact(tmp_path / "out", "mlp")
    assert asked("out") == (0, "")
    ((source, settings),) = served_with
    assert source.aliases("any") == {"champion": checkpoint.identity(made)}
    assert settings.decisions == Path(f"{settings.policy}.decisions")
    code, said = asked("out", "--policy", "other")
    assert code == 2 and "--policy: must be" in said and "got 'other'" in said, said


def renamed(place: Path, name: str, chosen: str) -> None:
    """Give the policy of an artifact another name, and its manifest what it is then."""
    file, manifest = place / checkpoint.SPEC, place / checkpoint.MANIFEST
    spec = json.loads(file.read_text())
    spec["policies"] = {name: next(iter(spec["policies"].values()))}
    spec["artifact"]["policy"] = chosen
    file.write_text(json.dumps(spec))
    files = json.loads(manifest.read_text())
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    files["files"][file.name] = {"sha256": found, "size": file.stat().st_size}
    manifest.write_text(json.dumps(files))


@pytest.mark.few(9)
@pytest.mark.parametrize(
    "name", ["../evil", "a/b", "/tmp/x", "x\ny", "\x1b[2J", "", "..", "x" * 300]
)
def test_the_name_of_a_policy_is_no_path(
    name: str, tmp_path: Path, served_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the file of decisions and, for a run, the folder of the artifact."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    renamed(artifact(tmp_path / "out", "mlp"), name, name)
    a_run(tmp_path / "run", {name: {"learns": True}})
    before = sorted(tmp_path.rglob("*"))
    for place in ("out", "run"):
        code, said = asked(str(tmp_path / place))
        assert code == 2 and "policies: must have names of letters" in said, said
        assert said.strip().count("\n") == 0 and said.strip().isprintable(), said
    assert sorted(tmp_path.rglob("*")) == before and not served_with


def test_the_policy_of_an_artifact_is_one_of_its_own(tmp_path: Path, served_with: Any) -> None:
    renamed(artifact(tmp_path / "out", "mlp"), "main", "../evil")
    code, said = asked(str(tmp_path / "out"))
    assert code == 2 and "artifact.policy: must be one of its policies, got '../evil'" in said, said


def test_what_is_neither_is_one_line_with_the_nearest_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served_with: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    must = "must be a registry, a run or an artifact, got"
    for place, wanted in (
        ("runs/on", f"runs/on: {must} nothing; 'equipoise registry add' makes a registry; did you"),
        ("runs", f"runs: {must} another folder; there is runs/one"),
        ("empty", f"empty: {must} another folder; "),
        ("runs/one/run.json", f"runs/one/run.json: {must} a file; "),
        ("s3://bucket/run", f"s3://bucket/run: {must} a URL; try 'equipoise export URL DIR'"),
        ("a\0b", f"{must} nothing; "),
    ):
        code, said = asked(place)
        assert code == 2 and wanted in said and said.strip().count("\n") == 0, said
    assert not served_with


def test_a_registry_needs_a_policy(tmp_path: Path, served_with: Any) -> None:
    from equipoise.registry import Registry

    Registry(tmp_path / "registry", create=True)
    code, said = asked(str(tmp_path / "registry"))
    assert code == 2 and "got none; 'registry add' adds one" in said, said


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
@pytest.mark.parametrize("inside", [False, True], ids=["served", "artifact"])
def test_only_a_folder_of_the_run_is_written(
    kind: str, inside: bool, run: Path, tmp_path: Path, served_with: Any
) -> None:
    place = run / "served"
    if inside:
        assert asked(str(run))[0] == 0
        place = next(place.glob("main-*"))
        shutil.rmtree(place)
    other = tmp_path / "other"
    if kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(other)
        if kind == "link":
            other.mkdir()
    code, said = asked(str(run))
    got = "another file" if kind == "file" else f"a link to {other}"
    assert code == 2 and f"{place}: must be a folder of the run, got {got}; remove it" in said
    assert not (other.is_dir() and list(other.iterdir()))
    assert kind != "file" or place.read_text() == "mine"


def test_an_artifact_without_its_files_is_named_with_the_remedy(
    run: Path, served_with: Any
) -> None:
    assert asked(str(run))[0] == 0
    artifact = next((run / "served").glob("main-*"))
    shutil.rmtree(artifact)
    artifact.mkdir()
    code, said = asked(str(run))
    assert code == 2 and f"remove {artifact} and start again" in said, said


def test_the_command_of_an_odd_run_is_one_line_that_a_shell_reads(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served_with: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("-x", "a 'b\"", "a\nb\x1b[31m'\\ é", "\udcff$(touch x)"):
        shutil.copytree(trained, name)
        code, said = asked("--decisions", "none", "--", name)
        told = next(line for line in said.splitlines() if "exported main" in line)
        assert code == 0 and "\x1b" not in said, said
        found = re.search("equipoise registry add (.*) main --alias champion", told)
        assert found, told
        done = subprocess.run(
            ["bash", "-c", f"printf %s {found[1]}"], capture_output=True, check=True
        )
        read = os.fsdecode(done.stdout)
        assert Path(read).is_dir() and Path(read).parent.parent == Path(name), read
        assert not read.startswith("-") and not Path("x").exists()
