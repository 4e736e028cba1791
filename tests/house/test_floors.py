"""The floors: who may import whom, at import time and as written."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "equipoise"
EXTRAS = (
    "ale_py",
    "av",
    "envpool",
    "jax",
    "mujoco",
    "optuna",
    "pygame",
    "pyarrow",
    "ray",
    "reasoning_gym",
    "sklearn",
    "tensorboard",
    "tokenizers",
    "transformers",
    "wandb",
    "mlflow",
    "trackio",
    "opentelemetry",
)


NEEDS_EXTRA = re.compile(rf"^(?:import|from) (?:{'|'.join(EXTRAS)})\b", re.MULTILINE)


def modules(*rooms: str, extras: bool = True) -> list[str]:
    """Dotted names of all modules, or of those in ``rooms``; ``extras=False``: without the one file
    that needs an extra.
    """
    files = [
        file
        for file in sorted(PACKAGE.rglob("*.py"))
        if extras or not NEEDS_EXTRA.search(file.read_text())
    ]
    parts = [file.relative_to(PACKAGE.parent).with_suffix("").parts for file in files]
    return [
        ".".join(part).removesuffix(".__init__") for part in parts if not rooms or part[1] in rooms
    ]


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_room_of_the_picture_is_in_the_contract() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    floors = [floor.split("|") for floor in config["contracts"][0]["layers"]]
    named = {room.strip(" ()") for floor in floors for room in floor}
    assert {name.split(".")[1] for name in modules() if "." in name} <= named


def test_the_contract_would_see_a_wrong_import(tmp_path: Path) -> None:
    """A floor that nobody could break would be no floor: plant one import upwards and one between
    neighbours.
    """
    package = tmp_path / "src" / "equipoise"
    for name in modules():
        file = package / Path(*name.split(".")[1:]) / "__init__.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (package / "returns/__init__.py").write_text("import equipoise.runtime\n")
    (package / "actors/__init__.py").write_text("import equipoise.learners\n")
    (package / "envs/__init__.py").write_text("import torch\n")
    # from here on: those that the contracts excuse
    (package / "__init__.py").write_text("import equipoise.algorithms, equipoise.api\n")
    for excused in ("tree/__init__.py", "types/algorithm.py", "types/protocols.py"):
        (package / excused).write_text("import torch\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [sys.executable, lint, "--no-cache", "--no-logo"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    for wrong in ("returns -> equipoise.runtime", "actors -> equipoise.learners", "envs -> torch"):
        assert wrong in done.stdout, done.stdout


def test_an_env_worker_never_loads_torch() -> None:
    names = [
        *modules("__init__", "types", "tree", "envs", extras=False),
        "equipoise.runtime.process.worker",
        "equipoise.workers.env",
    ]
    imports = "; ".join(f"import {name}" for name in names)
    assert run_python(f"import sys; {imports}; print('torch' in sys.modules)") == "False\n"


def test_the_package_itself_loads_nothing_heavy() -> None:
    loaded = run_python("import equipoise, sys; print(*sys.modules)").split()
    assert not {"torch", "numpy", "gymnasium", "rich", "typer"} & set(loaded)


@pytest.mark.thorough
def test_no_module_needs_an_extra() -> None:
    """But for the one file that is about it, which others import in a function: the core works
    without any of them.
    """
    block = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r}))"
    run_python(
        f"{block}; "
        + "; ".join(
            f"import {name}" for name in modules(extras=False) if not name.endswith("__main__")
        )
    )
