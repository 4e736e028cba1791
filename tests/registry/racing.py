"""Eight processes at one registry: ``python -m tests.registry.racing MOVES FOLDER`` prints what
came of it as JSON.

A process of its own, since it forks. "alias": each tries to make another version the champion in
place of the first one, in several rounds. "add": each adds the same artifact, and one of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from equipoise.registry import AliasMoved, Registry
from tests.registry.made import artifact

PROCESSES, ROUNDS = 8, 6


def at_once(act: Callable[[int], int]) -> list[int]:
    """The exit codes of ``act(0)``, ``act(1)``, ..., each in a child, all of which begin at the
    same moment.
    """
    gate, open_gate = os.pipe()
    children = []
    for number in range(PROCESSES):
        if (child := os.fork()) == 0:
            os.close(open_gate)
            os.read(gate, 1)  # returns when the parent closes its end
            code = 99
            try:
                code = act(number)
            finally:
                os._exit(code)
        children.append(child)
    os.close(gate)
    os.close(open_gate)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def alias(folder: Path) -> list[Any]:
    to = Registry(folder / "registry", create=True)
    versions = [to.add(artifact(folder / f"{n}", str(n)), "cart") for n in range(PROCESSES + 1)]
    found = []
    for turn in range(ROUNDS):
        start = to.alias("cart", "champion", versions[-1])

        def move(number: int, start: str | None = start, turn: int = turn) -> int:
            mine = Registry(folder / "registry")
            try:
                mine.alias(
                    "cart",
                    "champion",
                    versions[number],
                    expect=start,
                    who=f"{number}",
                    reason=f"round {turn}",
                )
            except AliasMoved:
                return 1
            return 0

        codes = at_once(move)
        champion = versions.index(to.resolve("cart")[0])
        audit = [
            (one["kind"], int(one["who"]))
            for one in to.audit("cart")
            if one["reason"] == f"round {turn}"
        ]
        found.append({"codes": codes, "champion": champion, "audit": audit})
    return found


def add(folder: Path) -> Any:
    Registry(folder / "registry", create=True)
    for name in ("same", *map(str, range(PROCESSES))):
        artifact(folder / name, name)

    def both(number: int) -> int:
        mine = Registry(folder / "registry")
        mine.add(folder / "same", "cart")
        mine.add(folder / str(number), "cart")
        return 0

    codes, to = at_once(both), Registry(folder / "registry")
    return {
        "codes": codes,
        "audit": [one["kind"] for one in to.audit("cart")],
        "versions": len(to.versions("cart")),
        "wrong": to.verify(),
    }


if __name__ == "__main__":
    print(json.dumps({"alias": alias, "add": add}[sys.argv[1]](Path(sys.argv[2]))))
