"""The Open Inference Protocol: JSON, binary tensors, sequences, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import edge
from equipoise.registry import RegistryReader
from tests.serving.servers import OBS, Running, exchange, registry, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served")
    registry(place, mask=1, lstm=1)
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with serving(folder, "mask") as running:
        yield running


@pytest.fixture(scope="module")
def recurrent(folder: Path) -> Iterator[Running]:
    with serving(folder, "lstm") as running:
        yield running


def tensors(count: int, binary: bool = False) -> tuple[list[dict[str, Any]], bytes]:
    obs = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    mask = np.tile(np.array([1, 0, 1], np.int8), (count, 1))
    said, data = [], b""
    for name, kind, x in (("obs/obs", "FP32", obs), ("obs/action_mask", "INT8", mask)):
        one = {"name": name, "shape": list(x.shape), "datatype": kind}
        said.append(
            one
            | (
                {"parameters": {"binary_data_size": x.nbytes}}
                if binary
                else {"data": x.ravel().tolist()}
            )
        )
        data += x.tobytes() if binary else b""
    return said, data


def infer(
    running: Running, policy: str, inputs: Any, data: bytes = b"", version: str = "", **more: Any
) -> tuple[int, Any, bytes]:
    """(status, the JSON part, the binary part)."""
    head = json.dumps({"inputs": inputs, **more}).encode()
    split = f"Inference-Header-Content-Length: {len(head)}\r\n" if data else ""
    lines = f"POST /v2/models/{policy}{version}/infer HTTP/1.1\r\nHost: localhost\r\n{split}"
    lines += f"Content-Length: {len(head) + len(data)}\r\n\r\n"
    status, said, headers = exchange(running.port, lines.encode() + head + data)
    if "inference-header-content-length" in headers:
        at = int(headers["inference-header-content-length"])
        return status, json.loads(said[:at]), said[at:]
    return status, said, b""


def test_metadata(server: Running) -> None:
    assert server.ask("GET", "/v2")[1]["extensions"] == ["binary_tensor_data", "sequence"]
    for path in (
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/mask/ready",
        "/v2/models/mask/versions/champion/ready",
    ):
        assert server.ask("GET", path)[0] == 200, path
    _, said = server.ask("GET", "/v2/models/mask")
    assert {one["name"]: (one["datatype"], one["shape"]) for one in said["inputs"]} == {
        "obs/obs": ("FP32", [-1, 4]),
        "obs/action_mask": ("INT8", [-1, 3]),
    }
    assert {one["name"]: (one["datatype"], one["shape"]) for one in said["outputs"]} == {
        "action": ("INT64", [-1]),
        "propensity": ("FP64", [-1]),
    }
    assert server.ask("GET", f"/v2/models/mask/versions/{said['versions'][0][:12]}")[0] == 200
    assert (
        server.ask("GET", "/v2/models/musk")[0]
        == server.ask("GET", "/v2/models/mask/versions/9")[0]
        == 404
    )


def test_json_and_binary_are_the_policy(server: Running, folder: Path) -> None:
    inputs, _ = tensors(5)
    status, said, _ = infer(server, "mask", inputs, id="7")
    outputs = {one["name"]: one for one in said["outputs"]}
    artifact = edge.Artifact.open(RegistryReader(folder / "registry").resolve("mask")[1])
    obs = {
        one["name"][4:]: np.array(
            one["data"], "float32" if one["datatype"] == "FP32" else "int8"
        ).reshape(one["shape"])
        for one in inputs
    }
    rows, _ = artifact.read(obs)
    raw, _, _ = artifact.run(rows, np.ones(5, bool), {}, None, np.ones(5, bool))
    assert status == 200 and said["id"] == "7" and said["model_version"] == artifact.version
    assert (
        outputs["action"]["data"] == raw["action"].tolist()
        and outputs["propensity"]["data"] == [1.0] * 5
    )
    assert len(said["parameters"]["decision_id"].split(",")) == 5

    inputs, data = tensors(5, binary=True)
    status, again, binary = infer(
        server,
        "mask",
        inputs,
        data,
        outputs=[{"name": "action", "parameters": {"binary_data": True}}],
    )
    assert status == 200 and [one["name"] for one in again["outputs"]] == ["action"]
    assert np.frombuffer(binary, "<i8").tolist() == raw["action"].tolist()
    status, again, binary = infer(
        server,
        "mask",
        inputs,
        data,
        parameters={"binary_data_output": True, "deterministic": False},
    )
    assert status == 200 and len(binary) == 5 * 16


def test_a_sequence_is_an_episode(recurrent: Running, folder: Path) -> None:
    policy = edge.EdgePolicy(RegistryReader(folder / "registry").resolve("lstm")[1])
    obs = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    for t in range(6):
        inputs = [{"name": "obs", "shape": [1, 4], "datatype": "FP32", "data": obs[t].tolist()}]
        given = {"sequence_id": 42, "sequence_start": t == 0, "sequence_end": t == 5}
        status, said, _ = infer(recurrent, "lstm", inputs, parameters=given)
        assert status == 200 and said["outputs"][0]["data"] == [policy.act(obs[t])]
    inputs = [{"name": "obs", "shape": [1, 4], "datatype": "FP32", "data": OBS}]
    assert infer(recurrent, "lstm", inputs, parameters={"sequence_id": 42})[0] == 404
    assert infer(recurrent, "lstm", inputs)[0] == 400
    two = [{"name": "obs", "shape": [2, 4], "datatype": "FP32", "data": OBS * 2}]
    assert (
        "[1, ...] in a sequence"
        in infer(recurrent, "lstm", two, parameters={"sequence_id": "a", "sequence_start": True})[
            1
        ]["error"]
    )


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"datatype": "BYTES"}, "inputs/obs/obs: expected a datatype of BOOL"),
        ({"datatype": "FP31"}, "FP64, got 'FP31'; did you mean 'FP"),
        ({"shape": [5, 3]}, "inputs/obs/obs: expected FP32 [5, 3]"),
        ({"shape": [-5, -4]}, "expected at most 32 sizes of at least 0"),
        ({"shape": [1 << 40, 1 << 40]}, "inputs/obs/obs: expected FP32"),
        ({"shape": [20]}, "expected shape [3], or a batch [B, ...] of it in all parts, got [5, 3]"),
        (
            {"datatype": "FP16", "data": [1e6] * 20},
            "obs/obs: expected finite numbers, got inf in row 0",
        ),
        ({"data": ["a"] * 20}, "expected numbers of FP32, got others"),
        (
            {"data": [[1.0] * 4, [1.0]]},
            "expected a flat list, or lists of that shape, got lists of different lengths",
        ),
        ({"data": [1.0] * 7}, "numbers, got 7"),
        ({"name": "obs"}, "inputs: expected obs/action_mask, obs/obs, got"),
        ({"name": "obs/action_mask"}, "expected each name once"),
        (
            {"parameters": {"binary_data_size": 80}},
            "inputs/obs/obs: expected data or binary_data_size, got both",
        ),
        (
            {"data": None, "parameters": {"binary_data_size": 80}},
            "expected 80 bytes for FP32 [5, 4], got 80 announced and 0 there",
        ),
    ],
)
def test_bad_tensors(change: dict[str, Any], sentence: str, server: Running) -> None:
    inputs, _ = tensors(5)
    inputs[0] |= change
    status, said, _ = infer(server, "mask", inputs)
    assert status == 400 and sentence in said["error"], said


def test_bad_requests(server: Running) -> None:
    inputs, data = tensors(5, binary=True)
    assert "expected 3 bytes less" in infer(server, "mask", inputs, data + b"abc")[1]["error"]
    assert (
        "outputs: expected some of action, propensity, got 'actoin'; did you mean 'action'?"
        in infer(server, "mask", tensors(5)[0], outputs=[{"name": "actoin"}])[1]["error"]
    )
    assert infer(server, "mask", [])[0] == infer(server, "mask", "x")[0] == 400
    assert (
        server.ask(
            "POST", "/v2/models/mask/infer", {"inputs": []}, Inference_Header_Content_Length="99999"
        )[0]
        == 400
    )
    assert "B of at most 4096" in infer(server, "mask", tensors(5000)[0])[1]["error"]
    for name, value in (("sequence_id", "x" * 257), ("deadline_ms", -5), ("deadline_ms", 0)):
        status, said, _ = infer(server, "mask", tensors(1)[0], parameters={name: value})
        assert status == 400 and f"$.parameters.{name}" in said["error"], said
    assert infer(server, "mask", tensors(1)[0], parameters={"sequence_id": ""})[0] == 200


def test_an_existing_client(server: Running) -> None:
    http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    client = http.InferenceServerClient(server.url.removeprefix("http://"))
    try:
        assert client.is_server_live() and client.is_model_ready("mask")
        obs, mask = (
            http.InferInput("obs/obs", [1, 4], "FP32"),
            http.InferInput("obs/action_mask", [1, 3], "INT8"),
        )
        obs.set_data_from_numpy(np.array([OBS], np.float32))
        mask.set_data_from_numpy(np.array([[1, 0, 1]], np.int8))
        answer = client.infer(
            "mask", [obs, mask], sequence_id=5, sequence_start=True, sequence_end=True
        )
        assert answer.as_numpy("action").shape == (1,)
    finally:
        client.close()
