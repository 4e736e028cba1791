"""The shape of the package: no circles of imports, and numbers that may fall but not rise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.house.test_floors import PACKAGE

WIDE = 8  # parameters of a function that few functions have more of
MOST_WIDE = 8  # functions with more
MOST_ANY = 832  # words "Any"; the goal was 1,350


def names(package: Path) -> dict[str, Path]:
    """The files of a package by dotted name, without those that only hand names on."""
    files = [file for file in sorted(package.rglob("*.py")) if file.name != "__init__.py"]
    return {
        ".".join(file.relative_to(package.parent).with_suffix("").parts): file
        for file in files
        if file.name != "__init__.py"
    }


def imported(file: Path) -> Iterator[str]:
    """Dotted names that a file imports anywhere, also for annotations alone."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def check_circles(package: Path) -> None:
    """Raise CycleError where files import each other in a circle."""
    files = names(package)
    TopologicalSorter(
        {name: {one for one in imported(file) if one in files} for name, file in files.items()}
    ).prepare()


def test_no_files_import_each_other_in_a_circle() -> None:
    check_circles(PACKAGE)


def test_a_circle_would_be_seen(tmp_path: Path) -> None:
    package = tmp_path / "equipoise"
    package.mkdir()
    (package / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from equipoise.b import B\n"
    )
    (package / "b.py").write_text("def f() -> None:\n    import equipoise.a\n")
    with pytest.raises(CycleError):
        check_circles(package)


def test_wide_functions_and_any_do_not_become_more() -> None:
    wide, words = [], 0
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        words += len(re.findall(r"\bAny\b", text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [
                    one.arg
                    for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                ]
                if len(set(given) - {"self", "cls"}) > WIDE:
                    wide.append(f"{file.relative_to(PACKAGE)}:{node.name}")
    assert len(wide) <= MOST_WIDE, wide
    assert words <= MOST_ANY, (
        f"{words} words 'Any', at most {MOST_ANY}: give the type, or lower another file's"
    )
