"""Write docs/guides/messages.md: every message of an error by its topic: ``python
tools/messages.py [--check]``.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from equipoise.console.topics import GENERAL, PACKAGE, topic_of_module, topics

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guides" / "messages.md"
LONGEST = 300  # letters of a message
SEVERAL = "several"  # no topic: messages of modules that raise for all of them


def text_of(node: ast.expr) -> str:
    """A message with {names} in place of its values."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(map(text_of, node.values))
        case ast.FormattedValue(value=ast.Name(id=name)):
            return f"{{{name}}}"
        case ast.FormattedValue(value=ast.Attribute(attr=name)):
            return f"{{{name}}}"
        case ast.FormattedValue():
            return "{...}"
        case ast.BinOp(op=ast.Add()):
            return text_of(node.left) + text_of(node.right)
    return "{...}"


def raised(file: Path) -> Iterator[str]:
    """The message of each ``raise`` in a file that has words."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found = " ".join(map(text_of, node.exc.args))
            said = re.sub(r"\s+", " ", found).strip()
            if re.search(r"[A-Za-z]{3}", re.sub(r"\{[^}]*\}", "", said)):
                yield said


def by_topic() -> tuple[dict[str, set[str]], list[str]]:
    """(the messages of each topic; modules that raise and belong to no topic)."""
    found: dict[str, set[str]] = {name: set() for name in (*topics(), SEVERAL)}
    without = []
    for file in sorted(PACKAGE.rglob("*.py")):
        module = file.relative_to(PACKAGE).with_suffix("").as_posix()
        messages = set(raised(file))
        if not messages:
            continue
        if module in GENERAL:
            found[SEVERAL] |= messages
            continue
        topic = topic_of_module(module)
        if topic is None:
            without.append(module)
        else:
            found[topic.name] |= messages
    return found, without


def page() -> str:
    lines = [
        "# What a message means",
        "",
        "An error of the command line ends with a topic, such as `[equipoise help env]`. The",
        "command prints the paragraph of that topic from this page, which also lists every message",
        "by its topic; `{value}` stands for a value. Search it for the words that you saw.",
        "",
        "    $ equipoise evaluate runs/nope",
        "    equipoise evaluate: runs/nope: expected a run directory with a run.json, got no "
        "directory [equipoise help runs]",
        "",
        "<!-- written by tools/messages.py from src/equipoise/console/topics.toml and the code -->",
        "",
    ]
    found, _ = by_topic()
    for topic in topics().values():
        target = os.path.relpath(ROOT / "docs" / topic.page, PAGE.parent)
        lines += [f"## {topic.name}", "", f"*{topic.title}.* {topic.means} {topic.do}"]
        lines += [f"More: [{topic.page}]({target}).", ""]
        lines += listed(found[topic.name])
    lines += ["## Messages of several topics", ""]
    lines += ["Files, addresses and names raise these for the topic that asked.", ""]
    return "\n".join([*lines, *listed(found[SEVERAL])])


def listed(messages: set[str]) -> list[str]:
    """The lines of a list of messages."""
    short = [one if len(one) <= LONGEST else f"{one[:LONGEST]}..." for one in sorted(messages)]
    lines = [f"- `{one.replace('`', chr(39))}`" for one in short]
    return [*lines, ""] if lines else []


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
