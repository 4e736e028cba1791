"""The look for what a test leaves behind finds what it is for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
LEAKING = """
import os, signal, subprocess
kept = []

def test_a_child():
    kept.append(subprocess.Popen(["sleep", "600"]))

def test_an_orphan():
    kept.append(int(subprocess.check_output(["sh", "-c", "sleep 601 >/dev/null & echo $!"])))

def test_a_segment():
    kept.append(os.memfd_create("equipoise-test"))

def test_nothing():
    subprocess.run(["true"], check=True)
    os.close(os.memfd_create("equipoise-test"))

def test_cleanup():
    kept[0].kill()
    kept[0].wait()
    os.kill(kept[1], signal.SIGKILL)
    os.close(kept[2])
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_children_orphans_and_segments_are_found(tmp_path: Path) -> None:
    impatient, found = re.subn(
        r"^GRACE_S = [\d.]+", "GRACE_S = 0.2", CONFTEST.read_text(), flags=re.MULTILINE
    )
    assert found == 1
    (tmp_path / "conftest.py").write_text(impatient)
    (tmp_path / "test_leaking.py").write_text(LEAKING)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rEA",
            "-c",
            os.devnull,
            "--rootdir",
            tmp_path,
            "-p",
            "no:cacheprovider",
            tmp_path,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    failed = {
        line.split("::")[1].split(" ")[0]
        for line in done.stdout.splitlines()
        if line.startswith("ERROR")
    }
    assert failed == {"test_a_child", "test_an_orphan", "test_a_segment"}, done.stdout
    for sight in ("sleep 600", "sleep 601", "/memfd:equipoise-test"):
        assert sight in done.stdout
