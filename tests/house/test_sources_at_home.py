"""What one source does stands in its file in ``sources/``: no other room asks a source or a spec
what it is.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "equipoise"
KINDS = {
    "SourceSettings",
    "EnvSource",
    "RecordedSource",
    "TaskSource",
    "EnvSpec",
    "TextSpec",
    "Source",
}
CHECKED_IMPORTS: set[str] = {"programs/program.py"}  # ``issubclass`` of a class that a file names


def wrong(source: str) -> list[str]:
    """Where the class of a source or a spec decides."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") in ("isinstance", "issubclass")
            and len(node.args) == 2
        ):
            names = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
            names |= {one.attr for one in ast.walk(node.args[1]) if isinstance(one, ast.Attribute)}
            if names & KINDS:
                found.append(ast.unparse(node))
        elif isinstance(node, ast.MatchClass) and ast.unparse(node.cls).rpartition(".")[2] in KINDS:
            found.append(ast.unparse(node))
    return found


@pytest.mark.thorough
def test_no_room_but_sources_asks_a_source_or_a_spec_what_it_is() -> None:
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        name = str(file.relative_to(PACKAGE))
        if not name.startswith("sources/") and (where := wrong(file.read_text())):
            found[name] = where
    assert set(found) == CHECKED_IMPORTS and len(found["programs/program.py"]) == 1, found


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(x, TaskSource)",
        "isinstance(x, (int, types.TextSpec))",
        "match x:\n case RecordedSource(): ...",
    ],
)
def test_a_question_is_found(line: str) -> None:
    other = (
        line.replace("TaskSource", "Packed")
        .replace("TextSpec", "Task")
        .replace("RecordedSource", "Packed")
    )
    assert wrong(line) and not wrong(other)
