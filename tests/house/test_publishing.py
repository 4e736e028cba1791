"""Words that let another process go on are stored by ``publish``, and processors without an order
of stores are refused.
"""

from __future__ import annotations

import ast
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import publishing
from equipoise.cli.doctor import facts
from equipoise.publishing import publish

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/equipoise"
# As in the table of docs/inside/memory-order.md: the words by the folders and files whose laws
# they are part of.
WORDS = {
    "experience/queue": {"owner", "word", "_word", "_claiming", "_dealing", "_limits"}
    | {"want", "full", "granted", "sent", "lives"},
    "experience/replay": {"asked", "answered", "life", "seen"},
    "actors/inference": {"answered", "asked", "epoch", "held", "_asked", "_held"},
    "weights": {"_begin", "_end", "_latest"},
    "learners/meeting.py": {"ready", "done", "freed", "passed", "seen", "fresh"},
    "learners/addresses.py": {"met"},
    "workers/learner.py": {"fresh", "ready", "life"},
    "runtime/cut.py": {
        "begun",
        "asked",
        "save",
        "save_last",
        "released",
        "closed",
        "examined",
        "counter",
    },
    "runtime/cluster": {"asked", "answered", "life", "seen", "epoch", "held"}
    | {"want", "full", "granted", "sent"},
}
OTHERS = {  # arrays of the same name that one process has for itself
    "experience/queue/tokens.py: self.owner[place]",  # published with the word that is OPEN
    "runtime/cluster/weights.py: self._asked",
    "experience/queue/redeal.py: word[taken]",  # of a saved state
    "experience/queue/queue.py: self._limits[1]",  # published with the first
}


def word_of(target: ast.expr) -> str:
    """The word that an assignment stores into: "asked" for ``self._words["asked"][0]``; "" where it
    is none.
    """
    if not isinstance(target, ast.Subscript):
        return ""
    array = target.value
    if isinstance(array, ast.Subscript):
        return ast.unparse(array.slice).strip("'")
    return (
        array.attr
        if isinstance(array, ast.Attribute)
        else array.id
        if isinstance(array, ast.Name)
        else ""
    )


def stored_plainly(code: str, words: set[str]) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(code)):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AugAssign)
            else []
        )
        flat = [
            one
            for target in targets
            for one in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        found += [ast.unparse(one) for one in flat if word_of(one) in words]
    return found


def test_every_word_is_published_by_one_function() -> None:
    plain = []
    for place, words in WORDS.items():
        files = (
            [SOURCE / place] if place.endswith(".py") else sorted((SOURCE / place).rglob("*.py"))
        )
        for file in files:
            plain += [
                f"{file.relative_to(SOURCE)}: {one}"
                for one in stored_plainly(file.read_text(), words)
            ]
    assert [one for one in plain if not any(one.startswith(other) for other in OTHERS)] == []


def test_the_look_finds_each_form() -> None:
    code = """
self._words["asked"][0] = 1
words["asked"][at] += 1
self._asked[:] = 0
mail["asked"][0] = mail["answered"][0] = 3
a, words["asked"][1] = 1, 2
asked = words["asked"][0]
words["other"][0] = 1
"""
    assert len(stored_plainly(code, {"asked", "_asked"})) == 5


def test_the_page_has_every_word() -> None:
    page = (ROOT / "docs/inside/memory-order.md").read_text()
    named = {word.lstrip("_") for words in WORDS.values() for word in words} - {"counter", "limits"}
    assert [word for word in sorted(named) if f"`{word}" not in page] == []


def test_it_is_an_ordinary_store() -> None:
    words = np.zeros(4, np.int64)
    publish(words, 1, 5)
    publish(words, slice(2, 4), np.array([6, 7]))
    assert words.tolist() == [0, 5, 6, 7]


@pytest.mark.parametrize("machine", ["aarch64", "arm64", "riscv64", "i686"])
def test_processes_are_refused_without_an_order_of_stores(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import equipoise as eq
    from equipoise.run.governing import check_on

    program = eq.program("CartPole-v1", algorithm="ppo")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    for on in ("process", "ray"):
        with pytest.raises(
            ValueError, match=f"(?s)expected serial, since .*'{machine}', got {on}; try --on serial"
        ):
            check_on(program, on)
    check_on(program, "serial")
    assert facts()["processes"].startswith("no: ") and "--on serial" in facts()["processes"]


def test_a_site_refuses_as_home_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from equipoise.runtime.cluster.host import SiteHost

    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(ValueError, match="expected serial, since"):
        SiteHost(None, tmp_path)  # type: ignore[arg-type]


def test_x86_is_fine() -> None:
    assert [publishing.unordered(machine) for machine in publishing.ORDERED] == ["", ""]
