"""Artifacts that are damaged, or that reach for more than their folder: refused, and the reason
names the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from equipoise.edge import Artifact, check_model, verified
from equipoise.exporting import artifact as artifacts
from equipoise.record import checkpoint
from tests.artifacts import artifact


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return artifact(tmp_path / "policy")


def hashed(place: Path, **files: bytes) -> None:
    """Write files of an artifact and a manifest that fits them."""
    manifest = json.loads((place / "manifest.json").read_bytes())
    for name, data in files.items():
        name = name.replace("__", ".")
        (place / name).write_bytes(data)
        manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (place / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", [artifacts.GRAPH, artifacts.SPEC, artifacts.WEIGHTS, artifacts.EDGE]
)
def test_a_flipped_byte_is_named(place: Path, name: str) -> None:
    data = bytearray((place / name).read_bytes())
    data[len(data) // 2] ^= 1
    (place / name).write_bytes(data)
    with pytest.raises(
        ValueError, match=rf"{name}: expected the SHA-256 [0-9a-f]{{64}}, got [0-9a-f]{{64}}"
    ):
        Artifact.open(place)
    (place / name).write_bytes(data[:-1])
    with pytest.raises(ValueError, match=rf"{name}: expected \d+ bytes, got \d+"):
        Artifact.open(place)
    (place / name).unlink()
    with pytest.raises(
        ValueError, match=rf"{name}: expected a file, since the manifest names it, got none"
    ):
        Artifact.open(place)


def test_a_version_is_the_hash_of_the_manifest(place: Path) -> None:
    version = hashlib.sha256((place / "manifest.json").read_bytes()).hexdigest()
    assert (
        Artifact.open(place).version == version == checkpoint.identity(place) == verified(place)[0]
    )


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("", "manifest.json: expected JSON"),
        ("[" * 100_000, "manifest.json: expected JSON"),
        ("[]", r'manifest.json: expected {"format": 1, "files": {...}}, got another manifest'),
        ('{"format": 2, "files": {}}', "got another manifest"),
        ('{"format": 1, "files": {"policy.onnx": 3}}', "got another manifest"),
        (
            '{"format": 1, "files": {}}',
            r"expected policy.onnx among the files, got \[\]; torch can serve weights alone",
        ),
        (
            '{"format": 1, "files": {"../secret": {}}}',
            "expected names of files in the artifact's folder, got '../secret'",
        ),
        (
            '{"format": 1, "files": {"/etc/passwd": {}}}',
            "expected names of files in the artifact's folder, got '/etc/passwd'",
        ),
        ('{"format": 1, "files": {".hidden": {}}}', "got '.hidden'"),
    ],
)
def test_what_is_no_manifest_is_refused(place: Path, manifest: str, said: str) -> None:
    (place / "manifest.json").write_text(manifest)
    with pytest.raises(ValueError, match=said):
        Artifact.open(place)


@pytest.mark.parametrize("name", [artifacts.MANIFEST, artifacts.SPEC])
def test_a_pipe_and_a_file_of_gigabytes_are_not_read(place: Path, name: str) -> None:
    """The file is sparse: a reader that took all of it would need 64 GB of memory."""
    with (place / name).open("r+b") as file:
        file.truncate(64 << 30)
    if name == artifacts.SPEC:
        manifest = json.loads((place / artifacts.MANIFEST).read_bytes())
        manifest["files"][name]["size"] = 64 << 30
        (place / artifacts.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=f"{name}: expected .* at most 67108864"):
        verified(place)
    (place / name).unlink()
    os.mkfifo(place / name)
    with pytest.raises(ValueError, match="expected an artifact|expected a file"):
        verified(place)


def test_a_path_out_of_the_folder_is_refused(place: Path) -> None:
    outside = place.parent / "outside"
    (place / artifacts.GRAPH).rename(outside)
    (place / artifacts.GRAPH).symlink_to(outside)
    with pytest.raises(
        ValueError, match="expected names of files in the artifact's folder, got 'policy.onnx'"
    ):
        Artifact.open(place)
    with pytest.raises(
        ValueError,
        match=r"nowhere: expected an artifact, a folder with manifest.json, got No such file",
    ):
        Artifact.open(place.parent / "nowhere")


def model(place: Path) -> Any:
    return onnx.load(str(place / artifacts.GRAPH))


def external(tensor: Any) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")


def external_weight(m: Any) -> None:
    external(m.graph.initializer[0])


def external_by_list_alone(m: Any) -> None:
    m.graph.initializer[0].external_data.add(key="location", value="weights.bin")


def external_in_a_branch(m: Any) -> None:
    constant = helper.make_node(
        "Constant", [], ["c"], value=numpy_helper.from_array(np.zeros(3, np.float32))
    )
    external(constant.attribute[0].t)
    branch = helper.make_graph(
        [constant], "branch", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, [3])]
    )
    m.graph.node.append(
        helper.make_node("If", ["first"], ["unused"], then_branch=branch, else_branch=branch)
    )


def external_in_a_sparse_one(m: Any) -> None:
    sparse = m.graph.sparse_initializer.add()
    external(sparse.values)


def custom_operator(m: Any) -> None:
    m.graph.node.append(helper.make_node("Run", ["obs"], ["unused"], domain="com.elsewhere"))
    m.opset_import.add(domain="com.elsewhere", version=1)


def custom_domain_alone(m: Any) -> None:
    m.opset_import.add(domain="com.microsoft", version=1)


def a_function(m: Any) -> None:
    m.functions.append(
        helper.make_function("", "F", ["x"], ["y"], [], [helper.make_opsetid("", 20)])
    )


def other_inputs(m: Any) -> None:
    m.graph.input[0].name = "observation"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (external_weight, "expected all data within the file, got a tensor with external data"),
        (
            external_by_list_alone,
            "expected all data within the file, got a tensor with external data",
        ),
        (
            external_in_a_branch,
            "expected all data within the file, got a tensor with external data",
        ),
        (
            external_in_a_sparse_one,
            "expected all data within the file, got a tensor with external data",
        ),
        (custom_operator, "expected ONNX's own operators, got those of 'com.elsewhere'"),
        (custom_domain_alone, "expected ONNX's own operators, got those of 'com.microsoft'"),
        (a_function, "expected one plain graph, got one with a function"),
        (
            other_inputs,
            "expected a graph that onnxruntime loads|expected the inputs that spec.json names",
        ),
    ],
)
def test_a_graph_that_reaches_further_is_refused(
    place: Path, change: Callable[[Any], None], said: str
) -> None:
    m = model(place)
    change(m)
    hashed(place, policy__onnx=m.SerializeToString())
    with pytest.raises(ValueError, match=f"policy.onnx: {said}"):
        Artifact.open(place)


def test_a_spec_that_is_none_is_refused(place: Path) -> None:
    spec = json.loads((place / artifacts.SPEC).read_bytes())
    changes: list[dict[str, Any]] = [
        {"artifact": {}},
        {"policies": {}},
        {"artifact": spec["artifact"] | {"noise": 3}},
    ]
    for change in changes:
        hashed(place, spec__json=json.dumps(spec | change).encode())
        with pytest.raises(
            ValueError, match=r"spec.json: expected what 'equipoise export' writes, got"
        ):
            Artifact.open(place)
    inputs = spec["artifact"]["inputs"] | {"obs": {"dtype": "float32", "shape": [5]}}
    hashed(
        place,
        spec__json=json.dumps(spec | {"artifact": spec["artifact"] | {"inputs": inputs}}).encode(),
    )
    with pytest.raises(ValueError, match="expected the inputs that spec.json names"):
        Artifact.open(place)


@settings(max_examples=60, deadline=None)
@given(at=st.floats(0, 1), garbage=st.binary(max_size=30))
def test_any_bytes_are_a_graph_or_refused(at: float, garbage: bytes) -> None:
    right = Path(__file__).read_bytes()[:2000]
    for data in (garbage, right[: int(at * len(right))] + garbage):
        with contextlib.suppress(ValueError):
            check_model(data, Path("policy.onnx"))


def test_a_number_in_the_place_of_a_domain_takes_no_memory() -> None:
    opset = b"\x08\xff\xff\xff\xff\x7f"  # field 1, domain, as the number 2^35 - 1
    with pytest.raises(ValueError, match="expected an ONNX file, got one that cannot be read"):
        check_model(b"\x42" + bytes([len(opset)]) + opset, Path("policy.onnx"))
    with pytest.raises(ValueError, match="expected an ONNX file"):
        check_model(b"\xff" * 1_000_000, Path("policy.onnx"))


def test_a_cut_graph_is_refused(place: Path) -> None:
    data = (place / artifacts.GRAPH).read_bytes()
    for n in range(1, len(data), len(data) // 40):
        hashed(place, policy__onnx=data[:n])
        with pytest.raises(ValueError, match=r"policy.onnx: expected"):
            Artifact.open(place)
