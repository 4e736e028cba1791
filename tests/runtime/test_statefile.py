"""States as bytes: what goes in comes out, and nothing else is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise.record import statefile


def test_a_tree_comes_back_as_it_was() -> None:
    shared = torch.arange(6.0).view(2, 3)
    tree: Any = {
        "arrays": {
            "bool": np.array([True, False]),
            "int": np.arange(3),
            "scalar": np.array(7),
            "empty": np.zeros((0, 4), np.float32),
            "uint8": np.arange(3, dtype=np.uint8),
            "strided": np.arange(6).reshape(2, 3).T,
        },
        "tensors": {"a": shared, "a view": shared[0], "half": torch.ones(2, dtype=torch.bfloat16)},
        "nothing": {},
        "count": 3,
        "share": 0.1,
        "most": float("inf"),
        "name": "x/y",
        "none": None,
        "flag": True,
        "a/b": {"c": 1},
    }
    back = statefile.parse(statefile.dump(tree))
    assert list(back) == list(tree)
    for name, array in tree["arrays"].items():
        assert (
            isinstance(back["arrays"][name], np.ndarray)
            and back["arrays"][name].dtype == array.dtype
        )
        np.testing.assert_array_equal(back["arrays"][name], array)
    for name, tensor in tree["tensors"].items():
        assert back["tensors"][name].dtype == tensor.dtype and torch.equal(
            back["tensors"][name], tensor
        )
    plain = {k: v for k, v in tree.items() if k not in ("arrays", "tensors")}
    assert {k: back[k] for k in plain} == plain


@pytest.mark.parametrize(
    "leaf", [object(), np.array(["text"]), np.array([object()]), [1, 2], b"bytes"]
)
def test_what_is_no_array_is_refused_by_its_place(leaf: object) -> None:
    with pytest.raises(TypeError, match="state/env/thing: expected"):
        statefile.dump({"env": {"thing": leaf}})


@pytest.mark.parametrize(
    "data", [b"", b"12345678", b"\x02" + bytes(7) + b"{}", statefile.dump({"a": np.zeros(9)})[:-8]]
)
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected a (state|safetensors)"):
        statefile.parse(data)
