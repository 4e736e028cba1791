"""The tutorials are true: their files are written, their commands are typed,
and each must succeed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.cli import app

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted(ROOT.glob("docs/guides/custom-*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def follow(tutorial: Path, place: Path) -> dict[str, str]:
    """Do all of it in ``place``, where we are, in its order -> what each command printed."""
    said: dict[str, str] = {}
    for kind, text in BLOCK.findall(tutorial.read_text()):
        if kind == "python":
            named = re.match(r"# (\w+\.py)\n", text)
            assert named, (
                f"{tutorial.name}: expected '# file.py' as the first line of a block of Python, "
                f"got {text[:30]!r}"
            )
            (place / named[1]).write_text(text)
            if "__main__" in text:
                words = [sys.executable, named[1]]
                done = subprocess.run(
                    words, cwd=place, capture_output=True, text=True, timeout=240, check=False
                )
                assert done.returncode == 0, f"{named[1]}:\n{done.stdout}\n{done.stderr}"
            continue
        assert kind == "sh", f"{tutorial.name}: expected blocks of python or sh, got {kind}"
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            assert words[0] == "equipoise", (
                f"{tutorial.name}: expected an equipoise command, got {line!r}"
            )
            # here, since torch is imported already
            typed = CliRunner().invoke(app, words[1:], catch_exceptions=False)
            assert typed.exit_code == 0, f"{line}: exit code {typed.exit_code}\n{typed.output}"
            said[line] = typed.stdout
    return said


def result(place: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((place / "runs" / name / "summary.json").read_text())
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda t: t.stem)
def test_what_a_tutorial_says_works(
    tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(tmp_path)]))
    before = set(sys.modules)
    try:
        said = follow(tutorial, tmp_path)
    finally:
        for name in {path.stem for path in tmp_path.glob("*.py")} - before:
            sys.modules.pop(name, None)  # another test may have a module of that name
    if tutorial.stem == "custom-env":
        assert result(tmp_path, "corridor")["status"] == "solved"
        resumed = next(text for line, text in said.items() if line.startswith("equipoise resume"))
        assert "16 envs exactly as they were" in resumed
    if tutorial.stem == "device-env":
        assert float(str(result(tmp_path, "docking")["return_mean"])) > 0.8
        resumed = next(text for line, text in said.items() if line.startswith("equipoise resume"))
        assert "128 envs exactly as they were" in " ".join(resumed.split())
    if tutorial.stem == "custom-algorithm":
        returns = result(tmp_path, "reinforce")
        assert returns["env_steps"] == 40448 and float(str(returns["return_mean"])) > 50, (
            "it learned nothing"
        )
