"""The commands of the guide to serving a language model."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "serving-language.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_from_training_to_an_answer(tmp_path: Path) -> None:
    (block,) = BLOCK.findall(GUIDE.read_text())
    train, serve, curl = (
        re.sub("^equipoise", f"{sys.executable} -m equipoise", line) for line in block.splitlines()
    )
    short = f"{train} --steps 512 --on serial --evaluate-episodes 0 --quiet"
    subprocess.run(["sh", "-c", short], cwd=tmp_path, check=True, timeout=500)
    words = [*serve.removesuffix(" &").split(), "--port", "0"]
    with subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            found = re.fullmatch(r"serving sort \((\S+)\) at (http://127.0.0.1:\d+)/v1\n", line)
            assert found, line
            asked = curl.replace("http://127.0.0.1:8000", found[2])
            said = json.loads(subprocess.check_output(["sh", "-c", asked], timeout=60))
            assert said["system_fingerprint"] == found[1] and said["model"] == "sort"
            assert said["usage"]["prompt_tokens"] == 7
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()
