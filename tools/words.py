"""Count the patterns that make sentences hard to read: ``python tools/words.py``.

The patterns are in ``PATTERNS``. A corpus is the pages, help texts, messages, docstrings or
comments. Without options the tool prints a table of counts; with ``--list`` it prints each hit by
file, for one corpus (``--corpus docstrings``), one pattern (``--pattern where``) or the paths that
you name. ``tests/house/test_words.py`` keeps each pattern within ``LIMIT`` of a corpus.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 0.01  # share of a corpus's sentences that may have one pattern
# Verbs of a clause that asks for a place: "where the rows lie".
LIES = (
    r"lies?|lay|stands?|stood|stays?|begins?|ends?|starts?|goes|happens|falls|wrote|writes?|written|"
    r"puts?|prints?|printed|kept|found|fetched|counted|saved|left|belongs|listens?|looked|looks|"
    r"comes from|finds|runs|stops"
)
START = r"(?:^|[;:,(–] ?|\b(?:and|but|or|if|when|where|while|because|as|than|that) )"
IS = r"(?:is|are|was|were|has|have|had|does|do|can|may|must|will|would|needs?|takes?|gets?|gives?)"
PEOPLE = (
    r"(?:people|users?|readers?|someone|anyone|everyone|players?|persons?|authors?|developers?)"
)
# Nouns and verbs after which "where" asks for a place.
PLACE = (
    r"(?:places?|files?|director(?:y|ies)|folders?|machines?|hosts?|pages?|positions?|points?|"
    r"paths?|ends?|lines?|memory|buffers?|address(?:es)?|url|nodes?|rows?|slots?|columns?|"
    r"from|to|and|or|of|is|see|shows?|prints?|reports?|decides?|finds?|states?|names?|like|"
    r"stays?|stands?|lies?|begins?|starts?|continues?|left|elsewhere|anywhere|everywhere)"
)
PATTERNS: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern, flags)
    for name, pattern, flags in (
        (
            "relative",  # a chain of relative clauses
            r"\bthat (?:is|are|was|were|has|have|had)\b.*\b(?:that|which) "
            r"(?:is|are|was|were|has|have|had)\b",
            re.IGNORECASE | re.DOTALL,
        ),
        (
            "where",  # for a condition
            rf"(?:^|(?:^|[\s(])(?!{PLACE},? )\S+ )[(]?where\b(?! to\b| CODE (?:\[|is\b)|"
            rf" (?:[^\s.;:,)]+ ){{1,6}}?(?:{LIES})\b| (?:[^\s.;:,)]+ ){{1,4}}?(?:is|are|was)"
            rf"(?=[.;:,)]|$))",
            re.IGNORECASE,
        ),
        (
            "what",  # a clause for a noun
            r"(?:^|[;:–] |[,(] ?(?:and |or |but )?)(?:what|that which)\b(?! to\b)(?!.*\?$)",
            re.IGNORECASE | re.DOTALL,
        ),
        (
            "who",  # for a part of the program
            rf"(?:^|(?:^|[\s(])(?!{PEOPLE},? )\S+ )[(]?whom?\b|\b(?:whoever|nobody|no one)\b",
            re.IGNORECASE,
        ),
        (
            "those",  # a pronoun for a subject
            rf"\b(?:those|the ones?|that one) (?:of|that|which|who|whose|whom|in|with|without|it|"
            rf"they|from|at|on|by|for|to|{IS})\b|{START}(?:the )?others? {IS}\b|"
            rf"{START}the others[ ,]|"
            rf"(?:^|[;:,(] ?|\b(?:if|when|where|but|and|than|as|for|of|by|with|from|to|in|or|like) "
            rf")one (?:that|which|who|whose|{IS}|of (?:it|its|them|these|those))\b|"
            rf"(?:^|[;:] )(?:those|others|one)(?: \w+)? {IS}\b",
            re.IGNORECASE,
        ),
        (
            "none",
            rf"\bnone (?:of|{IS})\b|\bNone of\b|\b[Nn]either (?:of|is|has|does|can)\b|"
            rf"(?<!there )\b(?:{IS}|expected|gave|with|or) (?:none|neither)\b",
            0,
        ),
        (
            "so many",
            r"\bso (?:many|few)\b(?!.*\bthat\b)|\bat most(?: *[.;,:)]|$)|\bmany a\b",
            re.IGNORECASE | re.DOTALL,
        ),
        ("too", r", too(?: *[.;,:)]|$)|\bas well(?! as)(?: *[.;,:)]|$)", re.IGNORECASE),
        ("anew", r"\b(?:anew|beside|amid|amidst)\b", re.IGNORECASE),
        (
            "say",  # a program that says, tells or knows
            r"(?<!you )(?<!to )\b(?:says?|said|saying|tells?|told|telling|knows?|knew)\b",
            re.IGNORECASE,
        ),
    )
}
SQL = re.compile(r"^\W*(SELECT|CREATE|INSERT|UPDATE|DELETE)\b|\b(FROM|WHERE|NULL)\b")  # not prose
CORPORA = ("pages", "help", "messages", "docstrings", "comments")
FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
MARKUP = re.compile(r"<!--.*?-->|<[^>\n]+>|!\[[^\]]*\]\([^)]*\)", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"``[^`]*``|`[^`\n]*`")
SPLIT = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[)\"']?\s+(?=[A-Z`\"'(])|\n\s*\n")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, with the file and line of the text it stands in."""

    corpus: str
    path: Path
    line: int
    text: str

    @property
    def hits(self) -> list[str]:
        """The names of the patterns that the sentence has."""
        return [name for name, pattern in PATTERNS.items() if pattern.search(self.text)]


def sentences(text: str) -> list[str]:
    """Split a text into its sentences; a span of code becomes the word CODE."""
    text = re.sub(r"^\s*(?:[-*+]|\d+\.)\s+", "\n\n", CODE.sub("CODE", text), flags=re.MULTILINE)
    found = (" ".join(part.split()).strip("*_# ") for part in SPLIT.split(text))
    return [part for part in found if len(part.split()) > 2]


def prose(markdown: str) -> list[tuple[int, str]]:
    """Return the (line, paragraph) pairs of a page, without code, headings, markup and targets."""
    blank = lambda found: "\n" * found[0].count("\n")  # noqa: E731
    text = MARKUP.sub(blank, FENCE.sub(blank, markdown))
    text = LINK.sub(r"\1", text)
    found: list[tuple[int, str]] = []
    begun = 1
    lines: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        whole = line.lstrip().startswith("|")  # a row of a table
        if not line.strip() or line.startswith("#") or whole:
            if lines:
                found.append((begun, "\n".join(lines)))
            lines = []
            if whole:
                found += [(number, cell) for cell in line.strip().strip("|").split("|")]
            continue
        if not lines:
            begun = number
        lines.append(line)
    return found


class Texts(ast.NodeVisitor):
    """Sort the strings of a file of Python into docstrings, help texts and messages."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, str]] = []

    def _add(self, corpus: str, line: int, text: str) -> None:
        self.found.append((corpus, line, text))

    def _docstring(
        self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        text = ast.get_docstring(node)
        if text:
            self._add("docstrings", node.body[0].lineno, text)
        for child in node.body[1 if text else 0 :]:
            self.visit(child)
        if not isinstance(node, ast.Module):
            for other in node.decorator_list:
                self.visit(other)

    visit_Module = visit_ClassDef = _docstring

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._docstring(node)
        self.visit(node.args)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        for argument in node.args:
            self._value("help" if name == "Help" else "messages", argument)
        for keyword in node.keywords:
            self._value("help" if keyword.arg == "help" else "messages", keyword.value)
        self.visit(node.func)

    def _value(self, corpus: str, node: ast.expr) -> None:
        text = as_text(node)
        if text is None:
            self.visit(node)
        elif len(text.split()) > 2 and not SQL.search(text):
            self._add(corpus, node.lineno, text)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._value("messages", node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._value("messages", node)


def as_text(node: ast.expr) -> str | None:
    """Return the text of a string or f-string, with CODE for each value; None: no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(as_text(part) or "CODE" for part in node.values)
    return None


def comments(source: str) -> list[tuple[int, str]]:
    """Return the (line, text) pairs of the comments; lines that follow each other are one."""
    found: list[tuple[int, str]] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, text = token.start[0], token.string.lstrip("#: -")
        if re.match(r"noqa|type:|ruff:|!|pragma|fmt:", text):
            continue
        alone = not token.line[: token.start[1]].strip()
        if alone and line == last + 1 and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {text}")
        else:
            found.append((line, text))
        last = line if alone else -1
    return found


def read(root: Path = ROOT) -> Iterator[Sentence]:
    """Yield the sentences of all corpora."""
    pages = [root / "README.md", *sorted(root.glob("docs/**/*.md"))]
    for path in [*pages, *sorted(root.glob("src/**/*.md"))]:
        for line, text in prose(path.read_text()):
            yield from (Sentence("pages", path, line, one) for one in sentences(text))
    for path in sorted(root.glob("src/**/*.py")):
        source = path.read_text()
        texts = Texts()
        texts.visit(ast.parse(source))
        texts.found += [("comments", line, text) for line, text in comments(source)]
        for corpus, line, text in texts.found:
            yield from (Sentence(corpus, path, line, one) for one in sentences(text))


def counts(found: Sequence[Sentence]) -> dict[str, Counter[str]]:
    """Count the sentences of each corpus that have a pattern; "all" counts every sentence."""
    table = {corpus: Counter[str]() for corpus in CORPORA}
    for one in found:
        table[one.corpus].update(["all", *one.hits])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders (default: all)")
    parser.add_argument("--list", action="store_true", help="print each hit by file")
    parser.add_argument("--corpus", choices=CORPORA, action="append", help="these corpora only")
    parser.add_argument("--pattern", choices=list(PATTERNS), action="append", help="these only")
    options = parser.parse_args()
    corpora, patterns = options.corpus or CORPORA, options.pattern or list(PATTERNS)
    under = [path.resolve() for path in options.paths]
    found = [
        one
        for one in read()
        if one.corpus in corpora
        and (not under or any(one.path.is_relative_to(path) for path in under))
    ]
    if options.list:
        for one in sorted(found, key=lambda one: (one.path, one.line)):
            if hits := [name for name in one.hits if name in patterns]:
                print(f"{one.path.relative_to(ROOT)}:{one.line} [{', '.join(hits)}] {one.text}")
        return
    table = counts(found)
    print(f"{'sentences with':15}" + "".join(f"{corpus:>12}" for corpus in corpora))
    for name in ("all", *patterns):
        print(f"{name:15}" + "".join(f"{table[corpus][name]:12}" for corpus in corpora))


if __name__ == "__main__":
    main()
