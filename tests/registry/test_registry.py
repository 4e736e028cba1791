"""Versions, aliases, audit and lineage of one registry; what verify names and what gc leaves."""

from __future__ import annotations

import io
import json
import os
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from equipoise.edge import Artifact
from equipoise.registry import (
    AliasMoved,
    Incomplete,
    Registry,
    RegistryReader,
    keeping,
    reading,
    records,
)
from tests.registry.made import artifact


@pytest.fixture
def to(tmp_path, monkeypatch):
    """A registry; nothing here is about power cuts, so nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    return Registry(tmp_path / "registry", create=True)


def add(to, text, name="cart", **lineage):
    made = to.path.parent / f"made-{text}-{len(os.listdir(to.path.parent))}"
    return to.add(artifact(made, text, lineage), name)


def kinds(to, name="cart"):
    return [one["kind"] for one in to.audit(name)]


def test_a_version_is_the_hash_of_the_manifest_and_is_found_by_name_digits_and_alias(to):
    a, b = add(to, "a", run="runs/x", step=5), add(to, "b")
    to.alias("cart", "champion", a, reason="first", who="ann")
    to.alias("cart", "champion", b[:12])
    for which in ("champion", b, b[:6]):
        assert to.resolve("cart", which) == (b, to.path / "artifacts" / b)
    assert to.aliases("cart") == {"champion": b, "previous": a}
    assert to.names() == ["cart"] and to.versions("cart") == [b, a]
    said = to.show("cart", "previous")
    assert (
        said["lineage"] == {"run": "runs/x", "step": 5}
        and said["aliases"] == ["previous"]
        and said["problem"] is None
    )
    assert said["files"]["weights.safetensors"] == 7
    moved = to.audit("cart")[2]
    assert (moved["who"], moved["reason"], moved["from"], moved["version"]) == (
        "ann",
        "first",
        None,
        a,
    )
    assert [one["version"] for one in to.list()["cart"]["versions"]] == [b, a]
    assert to.verify() == []


@pytest.mark.thorough
def test_a_real_artifact_goes_in_and_acts_when_it_comes_out(to, tmp_path):
    pytest.importorskip("onnx")
    from tests.artifacts import artifact as exported

    version = to.add(exported(tmp_path / "exported"), "mlp")
    to.alias("mlp", "champion", version)
    found, path = RegistryReader(to.path).resolve("mlp")
    assert Artifact.open(path).version == found == version


def test_lineage_that_is_given_stands_beside_the_artifacts(to, tmp_path):
    made = artifact(tmp_path / "made", "a", {"run": "x", "parent": None})
    version = to.add(made, "cart", lineage={"parent": "f" * 64})
    assert to.show("cart", version)["lineage"] == {"run": "x", "parent": "f" * 64}
    to.add(made, "cart", lineage={"parent": "f" * 64})
    assert kinds(to) == ["added"], "the same again changes nothing"
    to.add(made, "cart", lineage={"evaluation": {"mean": 3.0}})
    assert kinds(to) == ["added", "added"] and to.versions("cart") == [version]


def test_rollbacks_go_back_one_champion_each_and_a_promotion_begins_there(to):
    a, b, c = (add(to, text) for text in "abc")
    for version in (a, b, c):
        to.alias("cart", "champion", version)
    assert to.rollback("cart") == b and to.aliases("cart") == {"champion": b, "previous": a}
    to.alias("cart", "champion", c)
    assert to.aliases("cart") == {"champion": c, "previous": b}
    assert [to.rollback("cart"), to.rollback("cart")] == [b, a]
    with pytest.raises(ValueError, match="expected an alias that is set, got 'previous'"):
        to.rollback("cart")
    assert kinds(to)[3:] == [
        "champion",
        "champion",
        "champion",
        "rollback",
        "champion",
        "rollback",
        "rollback",
    ]


def test_an_alias_moves_only_from_where_its_mover_expects_it(to):
    a, b = add(to, "a"), add(to, "b")
    to.alias("cart", "champion", a, expect=None)
    with pytest.raises(AliasMoved, match=f"expected champion at no version, got {a[:12]}"):
        to.alias("cart", "champion", b, expect=None)
    with pytest.raises(AliasMoved, match=f"expected champion at {b[:12]}"):
        to.alias("cart", "champion", b, expect=b[:8])
    assert to.aliases("cart") == {"champion": a}
    refused = to.audit("cart")[-1]
    assert (
        refused["kind"],
        refused["alias"],
        refused["from"],
        refused["expected"],
        refused["version"],
    ) == (
        "refused",
        "champion",
        a,
        b,
        b,
    )
    to.alias("cart", "champion", b, expect=a)
    with pytest.raises(AliasMoved):
        to.rollback("cart", expect=a)
    to.rollback("cart", expect="champion")
    assert to.aliases("cart") == {"champion": a}
    before = kinds(to)
    to.alias("cart", "champion", a)
    assert kinds(to) == before, "to where it is: nothing is done"


def test_candidate_and_shadow_come_and_go(to):
    a = add(to, "a")
    revisions = [to.revision("cart")]
    for alias, version in (("shadow", a), ("candidate", "shadow"), ("shadow", None)):
        assert to.alias("cart", alias, version) == (None if version is None else a)
        revisions.append(to.revision("cart"))
    assert to.aliases("cart") == {"candidate": a}
    add(to, "b")
    revisions.append(to.revision("cart"))
    assert len(set(revisions)) == 4 and revisions[-1] == revisions[-2], (
        "a move changes the revision, a version does not"
    )


def test_a_clock_that_goes_back_does_not_undo_what_was_done_later(to, monkeypatch):
    a, b = add(to, "a"), add(to, "b")
    to.alias("cart", "champion", a)
    monkeypatch.setattr(records.time, "time_ns", lambda: 0)
    to.alias("cart", "champion", b)
    assert RegistryReader(to.path).aliases("cart") == {"champion": b, "previous": a}
    assert to.audit("cart")[-1]["time"] == "1970-01-01T00:00:00Z"


# ------------------------------------------------------------------------------------------- verify


def test_a_flipped_byte_is_named_wherever_it_is(to, seed):
    for text in "ab":
        to.alias("cart", "champion", add(to, text, parent="0" * 64))
    draw = random.Random(seed)
    files = [path for path in sorted(to.path.rglob("*")) if path.is_file() and path.name != ".lock"]
    assert len(files) == 1 + 2 * 5 + 4
    for path in files:
        whole = path.read_bytes()
        place, bit = draw.randrange(len(whole)), 1 << draw.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            problems = Registry(to.path).verify()
        except ValueError as error:
            assert path.name == "registry.json"
            problems = [str(error)]
        assert len(problems) == 1 and str(path) in problems[0]
        path.write_bytes(whole)
    assert Registry(to.path).verify() == []


def test_what_is_missing_or_not_expected_is_named(to):
    a = add(to, "a")
    to.alias("cart", "champion", a)
    folder = to.artifact(a)
    (folder / "more.txt").write_text("x")
    (to.path / "artifacts" / "notes").mkdir()
    (to.path / "policies" / "cart" / "audit" / "note.json").write_text("{}")
    assert [sentence.split(":")[0].rpartition("/")[2] for sentence in to.verify()] == [
        "more.txt",
        "notes",
        "note.json",
    ]
    (folder / "weights.safetensors").unlink()
    with pytest.raises(
        Incomplete, match=r"weights\.safetensors: expected a file of 7 bytes, got none"
    ):
        to.resolve("cart")
    with pytest.raises(Incomplete):
        to.alias("cart", "shadow", a)
    assert "weights.safetensors" in to.show("cart")["problem"]
    add(to, "a")
    assert to.resolve("cart")[0] == a, "adding it again mends it"


def test_a_damaged_version_is_not_promoted(to):
    a, b = add(to, "a"), add(to, "b")
    to.alias("cart", "champion", b)
    (to.artifact(a) / "weights.safetensors").write_bytes(b"WEIGHTS")
    with pytest.raises(
        ValueError,
        match=r"weights\.safetensors: expected the SHA-256 .*, got .*: the file is damaged",
    ):
        to.alias("cart", "champion", a)
    assert to.aliases("cart") == {"champion": b}


def test_a_damaged_record_says_so_in_the_audit_and_the_rest_goes_on(to):
    a = add(to, "a")
    to.alias("cart", "champion", a)
    record = to.state("cart").records[-1]
    path = to.path / "policies" / "cart" / "audit" / record.name
    path.write_bytes(path.read_bytes()[:20])
    other = Registry(to.path)
    assert other.resolve("cart")[0] == a, "the name says where the champion is"
    *_, last = other.audit("cart")
    assert last["kind"] == "champion" and str(path) in last["problem"]
    path = path.with_name(to.state("cart").records[0].name)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match="the file is damaged"):
        Registry(to.path).show("cart")
    add(Registry(to.path), "a")
    assert Registry(to.path).show("cart")["lineage"] == {}, "adding it again says it again"


# ----------------------------------------------------------------------------------------------- gc


def test_gc_removes_nothing_that_an_alias_or_a_lineage_names(to, seed):
    """Against a slow twin, on registries of which aliases and lineages are drawn."""
    draw = random.Random(seed)
    versions: list[str] = []
    for n in range(14):
        named = {"parent": draw.choice(versions)} if versions and draw.random() < 0.5 else {}
        if versions and draw.random() < 0.3:
            named["evaluation"] = {"against": [draw.choice(versions)], "mean": 1.0}
        versions.append(add(to, f"{n}", draw.choice(["cart", "pole"]), **named))
    for name in to.names():
        for alias in ("champion", "champion", "candidate", "shadow"):
            to.alias(name, alias, draw.choice(to.versions(name)))
    everything = set(os.listdir(to.path / "artifacts"))
    text = json.dumps(
        [to.show(name, version)["lineage"] for name in to.names() for version in to.versions(name)]
    )
    named_by = {v for v in versions if v in text} | {
        v for name in to.names() for v in to.aliases(name).values()
    }
    assert to.gc() == [] and set(os.listdir(to.path / "artifacts")) == everything, (
        "all are younger than a week"
    )
    assert set(to.gc(older_than_s=0, dry=True)) == everything - named_by
    assert set(os.listdir(to.path / "artifacts")) == everything, "dry"
    gone = set(to.gc(older_than_s=0, who="ann"))
    assert gone == everything - named_by and set(os.listdir(to.path / "artifacts")) == named_by
    assert to.verify() == []
    for version in gone:
        name = next(name for name in ("cart", "pole") if version in to.state(name).added)
        with pytest.raises(ValueError, match="gc removed it on"):
            to.resolve(name, version)
        assert ("removed", "ann") in {
            (one["kind"], one["who"]) for one in to.audit(name) if one["version"] == version
        }


def test_a_removed_version_can_be_added_again(to):
    a = add(to, "a")
    assert to.gc(older_than_s=0) == [a] and to.versions("cart") == []
    assert add(to, "a") == a
    assert (
        to.versions("cart") == [a]
        and kinds(to) == ["added", "removed", "added"]
        and to.verify() == []
    )


def test_gc_removes_nothing_where_a_record_may_name_it_and_cannot_be_read(to):
    add(to, "a", parent="0" * 64)
    path = to.path / "policies" / "cart" / "audit" / to.state("cart").records[0].name
    path.write_bytes(path.read_bytes().replace(b"parent", b"parenT"))
    with pytest.raises(ValueError, match="the file is damaged"):
        Registry(to.path).gc(older_than_s=0)
    assert len(os.listdir(to.path / "artifacts")) == 1


def test_gc_leaves_what_is_being_copied_here_and_sweeps_what_a_kill_left(to, monkeypatch):
    a = add(to, "a")
    copied = to.artifact("e" * 64)
    to.artifact(a).rename(copied)  # a version that no policy has
    left = [
        to.artifact(".aside-0123"),
        to.path / "policies/cart/audit/.x.json.abc.tmp",
        to.path / ".registry.json.abc.tmp",
    ]
    left[0].mkdir()
    for path in left[1:]:
        path.write_bytes(b"")
    assert to.gc(older_than_s=0) == [] and copied.exists() and all(path.exists() for path in left)
    monkeypatch.setattr(keeping, "LEFT_S", -1.0)
    assert (
        to.gc(older_than_s=0) == ["e" * 64]
        and not copied.exists()
        and not any(path.exists() for path in left)
    )


# ------------------------------------------------------------------------------------- how it grows


def test_resolve_and_revision_do_as_much_with_a_thousand_versions_as_with_ten(to, monkeypatch):
    a = add(to, "a")
    to.alias("cart", "champion", a)
    audit = to.path / "policies" / "cart" / "audit"
    done: list[str] = []

    def counted(module, name):
        inner = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, **extra: (done.append(name), inner(*args, **extra))[1]
        )

    def operations(reader):
        """What an operation on the file system costs, by name."""
        found = {}
        for what in (
            lambda: reader.revision("cart"),
            lambda: reader.resolve("cart"),
            lambda: reader.resolve("cart", a[:12]),
        ):
            done.clear()
            what()
            found[len(found)] = sorted(done)
        return found

    first = RegistryReader(to.path)
    monkeypatch.setattr(reading, "SETTLED_NS", 1 << 62)  # nothing is kept from one call to the next
    for name in ("open", "read", "listdir", "scandir", "lstat", "stat"):
        counted(os, name)
    counted(io, "open")
    few = operations(first)
    for n in range(1000):
        name = f"{records.time.time_ns() // 1000:016}-added-{n:064x}-{n:016x}.json"
        (audit / name).write_text("{}")
        (to.path / "artifacts" / f"{n:064x}").mkdir()
    assert len(to.versions("cart")) == 1001
    assert operations(RegistryReader(to.path)) == few
    assert few[0].count("listdir") == 1 and len(few[0]) <= 4 and len(few[1]) <= 20, few
    monkeypatch.setattr(reading, "SETTLED_NS", -(1 << 62))  # as if the last change were long ago
    settled = RegistryReader(to.path)
    operations(settled)
    assert "listdir" not in operations(settled)[0] and len(operations(settled)[0]) <= 3
    to.alias("cart", "champion", add(to, "b"))
    assert settled.revision("cart") == RegistryReader(to.path).revision("cart")


def test_a_reader_sees_each_of_many_quick_moves(to, monkeypatch):
    """Faster than the clock of the file system ticks, so that a folder changes and its time of
    change does not.
    """
    a, other, stat = add(to, "a"), RegistryReader(to.path), Path.stat

    def coarse(path, **how):
        about = stat(path, **how)
        return SimpleNamespace(
            st_mode=about.st_mode, st_ctime_ns=about.st_ctime_ns // 10**8 * 10**8
        )

    monkeypatch.setattr(Path, "stat", coarse)
    for turn in range(300):
        (
            to.path
            / "policies"
            / "cart"
            / "audit"
            / f"{2 * 10**15 + turn}-shadow-{(a, 'none')[turn % 2]}-{'0' * 16}.json"
        ).touch()
        assert other.aliases("cart") == ({"shadow": a}, {})[turn % 2]
