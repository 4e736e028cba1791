"""Versions that cannot be served, each in its own way, with manifests that fit them, so that only a
trial finds it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.artifacts import artifact
from tests.registry.made import manifest


def graph(change: Callable[[onnx.ModelProto], None]) -> Callable[[Path], None]:
    """A change of the graph whose nodes, where they make "action",
    follow those that make "good".
    """

    def write(folder: Path) -> None:
        model = onnx.load(folder / "policy.onnx")
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = ["good" if name == "action" else name for name in names]
        change(model)
        if not any("action" in node.output for node in model.graph.node):
            model.graph.node.append(helper.make_node("Identity", ["good"], ["action"]))
        (folder / "policy.onnx").write_bytes(model.SerializeToString())
        manifest(folder)

    return write


def constant(model: onnx.ModelProto, name: str, values: Any, dtype: Any = np.int64) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.array(values, dtype), name))
    return name


def wrong_shape(model: onnx.ModelProto) -> None:
    model.graph.node.append(
        helper.make_node("Reshape", ["good", constant(model, "to", [7, 13])], ["action"])
    )


def endless(model: onnx.ModelProto) -> None:
    ins = [
        helper.make_tensor_value_info(n, t, s)
        for n, t, s in (
            ("i", TensorProto.INT64, []),
            ("c", TensorProto.BOOL, []),
            ("a", TensorProto.INT64, None),
        )
    ]
    outs = [
        helper.make_tensor_value_info("c2", TensorProto.BOOL, []),
        helper.make_tensor_value_info("a2", TensorProto.INT64, None),
    ]
    nodes = [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Abs", ["a"], ["a2"])]
    body = helper.make_graph(nodes, "body", ins, outs)
    given = [constant(model, "rounds", 1 << 62), constant(model, "go", True, np.bool_), "good"]
    model.graph.node.append(helper.make_node("Loop", given, ["action"], body=body))


def large(model: onnx.ModelProto) -> None:
    """An array of 2 GB at each run, whose size is known only then."""
    nodes = [
        helper.make_node("Abs", [constant(model, "one", [1 << 29])], ["size0"]),
        helper.make_node("Shape", ["good"], ["rows"]),
        helper.make_node("Max", ["size0", "rows"], ["size"]),
        helper.make_node("Expand", [constant(model, "x", [1.0], np.float32), "size"], ["huge"]),
        helper.make_node("ReduceMax", ["huge"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mul", ["good", "whole"], ["action"]),
    ]
    model.graph.node.extend(nodes)


def external(model: onnx.ModelProto) -> None:
    one = model.graph.initializer[0]
    one.data_location = TensorProto.EXTERNAL
    one.external_data.add(key="location", value="../../etc/passwd")


def custom(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    model.graph.node.append(helper.make_node("Own", ["good"], ["action"], domain="com.example"))


def nan(model: onnx.ModelProto) -> None:
    for one in model.graph.initializer:
        if one.name.startswith("net."):
            one.CopyFrom(
                numpy_helper.from_array(np.full(list(one.dims), np.nan, np.float32), one.name)
            )


def missing_field(folder: Path) -> None:
    said = json.loads((folder / "spec.json").read_text())
    del said["artifact"]["action"]["action"]["shape"]
    (folder / "spec.json").write_text(json.dumps(said))
    manifest(folder)


def torn(folder: Path) -> None:
    data = (folder / "policy.onnx").read_bytes()
    (folder / "policy.onnx").write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def sparse(folder: Path) -> None:
    with (folder / "policy.onnx").open("r+b") as file:
        file.truncate(2 << 30)
    said = json.loads((folder / "manifest.json").read_text())
    said["files"]["policy.onnx"]["size"] = 2 << 30
    (folder / "manifest.json").write_text(json.dumps(said))


BREAK: dict[str, Callable[[Path], None]] = {
    "wrong shape": graph(wrong_shape),
    "endless": graph(endless),
    "2 GB": graph(large),
    "2 GB file": sparse,
    "external data": graph(external),
    "custom operator": graph(custom),
    "nan weights": graph(nan),
    "missing field": missing_field,
    "torn file": torn,
}


def broken(folder: Path, how: str) -> tuple[str, Path]:
    """(version, folder) of an artifact that is broken in a way of ``BREAK``."""
    BREAK[how](made := artifact(folder, "mlp", 2))
    return hashlib.sha256((made / "manifest.json").read_bytes()).hexdigest(), made
