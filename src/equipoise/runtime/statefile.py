"""A worker's state as bytes and back: trees of arrays, tensors, numbers and texts, in safetensors; never pickle.

The arrays are the file's tensors, numbered; the tree that they stand in is JSON in the file's metadata.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import safetensors.torch
import torch

from equipoise.types import Tree

KEY = "tree"


def dump(tree: Tree) -> bytes:
    """Nested dicts of numpy arrays, CPU or GPU tensors, int, float, str, bool and None; TypeError for anything else."""
    tensors: dict[str, torch.Tensor] = {}

    def encode(node: Any, where: str) -> dict[str, Any]:
        if isinstance(node, dict):
            if wrong := [key for key in node if not isinstance(key, str)]:
                raise TypeError(f"state{where}: expected texts as keys, got {wrong[0]!r}")
            return {"dict": {key: encode(value, f"{where}/{key}") for key, value in node.items()}}
        if node is None or isinstance(node, bool | int | float | str):
            return {"value": node}
        name = str(len(tensors))
        if isinstance(node, torch.Tensor):
            tensors[name] = node.detach().cpu().clone().contiguous()
            return {"tensor": name}
        if isinstance(node, np.ndarray | np.generic) and node.dtype.kind in "biuf":
            # A copy of its own: safetensors refuses tensors that share memory.
            tensors[name] = torch.from_numpy(np.array(node, order="C"))
            return {"array": name}
        raise TypeError(f"state{where}: expected arrays, tensors, numbers and texts in dicts, got {type(node).__name__}")

    skeleton = encode(tree, "")
    return safetensors.torch.save(tensors, {KEY: json.dumps(skeleton)})


def parse(data: bytes) -> Tree:
    """The inverse. ValueError where the bytes are no state."""
    try:
        (length,) = struct.unpack("<Q", data[:8])
        skeleton = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][KEY])
        tensors = safetensors.torch.load(data)
    except (struct.error, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise ValueError(f"expected a state written by this package, got {type(error).__name__}: {error}") from error

    def decode(node: dict[str, Any]) -> Any:
        ((kind, content),) = node.items()
        if kind == "dict":
            return {key: decode(value) for key, value in content.items()}
        if kind == "value":
            return content
        return tensors[content].numpy() if kind == "array" else tensors[content]

    return decode(skeleton)
