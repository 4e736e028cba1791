"""What comes from elsewhere and is not as it should be is refused, with what was expected and what
came; nothing changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest

from equipoise.registry import Registry
from tests.registry.made import artifact, manifest


@pytest.fixture
def to(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    to = Registry(tmp_path / "registry", create=True)
    to.add(artifact(tmp_path / "good", "a"), "cart")
    return to


def message(number: int, inner: bytes) -> bytes:
    """A field of a protobuf message that holds a message or a text."""
    return bytes([number << 3 | 2, len(inner)]) + inner


IR = b"\x08\x08"  # ir_version 8
EXTERNAL = IR + message(7, message(5, b"\x70\x01"))  # graph, initializer, data_location: EXTERNAL
CUSTOM = IR + message(8, message(1, b"com.x"))  # opset_import, domain
GOOD = {"sha256": "0" * 64, "size": 1}


def linked(folder: Path) -> None:
    (folder / "weights.safetensors").rename(folder.parent / "elsewhere")
    (folder / "weights.safetensors").symlink_to(folder.parent / "elsewhere")


def piped(folder: Path) -> None:
    (folder / "weights.safetensors").unlink()
    os.mkfifo(folder / "weights.safetensors")


def grown(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes(b"more weights")


def changed(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes(b"WEIGHTS")


def says(**files: dict) -> object:
    def write(folder: Path) -> None:
        said = json.loads((folder / "manifest.json").read_text())
        said["files"] |= {
            name.replace("UP", "../").replace("ROOT", "/").replace("_", "."): about
            for name, about in files.items()
        }
        (folder / "manifest.json").write_text(json.dumps(said))

    return write


def named(name: str) -> object:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(b"import os")
        manifest(folder)

    return write


def text(said: str) -> object:
    return lambda folder: (folder / "manifest.json").write_text(said)


def model(data: bytes) -> object:
    def write(folder: Path) -> None:
        (folder / "policy.onnx").write_bytes(data)
        manifest(folder)

    return write


def spec(data: bytes) -> object:
    def write(folder: Path) -> None:
        (folder / "spec.json").write_bytes(data)
        manifest(folder)

    return write


SPOILT = {
    "a link": (linked, "weights.safetensors: expected a plain file, got a link"),
    "a pipe": (piped, "weights.safetensors: expected a plain file, got another kind of file"),
    "another size": (grown, "weights.safetensors: expected 7 bytes, got 12"),
    "another content": (
        changed,
        "weights.safetensors: expected the SHA-256 .*, got .*: the file is damaged",
    ),
    "a file that is missing": (says(a_bin=GOOD), r"a\.bin: expected a file, got none"),
    "a path upwards": (
        says(UPUPetc_passwd=GOOD),
        r"expected names of files next to it, such .*, got '\.\./\.\./etc",
    ),
    "an absolute path": (says(ROOTetc=GOOD), "expected names of files next to it, .* got '/etc'"),
    "the manifest in itself": (
        says(manifest_json=GOOD),
        "expected names of files next to it, .* got 'manifest.json'",
    ),
    "a hash of words": (
        says(a_bin=GOOD | {"sha256": "x" * 64}),
        r"files\.a\.bin\.sha256: expected 64 hexadecimal digits, got",
    ),
    "a size below nothing": (
        says(a_bin=GOOD | {"size": -1}),
        r"a\.bin\.size: expected a whole number from 0 to",
    ),
    "a size of a planet": (
        says(a_bin=GOOD | {"size": 1 << 60}),
        r"a\.bin\.size: expected a whole number from 0 to",
    ),
    "another key": (says(a_bin=GOOD | {"url": "http://x"}), r"a\.bin\.url: expected no such key"),
    "too many files": (
        says(**{f"f{n}": GOOD for n in range(300)}),
        "files: expected at most 256 keys, got 304",
    ),
    "a huge manifest": (
        text(" " * (1 << 20) + "{}"),
        "manifest.json: expected at most 1,048,576 bytes, got 1,048,578",
    ),
    "a deep manifest": (text("[" * 100), "manifest.json, line 1: expected at most 64 levels"),
    "no JSON": (text("{"), "manifest.json, line 1: expected JSON"),
    "another format": (
        text('{"format": 2, "files": {}}'),
        "manifest.json: format: expected a whole number from 1 to 1, got 2",
    ),
    "a file that python would import": (
        named("numpy.py"),
        r"files: expected no files but .*, got 'numpy\.py'",
    ),
    "half of a letter": (
        spec(b'{"artifact": {"lineage": {"run": "\\ud800"}}}'),
        r"lineage\.run: expected text in UTF-8, got '.ud800'",
    ),
    "no spec": (
        text('{"format": 1, "files": {}}'),
        "files: expected 'spec.json' among them, got none",
    ),
    "no manifest": (
        lambda folder: (folder / "manifest.json").unlink(),
        "manifest.json: expected a file, got none",
    ),
    "external data": (
        model(EXTERNAL),
        r"policy\.onnx: expected all data within the file, got a tensor with external data",
    ),
    "custom operators": (
        model(CUSTOM),
        r"policy\.onnx: expected ONNX's own operators, got those of 'com\.x'",
    ),
    "no model": (model(b"\xff\xff"), r"policy\.onnx: expected an ONNX file"),
    "a spec that is no JSON": (spec(b"\xff"), r"spec\.json, line 1: expected JSON"),
    "a lineage of words": (
        spec(b'{"artifact": {"lineage": "x"}}'),
        r"spec\.json: artifact\.lineage: expected a JSON object",
    ),
}


@pytest.mark.few(99)
@pytest.mark.parametrize("what", SPOILT)
def test_an_artifact_that_is_not_as_it_should_be_is_refused(what, to, tmp_path):
    spoil, expected = SPOILT[what]
    made = artifact(tmp_path / "made", "b")
    spoil(made)
    before = everything(to)
    with pytest.raises(ValueError, match=expected):
        to.add(made, "cart")
    assert everything(to) == before


def everything(to: Registry) -> list[str]:
    return sorted(str(path) for path in to.path.rglob("*") if path.name != ".lock")


@pytest.mark.few(99)
@pytest.mark.parametrize(
    "name", ["../cart", "..", "", "/etc", "a/b", ".hidden", "cart\n", "x" * 101, "-rf", "cart\0"]
)
def test_a_name_that_leads_out_of_the_registry_is_refused(name, to, tmp_path):
    expected = "policy: expected a name of letters, digits"
    for act in (
        to.resolve,
        to.revision,
        to.show,
        to.audit,
        to.aliases,
        to.versions,
        to.rollback,
        lambda n: to.add(tmp_path / "good", n),
    ):
        with pytest.raises(ValueError, match=expected):
            act(name)


def test_a_name_that_is_too_long_is_told_its_length(to):
    with pytest.raises(
        ValueError, match=r"at most 100 of them, got 300 letters, 'xxxxxxxxxxxxxxxxxxxx'\.\.\.$"
    ):
        to.show("x" * 300)


# what Python makes of Latin-1 in an argument, and of JSON's escapes
ODD = ["caf\udce9", "\ud800", "x\udfff"]


@pytest.mark.parametrize("odd", ODD)
def test_half_of_a_letter_is_refused_when_it_is_written(odd, to, tmp_path):
    version = to.versions("cart")[0]
    before = everything(to)
    for act in (
        lambda: to.alias("cart", "champion", version, reason=odd),
        lambda: to.add(artifact(tmp_path / "b", "b", {"run": {"of": [odd]}}), "cart"),
        lambda: to.add(artifact(tmp_path / "c", "c"), "cart", lineage={odd: 1}),
    ):
        with pytest.raises(ValueError, match=r"expected text in UTF-8, got '.*\\ud"):
            act()
        assert everything(to) == before
    to.alias("cart", "champion", version, who=f"{odd}@host")  # nobody chooses the name of a machine
    assert json.dumps(to.audit("cart"), ensure_ascii=False).encode()


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_record_that_is_there_is_shown_escaped(odd, to, monkeypatch, tmp_path):
    from equipoise.registry import records
    from equipoise.watching.versions import Versions

    monkeypatch.setattr(records, "check_letters", lambda *_: None)
    version = to.add(artifact(tmp_path / "b", "b", {"run": odd}), "cart", reason=odd)
    to.alias("cart", "champion", version, reason=odd)
    page = Versions(to.path).told()
    assert json.dumps(page, ensure_ascii=False).encode(), "a page is UTF-8"
    (policy,) = page["policies"]
    escaped = odd.encode("utf-8", "backslashreplace").decode()
    assert [one["reason"] for one in policy["audit"]] == ["", escaped, escaped] and not to.verify()
    assert Registry(to.path).show("cart")["lineage"] == {"run": escaped} and not to.gc(dry=True)


@pytest.mark.parametrize("odd", ODD)
def test_a_problem_of_a_file_with_half_of_a_letter_is_told_escaped(odd, to):
    from equipoise.watching.versions import Versions

    version = to.versions("cart")[0]
    (to.artifact(version) / "manifest.json").write_text(json.dumps({odd: 1}))
    (record,) = to.audit_folder("cart").iterdir()
    escaped = odd.encode("utf-8", "backslashreplace").decode()
    page = Versions(to.path).told()
    assert (
        json.dumps(page, ensure_ascii=False).encode()
        and escaped in page["policies"][0]["versions"][0]["problem"]
    )
    assert escaped in to.show("cart", version)["problem"]
    data = json.dumps({odd: 1}).encode()
    record.unlink()
    (
        record.parent / f"{record.name[:-21]}{hashlib.sha256(data).hexdigest()[:16]}.json"
    ).write_bytes(data)
    page = Versions(to.path).told()
    assert json.dumps(page, ensure_ascii=False).encode() and escaped in str(
        page["policies"][0]["audit"][0]["problem"]
    )


def test_a_record_of_elsewhere_without_a_lineage_has_an_empty_one(to, tmp_path):
    version = to.versions("cart")[0]
    (old,) = to.audit_folder("cart").iterdir()
    said = json.loads(old.read_bytes())
    del said["lineage"]
    data = json.dumps(said).encode()
    old.unlink()
    (old.parent / f"{old.name[:-21]}{hashlib.sha256(data).hexdigest()[:16]}.json").write_bytes(data)
    again = Registry(to.path)
    assert again.show("cart", version)["lineage"] == {} and not again.verify()
    assert again.add(artifact(tmp_path / "again"), "cart", lineage={"run": "x"}) == version
    assert again.gc(older_than_s=0.0, dry=True) == [version]


def test_a_policy_that_cannot_be_read_costs_itself_alone(to, tmp_path):
    from equipoise.watching.versions import Versions

    (to.path / "policies" / "file").mkdir()
    (to.path / "policies" / "file" / "audit").write_text("no folder")
    (to.path / "policies" / "link").mkdir()
    (to.path / "policies" / "link" / "audit").symlink_to(tmp_path)
    assert to.names() == ["cart"] and list(to.list()) == ["cart"]
    assert [one["name"] for one in Versions(to.path).told()["policies"]] == ["cart"]
    assert len(to.verify()) == 2


@pytest.mark.parametrize(
    "which", ["../../etc", "", "abc", "g" * 64, "0" * 64, "champio", "/etc/passwd"]
)
def test_an_unknown_version_is_refused(which, to):
    with pytest.raises(
        ValueError, match=f"cart: unknown version or alias {re.escape(repr(which))}"
    ):
        to.resolve("cart", which)
    with pytest.raises(ValueError, match="unknown version or alias"):
        to.alias("cart", "champion", which)


def test_what_is_unknown_has_the_nearest_beside_it(to):
    with pytest.raises(ValueError, match="unknown policy 'cort'; did you mean 'cart'"):
        to.resolve("cort")
    with pytest.raises(ValueError, match="unknown alias 'champio'; did you mean 'champion'"):
        to.alias("cart", "champio", "0" * 64)
    with pytest.raises(
        ValueError, match="expected an alias that is set, got 'champion'; set: no alias"
    ):
        to.resolve("cart")
    with pytest.raises(ValueError, match="got 'previous', which follows the champion"):
        to.alias("cart", "previous", "0" * 64)
    with pytest.raises(ValueError, match="expected a version for the champion, got none"):
        to.alias("cart", "champion", None)


def test_links_within_the_registry_are_not_followed(to, tmp_path):
    version = to.versions("cart")[0]
    to.artifact(version).rename(tmp_path / "moved")
    to.artifact(version).symlink_to(tmp_path / "moved")
    with pytest.raises(ValueError, match="expected a folder, got a link or a file"):
        to.resolve("cart", version)
    (tmp_path / "moved" / "edge.py").write_bytes(b"")
    with pytest.raises(ValueError, match="expected a folder, got a link"):
        to.add(tmp_path / "good", "cart")
    assert (tmp_path / "moved" / "edge.py").read_bytes() == b""
    (to.path / "policies" / "pole").symlink_to(to.path / "policies" / "cart")
    with pytest.raises(ValueError, match="expected a folder, got a link"):
        to.resolve("pole", version)
    assert to.names() == ["cart"]
    expected = (
        f"artifacts/{version}: expected only folders of versions",
        "policies/pole: expected only folders of policies",
    )
    assert all(any(one in sentence for sentence in to.verify()) for one in expected)
    (to.path / ".lock").unlink()
    (to.path / ".lock").symlink_to(tmp_path / "lock")
    with pytest.raises(OSError, match=r"\.lock"):
        to.gc()
    assert not (tmp_path / "lock").exists()
    (to.path / "policies").rename(tmp_path / "policies")
    (to.path / "policies").symlink_to(tmp_path / "policies")
    with pytest.raises(ValueError, match="policies: expected a folder, got a link"):
        Registry(to.path)


def test_what_is_no_registry_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place, got in (("none", "nothing"), ("file", "a file"), (".", "another folder")):
        with pytest.raises(
            ValueError, match=f"expected a registry, got {got}; 'equipoise registry add' makes one"
        ):
            Registry(tmp_path / place)
    with pytest.raises(
        ValueError, match="expected a registry, or an empty folder for a new one, got one with file"
    ):
        Registry(tmp_path, create=True)
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "registry.json").write_text('{"format": 2}')
    with pytest.raises(
        ValueError, match=r"registry\.json: format: expected a whole number from 1 to 1, got 2"
    ):
        Registry(tmp_path / "later")


def test_a_place_where_no_folder_can_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/registry"):
        with pytest.raises(
            OSError,
            match=f"{place}: expected a folder for a registry, or a place to make one, got ",
        ) as caught:
            Registry(tmp_path / place, create=True)
        assert "Errno" not in str(caught.value)


def test_a_full_disk_leaves_the_registry_as_it_was(to, tmp_path, monkeypatch):
    before, made = everything(to), artifact(tmp_path / "made", "b")
    write, left = os.write, 3

    def full(handle: int, data: bytes) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        return write(handle, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        to.add(made, "cart")
    monkeypatch.undo()
    assert everything(to) == before and to.verify() == []


def test_a_registry_is_read_where_it_cannot_be_written(to, monkeypatch):
    """Reading opens nothing for writing, makes nothing and takes no lock."""
    to.alias("cart", "champion", to.versions("cart")[0])
    opened = os.open

    def read_only(path, flags, *rest, **extra):
        assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT), path
        return opened(path, flags, *rest, **extra)

    monkeypatch.setattr(os, "open", read_only)
    before = everything(to)
    (
        to.resolve("cart"),
        to.list(),
        to.show("cart"),
        to.audit("cart"),
        to.verify(),
        to.conflicts("cart"),
        to.revision("cart"),
    )
    assert everything(to) == before
