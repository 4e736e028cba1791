"""Registries merge by copying: in any order, interrupted, several ways round, they end in one state
that is whole.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from equipoise.registry import ALIASES, Incomplete, Registry, state
from tests.registry.made import artifact


@pytest.fixture
def two(tmp_path, monkeypatch):
    """A registry with a champion, and a copy of it."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    here = Registry(tmp_path / "here", create=True)
    here.alias("cart", "champion", here.add(artifact(tmp_path / "made", "made"), "cart"))
    copied(here.path, tmp_path / "there")
    return here, Registry(tmp_path / "there")


def add(to: Registry, text: str, name: str = "cart") -> str:
    return to.add(artifact(to.path / f"../{to.path.name}-{text}-{name}", text), name)


def copied(source: Path, to: Path) -> None:
    shutil.copytree(source, to, dirs_exist_ok=True)


def said(to: Registry) -> dict[str, Any]:
    """All that a registry says."""
    to = Registry(to.path)
    audit = {
        name: [{k: v for k, v in one.items() if k != "problem"} for one in to.audit(name)]
        for name in to.names()
    }
    return {
        "list": to.list(),
        "audit": audit,
        "conflicts": {name: to.conflicts(name) for name in to.names()},
        "wrong": to.verify(),
    }


def test_by_cp_both_ways(two, tmp_path):
    here, there = two
    a, b = add(here, "a"), add(there, "b")
    here.alias("cart", "candidate", a)
    there.alias("cart", "champion", b)
    there.add(artifact(tmp_path / "other", "o"), "pole")
    for source, to in ((here, there), (there, here)):
        subprocess.run(["cp", "-r", f"{source.path}/.", to.path], check=True, capture_output=True)
    assert said(here) == said(there) and said(here)["wrong"] == []
    assert here.names() == ["cart", "pole"] and set(here.versions("cart")) >= {a, b}
    assert here.aliases("cart") == {
        "champion": b,
        "previous": here.versions("cart")[-1],
        "candidate": a,
    }
    assert here.conflicts("cart") == {}


def test_an_alias_that_was_moved_in_both_is_the_later_one_until_the_next_move_settles_it(two):
    here, there = two
    old = here.resolve("cart")[0]
    b, a = add(there, "b"), add(here, "a")
    there.alias("cart", "champion", b)
    there.alias("cart", "champion", old)
    there.alias("cart", "champion", b)
    here.alias("cart", "champion", a)
    copied(here.path, there.path)
    assert there.aliases("cart") == {"champion": a, "previous": b}
    assert there.conflicts("cart") == {"champion": [b, a]}
    there.rollback("cart")
    assert (
        there.aliases("cart") == {"champion": b, "previous": old} and there.conflicts("cart") == {}
    )
    copied(there.path, here.path)
    assert said(here) == said(there) and said(here)["wrong"] == []


def test_two_who_promote_the_same_agree(two):
    here, there = two
    version = add(here, "a")
    assert there.add(here.artifact(version), "cart") == version
    for one in (here, there):
        one.alias("cart", "champion", version)
    copied(here.path, there.path)
    assert there.conflicts("cart") == {} and there.aliases("cart")["champion"] == version
    assert there.rollback("cart") != version


def test_a_copy_in_any_order_is_whole_or_says_what_is_missing(two, tmp_path, seed):
    """Whatever was copied up to now, a reader gets a version that is whole, or an error; at the end
    it gets all.
    """
    here, _ = two
    for text in "abc":
        here.alias("cart", "champion", add(here, text))
    draw = random.Random(seed)
    files = sorted(path for path in here.path.rglob("*") if path.is_file())
    for turn in range(10):
        draw.shuffle(files)
        target = tmp_path / f"target-{turn}"
        target.mkdir()
        for path in files:
            to = target / path.relative_to(here.path)
            to.parent.mkdir(parents=True, exist_ok=True)
            # cp writes in place, piece by piece
            to.write_bytes(path.read_bytes()[: draw.randrange(10)])
            readable(target)
            shutil.copy2(path, to)
            readable(target)
        assert said(Registry(target)) == said(here)


def test_an_alias_whose_version_is_not_added_yet_says_so(two):
    here, there = two
    here.alias("cart", "champion", add(here, "a"))
    *_, moved = sorted((here.path / "policies/cart/audit").iterdir())
    shutil.copy(moved, there.path / "policies/cart/audit")
    for read in (there.resolve, there.show):
        with pytest.raises(
            Incomplete,
            match="expected the record that adds .*, got none; copy its registry here again",
        ):
            read("cart", "champion")
    assert any("expected a record that adds" in sentence for sentence in there.verify())


def readable(target: Path) -> None:
    try:
        to = Registry(target)
        to.list()
        version, folder = to.resolve("cart")
        to.show("cart"), to.audit("cart"), to.conflicts("cart")
    except ValueError:
        return
    manifest = (folder / "manifest.json").read_bytes()
    assert version in to.versions("cart") and manifest, "whole"
    for name in ("policy.onnx", "spec.json", "weights.safetensors", "edge.py"):
        assert (folder / name).stat().st_size > 0


def test_a_copied_alias_changes_the_revision_and_a_copied_version_does_not(two):
    here, there = two
    before = here.revision("cart")
    b = add(there, "b")
    copied(there.path, here.path)
    assert here.revision("cart") == before
    there.alias("cart", "champion", b)
    copied(there.path, here.path)
    assert here.revision("cart") == there.revision("cart") != before
    copied(there.path, here.path)
    assert here.revision("cart") == there.revision("cart")


def test_what_gc_removed_in_one_copy_comes_back_from_another_that_uses_it(two):
    here, there = two
    a = add(here, "a")
    copied(here.path, there.path)
    there.alias("cart", "shadow", a)
    assert here.gc(older_than_s=0) == [a]
    copied(there.path, here.path)
    assert (
        here.resolve("cart", "shadow")[0] == a
        and said(here)["wrong"] == []
        and here.gc(older_than_s=0) == []
    )


def twin(audit: list[dict[str, Any]]) -> dict[str, str]:
    """The aliases by the contents of the records alone, the plain way: each champion and where to
    go back to from it.
    """
    now: dict[str, Any] = {}
    line: list[str] = []
    for one in sorted(audit, key=lambda one: one["record"]):
        kind, version = one["kind"], one["version"]
        if kind in ("candidate", "shadow"):
            now[kind] = version
        elif kind == "champion" and (not line or line[-1] != version):
            line = [*line, version]
        elif kind == "rollback":
            last = max(
                (place for place, passed in enumerate(line) if passed == version), default=None
            )
            line = [version] if last is None else line[: last + 1]
    now |= dict(zip(("champion", "previous"), line[::-1]))
    return {alias: version for alias, version in now.items() if version is not None}


@pytest.mark.parametrize("turn", range(4))
def test_three_machines_that_copy_now_and_then_agree_in_the_end(turn, tmp_path, monkeypatch, seed):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    draw = random.Random(seed + turn)
    machines = [Registry(tmp_path / f"machine-{n}", create=True) for n in range(3)]
    made = [artifact(tmp_path / f"made-{n}", f"{n}") for n in range(6)]
    for _ in range(60):
        one, other = draw.sample(machines, 2)
        known = one.versions("cart") if "cart" in one.names() else []
        act = draw.random()
        if act < 0.2 or not known:
            one.add(draw.choice(made), "cart")
        elif act < 0.35:
            copied(one.path, other.path)
        elif act < 0.5 and "previous" in one.aliases("cart"):
            one.rollback("cart")
        else:
            alias = draw.choice(ALIASES[:3])
            version = None if alias != "champion" and draw.random() < 0.2 else draw.choice(known)
            one.alias("cart", alias, version)
        if "cart" in one.names():
            assert one.aliases("cart") == twin(list(one.audit("cart")))
    for one in machines[1:]:
        copied(one.path, machines[0].path)
    everything = said(machines[0])
    order = draw.sample(machines, 3)
    for one, other in zip(order, [*order[1:], order[0]]):
        copied(one.path, other.path)
    copied(order[0].path, order[1].path)
    for one in machines:
        assert said(one) == everything
    assert everything["wrong"] == []


def test_the_order_of_a_listing_does_not_matter(two, seed):
    here, _ = two
    for text in "abc":
        here.alias("cart", "champion", add(here, text))
    here.rollback("cart")
    names = os.listdir(here.path / "policies" / "cart" / "audit")
    random.Random(seed).shuffle(names)
    assert state.of([*names, ".x.json.abc.tmp", "note.txt"]).aliases == here.aliases("cart")
