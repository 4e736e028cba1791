"""A worker's state as bytes and back: trees of arrays, tensors, numbers and texts, in safetensors; never pickle.

The arrays are the file's tensors, numbered; the tree that they stand in is JSON in the file's metadata.
"""

from __future__ import annotations

import json
import struct
import sys
from typing import Any

import numpy as np
import safetensors.numpy

from equipoise.types import Tree

KEY = "tree"


def dump(tree: Tree) -> bytes:
    """Nested dicts of numpy arrays, CPU or GPU tensors, int, float, str, bool and None; TypeError for anything else."""
    arrays: dict[str, Any] = {}
    torch = sys.modules.get("torch")  # an env worker, which has no tensors, never loads it

    def encode(node: Any, where: str) -> dict[str, Any]:
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
        raise TypeError(f"state{where}: expected arrays, tensors, numbers and texts in dicts, got {type(node).__name__}")

    skeleton = encode(tree, "")
    return safetensors.numpy.save(arrays, {KEY: json.dumps(skeleton)})


def parse(data: bytes) -> Tree:
    """The inverse. ValueError where the bytes are no state."""
    try:
        (length,) = struct.unpack("<Q", data[:8])
        skeleton = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][KEY])
        arrays = safetensors.numpy.load(data)
    except (struct.error, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise ValueError(f"expected a state written by this package, got {type(error).__name__}: {error}") from error

    def decode(node: dict[str, Any]) -> Any:
        ((kind, content),) = node.items()
        if kind == "dict":
            return {key: decode(value) for key, value in content.items()}
        if kind == "value":
            return content
        if kind == "array":
            return arrays[content]
        import torch

        tensor = torch.from_numpy(arrays[content])
        return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor

    return decode(skeleton)
