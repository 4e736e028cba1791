"""A run directory at a URL: whole or not there, and a store that fails."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

pytest.importorskip("fsspec")

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
