"""``equipoise algorithms``: the algorithms, a line each."""

from __future__ import annotations

import ast
from pathlib import Path

from equipoise.cli.app import app
from equipoise.console.help import Sections
from equipoise.console.place import say


@app.command(cls=Sections, epilog="The settings of one: equipoise train --help --algorithm NAME")
def algorithms() -> None:
    """List the algorithms, a line each."""
    files = sorted(Path(__file__).parents[1].glob("algorithms/[!_]*.py"))
    width = max(len(file.stem) for file in files)
    for file in files:  # as written, since an import of one costs that of torch
        said = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition(
            "\n\n"
        )[0]
        say(f"{file.stem:<{width}}  {' '.join(said.split())}", indent=" " * (width + 2))
