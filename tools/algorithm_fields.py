"""Write the fields of the built-in algorithms, which the command line reads without torch:
``python tools/algorithm_fields.py [--check]``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tomli_w

from equipoise.facts import facts
from equipoise.programs.program import algorithm_class, algorithm_names

FILE = Path(__file__).parents[1] / "src/equipoise/programs/algorithm_fields.toml"
HEAD = "# written by tools/algorithm_fields.py; true: the field is a bool\n"


def text() -> str:
    """The algorithms with a replay, and the fields of each: is the field a bool?"""
    classes = {name: algorithm_class(name) for name in algorithm_names()}
    fields = {
        name: {field: fact.kind is bool for field, fact in facts(cls).items()}
        for name, cls in classes.items()
    }
    replay = [name for name, cls in classes.items() if cls.needs_replay]
    return HEAD + tomli_w.dumps({"replay": replay, "fields": fields})


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(FILE.read_text("utf-8") != text())
    FILE.write_text(text(), "utf-8")
