"""The package stays small to read: no long file, and a README in every room."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/equipoise"
# of a file at most; files are cut by thought, and this finds those that have too many
LINES = 600
ALONE = {
    "edge.py": 925,  # the one file that every artifact brings along, so that a robot needs no other
}


def too_long(files: dict[str, str]) -> list[str]:
    lines = {name: len(text.splitlines()) for name, text in files.items()}
    return [
        f"{name}: {count} lines" for name, count in lines.items() if count > ALONE.get(name, LINES)
    ]


def test_no_file_is_long() -> None:
    files = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    assert too_long(files) == []
    assert too_long({"a.py": "\n" * LINES, "b.py": "\n" * (LINES + 1)}) == [
        f"b.py: {LINES + 1} lines"
    ]


def test_every_room_has_a_readme() -> None:
    rooms = [path.parent for path in SOURCE.glob("*/__init__.py")]
    assert len(rooms) > 15
    assert [room.name for room in rooms if not (room / "README.md").is_file()] == []
