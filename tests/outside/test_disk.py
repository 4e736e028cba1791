"""Whatever goes wrong at a file operation: a reader sees the old or the new, the caller is told,
and doing it again works.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.outside.disk import FAULTS, Disk
from tests.outside.disk_faults import SUBJECTS

ROOT = Path(__file__).parents[2]
QUICK = {
    ("checkpoint", "cut"),
    ("append", "short"),
    ("key", "short"),
    ("edge log", "full"),
    ("registry alias", "fail"),
}
LONG = ("registry rollback", "registry gc")  # as "registry alias" and "registry add", on more files
CASES = [
    pytest.param(
        subject,
        fault,
        id=f"{subject}-{fault}",
        marks=()
        if (subject, fault) in QUICK
        else pytest.mark.slow
        if subject in LONG
        else pytest.mark.thorough,
    )
    for subject in SUBJECTS
    for fault in FAULTS
    # tests/registry/test_kills_and_races.py
    if not (subject.startswith("registry") and fault == "kill")
]


def tried(subject: str, fault: str, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.outside.disk_faults", subject, fault, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    first, *rest = [json.loads(line) for line in done.stdout.splitlines()]
    return first, rest


@pytest.mark.few(1000)
@pytest.mark.parametrize(("subject", "fault"), CASES)
def test_a_reader_sees_the_old_or_the_new(subject: str, fault: str, tmp_path: Path) -> None:
    first, every = tried(subject, fault, tmp_path)
    old, new = first["old"], first["new"]
    assert (
        len(every) >= (first["operations"] if fault != "slow" else 1) and first["operations"] >= 3
    )
    for one in every:
        assert first["parts"] or one["seen"] in (old, new), one
        assert not isinstance(one["seen"], str) or one["seen"] in (old, new), (
            f"what is there cannot be read: {one}"
        )
        assert one["again"] == new, f"it works when it is done again: {one}"
        raised = one["raised"] or ""
        assert raised in ("", "killed") or raised.startswith(
            ("OSError", "ValueError: [Errno 5]")
        ), one
        if not raised and (fault != "cut" or first["lasts"]):
            assert one["seen"] == new, f"nothing was told, so it is done: {one}"
    if fault == "slow":
        assert not any(one["raised"] for one in every)
    if fault in ("kill", "cut"):
        assert any(one["raised"] == "killed" for one in every)


# ---------------------------------------------------------------------------------------- the layer


def test_each_fault_is_what_its_name_says(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write() -> int:
        with path.open("wb", buffering=0) as file:
            return file.write(b"12345678")

    with Disk(tmp_path, "fail", 1), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        write()
    assert not path.exists()
    with Disk(tmp_path, "full", 2), pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write()
    assert path.read_bytes() == b"1234"
    with Disk(tmp_path, "short", 2):
        assert write() == 4
    with Disk(tmp_path) as disk:
        write()
        (tmp_path.parent / "elsewhere").write_bytes(b"")
    assert disk.done == ["open", "write"] and path.read_bytes() == b"12345678"


def test_a_power_cut_takes_what_no_fsync_followed(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (room / "old").write_bytes(b"old")

    def sync(path: Path) -> None:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    with Disk(room, "cut") as disk:
        (room / "kept").write_bytes(b"kept")
        sync(room / "kept")
        sync(room)
        with (room / "kept").open("ab") as file:
            file.write(b" and lost")
        (room / "lost").write_bytes(b"lost")
        (room / "kept").rename(room / "renamed")
        (room / "old").unlink()
        (room / "sub").mkdir()
        disk.cut()
    assert {path.name: path.read_bytes() for path in room.iterdir()} == {
        "kept": b"kept",
        "old": b"old",
    }
