"""What a bug report needs, and nothing that names a person or a place."""

from __future__ import annotations

import getpass
import os
import platform
import sys
from pathlib import Path

import pytest

from equipoise.cli import app, doctor
from equipoise.cli.doctor import extras, facts, setup
from equipoise.cores import cgroup_cores


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        app(["doctor"], prog_name="equipoise")
    assert end.value.code == 0
    return capsys.readouterr().out


def test_it_names_the_machine_and_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys)
    for name in (
        "python",
        "equipoise",
        "torch",
        "cores",
        "limit",
        "memory",
        "shared",
        "descriptors",
        "gpu",
        "extras",
        "without",
        "make setup",
    ):
        assert f"\n{name} " in f"\n{said}"
    words = said.split()
    assert getpass.getuser() not in words and platform.node() not in words
    assert str(Path.home()) not in said and os.getcwd() not in said


def test_a_torch_that_cannot_be_imported_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch uses nothing: it cannot be imported" in printed(capsys)


def test_an_extra_is_there_if_all_of_its_packages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        'numpy>=2; extra == "a"',
        'numpy; extra == "b"',
        'no-such-package>=1; extra == "b"',
        "torch>=2",
    ]
    monkeypatch.setattr("equipoise.cli.doctor.metadata.requires", lambda name: lines)
    assert extras() == (["a"], ["b"])
    assert facts()["without"] == "b"


def test_setup_would_install_what_differs_from_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have = {"torch": "2.13.0+cpu", "numpy": "2.0"}
    monkeypatch.setattr(doctor, "installed", have.get)
    lock = tmp_path / "requirements.lock"
    lock.write_text("# made\ntorch==2.13.0\nnumpy==2.0\nelsewhere==1 ; os_name == 'none'\n")
    assert setup(lock) == "changes nothing: 2 packages are as requirements.lock names them"
    others = "".join(f"other-{i}==1\n" for i in range(5))
    lock.write_text(f"torch==2.13.1\nnumpy==2.0\n{others}")
    said = setup(lock)
    assert said.startswith("changes 6 of 7 packages: torch 2.13.0+cpu -> 2.13.1, other-0 missing")
    assert said.endswith(", and 1 more") and "numpy" not in said
    assert "there is no requirements.lock" in setup(tmp_path / "none" / "requirements.lock")


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 1.5),
        ("0::/a", {"a/cpu.max": "max 100000"}, None),
        (
            "4:cpu,cpuacct:/a",
            {"cpu/a/cpu.cfs_quota_us": "200000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            2.0,
        ),
        ("4:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "1"}, None),
        ("", {}, None),
    ],
)
def test_the_limit_of_the_processor_is_the_least_of_all_groups(
    tmp_path: Path, groups: str, files: dict[str, str], cores: float | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert cgroup_cores(tmp_path) == cores
