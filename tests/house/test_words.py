"""Plain words: no sentence of a docstring begins with a word that leaves its subject out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "equipoise"
FILES = sorted(SOURCE.rglob("*.py"))
# Words that leave the subject out, or point at a noun that the reader has not seen.
RIDDLES = ("Of", "Those", "Its", "Whose", "Who", "Whoever", "Whatever", "Theirs")
SENTENCE = re.compile(r"(?:^|[.:!?]\s+|\n\n)(" + "|".join(RIDDLES) + r")\b")


def docstrings(text: str) -> list[tuple[int, str]]:
    """(line, docstring) of a module, its classes and its functions."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node)
            if said:
                found.append((getattr(node, "lineno", 1), said))
    return found


def riddles(text: str) -> list[str]:
    """Each sentence of a docstring that begins with one of ``RIDDLES``, with its line."""
    return [
        f"line {line}: {match[0].strip()} ... in {said.splitlines()[0]!r}"
        for line, said in docstrings(text)
        for match in SENTENCE.finditer(said)
    ]


def test_a_riddle_is_found() -> None:
    text = '"""Fine. Of the learner."""\ndef f():\n    """Those of its own."""\n'
    text += 'def g():\n    """Apply. Once\n\n    Whose it is."""\n'
    assert len(riddles(text)) == 3
    assert not riddles('"""Batch size, of one learner. It is whole; those who wait, wait."""')


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_sentences_name_their_subject(path: Path) -> None:
    assert riddles(path.read_text()) == []
