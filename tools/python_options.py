"""Write the keyword parameters of the Python functions from the settings of a run, for editors and
type checkers: ``python tools/python_options.py``.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from equipoise.api.settings_of_python import described, fields_of_python
from equipoise.facts import Fact

API = Path(__file__).parents[1] / "src" / "equipoise" / "api"
RUN, RESUME = API / "fields.py", API / "options.py"
BEGINS, ENDS = "    # <fields of a run>\n", "    # </fields of a run>\n"
RESUME_BEGINS, RESUME_ENDS = "    # <fields of a resume>\n", "    # </fields of a resume>\n"
# the types of fields that take more from Python than from the command line
WIDER = {"reward": "Reward", "task": "str | Callable[..., object]"}


def type_text(kind: object) -> str:
    """A type as source text."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args)).replace(chr(39), chr(34))}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_text, args))
    if origin is tuple and args[-1] is Ellipsis:
        return f"Sequence[{type_text(args[0])}]"
    if kind is type(None):
        return "None"
    assert isinstance(kind, type), f"expected a type that this tool writes, got {kind}"
    return kind.__name__


def lines(fields: Mapping[str, Fact]) -> Iterator[str]:
    """The lines of a TypedDict: each field with its type and its help."""
    for name, fact in fields.items():
        kinds = [WIDER.get(name) or type_text(fact.kind)]
        if fact.auto:
            kinds.append('Literal["auto"]')
        kind = " | ".join(kinds)
        yield f"    {name}: {kind if kind.endswith('None') else f'{kind} | None'}\n"
        text = f'"""{described(fact)}"""'
        yield from (
            f"    {line}\n"
            for line in textwrap.wrap(text, 94, break_long_words=False, break_on_hyphens=False)
        )


def replaced(text: str, begins: str, ends: str, fields: Mapping[str, Fact]) -> str:
    """The text with the lines between two marks written again."""
    before, _, rest = text.partition(begins)
    _, _, after = rest.partition(ends)
    return f"{before}{begins}{''.join(lines(fields))}{ends}{after}"


def written() -> dict[Path, str]:
    """The files as they should be."""
    fields = fields_of_python()
    free = {name: fact for name, fact in fields.items() if fact.rule == "free"}
    marked = {RUN: (BEGINS, ENDS, fields), RESUME: (RESUME_BEGINS, RESUME_ENDS, free)}
    return {
        file: formatted(replaced(file.read_text(encoding="utf-8"), *how), file)
        for file, how in marked.items()
    }


def formatted(text: str, file: Path) -> str:
    """The text of a file as ruff writes it."""
    return subprocess.run(
        [sys.executable, "-m", "ruff", "format", "-q", "--stdin-filename", str(file), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def main() -> int:
    for file, text in written().items():
        file.write_text(text, encoding="utf-8")
        print(f"wrote {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
