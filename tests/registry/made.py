"""Artifacts for the tests of the registry, without a policy in them: a few bytes by the names that
an export writes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def model(text: str) -> bytes:
    """An ONNX file with nothing in it but the name of what made it."""
    return b"\x08\x08\x12" + bytes([len(text)]) + text.encode()


def artifact(folder: Path, text: str = "a", lineage: dict | None = None, **files: bytes) -> Path:
    """An artifact whose version follows from its arguments; ``files``: more of them, or others, "_"
    for ".".
    """
    folder.mkdir(parents=True)
    contents = {
        "policy.onnx": model(text),
        "weights.safetensors": b"weights",
        "edge.py": b"# edge\n",
    }
    contents["spec.json"] = json.dumps(
        {"format": 1, "artifact": {"format": 1, "lineage": lineage or {}}}
    ).encode()
    contents |= {name.replace("_", "."): data for name, data in files.items()}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    manifest(folder)
    return folder


def manifest(folder: Path, **changed: dict) -> Path:
    """Write the manifest of what is in a folder; ``changed`` entries by name, "_" for "."."""
    files = {
        path.name: {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "size": path.stat().st_size,
        }
        for path in sorted(folder.iterdir())
        if path.name != "manifest.json"
    }
    files |= {name.replace("_", "."): about for name, about in changed.items()}
    (folder / "manifest.json").write_text(
        json.dumps({"format": 1, "files": files}, indent=1, sort_keys=True)
    )
    return folder
