"""On a machine that is a quarter as fast no alarm is raised, no deadline passes and no worker is
replaced.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.runtime.messages import Linked, Note
from tests.outside.server_door import ids
from tests.runtime.machines import ONE_MACHINE, Processes, blue_of, finish, on_machines
from tests.runtime.slowly import slowly
from tests.serving.servers import OBS, registry, serving

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the processes"),
]
LIMIT_S = 560.0


def trained(out: Path, *words: str) -> dict[str, Any]:
    """Train with the command at a quarter of the speed -> summary.json."""
    command = [
        sys.executable,
        "-m",
        "equipoise",
        "train",
        *words,
        "--on-alarm",
        "stop",
        "--out",
        str(out),
        "--no-tensorboard",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            with slowly(process.pid):
                said, _ = process.communicate(timeout=LIMIT_S)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, said
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


@pytest.mark.parametrize("inference", ["local", "central"])
def test_a_run_is_only_slower(inference: str, tmp_path: Path) -> None:
    summary = trained(
        tmp_path / "run",
        "CartPole-v1",
        "--algorithm",
        "ppo",
        "--steps",
        "8000",
        "--inference",
        inference,
        "--set",
        "placement.actors=2",
        "--set",
        "placement.deadline_s=20",
        "--set",
        "evaluation.episodes=2",
    )
    assert (
        summary["status"] == "completed"
        and not summary.get("alarms")
        and summary["env_steps"] >= 8000
    )
    assert not [note for note in summary["notes"] if note.startswith("warning")], summary["notes"]


def test_a_run_on_texts_is_only_slower(tmp_path: Path) -> None:
    summary = trained(
        tmp_path / "run",
        "copy",
        "--algorithm",
        "grpo",
        "--model",
        "tiny",
        "--steps",
        "256",
        "--set",
        "placement.actors=1",
        "--set",
        "placement.deadline_s=20",
        "--set",
        "evaluation.episodes=8",
    )
    assert summary["status"] == "completed" and not summary.get("alarms")
    assert not [note for note in summary["notes"] if note.startswith("warning")], summary["notes"]


def test_a_server_is_only_slower(tmp_path: Path) -> None:
    """Versions are tried, decisions made and stored, and it drains in time."""
    registry(tmp_path, mlp=1)
    store = tmp_path / "decisions"
    with serving(tmp_path, "mlp", "--decisions", str(store)) as server, slowly(server.process.pid):
        for _ in range(30):
            status, said = server.ask("POST", "/v1/act", {"obs": OBS})
            assert status == 200 and not said.get("fallback"), said
        status, said = server.ask("POST", "/v1/outcome", {"id": said["id"], "reward": 1.0})
        assert status == 200, said
        server.process.terminate()
        server.process.wait(60)
    assert not server.logged("a version cannot be served") and len(ids(store)) >= 1


def test_a_check_finds_nothing_more() -> None:
    command = [sys.executable, "-m", "equipoise", "check", "CartPole-v1"]
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
        slowly(process.pid),
    ):
        said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0 and "error" not in said and "does not return" not in said, said


def test_sites_of_a_cluster_are_only_slower(tmp_path: Path) -> None:
    """Their links keep their sessions, and the run has the bits of a fast one."""
    here, _ = finish(ONE_MACHINE["serial"](blue_of(tmp_path / "serial", "CartPole-v1", "impala")))
    nodes, notes = Processes(), list[str]()
    runtime = on_machines(
        blue_of(tmp_path / "cluster", "CartPole-v1", "impala"),
        {"site 0": ["actor 2", "actor 3"]},
        nodes,
    )
    with contextlib.ExitStack() as slow:
        for site in nodes.sites.values():
            slow.enter_context(slowly(site.pid))
        said = (Note, Linked)
        there, _ = finish(
            runtime,
            lambda messages: notes.extend(str(one) for one in messages if isinstance(one, said)),
        )
    assert there == here and not [
        note for note in notes if "warning" in note or "silent" in note or "nothing" in note
    ], notes
