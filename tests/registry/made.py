"""Artifacts for the tests of the registry, without a policy in them: a few bytes by the names that an export writes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def artifact(folder: Path, model: bytes = b"a model", lineage: dict | None = None, **files: bytes) -> Path:
    """An artifact whose version follows from its arguments; ``files``: more of them, "_" for "."."""
    folder.mkdir(parents=True)
    contents = {"policy.onnx": model, "weights.safetensors": b"weights", "edge.py": b"# edge\n"}
    contents["spec.json"] = json.dumps({"format": 1, "artifact": {"format": 1, "lineage": lineage or {}}}).encode()
    contents |= {name.replace("_", "."): data for name, data in files.items()}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    manifest(folder)
    return folder


def manifest(folder: Path, **changed: dict) -> Path:
    """Write the manifest of what is in a folder; ``changed`` entries by name, "_" for "."."""
    files = {
        path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size": path.stat().st_size}
        for path in sorted(folder.iterdir())
        if path.name != "manifest.json"
    }
    files |= {name.replace("_", "."): about for name, about in changed.items()}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}, indent=1, sort_keys=True))
    return folder
