"""The set-up on machines that lack things. A small project stands in for ours, and nothing here
needs the network.

``bare`` is a real Python without ensurepip and without any installed package: this one, seen
through links.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import bootstrap
import pytest

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9/simple"  # the discard port: refused at once

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "small"
version = "1.0"
"""
BACKEND = """
import zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "small-1.0-py3-none-any.whl"
    files = {
        "small.py": "",
        "small-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: small\\nVersion: 1.0\\n",
        "small-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: none\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr("small-1.0.dist-info/RECORD", "".join(f"{path},,\\n" for path in [*files, "small-1.0.dist-info/RECORD"]))
    return name
"""  # noqa: E501


def make_wheel(folder: Path, name: str, version: str) -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = '{version}'\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: none\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(
            f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )


def pip_wheel() -> Path:
    """One that lies on this machine: ensurepip's own, or Debian's."""
    import ensurepip

    for folder in (Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels")):
        for wheel in folder.glob("pip-*.whl"):
            return wheel
    pytest.skip("no pip wheel on this machine")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    prefix = tmp_path_factory.mktemp("python")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = prefix / "lib" / version
    library.mkdir(parents=True)
    for entry in Path(os.__file__).parent.iterdir():
        if entry.name not in ("ensurepip", "site-packages", "dist-packages"):
            (library / entry.name).symlink_to(entry)
    (prefix / "bin").mkdir()
    python = prefix / "bin" / version
    shutil.copy2(base, python)
    code = (
        "import sys, importlib.util as u; print(sys.prefix, u.find_spec('ensurepip'), "
        "u.find_spec('pip'))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.stdout.split() != [str(prefix), "None", "None"]:
        pytest.skip(f"this Python cannot be copied: {done.stdout}{done.stderr}")
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "small"
    (root / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "bootstrap.py", root / "tools")
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "backend.py").write_text(BACKEND)
    (root / "requirements.lock").write_text(
        f"torch==9.9.9\nleaf==1.0\npip=={pip_wheel().name.split('-')[1]}\n"
    )
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    shutil.copy(pip_wheel(), wheels)
    make_wheel(wheels, "torch", "9.9.9+cpu")
    make_wheel(wheels, "leaf", "1.0")
    return root


def set_up(python: Path | str, project: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """With an environment that has nothing but what is said here: no PATH, no index, no
    configuration.
    """
    wheels = str(project.parent / "wheels")
    basics = {
        "PATH": "",
        "HOME": str(project),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": NOWHERE,
        "PIP_FIND_LINKS": wheels,
    }
    command = [str(python), str(project / "tools" / "bootstrap.py")]
    return subprocess.run(
        command, env=basics | env, capture_output=True, text=True, check=False, timeout=100
    )


def in_venv(project: Path, code: str) -> str:
    done = subprocess.run(
        [project / ".venv/bin/python", "-c", code], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() + done.stderr


def files_of(place: Path) -> dict[Path, int]:
    """When each file under ``place`` was written last."""
    return {path: path.lstat().st_mtime_ns for path in place.rglob("*")}


@pytest.mark.thorough
def test_without_ensurepip_after_a_set_up_that_was_killed(bare: Path, project: Path) -> None:
    (project / ".venv").mkdir()
    (project / ".venv/equipoise-setup").write_text("building")  # what a SIGKILL leaves
    (project / ".venv/debris").touch()
    done = set_up(bare, project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        in_venv(project, "import small, torch, leaf; print(torch.version, leaf.version)")
        == "9.9.9+cpu 1.0"
    )
    assert "No module" in in_venv(project, "import ensurepip")
    assert (project / ".venv/bin/pip").exists()
    assert not (project / ".venv/debris").exists()

    before = files_of(project / ".venv")
    again = set_up(bare, project)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert files_of(project / ".venv") == before, "a set-up that is up to date touches nothing"


@pytest.mark.slow
def test_a_failed_change_leaves_what_was_there(project: Path) -> None:
    python = sys._base_executable  # type: ignore[attr-defined]
    done = set_up(python, project)
    assert done.returncode == 0, done.stdout + done.stderr

    lock = project / "requirements.lock"
    lock.write_text(lock.read_text().replace("leaf==1.0", "leaf==2.0"))
    failed = set_up(python, project)
    assert failed.returncode == 1
    assert "leaf==2.0" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert in_venv(project, "import leaf; print(leaf.version)") == "1.0"

    make_wheel(project.parent / "wheels", "leaf", "2.0")
    mended = set_up(python, project)
    assert mended.returncode == 0, mended.stderr
    assert "making .venv" not in mended.stdout
    assert in_venv(project, "import leaf; print(leaf.version)") == "2.0"


def test_no_pip_and_no_network_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setattr(bootstrap, "nearby_pips", list)
    monkeypatch.setattr(bootstrap, "pip_by_pip", lambda folder: None)
    with pytest.raises(bootstrap.SetupError, match=f"cannot reach {NOWHERE}/pip/: .*PIP_INDEX_URL"):
        bootstrap.install_pip(Path(sys.executable), tmp_path)


@pytest.mark.parametrize("version", [(3, 10, 9), (3, 14, 0)])
def test_the_wrong_python_is_said_in_a_sentence(version: tuple[int, ...]) -> None:
    with pytest.raises(
        bootstrap.SetupError, match=r"runs on Python 3\.11 to 3\.13.*make setup PYTHON="
    ):
        bootstrap.check_python(version)


@pytest.mark.parametrize("sha256", ["", "#sha256=00"])
def test_pip_from_the_index(sha256: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = bootstrap.pinned("pip").replace("==", "-") + "-py3-none-any.whl"
    link = f'<a href="../../files/{name}{sha256}" data-requires-python="&gt;=3.9">{name}</a>'
    pages = {
        "https://example.org/simple/pip/": link.encode(),
        f"https://example.org/files/{name}": b"a wheel",
    }
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/simple/")
    monkeypatch.setattr(bootstrap, "fetch", pages.__getitem__)
    if sha256:
        with pytest.raises(bootstrap.SetupError, match="arrived damaged"):
            bootstrap.download_pip(tmp_path)
    else:
        assert bootstrap.download_pip(tmp_path).read_bytes() == b"a wheel"
