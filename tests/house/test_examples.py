"""The scripts of ``examples/`` run, each has a page, and they are short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# the packages that a script needs besides Equipoise's own, and the steps of its short form
NEEDS = {
    "several_agents": ("mpe2",),
    "offline": ("minari", "h5py"),
    "ship": ("onnxruntime",),
    "with_optuna": ("optuna",),
    "with_ray_tune": ("ray", "tensorboardX"),
}
STEPS = {"continuous": 600, "text": 128}
MOST_LINES = 60


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_is_short_and_has_a_page(script: Path) -> None:
    assert len(script.read_text().splitlines()) <= MOST_LINES
    page = ROOT / "docs" / "examples" / f"{script.stem.replace('_', '-')}.md"
    assert f"python examples/{script.name}" in page.read_text()
    assert f"examples/{script.name})" in page.read_text(), "a link to the script"


def test_there_are_ten_examples() -> None:
    assert len(EXAMPLES) == 10


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(one, marks=pytest.mark.ray) if one.stem == "with_ray_tune" else one
        for one in EXAMPLES
    ],
    ids=lambda script: script.stem,
)
def test_an_example_runs(script: Path, tmp_path: Path) -> None:
    for package in NEEDS.get(script.stem, ()):
        pytest.importorskip(package)
    steps = STEPS.get(script.stem, 4096)
    done = subprocess.run(
        [sys.executable, str(script), "--steps", str(steps)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "MINARI_DATASETS_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    assert "completed: " in done.stdout or "solved: " in done.stdout or script.stem == "offline"
    assert list((tmp_path / "runs").iterdir()), "the run's directory"
