"""The eight commands of the guide to serving: from training to served, swapped and rolled back."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "serving.md"
BLOCK = re.compile(r"^```sh\n(make demo\n.*?)^```$", re.MULTILINE | re.DOTALL)
SHORT = "--steps 2k --quiet --on serial"


def asked(port: int) -> Any:
    """The version that answers; None where nobody does yet."""
    body = json.dumps({"obs": [0.0, 0.1, 0.0, 0.2]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/act", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["version"]
    except urllib.error.URLError:
        return None


def until(port: int, wanted: Any) -> str:
    """Ask until the version is one that is wanted."""
    end = time.monotonic() + 120
    while not wanted(found := asked(port)):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return str(found)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_from_training_to_served_swapped_and_rolled_back(tmp_path: Path) -> None:
    (block,) = BLOCK.findall(GUIDE.read_text())
    commands = block.splitlines()
    assert len(commands) == 8
    assert "demo: setup" in (ROOT / "Makefile").read_text()
    short = f"equipoise train CartPole-v1 {SHORT} --out runs/demo-1"
    module = f"{sys.executable} -m equipoise"
    lines = [line.replace("make demo", short).replace("--stop-at 475", SHORT) for line in commands]
    lines = [re.sub(r"^(\.venv/bin/)?equipoise", module, line) for line in lines]
    server: subprocess.Popen[str] | None = None
    seen, port = [], 0
    try:
        for line in lines:
            if line.endswith(" &"):
                words = [*line.removesuffix(" &").split(), "--port", "0"]
                server = subprocess.Popen(
                    words,
                    cwd=tmp_path,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
                assert server.stdout is not None
                port = int(server.stdout.readline().rpartition(":")[2])
                seen.append(until(port, lambda found: found is not None))
                continue
            done = subprocess.run(
                ["sh", "-c", line],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            if (" --alias champion" in line and seen) or "rollback" in line:
                seen.append(until(port, lambda found: found not in (None, seen[-1])))
        assert len(seen) == 3 and seen[0] == seen[2] != seen[1]
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
            server.communicate()
