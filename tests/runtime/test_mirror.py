"""A run directory at a URL: whole or not there, and a store that fails."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fsspec")

from equipoise import api
from equipoise.record.mirror import Mirror, Store, fetch, there


def checkpoint(directory: Path, step: int, content: bytes = b"state") -> Path:
    place = directory / "checkpoints" / f"step_{step}"
    place.mkdir(parents=True)
    (directory / "run.json").write_text("{}")
    files = {}
    for name in ("weights.safetensors", "meta.json", "learner.safetensors"):
        (place / name).write_bytes(content)
        files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    (place / "manifest.json").write_text(json.dumps({"step": step, "files": files, "segments": {}}))
    return place


def test_a_damaged_newer_checkpoint_gives_the_older(tmp_path):
    url = f"file://{tmp_path}/store"
    checkpoint(tmp_path / "run", 1)
    checkpoint(tmp_path / "run", 2)
    mirror = Mirror(tmp_path / "run", url)
    assert mirror.finish(30) and there(url)
    mirror.close()
    (tmp_path / "store/checkpoints/step_2/learner.safetensors").write_bytes(b"stat")
    found = fetch(url, tmp_path)
    assert (found / "checkpoints/step_1/learner.safetensors").read_bytes() == b"state"


def test_a_failing_store_is_told_once_and_tried_again(tmp_path, monkeypatch):
    url, said = f"file://{tmp_path}/store", []
    checkpoint(tmp_path / "run", 1)
    put = Store.put

    def full(self, file, name, size=None):
        if name.endswith("learner.safetensors"):
            raise OSError(28, "No space left on device")
        put(self, file, name, size)

    monkeypatch.setattr(Store, "put", full)
    mirror = Mirror(tmp_path / "run", url)
    assert not mirror.finish(30, said.append) and not mirror.finish(30, said.append)
    assert len(said) == 1 and mirror.failures == 2 and not there(url)
    monkeypatch.setattr(Store, "put", put)
    assert mirror.finish(30) and there(url)
    mirror.close()


SIZES = {
    "steps": 8_192, "seed": 3, "actors": 1, "envs_per_actor": 4, "unroll": 16, "batch": 4, "recipe": False,
    "settings": ["schedule.checkpoint_every=2048", "algorithm.hidden=16"], "evaluate_episodes": 0, "max_lag": 0,
}  # fmt: skip


def run_of(**options):
    run = api.train("CartPole-v1", "ppo", on="serial", tensorboard=False, **SIZES | options)
    for _ in run:
        pass
    return run


@pytest.mark.thorough
def test_a_killed_run_goes_on_from_its_url_to_the_same_bits(tmp_path, monkeypatch):
    """Its own directory is lost with it."""
    url, elsewhere = f"file://{tmp_path}/store", tmp_path / "elsewhere"
    whole = run_of(out=tmp_path / "whole").summary
    for place in (tmp_path / "here", elsewhere):
        place.mkdir()
    code = "import sys; from tests.runtime.test_mirror import run_of; run_of(out=sys.argv[1])"
    root = Path(__file__).parents[2]
    command, env = [sys.executable, "-c", code, url], {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(command, cwd=tmp_path / "here", env=env) as run:
        end = time.monotonic() + 120
        while not there(url):
            assert time.monotonic() < end and run.poll() is None, "no checkpoint came to the URL"
            time.sleep(0.02)
        run.kill()
    shutil.rmtree(tmp_path / "here")
    monkeypatch.chdir(elsewhere)
    again = run_of(out=url, or_resume=True)
    assert again.summary["params_sha256"] == whole["params_sha256"]
    assert any("resumed at step" in note for note in again.summary["notes"]), again.summary["notes"]
    assert json.loads((tmp_path / "store/summary.json").read_text())["params_sha256"] == whole["params_sha256"]
    with pytest.raises(api.NothingToDo):
        run_of(out=url, or_resume=True)
    with pytest.raises(ValueError, match=r"of the same program to go on with, got one with schedule.seed 3 \(now 4\)"):
        run_of(out=url, or_resume=True, seed=4)
    with pytest.raises(FileExistsError, match="--or-resume goes on with it"):
        run_of(out=url)


def test_a_manifest_cannot_name_a_file_elsewhere(tmp_path):
    url = f"file://{tmp_path}/store"
    place = checkpoint(tmp_path / "run", 1)
    mirror = Mirror(tmp_path / "run", url)
    assert mirror.finish(30)
    mirror.close()
    (tmp_path / "secret").write_bytes(b"s")
    said = json.loads((place / "manifest.json").read_text())
    said["files"]["../../../secret"] = {"sha256": hashlib.sha256(b"s").hexdigest(), "size": 1}
    (tmp_path / "store/checkpoints/step_1/manifest.json").write_text(json.dumps(said))
    (tmp_path / "secret").write_bytes(b"kept")
    with pytest.raises(FileNotFoundError, match="expected a whole checkpoint to go on from, got none; .*secret"):
        fetch(url, tmp_path)
    assert (tmp_path / "secret").read_bytes() == b"kept"


def test_a_protocol_without_its_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ValueError, match=r"expected a package for this protocol, got none: .*s3fs.*install .*"):
        Store("s3://bucket/run")
