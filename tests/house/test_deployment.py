"""The page of the deployment: systemd takes its units, Kubernetes' schema its manifest, the parser
their commands, and a real server answers at the places that they name. So for the Dockerfiles.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from equipoise.cli.serve import TOKEN
from equipoise.serving.settings import Settings
from tests.house.test_commands_of_pages import parsed
from tests.house.test_kuberay import SCHEMA
from tests.serving.servers import registry, serving

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guides/deployment.md"
DOCKERFILES = (ROOT / "Dockerfile", ROOT / "deploy/kuberay/Dockerfile")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECRET = "0123456789abcdef"
SYSTEMD = shutil.which("systemd-analyze")


def blocks(kind: str) -> list[str]:
    return [text for name, text in BLOCK.findall(PAGE.read_text()) if name == kind]


# ------------------------------------------------------------------------------------------ systemd


def units() -> dict[str, str]:
    """The units of the page by the name in their first line."""
    found = {}
    for text in blocks("ini"):
        name = re.match(r"# /etc/systemd/system/([\w-]+\.service)\n", text)
        assert name is not None, text
        found[name[1]] = text
    return found


def keys(unit: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"[A-Z]\w+=", line))


def complaints(unit: str, folder: Path) -> str:
    """What systemd-analyze says of a unit, whose user and program are not on this machine."""
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit, flags=re.MULTILINE)
    file = folder / "unit.service"
    file.write_text(re.sub(r"^User=\w+", "User=root", text, flags=re.MULTILINE))
    assert SYSTEMD is not None
    done = subprocess.run(
        [SYSTEMD, "verify", "--man=no", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return f"{done.stdout}{done.stderr}" + (f"rc {done.returncode}" if done.returncode else "")


def test_the_page_has_two_units() -> None:
    assert set(units()) == {"equipoise-serve.service", "equipoise-train.service"}


@pytest.mark.skipif(SYSTEMD is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", units())
def test_systemd_takes_a_unit(name: str, tmp_path: Path) -> None:
    assert complaints(units()[name], tmp_path) == ""


@pytest.mark.skipif(SYSTEMD is None, reason="systemd-analyze is not installed")
def test_a_wrong_unit_is_found(tmp_path: Path) -> None:
    unit = units()["equipoise-serve.service"]
    wrong = complaints(unit.replace("LoadCredential=", "LoadCredentials="), tmp_path)
    assert "Unknown key 'LoadCredentials'" in wrong
    assert "rc" in complaints(unit.replace("ExecStart=", "ExecBegin="), tmp_path)


@pytest.mark.parametrize("name", units())
def test_the_parser_takes_the_command_of_a_unit(name: str) -> None:
    unit = keys(units()[name])
    program, *words = shlex.split(unit["ExecStart"])
    assert program == f"{unit['WorkingDirectory']}/.venv/bin/equipoise"
    assert parsed(words) == ""


def test_the_server_writes_only_where_its_unit_lets_it() -> None:
    """With ProtectSystem=strict the working directory is read-only, where decisions are by
    themselves.
    """
    unit = keys(units()["equipoise-serve.service"])
    assert unit["ProtectSystem"] == "strict" and unit["StateDirectory"]
    words = shlex.split(unit["ExecStart"])
    assert words[words.index("--decisions") + 1].startswith("${STATE_DIRECTORY}/")
    secret = unit["LoadCredential"].partition(":")[0]
    assert words[words.index("--token-file") + 1] == f"${{CREDENTIALS_DIRECTORY}}/{secret}"


# --------------------------------------------------------------------------------------- Kubernetes


def deployment() -> Any:
    (text,) = blocks("yaml")
    return yaml.safe_load(text)


def wrong_pod(template: Any) -> list[str]:
    """What is wrong in the template of a pod, by the schema of Kubernetes within KubeRay's, which
    is cut to the fields that our manifests have: so probes are checked here.
    """
    template = copy.deepcopy(template)
    probes = [
        (name, container.pop(name))
        for container in template["spec"]["containers"]
        for name in ("livenessProbe", "readinessProbe")
    ]
    wrong = [
        f"{name}: {probe}"
        for name, probe in probes
        if set(probe) != {"httpGet"}
        or set(probe["httpGet"]) != {"path", "port"}
        or not isinstance(probe["httpGet"]["port"], int)
        or not str(probe["httpGet"]["path"]).startswith("/")
    ]
    schema = json.loads(SCHEMA.read_text())
    of_kind = next(
        one for one in schema["oneOf"] if one["properties"]["kind"]["const"] == "RayCluster"
    )
    cluster = yaml.safe_load((SCHEMA.parents[1] / "raycluster.yaml").read_text())
    cluster["spec"]["headGroupSpec"]["template"] = template
    errors = jsonschema.Draft202012Validator({**of_kind, "$defs": schema["$defs"]}).iter_errors(
        cluster
    )
    return [*wrong, *(one.message for one in errors)]


def test_the_manifest_is_a_deployment() -> None:
    made = deployment()
    assert set(made) == {"apiVersion", "kind", "metadata", "spec"}
    assert (made["apiVersion"], made["kind"]) == ("apps/v1", "Deployment")
    assert set(made["spec"]) == {"replicas", "selector", "template"}
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert made["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert wrong_pod(made["spec"]["template"]) == []


def test_a_wrong_manifest_is_found() -> None:
    template = copy.deepcopy(deployment()["spec"]["template"])
    template["spec"]["containers"][0]["livenessProb"] = {}
    template["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] = [8000]
    assert any("'livenessProb' was unexpected" in one for one in wrong_pod(template))
    assert len(wrong_pod(template)) == 2


def test_a_pod_mounts_its_volumes_and_its_command_is_taken() -> None:
    pod = deployment()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert parsed(container["args"]) == ""  # the image begins with "equipoise"
    assert [one["name"] for one in container["env"]] == [TOKEN]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert set(mounts) == {one["name"] for one in pod["volumes"]}
    assert mounts["registry"] == f"{final(DOCKERFILES[0], 'WORKDIR')}/{container['args'][1]}"
    port = Settings(policy="x").port
    probes = [container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("liveness", "readiness")]
    assert {port} == {*probes, *(one["containerPort"] for one in container["ports"])}


@pytest.mark.thorough
def test_a_server_answers_its_probes_without_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, SECRET)
    (container,) = deployment()["spec"]["template"]["spec"]["containers"]
    paths = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")]
    registry(tmp_path, mlp=1)
    with serving(tmp_path, "mlp") as server:
        secret = {"Authorization": f"Bearer {SECRET}"}
        status, known = server.ask("GET", "/openapi.json", **secret)
        assert status == 200 and {*paths, "/v1/act", "/metrics"} <= set(known["paths"])
        assert [server.ask("GET", path)[0] for path in paths] == [200, 200]
        assert server.ask("GET", "/metrics")[0] == 401 and server.ask("GET", "/nothing")[0] >= 400


# ------------------------------------------------------------------------------------------- Docker


def lines_of(file: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with what follows each."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in text.splitlines() if line]


def final(file: Path, instruction: str) -> str:
    """The last of an instruction."""
    return [rest for name, rest in lines_of(file) if name == instruction][-1]


INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD", "ARG", "ENV"}


def wrong_docker(file: Path) -> list[str]:
    wrong = []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    for name, rest in lines_of(file):
        if name not in INSTRUCTIONS:
            wrong.append(f"no instruction {name}")
        if name == "COPY" and not rest.startswith("--from="):
            wrong += [
                f"no {path}" for path in rest.split()[:-1] if not (file.parent / path).exists()
            ]
        for named in re.findall(r"\[([\w,]+)\]\"", rest):
            given = set(named.split(","))
            # ray[default] is Ray's own
            wrong += [f"no extra {one}" for one in sorted(given - extras - {"default"})]
    return wrong


@pytest.mark.parametrize("file", DOCKERFILES, ids=["image", "kuberay"])
def test_a_dockerfile_names_what_there_is(file: Path) -> None:
    assert wrong_docker(file) == []


def test_a_wrong_dockerfile_is_found(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text('FROM a\nCOPY nowhere .\nRUNN ls\nRUN pip install "$(ls x)[plott,serve]"\n')
    assert wrong_docker(file) == ["no nowhere", "no instruction RUNN", "no extra plott"]


def test_the_image_begins_with_the_command() -> None:
    image = DOCKERFILES[0]
    assert json.loads(final(image, "ENTRYPOINT")) == ["equipoise"]
    assert json.loads(final(image, "CMD")) == ["--help"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = re.findall(r"python:(3\.\d+)-slim", image.read_text())
    assert len(set(python)) == 1 and f"Python :: {python[0]}" in " ".join(project["classifiers"])


def docker_runs() -> list[list[str]]:
    """The words after the image of each ``docker run`` of the page and of the Dockerfile."""
    text = PAGE.read_text().replace("\\\n", " ") + DOCKERFILES[0].read_text()
    found = []
    for line in re.findall(r"docker run (.*)", text):
        words = shlex.split(line)
        found.append(words[words.index("equipoise") + 1 :])
    return found


def test_the_parser_takes_the_commands_of_docker() -> None:
    assert len(docker_runs()) >= 3
    assert {" ".join(words): parsed(words) for words in docker_runs() if parsed(words)} == {}


def test_what_the_page_runs_in_a_container_has_its_extra() -> None:
    extras = re.findall(r"\)\[([\w,]+)\]", DOCKERFILES[0].read_text())[0].split(",")
    assert any(words[0] == "serve" for words in docker_runs()) and "serve" in extras
    home = final(DOCKERFILES[0], "WORKDIR")
    for goal in re.findall(r"-v \"\$PWD/\w+:(\S+)\"", PAGE.read_text()):
        assert goal.startswith(f"{home}/")
