"""Plain words: no sentence of a docstring leaves its subject out, and the patterns of
``tools/words.py`` are rare in each corpus.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import words

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


# Sentences that may have a pattern beyond ``words.LIMIT`` of their corpus. A number may only fall:
# ``python tools/words.py`` counts, ``--list`` prints the sentences.
MOST: dict[str, dict[str, int]] = {
    "help": {
        "where": 12,
        "what": 6,
        "those": 5,
        "none": 5,
        "so many": 9,
        "too": 7,
        "anew": 5,
        "say": 7,
    }
}


@pytest.fixture(scope="module")
def found() -> list[words.Sentence]:
    return list(words.read())


@pytest.mark.thorough
@pytest.mark.parametrize("corpus", words.CORPORA)
def test_hard_sentences_are_rare(found: list[words.Sentence], corpus: str) -> None:
    found = [one for one in found if one.corpus == corpus]
    count = words.counts(found)[corpus]
    assert count["all"] > 100
    for name in words.PATTERNS:
        most = max(int(words.LIMIT * count["all"]), MOST.get(corpus, {}).get(name, 0))
        if count[name] <= most:
            continue
        worst = sorted((one for one in found if name in one.hits), key=lambda one: -len(one.hits))
        pytest.fail(
            f"{count[name]} sentences of {corpus} have the pattern {name!r}, at most {most} may; "
            f"`python tools/words.py --list --corpus {corpus} --pattern {name}` prints all:\n"
            + "\n".join(f"{one.path}:{one.line}: {one.text}" for one in worst[:20])
        )


@pytest.mark.parametrize(
    ("pattern", "hard", "plain"),
    [
        ("relative", "A row that is read by one that has it.", "A row that is kept."),
        ("where", "ValueError where it is missing.", "The file where it is written."),
        ("where", "Zero where the flag is set.", "It goes on where the rows lie."),
        ("where", "Where there is none, it ends.", "The place where it stands."),
        ("what", "Read on; what is left is lost.", "Print what you need."),
        ("what", "What the env gave.", "What is an episode?"),
        ("who", "An actor who waits.", "Users who train."),
        ("who", "It is for whoever asks.", "It is for you."),
        ("those", "The rows and those of others.", "It keeps those rows."),
        ("those", "Where one that waits ends.", "One env waits."),
        ("none", "Bytes, if none is left.", "None: no limit."),
        ("none", "expected none, got it", "expected a list, got none; none if there is none"),
        ("so many", "It takes so many rows.", "There are so many rows that it ends."),
        ("so many", "Ten rows at most.", "At most ten rows."),
        ("too", "It ends, too.", "It is too long."),
        ("too", "It ends as well.", "Rows as well as envs."),
        ("anew", "Begin anew.", "Begin again, besides."),
        ("say", "A worker says it is done.", "You say it."),
    ],
)
def test_a_hard_sentence_is_found(pattern: str, hard: str, plain: str) -> None:
    assert words.PATTERNS[pattern].search(hard)
    assert not words.PATTERNS[pattern].search(plain)


def test_texts_are_sorted_into_corpora(tmp_path: Path) -> None:
    source = tmp_path / "src"
    (tmp_path / "docs").mkdir()
    source.mkdir()
    (tmp_path / "README.md").write_text(
        "# A heading is none\n\n```sh\necho who is it\n```\nNobody knows `where it is`.\n\n"
        "| who is it | a b c |\n"
    )
    (source / "a.py").write_text(
        '''"""First thing here. Second thing here."""\n'''
        "x = 1  # a comment of x\n# one comment\n# of two lines\n"
        'Help("Number of rows.", "and more text here")\n'
        'raise ValueError(f"rows: expected {x}, got none")\n'
    )
    texts = [(one.corpus, one.line, one.text) for one in words.read(tmp_path)]
    assert texts == [
        ("pages", 6, "Nobody knows CODE."),
        ("pages", 8, "who is it"),
        ("pages", 8, "a b c"),
        ("docstrings", 1, "First thing here."),
        ("docstrings", 1, "Second thing here."),
        ("help", 5, "Number of rows."),
        ("help", 5, "and more text here"),
        ("messages", 6, "rows: expected CODE, got none"),
        ("comments", 2, "a comment of x"),
        ("comments", 3, "one comment of two lines"),
    ]
