"""What answers at once imports nothing heavy, seen in ``sys.modules``; the times are
``benchmarks/imports.py``'s.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.studies.journal import JOURNAL
from equipoise.studies.settings import StudySettings, write_study

HEAVY = ("torch", "numpy", "gymnasium", "rich", "pydantic", "ray", "tensorboard", "wandb")
COMMANDS = (
    "train",
    "resume",
    "proxy",
    "evaluate",
    "plot",
    "envs",
    "algorithms",
    "recipes",
    "collect",
    "check",
    "reproduce",
    "trace",
    "chaos",
    "completion",
    "doctor",
    "whatif",
    "forecast",
    "report",
    "probe",
    "generate",
    "label",
    "clips",
    "export",
    "serve",
    "watch",
    "help",
    "version",
)


OF_RUNS = ("list", "show", "rm")
OF_FEEDBACK = ("show", "import", "export", "annotator", "revoke")
OF_REGISTRY = ("add", "list", "show", "alias", "rollback", "verify", "gc")


def imported(code: str) -> set[str]:
    """The heavy packages that a fresh interpreter has after ``code``."""
    tail = f"\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{code}{tail}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def command(*words: str) -> str:
    return f"""
from equipoise import cli
sys.argv = {["equipoise", *words]!r}
try:
    cli.main()
except SystemExit as end:
    assert not end.code, end.code
"""


def test_import_equipoise_imports_nothing() -> None:
    assert imported("import equipoise") == set()


GROUPS = [
    ["registry"],
    *(["registry", name] for name in OF_REGISTRY),
    ["feedback"],
    *(["feedback", name] for name in OF_FEEDBACK),
    ["runs"],
    *(["runs", name] for name in OF_RUNS),
]


@pytest.mark.few(12)
@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], *([*w, "--help"] for w in [*zip(COMMANDS), *GROUPS])],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    assert imported(command(*words)) == set()


def test_every_command_is_tried() -> None:
    from equipoise.cli import app

    assert {c.name or c.callback.__name__ for c in app.registered_commands if c.callback} == set(
        COMMANDS
    )


def test_a_mistyped_option_imports_no_torch() -> None:
    code = (
        "from equipoise import cli\nsys.argv = ['equipoise', 'train', 'CartPole-v1', '--actor', "
        "'2']\n"
    )
    assert "torch" not in imported(
        code + "try:\n    cli.main()\nexcept SystemExit as end:\n    assert end.code == 2"
    )


def test_a_check_imports_no_torch() -> None:
    assert "torch" not in imported(command("check", "CartPole-v1", "--steps", "20"))


def test_the_best_of_a_study_is_read_without_torch(tmp_path: Path) -> None:
    write_study(tmp_path, StudySettings(space=("algorithm.gamma=0.9,0.99",)), None, "", {})
    (tmp_path / JOURNAL).touch()
    assert "torch" not in imported(command("tune", "best", str(tmp_path)))


@pytest.mark.thorough
def test_the_api_imports_no_extra() -> None:
    assert imported("import equipoise.api") <= {"torch", "numpy", "gymnasium"}
