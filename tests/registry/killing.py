"""Kill an operation on a registry at each of its file operations: ``python -m
tests.registry.killing SCENARIO FOLDER``.

A process of its own, since it forks: it prepares a registry, and for n = 1, 2, ... a child does the
operation on a copy of it and is gone when it comes to its n-th file operation. Prints a JSON line
for each n, with what the copy was then.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from equipoise.registry import AliasMoved, Registry, keeping
from tests.outside.disk import KILLED, Disk
from tests.registry.made import artifact


def prepared(registry: Path, made: Path) -> None:
    """A registry with the versions a to d, b champion after a."""
    to = Registry(registry, create=True)
    for letter in "abcd":
        to.add(made / letter, "cart")
    for letter in "ab":
        to.alias("cart", "champion", version(made, letter))


def version(made: Path, letter: str) -> str:
    from equipoise.registry import artifacts

    return artifacts.read_manifest(made / letter).version


def refused(to: Registry, made: Path) -> None:
    try:
        to.alias("cart", "champion", version(made, "c"), expect=version(made, "a"))
    except AliasMoved:
        return
    raise AssertionError("it was moved")


def damage(registry: Path, made: Path) -> None:
    prepared(registry, made)
    file = registry / "artifacts" / version(made, "c") / "weights.safetensors"
    file.write_bytes(b"X" + file.read_bytes()[1:])


SCENARIOS: dict[str, tuple[Callable[[Path, Path], object], Callable[[Path, Path], object]]] = {
    "first": (
        lambda registry, made: None,
        lambda registry, made: Registry(registry, create=True).add(made / "e", "cart"),
    ),
    "add": (prepared, lambda registry, made: Registry(registry).add(made / "e", "cart")),
    "other": (prepared, lambda registry, made: Registry(registry).add(made / "a", "pole")),
    "repair": (damage, lambda registry, made: Registry(registry).add(made / "c", "cart")),
    "alias": (
        prepared,
        lambda registry, made: Registry(registry).alias("cart", "champion", version(made, "c")),
    ),
    "rollback": (prepared, lambda registry, made: Registry(registry).rollback("cart")),
    "refused": (prepared, lambda registry, made: refused(Registry(registry), made)),
    "gc": (prepared, lambda registry, made: Registry(registry).gc(older_than_s=0)),
}


def seen(registry: Path) -> dict[str, Any]:
    """What a reader sees of a registry."""
    try:
        to = Registry(registry)
    except ValueError as error:
        return {"none": "expected a registry" in str(error)}
    for name in to.names():
        for alias in to.aliases(name):
            to.resolve(name, alias)  # what an alias names is whole
    return {
        "policies": {
            name: {
                "aliases": to.aliases(name),
                "versions": sorted(to.versions(name)),
                "audit": [one.get("problem", one["kind"]) for one in to.audit(name)],
            }
            for name in to.names()
        },
        "wrong": [sentence.replace(str(registry), "REGISTRY") for sentence in to.verify()],
    }


def main(scenario: str, folder: Path) -> None:
    prepare, act = SCENARIOS[scenario]
    made, base, done = folder / "made", folder / "base", folder / "done"
    # a killed process loses nothing that it wrote; this is for a machine that loses power
    os.fsync = lambda fd: None
    for letter in "abcde":
        artifact(made / letter, letter)
    prepare(base, made)
    keeping.LEFT_S = -1.0  # what is left of a killed process is nobody's at once
    if base.exists():
        shutil.copytree(base, done)
    act(done, made)
    print(json.dumps({"old": seen(base), "new": seen(done)}))
    nth, code = 0, KILLED
    while code == KILLED:
        nth += 1
        copy = folder / f"killed-{nth}"
        if base.exists():
            shutil.copytree(base, copy)
        if (child := os.fork()) == 0:
            with Disk(copy, "kill", nth):
                act(copy, made)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        killed = seen(copy)
        left: list[str] = []
        if not killed.get("none"):
            Registry(copy).gc(older_than_s=1e9)  # removes what the child left, and no version
            left = sorted(
                str(path.relative_to(copy)) for path in copy.rglob(".*") if path.name != ".lock"
            )
        if scenario != "rollback" or killed == seen(base):
            act(copy, made)
        again = seen(copy)
        print(
            json.dumps({"nth": nth, "code": code, "seen": killed, "left": left, "again": again}),
            flush=True,
        )
        shutil.rmtree(copy)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
