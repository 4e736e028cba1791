"""Checkpoints: safetensors and JSON with a manifest of hashes, written aside, synced, renamed last; never pickle."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.runtime.files import json_bytes, read_json, sync_directory, write_synced

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, META, MANIFEST = "weights.safetensors", "meta.json", "manifest.json"
FILES = (WEIGHTS, META)
STEP = re.compile(r"\.?step_(\d+)(\.old)?")  # ".step_N.old": its writer was killed while it replaced step_N


def params_sha256(params: Mapping[str, Tensor]) -> str:
    """One number for a set of parameters: sorted names, dtypes, shapes and bytes."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(params):
        tensor = params[name].detach().cpu().contiguous()
        # As JSON, so that no two different headers are written alike.
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save(directory: Path, step: int, params: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Path:
    """``directory/step_N``, complete or not there at all. One process writes here at a time."""
    import safetensors.torch

    if step < 0:
        raise ValueError(f"step: expected at least 0, got {step}")
    if not directory.is_dir():
        directory.mkdir()
        sync_directory(directory.parent)
    # Clones: parameters are views of one flat buffer, and safetensors refuses tensors that share memory.
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in params.items()}
    contents = {WEIGHTS: safetensors.torch.save(tensors), META: json_bytes(meta)}
    manifest = {"step": step, "files": {name: {"sha256": _sha256(data), "size": len(data)} for name, data in contents.items()}}
    contents[MANIFEST] = json_bytes(manifest)
    target = directory / f"step_{step}"
    aside, old = directory / f".step_{step}.new", directory / f".step_{step}.old"
    _tidy(directory)
    try:
        aside.mkdir()
        for name, data in contents.items():
            write_synced(aside / name, data)
        sync_directory(aside)
        if target.is_dir():  # the same step again: rename cannot replace a directory that has files
            target.rename(old)
        aside.rename(target)
    except BaseException:
        if old.is_dir() and not target.is_dir():
            old.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_directory(directory)
    shutil.rmtree(old, ignore_errors=True)
    return target


def _tidy(directory: Path) -> None:
    """Finish what a killed writer began: an old one without its new one is put back, the rest is removed."""
    for path in directory.glob(".step_*"):
        target = directory / path.stem.removeprefix(".")
        if path.suffix == ".old" and not target.is_dir():
            path.rename(target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def latest(directory: Path) -> Path | None:
    """The newest checkpoint whose every file is as its manifest says; None where there is none."""
    if not directory.is_dir():
        return None
    found = [(int(match[1]), not match[2], path) for path in directory.iterdir() if (match := STEP.fullmatch(path.name))]
    for _, _, path in sorted(found, reverse=True):
        try:
            _contents(path)
        except (OSError, ValueError):
            continue
        return path
    return None


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(params, meta) of a checkpoint; ValueError naming the file that is not as its manifest says."""
    import safetensors.torch

    contents = _contents(path)
    meta = json.loads(contents[META])
    if not isinstance(meta, dict):
        raise ValueError(f"{path / META}: expected a JSON object, got {type(meta).__name__}")
    return safetensors.torch.load(contents[WEIGHTS]), meta


def _contents(path: Path) -> dict[str, bytes]:
    """The bytes of every file, each read once, so that what was verified is what is used."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: expected a checkpoint directory, such as RUN/checkpoints/step_1000, got none")
    manifest = read_json(path / MANIFEST)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    # Only names known here are opened: a manifest from elsewhere cannot point out of its directory.
    if not isinstance(files, dict) or sorted(files) != sorted(FILES):
        raise ValueError(f"{path / MANIFEST}: expected the files {list(FILES)}, got {files!r}")
    contents = {}
    for name in FILES:
        file, said = path / name, files[name]
        if file.is_symlink() or not file.is_file():
            raise ValueError(f"{file}: expected a plain file, got none")
        if (size := os.path.getsize(file)) != said.get("size"):
            raise ValueError(f"{file}: expected {said.get('size')} bytes as in the manifest, got {size}; the file is damaged")
        data = file.read_bytes()
        if (sha256 := _sha256(data)) != said.get("sha256"):
            raise ValueError(f"{file}: expected sha256 {said.get('sha256')} as in the manifest, got {sha256}; it is damaged")
        contents[name] = data
    return contents


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
