"""Write the map of the package and the README of every room, from docstrings and the floors:
``python tools/maps.py``.

A room is a folder of the package. The README of a room says what the room is for (the docstring of
the package), what it may import (the layers in ``pyproject.toml``), and names every file with the
first sentence of its docstring. ``--check`` writes nothing and ends with 1 where a page is not
current.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "equipoise"
NOTE = "<!-- written by tools/maps.py from the docstrings and the floors; edit those -->"


def floors() -> list[list[str]]:
    """The rooms and ground files of each floor that exist, lowest floor first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    named = [re.findall(r"\w+", layer) for layer in reversed(layers)]
    there = {
        path.stem
        for path in PACKAGE.iterdir()
        if (path / "__init__.py").exists() or path.suffix == ".py"
    }
    return [rooms for floor in named if (rooms := [name for name in floor if name in there])]


def docstring(path: Path) -> str:
    """The docstring of a file, or of the package in a folder; ValueError where there is none."""
    file = path / "__init__.py" if path.is_dir() else path
    said = ast.get_docstring(ast.parse(file.read_text()))
    if not said:
        raise ValueError(
            f"{file.relative_to(ROOT)}: expected a docstring, which the map of the package shows, "
            "got none"
        )
    return said


def first_sentence(said: str) -> str:
    """The first sentence of a docstring, as one cell of a table."""
    paragraph = " ".join(said.split("\n\n", 1)[0].split())
    sentence = re.split(r"(?<=[.!?])(?<!al\.)(?<!\.\.)\s(?=[A-Z`])", paragraph, maxsplit=1)[
        0
    ].rstrip(".:")
    return sentence.replace("``", "`").replace("|", "\\|")


def rows(room: Path, folder: Path) -> list[str]:
    """A row for each file and folder of a room; the files of an inner folder follow it."""
    found = []
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        name = str(path.relative_to(room))
        if path.suffix == ".py" and path.name != "__init__.py":
            found.append(f"| `{name}` | {first_sentence(docstring(path))} |")
        elif (path / "__init__.py").exists():
            found += [
                f"| **`{name}/`** | **{first_sentence(docstring(path))}** |",
                *rows(room, path),
            ]
    return found


def room_page(name: str, below: list[str]) -> str:
    """The README of one room; ``below``: all that lies on lower floors."""
    room = PACKAGE / name
    parts = docstring(room).split("\n\n")
    said = "\n\n".join(
        part if part.startswith("    ") else " ".join(part.split()) for part in parts
    )
    imports = ", ".join(f"`{one}`" for one in below) or "nothing of the package"
    lines = [
        NOTE,
        f"# {name}/",
        "",
        said.replace("``", "`"),
        "",
        f"It may import {imports}.",
        "",
        "| file | |",
        "|---|---|",
    ]
    return "\n".join(
        [*lines, *rows(room, room), "", "All rooms: [the map of the package](../README.md).", ""]
    )


def package_page() -> str:
    """The map of the package: a row for each room and ground file, by floor."""
    lines = [NOTE, "# The map of the package", ""]
    lines += [
        "Rooms on one floor never import each other; a room imports only lower floors "
        "(import-linter checks it).",
        "",
    ]
    lines += [
        "Why: [architecture](../../docs/inside/architecture.md).",
        "",
        "| floor | room | |",
        "|---|---|---|",
    ]
    for number, floor in enumerate(floors()):
        for name in floor:
            folder = (PACKAGE / name).is_dir()
            shown = f"[`{name}/`]({name}/README.md)" if folder else f"`{name}.py`"
            said = first_sentence(docstring(PACKAGE / (name if folder else f"{name}.py")))
            lines.append(f"| {number} | {shown} | {said} |")
    return "\n".join([*lines, ""])


def pages() -> dict[Path, str]:
    """Every page as it should be."""
    made, below = {PACKAGE / "README.md": package_page()}, list[str]()
    for floor in floors():
        made |= {
            PACKAGE / name / "README.md": room_page(name, below)
            for name in floor
            if (PACKAGE / name).is_dir()
        }
        below = [*floor, *below]
    return made


def main() -> int:
    stale = [
        path for path, text in pages().items() if not path.exists() or path.read_text() != text
    ]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not current: run python tools/maps.py")
        return len(stale) > 0
    for path in stale:
        path.write_text(pages()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
