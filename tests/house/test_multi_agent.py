"""The example of docs/guides/multi-agent.md does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_learns(tmp_path: Path) -> None:
    (code,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/guides/multi-agent.md").read_text(), re.DOTALL
    )
    (tmp_path / "signal_game.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "signal_game.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    mean = re.search(r"<Evaluation ([\d.]+)", done.stdout)
    assert mean is not None and float(mean[1]) > 6.5, done.stdout
