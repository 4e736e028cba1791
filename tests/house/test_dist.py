"""The wheel: installed into an empty environment it trains, evaluates, checks and plots."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that ``make dist`` builds, of a copy of the files that git knows."""
    place = tmp_path_factory.mktemp("dist")
    source = place / "source"
    source.mkdir()
    listed = ["git", "ls-files", "-z", "src", "pyproject.toml", "README.md", "LICENSE"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True)
    for name in files.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        place,
        source,
        cwd=place,
    )
    (made,) = place.glob("*.whl")
    return made


@pytest.mark.thorough
def test_it_holds_the_package_and_needs_no_compiler(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = ROOT / "src" / "equipoise"
    wanted = {
        str(file.relative_to(ROOT / "src"))
        for file in [*source.rglob("*.py"), *source.glob("*/static/*")]
    }
    assert (
        wanted <= names
        and "equipoise/py.typed" in names
        and not any(name.startswith("tests") for name in names)
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    bin_ = tmp_path / "env" / "bin"
    run(bin_ / "pip", "install", "-q", f"{wheel}[plot]", "torch==2.13.0", cwd=tmp_path)
    train = ("train", "CartPole-v1", "--steps", "10k", "--quiet", "--out", "run")
    assert "The run is in run" in run(bin_ / "equipoise", *train, cwd=tmp_path)
    assert "over 2 episodes" in run(
        bin_ / "equipoise", "evaluate", "run", "--episodes", "2", cwd=tmp_path
    )
    assert "the same seed and actions give the same rows" in run(
        bin_ / "equipoise", "check", "CartPole-v1", cwd=tmp_path
    )
    assert "wrote curves.svg" in run(bin_ / "equipoise", "plot", "run", cwd=tmp_path)
