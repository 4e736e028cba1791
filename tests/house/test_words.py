"""Plain words: no sentence of a docstring leaves its subject out, and the patterns of
``tools/words.py`` are rare in each corpus.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import words
from build_docs import Command
from typer.core import TyperGroup

from equipoise.cli import app
from equipoise.console.groups import GROUPS
from equipoise.console.short_help import SHORT, SHORT_OF_TUNE

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
MOST: dict[str, dict[str, int]] = {}


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


# --- help texts: "Noun phrase (default: X)"

LONGEST = 60  # characters before the default
HELP = re.compile(r"\(default: [^)]*\)$")
VALUE = re.compile(r"\b(?:0|none|[Ee]mpty): ")  # "0: not" in place of "0 turns it off"


def faults(text: str, longest: int = LONGEST) -> list[str]:
    """What is wrong with the help of an option, without what a page adds to it."""
    said = HELP.sub("", text).strip()
    found = {
        f"{len(said)} characters, at most {longest}": len(said) > longest,
        "no capital at the start": not said[:1].isupper(),
        "no subject": said.split(maxsplit=1)[0] in RIDDLES if said else True,
        "a sentence, no phrase": said.endswith(".") or ". " in said,
        "a default beside that of the option": "default" in said.lower(),
        "a value before its meaning": bool(VALUE.search(said)),
    }
    return [one for one, wrong in found.items() if wrong]


def helps_of_fields(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, help, sentences of a page) of each field: the arguments of ``Help``."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "Help"
        ):
            said, more, *_ = *(words.as_text(one) or "" for one in node.args), ""
            yield node.lineno, said, more


def helps_of_commands(found: Command, name: str) -> Iterator[tuple[str, str, str]]:
    """(command and option, help, line of the printed help) of each option of each command."""
    if isinstance(found, TyperGroup):
        for word, command in found.commands.items():
            assert isinstance(command, Command)
            yield from helps_of_commands(command, f"{name} {word}")
    context = found.make_context(name, [], resilient_parsing=True)
    for param in found.params:
        if (record := param.get_help_record(context)) is not None:
            yield f"{name} {param.name}", getattr(param, "help", None) or "", record[1]


@pytest.mark.parametrize(
    "planted",
    [
        "Of the episodes",
        "Those that wait",
        "Whose rows are kept",
        "seed of the episodes",
        "Batch size. With a replay it is items",
        "Batch size.",
        "Seconds to wait. 0: not",
        "Rows to keep; 0: all of them",
        "Directory of the rows (default: memory) and more",
        "Seconds in which a worker that was killed from outside has to begin",
        "",
    ],
)
def test_a_bad_help_is_found(planted: str) -> None:
    assert faults(planted)


def test_a_good_help_is_fine() -> None:
    assert not faults("Learner threads (default: 1)")
    assert not faults("Gradient norm limit per group; 0 turns clipping off")
    assert not faults("New directory (default: runs/ENV-ALGORITHM-SEED-TIME, which is long enough)")
    assert list(helps_of_fields('x = Help("Of it", "More")\ny = Help(f"a {b}")')) == [
        (1, "Of it", "More"),
        (2, "a CODE", ""),
    ]


def test_helps_of_settings_are_short_phrases() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text!r}: {', '.join(wrong)}"
        for path in FILES
        for line, text, more in helps_of_fields(path.read_text())
        if (wrong := faults(text) + SENTENCE.findall(more))
    ]
    assert not found, "\n".join(found)


def test_helps_of_options_are_short_phrases() -> None:
    root = typer.main.get_group(app)
    helps = [*helps_of_commands(root, "equipoise")]
    helps += [
        (name, text, "")
        for short in (SHORT, SHORT_OF_TUNE)
        for some in short.values()
        for name, text in some.items()
        if text
    ]
    assert len(helps) > 200
    found = [
        f"{name}: {text!r}: {', '.join(wrong)}"
        for name, text, line in helps
        if (wrong := faults(text) + ["two defaults"] * (line.count("default: ") > 1))
    ]
    assert not found, "\n".join(found)


def test_each_command_begins_with_a_verb_and_has_one_line() -> None:
    lines = {name: text for some in GROUPS.values() for name, text in some.items()}
    assert all(text[0].isupper() and len(text) <= LONGEST for text in lines.values())
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    for name, command in root.commands.items():
        first = (command.help or "").split("\n\n", maxsplit=1)[0]
        assert first.endswith(".") and len(" ".join(first.split())) <= 100, f"{name}: {first}"
        assert not riddles(f'"""{first}"""'), name
