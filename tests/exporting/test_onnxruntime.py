"""Exported graphs load and say the same in each onnxruntime from the lowest that an artifact asks
for to the newest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from equipoise import edge
from equipoise.exporting.decompositions import NARROW, WIDER
from equipoise.exporting.graph import PolicyGraph, onnx_bytes
from tests.exporting.cases import CASES
from tests.exporting.test_parity import made

VERSIONS = [f"{edge.LOWEST}.1", "1.24.1", "1.30.0"]  # beside the one that the other tests run
PLAY = """
import json, sys
import numpy as np, onnxruntime
folder, found = sys.argv[1], {}
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
for name in json.load(open(f"{folder}/names.json")):
    try:
        session = onnxruntime.InferenceSession(f"{folder}/{name}.onnx", options, providers=["CPUExecutionProvider"])
        inputs = np.load(f"{folder}/{name}.npz")
        found[name] = [np.asarray(x, np.float64).tolist() for x in session.run(None, dict(inputs))]
    except Exception as error:
        found[name] = str(error)[:300]
print(json.dumps({"version": onnxruntime.__version__, "found": found}))
"""  # noqa: E501


def narrow(data: bytes) -> list[str]:
    """Nodes that compute in types that old runtimes have no kernel for."""
    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(data)).graph
    types = {
        one.name: one.type.tensor_type.elem_type
        for one in (*graph.input, *graph.value_info, *graph.output)
    }
    types |= {one.name: one.data_type for one in graph.initializer}
    small = {onnx.TensorProto.DataType.Value(name) for name in WIDER}
    return [
        f"{node.op_type} {node.name}"
        for node in graph.node
        for at in NARROW.get(node.op_type, ((), False))[0]
        if at < len(node.input) and types.get(node.input[at]) in small
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", ["multibinary", "r2d2 lstm masked", "ppo joint masked", "nested observations, masked"]
)
def test_narrow_integers_are_computed_in_wider_ones(name: str) -> None:
    one, policy = made(name)
    assert narrow(onnx_bytes(PolicyGraph(policy, one.spec))) == []


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    names = {}
    for number, name in enumerate(CASES):
        one, policy = made(name)
        graph = PolicyGraph(policy, one.spec)
        (folder / f"{number}.onnx").write_bytes(onnx_bytes(graph))
        inputs: dict[str, Any] = dict(
            zip(graph.signature.inputs, (x.numpy() for x in graph.example(2)), strict=True)
        )
        np.savez(folder / f"{number}.npz", **inputs)
        names[str(number)] = name
    (folder / "names.json").write_text(json.dumps(names))
    return folder


def play(folder: Path, path: str = "") -> Any:
    found = subprocess.run(
        [sys.executable, "-c", PLAY, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_graph_loads_in_old_versions_and_says_the_same(
    version: str, graphs: Path, tmp_path: Path
) -> None:
    asked = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(tmp_path),
        f"onnxruntime=={version}",
    ]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip(f"onnxruntime {version} cannot be installed here")
    old, new = play(graphs, str(tmp_path)), play(graphs)
    assert old["version"] == version
    for name, wanted in new["found"].items():
        got = old["found"][name]
        assert isinstance(got, list), got
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=name)
