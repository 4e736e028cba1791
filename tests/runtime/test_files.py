"""New folders: there as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.files import new_folder


def test_a_new_folder_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    to = tmp_path / "deep" / "folder"
    with pytest.raises(IsADirectoryError), new_folder(to) as aside:
        aside.write_text("fails")
    assert not list(to.parent.iterdir())
    with new_folder(to) as aside:
        (aside / "file").touch()
        assert not to.exists()
    assert [one.name for one in to.parent.iterdir()] == ["folder"] and (to / "file").exists()


def test_a_folder_that_another_process_wrote_at_once_stays(tmp_path: Path) -> None:
    to = tmp_path / "folder"
    with new_folder(to, present="file") as aside, new_folder(to) as other:
        (aside / "file").write_text("mine")
        (other / "file").write_text("the other's")
    assert (to / "file").read_text() == "the other's"
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(OSError), new_folder(to) as aside:
        (aside / "file").touch()
