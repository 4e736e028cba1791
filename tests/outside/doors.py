"""Every door with its planted faults: the modules here that are named ``*_door.py``, each with
``DOORS`` and ``PLANTED``.

A planted fault puts back one that was reported once::

    def nest_splits_keys(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(tree, "nest", the_old_nest)

    PLANTED = [Planted("a key with a slash is split", "envs", nest_splits_keys, kinds=("KeyError", "rows"))]

``test_doors.py`` plants each alone, drives the door with its CI budget, and fails if nothing is
found.
"""  # noqa: E501

from __future__ import annotations

import importlib
from pathlib import Path

from tests.outside.harness import Door, Planted


def all_doors() -> tuple[list[Door], list[Planted]]:
    doors: list[Door] = []
    planted: list[Planted] = []
    for path in sorted(Path(__file__).parent.glob("*_door.py")):
        module = importlib.import_module(f"tests.outside.{path.stem}")
        doors += module.DOORS
        planted += module.PLANTED
    return doors, planted
