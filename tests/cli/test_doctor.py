"""What a bug report needs, and nothing that names a person or a place."""

from __future__ import annotations

import getpass
import os
import platform
import sys
from pathlib import Path

import pytest

from equipoise.cli import app
from equipoise.cli.doctor import extras, facts


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
        "memory",
        "shared",
        "descriptors",
        "gpu",
        "extras",
        "without",
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
