"""The server as the field's own clients and tools see it. Each is skipped where it is not installed
(make test-clients).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.record.prometheus import Address, Endpoint
from tests.artifacts import artifact
from tests.cli.samples import report
from tests.runtime.test_prometheus import FULL
from tests.serving.chats import Chat, chatting, model
from tests.serving.servers import OBS, Running, registry, serving

pytestmark = pytest.mark.clients
HOME = Path(__file__).parents[2] / ".venv-clients" / "bin"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served")
    registry(folder, box=1)
    with serving(folder, "box") as running:
        yield running


def tool(name: str) -> str:
    found = shutil.which(name, path=str(HOME)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def ran(
    *command: str, text: str | None = None, within_s: float = 200.0, folder: Path | None = None
) -> str:
    done = subprocess.run(
        command,
        check=False,
        input=text,
        capture_output=True,
        text=True,
        timeout=within_s,
        cwd=folder,
    )
    assert done.returncode == 0, (done.stdout[-6000:], done.stderr[-2000:])
    return done.stdout


# Which requests JSON schema cannot say are right: data that fit the shape, an episode that is open.
@pytest.mark.parametrize(
    ("paths", "checks"),
    [("/infer|/v1/outcome|/v1/end", CHECKS), ("/v1/act", (*CHECKS, "positive_data_acceptance"))],
)
def test_schemathesis_finds_nothing(
    server: Running, tmp_path: Path, paths: str, checks: tuple[str, ...]
) -> None:
    said = ran(
        tool("st"),
        "run",
        f"{server.url}/openapi.json",
        "--include-path-regex",
        paths,
        "--checks",
        ",".join(checks),
        "--phases",
        "coverage,fuzzing",
        "-n",
        "20",
        "--max-time",
        "30",
        "--no-color",
        "--generation-deterministic",
        folder=tmp_path,
    )
    assert "Test cases:" in said or "generated" in said


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    with chatting(model(limit=8), context=64) as running:
        yield running


# Which prompts fit the context, and which fields go together, JSON schema cannot say.
def test_schemathesis_finds_nothing_of_a_language_model(chat: Chat, tmp_path: Path) -> None:
    said = ran(
        tool("st"),
        "run",
        f"{chat.url}/openapi.json",
        "--checks",
        ",".join(CHECKS),
        "--phases",
        "examples,coverage,fuzzing,stateful",
        "-n",
        "60",
        "--max-time",
        "60",
        "--no-color",
        "--generation-deterministic",
        folder=tmp_path,
    )
    assert "Test cases:" in said or "generated" in said
    assert chat.text("ab", max_tokens=3)


OPENAI = """
import sys
import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
asked = [{"role": "user", "content": "hi"}]
whole = client.chat.completions.create(model="bytes", messages=asked, temperature=0, max_tokens=9)
parts = client.chat.completions.create(
    model="bytes", messages=asked, temperature=0, max_tokens=9, stream=True
)
text, versions = "", set()
for part in parts:
    text += part.choices[0].delta.content or ""
    versions.add(part.system_fingerprint)
assert text == whole.choices[0].message.content, (text, whole)
assert versions == {whole.system_fingerprint}, versions
assert [one.id for one in client.models.list()] == ["bytes"]
try:
    client.chat.completions.create(model="other", messages=asked)
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error
else:
    raise AssertionError("an unknown model answered")
print("fine")
"""


def test_openais_client(chat: Chat) -> None:
    python = str(HOME / "python")
    if (
        not (HOME / "python").exists()
        or subprocess.run(
            [python, "-c", "import openai"], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("openai is not installed")
    assert ran(python, "-c", OPENAI, chat.url).strip() == "fine"


TRITON = """
import sys
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

client = triton.InferenceServerClient(sys.argv[1])
assert client.is_server_live() and client.is_model_ready("box")
about = client.get_model_metadata("box")
rows = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
for binary in (True, False):
    given = triton.InferInput("obs", list(rows.shape), "FP32")
    given.set_data_from_numpy(rows, binary_data=binary)
    wanted = [triton.InferRequestedOutput(one["name"], binary_data=binary) for one in about["outputs"]]
    answer = client.infer("box", [given], outputs=wanted)
    assert answer.as_numpy("action").shape == (7, 2) and np.isfinite(answer.as_numpy("action")).all()
try:
    client.infer("box", [given], request_compression_algorithm="gzip")
except InferenceServerException as error:
    assert "Content-Encoding" in str(error), error
else:
    raise AssertionError("a compressed body was taken")
for first, last in ((True, False), (False, False), (False, True)):
    one = triton.InferInput("obs", [1, 4], "FP32")
    one.set_data_from_numpy(rows[:1])
    client.infer("box", [one], sequence_id=7, sequence_start=first, sequence_end=last)
print("fine")
"""  # noqa: E501


def test_tritonclient(server: Running) -> None:
    python = str(HOME / "python")
    if (
        not (HOME / "python").exists()
        or subprocess.run(
            [python, "-c", "import tritonclient.http"], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("tritonclient is not installed")
    assert ran(python, "-c", TRITON, server.url.removeprefix("http://")).strip() == "fine"


def test_promtool_has_nothing_to_say_of_the_servers_metrics(server: Running) -> None:
    promtool = tool("promtool")
    server.ask("POST", "/v1/act", {"obs": OBS})
    server.ask("GET", "/v2")
    assert not ran(
        promtool, "check", "metrics", text=server.ask("GET", "/metrics")[1].decode()
    ).strip()


def test_promtool_has_nothing_to_say_of_a_runs_metrics() -> None:
    with Endpoint(Address("127.0.0.1", 0)) as endpoint:
        endpoint.update(report(**FULL))
        with urllib.request.urlopen(
            f"http://127.0.0.1:{endpoint.port}/metrics", timeout=20
        ) as answer:
            page = answer.read().decode()
    assert "equipoise_env_steps_total" in page
    assert not ran(tool("promtool"), "check", "metrics", text=page).strip()


NODE = """
const ort = require("onnxruntime-node");
(async () => {
  const session = await ort.InferenceSession.create(process.argv[2]);
  console.log(JSON.stringify({ inputs: session.inputNames, outputs: session.outputNames }));
})().catch((error) => { console.error(error); process.exit(1); });
"""


def test_onnxruntime_node_loads_a_policy(tmp_path: Path) -> None:
    """Without its install script, which fetches GPU libraries from elsewhere."""
    npm, node = tool("npm"), tool("node")
    options = ("--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    got = subprocess.run(
        [npm, "install", *options, "onnxruntime-node"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
    )
    if got.returncode:
        pytest.skip("npm has no onnxruntime-node here")
    (tmp_path / "load.cjs").write_text(NODE)
    folder = artifact(tmp_path / "policy", "box")
    said = json.loads(ran(node, "load.cjs", str(folder / "policy.onnx"), folder=tmp_path))
    assert "obs" in said["inputs"] and "action" in said["outputs"]
