"""A worker's state as bytes and back: trees of arrays, tensors, numbers and texts, in safetensors;
never pickle.

The arrays are the file's tensors, numbered; the tree that they stand in is JSON in the file's
metadata.
"""

from __future__ import annotations

import contextlib
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors.numpy

from equipoise.files import LARGEST_JSON, parse_json
from equipoise.types import Array, Tree

if TYPE_CHECKING:
    from torch import Tensor

KEY = "tree"


def dump(tree: Tree) -> bytes:
    """Nested dicts of arrays, tensors, numbers, texts, bools and None; TypeError for others."""
    arrays: dict[str, Array] = {}
    torch = sys.modules.get("torch")  # an env worker, which has no tensors, never loads it

    def encode(node: object, where: str) -> dict[str, object]:
        if isinstance(node, dict):
            if wrong := [key for key in node if not isinstance(key, str)]:
                raise TypeError(f"state{where}: expected texts as keys, got {wrong[0]!r}")
            return {"dict": {key: encode(value, f"{where}/{key}") for key, value in node.items()}}
        if node is None or isinstance(node, bool | int | float | str):
            return {"value": node}
        name = str(len(arrays))
        if torch is not None and isinstance(node, torch.Tensor):
            if node.dtype == torch.bfloat16:  # which numpy has not
                arrays[name] = np.array(node.detach().cpu().view(torch.int16).numpy(), order="C")
                return {"bfloat16": name}
            arrays[name] = np.array(node.detach().cpu().numpy(), order="C")
            return {"tensor": name}
        if isinstance(node, np.ndarray | np.generic) and node.dtype.kind in "biuf":
            arrays[name] = np.array(node, order="C")
            return {"array": name}
        raise TypeError(
            f"state{where}: expected arrays, tensors, numbers and texts in dicts, got "
            f"{type(node).__name__}"
        )

    skeleton = encode(tree, "")
    return safetensors.numpy.save(arrays, {KEY: json.dumps(skeleton)})


def parse(data: bytes, path: Path | str = "state") -> Tree:
    """The tree that ``dump`` wrote; ValueError naming the file if the bytes are no tree."""
    metadata = header(data, path).get("__metadata__")
    if not isinstance(metadata, dict) or not isinstance(metadata.get(KEY), str):
        raise ValueError(
            f"{path}: expected a state written by this package, got a safetensors file without one"
        )
    skeleton = parse_json(metadata[KEY].encode("utf-8", "surrogatepass"), path, finite=False)
    with _readable(path):
        arrays = safetensors.numpy.load(data)

    def decode(node: object) -> object:
        kind, content = (
            next(iter(node.items())) if isinstance(node, dict) and len(node) == 1 else (None, None)
        )
        if kind == "dict" and isinstance(content, dict):
            return {key: decode(value) for key, value in content.items()}
        if kind == "value" and (content is None or isinstance(content, bool | int | float | str)):
            return content
        if (
            kind not in ("array", "tensor", "bfloat16")
            or not isinstance(content, str)
            or content not in arrays
        ):
            raise ValueError(
                f"{path}: expected a state written by this package, got a tree with "
                f"{str(node)[:200]}"
            )
        if kind == "array":
            return arrays[content]
        import torch

        tensor = torch.from_numpy(arrays[content])
        return (
            tensor.view(torch.bfloat16)
            if kind == "bfloat16" and tensor.dtype == torch.int16
            else tensor
        )

    return decode(skeleton)


def parse_weights(data: bytes, path: Path | str) -> dict[str, Tensor]:
    """The tensors of a safetensors file; ValueError that names a damaged file."""
    import safetensors.torch

    header(data, path)
    with _readable(path):
        return safetensors.torch.load(data)


def header(data: bytes, path: Path | str) -> dict[str, object]:
    """A safetensors file's description of its tensors, read before anything is allocated by it."""
    if len(data) < 8:
        raise ValueError(f"{path}: expected a safetensors file, got {len(data)} bytes")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(len(data) - 8, LARGEST_JSON):
        raise ValueError(
            f"{path}: expected a safetensors header within {len(data):,} bytes, got one that "
            f"claims {length:,}"
        )
    found = parse_json(bytes(data[8 : 8 + length]), path)
    if not isinstance(found, dict):
        raise ValueError(
            f"{path}: expected a safetensors header, a JSON object, got {type(found).__name__}"
        )
    return found


@contextlib.contextmanager
def _readable(path: Path | str) -> Iterator[None]:
    try:
        yield
    except (safetensors.SafetensorError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: expected a safetensors file, got a damaged one: {error}"
        ) from error
