"""Names of ours that a test or a page imports within a text (a script that a test writes, a
program that a page shows) exist: the type checker does not look there.
"""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
IMPORT = re.compile(
    r"(?:^|; ?|\\n)[ \t>\"'+]*from (equipoise[\w.]*) import (\([^)]*\)|[\w, ]+)", re.MULTILINE
)

# these write imports that do not exist, to see that they are found
OWN_SCRIPTS = ("test_names_in_scripts.py", "test_shape.py")


@cache
def names_of(module: str) -> frozenset[str]:
    """What ``module`` binds at its top, read without running it."""
    folder = SOURCE / module.replace(".", "/")
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    if not file.exists():
        return frozenset()
    found = {path.stem for path in folder.glob("*")} if folder.is_dir() else set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # names of __all__ and of lazy imports
    return frozenset(found)


def absent(text: str) -> list[str]:
    """The imports of ours in ``text`` that would fail, as ``module.name``."""
    return [
        f"{module}.{name}"
        for module, names in IMPORT.findall(text)
        for name in re.findall(r"\w+", re.sub(r" as \w+|#.*", "", names))
        if name not in names_of(module)
    ]


@pytest.mark.thorough
def test_what_a_script_or_a_page_imports_exists() -> None:
    files = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.sh", "*.ipynb"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout.split()
    paths = [ROOT / name for name in files if (ROOT / name).is_file()]
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in paths
        if path.name not in OWN_SCRIPTS and (found := absent(path.read_text()))
    }
    assert not wrong, wrong


def test_a_name_that_is_gone_is_seen() -> None:
    assert absent("    from equipoise.facts import Help, Gone as G\n") == ["equipoise.facts.Gone"]
    assert absent("from equipoise.nowhere import Any") == ["equipoise.nowhere.Any"]
    assert absent("from equipoise.facts import (\n  Help,  # why\n  Range,\n)") == []
